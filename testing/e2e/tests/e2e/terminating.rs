//! Terminating gateways: callers in the mesh, to services that have nobody there.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use starling_e2e::tls::{Credentials, connect_to, verify_chain};
use starling_e2e::{App, Instance, Mesh, MeshOptions, OwnProxy, Plane, Served, Sidecar, Traffic, Workload, eventually};
use starling_e2e::{Program, Seal, free_port, http, new_seal_key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::apart::agent;

/// Who does what the gateway's plan says.
enum Gateway {
    Native(OwnProxy),
    Envoy(Sidecar),
}

impl Gateway {
    async fn start(mesh: &Mesh, plane: Plane, port: u16) -> Self {
        match plane {
            Plane::Envoy => Self::Envoy(Sidecar::terminating(mesh, "egress", port).await),
            Plane::Native | Plane::Own => Self::Native(OwnProxy::terminating(mesh, "egress", port).await),
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

/// Writes which services the gateway stands for.
async fn link(mesh: &Mesh, services: &Value) -> u64 {
    let entry = json!({"Kind": "terminating-gateway", "Name": "egress", "Services": services});
    mesh.config(&entry).await.index()
}

/// Starts an application outside the mesh and registers it without a sidecar.
async fn outside(mesh: &Mesh, service: &str, id: &str, address: &str) -> App {
    let app = App::start(id, free_port(), &[]).await;
    register(mesh, service, id, (address, app.port)).await;
    app
}

async fn register(mesh: &Mesh, service: &str, id: &str, (address, port): (&str, u16)) -> u64 {
    mesh.register(&json!({"ID": id, "Name": service, "Address": address, "Port": port})).await.index()
}

/// Waits until a call of `upstream` is answered with a status; the answer.
async fn answered(web: &Instance<Served>, upstream: &str, status: u16, when: &str) -> http::Answer {
    eventually(&format!("{upstream} answers {status} when {when}"), async || {
        let answer = http::get(&web.upstream(upstream), "/").await?;
        anyhow::ensure!(answer.status == status, "{}: {}", answer.status, answer.text());
        Ok(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_stands_for_services_outside_and_keeps_them_apart() {
    stands_for(Plane::Envoy, Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_stands_for_services_outside_and_keeps_them_apart() {
    stands_for(Plane::Own, Plane::Own).await;
}

async fn stands_for(caller: Plane, plane: Plane) {
    let mesh = Mesh::start(MeshOptions { native: caller != Plane::Envoy, ..MeshOptions::default() }).await;
    mesh.protocol("legacy", "http").await;
    let _legacy = outside(&mesh, "legacy", "legacy", "127.0.0.1").await;
    let _billing = outside(&mesh, "billing", "billing", "127.0.0.1").await;
    let port = free_port();
    link(&mesh, &json!([{"Name": "legacy"}, {"Name": "billing"}])).await;
    let web = Workload::new("web").calls("legacy").calls("billing").start_on(&mesh, caller).await;
    let mut gateway = Gateway::start(&mesh, plane, port).await;

    let legacy = answered(&web, "legacy", 200, "all is well").await.json();
    assert_eq!(legacy["name"], "legacy");
    let certificate = legacy["request"]["headers"]["x-forwarded-client-cert"].to_string();
    assert!(certificate.contains("/svc/web"), "{legacy:#}");
    assert_eq!(answered(&web, "billing", 200, "all is well").await.json()["name"], "billing");
    each_shows_its_own_certificate(&mesh, port).await;

    let reached = mesh.get("/v1/health/connect/legacy?passing").await.success().json();
    let shown = (&reached[0]["Service"]["Kind"], &reached[0]["Service"]["ID"], &reached[0]["Service"]["Port"]);
    assert_eq!(shown, (&json!("terminating-gateway"), &json!("egress"), &json!(port)), "{reached:#}");
    assert_eq!(reached.as_array().map(Vec::len), Some(1));

    // Intentions are those of the services, by the caller's own name.
    let traffic = Traffic::start(&web.upstream("billing"), "/");
    mesh.settled(mesh.intention("web", "legacy", "deny").await.index()).await;
    assert_eq!(http::get(&web.upstream("legacy"), "/").await.expect("an answer").status, 403);
    mesh.settled(mesh.delete_intention("web", "legacy").await.index()).await;
    let only_admin =
        json!([{"Action": "deny", "HTTP": {"PathPrefix": "/admin"}}, {"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    mesh.settled(mesh.permissions("web", "legacy", &only_admin).await.index()).await;
    assert_eq!(http::get(&web.upstream("legacy"), "/admin/x").await.expect("an answer").status, 403);
    assert_eq!(http::get(&web.upstream("legacy"), "/").await.expect("an answer").status, 200);
    assert!(traffic.stop_without_failure().await > 0);
    mesh.settled(mesh.intention("web", "billing", "deny").await.index()).await;
    eventually("no connection reaches billing", async || {
        anyhow::ensure!(http::get(&web.upstream("billing"), "/").await.is_err(), "one does");
        Ok(())
    })
    .await;
    mesh.settled(mesh.delete_intention("web", "billing").await.index()).await;
    answered(&web, "billing", 200, "it is allowed again").await;

    // Instances come and go without a request lost.
    let traffic = Traffic::start(&web.upstream("legacy"), "/");
    let _second = outside(&mesh, "legacy", "legacy-2", "127.0.0.1").await;
    web.served_by("legacy", &["legacy", "legacy-2"], "a second instance is registered").await;
    let gone = mesh.put("/v1/agent/service/deregister/legacy", &Value::Null).await.success().index();
    mesh.settled(gone).await;
    web.served_by("legacy", &["legacy-2"], "the first is deregistered").await;

    // Who is let go is not reached any more, and the other does not notice.
    mesh.settled(link(&mesh, &json!([{"Name": "legacy"}])).await).await;
    eventually("nobody stands for billing", async || {
        anyhow::ensure!(http::get(&web.upstream("billing"), "/").await.is_err(), "somebody does");
        Ok(())
    })
    .await;
    assert!(traffic.stop_without_failure().await > 0);
    gateway.expect_running();
}

/// The name that is asked for in the handshake decides whose certificate is shown, and a name that nobody has is refused.
async fn each_shows_its_own_certificate(mesh: &Mesh, port: u16) {
    let web = Credentials::of_leaf(&mesh.get("/v1/agent/connect/ca/leaf/web").await.success().json());
    let trust_domain = mesh.get("/v1/connect/ca/roots").await.success().json()["TrustDomain"].clone();
    let trust_domain = trust_domain.as_str().expect("a trust domain");
    for service in ["legacy", "billing"] {
        let name = format!("{service}.default.dc1.internal.{trust_domain}");
        let stream = connect_to(&name, &format!("127.0.0.1:{port}"), Some(&web), &TLS13).await.expect("a handshake");
        let chain = stream.get_ref().1.peer_certificates().expect("a certificate").to_vec();
        let leaf = chain[0].windows(64).map(String::from_utf8_lossy);
        let wanted = format!("/svc/{service}");
        assert!(leaf.into_iter().any(|text| text.contains(&wanted)), "{service} is shown as another");
    }
    let unknown = format!("other.default.dc1.internal.{trust_domain}");
    assert!(connect_to(&unknown, &format!("127.0.0.1:{port}"), Some(&web), &TLS13).await.is_err(), "nobody has it");
}

/// A certificate of an authority for tests, in files of the mesh's folder; the server that shows it.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        // One that is called as those whom it vouches for would be taken for one of them.
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority for tests");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: rcgen::Issuer::new(params, key), pem }
    }

    /// A certificate for a name, and its key, in PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.issuer).expect("a certificate").pem(), key.serialize_pem())
    }
}

fn written(mesh: &Mesh, name: &str, text: &str) -> String {
    let path = mesh.data_dir().join(name);
    std::fs::write(path.with_extension("new"), text).expect("a file");
    std::fs::rename(path.with_extension("new"), &path).expect("its name");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Starts a server outside that speaks TLS as `name`, wants a certificate of the authority, and answers each request with its
/// head; its port.
async fn tls_server(authority: &Authority, name: &str) -> u16 {
    let (chain, key) = authority.issue(name);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("PEM")).expect("a root");
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(clients.expect("a verifier"))
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(chain.as_bytes()).expect("PEM")],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM"),
        )
        .expect("a key that fits");
    let (listener, acceptor) =
        (TcpListener::bind("127.0.0.1:0").await.expect("a port"), TlsAcceptor::from(Arc::new(config)));
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                let asked = tls.get_ref().1.server_name().unwrap_or_default().to_owned();
                let mut head = vec![0; 16 * 1024];
                while let Ok(count @ 1..) = tls.read(&mut head).await {
                    let body = [format!("asked: {asked}\r\n").as_bytes(), &head[..count]].concat();
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
                    if tls.write_all(&[answer, body].concat()).await.is_err() || tls.flush().await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_speaks_tls_to_whom_its_files_vouch_for() {
    speaks_tls(Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_speaks_tls_to_whom_its_files_vouch_for() {
    speaks_tls(Plane::Own).await;
}

async fn speaks_tls(plane: Plane) {
    let mesh = Mesh::start(MeshOptions { native: plane != Plane::Envoy, ..MeshOptions::default() }).await;
    for service in ["pay", "odd", "nameless", "lost"] {
        mesh.protocol(service, "http").await;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let port = tls_server(&authority, "pay.example.com").await;
    for service in ["pay", "odd", "nameless", "lost"] {
        // By name: it is the gateway that looks it up, and the host that requests are told to be for.
        register(&mesh, service, service, ("localhost", port)).await;
    }
    let authorities = written(&mesh, "authorities.pem", &authority.pem);
    let (chain, key) = authority.issue("gateway.example.com");
    let (chain, key) = (written(&mesh, "gateway.crt", &chain), written(&mesh, "gateway.key", &key));
    let by = |service: &str, name: &str| json!({"Name": service, "CAFile": authorities, "CertFile": chain, "KeyFile": key, "SNI": name});
    let mut odd = by("odd", "pay.example.com");
    odd["CAFile"] = written(&mesh, "stranger.pem", &stranger.pem).into();
    let mut nameless = by("nameless", "");
    nameless["DisableAutoHostRewrite"] = true.into();
    let mut lost = by("lost", "pay.example.com");
    lost["CertFile"] = mesh.data_dir().join("lost.crt").to_str().into();
    link(&mesh, &json!([by("pay", "pay.example.com"), odd, nameless, lost])).await;
    let web =
        Workload::new("web").calls("pay").calls("odd").calls("nameless").calls("lost").start_on(&mesh, plane).await;
    let mut gateway = Gateway::start(&mesh, plane, free_port()).await;

    let head = answered(&web, "pay", 200, "the files fit").await.text().to_ascii_lowercase();
    assert!(head.contains("asked: pay.example.com\r\n"), "{head}");
    assert!(head.contains("\r\nhost: localhost\r\n"), "the host by which it is registered: {head}");
    let head = answered(&web, "nameless", 200, "no name is looked for").await.text().to_ascii_lowercase();
    assert!(head.contains("asked: \r\n"), "{head}");
    assert!(head.contains("\r\nhost: 127.0.0.1:"), "the host that the caller has asked for: {head}");
    answered(&web, "odd", 503, "another authority has to vouch").await;
    answered(&web, "lost", 503, "a file is not there, which concerns nobody else").await;

    // Another name than the one in the certificate.
    mesh.settled(link(&mesh, &json!([by("pay", "other.example.com")])).await).await;
    answered(&web, "pay", 503, "the certificate has another name").await;
    mesh.settled(link(&mesh, &json!([by("pay", "pay.example.com")])).await).await;
    answered(&web, "pay", 200, "the name is right again").await;

    // A file that is not there is a refusal with its path.
    let mut missing = by("pay", "pay.example.com");
    missing["CAFile"] = mesh.data_dir().join("nowhere.pem").to_str().into();
    let refused = link(&mesh, &json!([missing])).await;
    eventually("the refusal names the file", async || {
        let receipt = mesh.receipt(refused, "1s").await;
        anyhow::ensure!(receipt["rejected"].to_string().contains("nowhere.pem"), "{receipt:#}");
        Ok(())
    })
    .await;
    mesh.settled(link(&mesh, &json!([by("pay", "pay.example.com")])).await).await;
    answered(&web, "pay", 200, "the file is another").await;
    gateway.expect_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_stands_for_all_that_are_outside() {
    stands_for_all(Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_stands_for_all_that_are_outside() {
    stands_for_all(Plane::Own).await;
}

async fn stands_for_all(plane: Plane) {
    let mesh = Mesh::start(MeshOptions { native: plane != Plane::Envoy, ..MeshOptions::default() }).await;
    for service in ["legacy", "late"] {
        mesh.protocol(service, "http").await;
    }
    link(&mesh, &json!([{"Name": "*"}])).await;
    let port = free_port();
    let register_tagged = async |id: &str, app: &App| {
        let tagged = json!({"ID": id, "Name": "legacy", "Address": "127.0.0.1", "Port": app.port, "Tags": [id]});
        mesh.register(&tagged).await;
    };
    let (blue, green) = (App::start("blue", free_port(), &[]).await, App::start("green", free_port(), &[]).await);
    register_tagged("blue", &blue).await;
    register_tagged("green", &green).await;
    let web = Workload::new("web").calls("legacy").calls("late").start_on(&mesh, plane).await;
    let mut gateway = Gateway::start(&mesh, plane, port).await;
    // Whoever may register a service could have the gateway call what is meant for its own machine.
    answered(&web, "legacy", 503, "it is at an address of the gateway's own machine").await;
    let diagnostics = mesh.get("/starling/v1/diagnostics").await.success().text();
    assert!(diagnostics.contains("AllowLocalAddresses"), "{diagnostics}");
    link(&mesh, &json!([{"Name": "*", "AllowLocalAddresses": true}])).await;
    web.served_by("legacy", &["blue", "green"], "all is well").await;
    let rows = mesh.get("/v1/catalog/gateway-services/egress").await.success().json();
    let names: Vec<_> = rows.as_array().into_iter().flatten().map(|row| &row["Service"]["Name"]).collect();
    assert_eq!(names, [&json!("legacy")], "web has a sidecar: {rows:#}");

    // One that comes later is found, and one that gets a sidecar is called there.
    let _late = outside(&mesh, "late", "late", "127.0.0.1").await;
    answered(&web, "late", 200, "it is registered").await;
    let reached = mesh.get("/v1/health/connect/late").await.success().json();
    assert_eq!(reached[0]["Service"]["Kind"], "terminating-gateway", "{reached:#}");
    let _inside = Workload::new("late").id("late-in").start_on(&mesh, plane).await;
    web.served_by("late", &["late-in"], "it has a sidecar").await;

    // A subset is told apart by the gateway.
    let subsets = json!({"blue": {"Filter": "blue in Service.Tags"}, "green": {"Filter": "green in Service.Tags"}});
    let resolver = json!({"Kind": "service-resolver", "Name": "legacy", "Subsets": subsets, "DefaultSubset": "blue"});
    mesh.settled(mesh.config(&resolver).await.index()).await;
    web.served_by("legacy", &["blue"], "one subset is called").await;
    gateway.expect_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_another_node_hears_of_those_whose_nodes_run_nothing() {
    let server = Mesh::start(MeshOptions { program: Program::Server(String::new()), ..MeshOptions::default() }).await;
    let (edge, inside) = (agent(&server, "edge").await, agent(&server, "inside").await);
    server.protocol("legacy", "http").await;
    // Nobody runs an agent where these are.
    let legacy = App::start("legacy", free_port(), &[]).await;
    let service = json!({"Service": "legacy", "Address": "127.0.0.1", "Port": legacy.port});
    let node = json!({"Node": "outside", "Address": "192.0.2.1", "Service": service});
    let _ = server.put("/v1/catalog/register", &node).await.success();
    link(&server, &json!([{"Name": "legacy"}])).await;
    let web = Workload::new("web").calls("legacy").start_on(&inside, Plane::Envoy).await;
    let mut gateway = Gateway::start(&edge, Plane::Own, free_port()).await;
    assert_eq!(answered(&web, "legacy", 200, "all is well").await.json()["name"], "legacy");

    // What is denied at the server is refused at the gateway, and health elsewhere is heard of here.
    server.settled(server.intention("web", "legacy", "deny").await.index()).await;
    assert_eq!(http::get(&web.upstream("legacy"), "/").await.expect("an answer").status, 403);
    server.settled(server.delete_intention("web", "legacy").await.index()).await;
    let check = json!({"Node": "outside", "CheckID": "up", "Name": "up", "ServiceID": "legacy", "Status": "critical"});
    let node = json!({"Node": "outside", "Address": "192.0.2.1", "SkipNodeUpdate": true, "Check": check});
    server.settled(server.put("/v1/catalog/register", &node).await.success().index()).await;
    answered(&web, "legacy", 503, "its check is critical").await;
    gateway.expect_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_speaks_what_the_services_speak() {
    speaks(Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_speaks_what_the_services_speak() {
    speaks(Plane::Own).await;
}

async fn speaks(plane: Plane) {
    let mesh = Mesh::start(MeshOptions { native: plane != Plane::Envoy, ..MeshOptions::default() }).await;
    let services = [("h1", "http"), ("h2", "http2"), ("rpc", "grpc"), ("raw", "tcp")];
    let mut apps = Vec::new();
    for (service, protocol) in services {
        mesh.protocol(service, protocol).await;
        let grpc = [("SERVER_TYPE", "grpc")];
        let environment = if protocol == "grpc" { &grpc[..] } else { &[] };
        let app = App::start(service, free_port(), environment).await;
        register(&mesh, service, service, ("127.0.0.1", app.port)).await;
        apps.push(app);
    }
    link(&mesh, &json!(services.map(|(service, _)| json!({"Name": service})))).await;
    let caller = Workload::new("web").calls("h1").calls("h2").calls_grpc("rpc").calls("raw");
    let web = caller.start_on(&mesh, plane).await;
    let mut gateway = Gateway::start(&mesh, plane, free_port()).await;
    eventually("all four answer", async || {
        let answer = http::get(&web.app.authority(), "/").await?;
        anyhow::ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        let calls = answer.json()["upstream_calls"].clone();
        let names: std::collections::BTreeSet<_> =
            calls.as_object().into_iter().flatten().filter_map(|(_, call)| call["name"].as_str()).collect();
        anyhow::ensure!(names.iter().copied().eq(["h1", "h2", "raw", "rpc"]), "{calls:#}");
        Ok(())
    })
    .await;
    // A request of gRPC is one, and so denied as one.
    let denied = json!([{"Action": "deny", "HTTP": {"PathPrefix": "/"}}]);
    mesh.settled(mesh.permissions("web", "rpc", &denied).await.index()).await;
    assert_ne!(http::get(&web.app.authority(), "/").await.expect("an answer").status, 200);
    gateway.expect_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_is_taken_over_under_traffic() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("legacy", "http").await;
    let _legacy = outside(&mesh, "legacy", "legacy", "127.0.0.1").await;
    link(&mesh, &json!([{"Name": "legacy"}])).await;
    let web = Workload::new("web").calls("legacy").start_on(&mesh, Plane::Own).await;
    let mut gateway = OwnProxy::terminating(&mesh, "egress", free_port()).await;
    answered(&web, "legacy", 200, "all is well").await;
    let traffic = Traffic::start(&web.upstream("legacy"), "/");
    traffic.requests(20).await;
    assert!(gateway.terminating_taken_over(&mesh, "egress").await.success());
    traffic.requests(20).await;
    assert!(traffic.stop_without_failure().await > 0);
    gateway.process.expect_running().expect("the next gateway runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_shows_certificates_of_another_root_under_traffic() {
    follows_another_root(Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_shows_certificates_of_another_root_under_traffic() {
    follows_another_root(Plane::Own).await;
}

async fn follows_another_root(plane: Plane) {
    let folder = tempfile::tempdir().expect("a folder");
    let seal = folder.path().join("seal");
    new_seal_key(&seal);
    let program = Program::Server(String::new());
    let server = Mesh::start(MeshOptions { program, seal: Seal::File(seal), ..MeshOptions::default() }).await;
    let mesh = agent(&server, "n1").await;
    server.protocol("legacy", "http").await;
    let _legacy = outside(&mesh, "legacy", "legacy", "127.0.0.1").await;
    link(&server, &json!([{"Name": "legacy"}])).await;
    let web = Workload::new("web").calls("legacy").start_on(&mesh, plane).await;
    let port = free_port();
    let mut gateway = Gateway::start(&mesh, plane, port).await;
    answered(&web, "legacy", 200, "all is well").await;
    let traffic = Traffic::start(&web.upstream("legacy"), "/");
    let new = server.cli(&["ca", "rotate", "--renew-within", "1s"]).await.success().stdout.trim().to_owned();
    eventually("the service's certificate is of the new root", async || {
        let roots = server.get("/v1/connect/ca/roots").await.success().json();
        anyhow::ensure!(roots["ActiveRootID"] == *new, "{}", roots["ActiveRootID"]);
        let root = roots["Roots"].as_array().into_iter().flatten().find(|root| root["ID"] == *new);
        let pem = root.and_then(|root| root["RootCert"].as_str()).unwrap_or_default().to_owned();
        let name = format!("legacy.default.dc1.internal.{}", roots["TrustDomain"].as_str().unwrap_or_default());
        let own = Credentials::of_leaf(&mesh.get("/v1/agent/connect/ca/leaf/web").await.success().json());
        let stream = connect_to(&name, &format!("127.0.0.1:{port}"), Some(&own), &TLS13).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        verify_chain(&chain, &pem)
    })
    .await;
    assert!(traffic.stop_without_failure().await > 0);
    gateway.expect_running();
}
