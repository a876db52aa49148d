//! HTTP/2 and gRPC through both hops, and between the two versions of HTTP.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use starling_model::{Action, Protocol, SourceDecision};
use tokio::net::TcpStream;

use crate::app::{Answer, answer, send_all};
use crate::wire::{eventually, within};
use crate::world::{Setup, World, counted, rule};

/// An HTTP/2 client of web's sidecar.
pub struct Client {
    pub sender: SendRequest<Bytes>,
}

impl Client {
    pub async fn open(world: &World) -> Self {
        let tcp = TcpStream::connect(world.outbound).await.unwrap();
        let (sender, connection) = within(h2::client::handshake(tcp)).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub fn begin(&mut self, request: Request<()>, over: bool) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        self.sender.send_request(request, over).unwrap()
    }

    pub async fn get(&mut self, path: &str) -> Result<Answer, h2::Error> {
        self.sender = within(self.sender.clone().ready()).await?;
        answer(self.sender.send_request(request("GET", path), true)?.0).await
    }
}

pub fn request(method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://api{path}")).body(()).unwrap()
}

fn grpc(path: &str) -> Request<()> {
    let mut request = request("POST", path);
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    request
}

async fn upload(mut to: h2::SendStream<Bytes>, body: Bytes, trailers: Option<HeaderMap>) {
    within(send_all(&mut to, body)).await.unwrap();
    match trailers {
        Some(trailers) => to.send_trailers(trailers).unwrap(),
        None => to.send_data(Bytes::new(), true).unwrap(),
    }
}

#[tokio::test]
async fn bodies_and_trailers_pass_both_ways_on_one_connection() {
    let world = World::start(Setup::of(Protocol::Grpc)).await;
    let app = world.app.mirror_http2();
    let mut client = Client::open(&world).await;
    let body = Bytes::from((0..10 * 1024 * 1024).map(|at| u8::try_from(at % 251).unwrap()).collect::<Vec<_>>());
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().unwrap());
    let mut calls = Vec::new();
    for number in 0..4 {
        let (response, to) = client.begin(grpc(&format!("/api.Service/{number}")), false);
        let sending = tokio::spawn(upload(to, body.clone(), Some(trailers.clone())));
        calls.push((number, sending, tokio::spawn(answer(response))));
    }
    for (number, sending, receiving) in calls {
        within(sending).await.unwrap();
        let answer = within(receiving).await.unwrap().unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["asked"], format!("POST http://api/api.Service/{number}"));
        assert_eq!(answer.headers["te"], "trailers");
        assert!(answer.body == body);
        assert_eq!(answer.trailers, Some(trailers.clone()));
    }
    assert_eq!(app.served(), 4);
    assert_eq!(counted(&world.api.engine)["opened"], 1);
}

#[tokio::test]
async fn refused_calls_of_grpc_get_their_status_in_trailers_alone() {
    let mut setup = Setup::of(Protocol::Grpc);
    setup.rules = vec![rule("web", SourceDecision::Connection(Action::Deny))];
    let mut world = World::start(setup).await;
    let mut client = Client::open(&world).await;
    let (response, _to) = client.begin(grpc("/api.Service/Call"), false);
    let denied = answer(response).await.unwrap();
    let told = |answer: &Answer| {
        (answer.status, answer.headers["grpc-status"].clone(), answer.headers["grpc-message"].clone())
    };
    assert_eq!(told(&denied), (200, "7".parse().unwrap(), "RBAC: access denied".parse().unwrap()));
    assert_eq!((denied.headers["content-type"].as_bytes(), denied.body.len()), (&b"application/grpc"[..], 0));
    world.web.call_at(&[]).await;
    let unavailable = answer(client.begin(grpc("/api.Service/Call"), true).0).await.unwrap();
    assert_eq!(told(&unavailable).1, "14");
    let plain = client.get("/").await.unwrap();
    assert_eq!(
        (plain.status, &*plain.body),
        (503, &b"no healthy upstream"[..]),
        "who does not speak gRPC is told in HTTP"
    );
}

#[tokio::test]
async fn http2_goes_on_in_http1_where_that_is_what_the_service_speaks() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let mut client = Client::open(&world).await;
    let mut asked = request("POST", "/a//b?q=1");
    for cookie in ["a=1", "b=2"] {
        asked.headers_mut().append("cookie", cookie.parse().unwrap());
    }
    asked.headers_mut().insert("x-forwarded-client-cert", "forged".parse().unwrap());
    let (response, to) = client.begin(asked, false);
    let sending = tokio::spawn(upload(to, Bytes::from(vec![7; 1_000_000]), None));
    let mut app = world.app.accept().await;
    let seen = app.message().await;
    assert!(seen.head.starts_with("POST /a/b?q=1 HTTP/1.1\r\nhost: api\r\n"), "{}", seen.head);
    assert_eq!(seen.values("cookie"), ["a=1; b=2"]);
    assert_eq!(seen.values("x-forwarded-client-cert").len(), 1);
    assert!(!seen.head.contains("forged"));
    assert_eq!((seen.values("transfer-encoding"), seen.body.len()), (vec!["chunked"], 1_000_000));
    within(sending).await.unwrap();
    app.send("HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n").await;
    app.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: x-hop\r\nx-hop: 1\r\nx-kept: 2\r\n\r\n")
        .await;
    app.send("3\r\nabc\r\n3\r\ndef\r\n0\r\ntrailer: lost\r\n\r\n").await;
    let answered = answer(response).await.unwrap();
    assert_eq!((answered.status, &*answered.body), (200, &b"abcdef"[..]));
    assert!(answered.headers.contains_key("x-kept") && !answered.headers.contains_key("x-hop"));

    // The connection is kept; a HEAD and an empty answer leave it whole.
    let (response, _) = client.begin(request("HEAD", "/"), true);
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n").await;
    let head = answer(response).await.unwrap();
    assert_eq!((head.headers["content-length"].as_bytes(), head.body.len()), (&b"99"[..], 0));
    // A kept connection that the server closes is replaced for what can be done twice.
    let (response, _) = client.begin(request("GET", "/again"), true);
    app.head().await;
    drop(app);
    let mut app = world.app.accept().await;
    assert!(app.head().await.starts_with("GET /again "));
    app.send("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n").await;
    let empty = answer(response).await.unwrap();
    assert_eq!((empty.status, empty.headers.get("content-length")), (204, None));
}

#[tokio::test]
async fn a_response_in_http1_may_come_before_the_request_in_http2_is_over() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let mut client = Client::open(&world).await;
    let (response, mut to) = client.begin(request("POST", "/"), false);
    to.send_data(Bytes::from_static(b"some"), false).unwrap();
    let mut app = world.app.accept().await;
    app.head().await;
    assert_eq!(app.exactly(9).await, b"4\r\nsome\r\n");
    app.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\n\r\nlarge").await;
    let refused = answer(response).await.unwrap();
    assert_eq!((refused.status, &*refused.body), (413, &b"large"[..]));
    let next = async {
        let mut app = world.app.accept().await;
        app.head().await;
        app.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    };
    let (answered, ()) = tokio::join!(client.get("/next"), next);
    assert_eq!(answered.unwrap().status, 200, "on the same connection of the client, and another one of the server");
}

#[tokio::test]
async fn http1_goes_on_in_http2_where_that_is_what_the_service_speaks() {
    let world = World::start(Setup::of(Protocol::Http2)).await;
    let app = world.app.mirror_http2();
    let mut client = world.client().await;
    let body = vec![b'x'; 3_000_000];
    client.send("POST /a/../b HTTP/1.1\r\nhost: api\r\nconnection: x-hop\r\nx-hop: 1\r\nx-kept: 2\r\n").await;
    client.send(format!("content-length: {}\r\n\r\n", body.len())).await;
    // The answer comes back while the request is being sent: neither waits for the other.
    let (mut down, mut up) = tokio::io::split(client.stream);
    let sent = body.clone();
    let sending = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut up, &sent).await.unwrap();
        up
    });
    let mut read = Vec::new();
    let whole = async {
        while !read.ends_with(b"0\r\n\r\n") {
            let mut buffer = vec![0; 64 * 1024];
            let count = tokio::io::AsyncReadExt::read(&mut down, &mut buffer).await.unwrap();
            assert!(count > 0);
            read.extend_from_slice(&buffer[..count]);
        }
    };
    within(whole).await;
    let _up = within(sending).await.unwrap();
    let head = String::from_utf8_lossy(&read[..read.len().min(1_000)]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("asked: POST http://api/b\r\n") && head.contains("x-kept: 2\r\n"), "{head}");
    assert!(!head.contains("x-hop"), "{head}");
    assert!(read.iter().filter(|byte| **byte == b'x').count() >= body.len());
    let mut client = world.client().await;
    for number in 0..3 {
        client.send(format!("GET /{number} HTTP/1.1\r\nhost: api\r\n\r\n")).await;
        let answer = client.message().await;
        assert_eq!(answer.values("asked"), [format!("GET http://api/{number}")]);
    }
    assert_eq!(app.served(), 4);
}

#[tokio::test]
async fn a_client_that_takes_its_request_back_ends_it_at_the_server() {
    // In HTTP/2 to the server.
    let world = World::start(patient(Protocol::Http2)).await;
    let mut client = Client::open(&world).await;
    let accepted = async {
        let app = world.app.accept().await;
        within(h2::server::handshake(app.stream)).await.unwrap()
    };
    let (response, mut to) = client.begin(request("GET", "/long"), false);
    let mut app: h2::server::Connection<_, Bytes> = accepted.await;
    let (_request, mut respond) = within(app.accept()).await.unwrap().unwrap();
    tokio::spawn(async move { while app.accept().await.is_some() {} });
    to.send_reset(h2::Reason::CANCEL);
    drop(response);
    let reset = within(std::future::poll_fn(|cx| respond.poll_reset(cx))).await;
    assert!(reset.is_ok(), "{reset:?}");
    // In HTTP/1.1 to the server, of which the client waits for more of the answer.
    let world = World::start(patient(Protocol::Http)).await;
    let mut client = Client::open(&world).await;
    let (response, to) = client.begin(request("GET", "/long"), true);
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nsome\r\n").await;
    drop((within(response).await.unwrap(), to));
    assert!(app.ends().await);
    // And before any answer.
    let (response, to) = client.begin(request("GET", "/long"), true);
    let mut app = world.app.accept().await;
    app.head().await;
    drop((response, to));
    assert!(app.ends().await);
    eventually("both are counted as broken", || counted(&world.web.engine)["broken"] == 2).await;
}

/// No timeout ends what the client should.
fn patient(protocol: Protocol) -> Setup {
    Setup { route_timeout: Duration::from_secs(600), ..Setup::of(protocol) }
}

#[tokio::test]
async fn what_http2_must_not_say_is_not_passed_on() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let _app = world.app.mirror();
    let mut client = Client::open(&world).await;
    for (name, value) in [("connection", "close"), ("transfer-encoding", "chunked"), ("upgrade", "websocket")] {
        let mut bad = request("GET", "/");
        bad.headers_mut().insert(name, value.parse().unwrap());
        let refused = client.sender.send_request(bad, true);
        assert!(refused.is_err(), "not even sent by this client: {name}");
    }
    let mut two = request("GET", "/");
    for _ in 0..2 {
        two.headers_mut().append("content-length", "0".parse().unwrap());
    }
    let seen = answer(client.begin(two, true).0).await.unwrap();
    let seen = String::from_utf8(seen.body).unwrap();
    assert_eq!(seen.matches("content-length").count(), 1, "said twice, passed on once: {seen}");
    let user = Request::builder().uri("http://user@api/").body(()).unwrap();
    assert_eq!(answer(client.begin(user, true).0).await.unwrap().status, 400);
    let mut large = request("GET", "/");
    large.headers_mut().insert("x", "y".repeat(15_000).parse().unwrap());
    for number in 0..5 {
        large
            .headers_mut()
            .insert(http::HeaderName::try_from(format!("x-{number}")).unwrap(), "y".repeat(15_000).parse().unwrap());
    }
    let too_large = client.sender.send_request(large, true).unwrap().0;
    assert_eq!(answer(too_large).await.unwrap().status, 431);
    assert_eq!(client.get("/").await.unwrap().status, 200, "the connection goes on");
}
