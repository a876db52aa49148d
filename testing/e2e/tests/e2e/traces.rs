//! Traces through sidecars of both kinds: a collector is sent the spans of both hops, each part of the one before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;
use starling_e2e::{Mesh, MeshOptions, Method, Plane, Workload, eventually, http};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

/// Spans with the name of the service whose they are.
#[derive(Debug, Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for of in request.into_inner().resource_spans {
            let service = of.resource.as_ref().and_then(service_name).unwrap_or_default();
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            collected.extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

fn service_name(resource: &Resource) -> Option<String> {
    let pair = resource.attributes.iter().find(|pair| pair.key == "service.name")?;
    let Value::StringValue(name) = pair.value.as_ref()?.value.as_ref()? else { return None };
    Some(name.clone())
}

impl Collector {
    /// Starts one; where it takes spans.
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let collector = Self::default();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, format!("http://{address}"))
    }

    /// The spans of one trace, by service.
    fn of(&self, trace: &[u8]) -> BTreeMap<String, Span> {
        let collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        collected.iter().filter(|(_, span)| span.trace_id == trace).cloned().collect()
    }

    /// The spans of a trace of which both hops have sent theirs.
    fn whole(&self) -> BTreeMap<String, Span> {
        let traces: Vec<_> = {
            let collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            collected.iter().map(|(_, span)| span.trace_id.clone()).collect()
        };
        traces.iter().map(|trace| self.of(trace)).find(|spans| spans.len() == 2).unwrap_or_default()
    }
}

async fn both_hops_are_seen(caller: Plane, called: Plane) {
    let (collector, endpoint) = Collector::start().await;
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    let (web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, caller),
        Workload::new("api").start_on(&mesh, called),
    );
    web.served_by("api", &["api"], "there is one").await;
    let entry = json!({"Kind": "proxy-defaults", "Name": "global", "Tracing": {"Endpoint": endpoint, "Percent": 0}});
    let change = mesh.config(&entry).await.index();
    mesh.settled(change).await;
    let shown = mesh.get("/v1/config/proxy-defaults/global").await.success().json();
    assert_eq!(shown["Tracing"], json!({"Endpoint": endpoint, "Percent": 0.0}));

    let (parent, unsampled) = (0xb7ad_6b71_6920_3331_u64, 7_u128);
    let mut trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_0000_u128;
    // An Envoy serves a connection that stands as it did; the sidecar in front keeps one until it is told to close it.
    let spans = eventually("both hops send their spans", async || {
        trace += 1;
        for (trace, flag) in [(unsampled, 0), (trace, 1)] {
            let traceparent = format!("00-{trace:032x}-{parent:016x}-0{flag}");
            let fields = [("traceparent", &*traceparent)];
            let answer = http::request(Method::GET, &web.upstream("api"), "/traced", &fields, "").await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.status);
        }
        let spans = collector.whole();
        anyhow::ensure!(spans.len() == 2, "no trace is whole");
        Ok(spans)
    })
    .await;
    let (outer, inner) = (&spans["web"], &spans["api"]);
    assert_eq!((outer.kind(), inner.kind()), (SpanKind::Client, SpanKind::Server));
    assert_eq!(outer.parent_span_id, parent.to_be_bytes());
    assert_eq!(inner.parent_span_id, outer.span_id);
    assert!(collector.of(&unsampled.to_be_bytes()).is_empty(), "what a caller does not record nobody records");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_sidecar_and_an_envoy_are_parts_of_one_trace() {
    both_hops_are_seen(Plane::Native, Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_and_a_native_proxy_of_its_own_are_parts_of_one_trace() {
    both_hops_are_seen(Plane::Envoy, Plane::Own).await;
}
