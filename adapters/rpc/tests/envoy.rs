//! Two real Envoys, real traffic, both forms of the protocol.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/envoy.rs"]
mod envoy;
#[path = "support/http.rs"]
mod http;
#[path = "support/mesh.rs"]
mod mesh;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy::Envoy;
use http::{Http, start_app};
use hyper::StatusCode;
use mesh::{Authority, DEADLINE, LOCALHOST, Server, Source, World, names, permission};
use rustls::pki_types::pem::PemObject;
use starling_model::{AccessLog, Action, LogForm, LogTarget, PathMatch, Protocol, SourceDecision};
use starling_xds::{Flavour, Report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// `web` and `api` with their sidecars up and current.
struct Mesh {
    authority: Authority,
    world: World,
    source: Source,
    server: Option<Server>,
    address: SocketAddr,
    web: Envoy,
    api: Envoy,
}

impl Mesh {
    async fn start(flavour: Flavour, protocol: Protocol, app: SocketAddr) -> Self {
        let authority = Authority::new();
        let mut world = World::new(&authority, protocol, app);
        let source = Source::new(world.next());
        let server = Server::start(&source, SocketAddr::from((LOCALHOST, 0))).await;
        let address = server.address;
        let web = Envoy::start("web", flavour, address).await;
        let api = Envoy::start("api", flavour, address).await;
        let mesh = Self { authority, world, source, server: Some(server), address, web, api };
        mesh.current().await;
        mesh
    }

    async fn current(&self) {
        for proxy in ["web", "api"] {
            self.source.applied(proxy, self.world.revision()).await;
        }
    }

    /// Publishes what the world has become, and waits until both proxies have applied it.
    async fn turn(&mut self) -> Duration {
        let before = Instant::now();
        self.source.publish(self.world.next());
        self.current().await;
        before.elapsed()
    }
}

async fn http_through_two_sidecars(flavour: Flavour) {
    let mut mesh = Mesh::start(flavour, Protocol::Http, start_app().await).await;
    let mut connection = Http::connect(mesh.world.outbound).await;
    // A forged certificate header and headers that steer Envoy do not reach the application.
    let forged =
        [("x-forwarded-client-cert", "URI=spiffe://forged"), ("x-envoy-retry-on", "5xx"), ("x-request-id", "r1")];
    let answer = connection.try_get("/", &forged).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let uri = names().identity_of(&mesh::service("web"));
    assert!(answer.body.contains(&uri) && !answer.body.contains("forged"), "{}", answer.body);
    assert!(!answer.body.contains("x-envoy-retry-on") && answer.body.contains("x-request-id: r1"), "{}", answer.body);

    // The application sees the form in which policies are compared.
    for path in ["/a%2Fb//../c?q=1", "/a/./b/../c", "//a///b/", "/a%2e%2fb", "/%61%5Cb?x=%2F"] {
        let answer = connection.get(path).await;
        assert_eq!(answer.body.lines().next(), starling_traffic::normalise(path).ok().as_deref(), "{path}");
    }

    let listeners = mesh.api.stat("listener_manager.listener_create_success").await;
    // The next request of the same connection is refused, and no listener is touched.
    mesh.world.decide(SourceDecision::Connection(Action::Deny));
    let took = mesh.turn().await;
    assert_eq!(connection.get("/").await.status, StatusCode::FORBIDDEN);
    eprintln!("{flavour:?}: deny applied by both after {took:?}");
    // By request: the path is tested in its normal form.
    let only_public = permission(Action::Allow, PathMatch::Prefix("/public/".to_owned()));
    mesh.world.decide(SourceDecision::Requests(vec![only_public]));
    mesh.turn().await;
    for (path, status) in [
        ("/public/x", StatusCode::OK),
        ("/public/x?q=/../..", StatusCode::OK),
        ("/secret", StatusCode::FORBIDDEN),
        ("/public/../secret", StatusCode::FORBIDDEN),
        ("/public/%2e%2e/secret", StatusCode::FORBIDDEN),
        ("//public//x", StatusCode::OK),
    ] {
        assert_eq!(connection.get(path).await.status, status, "{path}");
    }
    assert_eq!(mesh.api.stat("listener_manager.listener_create_success").await, listeners);
    assert_eq!(mesh.api.stat("listener_manager.listener_modified").await, 0);

    // Endpoints come and go.
    mesh.world.decide(SourceDecision::Connection(Action::Allow));
    mesh.world.place(false);
    mesh.turn().await;
    assert_eq!(connection.get("/").await.status, StatusCode::SERVICE_UNAVAILABLE);
    // A changed cluster serves on, and so do the endpoints that come with it.
    mesh.world.place(true);
    mesh.world.cluster_timeout(Duration::from_secs(3));
    mesh.turn().await;
    mesh.web.await_stat("cluster_manager.warming_clusters", |count| count == 0).await;
    assert_eq!(connection.get("/").await.status, StatusCode::OK);
    // The log is written in steps; the line is about a request that has been answered.
    let end = Instant::now() + DEADLINE;
    while !mesh.api.access_log().contains(&format!("\"peer_identity\":\"{uri}\"")) {
        assert!(Instant::now() < end, "{}", mesh.api.access_log());
        tokio::task::yield_now().await;
    }
    let metadata = mesh.source.attached.lock().unwrap()[0].0.clone();
    assert!(metadata.user_agent.starts_with("envoy 1."), "{metadata:?}");
    assert_eq!(metadata.metadata["namespace"], "default");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_through_two_sidecars_delta() {
    http_through_two_sidecars(Flavour::Delta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_through_two_sidecars_sotw() {
    http_through_two_sidecars(Flavour::Sotw).await;
}

/// Every operator that an access log may ask for.
const OPERATORS: &str = "%START_TIME% %START_TIME(%Y-%m-%dT%H:%M:%S.%3f%z)% %REQ(:METHOD)% %REQ(X-NONE?:PATH)% %REQ(USER-AGENT):5% \
    %RESP(CONTENT-TYPE?:STATUS)% %PATH% %PATH(NQ)% %PATH(NQ:PATH)% %PATH(WQ:ORIG_OR_PATH)% %PROTOCOL% %RESPONSE_CODE% \
    %RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %UPSTREAM_HOST% %UPSTREAM_CLUSTER% \
    %UPSTREAM_TRANSPORT_FAILURE_REASON% %DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% \
    %DOWNSTREAM_DIRECT_REMOTE_ADDRESS% %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_ADDRESS% \
    %DOWNSTREAM_PEER_URI_SAN% %REQUESTED_SERVER_NAME% %ROUTE_NAME% %CONNECTION_TERMINATION_DETAILS% 100%%";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_access_log_is_written_as_it_is_asked_for() {
    let mut mesh = Mesh::start(Flavour::Delta, Protocol::Http, start_app().await).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let log = |filter: &str, form: LogForm| {
        let (filter, target) = (filter.parse().unwrap(), LogTarget::File(path.clone()));
        Arc::new(AccessLog { enabled: Some(true), filter, target, form: Some(form), without_listeners: false })
    };
    let text = |template: &str| LogForm::Text(template.parse().unwrap());
    let only_public = permission(Action::Allow, PathMatch::Prefix("/public/".to_owned()));
    mesh.world.decide(SourceDecision::Requests(vec![only_public]));
    mesh.world.access_log = log("errors", text("%REQ(:PATH)% %RESPONSE_CODE% %DOWNSTREAM_PEER_URI_SAN%"));
    mesh.turn().await;
    let mut connection = Http::connect(mesh.world.outbound).await;
    assert_eq!(connection.get("/public/a").await.status, StatusCode::OK);
    assert_eq!(connection.get("/secret").await.status, StatusCode::FORBIDDEN);
    let uri = names().identity_of(&mesh::service("web"));
    let expected = ["/secret 403 -".to_owned(), format!("/secret 403 {uri}")];
    assert_eq!(sorted_lines(&path, 2).await, expected);

    mesh.world.access_log = log("1/1", text(OPERATORS));
    mesh.turn().await;
    let mut connection = Http::connect(mesh.world.outbound).await;
    assert_eq!(connection.get("/public/b").await.status, StatusCode::OK);
    // The inner one may be called over a connection that it has from before, and logs as it did then.
    let lines = sorted_lines(&path, 3).await;
    assert!(lines.iter().any(|line| line.contains("GET /public/b") && line.ends_with(" 100%")), "{lines:?}");
}

/// The lines of a file in order, once there are so many: it is written in steps.
async fn sorted_lines(path: &std::path::Path, count: usize) -> Vec<String> {
    let end = Instant::now() + DEADLINE;
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if lines.len() >= count {
            lines.sort();
            return lines;
        }
        assert!(Instant::now() < end, "{text}");
        tokio::task::yield_now().await;
    }
}

/// A TLS client of the public listener, with a certificate of `authority` for `name`.
async fn dial(
    mesh: &Mesh,
    authority: &Authority,
    name: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let (key, chain) = authority.key_and_chain(name);
    let credentials = starling_tls::Credentials::new(&chain, &key).unwrap();
    let roots = starling_tls::TrustRoots::from_pem([mesh.authority.root_pem()]).unwrap();
    let slot = starling_tls::CredentialSlot::new(credentials);
    let expected = starling_identity::Identity::Workload(mesh::identity("api"));
    let mut config = starling_tls::client_config(Some(slot), &roots, expected).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(mesh.world.public).await?;
    let host = rustls::pki_types::ServerName::try_from("api").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(host, stream).await
}

async fn ask(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) -> std::io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: api\r\nconnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_at_the_public_listener() {
    let mesh = Mesh::start(Flavour::Delta, Protocol::Http, start_app().await).await;
    // Plaintext.
    let mut plain = TcpStream::connect(mesh.world.public).await.unwrap();
    assert!(ask(&mut plain).await.map_or(true, |answer| !answer.contains("HTTP/1.1 200")));
    // Another CA: the handshake, or the first read after it, fails.
    let foreign = Authority::new();
    let refused = match dial(&mesh, &foreign, "web").await {
        Ok(mut stream) => ask(&mut stream).await,
        Err(error) => Err(error),
    };
    assert!(refused.is_err(), "{refused:?}");
    // Our CA, another service than the intention allows.
    let mut cron = dial(&mesh, &mesh.authority, "cron").await.unwrap();
    assert!(ask(&mut cron).await.unwrap().starts_with("HTTP/1.1 403"));
    // The one it allows.
    let mut web = dial(&mesh, &mesh.authority, "web").await.unwrap();
    assert!(ask(&mut web).await.unwrap().starts_with("HTTP/1.1 200"));
    let der = rustls::pki_types::CertificateDer::from_pem_slice(mesh.authority.root_pem().as_bytes());
    assert!(der.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_envoy_refuses_is_reported_and_the_old_serves_on() {
    for flavour in [Flavour::Delta, Flavour::Sotw] {
        let mut mesh = Mesh::start(flavour, Protocol::Http, start_app().await).await;
        let mut connection = Http::connect(mesh.world.outbound).await;
        // No door lets this expression in; it stands for whatever Envoy alone can know.
        let bad = permission(Action::Allow, PathMatch::Regex("(".to_owned()));
        mesh.world.decide(SourceDecision::Requests(vec![bad]));
        mesh.source.publish(mesh.world.next());
        let report = mesh.source.report("api", |report| matches!(report, Report::Rejected { .. })).await;
        let Report::Rejected { revision, resources, text, .. } = report else { unreachable!() };
        assert_eq!((revision, resources), (mesh.world.revision(), vec![Arc::from("inbound:api")]));
        assert!(text.contains("missing )"), "{text}");
        mesh.source.applied("web", mesh.world.revision()).await;
        assert_eq!(connection.get("/").await.status, StatusCode::OK);
        // The next good one is applied.
        mesh.world.decide(SourceDecision::Connection(Action::Deny));
        mesh.turn().await;
        assert_eq!(connection.get("/").await.status, StatusCode::FORBIDDEN);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_sends_nothing_again() {
    for flavour in [Flavour::Delta, Flavour::Sotw] {
        let mut mesh = Mesh::start(flavour, Protocol::Http, start_app().await).await;
        let mut connection = Http::connect(mesh.world.outbound).await;
        assert_eq!(connection.get("/").await.status, StatusCode::OK);
        let updates = ["cluster_manager.cds", "listener_manager.lds"].map(|kind| format!("{kind}.update_success"));
        let before = [mesh.web.stat(&updates[0]).await, mesh.web.stat(&updates[1]).await];
        mesh.server.take().unwrap().stop().await;
        mesh.web.await_stat("control_plane.connected_state", |state| state == 0).await;
        assert_eq!(connection.get("/").await.status, StatusCode::OK);
        // Another server, which has rendered everything anew.
        mesh.world.forget_rendered();
        mesh.source = Source::new(mesh.world.again());
        mesh.server = Some(Server::start(&mesh.source, mesh.address).await);
        mesh.current().await;
        assert_eq!([mesh.web.stat(&updates[0]).await, mesh.web.stat(&updates[1]).await], before);
        mesh.world.decide(SourceDecision::Connection(Action::Deny));
        mesh.turn().await;
        assert_eq!(connection.get("/").await.status, StatusCode::FORBIDDEN);
    }
}

async fn start_echo() -> SocketAddr {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    address
}

/// Whether what is sent comes back.
async fn echoes(stream: &mut TcpStream) -> bool {
    let mut echo = [0; 4];
    let exchange = async {
        stream.write_all(b"ping").await?;
        stream.read_exact(&mut echo).await
    };
    let exchanged = tokio::time::timeout(DEADLINE, exchange).await.expect("neither echo nor end");
    exchanged.is_ok() && &echo == b"ping"
}

async fn tcp_through_two_sidecars(flavour: Flavour) {
    let mut mesh = Mesh::start(flavour, Protocol::Tcp, start_echo().await).await;
    let mut open = TcpStream::connect(mesh.world.outbound).await.unwrap();
    assert!(echoes(&mut open).await);
    // New connections are refused; the open one lives on.
    mesh.world.decide(SourceDecision::Connection(Action::Deny));
    mesh.turn().await;
    assert!(!echoes(&mut TcpStream::connect(mesh.world.outbound).await.unwrap()).await);
    assert!(echoes(&mut open).await);
    assert_eq!(mesh.api.stat("listener_manager.listener_modified").await, 0);
    mesh.world.decide(SourceDecision::Connection(Action::Allow));
    mesh.turn().await;
    assert!(echoes(&mut TcpStream::connect(mesh.world.outbound).await.unwrap()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_through_two_sidecars_delta() {
    tcp_through_two_sidecars(Flavour::Delta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_through_two_sidecars_sotw() {
    tcp_through_two_sidecars(Flavour::Sotw).await;
}
