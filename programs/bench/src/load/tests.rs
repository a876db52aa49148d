//! The generator against servers that do as they are told.

mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::echo;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that ends with the test.
struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn server<F>(serve: impl FnOnce(TcpListener) -> F) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    Server { address, task: tokio::spawn(serve(listener)) }
}

fn load(scheme: &str, address: SocketAddr, payload: usize) -> Load {
    let (protocol, uri) = parse_url(&format!("{scheme}://{address}/echo.Echo/Unary"), scheme == "h2").unwrap();
    Load::new(Peer { address, tls: None }, protocol, Message::new(protocol, uri, Vec::new(), payload))
}

/// Answers every request, but none within a part of a run that begins with the first connection.
async fn stalling(listener: TcpListener, stall: std::ops::Range<Duration>) {
    let begun = Arc::new(std::sync::OnceLock::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let begun = *begun.get_or_init(Instant::now);
        tokio::spawn(answer_but_in(stream, begun, stall.clone()));
    }
}

async fn answer_but_in(mut stream: TcpStream, begun: Instant, stall: std::ops::Range<Duration>) {
    let mut head = [0; 4096];
    while stream.read(&mut head).await.is_ok_and(|length| length > 0) {
        if stall.contains(&begun.elapsed()) {
            tokio::time::sleep_until((begun + stall.end).into()).await;
        }
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}

/// Some more than a tenth of a run of 2 s, so that the 90th percentile is among those that waited.
const STALL: std::ops::Range<Duration> = Duration::from_millis(850)..Duration::from_millis(1150);

async fn with_a_stall(pace: Pace) -> Summary {
    let server = server(|listener| stalling(listener, STALL)).await;
    let length = Length::Time(Duration::from_secs(2));
    let load = Load { connections: 4, pace, length, ..load("http", server.address, 0) };
    let summary = Summary::of(&generate(load).await.unwrap());
    assert_eq!(summary.errors, 0, "{:?}", summary.failures);
    summary
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_loop_shows_a_stall_that_a_closed_loop_hides() {
    let schedule = Pace::Open { rate: 500.0, arrivals: Arrivals::Constant };
    let mut open = with_a_stall(schedule).await;
    // Where the machine stalled as well, the run says itself that its figures say nothing.
    for _ in 0..10 {
        if open.void.is_none() {
            break;
        }
        open = with_a_stall(schedule).await;
    }
    let closed = with_a_stall(Pace::Closed).await;
    let (open_ms, closed_ms) = (open.latency_ms.unwrap(), closed.latency_ms.unwrap());
    // Three of twenty requests were due within the stall, and waited for 0 to 300 ms.
    assert!(open_ms.p95 > 120.0 && open_ms.p99 > 200.0 && open_ms.max > 250.0, "{open_ms:?}");
    assert!(open_ms.p90 > 5.0 * open_ms.p50, "{open_ms:?}");
    // The same requests as a generator counts them that knows no schedule.
    let from_send = open.from_send_ms.unwrap();
    assert!(from_send.p95 < open_ms.p95 / 3.0 && closed.from_send_ms.is_none(), "{from_send:?}");
    assert!(open.requests.abs_diff(1000) <= 1, "{}", open.requests);
    // Four of many thousands did.
    assert!(closed_ms.p99 < 60.0 && closed_ms.max > 150.0, "{closed_ms:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_gets_its_answers() {
    let http = server(|listener| echo::serve(listener, echo::http(Duration::ZERO))).await;
    let tcp = server(|listener| echo::serve(listener, echo::tcp_connection)).await;
    let to = |scheme: &str, payload| {
        let address = if scheme == "tcp" { tcp.address } else { http.address };
        let scheme = if scheme == "h2" { "http" } else { scheme };
        load(scheme, address, payload)
    };
    let http2 = || {
        let uri = parse_url(&format!("http://{}/", http.address), true).unwrap().1;
        let message = Message::new(Protocol::Http2, uri, Vec::new(), 100_000);
        Load::new(Peer { address: http.address, tls: None }, Protocol::Http2, message)
    };
    for keep_alive in [true, false] {
        for mut load in [to("http", 0), to("http", 100_000), to("grpc", 1000), to("tcp", 5000), http2()] {
            load.connections = 3;
            load.threads = 2;
            load.streams = if matches!(load.protocol, Protocol::Http2 | Protocol::Grpc) { 5 } else { 1 };
            load.length = Length::Requests(100);
            load.keep_alive = keep_alive;
            let protocol = load.protocol;
            let summary = Summary::of(&generate(load).await.unwrap());
            let found = (summary.requests, summary.errors, summary.status.get("200"));
            assert_eq!(found, (100, 0, Some(&100)), "{protocol:?} {keep_alive} {:?}", summary.failures);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong_is_counted_by_its_reason() {
    let failing = server(|listener| async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut head = [0; 4096];
            // Every connection: one 503, then an end without an answer.
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 503 Down\r\ncontent-length: 0\r\n\r\n").await;
            let _ = stream.read(&mut head).await;
        }
    })
    .await;
    let summary = generate(Load { length: Length::Requests(4), ..load("http", failing.address, 0) }).await.unwrap();
    let summary = Summary::of(&summary);
    assert_eq!((summary.requests, summary.errors, summary.status.get("503")), (4, 4, Some(&2)));
    assert_eq!(summary.failures["status 503"], 2);
    assert_eq!(summary.failures["connection closed without an answer"], 2);
    assert!(summary.latency_ms.is_none() && !summary.is_sound());
    let silent = server(|listener| async move {
        let _kept = listener.accept().await;
        std::future::pending().await
    })
    .await;
    let timeout = Duration::from_millis(50);
    let load = Load { length: Length::Requests(1), timeout, ..load("http", silent.address, 0) };
    assert_eq!(Summary::of(&generate(load).await.unwrap()).failures["not answered in time"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_due_and_never_sent_is_an_error() {
    let silent = server(|listener| async move {
        let mut kept = Vec::new();
        while let Ok(accepted) = listener.accept().await {
            kept.push(accepted);
        }
    })
    .await;
    let timeout = Duration::from_millis(300);
    let pace = Pace::Open { rate: 100.0, arrivals: Arrivals::Poisson };
    let length = Length::Time(Duration::from_millis(250));
    let summary = generate(Load { pace, length, timeout, ..load("http", silent.address, 0) }).await.unwrap();
    let failures = summary.tally.failures;
    assert!(failures.contains_key("not answered in time") && failures["due, but never sent"] > 5, "{failures:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_after_the_end_make_no_rate_that_the_server_does_not_have() {
    let slow = server(|listener| async move {
        let Ok((mut stream, _)) = listener.accept().await else { return };
        let mut head = [0; 4096];
        while stream.read(&mut head).await.is_ok_and(|length| length > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = stream.write_all(ANSWER).await;
        }
    })
    .await;
    let pace = Pace::Open { rate: 200.0, arrivals: Arrivals::Constant };
    let length = Length::Time(Duration::from_millis(250));
    let summary = Summary::of(&generate(Load { pace, length, ..load("http", slow.address, 0) }).await.unwrap());
    // Some 50 requests, of which a fifth is answered while they come.
    assert!(summary.errors == 0 && summary.requests > 40, "{summary:?}");
    assert!(summary.rate <= 56.0 && summary.seconds <= 0.25, "{} in {}", summary.rate, summary.seconds);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = generate(load("http", address, 0)).await.err().unwrap();
    assert!(error.to_string().contains(&address.to_string()), "{error:#}");
}

#[test]
fn the_figures_have_the_documented_names() {
    let mut tally = Tally::default();
    tally.record((Instant::now(), Instant::now()), None, Ok(200));
    tally.slip.record(Duration::from_millis(9));
    let json = serde_json::to_value(Summary::of(&Outcome { tally, elapsed: Duration::from_secs(1) })).unwrap();
    for field in ["requests", "rate", "errors", "status"] {
        assert!(!json[field].is_null(), "{field}");
    }
    for percentile in ["mean", "p50", "p75", "p90", "p95", "p99", "p999", "max"] {
        assert!(json["latency_ms"][percentile].is_f64(), "{percentile}");
        assert!(json["from_send_ms"][percentile].is_f64(), "{percentile}");
    }
    assert_eq!((&json["slip_ms"]["p99"], &json["slip_ms"]["max"]), (&9.0.into(), &9.0.into()));
    assert!(json["void"].as_str().unwrap().contains("could not keep the rate"), "{json}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_one_error_also_without_keep_alive() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = generate(Load { keep_alive: false, ..load("http", address, 0) }).await.err().unwrap();
    assert!(error.to_string().contains("connection refused"), "{error:#}");
}
