//! HTTP/1.1 through both hops.

use std::time::Duration;

use starling_model::Protocol;

use crate::world::{Setup, World, counted};

const LARGE: usize = 10 * 1024 * 1024;

async fn http() -> World {
    World::start(Setup::of(Protocol::Http)).await
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n")
}

/// Bytes that show a piece that is missing, doubled or out of order.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at / 7 + at / 65_521) % 251).unwrap()).collect()
}

#[tokio::test]
async fn a_connection_carries_many_requests_one_after_the_other_or_at_once() {
    let world = http().await;
    let app = world.app.mirror();
    let mut client = world.client().await;
    for number in 0..3 {
        client.send(get(&format!("/{number}"))).await;
        let answer = client.message().await;
        assert_eq!(answer.status(), 200);
        assert!(answer.text().starts_with(&format!("GET /{number} HTTP/1.1\r\nhost: api\r\n")), "{}", answer.text());
    }
    let many: String = (0..50).map(|number| get(&format!("/many/{number}"))).collect();
    client.send(many).await;
    for number in 0..50 {
        let answer = client.message().await;
        assert!(answer.text().starts_with(&format!("GET /many/{number} ")), "answers come in order");
    }
    assert_eq!(app.served(), 53);
    assert_eq!(counted(&world.web.engine)["opened"], 1);
    assert_eq!(counted(&world.api.engine)["opened"], 1, "one connection between the sidecars is enough");
}

#[tokio::test]
async fn fields_of_one_hop_stay_there_and_the_caller_is_named_by_its_certificate() {
    let world = http().await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    client
        .send(
            "GET / HTTP/1.1\r\nHost: api.\r\nConnection: close, x-mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\n\
             X-Forwarded-Client-Cert: URI=spiffe://forged\r\nx-envoy-retry-on: 5xx\r\nX-Kept: Yes\r\n\r\n",
        )
        .await;
    let answer = client.message().await;
    assert!(client.ends().await, "the client wanted no more");
    let seen = answer.text().to_lowercase();
    for gone in ["x-mine", "keep-alive", "\r\nte:", "forged", "x-envoy", "connection"] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
    assert!(seen.contains("\r\nhost: api\r\n") && seen.contains("\r\nx-kept: yes\r\n"), "{seen}");
    let own = "uri=spiffe://11111111-2222-3333-4444-555555555555.consul/ns/default/dc/dc1/svc/web\r\n";
    assert!(seen.contains("\r\nx-forwarded-client-cert: by=") && seen.contains(own), "{seen}");
}

#[tokio::test]
async fn large_bodies_pass_both_ways_by_length_and_in_chunks() {
    let world = http().await;
    let body = pattern(LARGE);
    for chunked in [false, true] {
        let mut client = world.client().await;
        let framing =
            if chunked { "transfer-encoding: chunked".to_owned() } else { format!("content-length: {LARGE}") };
        let framed: Vec<u8> = if chunked {
            let chunks = body
                .chunks(40_000)
                .flat_map(|chunk| [format!("{:x};ext=1\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
            chunks.chain(*b"0\r\ntrailer: x\r\n\r\n").collect()
        } else {
            body.clone()
        };
        let request = format!("POST /large HTTP/1.1\r\nhost: api\r\n{framing}\r\n\r\n");
        let app = async {
            let mut app = world.app.accept().await;
            let message = app.message().await;
            assert_eq!(message.body.len(), LARGE);
            assert!(message.body == body, "the request's body is as it was sent");
            app.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
            app.send(&framed).await;
            app
        };
        let talk = async {
            client.send(request).await;
            client.send(&framed).await;
            client.message().await
        };
        let (_app, answer) = tokio::join!(app, talk);
        assert!(answer.body == body, "the response's body is as it was sent");
        assert_eq!(answer.values("transfer-encoding"), if chunked { vec!["chunked"] } else { Vec::new() });
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it_from_the_server() {
    let world = http().await;
    let mut client = world.client().await;
    client.send("PUT /a HTTP/1.1\r\nhost: api\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n").await;
    let mut app = world.app.accept().await;
    assert!(app.head().await.contains("expect: 100-continue\r\n"));
    app.send("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body").await;
    assert_eq!(app.exactly(4).await, b"body");
    app.send("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 201);
    // The server may refuse instead; what is left of the request cannot be told from the next one then.
    client.send("PUT /b HTTP/1.1\r\nhost: api\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n").await;
    app.head().await;
    app.send("HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n").await;
    let refused = client.message().await;
    assert_eq!((refused.status(), refused.values("connection")), (417, vec!["close"]));
    assert!(client.ends().await);
}

#[tokio::test]
async fn responses_without_a_body_leave_the_connection_whole() {
    let world = http().await;
    let mut client = world.client().await;
    client.send("HEAD /a HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 12345\r\netag: e\r\n\r\n").await;
    let head = client.bodiless().await;
    assert_eq!((head.status(), head.values("content-length")), (200, vec!["12345"]));
    for (line, length) in [("204 No Content", vec![]), ("304 Not Modified", vec!["7"])] {
        client.send(get("/b")).await;
        app.head().await;
        // A length is no body, and in a 204 it must not stand.
        app.send(format!("HTTP/1.1 {line}\r\ncontent-length: 7\r\n\r\n")).await;
        let answer = client.message().await;
        assert_eq!(answer.values("content-length"), length, "{line}");
    }
    client.send(get("/c")).await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nend").await;
    assert_eq!(client.message().await.text(), "end");
}

#[tokio::test]
async fn a_response_may_come_before_the_request_is_over() {
    let world = http().await;
    let mut client = world.client().await;
    client.send("POST /a HTTP/1.1\r\nhost: api\r\ncontent-length: 1000000\r\n\r\nsome").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\n\r\nlarge").await;
    let answer = client.message().await;
    assert_eq!((answer.status(), &*answer.text(), answer.values("connection")), (413, "large", vec!["close"]));
    assert!(client.ends().await);
    // A response that goes on while the request does: both pass, piece by piece.
    let mut client = world.client().await;
    client.send("POST /b HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.head().await;
    for _ in 0..3 {
        client.send("2\r\nup\r\n").await;
        assert_eq!(app.exactly(7).await, b"2\r\nup\r\n");
        app.send("4\r\ndown\r\n").await;
        assert_eq!(client.exactly(9).await, b"4\r\ndown\r\n");
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(app.exactly(5).await, b"0\r\n\r\n");
    app.send("0\r\n\r\n").await;
    assert_eq!(client.exactly(5).await, b"0\r\n\r\n");
}

#[tokio::test]
async fn the_protocol_changes_through_both_hops_to_websocket_and_to_nothing_else() {
    let world = http().await;
    let mut client = world.client().await;
    client
        .send("GET /chat HTTP/1.1\r\nhost: api\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n\r\n")
        .await;
    let mut app = world.app.accept().await;
    let head = app.head().await;
    assert!(head.contains("connection: upgrade\r\nupgrade: websocket\r\n"), "{head}");
    // The first frame may come with the head.
    app.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x01first").await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: websocket\r\n"), "{head}");
    assert_eq!(client.exactly(6).await, b"\x01first");
    client.send("up").await;
    assert_eq!(app.exactly(2).await, b"up");
    app.send("down").await;
    assert_eq!(client.exactly(4).await, b"down");
    drop(app);
    assert!(client.ends().await);

    // HTTP/2 in plaintext would carry requests past every decision.
    let mut client = world.client().await;
    client
        .send("GET / HTTP/1.1\r\nhost: api\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n\r\n")
        .await;
    let mut app = world.app.accept().await;
    let head = app.head().await;
    assert!(!head.contains("upgrade") && !head.contains("http2-settings"), "{head}");
    app.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 502, "nobody asked for that");
}

#[tokio::test]
async fn clients_of_http_1_0_are_answered_in_their_terms() {
    let world = http().await;
    let mut client = world.client().await;
    client.send("GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").await;
    let mut app = world.app.accept().await;
    assert!(app.head().await.starts_with("GET /a HTTP/1.1\r\nhost: localhost\r\n"));
    app.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = client.message().await;
    assert_eq!((answer.status(), answer.values("connection")), (200, vec!["keep-alive"]), "and no interim response");
    client.send("GET /b HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").await;
    let answer = client.message().await;
    assert_eq!(answer.values("transfer-encoding"), Vec::<&str>::new(), "it knows no chunks");
    assert_eq!(answer.text(), "abc", "which the end of the connection ends");
    let mut client = world.client().await;
    client.send("GET /c HTTP/1.0\r\n\r\n").await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.message().await.values("connection"), ["close"]);
    assert!(client.ends().await);
}

#[tokio::test]
async fn a_server_that_closes_ends_its_body_if_that_is_how_it_ends() {
    let world = http().await;
    let mut client = world.client().await;
    client.send(get("/a")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\n\r\nuntil the end").await;
    drop(app);
    let answer = client.message().await;
    assert_eq!((answer.text().as_str(), answer.values("transfer-encoding")), ("until the end", vec!["chunked"]));
    client.send(get("/b")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx").await;
    assert_eq!(client.message().await.text(), "x", "the client's connection stays");
}

#[tokio::test]
async fn a_server_that_breaks_off_is_told_by_503_or_by_a_broken_body() {
    let world = http().await;
    let mut client = world.client().await;
    client.send(get("/a")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    drop(app);
    assert_eq!(client.message().await.status(), 503);
    client.send(get("/b")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\n").await;
    drop(app);
    assert_eq!(client.message().await.status(), 503, "half a head is no answer");
    client.send(get("/c")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n").await;
    drop(app);
    client.head().await;
    assert_eq!(client.rest().await, b"4\r\nhalf\r\n", "the end is missing, which the client can see");
    let mut client = world.client().await;
    client.send(get("/d")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd").await;
    assert_eq!(client.message().await.status(), 502, "two lengths are none");
}

#[tokio::test]
async fn a_client_that_leaves_is_waited_for_no_longer_at_the_server() {
    let world = http().await;
    for request in [get("/a"), "POST /b HTTP/1.1\r\nhost: api\r\ncontent-length: 10\r\n\r\nhalf".to_owned()] {
        let mut client = world.client().await;
        client.send(request).await;
        let mut app = world.app.accept().await;
        app.head().await;
        drop(client);
        app.rest().await;
    }
    let (web, api) = (&world.web.engine, &world.api.engine);
    crate::wire::eventually("both are counted as broken", || counted(web)["broken"] == 2).await;
    crate::wire::eventually("nothing stays open", || counted(web)["open"] + counted(api)["open"] == 0).await;
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced_for_what_can_be_done_twice() {
    for (method, status) in [("GET", 200), ("PUT", 200), ("POST", 503)] {
        let world = http().await;
        let mut client = world.client().await;
        client.send(get("/first")).await;
        let mut app = world.app.accept().await;
        app.head().await;
        app.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(client.message().await.status(), 200);
        // The server reads the next request and closes without an answer: the race that a kept connection loses.
        client.send(format!("{method} /second HTTP/1.1\r\nhost: api\r\ncontent-length: 4\r\n\r\nbody")).await;
        assert_eq!(app.message().await.text(), "body");
        drop(app);
        if status == 200 {
            let mut again = world.app.accept().await;
            let message = again.message().await;
            assert!(message.head.starts_with(&format!("{method} /second ")), "{}", message.head);
            assert_eq!(message.text(), "body", "the body is sent again, too");
            again.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
        assert_eq!(client.message().await.status(), status, "{method}");
        assert!(world.app.is_left_alone().await, "{method} is tried no more");
    }
}

#[tokio::test]
async fn time_counts_from_the_end_of_the_request() {
    let mut setup = Setup::of(Protocol::Http);
    setup.route_timeout = Duration::from_millis(300);
    let world = World::start(setup).await;
    let mut client = world.client().await;
    client.send("POST /a HTTP/1.1\r\nhost: api\r\ncontent-length: 4\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    for byte in ["b", "o", "d", "y"] {
        // Together longer than the timeout.
        tokio::time::sleep(Duration::from_millis(120)).await;
        client.send(byte).await;
    }
    assert_eq!(app.exactly(4).await, b"body");
    let answer = client.message().await;
    assert_eq!((answer.status(), &*answer.text()), (504, "upstream request timeout"));
    assert!(app.ends().await, "the server is waited for no longer");
    client.send(get("/b")).await;
    let mut app = world.app.accept().await;
    app.head().await;
    assert_eq!(client.message().await.status(), 504);
    assert_eq!(counted(&world.web.engine)["5xx"], 2);
}

#[tokio::test]
async fn without_a_server_the_answer_is_503() {
    let mut world = http().await;
    let mut client = world.client().await;
    world.web.call_at(&[]).await;
    client.send(get("/a")).await;
    let answer = client.message().await;
    assert_eq!((answer.status(), &*answer.text()), (503, "no healthy upstream"));
    world.web.call_at(&[crate::world::free_port(world.public.ip()).await]).await;
    client.send(get("/b")).await;
    assert_eq!(client.message().await.text(), "upstream connect failure");
    world.web.call_at(&[world.public]).await;
    let _app = world.app.mirror();
    client.send(get("/c")).await;
    assert_eq!(client.message().await.status(), 200, "on the same connection");
}
