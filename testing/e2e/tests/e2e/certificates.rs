//! Certificates: valid chains that name one service, and a root key that nobody is shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::version::TLS13;
use serde_json::Value;
use starling_e2e::tls::{self, Credentials};
use starling_e2e::{Connection, Mesh, MeshOptions, Sidecar, Traffic, Workload, eventually, http};

/// The addresses that the API answers a GET at with an end, and some that it might be tricked into. What `/v1/agent/monitor` goes on to
/// tell is in the log.
const GETS: [&str; 48] = [
    "/v1/agent/self",
    "/v1/agent/members",
    "/v1/agent/services",
    "/v1/agent/service/web",
    "/v1/agent/health/service/name/web",
    "/v1/agent/health/service/id/web",
    "/v1/agent/checks",
    "/v1/agent/connect/ca/roots",
    "/v1/agent/connect/ca/leaf/web",
    "/v1/agent/connect/ca/leaf/root",
    "/v1/agent/connect/ca/leaf/..%2froot",
    "/v1/agent/metrics",
    "/v1/agent/metrics?format=prometheus",
    "/v1/agent/host",
    "/v1/acl/tokens",
    "/v1/coordinate/nodes",
    "/v1/discovery-chain/web",
    "/v1/event/list",
    "/v1/operator/usage",
    "/v1/operator/raft/configuration",
    "/v1/query",
    "/v1/catalog/datacenters",
    "/v1/catalog/nodes",
    "/v1/catalog/services",
    "/v1/catalog/service/web",
    "/v1/catalog/connect/web",
    "/v1/health/service/web",
    "/v1/health/connect/web",
    "/v1/health/checks/web",
    "/v1/health/state/any",
    "/v1/status/leader",
    "/v1/status/peers",
    "/v1/connect/ca/roots",
    "/v1/connect/ca/roots?pem=true",
    "/v1/connect/ca/configuration",
    "/v1/connect/intentions",
    "/v1/connect/intentions/match?by=source&name=web",
    "/v1/config/proxy-defaults",
    "/v1/config/service-defaults",
    "/v1/config/service-intentions",
    "/v1/kv/?recurse",
    "/v1/snapshot",
    "/starling/v1/changes",
    "/starling/v1/proxies",
    "/starling/v1/diagnostics",
    "/starling/v1/can?source=web&destination=web",
    "/metrics",
    "/../../ca/root.key",
];

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() { found.extend(files(&entry)) } else { found.push(entry) }
    }
    found
}

/// The lines of base64 between the marks of PEM.
fn pem_lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.len() >= 40 && !line.starts_with('-')).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_chain_to_the_root_and_name_one_service() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let web = Workload::new("web").start(&mesh).await;
    let roots = mesh.get("/v1/connect/ca/roots").await.success().json();
    let root = roots["Roots"][0]["RootCert"].as_str().expect("a root");
    let leaf = mesh.get("/v1/agent/connect/ca/leaf/web").await.success().json();
    let credentials = Credentials::of_leaf(&leaf);
    tls::verify_chain(&credentials.chain(), root).expect("the API's leaf chains to the root");
    let foreign = Credentials::of_a_foreign_ca("spiffe://x/y");
    tls::verify_chain(&foreign.chain(), root).expect_err("a foreign leaf does not");

    let stream = tls::connect(&web.public(), Some(&credentials), &TLS13).await.expect("a handshake");
    let presented: Vec<_> = stream.get_ref().1.peer_certificates().expect("a certificate").to_vec();
    tls::verify_chain(&presented, root).expect("the sidecar's leaf chains to the root");

    let certificates = web.sidecar.get("/certs").await.json();
    let names = &certificates["certificates"][0]["cert_chain"][0]["subject_alt_names"];
    let trust_domain = roots["TrustDomain"].as_str().expect("a trust domain");
    let uri = format!("spiffe://{trust_domain}/ns/default/dc/dc1/svc/web");
    assert_eq!(*names, serde_json::json!([{"uri": uri}]), "exactly one name");
    assert_eq!(leaf["ServiceURI"], uri.as_str());

    let none = mesh.get("/v1/agent/connect/ca/leaf/nobody").await;
    assert!(none.status == 404 && none.text().contains("nobody"), "{}: {}", none.status, none.text());
}

/// The serial number of the certificate that a sidecar presents.
async fn serial(sidecar: &Sidecar) -> String {
    let certificates = sidecar.get("/certs").await.json();
    let serial = certificates["certificates"][0]["cert_chain"][0]["serial_number"].as_str();
    serial.unwrap_or_else(|| panic!("no certificate: {certificates}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_leaf_disturbs_no_connection() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
    eventually("api answers", async || {
        let answer = http::get(&web.upstream("api"), "/").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    })
    .await;
    let credentials = Credentials::of_leaf(&mesh.get("/v1/agent/connect/ca/leaf/web").await.success().json());
    let stream = tls::connect(&api.public(), Some(&credentials), &TLS13).await.expect("a handshake");
    let mut old_connection = Connection::over(&api.public(), stream).await.expect("HTTP over it");
    assert_eq!(old_connection.get("/").await.unwrap().status, 200);

    let traffic = Traffic::start(&web.upstream("api"), "/");
    for rotation in 1..=3 {
        let before = [serial(&web.sidecar).await, serial(&api.sidecar).await];
        let _ = mesh.put("/starling/v1/agent/leaves/rotate", &Value::Null).await.success();
        for (instance, before) in [&web, &api].into_iter().zip(before) {
            eventually(&format!("{} presents a new leaf, rotation {rotation}", instance.id), async || {
                anyhow::ensure!(serial(&instance.sidecar).await != before, "still {before}");
                Ok(())
            })
            .await;
        }
        traffic.requests(50).await;
    }
    assert_eq!(old_connection.get("/").await.expect("the old connection is open").status, 200);
    traffic.stop_without_failure().await;
    // Whoever comes with the old leaf is let in as long as it is valid.
    let stream = tls::connect(&api.public(), Some(&credentials), &TLS13).await.expect("a handshake");
    assert_eq!(Connection::over(&api.public(), stream).await.unwrap().get("/").await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_key_is_shown_to_nobody() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let web = Workload::new("web").start(&mesh).await;
    mesh.protocol("web", "http").await;
    let mut secrets = Vec::new();
    for file in files(mesh.data_dir()) {
        let text = String::from_utf8_lossy(&fs::read(&file).expect("a readable file")).into_owned();
        if text.contains("PRIVATE KEY") {
            let mode = fs::metadata(&file).expect("metadata").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{} is readable by others: {mode:o}", file.display());
            if file.parent().is_some_and(|folder| folder.ends_with("ca")) {
                secrets.extend(pem_lines(&text));
            }
        }
    }
    assert!(!secrets.is_empty(), "no root key in {}: what does this test look for?", mesh.data_dir().display());
    let shows = |text: &str| secrets.iter().any(|line| text.contains(line.as_str()));

    for target in GETS {
        let answer = mesh.get(target).await;
        assert!(!shows(&answer.text()), "{target} shows the root key");
        assert!(answer.status < 500, "{target}: {}: {}", answer.status, answer.text());
        let leaf = target == "/v1/agent/connect/ca/leaf/web" && answer.status == 200;
        assert_eq!(answer.text().contains("PRIVATE KEY"), leaf, "{target} shows a private key");
    }
    let dump: Value = web.sidecar.config_dump().await;
    let dump = dump.to_string();
    assert!(!shows(&dump) && !dump.contains("PRIVATE KEY"), "Envoy's configuration dump shows a private key");
    let logs = [mesh.server().log(), web.sidecar.process.log()].concat();
    assert!(!shows(&logs) && !logs.contains("PRIVATE KEY"), "a log shows a private key");
}
