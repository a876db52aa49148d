//! Connections: header names on the wire, limits on heads, and an orderly end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use starling_http_api::serve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use world::World;

/// Longer than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

async fn start() -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    start_with(&World::new()).await
}

async fn start_with(world: &Arc<World>) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let router = world.router();
    let serving = tokio::spawn(serve(listener, router, async move {
        stopped.await.ok();
    }));
    (address, stop, serving)
}

async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // A server that refuses without reading on resets the connection; what it said before counts.
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn header_names_are_written_as_go_writes_them() {
    let (address, _stop, _serving) = start().await;
    let answer = exchange(address, b"GET /v1/catalog/nodes HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    for wanted in ["HTTP/1.1 200 OK\r\n", "\r\nX-Consul-Index: 1\r\n", "\r\nX-Consul-Knownleader: true\r\n"] {
        assert!(answer.contains(wanted), "{answer}");
    }
}

#[tokio::test]
async fn heads_past_their_limits_are_refused() {
    let (address, _stop, _serving) = start().await;
    let long = format!("GET /v1/status/leader HTTP/1.1\r\nHost: a\r\nX-A: {}\r\n\r\n", "a".repeat(40_000));
    assert!(exchange(address, long.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    let many = format!("GET /v1/status/leader HTTP/1.1\r\nHost: a\r\n{}\r\n", "X-A: b\r\n".repeat(200));
    assert!(exchange(address, many.as_bytes()).await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test]
async fn stopping_answers_those_who_wait() {
    let world = World::new();
    let (address, stop, serving) = start_with(&world).await;
    // By itself it would be answered after minutes.
    let waiting = tokio::spawn(exchange(address, b"GET /v1/catalog/nodes?index=1 HTTP/1.1\r\nHost: a\r\n\r\n"));
    let begun = async {
        while world.waiting() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, begun).await.unwrap();
    stop.send(()).unwrap();
    let answer = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nX-Consul-Index: 1\r\n"), "{answer}");
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn stopping_closes_idle_connections_and_the_listener() {
    let (address, stop, serving) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /v1/status/leader HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut first = [0_u8; 16];
    stream.read_exact(&mut first).await.unwrap();
    stop.send(()).unwrap();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
