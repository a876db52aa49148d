//! Each kind of check against a real other end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use starling_agent::{Agent, ExistingChecks};
use starling_model::check::OUTPUT_BYTES_MAX;
use starling_model::{Check, CheckKind, CheckSpec, CheckStatus, CheckTls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::build::{check, http, instance_id, script, service, start};
use crate::fake_server::{DEADLINE, FakeServer, until};

/// Registers a check and returns it once it has that status and an output.
async fn becomes(spec: CheckSpec, status: CheckStatus) -> Check {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("web", vec![spec]), ExistingChecks::Keep).await.unwrap();
    reaches(&agent, status).await
}

async fn reaches(agent: &Agent, status: CheckStatus) -> Check {
    let mut interval = tokio::time::interval(Duration::from_millis(2));
    let waiting = async {
        loop {
            interval.tick().await;
            let check = agent.checks()[0].check.clone();
            if check.status == status && !check.output.is_empty() {
                return check;
            }
        }
    };
    match tokio::time::timeout(DEADLINE, waiting).await {
        Ok(check) => check,
        Err(_) => panic!("never {status:?}: {:?}", agent.checks()),
    }
}

/// Answers every connection with what `answer` makes of the request's head.
async fn serve(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { return };
                    head.push(byte);
                }
                // The client may hang up before it has read everything; that is its right.
                let _ = stream.write_all(answer(&String::from_utf8_lossy(&head)).as_bytes()).await;
            });
        }
    });
    address
}

fn page(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn http_status_codes_are_statuses() {
    let code = Arc::new(AtomicU16::new(204));
    let served = Arc::clone(&code);
    let address = serve(move |_| page(&format!("{} X", served.load(Ordering::SeqCst)), "")).await;
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let given = service("web", vec![http("h", format!("http://{address}/health"))]);
    agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    for (number, status) in [
        (204, CheckStatus::Passing),
        (429, CheckStatus::Warning),
        (200, CheckStatus::Passing),
        (503, CheckStatus::Critical),
        (299, CheckStatus::Passing),
        (404, CheckStatus::Critical),
    ] {
        code.store(number, Ordering::SeqCst);
        let check = server.until_status("h", status).await;
        assert!(check.output.contains(&number.to_string()), "{}", check.output);
    }
    assert!(agent.deregister_service(&instance_id("web")).await.is_ok());
}

#[tokio::test]
async fn http_sends_what_it_was_given() {
    let address = serve(|head| {
        let wanted = ["PUT /x?y=1 HTTP/1.1", "x-token: a", "x-token: b", "host: other.example", "content-length: 4"];
        let missing: Vec<_> = wanted.iter().filter(|line| !head.lines().any(|l| l == **line)).collect();
        if missing.is_empty() { page("200 OK", "all there") } else { page("500 X", &format!("{missing:?} in {head}")) }
    });
    let address = address.await;
    let mut spec = http("h", String::new());
    spec.definition.kind = CheckKind::Http {
        url: format!("http://{address}/x?y=1"),
        method: "PUT".to_owned(),
        headers: BTreeMap::from([
            ("X-Token".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
            ("Host".to_owned(), vec!["other.example".to_owned()]),
        ]),
        body: "body".to_owned(),
        tls_skip_verify: false,
        tls_server_name: String::new(),
        disable_redirects: false,
    };
    let check = becomes(spec, CheckStatus::Passing).await;
    assert!(check.output.ends_with("200 OK Output: all there"), "{}", check.output);
}

#[tokio::test]
async fn http_follows_redirects_at_its_own_host_and_port_alone() {
    let elsewhere = serve(|_| page("200 OK", "INTERNAL-ONLY-SECRET")).await;
    let led =
        serve(move |_| format!("HTTP/1.1 302 X\r\nlocation: http://{elsewhere}/iam\r\ncontent-length: 0\r\n\r\n"))
            .await;
    let check = becomes(http("h", format!("http://{led}/")), CheckStatus::Critical).await;
    assert!(check.output.contains("elsewhere") && !check.output.contains("SECRET"), "{}", check.output);
    let follow = |head: &str| match head.split(' ').nth(1) {
        Some("/a") => "HTTP/1.1 302 Found\r\nlocation: b\r\ncontent-length: 0\r\n\r\n".to_owned(),
        Some("/b") => page("200 OK", "arrived"),
        _ => "HTTP/1.1 307 X\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n".to_owned(),
    };
    let address = serve(follow).await;
    let check = becomes(http("h", format!("http://{address}/a")), CheckStatus::Passing).await;
    assert!(check.output.contains("arrived"), "{}", check.output);
    let check = becomes(http("h", format!("http://{address}/loop")), CheckStatus::Critical).await;
    assert!(check.output.contains("more than 10 redirects"), "{}", check.output);
    let mut stays = http("h", format!("http://{address}/a"));
    if let CheckKind::Http { disable_redirects, .. } = &mut stays.definition.kind {
        *disable_redirects = true;
    }
    let check = becomes(stays, CheckStatus::Critical).await;
    assert!(check.output.contains("302"), "{}", check.output);
}

#[tokio::test]
async fn checks_do_not_go_to_link_local_addresses() {
    for spec in [
        http("c", "http://169.254.169.254/latest/meta-data/".to_owned()),
        check("c", CheckKind::tcp("169.254.169.254:80")),
        check("c", CheckKind::Udp { address: "[fe80::1]:53".to_owned() }),
        check("c", CheckKind::H2Ping { address: "[fd00:ec2::254]:80".to_owned(), tls: None }),
        grpc("100.100.100.200:80".parse().unwrap(), "", false, false),
    ] {
        let kind = spec.definition.kind.clone();
        let check = becomes(spec, CheckStatus::Critical).await;
        assert!(check.output.contains("checks do not go there"), "{kind:?}: {}", check.output);
    }
}

#[tokio::test]
async fn scripts_do_not_get_the_agents_environment() {
    // Cargo sets it for tests, and no script needs it.
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    let command = "test -n \"$PATH\" && test -z \"$CARGO_PKG_NAME\" && echo well";
    becomes(crate::build::script("s", command), CheckStatus::Passing).await;
}

#[tokio::test]
async fn an_endless_body_is_read_as_far_as_it_is_kept() {
    let endless = |_: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{}", "x".repeat(1 << 20));
    let check = becomes(http("h", format!("http://{}/", serve(endless).await)), CheckStatus::Passing).await;
    assert_eq!(check.output.len(), OUTPUT_BYTES_MAX);
}

#[tokio::test]
async fn silence_is_critical_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut spec = http("h", format!("http://{}/", listener.local_addr().unwrap()));
    spec.definition.timeout = Duration::from_millis(50);
    let check = becomes(spec, CheckStatus::Critical).await;
    assert_eq!(check.output, "no answer within 50ms");
}

#[tokio::test]
async fn tcp_passes_where_somebody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let kind = CheckKind::tcp(address.clone());
    let check_up = becomes(check("t", kind.clone()), CheckStatus::Passing).await;
    assert_eq!(check_up.output, format!("TCP connect {address}: Success"));
    drop(listener);
    let check_down = becomes(check("t", kind), CheckStatus::Critical).await;
    assert!(check_down.output.contains("refused"), "{}", check_down.output);
}

/// A gRPC health service that knows one service besides the whole server.
async fn serve_grpc(tls: Option<tokio_rustls::TlsAcceptor>) -> SocketAddr {
    async fn answer(
        request: http::Request<hyper::body::Incoming>,
    ) -> Result<Response<impl http_body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
        use http_body_util::BodyExt;
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        let asked = request.into_body().collect().await.unwrap().to_bytes();
        // Five bytes of framing, then field 1 as a string, if it is not empty.
        let service = asked.get(7..).unwrap_or_default();
        let (status, code) = match service {
            b"" => (Some(1), "0"),
            b"sick" => (Some(2), "0"),
            _ => (None, "5"),
        };
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        let data = status.map(|status| Frame::data(Bytes::from(vec![0, 0, 0, 0, 2, 8, status])));
        let frames: Vec<Result<_, Infallible>> = data.into_iter().chain([Frame::trailers(trailers)]).map(Ok).collect();
        let body = StreamBody::new(futures::stream::iter(frames));
        Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let service = hyper::service::service_fn(answer);
                match tls {
                    None => drop(server.serve_connection(TokioIo::new(stream), service).await),
                    Some(tls) => {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        drop(server.serve_connection(TokioIo::new(stream), service).await);
                    }
                }
            });
        }
    });
    address
}

fn grpc(address: SocketAddr, service: &str, tls: bool, tls_skip_verify: bool) -> CheckSpec {
    let (address, service) = (address.to_string(), service.to_owned());
    check("g", CheckKind::Grpc { address, service, tls, tls_skip_verify, tls_server_name: String::new() })
}

#[tokio::test]
async fn grpc_passes_when_serving() {
    let address = serve_grpc(None).await;
    let check = becomes(grpc(address, "", false, false), CheckStatus::Passing).await;
    assert_eq!(check.output, format!("gRPC check {address}: success"));
    let check = becomes(grpc(address, "sick", false, false), CheckStatus::Critical).await;
    assert!(check.output.contains("NotServing"), "{}", check.output);
    let check = becomes(grpc(address, "unknown", false, false), CheckStatus::Critical).await;
    assert!(check.output.contains("NotFound"), "{}", check.output);
}

fn self_signed(alpn: &[u8]) -> tokio_rustls::TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config).into()
}

#[tokio::test]
async fn tls_is_verified_unless_told_otherwise() {
    let address = serve_grpc(Some(self_signed(b"h2"))).await;
    becomes(grpc(address, "", true, true), CheckStatus::Passing).await;
    let check = becomes(grpc(address, "", true, false), CheckStatus::Critical).await;
    assert!(check.output.contains("TLS handshake"), "{}", check.output);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = self_signed(b"http/1.1");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut some = [0; 1024];
            let _ = stream.read(&mut some).await;
            let _ = stream.write_all(page("200 OK", "secure").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let mut trusting = http("h", format!("https://{address}/"));
    if let CheckKind::Http { tls_skip_verify, .. } = &mut trusting.definition.kind {
        *tls_skip_verify = true;
    }
    let check = becomes(trusting, CheckStatus::Passing).await;
    assert!(check.output.contains("secure"), "{}", check.output);
    let check = becomes(http("h", format!("https://{address}/")), CheckStatus::Critical).await;
    assert!(check.output.contains("TLS handshake"), "{}", check.output);
}

#[tokio::test]
async fn udp_passes_where_a_datagram_is_answered() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let kind = CheckKind::Udp { address };
    let mut spec = check("u", kind.clone());
    spec.definition.timeout = Duration::from_millis(50);
    let silent = becomes(spec, CheckStatus::Critical).await;
    assert_eq!(silent.output, "no answer within 50ms");
    let answering = tokio::spawn(async move {
        let mut some = [0; 512];
        while let Ok((read, from)) = socket.recv_from(&mut some).await {
            let _ = socket.send_to(&some[..read.min(4)], from).await;
        }
    });
    let answered = becomes(check("u", kind.clone()), CheckStatus::Passing).await;
    assert!(answered.output.ends_with("4 bytes came back"), "{}", answered.output);
    answering.abort();
    assert!(answering.await.is_err());
    let gone = becomes(check("u", kind), CheckStatus::Critical).await;
    assert!(gone.output.contains("refused"), "{}", gone.output);
}

#[tokio::test]
async fn http2_passes_where_a_ping_is_answered_and_tcp_where_tls_is_spoken() {
    let (plain, secure) = (serve_grpc(None).await, serve_grpc(Some(self_signed(b"h2"))).await);
    let tls = |skip_verify| Some(CheckTls { skip_verify, server_name: String::new() });
    let h2 = |address: SocketAddr, tls| check("h", CheckKind::H2Ping { address: address.to_string(), tls });
    let check_plain = becomes(h2(plain, None), CheckStatus::Passing).await;
    assert_eq!(check_plain.output, format!("HTTP2 ping {plain}: success"));
    becomes(h2(secure, tls(true)), CheckStatus::Passing).await;
    for spec in [h2(secure, tls(false)), h2(plain, tls(true)), h2(secure, None)] {
        let failed = becomes(spec, CheckStatus::Critical).await;
        assert!(failed.output.starts_with("HTTP2 ping 127.0.0.1:"), "{}", failed.output);
    }
    let tcp = |address: SocketAddr, tls| check("t", CheckKind::Tcp { address: address.to_string(), tls });
    let check_tls = becomes(tcp(secure, tls(true)), CheckStatus::Passing).await;
    assert_eq!(check_tls.output, format!("TCP+TLS connect {secure}: Success"));
    let unknown = becomes(tcp(secure, tls(false)), CheckStatus::Critical).await;
    assert!(unknown.output.contains("TLS handshake"), "{}", unknown.output);
}

#[tokio::test]
async fn exit_codes_of_scripts_are_statuses_and_their_output_is_bounded() {
    let check = becomes(script("s", "echo out; echo err >&2"), CheckStatus::Passing).await;
    let mut lines: Vec<_> = check.output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "out"]);
    assert_eq!(becomes(script("s", "echo meh; exit 1"), CheckStatus::Warning).await.output, "meh\n");
    assert_eq!(becomes(script("s", "echo bad; exit 3"), CheckStatus::Critical).await.output, "bad\n");
    let long = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done";
    let check = becomes(script("s", long), CheckStatus::Passing).await;
    assert!(
        check.output.len() <= OUTPUT_BYTES_MAX && check.output.starts_with("Captured 4096 of "),
        "{}",
        check.output
    );
    let missing = CheckKind::Script { args: vec!["/no/such/program".to_owned()] };
    let check = becomes(crate::build::check("s", missing), CheckStatus::Critical).await;
    assert!(check.output.contains("cannot run"), "{}", check.output);
}

#[derive(Debug, PartialEq)]
enum Life {
    Running,
    /// Ended, and waiting for its parent to notice; for an orphan that is up to the system's init.
    Ended,
    Reaped,
}

/// What became of the process whose number is in a file; `None` before there is one.
fn life(pid_file: &Path) -> Option<Life> {
    let pid: i32 = std::fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return Some(Life::Reaped) };
    // The state follows the name, which is in parentheses.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    Some(if state == Some('Z') { Life::Ended } else { Life::Running })
}

fn has_ended(pid_file: &Path) -> bool {
    life(pid_file).is_some_and(|life| life != Life::Running)
}

/// A command that starts a child, notes both and then waits far longer than any test.
fn lingering(directory: &Path) -> String {
    let (parent, child) = (directory.join("parent"), directory.join("child"));
    let note = |path: &Path, pid: &str| format!("echo {pid} > {0}.new; mv {0}.new {0}", path.display());
    format!("sleep 600 & {}; {}; wait", note(&child, "$!"), note(&parent, "$$"))
}

#[tokio::test]
async fn a_script_past_its_timeout_is_killed_with_its_children() {
    let notes = tempfile::tempdir().unwrap();
    let mut spec = script("s", &lingering(notes.path()));
    spec.definition.timeout = Duration::from_millis(500);
    spec.definition.interval = Duration::from_secs(600);
    let check = becomes(spec, CheckStatus::Critical).await;
    assert!(check.output.starts_with("Timed out (500ms) running check"), "{}", check.output);
    assert_eq!(life(&notes.path().join("parent")), Some(Life::Reaped));
    until("the child's end", || has_ended(&notes.path().join("child"))).await;
}

#[tokio::test]
async fn a_running_script_ends_with_its_check() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let spec = script("s", &lingering(directory.path()));
    agent.register_service(service("web", vec![spec]), ExistingChecks::Keep).await.unwrap();
    until("its start", || life(&directory.path().join("parent")).is_some()).await;
    agent.deregister_service(&instance_id("web")).await.unwrap();
    until("its end", || life(&directory.path().join("parent")) == Some(Life::Reaped)).await;
    until("the child's end", || has_ended(&directory.path().join("child"))).await;
}

#[tokio::test]
async fn a_script_that_leaves_a_child_behind_does_not_hang_its_check() {
    let notes = tempfile::tempdir().unwrap();
    let child = notes.path().join("child");
    let command = format!("sleep 600 & echo $! > {}; echo done", child.display());
    let check = becomes(script("s", &command), CheckStatus::Passing).await;
    assert_eq!(check.output, "done\n");
    until("the child's end", || has_ended(&child)).await;
}
