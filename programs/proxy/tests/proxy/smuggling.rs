//! What is no request, or could be two: refused early, counted, and nobody else is disturbed.

use std::time::Duration;

use starling_model::Protocol;
use starling_proxy::Timeouts;
use starling_tls::Alpn;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::wire::Wire;
use crate::world::{Setup, World, counted};

/// Each with the status that it is refused with; every one carries a second request that must never be taken for one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: api\r\n\r\n";

fn shapes() -> Vec<(String, u16)> {
    let post = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\nhost: api\r\n{fields}\r\n{body}{SMUGGLED}");
    let chunked = |body: &str| post("transfer-encoding: chunked\r\n", body);
    vec![
        // Two ways to find the end of a body.
        (post("content-length: 4\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"), 400),
        (post("transfer-encoding: chunked\r\ncontent-length: 4\r\n", "0\r\n\r\n"), 400),
        (post("content-length: 4\r\ncontent-length: 5\r\n", "body"), 400),
        (post("content-length: 4\r\ncontent-length: 4\r\n", "body"), 400),
        (post("content-length: 4, 4\r\n", "body"), 400),
        (post("content-length: +4\r\n", "body"), 400),
        (post("content-length: -1\r\n", ""), 400),
        (post("content-length: 0x4\r\n", "body"), 400),
        (post("content-length: 99999999999999999999\r\n", ""), 400),
        (post("content-length:\r\n", ""), 400),
        // Codings that one reader knows and another does not.
        (post("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"), 400),
        (post("transfer-encoding: identity, chunked\r\n", "0\r\n\r\n"), 501),
        (post("transfer-encoding: gzip\r\n", ""), 501),
        (post("transfer-encoding: xchunked\r\n", "0\r\n\r\n"), 501),
        (post("transfer-encoding: \"chunked\"\r\n", "0\r\n\r\n"), 501),
        (format!("POST / HTTP/1.0\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"), 400),
        // White space where none may be.
        (post("transfer-encoding : chunked\r\n", "0\r\n\r\n"), 400),
        (post(" transfer-encoding: chunked\r\n", "0\r\n\r\n"), 400),
        (post("x: a\r\n folded\r\n", ""), 400),
        (post("transfer-encoding:\u{b}chunked\r\n", "0\r\n\r\n"), 400),
        (post("x\u{0}y: a\r\n", ""), 400),
        // Line ends that are none to some.
        ("GET / HTTP/1.1\nhost: api\n\n".to_owned() + SMUGGLED, 400),
        (post("x: a\ncontent-length: 4\r\n", "body"), 400),
        (post("x: a\rcontent-length: 4\r\n", "body"), 400),
        // Hosts.
        ("GET / HTTP/1.1\r\n\r\n".to_owned() + SMUGGLED, 400),
        (format!("GET / HTTP/1.1\r\nhost: api\r\nhost: other\r\n\r\n{SMUGGLED}"), 400),
        (format!("GET http://other/ HTTP/1.1\r\nhost: api\r\n\r\n{SMUGGLED}"), 400),
        (format!("GET http://user@api/ HTTP/1.1\r\nhost: user@api\r\n\r\n{SMUGGLED}"), 400),
        (format!("GET / HTTP/1.1\r\nhost: a b\r\n\r\n{SMUGGLED}"), 400),
        // Tunnels, versions, expectations.
        (format!("CONNECT api:80 HTTP/1.1\r\nhost: api:80\r\n\r\n{SMUGGLED}"), 405),
        (format!("GET / HTTP/1.2\r\nhost: api\r\n\r\n{SMUGGLED}"), 505),
        (format!("GET / HTTP/2.0\r\nhost: api\r\n\r\n{SMUGGLED}"), 505),
        (post("expect: 200-ok\r\n", ""), 417),
        ("\u{16}\u{3}\u{1}\u{2}\u{0}\r\n\r\n".to_owned(), 400),
        // Chunks; no second request is read.
        (chunked("5\r\nab\r\n0\r\n\r\n"), 400),
        (chunked("0x5\r\nabcde\r\n0\r\n\r\n"), 400),
        (chunked("-1\r\n\r\n"), 400),
        (chunked("5 \r\nabcde\r\n0\r\n\r\n"), 400),
        (chunked("5\nabcde\r\n0\r\n\r\n"), 400),
        (chunked("fffffffffffffffff\r\n\r\n"), 400),
        (chunked(&format!("5;{}\r\nabcde\r\n0\r\n\r\n", "x".repeat(300))), 400),
        (chunked("5;a\nb\r\nabcde\r\n0\r\n\r\n"), 400),
        (chunked("0\r\nno field\r\n\r\n"), 400),
        (chunked(&format!("0\r\nx: {}\r\n\r\n", "y".repeat(9_000))), 400),
    ]
}

async fn refused<S: AsyncRead + AsyncWrite + Unpin>(mut wire: Wire<S>, shape: &str, expected: u16) {
    // It may be refused before all of it is sent.
    let _ = wire.try_send(shape).await;
    let shown: String = shape.chars().take(120).collect();
    let answer = wire.message().await;
    assert_eq!(answer.status(), expected, "{shown:?}: {}", answer.text());
    assert_eq!(answer.values("connection"), ["close"], "{shown:?}");
    assert!(wire.ends().await, "nothing follows on {shown:?}");
}

#[tokio::test]
async fn what_could_be_understood_in_two_ways_is_refused_at_both_doors_and_counted() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let app = world.app.mirror();
    let mut other = world.client().await;
    let shapes = shapes();
    for (shape, expected) in &shapes {
        refused(world.client().await, shape, *expected).await;
        refused(world.peer("web", Alpn::Http1).await, shape, *expected).await;
        other.send("GET /other HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert!(other.message().await.text().starts_with("GET /other "), "others are not disturbed");
    }
    let counts = (counted(&world.web.engine), counted(&world.api.engine));
    let all = shapes.len() as u64;
    assert_eq!((counts.0["malformed"], counts.1["malformed"]), (all, all));
    // Heads of requests whose chunks are bad may reach the application; the request hidden behind them must not.
    let heads = app.heads();
    assert!(heads.iter().filter(|head| head.starts_with("GET /other ")).count() == shapes.len(), "{heads:?}");
    let smuggled: Vec<_> = heads.iter().filter(|head| head.contains("/smuggled")).collect();
    assert!(smuggled.is_empty(), "{smuggled:?}");
}

#[tokio::test]
async fn limits_of_head_target_and_fields_have_their_own_answers() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let app = world.app.mirror();
    let long = |bytes: usize| "a".repeat(bytes);
    let fields = |count: usize| (0..count).map(|number| format!("x-{number}: y\r\n")).collect::<String>();
    for (request, status) in [
        (format!("GET /{} HTTP/1.1\r\nhost: api\r\n\r\n", long(31 * 1024)), 414),
        (format!("GET /{}", long(31 * 1024)), 414),
        (format!("GET / HTTP/1.1\r\nhost: api\r\nx: {}\r\n\r\n", long(60 * 1024)), 431),
        (format!("GET / HTTP/1.1\r\nhost: api\r\nx: {}", long(60 * 1024)), 431),
        (format!("GET / HTTP/1.1\r\nhost: api\r\n{}\r\n", fields(100)), 431),
        (format!("{} / HTTP/1.1\r\nhost: api\r\n\r\n", long(33)), 400),
        (format!("GET /{} HTTP/1.1\r\nhost: api\r\n\r\n", long(29 * 1024)), 200),
        (format!("GET / HTTP/1.1\r\nhost: api\r\n{}\r\n", fields(90)), 200),
    ] {
        let mut client = world.client().await;
        let _ = client.try_send(&request).await;
        let answer = client.message().await;
        assert_eq!(answer.status(), status, "{:?}: {}", &request[..60], answer.text());
    }
    assert_eq!(app.served(), 2);
    assert_eq!(counted(&world.web.engine)["malformed"], 6);
}

#[tokio::test]
async fn slow_heads_and_bodies_are_ended_and_others_go_on() {
    let mut setup = Setup::of(Protocol::Http);
    let short = Duration::from_millis(200);
    setup.timeouts = Timeouts { head: short, still: short, handshake: short, ..Timeouts::default() };
    let world = World::start(setup).await;
    let mut head = world.client().await;
    head.send("GET / HTTP/1.1\r\nhost:").await;
    let mut preface = world.client().await;
    preface.send("PRI * HT").await;
    let mut body = world.client().await;
    body.send("POST / HTTP/1.1\r\nhost: api\r\ncontent-length: 5\r\n\r\nab").await;
    let mut app = world.app.accept().await;
    app.head().await;
    let mut silent = Wire::new(tokio::net::TcpStream::connect(world.public).await.unwrap());
    assert_eq!(head.message().await.status(), 408);
    assert!(head.ends().await);
    assert!(preface.ends().await);
    assert_eq!(body.message().await.status(), 408);
    assert!(body.ends().await);
    assert!(silent.ends().await, "no handshake");
    assert_eq!(app.exactly(2).await, b"ab");
    assert!(app.ends().await);
    let mut other = world.client().await;
    other.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(other.message().await.status(), 200);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_ended_and_holds_little() {
    let mut setup = Setup::of(Protocol::Http);
    setup.timeouts = Timeouts { still: Duration::from_millis(300), ..Timeouts::default() };
    setup.route_timeout = Duration::from_millis(300);
    let world = World::start(setup).await;
    let mut client = world.client().await;
    client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
    let piece = vec![0; 1024 * 1024];
    let mut taken = 0;
    while app.try_send(&piece).await.is_ok() {
        taken += 1;
        assert!(taken < 100, "what nobody reads is not read from the server either");
    }
    crate::wire::eventually("it is counted", || counted(&world.web.engine)["broken"] == 1).await;
}
