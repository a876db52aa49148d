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

pub(crate) fn consul(folder: &Path, arguments: &[&str]) -> Command {
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

    let flags = ["agent", "-config-file", &file, "-ui", "-retry-join=192.0.2.1", "-bootstrap-expect", "1"];
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
    assert!(log.contains("performance.raft_multiplier: is a setting of Consul's that has no effect here"), "{log}");
    assert!(log.contains("warning: retry_join: a server has a mesh of its own, and joins no other"), "{log}");
    assert!(!log.contains("server: is a setting"), "{log}");
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

pub(crate) fn said(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = consul(folder, arguments).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Until the servers know these checks of the agent, and all of them pass.
async fn until_checks(api: &str, expected: &[&str]) {
    eventually("the servers have the checks", async || {
        let checks = client::get(api, "/v1/health/node/c1").await?.json();
        let all: Vec<_> = checks.as_array().into_iter().flatten().filter(|it| it["CheckID"] != "serfHealth").collect();
        let ids: Vec<_> = all.iter().filter_map(|it| it["CheckID"].as_str()).collect();
        anyhow::ensure!(ids == expected && all.iter().all(|it| it["Status"] == "passing"), "{checks}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_no_server_joins_the_servers_it_is_told_of_with_the_checks_of_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let [http, dns, grpc, grpc_tls] = [(); 4].map(|()| free_port().to_string());
    let (data, server_api) = (path("server"), format!("127.0.0.1:{http}"));
    let flags = [
        "agent",
        "-server",
        "-node",
        "s1",
        "-data-dir",
        &data,
        "-http-port",
        &http,
        "-dns-port",
        &dns,
        "-grpc-port",
        &grpc,
        "-grpc-tls-port",
        &grpc_tls,
    ];
    let mut server = Process::spawn("server", consul(folder.path(), &flags));
    eventually("the server answers", async || {
        server.expect_running()?;
        anyhow::ensure!(client::get(&server_api, "/v1/status/leader").await?.status == 200);
        Ok(())
    })
    .await;
    let (code, token) = said(folder.path(), &["token", "create", "--join", "--http-addr", &server_api]);
    assert_eq!(code, Some(0), "{token}");
    std::fs::write(path("token"), token.lines().last().expect("a token")).expect("written");

    let [own, own_dns, own_grpc] = [(); 3].map(|()| free_port());
    let definitions = |second: &str| {
        json!({"service": {"name": "web", "port": 80}, "ports": {"http": own, "dns": own_dns, "grpc": own_grpc},
            "check": {"id": "disk", "name": "Disk", "ttl": "1h", "status": "passing"},
            "checks": [{"id": second, "name": "Web", "service_id": "web", "ttl": "1h", "status": "passing"}]})
    };
    let file = path("client.json");
    std::fs::write(&file, definitions("web-ttl").to_string()).expect("written");
    let (data, token) = (path("client"), path("token"));
    let join = format!("127.0.0.1:{grpc_tls}");
    let flags = [
        "agent",
        "-config-file",
        &file,
        "-hcl",
        "node_name = \"c1\"",
        "-data-dir",
        &data,
        "-retry-join",
        &join,
        "-join-token-file",
        &token,
        "-client",
        "127.0.0.1 {{ GetInterfaceIP \"lo\" }}",
    ];
    let mut agent = Process::spawn("client", consul(folder.path(), &flags));
    until_checks(&server_api, &["disk", "web-ttl"]).await;
    let leader =
        client::get(&format!("127.0.0.1:{own}"), "/v1/catalog/nodes").await.expect("an answer").success().json();
    assert_eq!(leader.as_array().map(Vec::len), Some(2), "it is of the server's mesh: {leader}");
    std::fs::write(&file, definitions("web-other").to_string()).expect("written");
    kill(agent.pid(), Signal::SIGHUP).expect("it runs");
    until_checks(&server_api, &["disk", "web-other"]).await;
    assert!(agent.end_with(Signal::SIGTERM, TIME_MAX).success());
    assert!(server.end_with(Signal::SIGTERM, TIME_MAX).success());
}

#[test]
fn what_an_agent_would_refuse_validate_refuses_with_the_same_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("agent.json").to_str().expect("text").to_owned();
    for (config, reason) in [
        (json!({"server": true}), "data_dir"),
        (json!({"data_dir": "d"}), "no server, and joins none"),
        (json!({"server": true, "data_dir": "d", "client_addr": "{{ GetSecretIP }}"}), "GetSecretIP"),
        (json!({"server": true, "data_dir": "d", "log_level": "loud"}), "loud"),
        (
            json!({"server": true, "data_dir": "d", "unix_sockets": {"mode": "9"}, "addresses": {"http": "unix:///s"}}),
            "octal",
        ),
        (
            json!({"server": true, "data_dir": "d", "ports": {"https": 1}, "cert_file": "none", "key_file": "none"}),
            "none",
        ),
        (
            json!({"server": true, "data_dir": "d", "check": {"name": "c", "args": ["true"], "interval": "1s"}}),
            "enable_script_checks",
        ),
        (
            json!({"server": true, "data_dir": "d", "check": {"name": "c", "service_id": "gone", "ttl": "1s"}}),
            "service gone",
        ),
        (
            json!({"retry_join": ["s1"], "data_dir": "d", "config_entries": {"bootstrap": [{"kind": "mesh"}]}}),
            "the whole mesh's",
        ),
        (json!({"server": true, "data_dir": "d", "ports": {"http": 8600}}), "the HTTP API and DNS cannot both be at"),
        (json!({"server": true, "data_dir": "d", "ports": {"serf_lan": 65536}}), "ports.serf_lan"),
        (
            json!({"retry_join": ["s1"], "data_dir": "d", "auto_config": {"intro_token_file": "/nowhere/token"}}),
            "cannot read /nowhere/token",
        ),
        (
            json!({"server": true, "data_dir": "d", "config_entries": {"bootstrap": [
                {"kind": "service-router", "name": "web", "routes": []}]}}),
            "service-router/web",
        ),
        (json!({"server": true, "data_dir": "d", "telemetry": {"statsd": "x"}}), "telemetry.statsd: unknown field"),
        (
            json!({"server": true, "data_dir": "d", "tls": {"grpc": {"verify_incomming": true}}}),
            "tls.grpc.verify_incomming: unknown field",
        ),
    ] {
        std::fs::write(&file, config.to_string()).expect("written");
        let (code, told) = said(folder.path(), &["validate", &file]);
        assert!(code == Some(1) && told.contains(reason), "{config}: {told}");
        let (code, agent) = said(folder.path(), &["agent", "-config-file", &file]);
        assert_eq!(code, Some(2), "{config}: {agent}");
        let of = |text: &str, start: &str| text.lines().find_map(|line| line.strip_prefix(start).map(str::to_owned));
        assert_eq!(of(&told, "error: the configuration is not valid: "), of(&agent, "error: "), "{config}");
    }
    let hcl = folder.path().join("agent.conf").to_str().expect("text").to_owned();
    std::fs::write(&hcl, "server = true\ndata_dir = \"d\"\ntls { defaults { tls_min_version = \"TLSv1_3\" } }\n")
        .expect("written");
    let (code, told) = said(folder.path(), &["validate", "-config-format=hcl", &hcl]);
    assert!(code == Some(0) && told.contains("Configuration is valid!"), "{told}");
}

#[test]
fn the_command_line_tells_its_version_and_what_its_commands_are() {
    let folder = tempfile::tempdir().expect("a folder");
    for flag in ["-v", "--version", "version"] {
        let (code, told) = said(folder.path(), &[flag]);
        assert!(code == Some(0) && told.starts_with("Consul v1.22."), "{flag}: {told}");
    }
    let (code, help) = said(folder.path(), &["--help"]);
    assert!(code == Some(0) && help.contains("\n  operator ") && help.contains("\n  kv "), "{help}");
    let (_, by_name) = said(folder.path(), &["help", "kv"]);
    let (code, by_flag) = said(folder.path(), &["kv", "-h"]);
    assert!(
        code == Some(0) && by_flag.contains("Usage: consul kv") && by_name.contains("Usage: consul kv"),
        "{by_flag}"
    );
    let (code, told) = said(folder.path(), &["snapshot", "decode", "x"]);
    assert!(code == Some(2) && told.contains("consul snapshot inspect"), "{told}");
}

#[test]
fn what_is_said_has_the_names_of_consul() {
    let folder = tempfile::tempdir().expect("a folder");
    let says = |arguments: &[&str]| said(folder.path(), arguments);
    let (code, told) = says(&["members", "-http-addr", "127.0.0.1:1"]);
    assert!(code == Some(3) && told.contains("CONSUL_HTTP_ADDR") && !told.contains("STARLING_HTTP_ADDR"), "{told}");
    let (_, help) = says(&["intention", "create", "-h"]);
    assert!(help.contains("Usage: consul intention create") && !help.contains("starling intention"), "{help}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("an address").port().to_string();
    let ports = ["-dns-port=0", "-grpc-port=0", "-grpc-tls-port=0"];
    let (code, told) = says(&[&["agent", "-dev", "-http-port", &taken], &ports[..]].concat());
    assert!(code == Some(1) && told.contains("choose another with ports.http (-http-port)"), "{told}");
    for (command, instead) in [
        (&["connect", "expose", "-service", "web"][..], "`consul config write FILE`"),
        (&["services", "export", "-name", "web"], "nobody else to whom"),
        (&["keygen"], "`consul token create --join`"),
        (&["hcp", "link"], "leave it out"),
    ] {
        let (code, told) = says(command);
        assert!(
            code == Some(2) && told.contains("there is no `consul ") && told.contains(instead),
            "{command:?}: {told}"
        );
    }
}
