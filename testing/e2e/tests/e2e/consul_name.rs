//! Started through a link called `consul`, with a configuration as Consul's own agents have.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use http::Method;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use starling_e2e::{Process, bare, eventually, free_port, http as client, tools};

/// For the agent to be up, and to end.
const TIME_MAX: Duration = Duration::from_secs(30);

fn consul(folder: &Path, arguments: &[&str]) -> Command {
    let link = folder.join("consul");
    if !link.exists() {
        symlink(tools::starling(), &link).expect("a link");
    }
    let mut command = Command::new(link);
    bare(&mut command);
    command.args(arguments);
    command
}

/// What its files say is read anew, and its log is heard by whoever asks.
async fn follow_and_reload(api: &str, file: &Path, config: &serde_json::Value) {
    let mut following = TcpStream::connect(api).await.expect("a connection");
    let request = format!("GET /v1/agent/monitor HTTP/1.1\r\nHost: {api}\r\n\r\n");
    following.write_all(request.as_bytes()).await.expect("sent");
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("[INFO]") {
        let more = tokio::time::timeout(TIME_MAX, following.read_buf(&mut heard)).await.expect("in time");
        assert!(more.expect("read") > 0, "{}", String::from_utf8_lossy(&heard));
    }
    drop(following);
    let mut changed = config.clone();
    changed["services"] = json!([{"name": "api", "port": 81}]);
    std::fs::write(file, changed.to_string()).expect("written");
    let reloaded = client::request(Method::PUT, api, "/v1/agent/reload", &[], "").await.expect("an answer");
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let services = client::get(api, "/v1/agent/services").await.expect("an answer").success().json();
    assert_eq!(services.as_object().expect("services").keys().collect::<Vec<_>>(), ["api"]);
    changed["services"] = json!([{"nam": "api"}]);
    std::fs::write(file, changed.to_string()).expect("written");
    let refused = client::request(Method::PUT, api, "/v1/agent/reload", &[], "").await.expect("an answer");
    assert!(refused.status == 400 && refused.text().contains("config.json"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_takes_consuls_configuration_and_shows_itself_as_consuls_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let [http, dns, grpc, grpc_tls] = [(); 4].map(|()| free_port());
    let config = json!({
        "node_name": "n1", "node_id": "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11", "server": true, "bootstrap": true,
        "data_dir": folder.path().join("data"), "bind_addr": "127.0.0.1", "log_level": "info",
        "performance": {"raft_multiplier": 1},
        "ports": {"http": http, "dns": dns, "grpc": grpc, "grpc_tls": grpc_tls, "serf_lan": 8301, "https": -1},
        "connect": {"enabled": true, "ca_config": {"cluster_id": "11111111-2222-3333-4444-555555555555"}},
        "services": [{"name": "web", "port": 80}],
    });
    let file = folder.path().join("config.json");
    std::fs::write(&file, config.to_string()).expect("written");
    let file = file.to_str().expect("text").to_owned();

    let version = consul(folder.path(), &["version", "-format=json"]).output().expect("it runs");
    let version: serde_json::Value = serde_json::from_slice(&version.stdout).expect("JSON");
    assert_eq!(version["Version"], "1.22.0");

    let flags = ["agent", "-config-file", &file, "-ui", "-retry-join=192.0.2.1", "-bootstrap-expect", "3"];
    let mut agent = Process::spawn("consul", consul(folder.path(), &flags));
    let api = format!("127.0.0.1:{http}");
    eventually("it leads itself", async || {
        agent.expect_running()?;
        let leader = client::get(&api, "/v1/status/leader").await?;
        anyhow::ensure!(leader.status == 200 && leader.json() != json!(""), "{}", leader.text());
        Ok(())
    })
    .await;
    let get = async |target: &str| client::get(&api, target).await.expect("an answer").success().json();
    let node = get("/v1/catalog/node/n1").await;
    assert_eq!(node["Node"]["ID"], "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11");
    assert_eq!(node["Node"]["Meta"], json!({"consul-network-segment": "", "consul-version": "1.22.0"}));
    let services = node["Services"].as_object().expect("services").keys().cloned().collect::<Vec<_>>();
    assert_eq!(services, ["consul", "web"]);
    assert_eq!(get("/v1/health/node/n1").await[0]["CheckID"], "serfHealth");
    let roots = get("/v1/connect/ca/roots").await;
    assert_eq!(roots["TrustDomain"], "11111111-2222-3333-4444-555555555555.consul");
    let made =
        client::request(Method::PUT, &api, "/v1/session/create", &[], "").await.expect("an answer").success().json();
    assert!(made["ID"].is_string(), "its check is well: {made}");

    follow_and_reload(&api, Path::new(&file), &config).await;

    let mut changed = config.clone();
    changed["services"] = json!([{"name": "late", "port": 82}]);
    std::fs::write(&file, changed.to_string()).expect("written");
    kill(agent.pid(), Signal::SIGHUP).expect("it runs");
    eventually("SIGHUP has it read its files anew", async || {
        let services = get("/v1/agent/services").await;
        anyhow::ensure!(services.get("late").is_some(), "{services}");
        Ok(())
    })
    .await;
    let log = agent.log();
    assert!(log.contains("performance: is a setting of Consul's that has no effect here"), "{log}");
    assert!(log.contains("warning: an agent under this name is a server with a mesh of its own"), "{log}");
    assert!(agent.end_with(Signal::SIGINT, TIME_MAX).success());

    let said = |arguments: &[&str]| {
        let output = consul(folder.path(), arguments).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    // What was reloaded last was broken.
    std::fs::write(&file, config.to_string()).expect("written");
    let (code, told) = said(&["validate", &file]);
    assert!(code == Some(0) && told.contains("Configuration is valid!"), "{told}");
    let (code, told) = said(&["exec", "-node", "n1", "uptime"]);
    assert!(code == Some(2) && told.contains("there is no `consul exec`"), "{told}");

    std::fs::write(&file, r#"{"data_dir": "/tmp", "colour": "red"}"#).expect("written");
    let (code, told) = said(&["validate", &file]);
    assert!(code == Some(1) && told.contains("config.json: colour: unknown field"), "{told}");
    let refused = consul(folder.path(), &["agent", "-config-file", &file]).output().expect("it runs");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && told.contains("config.json: colour: unknown field"), "{told}");
}
