//! The commands that operators script against: what they do, what they print as JSON, and how they exit.

use std::path::PathBuf;

use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Output, Workload, free_port};
use tempfile::TempDir;

/// The command line is right, and the answer is no.
const NO: i32 = 1;
/// The command line, a file or the request is wrong.
const WRONG: i32 = 2;
/// Nobody answers.
const NO_ANSWER: i32 = 3;
/// The wait is over.
const STILL_OUTSTANDING: i32 = 4;

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::with_prefix("starling-e2e-files-").expect("a temporary directory"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("a written file");
        path
    }
}

fn web_hcl(port: u16, sidecar_port: u16, upstream_port: u16) -> String {
    format!(
        r#"
        service {{
          name = "web"
          id   = "web-1"
          port = {port}
          meta {{ team = "shop" }}
          connect {{
            sidecar_service {{
              port = {sidecar_port}
              proxy {{
                upstreams {{
                  destination_name = "api"
                  local_bind_port  = {upstream_port}
                }}
              }}
            }}
          }}
          check {{
            id     = "web-alive"
            ttl    = "1h"
            status = "passing"
          }}
        }}
        "#
    )
}

#[track_caller]
fn exits(output: &Output, code: i32, said: &str) {
    assert_eq!(output.code, code, "{output}");
    assert!(output.stderr.contains(said), "{said:?} is not said: {output}");
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let rows = list.as_array().unwrap_or_else(|| panic!("no list: {list:#}"));
    rows.iter().map(|row| row[field].as_str().unwrap_or_else(|| panic!("no {field}: {row:#}")).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_nodes_and_config_are_written_and_read() {
    let files = Files::new();
    let configuration = TempDir::with_prefix("starling-e2e-config-").expect("a temporary directory");
    let api = json!({"service": {"name": "api", "port": free_port(), "checks": [{"name": "ttl", "ttl": "1h"}]}});
    std::fs::write(configuration.path().join("api.json"), api.to_string()).expect("a written file");
    let defaults = "config_entries { bootstrap { kind = \"service-defaults\" name = \"api\" protocol = \"http\" } }";
    std::fs::write(configuration.path().join("defaults.hcl"), defaults).expect("a written file");
    let options = MeshOptions { config_dir: Some(configuration.path().to_owned()), ..MeshOptions::default() };
    let mesh = Mesh::start(options).await;

    let web = files.write("web.hcl", &web_hcl(free_port(), free_port(), free_port()));
    let _ = mesh.cli(&["services", "register", web.to_str().expect("a path")]).await.success();
    let registered = mesh.get("/v1/agent/service/web-1").await.success().json();
    assert_eq!((&registered["Service"], &registered["Meta"]["team"]), (&json!("web"), &json!("shop")));
    let services = mesh.cli(&["services", "-o", "json"]).await.success().json().to_string();
    for name in ["\"web\"", "\"api\"", "web-sidecar-proxy"] {
        assert!(services.contains(name), "{name} is not in {services}");
    }
    let nodes = mesh.cli(&["nodes", "-o", "json"]).await.success().json();
    assert_eq!(nodes.as_array().map(Vec::len), Some(1), "{nodes:#}");
    let table = mesh.cli(&["nodes"]).await.success().stdout;
    assert!(table.contains(nodes[0]["Node"].as_str().expect("a node's name")), "{table}");

    let api_defaults = ["config", "read", "-kind", "service-defaults", "-name", "api"];
    assert_eq!(mesh.cli(&api_defaults).await.success().json()["Protocol"], "http", "from --config-dir");
    let entry = files.write("db.hcl", "Kind = \"service-defaults\"\nName = \"db\"\nProtocol = \"grpc\"\n");
    let _ = mesh.cli(&["config", "write", entry.to_str().expect("a path")]).await.success();
    let list = mesh.cli(&["config", "list", "-kind", "service-defaults"]).await.success().stdout;
    assert_eq!(list.split_whitespace().collect::<Vec<_>>(), ["api", "db"]);
    let list = mesh.cli(&["config", "list", "-kind", "service-defaults", "-o", "json"]).await.success().json();
    assert_eq!(names(&list, "Name"), ["api", "db"]);
    let _ = mesh.cli(&["config", "delete", "-kind", "service-defaults", "-name", "db"]).await.success();
    exits(&mesh.cli(&["config", "read", "-kind", "service-defaults", "-name", "db"]).await, NO, "db");

    let _ = mesh.cli(&["services", "deregister", "-id", "web-1"]).await.success();
    assert_eq!(mesh.get("/v1/agent/service/web-1").await.status, 404);
    exits(&mesh.cli(&["services", "deregister", "-id", "web-1"]).await, NO, "web-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn intentions_are_written_judged_and_traced() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let _api = Workload::new("api").start(&mesh).await;

    let _ = mesh.cli(&["intention", "check", "web", "api"]).await.success();
    let _ = mesh.cli(&["intention", "create", "-deny", "web", "api"]).await.success();
    assert_eq!(mesh.cli(&["intention", "check", "web", "api"]).await.code, NO);
    let can = mesh.cli(&["can", "web", "api", "--path", "/x", "--method", "POST", "--header", "x-key: 1"]).await;
    assert_eq!(can.code, NO, "{can}");
    assert!(can.stdout.contains("web") && can.stdout.contains("api"), "which rule decides is not told: {can}");
    let list = mesh.cli(&["intention", "list", "-o", "json"]).await.success().json();
    assert_eq!((names(&list, "SourceName"), names(&list, "DestinationName")), (vec!["web".into()], vec!["api".into()]));

    let changes = mesh.cli(&["changes", "--wait", "10s"]).await.success();
    let revision = mesh.revision().await.to_string();
    assert!(changes.stdout.contains(&revision), "{changes}");
    let change = mesh.cli(&["changes", &revision, "--wait", "10s", "-o", "json"]).await.success().json();
    assert_eq!((&change["settled"], &change["rejected"]), (&json!(true), &json!([])));
    assert!(change["applied"].to_string().contains("api-sidecar-proxy"), "{change:#}");
    assert_eq!(mesh.cli(&["changes", "999999999"]).await.code, NO);

    let _ = mesh.cli(&["intention", "delete", "web", "api"]).await.success();
    let _ = mesh.cli(&["intention", "check", "web", "api"]).await.success();
    exits(&mesh.cli(&["intention", "delete", "web", "api"]).await, NO, "");

    let status = mesh.cli(&["status", "-o", "json"]).await.success().json();
    let proxies = status["proxies"].as_array().unwrap_or_else(|| panic!("no proxies: {status:#}"));
    assert_eq!((&proxies[0]["id"], &proxies[0]["connected"]), (&json!("api-sidecar-proxy"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_does_not_answer_is_outstanding() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let api = Workload::new("api").start(&mesh).await;
    nix::sys::signal::kill(api.sidecar.process.pid(), nix::sys::signal::Signal::SIGSTOP).expect("a running Envoy");
    let change = mesh.intention("web", "api", "deny").await.index();
    let changes = mesh.cli(&["changes", &change.to_string(), "--wait", "300ms"]).await;
    assert_eq!(changes.code, STILL_OUTSTANDING, "{changes}");
    assert!(changes.stdout.contains("api-sidecar-proxy"), "who is outstanding is not told: {changes}");
    nix::sys::signal::kill(api.sidecar.process.pid(), nix::sys::signal::Signal::SIGCONT).expect("a stopped Envoy");
    let _ = mesh.cli(&["changes", &change.to_string(), "--wait", "20s"]).await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_have_their_exit_codes() {
    let files = Files::new();
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    assert!(mesh.cli(&["version"]).await.success().stdout.contains(env!("CARGO_PKG_VERSION")));
    exits(&mesh.cli(&["servces"]).await, WRONG, "servces");
    exits(&mesh.cli(&["nodes", "--colour"]).await, WRONG, "colour");
    exits(&mesh.cli(&["services", "register", "/nowhere/web.hcl"]).await, WRONG, "/nowhere/web.hcl");
    let bad = files.write("bad.hcl", "service {\n  name = \"web\"\n  prot = 80\n}\n");
    exits(&mesh.cli(&["services", "register", bad.to_str().expect("a path")]).await, WRONG, "prot");
    let broken = files.write("broken.hcl", "service {\n  name = \n}\n");
    exits(&mesh.cli(&["services", "register", broken.to_str().expect("a path")]).await, WRONG, "broken.hcl");
    let entry = files.write("entry.json", "{\"Kind\": \"service-defaults\", \"Name\": \"a\", \"Protocol\": \"htpp\"}");
    exits(&mesh.cli(&["config", "write", entry.to_str().expect("a path")]).await, WRONG, "Protocol");
    exits(&mesh.cli(&["connect", "envoy", "-sidecar-for", "nobody"]).await, NO, "nobody");
    for shell in ["bash", "zsh", "fish"] {
        let script = mesh.cli(&["completion", shell]).await.success().stdout;
        assert!(script.contains("intention"), "no completion for {shell}");
    }
    mesh.kill9();
    exits(&mesh.cli(&["nodes"]).await, NO_ANSWER, &mesh.addresses.http);
}
