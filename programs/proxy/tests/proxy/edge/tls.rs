//! TLS from outside: certificates by the name that is asked for, from files and from the mesh.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use starling_identity::Identity;
use starling_model::{CertificateFiles, IngressTls, Protocol, TlsVersion};
use starling_plan::Edge;
use starling_proxy::Workload;
use starling_tls::{Alpn, CredentialSlot, workload_client_config};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Gateway, edge};
use crate::app::answer;
use crate::wire::{Wire, within};
use crate::world::identity;

/// Certificates in a folder of their own, and whoever trusts all of them.
struct Files {
    folder: tempfile::TempDir,
    roots: RootCertStore,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), roots: RootCertStore::empty() }
    }

    /// A certificate for these hosts, in files of this name.
    fn make(&mut self, name: &str, hosts: &[&str]) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let certificate = rcgen::CertificateParams::new(hosts).unwrap().self_signed(&key).unwrap();
        self.roots.add(certificate.der().clone()).unwrap();
        let files = self.named(name);
        put(&files.certificate, &certificate.pem());
        put(&files.key, &key.serialize_pem());
        files
    }

    fn named(&self, name: &str) -> CertificateFiles {
        let path = |ending: &str| self.folder.path().join(format!("{name}.{ending}"));
        CertificateFiles { certificate: path("crt"), key: path("key") }
    }

    /// Connects as somebody who asks for `host` and believes nothing but these certificates.
    async fn connect(&self, gateway: &Gateway, host: &str, alpn: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let tcp = TcpStream::connect(gateway.address).await?;
        within(TlsConnector::from(Arc::new(config)).connect(name, tcp)).await
    }
}

/// In place of what was there, as whoever renews certificates does it.
fn put(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

fn with_files(protocol: Protocol, hosts: &[&str], certificates: Vec<CertificateFiles>) -> Edge {
    Edge {
        tls: Some(IngressTls { certificates, min_version: TlsVersion::V1_2, secret: None }),
        ..edge(protocol, hosts)
    }
}

#[tokio::test]
async fn the_certificate_is_that_of_the_name_asked_for() {
    let mut files = Files::new();
    let all = vec![files.make("a", &["a.example.com"]), files.make("b", &["b.example.com", "*.wild.example"])];
    let gateway = Gateway::start(with_files(Protocol::Http, &["*"], all)).await;
    let _app = gateway.app.mirror();
    for host in ["a.example.com", "b.example.com", "x.wild.example"] {
        // The client would refuse any other.
        let mut client = Wire::new(files.connect(&gateway, host, &[]).await.unwrap());
        client.send(format!("GET / HTTP/1.1\r\nhost: {host}:443\r\n\r\n")).await;
        let answer = client.message().await;
        assert_eq!(answer.status(), 200);
        assert!(answer.text().contains("x-forwarded-proto: https\r\n"), "{}", answer.text());
    }
    for (asked, wanted, expected) in [
        ("a.example.com", "b.example.com", 421),
        ("b.example.com", "y.wild.example", 200),
        ("b.example.com", "a.example.com.", 421),
        ("a.example.com", "elsewhere.example", 200),
    ] {
        let mut client = Wire::new(files.connect(&gateway, asked, &[]).await.unwrap());
        client.send(format!("GET / HTTP/1.1\r\nhost: {wanted}\r\n\r\n")).await;
        assert_eq!(client.message().await.status(), expected, "{wanted} by the certificate of {asked}");
    }
    assert!(
        files.connect(&gateway, "other.example.com", &[]).await.is_err(),
        "shown the first one, which is not its own"
    );
    let listeners = gateway.sidecar.engine.snapshot().await.remove(0).workloads.remove(0).listeners;
    let named: Vec<_> =
        listeners[0].certificates.iter().map(|it| (it.names.join(","), it.validity.is_some())).collect();
    let expected = [("a.example.com", true), ("b.example.com,*.wild.example", true)];
    assert_eq!(named, expected.map(|(names, valid)| (names.to_owned(), valid)), "operators see them");
    let mut plain = gateway.client().await;
    plain.send("GET / HTTP/1.1\r\nhost: a.example.com\r\n\r\n").await;
    assert!(!plain.rest().await.starts_with(b"HTTP"), "nothing is served in plaintext");
}

#[tokio::test]
async fn http2_is_agreed_on_and_grpc_passes() {
    let mut files = Files::new();
    let certificate = files.make("a", &["a.example.com"]);
    let gateway = Gateway::start(with_files(Protocol::Grpc, &["a.example.com"], vec![certificate])).await;
    let app = gateway.app.mirror_http2();
    let stream = files.connect(&gateway, "a.example.com", &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = within(h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let asked = |host: &str| {
        let request = http::Request::builder().method("POST").uri(format!("https://{host}/svc/Method"));
        request.header("content-type", "application/grpc").header("x-forwarded-for", "9.9.9.9").body(()).unwrap()
    };
    let (response, mut body) = sender.send_request(asked("a.example.com"), false).unwrap();
    body.send_data(Bytes::from_static(b"hello"), true).unwrap();
    let done = answer(response).await.unwrap();
    assert_eq!((done.status, &*done.body), (200, &b"hello"[..]));
    let from: Vec<_> = done.headers.get_all("x-forwarded-for").iter().collect();
    assert_eq!(from, ["127.0.0.1"]);
    assert_eq!(done.headers["x-forwarded-proto"], "https");
    sender = within(sender.ready()).await.unwrap();
    let other = answer(sender.send_request(asked("b.example.com"), true).unwrap().0).await.unwrap();
    assert_eq!(
        (other.status, &other.headers["grpc-status"]),
        (200, &"12".parse().unwrap()),
        "unimplemented, in gRPC's terms"
    );
    assert_eq!(app.served(), 1);
}

#[tokio::test]
async fn websockets_and_bytes_pass_through_tls() {
    let mut files = Files::new();
    let certificate = files.make("a", &["a.example.com"]);
    let gateway = Gateway::start(with_files(Protocol::Http, &["*"], vec![certificate.clone()])).await;
    let mut client = Wire::new(files.connect(&gateway, "a.example.com", &[b"http/1.1"]).await.unwrap());
    client.send("GET /chat HTTP/1.1\r\nhost: a.example.com\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    let mut app = gateway.app.accept().await;
    assert!(app.head().await.contains("upgrade: websocket\r\n"));
    app.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    assert!(client.head().await.starts_with("HTTP/1.1 101 "));
    client.send("up").await;
    assert_eq!(app.exactly(2).await, b"up");
    app.send("down").await;
    assert_eq!(client.exactly(4).await, b"down");

    let gateway = Gateway::start(with_files(Protocol::Tcp, &[], vec![certificate])).await;
    let mut client = Wire::new(files.connect(&gateway, "a.example.com", &[]).await.unwrap());
    let mut app = gateway.app.accept().await;
    client.send("over tls").await;
    assert_eq!(app.exactly(8).await, b"over tls");
}

#[tokio::test]
async fn the_proxy_header_comes_before_the_handshake() {
    let mut files = Files::new();
    let certificate = files.make("a", &["a.example.com"]);
    let behind = Edge { proxy_protocol: true, ..with_files(Protocol::Http, &["*"], vec![certificate]) };
    let gateway = Gateway::start(behind).await;
    let _app = gateway.app.mirror();
    let mut tcp = gateway.client().await;
    tcp.send("PROXY TCP4 198.51.100.7 127.0.0.1 8080 443\r\n").await;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(files.roots.clone())
        .with_no_client_auth();
    let name = ServerName::try_from("a.example.com").unwrap();
    let stream = within(TlsConnector::from(Arc::new(config)).connect(name, tcp.stream)).await.unwrap();
    let mut client = Wire::new(stream);
    client.send("GET / HTTP/1.1\r\nhost: a.example.com\r\n\r\n").await;
    let answer = client.message().await;
    assert!(answer.text().contains("x-forwarded-for: 198.51.100.7\r\n"), "{}", answer.text());
}

#[tokio::test]
async fn files_are_read_when_they_are_put_in_force_and_what_was_good_stays() {
    let mut files = Files::new();
    let certificate = files.make("a", &["a.example.com"]);
    let mut gateway = Gateway::start(with_files(Protocol::Http, &["*"], vec![certificate.clone()])).await;
    let shown = async |files: &Files, gateway: &Gateway| {
        let stream = files.connect(gateway, "a.example.com", &[]).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let before = shown(&files, &gateway).await;
    files.make("a", &["a.example.com"]);
    gateway.sidecar.apply().await;
    let renewed = shown(&files, &gateway).await;
    let on_disk = CertificateDer::from_pem_file(&certificate.certificate).unwrap();
    assert!(renewed != before && renewed == on_disk);

    // A key that is not there yet: the pair before stays in force, and the next look finds the rest.
    let key = std::fs::read_to_string(&certificate.key).unwrap();
    files.make("a", &["a.example.com"]);
    let fresh = std::fs::read_to_string(&certificate.key).unwrap();
    put(&certificate.key, &key);
    let refused = gateway.sidecar.try_to_apply().await;
    assert_eq!((refused.len(), refused[0].address, refused[0].listens), (1, gateway.address, true), "{refused:?}");
    assert!(refused[0].to_string().contains("goes on as it was: renewed certificates do not fit"), "{}", refused[0]);
    assert!(shown(&files, &gateway).await == renewed);
    put(&certificate.key, &fresh);
    gateway.sidecar.apply().await;
    assert!(shown(&files, &gateway).await != renewed);
}

#[tokio::test]
async fn a_port_whose_certificate_cannot_be_read_is_told_and_others_serve() {
    let mut files = Files::new();
    let good = files.make("a", &["a.example.com"]);
    let mut gateway = Gateway::start(with_files(Protocol::Http, &["*"], vec![good.clone()])).await;
    let _app = gateway.app.mirror();
    let serve = async |gateway: &Gateway, certificates: Vec<CertificateFiles>| {
        let mut plan = gateway.sidecar.plan.clone();
        plan.edges = vec![Arc::new(Edge { bind: gateway.address, ..with_files(Protocol::Http, &["*"], certificates) })];
        let workload = Arc::new(Workload::following(None, plan));
        within(gateway.sidecar.engine.serve(&gateway.sidecar.id(), &workload, &gateway.sidecar.keys)).await
    };
    let missing = files.named("missing");
    let errors = serve(&gateway, vec![good.clone(), missing.clone()]).await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].address, gateway.address);
    assert!(errors[0].reason.contains("missing.crt") && errors[0].reason.contains("No such file"), "{}", errors[0]);
    assert!(files.connect(&gateway, "a.example.com", &[]).await.is_ok(), "by the certificates before");
    let found = files.make("missing", &["b.example.com"]);
    assert_eq!(found, missing);
    assert_eq!(serve(&gateway, vec![good, missing]).await, []);
    assert!(files.connect(&gateway, "b.example.com", &[]).await.is_ok());
    gateway.change(|edge| edge.tls = None).await;
    assert_eq!(gateway.ask("a").await.status(), 200, "in plaintext now");
}

#[tokio::test]
async fn without_files_the_certificate_is_the_mesh_s_own() {
    let from_mesh = Edge { tls: Some(IngressTls::default()), ..edge(Protocol::Http, &["*"]) };
    let gateway = Gateway::start(from_mesh).await;
    let _app = gateway.app.mirror();
    let connect = async |alpn| {
        let (slot, roots) = (CredentialSlot::new(gateway.ca.credentials("web")), gateway.ca.roots());
        let config = workload_client_config(slot, &roots, Identity::Workload(identity("ingress")), alpn).unwrap();
        let tcp = TcpStream::connect(gateway.address).await.unwrap();
        let name = ServerName::try_from("anything.example").unwrap();
        within(TlsConnector::from(Arc::new(config)).connect(name, tcp)).await.unwrap()
    };
    let first = connect(Alpn::Http1).await;
    let shown = |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    let before = shown(&first);
    let mut client = Wire::new(first);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200);
    gateway.sidecar.keys.renew(gateway.ca.credentials("ingress"));
    assert!(shown(&connect(Alpn::Http1).await) != before, "a renewed one is shown from then on");
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200, "and connections that stand are not touched");
}

#[tokio::test]
async fn old_versions_of_tls_are_spoken_as_far_as_the_port_wants() {
    let mut files = Files::new();
    let certificate = files.make("a", &["a.example.com"]);
    let mut gateway = Gateway::start(with_files(Protocol::Http, &["*"], vec![certificate])).await;
    let old = async |gateway: &Gateway| {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(files.roots.clone())
            .with_no_client_auth();
        let tcp = TcpStream::connect(gateway.address).await.unwrap();
        let name = ServerName::try_from("a.example.com").unwrap();
        within(TlsConnector::from(Arc::new(config)).connect(name, tcp)).await
    };
    assert!(old(&gateway).await.is_ok());
    gateway.change(|edge| edge.tls.as_mut().unwrap().min_version = TlsVersion::V1_3).await;
    assert!(old(&gateway).await.is_err());
}
