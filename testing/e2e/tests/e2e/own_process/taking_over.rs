//! What stands when another process takes over goes on in the old one until it ends, or the drain time does; what is new is
//! served by the next one, and nothing fails.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use starling_e2e::{Instance, Mesh, MeshOptions, OwnProxy, Plane, Served, Traffic, Workload, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Streams at a time on the connection of HTTP/2.
const STREAMS: usize = 24;

/// Messages of a stream on their way.
const MESSAGES: usize = 4;

type Messages = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

/// An application of gRPC that answers each message with the same, until its caller ends; its port.
async fn streaming() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answer = async |request: Request<Incoming>| {
        let (messages, answers) = mpsc::channel(MESSAGES);
        let mut body = request.into_body();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                if messages.send(Ok(frame)).await.is_err() {
                    return;
                }
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            // Whoever has gone needs no end.
            let _ = messages.send(Ok(Frame::trailers(trailers))).await;
        });
        let response = Response::builder().header("content-type", "application/grpc");
        response.body(Messages::new(ReceiverStream::new(answers)))
    };
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(tcp), service_fn(answer)));
        }
    });
    port
}

/// An application of TCP that sends back what it gets; its port.
async fn echoing() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reading, mut writing) = tcp.split();
                tokio::io::copy(&mut reading, &mut writing).await
            });
        }
    });
    port
}

/// A call of gRPC that stands.
struct Call {
    messages: mpsc::Sender<Result<Frame<Bytes>, Infallible>>,
    answers: Incoming,
}

impl Call {
    async fn begin(authority: &str) -> anyhow::Result<Self> {
        let (mut client, driver) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(TcpStream::connect(authority).await?)).await?;
        tokio::spawn(driver);
        let (messages, sent) = mpsc::channel(MESSAGES);
        let request = Request::post(format!("http://{authority}/Echo/Echo")).header("content-type", "application/grpc");
        let request = request.header("te", "trailers").body(Messages::new(ReceiverStream::new(sent)))?;
        let answer = client.send_request(request).await?;
        anyhow::ensure!(answer.status() == 200 && !answer.headers().contains_key("grpc-status"), "{answer:?}");
        Ok(Self { messages, answers: answer.into_body() })
    }

    async fn round(&mut self, number: u8) {
        let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 1, number]);
        self.messages.send(Ok(Frame::data(message.clone()))).await.expect("a call that stands");
        let mut answer = Vec::new();
        while answer.len() < message.len() {
            let frame = self.answers.frame().await.expect("an answer").expect("no error");
            answer.extend_from_slice(&frame.into_data().expect("no end"));
        }
        assert_eq!(answer, message);
    }

    async fn end(mut self) {
        drop(self.messages);
        let end = self.answers.frame().await.expect("an end").expect("no error");
        let trailers = end.into_trailers().expect("nothing but the end");
        assert_eq!(trailers["grpc-status"], "0");
    }
}

async fn round(connection: &mut TcpStream, number: u8) {
    connection.write_all(&[number; 100]).await.expect("a connection that stands");
    let mut answer = [0; 100];
    connection.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(answer, [number; 100]);
}

/// Requests on many streams of one connection at a time.
#[derive(Default)]
struct Streams {
    stop: AtomicBool,
    answered: AtomicU64,
    connections: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Streams {
    async fn work(&self, authority: &str) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.connection(authority).await {
                self.failures.lock().expect("no panic").push(format!("{error:#}"));
            }
        }
    }

    /// Until the other end wants no more on it.
    async fn connection(&self, authority: &str) -> anyhow::Result<()> {
        let tcp = TcpStream::connect(authority).await?;
        let (client, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await?;
        let driver = tokio::spawn(driver);
        self.connections.fetch_add(1, Ordering::Relaxed);
        let streams = (0..STREAMS).map(|_| self.stream(client.clone(), authority));
        let ended: Vec<anyhow::Result<()>> = futures(streams).await;
        drop(client);
        driver.await??;
        ended.into_iter().collect()
    }

    async fn stream(&self, mut client: http2::SendRequest<Empty<Bytes>>, authority: &str) -> anyhow::Result<()> {
        while !self.stop.load(Ordering::Relaxed) && client.ready().await.is_ok() {
            let request = Request::get(format!("http://{authority}/")).body(Empty::new())?;
            let answer = match client.send_request(request).await {
                Ok(answer) => answer,
                // It was not sent: the end of the connection came first.
                Err(error) if error.is_canceled() => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            anyhow::ensure!(answer.status() == 200, "{}", answer.status());
            answer.into_body().collect().await?;
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn more(&self, count: u64) {
        let until = self.answered.load(Ordering::Relaxed) + count;
        eventually("more requests are answered", async || {
            let answered = self.answered.load(Ordering::Relaxed);
            anyhow::ensure!(answered >= until, "{answered} of {until}, {:?}", self.failures.lock().expect("no panic"));
            Ok(())
        })
        .await;
    }
}

/// All of them at once, in one task.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        for (one, outcome) in all.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            if let std::task::Poll::Ready(ready) = one.as_mut().poll(context) {
                *outcome = Some(ready);
            }
        }
        if all.iter().all(|(_, outcome)| outcome.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    all.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

/// Has another process serve web; answers with the one before, which drains.
async fn next(mesh: &Mesh, web: &mut Instance<Served>, more: &[&str]) -> OwnProxy {
    let mut next = OwnProxy::spawn(mesh, "web", &[&["--take-over"], more].concat());
    next.live("web", &[web.public_port]).await;
    let before = std::mem::replace(web.sidecar.own(), next);
    eventually("the one before drains", async || {
        let log = before.process.log();
        anyhow::ensure!(log.contains("the next process serves; draining"), "{log}");
        Ok(())
    })
    .await;
    before
}

async fn ended(mut process: OwnProxy, why: &str) -> String {
    let status = eventually(&format!("the process ends: {why}"), async || {
        process.process.ended().ok_or_else(|| anyhow::anyhow!("it runs: {}", process.process.log()))
    })
    .await;
    assert!(status.success(), "{status}: {}", process.process.log());
    process.process.log()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_goes_on_in_the_process_before() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    for (service, protocol) in [("h1", "http"), ("h2", "http2"), ("rpc", "grpc")] {
        mesh.protocol(service, protocol).await;
    }
    let (rpc, raw) = (streaming().await, echoing().await);
    for (service, port) in [("rpc", rpc), ("raw", raw)] {
        let sidecar = json!({"Name": service, "Port": port, "Connect": {"SidecarService": {}}});
        mesh.register(&sidecar).await;
    }
    let (mut web, _h1, _h2) = tokio::join!(
        Workload::new("web").calls("h1").calls("h2").calls("rpc").calls("raw").start_on(&mesh, Plane::Own),
        Workload::new("h1").start_on(&mesh, Plane::Native),
        Workload::new("h2").start_on(&mesh, Plane::Native),
    );
    web.served_by("h1", &["h1"], "all is well").await;
    web.served_by("h2", &["h2"], "all is well").await;
    let mut call = eventually("a call stands", async || Call::begin(&web.upstream("rpc")).await).await;
    let mut connection = TcpStream::connect(web.upstream("raw")).await.expect("a connection");
    call.round(0).await;
    round(&mut connection, 0).await;
    let (plain, streams) = (Traffic::start(&web.upstream("h1"), "/"), Arc::new(Streams::default()));
    let authority = web.upstream("h2");
    let working = Arc::clone(&streams);
    let working = tokio::spawn(async move { working.work(&authority).await });
    streams.more(200).await;

    let before = next(&mesh, &mut web, &["--drain-time", "500ms"]).await;
    for number in 1..20 {
        call.round(number).await;
        round(&mut connection, number).await;
    }
    streams.more(200).await;
    plain.requests(30).await;
    assert!(streams.connections.load(Ordering::Relaxed) > 1, "the connection of HTTP/2 was given up for another");
    let mut second = Call::begin(&web.upstream("rpc")).await.expect("a call at the next one");
    second.round(1).await;
    second.end().await;
    call.end().await;
    drop(connection);
    let log = ended(before, "what stood has ended").await;
    assert!(log.contains("drained; ending"), "{log}");

    streams.more(100).await;
    streams.stop.store(true, Ordering::Relaxed);
    working.await.expect("no panic");
    assert!(streams.failures.lock().expect("no panic").is_empty(), "{:?}", streams.failures.lock());
    plain.stop_without_failure().await;

    // Its drain time is short: so short that what is under way might be cut off on a busy machine.
    let mut connection = TcpStream::connect(web.upstream("raw")).await.expect("a connection");
    round(&mut connection, 0).await;
    let before = next(&mesh, &mut web, &[]).await;
    let log = ended(before, "its drain time is over").await;
    assert!(log.contains("cutting off 1 connections"), "{log}");
    assert_eq!(connection.read(&mut [0]).await.unwrap_or(0), 0, "it is cut off");
}

/// Killed at any moment of it: whoever takes over must not count on the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_killed_while_it_hands_over_is_replaced_all_the_same() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("h1", "http").await;
    let (mut web, _h1) = tokio::join!(
        Workload::new("web").calls("h1").start_on(&mesh, Plane::Own),
        Workload::new("h1").start_on(&mesh, Plane::Native),
    );
    web.served_by("h1", &["h1"], "all is well").await;
    for _ in 0..3 {
        let next = OwnProxy::spawn(&mesh, "web", &["--take-over"]);
        let mut before = std::mem::replace(web.sidecar.own(), next);
        eventually("the one before hands over", async || {
            let log = before.process.log();
            anyhow::ensure!(log.contains("another process takes over"), "{log}");
            Ok(())
        })
        .await;
        before.process.kill9();
        web.sidecar.own().live("web", &[web.public_port]).await;
        web.served_by("h1", &["h1"], "the next one serves").await;
        assert_eq!(web.sidecar.own().process.ended(), None, "{}", web.sidecar.own().process.log());
    }
}

/// The revision of what is in force at the sidecar of web.
async fn in_force(proxy: &OwnProxy) -> u64 {
    let config = proxy.get("/config").await.text();
    let revision = config.split("# web-sidecar-proxy at revision ").nth(1).and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    revision.unwrap_or_else(|| panic!("no revision: {config}"))
}

/// One that hangs as it leaves: the next one goes by what is new at once, and the receipt waits for the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_is_in_force_at_the_next_process_while_the_one_before_is_still_leaving() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    let raw = echoing().await;
    mesh.register(&json!({"Name": "raw", "Port": raw, "Connect": {"SidecarService": {}}})).await;
    let mut web = Workload::new("web").calls("raw").start_on(&mesh, Plane::Own).await;
    // It leaves at once if nothing stands.
    let mut connection = eventually("a connection stands", async || {
        let mut connection = TcpStream::connect(web.upstream("raw")).await?;
        connection.write_all(b"x").await?;
        connection.read_exact(&mut [0]).await?;
        Ok(connection)
    })
    .await;
    let before = next(&mesh, &mut web, &[]).await;
    nix::sys::signal::kill(before.process.pid(), nix::sys::signal::Signal::SIGSTOP).expect("a signal");
    let change = mesh.intention("somebody", "web", "deny").await.index();
    eventually("it is in force at the next one, and not everywhere", async || {
        let at = in_force(web.sidecar.own()).await;
        anyhow::ensure!(at >= change, "at {at}, and not {change}");
        Ok(())
    })
    .await;
    let receipt = mesh.receipt(change, "0s").await;
    assert_eq!(receipt["settled"], json!(false), "the one before serves still: {receipt}");
    nix::sys::signal::kill(before.process.pid(), nix::sys::signal::Signal::SIGCONT).expect("a signal");
    mesh.settled(change).await;
    round(&mut connection, 1).await;
}
