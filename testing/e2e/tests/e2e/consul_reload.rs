//! An agent under the name of Consul that reads its files anew: judged as `consul validate` judges them, all of it or nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::consul_name::{consul, said};
use starling_e2e::{Process, eventually, free_port, http as client};

/// For the agent to end.
const TIME_MAX: Duration = Duration::from_secs(30);

struct Agent {
    folder: tempfile::TempDir,
    /// What its file says at first.
    config: Value,
    api: String,
    process: Process,
}

impl Agent {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [http, dns, grpc, grpc_tls] = [(); 4].map(|()| free_port());
        let config = json!({
            "node_name": "n1", "server": true, "data_dir": folder.path().join("data"),
            "ports": {"http": http, "dns": dns, "grpc": grpc, "grpc_tls": grpc_tls},
            "telemetry": {"prefix_filter": ["+a"]},
            "services": [{"name": "web", "port": 80}],
        });
        let file = Self::file_in(folder.path());
        std::fs::write(&file, config.to_string()).expect("written");
        let command = consul(folder.path(), &["agent", "-config-file", file.to_str().expect("text")]);
        let api = format!("127.0.0.1:{http}");
        let mut agent = Self { process: Process::spawn("consul", command), folder, config, api };
        eventually("the agent has what its file defines", async || {
            agent.process.expect_running()?;
            let services = client::get(&agent.api, "/v1/agent/services").await?;
            anyhow::ensure!(services.status == 200 && services.text().contains("web"), "{}", services.text());
            Ok(())
        })
        .await;
        agent
    }

    fn file_in(folder: &Path) -> PathBuf {
        folder.join("agent.json")
    }

    fn write(&self, config: &Value) {
        std::fs::write(Self::file_in(self.folder.path()), config.to_string()).expect("written");
    }

    async fn reload(&self) -> client::Answer {
        client::request(Method::PUT, &self.api, "/v1/agent/reload", &[], "").await.expect("an answer")
    }

    async fn services(&self) -> Vec<String> {
        let services = client::get(&self.api, "/v1/agent/services").await.expect("an answer").success().json();
        services.as_object().expect("services").keys().cloned().collect()
    }

    async fn until_log(&mut self, what: &str) {
        eventually("it is logged", async || {
            self.process.expect_running()?;
            let log = self.process.log();
            anyhow::ensure!(log.contains(what), "{what:?} is not in {log}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_an_agent_would_not_start_with_are_refused_with_validates_words_and_all_stays() {
    let mut agent = Agent::start().await;
    let with = |field: &str, value: Value| {
        let mut changed = agent.config.clone();
        changed["services"] = json!([{"name": "new", "port": 81}]);
        changed[field] = value;
        changed
    };
    let router = json!({"bootstrap": [{"kind": "service-router", "name": "new", "routes": []}]});
    for (config, reason, is_in_validate) in [
        (with("telemetry", json!({"statsd": "x"})), "telemetry.statsd: unknown field", true),
        (with("log_level", json!("loud")), "loud", true),
        (with("ports", json!({"http": 8600})), "the HTTP API and DNS cannot both be at", true),
        (with("data_dir", json!("")), "data_dir cannot be empty", true),
        // What the mesh has is the mesh's to judge by.
        (with("config_entries", router), "service-router/new", false),
    ] {
        agent.write(&config);
        let refused = agent.reload().await;
        assert!(refused.status == 400 && refused.text().contains(reason), "{config}: {}", refused.text());
        assert_eq!(agent.services().await, ["web"], "{config}");
        let file = Agent::file_in(agent.folder.path());
        let (code, told) = said(agent.folder.path(), &["validate", file.to_str().expect("text")]);
        assert_eq!(code == Some(1) && told.contains(reason), is_in_validate, "{config}: {told}");
        kill(agent.process.pid(), Signal::SIGHUP).expect("it runs");
        agent.until_log(reason).await;
    }
    assert_eq!(agent.services().await, ["web"]);
    let (code, told) = said(agent.folder.path(), &["reload", "-http-addr", &agent.api]);
    assert!(code == Some(2) && told.contains("service-router/new"), "{told}");
    assert!(agent.process.end_with(Signal::SIGTERM, TIME_MAX).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_count_at_once_and_changed_settings_are_named() {
    let mut agent = Agent::start().await;
    let mut changed = agent.config.clone();
    changed["services"] = json!([{"name": "new", "port": 81}]);
    changed["telemetry"] = json!({"prefix_filter": ["+b"]});
    agent.write(&changed);
    let reloaded = agent.reload().await;
    assert!(reloaded.status == 200 && reloaded.text().is_empty(), "what has no effect: {}", reloaded.text());
    assert_eq!(agent.services().await, ["new"]);

    let defaults = |name: &str| json!({"kind": "service-defaults", "name": name, "protocol": "http"});
    changed["config_entries"] = json!({"bootstrap": [defaults("web")]});
    agent.write(&changed);
    assert_eq!(agent.reload().await.status, 200);
    let written = r#"{"Kind": "service-defaults", "Name": "web", "Protocol": "grpc"}"#;
    let written = client::request(Method::PUT, &agent.api, "/v1/config", &[], written).await.expect("an answer");
    assert_eq!(written.status, 200, "{}", written.text());
    changed["config_entries"] = json!({"bootstrap": [defaults("web"), defaults("new")]});
    agent.write(&changed);
    assert_eq!(agent.reload().await.status, 200);
    for (name, protocol) in [("web", "grpc"), ("new", "http")] {
        let target = format!("/v1/config/service-defaults/{name}");
        let entry = client::get(&agent.api, &target).await.expect("an answer").success().json();
        assert_eq!(entry["Protocol"], protocol, "an entry that is there stays, and one that is not comes: {name}");
    }

    changed["ports"]["dns"] = json!(-1);
    changed["log_level"] = json!("debug");
    agent.write(&changed);
    let reloaded = agent.reload().await.success().json();
    assert_eq!(reloaded["FromNextStart"], json!(["log_level", "ports.dns"]));
    let (code, told) = said(agent.folder.path(), &["reload", "-http-addr", &agent.api]);
    assert!(
        code == Some(0) && told.contains("log_level: was changed, and counts from the agent's next start"),
        "{told}"
    );
    kill(agent.process.pid(), Signal::SIGHUP).expect("it runs");
    agent.until_log("ports.dns: was changed, and counts from the next start").await;
    assert_eq!(agent.services().await, ["new"]);
    assert!(agent.process.end_with(Signal::SIGTERM, TIME_MAX).success());
}
