//! Spans of both hops, as a collector takes them whose types are not ours.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use starling_model::{Action, IntentionPermission, PathMatch, Percent, Protocol, Tracing};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use crate::http2::{Client, request};
use crate::wire::eventually;
use crate::world::{Setup, World};

/// A span with the name of the service whose it is.
type Collected = Arc<Mutex<Vec<(String, Span)>>>;

struct Collector(Collected);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut collected = self.0.lock().unwrap();
        for of in request.into_inner().resource_spans {
            let service = attributes(&of.resource.unwrap().attributes)["service.name"].clone();
            for scope in of.scope_spans {
                assert_eq!(scope.scope.unwrap().name, "starling-proxy");
                collected.extend(scope.spans.into_iter().map(|span| (service.clone(), span)));
            }
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn collector() -> (SocketAddr, Collected) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, collected) = (listener.local_addr().unwrap(), Collected::default());
    let service = TraceServiceServer::new(Collector(Arc::clone(&collected)));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (address, collected)
}

fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    list.iter().map(|pair| (pair.key.clone(), text(&pair.value))).collect()
}

async fn traced(protocol: Protocol, share: Percent, collector: SocketAddr) -> World {
    let permission = |action, path: &str| IntentionPermission {
        action,
        path: Some(PathMatch::Prefix(path.to_owned())),
        methods: Vec::new(),
        headers: Vec::new(),
    };
    let permissions = vec![permission(Action::Deny, "/private"), permission(Action::Allow, "/")];
    let mut world = World::start(Setup::of(protocol).by_request(permissions)).await;
    let collector = Some(format!("http://{collector}").parse().unwrap());
    let tracing = Arc::new(Tracing { collector, sampled: share });
    for sidecar in [&mut world.web, &mut world.api] {
        sidecar.plan.tracing = Arc::clone(&tracing);
        sidecar.apply().await;
    }
    world
}

/// The spans of both hops of a call, once they are there.
async fn pair(collected: &Collected) -> (Span, Span) {
    eventually("both hops have sent their spans", || collected.lock().unwrap().len() == 2).await;
    let mut spans: BTreeMap<_, _> = collected.lock().unwrap().drain(..).collect();
    (spans.remove("web").unwrap(), spans.remove("api").unwrap())
}

/// The value of a field in what an application mirrors.
fn seen<'a>(mirrored: &'a str, name: &str) -> Option<&'a str> {
    mirrored.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn each_hop_sends_a_span_that_is_part_of_the_one_before() {
    let (address, collected) = collector().await;
    let world = traced(Protocol::Http, Percent::ALL, address).await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    client.send("GET /a?secret=1 HTTP/1.1\r\nhost: api:80\r\nuser-agent: test/1\r\nx-b3-sampled: 1\r\n\r\n").await;
    let mirrored = client.message().await.text();
    let (outer, inner) = pair(&collected).await;
    assert_eq!((outer.kind(), inner.kind()), (SpanKind::Client, SpanKind::Server));
    assert_eq!((outer.trace_id.len(), outer.span_id.len(), &*outer.parent_span_id), (16, 8, &[][..]), "a trace begins");
    assert_eq!((&inner.trace_id, &inner.parent_span_id), (&outer.trace_id, &outer.span_id));
    let (trace, span) = (hex(&inner.trace_id), hex(&inner.span_id));
    assert_eq!(
        seen(&mirrored, "traceparent"),
        Some(&*format!("00-{trace}-{span}-01")),
        "the application goes on with it"
    );
    assert_eq!(seen(&mirrored, "x-b3-parentspanid"), Some(&*hex(&outer.span_id)));
    assert!(outer.start_time_unix_nano <= inner.start_time_unix_nano);
    assert!(inner.end_time_unix_nano >= inner.start_time_unix_nano);
    assert_eq!((&*outer.name, &*inner.name, &outer.status, &inner.status), ("GET", "GET", &None, &None));
    for (span, peer) in [(&outer, "api"), (&inner, "web")] {
        let found = attributes(&span.attributes);
        for (key, value) in [
            ("http.request.method", "GET"),
            ("url.path", "/a"),
            ("server.address", "api:80"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("user_agent.original", "test/1"),
            ("peer.service", peer),
        ] {
            assert_eq!(found.get(key).map(String::as_str), Some(value), "{key} of {found:?}");
        }
        assert!(!format!("{found:?}").contains("secret"));
    }
    assert_eq!(attributes(&outer.attributes)["network.peer.port"], world.public.port().to_string());
}

#[tokio::test]
async fn a_denied_call_is_an_error_of_the_caller_and_http2_is_traced_alike() {
    let (address, collected) = collector().await;
    let world = traced(Protocol::Http2, Percent::NONE, address).await;
    let _app = world.app.mirror_http2();
    let mut client = Client::open(&world).await;
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    for (path, status) in [("/a", 200), ("/private", 403)] {
        let mut asked = request("GET", path);
        asked.headers_mut().insert("traceparent", format!("00-{trace}-{span}-01").parse().unwrap());
        let answer = crate::app::answer(client.begin(asked, true).0).await.unwrap();
        assert_eq!(answer.status, status);
        let (outer, inner) = pair(&collected).await;
        assert_eq!((hex(&outer.trace_id), hex(&outer.parent_span_id)), (trace.to_owned(), span.to_owned()));
        assert_eq!((&inner.trace_id, &inner.parent_span_id), (&outer.trace_id, &outer.span_id));
        let error = |span: &Span| span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
        assert_eq!((error(&outer), error(&inner)), (status == 403, false), "{path}");
        let found = attributes(&outer.attributes);
        assert_eq!(found.get("error.type").map(String::as_str), (status == 403).then_some("403"));
        assert_eq!(found["network.protocol.version"], "2");
    }
}

#[tokio::test]
async fn what_is_not_sampled_sends_nothing_and_says_so_to_the_next_hop() {
    let (address, collected) = collector().await;
    let mut world = traced(Protocol::Http, Percent::NONE, address).await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let mirrored = client.message().await.text();
    assert!(seen(&mirrored, "traceparent").unwrap().ends_with("-00"), "{mirrored}");
    let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    client.send(format!("GET / HTTP/1.1\r\nhost: api\r\ntraceparent: {unsampled}\r\n\r\n")).await;
    assert_eq!(seen(&client.message().await.text(), "traceparent"), Some(unsampled));

    // A call that is sampled comes after those in the same queue: had they been sent, they would be there.
    client.send("GET / HTTP/1.1\r\nhost: api\r\nb3: 1\r\n\r\n").await;
    client.message().await;
    pair(&collected).await;
    for sidecar in [&mut world.web, &mut world.api] {
        sidecar.plan.tracing = Arc::default();
        sidecar.apply().await;
    }
    client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(seen(&client.message().await.text(), "traceparent"), None, "nothing is added where there is no tracing");
}

#[tokio::test]
async fn spans_that_nobody_takes_are_lost_and_counted_and_no_request_waits() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let world = traced(Protocol::Http, Percent::ALL, nobody).await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    for _ in 0..20 {
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert_eq!(client.message().await.status(), 200);
    }
    let registry = starling_telemetry::Registry::default();
    world.web.engine.register(&registry);
    let line = format!("starling_proxy_lost_spans_total{{collector=\"http://{nobody}\"}} 20");
    eventually("they are counted", || registry.encode().contains(&line)).await;
}
