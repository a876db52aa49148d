//! Commands of Consul's line that ask a mesh, with what they print.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use starling_e2e::{Mesh, MeshOptions, Method, Program};

/// A field of what is printed, a line each: `NAME…VALUE`.
fn value_of<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.trim_start().strip_prefix(name)).map(|rest| rest.trim_start_matches([' ', '=']))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_servers_settings_and_usage_in_consuls_words() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let _ = mesh.register(&json!({"Name": "web", "Port": 80})).await.success();
    let says = async |arguments: &[&str]| mesh.cli(arguments).await.success().stdout;
    let peers = says(&["operator", "raft", "list-peers"]).await;
    let lines: Vec<_> = peers.lines().collect();
    assert!(lines[0].starts_with("Node") && lines[0].contains("Trails Leader By"), "{peers}");
    assert!(lines.len() == 2 && lines[1].contains("leader") && lines[1].contains("true"), "{peers}");

    let before = says(&["operator", "autopilot", "get-config"]).await;
    assert_eq!(value_of(&before, "MaxTrailingLogs"), Some("250"), "{before}");
    let set =
        says(&["operator", "autopilot", "set-config", "-max-trailing-logs=300", "-cleanup-dead-servers=false"]).await;
    assert!(set.contains("Configuration updated!"), "{set}");
    let after = says(&["operator", "autopilot", "get-config"]).await;
    assert_eq!(value_of(&after, "MaxTrailingLogs"), Some("300"), "{after}");
    assert_eq!(value_of(&after, "CleanupDeadServers"), Some("false"), "{after}");
    assert_eq!(value_of(&after, "LastContactThreshold"), value_of(&before, "LastContactThreshold"), "{after}");
    let stale = mesh.cli(&["operator", "autopilot", "set-config", "-cas", "-modify-index=1", "-min-quorum=3"]).await;
    assert_eq!(stale.code, 1, "{stale}");
    assert_eq!(mesh.cli(&["operator", "autopilot", "set-config"]).await.code, 2);
    let state = says(&["operator", "autopilot", "state"]).await;
    assert!(value_of(&state, "Healthy:") == Some("true") && state.contains("\nServers:\n"), "{state}");

    let usage = says(&["operator", "usage", "instances"]).await;
    assert!(usage.contains("Billable Service Instances Total: 1") && usage.contains("connect-proxy"), "{usage}");
    let billable = says(&["operator", "usage", "instances", "-only-billable"]).await;
    assert!(!billable.contains("connect-proxy"), "{billable}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ca_members_and_intentions_are_asked_for_as_in_consul() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let says = async |arguments: &[&str]| mesh.cli(arguments).await.success().stdout;
    let ca: serde_json::Value = serde_json::from_str(&says(&["connect", "ca", "get-config"]).await).expect("JSON");
    assert_eq!(ca["Provider"], "consul");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.hcl");
    std::fs::write(&file, "Provider = \"consul\"\nConfig { LeafCertTTL = \"9h\" }\n").expect("written");
    let refused = mesh.cli(&["connect", "ca", "set-config", "-config-file", file.to_str().expect("text")]).await;
    assert!(refused.code == 2 && refused.stderr.contains("LeafCertTTL"), "{refused}");

    let all = says(&["members", "-detailed"]).await;
    assert_eq!(says(&["members", "-detailed", "-status", "alive"]).await, all);
    assert_eq!(mesh.cli(&["members", "-status=failed"]).await.code, 1);
    assert!(says(&["members", "-wan"]).await.contains("server"));
    let figures = says(&["info"]).await;
    assert!(figures.contains("agent:\n") && figures.contains("runtime:\n"), "{figures}");
    assert_eq!(value_of(&figures, "leader ="), Some("true"), "{figures}");
    assert_eq!(value_of(&figures, "acl ="), Some("disabled"), "{figures}");

    // Those that came by the form that Consul calls deprecated have IDs.
    let body = r#"{"SourceName": "web", "DestinationName": "api", "SourceType": "consul", "Action": "deny"}"#;
    let made = mesh.call(Method::POST, "/v1/connect/intentions", body).await.success().json();
    let id = made["ID"].as_str().expect("an ID").to_owned();
    assert!(says(&["intention", "get", &id]).await.contains("deny"));
    assert!(says(&["intention", "delete", &id]).await.contains("deleted"));
    assert_eq!(mesh.cli(&["intention", "get", &id]).await.code, 1);
    assert_eq!(mesh.cli(&["intention", "get", "web"]).await.code, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_is_its_owners_alone_and_has_what_was_asked_for() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("bundle").to_str().expect("text").to_owned();
    let flags = ["debug", "-duration=1s", "-interval=1s", "-capture=agent", "-capture", "logs", "-output", &name];
    let bundle = mesh.cli(&flags);
    // Something is logged meanwhile.
    let (bundle, _) = tokio::join!(bundle, mesh.cli(&["reload"]));
    assert_eq!(bundle.code, 0, "{bundle}");
    let archive = format!("{name}.tar.gz");
    let mode = std::fs::metadata(&archive).expect("the bundle").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let listed = std::process::Command::new("tar").args(["-tzf", &archive]).output().expect("tar");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut files: Vec<_> = listed.lines().collect();
    files.sort_unstable();
    assert_eq!(files, ["bundle/agent.json", "bundle/agent.log", "bundle/index.json"]);
    assert_eq!(mesh.cli(&["debug", "-capture=pprof"]).await.code, 2, "there is no such profile");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_reader_ends_quietly() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for arguments in [
        &["watch", "-type=nodes"][..],
        &["watch", "-type=nodes", "-once"],
        &["members"],
        &["kv", "get", "none"],
        &["intention", "list"],
        &["operator", "usage", "instances"],
        &["bench", "list"],
        &["--help"],
        &["lock", "-verbose", "job", "true"],
    ] {
        let (_, closed) = std::io::pipe().expect("a pipe");
        let mut command = mesh.command(arguments);
        command.stdout(closed.try_clone().expect("the other end")).stderr(closed).stdin(Stdio::null());
        let mut command = tokio::process::Command::from(command);
        let ended = tokio::time::timeout(Duration::from_secs(20), command.kill_on_drop(true).status()).await;
        let ended = ended.expect("in time").expect("it runs");
        assert!(ended.code().is_some_and(|code| code != 101), "{arguments:?}: {ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn templates_of_policies_are_shown_with_what_they_come_to() {
    let program = Program::Server("acl_default_policy = \"deny\"\n".to_owned());
    let mesh = Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await;
    let root = mesh.cli(&["acl", "bootstrap", "-o", "json"]).await.success().json();
    let root = root["SecretID"].as_str().expect("a secret").to_owned();
    let says = async |arguments: &[&str]| mesh.cli(&[arguments, &["-token", &root]].concat()).await.success().stdout;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("template.hcl");
    let templates = says(&["acl", "templated-policy", "list"]).await;
    assert!(templates.lines().any(|line| line == "builtin/service"), "{templates}");
    let one = says(&["acl", "templated-policy", "read", "-name", "builtin/service"]).await;
    assert!(one.contains("{{.Name}}") && one.contains("name: what it is for"), "{one}");
    let preview = says(&["acl", "templated-policy", "preview", "-name", "builtin/service", "-var", "name:web"]).await;
    assert!(preview.contains("service \"web\""), "{preview}");
    std::fs::write(&file, "TemplatedPolicies = { \"builtin/service\" = { Name = \"api\" } }\n").expect("written");
    let preview = says(&["acl", "templated-policy", "preview", "-file", file.to_str().expect("text")]).await;
    assert!(preview.contains("service \"api\""), "{preview}");
}
