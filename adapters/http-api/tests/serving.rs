//! Connections: header names on the wire, limits on heads, and an orderly end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use starling_http_api::limits::{CONNECTIONS_MAX, FIRST_HEAD_TIMEOUT, HEAD_TIMEOUT};
use starling_http_api::{Places, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use world::World;

/// Longer than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

async fn start() -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    start_with(&World::new()).await
}

async fn start_with(world: &Arc<World>) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    start_for(world, CONNECTIONS_MAX).await
}

async fn start_for(world: &Arc<World>, connections_max: usize) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let router = world.router();
    let serving = tokio::spawn(serve(listener, router, Places::of(connections_max), async move {
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
    let answer =
        exchange(address, b"GET /v1/catalog/nodes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    for wanted in ["HTTP/1.1 200 OK\r\n", "\r\nX-Consul-Index: 1\r\n", "\r\nX-Consul-Knownleader: true\r\n"] {
        assert!(answer.contains(wanted), "{answer}");
    }
}

#[tokio::test]
async fn heads_past_their_limits_are_refused() {
    let (address, _stop, _serving) = start().await;
    let long = format!("GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\nX-A: {}\r\n\r\n", "a".repeat(40_000));
    assert!(exchange(address, long.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    let many = format!("GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X-A: b\r\n".repeat(200));
    assert!(exchange(address, many.as_bytes()).await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test]
async fn stopping_answers_those_who_wait() {
    let world = World::new();
    let (address, stop, serving) = start_with(&world).await;
    // By itself it would be answered after minutes.
    let waiting = tokio::spawn(exchange(address, b"GET /v1/catalog/nodes?index=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
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
    stream.write_all(b"GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0_u8; 16];
    stream.read_exact(&mut first).await.unwrap();
    stop.send(()).unwrap();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn on_loopback_a_name_that_somebody_pointed_here_is_refused() {
    let (address, _stop, _serving) = start().await;
    let ask = |host: &str| format!("GET /v1/agent/services HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = exchange(address, ask("rebound.example:8500").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("rebound.example"), "{answer}");
    for host in [address.to_string(), "localhost:8500".to_owned()] {
        let answer = exchange(address, ask(&host).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// The whole of what the server says, and for how long it left the connection open.
async fn open_for(stream: &mut TcpStream) -> (String, Duration) {
    let (mut answer, since) = (Vec::new(), Instant::now());
    stream.read_to_end(&mut answer).await.unwrap();
    (String::from_utf8(answer).unwrap(), since.elapsed())
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_holds_no_place_and_who_has_asked_may_ask_again() {
    let (address, _stop, _serving) = start_for(&World::new(), 1).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let (answer, open) = open_for(&mut silent).await;
    assert!(answer.is_empty() && open >= FIRST_HEAD_TIMEOUT && open < HEAD_TIMEOUT / 2, "{open:?}: {answer}");
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let (answer, open) = open_for(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && open >= HEAD_TIMEOUT, "{open:?}: {answer}");
}

/// The status line and headers of the answer to one request.
async fn asks(stream: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = tokio::time::timeout(DEADLINE, stream.read_buf(&mut answer)).await.unwrap().unwrap();
        assert!(read > 0, "closed after {}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let (address, _stop, _serving) = start_for(&World::new(), 16).await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(TcpStream::connect(address).await.unwrap());
        let mut client = TcpStream::connect(address).await.unwrap();
        assert!(asks(&mut client, "/v1/catalog/nodes").await.starts_with("HTTP/1.1 200 "));
    }
    let mut oldest = Vec::new();
    // Reset or at its end, but closed.
    let _ = tokio::time::timeout(DEADLINE, idle[0].read_to_end(&mut oldest)).await.unwrap();
}

#[tokio::test]
async fn health_is_answered_while_every_place_waits() {
    let world = World::new();
    let (address, _stop, _serving) = start_for(&world, 1).await;
    let mut waiting = TcpStream::connect(address).await.unwrap();
    waiting.write_all(b"GET /v1/catalog/nodes?index=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let begun = async {
        while world.waiting() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, begun).await.unwrap();
    for _ in 0..10 {
        let mut client = TcpStream::connect(address).await.unwrap();
        assert!(asks(&mut client, "/v1/status/leader").await.starts_with("HTTP/1.1 200 "));
        let mut client = TcpStream::connect(address).await.unwrap();
        let answer = asks(&mut client, "/v1/catalog/nodes").await;
        assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("Retry-After"), "{answer}");
        let _silent = TcpStream::connect(address).await.unwrap();
    }
    assert_eq!(world.waiting(), 1, "who waits is not disturbed");
}

#[tokio::test]
async fn public_answers_are_waited_for_by_few() {
    let world = World::new();
    // A sixteenth of thirty-two.
    let (address, _stop, _serving) = start_for(&world, 32).await;
    let mut waiting = Vec::new();
    let path = "/v1/connect/ca/roots?index=1000000000&wait=10m";
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for count in 1..=2 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let index = asks(&mut client, "/v1/connect/ca/roots").await;
        let index = index.lines().find_map(|line| line.strip_prefix("X-Consul-Index: ")).unwrap().to_owned();
        let head = head.replace("1000000000", &index);
        client.write_all(head.as_bytes()).await.unwrap();
        waiting.push(client);
        let begun = async {
            while world.waiting() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, begun).await.unwrap();
    }
    let mut client = TcpStream::connect(address).await.unwrap();
    let answer = asks(&mut client, "/v1/connect/ca/roots?index=1").await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("Retry-After: 5"), "{answer}");
    let mut client = TcpStream::connect(address).await.unwrap();
    assert!(asks(&mut client, "/v1/connect/ca/roots").await.starts_with("HTTP/1.1 200 "), "without a wait");
}
