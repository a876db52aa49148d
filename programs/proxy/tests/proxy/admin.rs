//! The door for operators.

use std::sync::Arc;

use serde_json::Value;
use starling_model::Protocol;
use starling_proxy::Engine;
use starling_proxy::admin::{AdminListener, serve};
use starling_telemetry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::wire::{Message, Wire, eventually, within};
use crate::world::{Setup, World, identity};

/// An admin interface that is served until it is dropped.
struct Admin {
    task: JoinHandle<()>,
    address: String,
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Admin {
    async fn start(engine: &Arc<Engine>) -> Self {
        let listener = AdminListener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Self { task: tokio::spawn(serve(listener, Arc::clone(engine), Registry::default())), address }
    }

    async fn ask(&self, line: &str, fields: &str) -> Message {
        ask(within(TcpStream::connect(&self.address)).await.unwrap(), line, fields).await
    }

    async fn json(&self, path: &str) -> Value {
        let answer = self.ask(&format!("GET {path}"), "").await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }
}

async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin, line: &str, fields: &str) -> Message {
    let mut wire = Wire::new(stream);
    wire.send(format!("{line} HTTP/1.1\r\nhost: admin\r\n{fields}\r\n")).await;
    wire.message().await
}

#[tokio::test]
async fn operators_see_plans_endpoints_certificates_and_connections() {
    let world = World::start(Setup { workers: 2, ..Setup::of(Protocol::Http) }).await;
    let _app = world.app.mirror();
    let admin = Admin::start(&world.web.engine).await;
    let mut client = world.client().await;
    client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200);

    let text = admin.ask("GET /config", "").await.text();
    let api = world.public.to_string();
    for part in ["# web-sidecar at revision 1", "web-sidecar as web", "endpoints api", &api, "root "] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let config = admin.json("/config?format=json").await;
    assert_eq!(config["web-sidecar"]["parts"]["endpoints api"][0], format!("{api} weight 1"));
    assert!(!text.contains("PRIVATE") && !config.to_string().contains("PRIVATE"));

    let cluster = &world.web.plan.clusters[0].sni;
    let clusters = admin.json("/clusters").await;
    let endpoint = &clusters["web-sidecar"][cluster]["endpoints"][0];
    assert_eq!(endpoint["address"], api, "{clusters}");
    assert_eq!((&endpoint["calls"], &endpoint["idle_connections"]), (&0.into(), &1.into()), "{clusters}");

    let certificates = admin.json("/certificates").await;
    let web = &certificates["web-sidecar"];
    assert_eq!(web["identity"], identity("web").to_string());
    assert!(web["serial"].as_str().is_some_and(|serial| serial.len() > 8), "{web}");
    assert!(web["valid"]["to_unix_seconds"].as_u64() > web["valid"]["from_unix_seconds"].as_u64());
    assert_eq!(web["roots"].as_array().unwrap().len(), 1);

    let connections = admin.json("/connections").await;
    let listener = &connections[world.outbound.to_string()];
    assert_eq!((&listener["standing"], &listener["upstream"]), (&1.into(), &"api".into()), "{connections}");
    let remote = client.stream.local_addr().unwrap().to_string();
    assert_eq!(listener["connections"][0]["remote"], remote);
    assert_eq!(listener["connections"][0]["requests"], 1);

    let peers = Admin::start(&world.api.engine).await.json("/connections").await;
    assert_eq!(peers[world.public.to_string()]["connections"][0]["identity"], identity("web").to_string(), "{peers}");

    let stats = admin.ask("GET /stats", "").await.text();
    assert!(stats.contains("starling_proxy_requests_total{service=\"web\""), "{stats}");
}

#[tokio::test]
async fn a_drained_proxy_ends_connections_with_their_request_and_takes_no_more() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let admin = Admin::start(&world.web.engine).await;
    let mut client = world.client().await;
    client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;

    assert_eq!(admin.ask("POST /drain", "").await.status(), 200);
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(client.message().await.status(), 200);
    assert_eq!(client.rest().await, b"");
    assert!(within(TcpStream::connect(world.outbound)).await.is_err());
    // Nor after another plan.
    world.web.apply().await;
    assert!(within(TcpStream::connect(world.outbound)).await.is_err());
    assert_eq!(admin.json("/connections").await, serde_json::json!({}));
}

#[tokio::test]
async fn strangers_and_wrong_methods_are_refused() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let admin = Admin::start(&world.web.engine).await;
    let refused = admin.ask("POST /drain", "origin: http://evil.example\r\ncontent-length: 0\r\n").await;
    assert_eq!(refused.status(), 403);
    let refused = admin.ask("GET /drain", "").await;
    assert_eq!((refused.status(), refused.values("allow")), (405, vec!["POST"]));
    assert_eq!(admin.ask("DELETE /config", "").await.status(), 405);
    assert_eq!(admin.ask("GET /", "").await.status(), 404);
    // Nothing was drained.
    assert!(within(TcpStream::connect(world.outbound)).await.is_ok());
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::start(Setup::of(Protocol::Http)).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let address = format!("unix:{}", path.display()).parse().unwrap();
    // Somebody has ended without taking it away.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listener = AdminListener::bind(&address).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let task = tokio::spawn(serve(listener, Arc::clone(&world.web.engine), Registry::default()));
    let stats = ask(within(UnixStream::connect(&path)).await.unwrap(), "GET /stats", "").await;
    assert_eq!(stats.status(), 200);
    assert!(AdminListener::bind(&address).await.is_err());
    task.abort();
    eventually("the socket's file is gone", || !path.exists()).await;
}
