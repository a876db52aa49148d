//! Commands at random, among those that change what plans say.

use proptest::prelude::*;

use crate::mesh::{Mesh, key};

const SERVICES: [&str; 4] = ["a", "b", "c", "d"];

/// Something to change from the start.
pub const BEGINNING: [&str; 15] = [
    "gateway n1/gw address=10.0.0.1",
    "exit-gateway n2/out address=10.0.0.2 port=8443",
    r#"terminating out {"services":[{"service":{"service":"a"}}]}"#,
    "service n1/d-1 address=192.0.2.1",
    "node n2 10.0.0.2",
    "service n1/a-1",
    "sidecar n1/a-1 upstreams=b:1002 at=eu/a",
    "service n1/b-1",
    "sidecar n1/b-1 at=eu/a",
    "service n2/b-1",
    "sidecar n2/b-1 upstreams=a:1001,d:1003 at=eu/b",
    "service n2/c-1",
    "sidecar n2/c-1 transparent=strict",
    "address b",
    "intention c -> b allow",
];

/// A command among those that change what plans say; some are refused by the mesh of the moment and then left out.
pub fn command() -> impl Strategy<Value = String> {
    let service = || proptest::sample::select(SERVICES.to_vec());
    let node = || proptest::sample::select(vec!["n1", "n2"]);
    let status = proptest::sample::select(vec!["passing", "warning", "critical"]);
    let protocol = || proptest::sample::select(vec!["tcp", "http", "grpc"]);
    let address = proptest::sample::select(vec!["10.0.0.1", "10.0.0.2", "host.example"]);
    let decision = proptest::sample::select(vec!["allow", "deny", r#"[{"action":"allow","path":{"prefix":"/x"}}]"#]);
    let side = || proptest::sample::select(vec!["a", "b", "c", "*"]);
    let options = proptest::sample::select(vec![
        "",
        "weights=5/2",
        "address=10.1.1.1",
        "port=none",
        "native",
        "upstreams=a:1001,b:1002",
        "upstreams=d:1003",
        "transparent=strict",
        "transparent=permissive upstreams=a:1001",
        r#"upstreams=b:1002{"connect_timeout_ms":10};c:1002,a:1001"#,
        r#"config={"local_connect_timeout_ms":7}"#,
        "tags=blue",
        "tags=blue,red",
        "at=eu/a",
        "at=eu upstreams=b:1002",
        "at=us/a upstreams=b:1002,d:1003",
    ]);
    prop_oneof![
        6 => (node(), service(), 1..3, options.clone())
            .prop_map(|(node, name, number, options)| format!("sidecar {node}/{name}-{number} {options}")),
        2 => (node(), service(), 1..3, options)
            .prop_map(|(node, name, number, options)| format!("service {node}/{name}-{number} {options}")),
        2 => (node(), service(), 1..3, "(-sidecar-proxy)?", status).prop_map(
            |(node, name, number, sidecar, status)| format!("check {node}/{name}-{number}{sidecar} {status}")
        ),
        2 => (node(), 0..2)
            .prop_map(|(node, bad)| { format!("check {node}/node {}", if bad == 1 { "critical" } else { "passing" }) }),
        2 => (node(), address).prop_map(|(node, address)| format!("node {node} {address}")),
        2 => (service(), protocol()).prop_map(|(name, protocol)| format!("defaults {name} protocol={protocol}")),
        12 => routing(),
        3 => gateway(),
        5 => terminating(),
        2 => protocol().prop_map(|protocol| format!(r#"proxy-defaults {{"protocol":"{protocol}"}}"#)),
        2 => proptest::sample::select(vec!["failover", "none"]).prop_map(|mode| format!("proxy-defaults {{}} near={mode}")),
        2 => (side(), side(), decision).prop_map(|(from, to, decision)| format!("intention {from} -> {to} {decision}")),
        2 => (node(), service(), 1..3, "(-sidecar-proxy)?")
            .prop_map(|(node, name, number, sidecar)| format!("delete instance {node}/{name}-{number}{sidecar}")),
        2 => service().prop_map(|name| format!("delete defaults {name}")),
        2 => side().prop_map(|name| format!("delete intentions {name}")),
        1 => node().prop_map(|node| format!("delete node {node}")),
        2 => service().prop_map(|name| format!("address {name}")),
        1 => proptest::sample::select(vec!["mesh only", "mesh any"]).prop_map(str::to_owned),
        2 => Just("delete proxy-defaults".to_owned()),
        1 => proptest::sample::select(vec!["root two", "root two", "delete root two", "root one", "root one", "delete root one"])
            .prop_map(str::to_owned),
    ]
}

/// How services are called.
fn routing() -> impl Strategy<Value = String> {
    let service = || proptest::sample::select(SERVICES.to_vec());
    let resolver = proptest::sample::select(vec![
        "{}",
        r#"{"subsets":{"blue":{"filter":"blue in Service.Tags"}},"default_subset":"blue"}"#,
        r#"{"subsets":{"blue":{"filter":"blue in Service.Tags","only_passing":true},"all":{}},"failover":{"by_subset":{"blue":[{"subset":"all"},{"service":"c"}]}}}"#,
        r#"{"failover":{"any":[{"service":"a"},{"service":"d","subset":"blue"}]},"load_balancer":{"policy":"maglev","hash_policies":[{"on":"source_address"}]}}"#,
        r#"{"redirect":{"service":"b"}}"#,
        r#"{"prioritize_by_locality":"failover"}"#,
        r#"{"subsets":{"blue":{"filter":"blue in Service.Tags"}},"failover":{"any":[{"service":"c"}]},"prioritize_by_locality":"failover"}"#,
        r#"{"redirect":{"service":"c","subset":"blue"}}"#,
        r#"{"connect_timeout":{"secs":1,"nanos":0},"request_timeout":{"secs":2,"nanos":0}}"#,
    ]);
    let splitter = proptest::sample::select(vec![
        r#"[{"weight":10000,"service":"b"}]"#,
        r#"[{"weight":3333,"service":"a"},{"weight":6667,"service":"c","subset":"blue"}]"#,
        r#"[{"weight":1},{"weight":9999,"service":"d"}]"#,
        r#"[{"weight":5000,"subset":"blue"},{"weight":5000,"subset":"all"}]"#,
    ]);
    let router = proptest::sample::select(vec![
        "[]",
        r#"[{"matches":{"path":{"prefix":"/x"}},"action":{"forward":{"service":"c"}}}]"#,
        r#"[{"action":{"forward":{"subset":"blue","mirror":{"service":"a","percent":100}}}},{"action":{"redirect":{"status":301,"https":true}}}]"#,
        r#"[{"action":{"forward":{"service":"d","retry":{"on":["5xx"],"budget":{"percent":100,"min_concurrency":1}}}}}]"#,
    ]);
    let upstreams = proptest::sample::select(vec![
        "{}",
        r#"{"defaults":{"max_connections":3}}"#,
        r#"{"overrides":{"b":{"passive_health_check":{"max_failures":2}}},"defaults":{"connect_timeout":{"secs":3,"nanos":0}}}"#,
    ]);
    prop_oneof![
        3 => (service(), resolver).prop_map(|(name, entry)| format!("resolver {name} {entry}")),
        2 => (service(), splitter).prop_map(|(name, entry)| format!("splitter {name} {entry}")),
        2 => (service(), router).prop_map(|(name, entry)| format!("router {name} {entry}")),
        2 => (service(), upstreams).prop_map(|(name, entry)| format!("upstream-config {name} {entry}")),
        2 => (proptest::sample::select(vec!["resolver", "splitter", "router"]), service())
            .prop_map(|(kind, name)| format!("delete {kind} {name}")),
    ]
}

/// What a gateway lets in, and where it is.
fn gateway() -> impl Strategy<Value = String> {
    let entry = proptest::sample::select(vec![
        r#"{}"#,
        r#"{"listeners":[{"port":80,"protocol":"http","route":{"services":[{"service":"a","hosts":["*"]}]}}]}"#,
        r#"{"listeners":[{"port":80,"protocol":"http","route":{"services":[{"service":"b","hosts":["b"],"settings":{"max_connections":2}},{"service":"c","hosts":["c"]}]}},{"port":90,"protocol":"tcp","route":{"services":[{"service":"b"}]}}]}"#,
        r#"{"defaults":{"max_connections":7},"trusted_proxies":["10.0.0.0/8"],"listeners":[{"port":80,"protocol":"http","route":{"redirect":{"port":443,"status":301}}},{"port":443,"protocol":"grpc","tls":{"own":{}},"proxy_protocol":true,"route":{"services":[{"service":"d","hosts":["*.d"]}]}}]}"#,
    ]);
    let options = proptest::sample::select(vec!["", "address=10.0.0.1", "address=gw.example"]);
    prop_oneof![
        3 => entry.prop_map(|entry| format!("ingress gw {entry}")),
        1 => options.prop_map(|options| format!("gateway n1/gw {options}")),
        1 => Just("delete ingress gw".to_owned()),
    ]
}

/// What a gateway stands for, and where it is.
fn terminating() -> impl Strategy<Value = String> {
    let entry = proptest::sample::select(vec![
        r#"{}"#,
        r#"{"services":[{"service":{"service":"a"}},{"service":{"service":"d"},"keeps_host":true}]}"#,
        r#"{"services":[{"service":"any"}]}"#,
        r#"{"services":[{"service":"any","keeps_host":true},{"service":{"service":"b"},"tls":{"authorities":"/ca.pem"}}]}"#,
    ]);
    let options = proptest::sample::select(vec!["", "address=10.0.0.9", "address=out.example", "port=none"]);
    let number = || 1..3_u32;
    let service = || proptest::sample::select(SERVICES.to_vec());
    let place = proptest::sample::select(vec!["address=192.0.2.9", "address=host.example", "tags=blue"]);
    prop_oneof![
        3 => (proptest::sample::select(vec!["out", "out2"]), entry)
            .prop_map(|(gateway, entry)| format!("terminating {gateway} {entry}")),
        1 => options.prop_map(|options| format!("exit-gateway n2/out {options}")),
        1 => proptest::sample::select(vec!["exit-gateway n1/out", "delete instance n1/out", "delete instance n2/out"])
            .prop_map(str::to_owned),
        2 => (service(), number(), place).prop_map(|(name, number, place)| format!("service n1/{name}-{number} {place}")),
        1 => proptest::sample::select(vec!["passing", "critical"]).prop_map(|status| format!("check n2/out {status}")),
        1 => Just("delete terminating out".to_owned()),
    ]
}

/// Whether the mesh has what the command speaks of.
pub fn possible(mesh: &Mesh, command: &str) -> bool {
    let mut words = command.split_whitespace();
    match (words.next(), words.next()) {
        (Some("check" | "sidecar"), Some(id)) if !id.ends_with("/node") => mesh.snapshot.instance(&key(id)).is_some(),
        _ => true,
    }
}
