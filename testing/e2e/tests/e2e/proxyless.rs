//! A gRPC client without a sidecar, whose own library speaks xDS: grpcio.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
use starling_e2e::tls::Credentials;
use starling_e2e::{Mesh, MeshOptions, Workload, cli, eventually, free_port, tools};
use tempfile::TempDir;

/// The name under which a client's bootstrap says where its certificates are; Istio's, which clients' set-ups have.
const CERTIFICATE_PROVIDER: &str = "default";

/// A client that shows the identity of `service` and is registered as the sidecar of its instance.
struct Client {
    folder: TempDir,
}

impl Client {
    async fn new(mesh: &Mesh, service: &str) -> Self {
        let folder = TempDir::with_prefix("starling-e2e-proxyless-").expect("a temporary directory");
        let leaf = mesh.get(&format!("/v1/agent/connect/ca/leaf/{service}")).await.success().json();
        let Credentials { chain_pem, key_pem } = Credentials::of_leaf(&leaf);
        let roots = mesh.get("/v1/connect/ca/roots?pem=true").await.success().text();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for (name, content) in [("leaf.pem", chain_pem), ("leaf.key", key_pem), ("roots.pem", roots)] {
            std::fs::write(path(name), content).expect("a written file");
        }
        let bootstrap = json!({
            "xds_servers": [{
                "server_uri": mesh.addresses.grpc,
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }],
            "node": {"id": format!("{service}-sidecar-proxy"), "cluster": service},
            "certificate_providers": {CERTIFICATE_PROVIDER: {"plugin_name": "file_watcher", "config": {
                "certificate_file": path("leaf.pem"),
                "private_key_file": path("leaf.key"),
                "ca_certificate_file": path("roots.pem"),
                "refresh_interval": "60s",
            }}},
        });
        std::fs::write(path("bootstrap.json"), bootstrap.to_string()).expect("a written file");
        Self { folder }
    }

    /// Calls a service `calls` times in one process; each line is an answer's JSON, the last one perhaps a status.
    async fn call(&self, service: &str, calls: usize) -> Vec<String> {
        let mut command = Command::new(tools::python());
        command.env_clear().env("GRPC_XDS_BOOTSTRAP", self.folder.path().join("bootstrap.json"));
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/proxyless.py"));
        command.args([&format!("xds:///{service}"), &calls.to_string()]);
        let output = cli::run(command).await.success();
        output.stdout.lines().map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxyless_client_resolves_and_calls_a_service() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("greeter", "grpc").await;
    mesh.register(&json!({
        "Name": "web", "Port": free_port(),
        "Connect": {"SidecarService": {"Port": free_port(), "Proxy": {"Upstreams": [
            {"DestinationName": "greeter", "LocalBindPort": free_port()},
        ]}}},
    }))
    .await;
    let (_one, _two) = tokio::join!(
        Workload::new("greeter").id("greeter-1").env("SERVER_TYPE", "grpc").start(&mesh),
        Workload::new("greeter").id("greeter-2").env("SERVER_TYPE", "grpc").start(&mesh),
    );
    eventually("both instances are healthy", async || {
        let passing = mesh.get("/v1/health/connect/greeter?passing").await.success().json();
        anyhow::ensure!(passing.as_array().map(Vec::len) == Some(2), "{passing:#}");
        Ok(())
    })
    .await;

    let client = Client::new(&mesh, "web").await;
    let answers = client.call("greeter", 10).await;
    let answers: Vec<Value> =
        answers.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{answers:?}"))).collect();
    let names: BTreeSet<_> = answers.iter().map(|answer| answer["name"].as_str().expect("a name")).collect();
    assert_eq!(names, BTreeSet::from(["greeter-1", "greeter-2"]));
    let certificate = answers[0]["request"]["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
    assert!(certificate.contains("/svc/web"), "the greeter does not see who called: {certificate:?}");

    let change = mesh.intention("web", "greeter", "deny").await.index();
    mesh.settled(change).await;
    eventually("the denied client is refused", async || {
        let answers = client.call("greeter", 1).await;
        anyhow::ensure!(answers == ["PERMISSION_DENIED"], "{answers:?}");
        Ok(())
    })
    .await;
}
