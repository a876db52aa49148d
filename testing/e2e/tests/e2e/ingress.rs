//! Ingress gateways: callers from outside, by host and by certificate, into the mesh.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use starling_e2e::{
    Answer, Connection, Mesh, MeshOptions, OwnProxy, Plane, Program, Sidecar, Traffic, Workload, eventually, free_port,
    http,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

/// Who does what the gateway's plan says.
enum Gateway {
    Native(OwnProxy),
    Envoy(Sidecar),
}

impl Gateway {
    async fn start(mesh: &Mesh, envoy: bool, ports: &[u16]) -> Self {
        match envoy {
            false => Self::Native(OwnProxy::gateway(mesh, "ingress", ports).await),
            true => Self::Envoy(Sidecar::gateway(mesh, "ingress", ports).await),
        }
    }

    fn expect_running(&mut self) {
        let process = match self {
            Self::Native(proxy) => &mut proxy.process,
            Self::Envoy(envoy) => &mut envoy.process,
        };
        process.expect_running().expect("the gateway runs");
    }
}

/// Asks for a host.
async fn ask(port: u16, host: &str, target: &str) -> anyhow::Result<Answer> {
    http::request(Method::GET, &format!("127.0.0.1:{port}"), target, &[("host", host)], Bytes::new()).await
}

/// Waits until a host is answered with a status; the whole answer.
async fn answered(port: u16, host: &str, status: u16, when: &str) -> Answer {
    eventually(&format!("{host} is answered {status} when {when}"), async || {
        let answer = ask(port, host, "/").await?;
        anyhow::ensure!(answer.status == status, "{}: {}", answer.status, answer.text());
        Ok(answer)
    })
    .await
}

fn entry(listeners: &Value) -> Value {
    json!({"Kind": "ingress-gateway", "Name": "ingress", "Listeners": listeners})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_let_in_reaches_its_service_and_nothing_else() {
    by_host(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_lets_in_the_same() {
    by_host(true).await;
}

async fn by_host(envoy: bool) {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for service in ["api", "web"] {
        mesh.protocol(service, "http").await;
    }
    let (_api, _web) = tokio::join!(
        Workload::new("api").start_on(&mesh, Plane::Own),
        Workload::new("web").start_on(&mesh, Plane::Own)
    );
    let (port, other, redirecting) = (free_port(), free_port(), free_port());
    let web =
        json!({"Name": "web", "Hosts": ["*.example.com", "127.0.0.1"], "ResponseHeaders": {"Set": {"x-edge": "yes"}}});
    let listeners = json!([
        {"Port": port, "Protocol": "http", "Services": [{"Name": "api"}, web]},
        {"Port": redirecting, "HTTPSRedirect": {"Port": 8443}},
    ]);
    mesh.config(&entry(&listeners)).await;
    let mut gateway = Gateway::start(&mesh, envoy, &[port, redirecting]).await;

    let api = answered(port, "api.ingress.dc1.consul", 200, "all is well").await.json();
    assert_eq!(api["name"], "api");
    let certificate = api["request"]["headers"]["x-forwarded-client-cert"].to_string();
    assert!(certificate.contains("/svc/ingress"), "{api:#}");
    let web = answered(port, "www.Example.com:80", 200, "all is well").await;
    assert_eq!((&web.json()["name"], web.header("x-edge")), (&json!("web"), Some("yes")));
    answered(port, "elsewhere", 404, "nobody has that host").await;
    let redirected = answered(redirecting, "api.ingress.consul", 301, "it comes in plaintext").await;
    assert_eq!(redirected.header("location"), Some("https://api.ingress.consul:8443/"));

    // Intentions speak of the gateway by its name; another service is not touched.
    let denied = mesh.intention("ingress", "api", "deny").await.index();
    mesh.settled(denied).await;
    assert_eq!(ask(port, "api.ingress.consul", "/").await.expect("an answer").status, 403);
    assert_eq!(ask(port, "www.example.com", "/").await.expect("an answer").status, 200);
    assert!(!mesh.can("ingress", "api", &[]).await);
    mesh.settled(mesh.delete_intention("ingress", "api").await.index()).await;

    // A change is in force when its receipt says so, and requests under way do not notice.
    let traffic = Traffic::start(&format!("127.0.0.1:{port}"), "/");
    let all = json!([{"Name": "api", "Hosts": ["*"]}]);
    let more = json!([
        {"Port": port, "Protocol": "http", "Services": all},
        {"Port": other, "Protocol": "http", "Services": all},
    ]);
    let changed = mesh.config(&entry(&more)).await.success().index();
    mesh.settled(changed).await;
    assert_eq!(ask(other, "elsewhere", "/").await.expect("an answer").status, 200);
    eventually("nobody listens there any more", async || {
        anyhow::ensure!(ask(redirecting, "elsewhere", "/").await.is_err(), "somebody does");
        Ok(())
    })
    .await;
    assert!(traffic.stop_without_failure().await > 0);
    gateway.expect_running();
}

/// A certificate for a host, in files of the mesh's folder.
fn certificate(mesh: &Mesh, host: &str, roots: &mut RootCertStore) -> Value {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec![host.to_owned()]).expect("a host");
    let certificate = params.self_signed(&key).expect("a certificate");
    roots.add(certificate.der().clone()).expect("a root");
    let path = |ending: &str| mesh.data_dir().join(format!("{host}.{ending}"));
    std::fs::write(path("crt"), certificate.pem()).expect("a file");
    std::fs::write(path("key"), key.serialize_pem()).expect("a file");
    json!({"CertFile": path("crt"), "KeyFile": path("key")})
}

/// Asks for a host over TLS, believing the roots alone.
async fn ask_tls(port: u16, asked: &str, host: &str, roots: &RootCertStore) -> anyhow::Result<Answer> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots.clone()).with_no_client_auth();
    let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from(asked.to_owned())?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    Connection::over(host, stream).await?.get("/").await
}

/// An application that answers with the head that it was sent, and its sidecar.
async fn echo(mesh: &Mesh) -> OwnProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (port, public) = (listener.local_addr().expect("an address").port(), free_port());
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = vec![0; 16 * 1024];
                while let Ok(count @ 1..) = tcp.read(&mut head).await {
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {count}\r\n\r\n").into_bytes();
                    if tcp.write_all(&[&answer, &head[..count]].concat()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let sidecar = json!({"Port": public});
    let registration = json!({"Name": "echo", "Port": port, "Connect": {"SidecarService": sidecar}});
    mesh.register(&registration).await;
    OwnProxy::start(mesh, "echo", &[public]).await
}

/// The values of a field in the head that the application was sent, as one.
fn seen(answer: &str, name: &str) -> String {
    let fields = answer.lines().filter_map(|line| line.split_once(": "));
    let values = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    values.collect::<Vec<_>>().join(",").replace(", ", ",")
}

/// Sends bytes as they are, and reads what comes back until the other end closes.
async fn raw(port: u16, bytes: &str) -> String {
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    tcp.write_all(bytes.as_bytes()).await.expect("to be able to send");
    let mut text = String::new();
    // Whoever is refused may be reset.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(20), tcp.read_to_string(&mut text)).await;
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_known_by_what_may_be_believed() {
    from_outside(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_believes_the_same() {
    from_outside(true).await;
}

async fn from_outside(envoy: bool) {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("echo", "http").await;
    let _echo = echo(&mesh).await;
    let mut roots = RootCertStore::empty();
    let certificates =
        [certificate(&mesh, "a.example.com", &mut roots), certificate(&mesh, "b.example.com", &mut roots)];
    let (plain, proxied, encrypted) = (free_port(), free_port(), free_port());
    let services = json!([{"Name": "echo", "Hosts": ["*"]}]);
    let mut entry = entry(&json!([
        {"Port": plain, "Protocol": "http", "Services": services},
        {"Port": proxied, "Protocol": "http", "ProxyProtocol": true, "Services": services},
        {"Port": encrypted, "Protocol": "http", "TLS": {"Certificates": certificates}, "Services": services},
    ]));
    entry["TrustedProxies"] = json!(["192.0.2.0/24"]);
    mesh.config(&entry).await;
    let mut gateway = Gateway::start(&mesh, envoy, &[plain, proxied, encrypted]).await;

    let claims = "x-forwarded-for: 203.0.113.9\r\nx-forwarded-proto: https\r\nx-forwarded-host: evil\r\n\
        forwarded: for=1.1.1.1\r\nx-real-ip: 203.0.113.9\r\nx-starling-source: admin\r\nx-envoy-retry-on: 5xx\r\n\
        x-forwarded-client-cert: URI=spiffe://x/svc/admin\r\nx_forwarded_for: 203.0.113.9\r\nX_Real-IP: 1.1.1.1\r\n";
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{claims}\r\n");
    answered(plain, "a", 200, "all is well").await;
    let stranger = raw(plain, &request).await;
    // Of callers on its own machine Envoy says the machine's address.
    let from = seen(&stranger, "x-forwarded-for");
    assert!(from == "127.0.0.1" || (envoy && from.parse::<std::net::IpAddr>().is_ok()), "{stranger}");
    assert_ne!(from, "203.0.113.9", "{stranger}");
    assert_eq!(seen(&stranger, "x-forwarded-proto"), "http", "{stranger}");
    for field in [
        "x-forwarded-host",
        "forwarded",
        "x-real-ip",
        "x_forwarded_for",
        "x_real-ip",
        "x-starling-source",
        "x-envoy-retry-on",
    ] {
        assert_eq!(seen(&stranger, field), "", "{field} of a stranger: {stranger}");
    }
    assert!(seen(&stranger, "x-forwarded-client-cert").ends_with("/svc/ingress"), "{stranger}");

    let unknown = raw(proxied, &format!("PROXY TCP4 198.51.100.7 127.0.0.1 5000 80\r\n{request}")).await;
    assert_eq!(seen(&unknown, "x-forwarded-for"), "198.51.100.7", "{unknown}");
    let trusted = raw(proxied, &format!("PROXY TCP4 192.0.2.1 127.0.0.1 5000 80\r\n{request}")).await;
    assert_eq!(seen(&trusted, "x-forwarded-for"), "203.0.113.9,192.0.2.1", "{trusted}");
    assert_eq!(seen(&trusted, "x-forwarded-proto"), "https", "{trusted}");
    assert_eq!(seen(&trusted, "x-forwarded-host"), "evil", "a trusted proxy may say so: {trusted}");
    assert_eq!(seen(&trusted, "x-starling-source"), "", "{trusted}");
    assert!(seen(&trusted, "x-forwarded-client-cert").ends_with("/svc/ingress"), "{trusted}");
    assert_eq!(raw(proxied, &request).await, "", "without a header");

    for host in ["a.example.com", "b.example.com"] {
        let answer = ask_tls(encrypted, host, host, &roots).await.expect("an answer over TLS");
        assert_eq!(seen(&answer.text(), "x-forwarded-proto"), "https", "{}", answer.text());
    }
    gateway.expect_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mesh_s_own_certificate_is_for_the_hosts_that_are_let_in() {
    of_the_mesh(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_shows_the_mesh_s_certificate_for_the_hosts_that_are_let_in() {
    of_the_mesh(true).await;
}

async fn of_the_mesh(envoy: bool) {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("echo", "http").await;
    let _echo = echo(&mesh).await;
    let port = free_port();
    let with_hosts = |hosts: &[&str]| {
        let services = json!([{"Name": "echo", "Hosts": hosts}]);
        let mut entry = entry(&json!([{"Port": port, "Protocol": "http", "Services": services}]));
        entry["TLS"] = json!({"Enabled": true});
        entry
    };
    mesh.config(&with_hosts(&["a.example.com"])).await;
    let mut gateway = Gateway::start(&mesh, envoy, &[port]).await;
    let authorities = mesh.get("/v1/connect/ca/roots").await.success().json();
    let pem = authorities["Roots"][0]["RootCert"].as_str().expect("a root").to_owned();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("a root");
    let shown = async |host: &str| {
        eventually(&format!("{host} is in the certificate"), async || {
            let answer = ask_tls(port, host, host, &roots).await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.status);
            Ok(())
        })
        .await;
    };
    shown("a.example.com").await;
    assert!(ask_tls(port, "b.example.com", "b.example.com", &roots).await.is_err(), "it is not for that host");
    mesh.config(&with_hosts(&["b.example.com", "*.wild.example"])).await;
    shown("b.example.com").await;
    shown("x.wild.example").await;
    gateway.expect_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_an_entry_says_so_and_serves_when_there_is_one() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("echo", "http").await;
    let _echo = echo(&mesh).await;
    let mut gateway = OwnProxy::gateway(&mesh, "ingress", &[]).await;
    eventually("it says that there is no entry", async || {
        let log = gateway.process.log();
        let said = log.matches("no ingress-gateway entry ingress with a listener yet").count();
        anyhow::ensure!(said == 1 && log.contains("starling config write"), "{log}");
        Ok(())
    })
    .await;
    let port = free_port();
    mesh.config(&entry(&json!([{"Port": port, "Protocol": "http", "Services": [{"Name": "echo", "Hosts": ["*"]}]}])))
        .await;
    answered(port, "a", 200, "there is an entry").await;
    let log = gateway.process.log();
    assert_eq!(log.matches("no ingress-gateway entry").count(), 1, "{log}");
    gateway.process.expect_running().expect("it runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_that_does_not_fit_is_a_refusal_until_it_does() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("echo", "http").await;
    let _echo = echo(&mesh).await;
    let (mut roots, port, host) = (RootCertStore::empty(), free_port(), "a.example.com");
    let files = certificate(&mesh, host, &mut roots);
    let services = json!([{"Name": "echo", "Hosts": ["*"]}]);
    let tls = json!({"Certificates": [files]});
    let entry = entry(&json!([{"Port": port, "Protocol": "http", "TLS": tls, "Services": services}]));
    let written = mesh.config(&entry).await.success().index();
    let mut gateway = OwnProxy::gateway(&mesh, "ingress", &[port]).await;
    mesh.settled(written).await;
    assert_eq!(ask_tls(port, host, host, &roots).await.expect("an answer").status, 200);
    let refusals = format!("starling_proxy_certificate_files_refused{{listener=\"127.0.0.1:{port}\"}}");
    let stats = gateway.get("/stats").await.text();
    assert!(stats.contains(&format!("{refusals} 0")), "{stats}");
    // A key that is none of the certificate's.
    let stranger = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    std::fs::write(files["KeyFile"].as_str().expect("a path"), stranger).expect("a file");
    eventually("the refusal is seen everywhere", async || {
        let stats = gateway.get("/stats").await.text();
        anyhow::ensure!(stats.contains(&format!("{refusals} 1")), "{stats}");
        let page = gateway.get("/certificates").await.json();
        let reason = page["ingress"]["files_refused"][format!("127.0.0.1:{port}")].to_string();
        anyhow::ensure!(reason.contains("a.example.com.crt"), "{page:#}");
        let status = mesh.cli(&["status"]).await.success().stdout;
        anyhow::ensure!(
            status.contains("ingress refused revision") && status.contains("a.example.com.crt"),
            "{status}"
        );
        Ok(())
    })
    .await;
    assert_eq!(ask_tls(port, host, host, &roots).await.expect("an answer").status, 200, "the former is shown on");
    let mut narrower = entry.clone();
    narrower["Listeners"][0]["Services"][0]["Hosts"] = json!([host]);
    let change = mesh.config(&narrower).await.success().index();
    let receipt = mesh.receipt(change, "10s").await;
    assert!(receipt["rejected"].to_string().contains("renewed certificates do not fit"), "{receipt:#}");
    let mut renewed = RootCertStore::empty();
    let _ = certificate(&mesh, host, &mut renewed);
    eventually("the next one is shown, and refused by nobody", async || {
        anyhow::ensure!(ask_tls(port, host, host, &renewed).await?.status == 200, "another answer");
        let status = mesh.cli(&["status"]).await.success().stdout;
        anyhow::ensure!(!status.contains("refused revision"), "{status}");
        let stats = gateway.get("/stats").await.text();
        anyhow::ensure!(stats.contains(&format!("{refusals} 0")), "{stats}");
        Ok(())
    })
    .await;
    gateway.process.expect_running().expect("it runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_taken_over_without_a_refused_connection() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("echo", "http").await;
    let _echo = echo(&mesh).await;
    let port = free_port();
    mesh.config(&entry(&json!([{"Port": port, "Protocol": "http", "Services": [{"Name": "echo", "Hosts": ["*"]}]}])))
        .await;
    let mut gateway = OwnProxy::gateway(&mesh, "ingress", &[port]).await;
    answered(port, "a", 200, "all is well").await;
    let traffic = Traffic::start(&format!("127.0.0.1:{port}"), "/");
    traffic.requests(20).await;
    let status = gateway.gateway_taken_over(&mesh, "ingress").await;
    assert!(status.success(), "{status}");
    traffic.requests(20).await;
    assert!(traffic.stop_without_failure().await > 40);
    let mut connection = Connection::open(&format!("127.0.0.1:{port}")).await.expect("a connection to the next one");
    assert_eq!(connection.get("/").await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_on_a_node_of_its_own_hears_what_is_written_at_the_server() {
    let server = Mesh::start(MeshOptions { program: Program::Server(String::new()), ..MeshOptions::default() }).await;
    let (inside, outside) = (crate::apart::agent(&server, "n1").await, crate::apart::agent(&server, "n2").await);
    server.protocol("echo", "http").await;
    let _echo = echo(&inside).await;
    let port = free_port();
    let with_hosts = |hosts: &[&str]| {
        let services = json!([{"Name": "echo", "Hosts": hosts}]);
        let mut entry = entry(&json!([{"Port": port, "Protocol": "http", "Services": services}]));
        entry["TLS"] = json!({"Enabled": true});
        entry
    };
    server.config(&with_hosts(&["a.example.com"])).await;
    let mut gateway = Gateway::start(&outside, false, &[port]).await;
    let mut roots = RootCertStore::empty();
    let pem = server.get("/v1/connect/ca/roots?pem=true").await.success().text();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("a root");
    for hosts in [&["a.example.com"][..], &["b.example.com"]] {
        let changed = server.config(&with_hosts(hosts)).await.success().index();
        server.settled(changed).await;
        eventually(&format!("{hosts:?} are let in"), async || {
            let answer = ask_tls(port, hosts[0], hosts[0], &roots).await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.status);
            Ok(())
        })
        .await;
    }
    let denied = server.intention("ingress", "echo", "deny").await.index();
    server.settled(denied).await;
    assert_eq!(ask_tls(port, "b.example.com", "b.example.com", &roots).await.expect("an answer").status, 403);
    gateway.expect_running();
}
