//! Who is refused at a sidecar's door: plaintext, foreign certificates, and services whom an intention denies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::version::{TLS12, TLS13};
use serde_json::json;
use starling_e2e::tls::{self, Credentials};
use starling_e2e::{Answer, Connection, Mesh, MeshOptions, Workload, eventually, free_port, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Asks for `/` as the service that the credentials name.
async fn ask(
    authority: &str,
    credentials: Option<&Credentials>,
    version: &'static rustls::SupportedProtocolVersion,
) -> anyhow::Result<Answer> {
    let stream = tls::connect(authority, credentials, version).await?;
    Connection::over(authority, stream).await?.get("/").await
}

/// The leaf of a service that is registered here.
async fn leaf(mesh: &Mesh, service: &str) -> Credentials {
    Credentials::of_leaf(&mesh.get(&format!("/v1/agent/connect/ca/leaf/{service}")).await.success().json())
}

async fn register(mesh: &Mesh, service: &str) {
    mesh.register(&json!({"Name": service, "Port": free_port(), "Connect": {"SidecarService": {"Port": free_port()}}}))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_door_opens_for_the_right_certificate_only() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("web", "http").await;
    let (web, raw) = tokio::join!(Workload::new("web").start(&mesh), Workload::new("raw").start(&mesh));
    register(&mesh, "friend").await;
    register(&mesh, "foe").await;
    let (friend, foe) = (leaf(&mesh, "friend").await, leaf(&mesh, "foe").await);
    let identity = mesh.get("/v1/agent/connect/ca/leaf/friend").await.json()["ServiceURI"].clone();
    let foreign = Credentials::of_a_foreign_ca(identity.as_str().expect("a SPIFFE ID"));

    // That it opens at all; a door that is always shut proves nothing.
    for instance in [&web, &raw] {
        let door = instance.public();
        let answer = eventually("the friend is let in", async || ask(&door, Some(&friend), &TLS13).await);
        assert_eq!(answer.await.status, 200);
    }

    for instance in [&web, &raw] {
        let door = instance.public();
        assert!(http::get(&door, "/").await.is_err(), "{}: plaintext", instance.id);
        assert!(ask(&door, None, &TLS13).await.is_err(), "{}: no certificate", instance.id);
        assert!(ask(&door, Some(&foreign), &TLS13).await.is_err(), "{}: foreign CA", instance.id);
        assert!(ask(&door, Some(&friend), &TLS12).await.is_err(), "{}: TLS 1.2", instance.id);
        assert_eq!(ask(&door, Some(&friend), &TLS13).await.unwrap().status, 200, "{}: friend", instance.id);
    }

    for destination in ["web", "raw"] {
        let change = mesh.intention("foe", destination, "deny").await.index();
        mesh.settled(change).await;
    }
    eventually("the foe is answered 403", async || {
        let answer = ask(&web.public(), Some(&foe), &TLS13).await?;
        anyhow::ensure!(answer.status == 403, "{}", answer.status);
        Ok(())
    })
    .await;
    eventually("the foe's connection is closed", async || {
        let answer = ask(&raw.public(), Some(&foe), &TLS13).await;
        anyhow::ensure!(answer.is_err(), "it was answered {answer:?}");
        Ok(())
    })
    .await;
    assert_eq!(ask(&web.public(), Some(&friend), &TLS13).await.unwrap().status, 200);
    assert_eq!(ask(&raw.public(), Some(&friend), &TLS13).await.unwrap().status, 200);

    // The friend's three and nobody else's.
    assert_eq!(web.sidecar.stat("cluster.local_app.upstream_rq_total", "").await, 3);
    let refused = web.sidecar.stat("listener.", "ssl.fail_verify_error").await;
    assert!(refused >= 1, "no certificate failed verification");
}

/// What is answered to those who are let in: by a service of HTTP, and by one of TCP.
const LET_IN: [Option<u16>; 2] = [Some(200), Some(200)];

/// What is answered to those who are not; of TCP the connection is closed.
const SHUT_OUT: [Option<u16>; 2] = [Some(403), None];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_is_denied_the_door_opens_for_those_who_are_named_only() {
    let mesh = Mesh::start(MeshOptions { default_policy: Some("deny"), ..MeshOptions::default() }).await;
    mesh.protocol("web", "http").await;
    let (web, raw) = tokio::join!(Workload::new("web").start(&mesh), Workload::new("raw").start(&mesh));
    register(&mesh, "friend").await;
    register(&mesh, "stranger").await;
    let (friend, stranger) = (leaf(&mesh, "friend").await, leaf(&mesh, "stranger").await);
    let answered = async |credentials: Option<&Credentials>| {
        let answers = [ask(&web.public(), credentials, &TLS13).await, ask(&raw.public(), credentials, &TLS13).await];
        answers.map(|answer| answer.ok().map(|answer| answer.status))
    };
    let friend_is = async |expected: [Option<u16>; 2], when: &str| {
        eventually(&format!("the friend is answered {expected:?} when {when}"), async || {
            let answered = answered(Some(&friend)).await;
            anyhow::ensure!(answered == expected, "{answered:?}");
            Ok(())
        })
        .await;
    };

    friend_is(SHUT_OUT, "nobody is named").await;
    for destination in ["web", "raw"] {
        mesh.intention("friend", destination, "allow").await;
    }
    friend_is(LET_IN, "named").await;
    // Of the same authority, valid, and not enough.
    assert_eq!(answered(Some(&stranger)).await, SHUT_OUT);
    assert_eq!(answered(None).await, [None, None]);
    for destination in ["web", "raw"] {
        mesh.delete_intention("friend", destination).await;
    }
    friend_is(SHUT_OUT, "named no more").await;
}

/// Stands where the sidecar of a service should be, with whatever certificate it is given; answers 200 to everything.
struct Impostor {
    attempts: Arc<AtomicU64>,
    handshakes: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Impostor {
    async fn start(port: u16, credentials: &Credentials) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
        let acceptor = TlsAcceptor::from(credentials.server());
        let (attempts, handshakes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counters = (Arc::clone(&attempts), Arc::clone(&handshakes));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counters.0.fetch_add(1, Ordering::Relaxed);
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 4096];
                if !matches!(stream.read(&mut request).await, Ok(1..)) {
                    continue;
                }
                counters.1.fetch_add(1, Ordering::Relaxed);
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                // The client may have left.
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { attempts, handshakes, task }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_with_another_services_certificate_is_not_spoken_to() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("bank", "http").await;
    let port = free_port();
    mesh.register(&json!({
        "Name": "bank", "Address": "127.0.0.1", "Port": free_port(),
        "Connect": {"SidecarService": {"Port": port, "Checks": [{"Name": "up", "TTL": "1h", "Status": "passing"}]}},
    }))
    .await;
    register(&mesh, "thief").await;
    let web = Workload::new("web").calls("bank").start(&mesh).await;

    let thief = Impostor::start(port, &leaf(&mesh, "thief").await).await;
    eventually("the thief is found out", async || {
        let answer = http::get(&web.upstream("bank"), "/").await?;
        anyhow::ensure!(answer.status == 503, "{}", answer.status);
        anyhow::ensure!(thief.attempts.load(Ordering::Relaxed) > 0, "nobody came");
        Ok(())
    })
    .await;
    assert_eq!(thief.handshakes.load(Ordering::Relaxed), 0, "the thief was sent a request");
    drop(thief);

    let honest = leaf(&mesh, "bank").await;
    // The listener of the thief may take a moment to go away.
    let bank = eventually("the bank's port is free", async || {
        TcpListener::bind(("127.0.0.1", port)).await?;
        Ok(Impostor::start(port, &honest).await)
    })
    .await;
    eventually("the bank is spoken to", async || {
        let answer = http::get(&web.upstream("bank"), "/").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    })
    .await;
    assert!(bank.handshakes.load(Ordering::Relaxed) > 0);
}
