//! What the proxy says about what it does: metrics, access log, trace context.

use std::path::PathBuf;
use std::sync::Arc;

use starling_model::{AccessLog, Action, IntentionPermission, LogForm, LogTarget, PathMatch, Protocol, SourceDecision};
use starling_proxy::Engine;
use starling_telemetry::Registry;
use starling_tls::Alpn;

use crate::app::answer;
use crate::wire::{eventually, within};
use crate::world::{Ca, Setup, World, connect_tls, rule};

fn without(prefix: &str) -> Vec<IntentionPermission> {
    let permission = |action, path| IntentionPermission { action, path, methods: Vec::new(), headers: Vec::new() };
    vec![permission(Action::Deny, Some(PathMatch::Prefix(prefix.to_owned()))), permission(Action::Allow, None)]
}

/// The value of a series.
fn shown(engine: &Engine, series: &str) -> Option<f64> {
    let registry = Registry::default();
    engine.register(&registry);
    let text = registry.encode();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// Waits until a series has a value: some things are counted after the client has got what it asked for.
async fn comes_to(engine: &Engine, series: &str, expected: f64) {
    eventually(&format!("{series} {expected}"), || shown(engine, series) == Some(expected)).await;
}

const API: &str = "service=\"api\",upstream=\"\",direction=\"inbound\"";
const WEB: &str = "service=\"web\",upstream=\"api\",direction=\"outbound\"";

#[tokio::test]
async fn requests_are_counted_by_class_rule_and_form() {
    let world = World::start(Setup::of(Protocol::Http).by_request(without("/admin"))).await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    for (path, status) in [("/a", 200), ("/b", 200), ("/admin", 403)] {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n")).await;
        assert_eq!(client.message().await.status(), status);
    }
    let mut malformed = world.client().await;
    malformed.send("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").await;
    assert_eq!(malformed.message().await.status(), 400);

    let (api, web) = (&world.api.engine, &world.web.engine);
    comes_to(web, &format!("starling_proxy_requests_total{{{WEB},class=\"2xx\"}}"), 2.0).await;
    comes_to(web, &format!("starling_proxy_requests_total{{{WEB},class=\"4xx\"}}"), 1.0).await;
    comes_to(web, &format!("starling_proxy_malformed_total{{{WEB},status=\"400\"}}"), 1.0).await;
    comes_to(web, &format!("starling_proxy_connections_opened_total{{{WEB}}}"), 2.0).await;
    comes_to(web, &format!("starling_proxy_request_duration_seconds_count{{{WEB}}}"), 3.0).await;
    comes_to(api, &format!("starling_proxy_requests_total{{{API},class=\"2xx\"}}"), 2.0).await;
    comes_to(api, &format!("starling_proxy_denials_total{{{API},rule=\"web→api\"}}"), 1.0).await;
    // A refusal by the sidecar is none of this one's.
    assert_eq!(shown(web, &format!("starling_proxy_denials_total{{{WEB},rule=\"web→api\"}}")), None);
    let sent = shown(api, &format!("starling_proxy_sent_bytes_total{{{API}}}"));
    assert!(sent.is_some_and(|bytes| bytes > 100.0), "{sent:?}");

    drop((client, malformed));
    comes_to(web, &format!("starling_proxy_connections{{{WEB}}}"), 0.0).await;
}

#[tokio::test]
async fn denials_of_connections_name_their_rule_and_strangers() {
    let rules = vec![rule("web", SourceDecision::Connection(Action::Deny))];
    let world = World::start(Setup { rules, ..Setup::of(Protocol::Tcp) }).await;
    for name in ["web", "web", "other"] {
        let mut peer = world.peer(name, Alpn::Opaque).await;
        assert_eq!(peer.rest().await, b"");
    }
    let api = &world.api.engine;
    comes_to(api, &format!("starling_proxy_denials_total{{{API},rule=\"web→api\"}}"), 2.0).await;
    comes_to(api, &format!("starling_proxy_denials_total{{{API},rule=\"default\"}}"), 1.0).await;
}

#[tokio::test]
async fn failures_towards_servers_are_counted_by_reason() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let nobody = crate::world::free_port(world.outbound.ip()).await;
    let ask = async |world: &World| {
        let mut client = world.client().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        client.message().await.status()
    };
    world.web.call_at(&[nobody]).await;
    assert_eq!(ask(&world).await, 503);
    // Something that speaks no TLS.
    world.web.call_at(&[world.app.address]).await;
    let (status, ()) = tokio::join!(ask(&world), async { world.app.accept().await.send("no TLS").await });
    assert_eq!(status, 503);
    world.web.call_at(&[]).await;
    assert_eq!(ask(&world).await, 503);
    let web = &world.web.engine;
    comes_to(web, &format!("starling_proxy_upstream_connect_failures_total{{{WEB}}}"), 2.0).await;
    comes_to(web, &format!("starling_proxy_tls_handshake_failures_total{{{WEB},peer=\"server\"}}"), 1.0).await;
    comes_to(web, &format!("starling_proxy_failures_total{{{WEB},reason=\"connect\"}}"), 2.0).await;
    comes_to(web, &format!("starling_proxy_failures_total{{{WEB},reason=\"no_endpoint\"}}"), 1.0).await;

    // Of another mesh: the handshake fails at the end that is called.
    let stranger = connect_tls(&Ca::new(), "web", Alpn::Http1, world.public).await;
    assert!(stranger.is_err());
    comes_to(&world.api.engine, &format!("starling_proxy_tls_handshake_failures_total{{{API},peer=\"client\"}}"), 1.0)
        .await;
}

#[tokio::test]
async fn counts_outlive_the_listener() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let _app = world.app.mirror();
    let series = format!("starling_proxy_requests_total{{{WEB},class=\"2xx\"}}");
    for expected in [1.0, 2.0] {
        let mut client = world.client().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert_eq!(client.message().await.status(), 200);
        comes_to(&world.web.engine, &series, expected).await;
        // Served no more, and again by a listener of its own.
        within(world.web.engine.remove(&world.web.id())).await;
        assert_eq!(shown(&world.web.engine, &series), Some(expected));
        world.web.apply().await;
    }
}

/// A log to a file, which is removed in the end.
struct LogFile {
    folder: tempfile::TempDir,
}

impl LogFile {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    fn log(&self, filter: &str, form: Option<LogForm>) -> Arc<AccessLog> {
        let target = LogTarget::File(self.path());
        let filter = filter.parse().unwrap();
        Arc::new(AccessLog { enabled: Some(true), filter, target, form, without_listeners: false })
    }

    /// Its lines, once there are so many.
    async fn lines(&self, count: usize) -> Vec<String> {
        let read = || std::fs::read_to_string(self.path()).unwrap_or_default();
        eventually("the lines of the log", || read().lines().count() >= count).await;
        let lines: Vec<_> = read().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), count, "{lines:?}");
        lines
    }
}

fn text(template: &str) -> Option<LogForm> {
    Some(LogForm::Text(template.parse().unwrap()))
}

#[tokio::test]
async fn a_request_is_logged_on_both_ends_as_the_format_says() {
    let mut world = World::start(Setup::of(Protocol::Http).by_request(without("/admin"))).await;
    let _app = world.app.mirror();
    let (outer, inner) = (LogFile::new(), LogFile::new());
    world.web.plan.access_log = outer.log(
        "all",
        text(
            "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL% %RESPONSE_CODE% %RESPONSE_FLAGS% \
              %BYTES_RECEIVED% %RESP(CONTENT-LENGTH)% %UPSTREAM_HOST% %UPSTREAM_CLUSTER% %REQ(:AUTHORITY)%",
        ),
    );
    world.api.plan.access_log = inner.log(
        "errors",
        text("%PATH(NQ)% %RESPONSE_CODE% %DOWNSTREAM_PEER_URI_SAN% %REQUESTED_SERVER_NAME% %DOWNSTREAM_LOCAL_ADDRESS%"),
    );
    world.web.apply().await;
    world.api.apply().await;
    let mut client = world.client().await;
    client.send("POST /a?b=1 HTTP/1.1\r\nhost: api\r\ncontent-length: 0\r\n\r\n").await;
    let length = client.message().await.values("content-length")[0].to_owned();
    client.send("GET /admin?secret HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 403);

    let cluster = &world.web.plan.clusters[0].sni;
    let (public, served) = (world.public, outer.lines(2).await);
    assert_eq!(served[0], format!("POST /a?b=1 HTTP/1.1 200 - 0 {length} {public} {cluster} api"));
    assert_eq!(served[1], format!("GET /admin?secret HTTP/1.1 403 - 0 19 {public} {cluster} api"));
    let uri = crate::world::identity("web");
    assert_eq!(inner.lines(1).await, [format!("/admin 403 {uri} {cluster} {public}")]);
}

#[tokio::test]
async fn what_is_not_asked_for_is_not_logged() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let _app = world.app.mirror();
    let file = LogFile::new();
    world.web.plan.access_log = file.log("1/3", text("%REQ(:PATH)%"));
    world.web.apply().await;
    let mut client = world.client().await;
    for number in 0..7 {
        client.send(format!("GET /{number} HTTP/1.1\r\nhost: api\r\n\r\n")).await;
        assert_eq!(client.message().await.status(), 200);
    }
    // Off, and on again for one that is logged: what came between would stand before it.
    let log = AccessLog { enabled: None, ..AccessLog::clone(&world.web.plan.access_log) };
    world.web.plan.access_log = Arc::new(log);
    world.web.apply().await;
    client.send("GET /off HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200);
    world.web.plan.access_log = file.log("all", text("%REQ(:PATH)%"));
    world.web.apply().await;
    client.send("GET /on HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200);
    assert_eq!(file.lines(3).await, ["/2", "/5", "/on"]);
}

#[tokio::test]
async fn http2_and_bytes_are_logged_in_json() {
    let mut world = World::start(Setup::of(Protocol::Http2)).await;
    let _app = world.app.mirror_http2();
    let file = LogFile::new();
    world.api.plan.access_log = file.log("all", None);
    world.api.apply().await;
    let peer = world.peer("web", Alpn::Http2).await;
    let (mut sender, connection) = h2::client::handshake(peer.stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let request =
        http::Request::builder().method("PUT").uri("http://api.mesh/a?q").header("user-agent", "t\"1").body(());
    let (response, mut body) = sender.send_request(request.unwrap(), false).unwrap();
    body.send_data("four".into(), true).unwrap();
    assert_eq!(answer(response).await.unwrap().status, 200);
    let lines = file.lines(1).await;
    for part in [
        "\"authority\":\"api.mesh\"",
        "\"bytes_received\":4",
        "\"bytes_sent\":4",
        "\"method\":\"PUT\"",
        "\"path\":\"/a\"",
        "\"protocol\":\"HTTP/2\"",
        "\"response_code\":200",
        "\"request_id\":null",
        "\"user_agent\":\"t\\\"1\"",
        &format!("\"upstream_host\":\"{}\"", world.app.address),
        &format!("\"peer_identity\":\"{}\"", crate::world::identity("web")),
    ] {
        assert!(lines[0].contains(part), "{part} is not in {}", lines[0]);
    }
    driver.abort();

    let mut world = World::start(Setup::of(Protocol::Tcp)).await;
    let file = LogFile::new();
    world.api.plan.access_log =
        file.log("all", text("%BYTES_RECEIVED% %BYTES_SENT% %RESPONSE_CODE% %UPSTREAM_HOST% %REQ(:PATH)%"));
    world.api.apply().await;
    let mut peer = world.peer("web", Alpn::Opaque).await;
    peer.send("hello").await;
    let mut app = world.app.accept().await;
    assert_eq!(app.exactly(5).await, b"hello");
    app.send("hi").await;
    drop(app);
    assert_eq!(peer.rest().await, b"hi");
    drop(peer);
    assert_eq!(file.lines(1).await, [format!("5 2 0 {} -", world.app.address)]);
}

#[tokio::test]
async fn trace_context_passes_unchanged() {
    let fields = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("baggage", "a=1"),
        ("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b90"),
        ("x-b3-traceid", "80f198ee56343ba864fe8b2a57d3eff7"),
        ("x-b3-spanid", "e457b5a2e4d86bd1"),
        ("x-b3-parentspanid", "05e3ac9a4f6e3b90"),
        ("x-b3-sampled", "1"),
        ("x-b3-flags", "0"),
        ("x-request-id", "6c1d8d14-94ba-4c8b-a0e5-0a7d4ec1a6ab"),
    ];
    let world = World::start(Setup::of(Protocol::Http)).await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    client.send(format!("GET / HTTP/1.1\r\nhost: api\r\n{lines}\r\n")).await;
    let mirrored = client.message().await.text();
    for (name, value) in fields {
        let found: Vec<_> = mirrored.lines().filter(|line| line.starts_with(&format!("{name}: "))).collect();
        assert_eq!(found, [format!("{name}: {value}")], "{mirrored}");
    }

    let world = World::start(Setup::of(Protocol::Http2)).await;
    let _app = world.app.mirror_http2();
    let stream = within(tokio::net::TcpStream::connect(world.outbound)).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let request = http::Request::builder().uri("http://api/");
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
    let answer = answer(response).await.unwrap();
    for (name, value) in fields {
        let found: Vec<_> = answer.headers.get_all(name).iter().collect();
        assert_eq!(found, [value], "{name}");
    }
    driver.abort();
}
