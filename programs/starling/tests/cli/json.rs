//! The JSON of every command that lists or tells something: scripts rely on its shape.

use serde_json::{Value, json};

use crate::api::{Api, Run, run};

#[track_caller]
fn is(run: Run, code: i32, expected: &Value) {
    assert_eq!(run.code, code, "{run:?}");
    let found: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    assert_eq!(found, *expected);
}

fn intention() -> Value {
    json!({"SourceName": "web", "DestinationName": "db", "Action": "deny", "Precedence": 9, "ModifyIndex": 4})
}

#[test]
fn intentions() {
    let (one, exact) = (intention(), "/v1/connect/intentions/exact?source=web&destination=db");
    let api = Api::serve(&[
        ("GET /v1/connect/intentions", 200, &json!([one]).to_string()),
        ("GET /v1/connect/intentions/match?by=source&name=web", 200, &json!({"web": [one]}).to_string()),
        ("GET /v1/connect/intentions/match?by=destination&name=gone", 200, "{}"),
        ("GET /v1/connect/intentions/check?source=web&destination=db", 200, r#"{"Allowed":false}"#),
        (&format!("GET {exact}"), 200, &one.to_string()),
        (&format!("DELETE {exact}"), 200, "true"),
    ]);
    is(api.run("intention list -o json"), 0, &json!([one]));
    is(api.run("intention match -source web -o json"), 0, &json!([one]));
    is(api.run("intention match gone -o json"), 0, &json!([]));
    is(api.run("intention check web db -o json"), 1, &json!({"Allowed": false}));
    is(api.run("intention get web db -format=json"), 0, &one);
    is(api.run("intention delete web db -o json"), 0, &json!({"deleted": true}));
}

#[test]
fn can() {
    let answer = json!({"allowed": true, "protocol": "tcp", "reason": "the default policy"});
    let api = Api::serve(&[("GET /starling/v1/can?source=a&destination=b", 200, &answer.to_string())]);
    is(api.run("can a b -o json"), 0, &answer);
}

#[test]
fn config_entries() {
    let entry = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "ModifyIndex": 7});
    let api = Api::serve(&[
        ("GET /v1/config/service-defaults", 200, &json!([entry]).to_string()),
        ("GET /v1/config/service-defaults/web", 200, &entry.to_string()),
    ]);
    is(api.run("config list -kind service-defaults -o json"), 0, &json!([entry]));
    is(api.run("config read -kind service-defaults -name web -o json"), 0, &entry);
    is(api.run("config read -kind service-defaults -name web"), 0, &entry);
}

#[test]
fn nodes() {
    let nodes = json!([{"Node": "n1", "ID": "i", "Address": "10.0.0.1", "Datacenter": "dc1", "Meta": {}}]);
    let api = Api::serve(&[("GET /v1/catalog/nodes", 200, &nodes.to_string())]);
    is(api.run("nodes -o json"), 0, &nodes);
}

#[test]
fn services() {
    let api = Api::serve(&[
        ("GET /v1/catalog/services", 200, r#"{"web":["a"]}"#),
        ("GET /v1/health/service/web", 200, r#"[{"Checks":[{"Status":"warning"}]},{"Checks":[]}]"#),
    ]);
    let expected = json!([{"name": "web", "instances": 2, "passing": 1, "warning": 1, "critical": 0, "tags": ["a"]}]);
    is(api.run("services -o json"), 0, &expected);
    is(api.run("services list -o json"), 0, &expected);
}

#[test]
fn changes() {
    let receipt = json!({
        "revision": 12, "settled": false, "until": "timeout",
        "counts": {"affected": 1, "applied": 0, "pending": 1, "rejected": 0}, "affected": ["n1/a"], "applied": [], "pending": ["n1/a"], "rejected": [],
        "latency_us": {"p50": null, "p99": null, "max": null},
    });
    let all = json!({"revision": 12, "changes": [receipt]});
    let api = Api::serve(&[
        ("GET /starling/v1/changes", 200, &all.to_string()),
        ("GET /starling/v1/changes/12", 200, &receipt.to_string()),
        ("GET /starling/v1/changes/12?until=applied%3Aall&wait=0ms", 200, &receipt.to_string()),
    ]);
    is(api.run("changes -o json"), 0, &all);
    is(api.run("changes 12 -o json"), 0, &receipt);
    is(api.run("changes -wait 0s -o json"), 4, &receipt);
}

#[test]
fn status() {
    let proxy = json!({"proxy": "n1/a", "node": "n1", "id": "a", "service": null, "connected": true,
        "applied_through": 9, "lag": 0, "refused": null});
    let node =
        json!({"node": "n1", "connected": true, "applied_through": 9, "lag": 0, "staleness_us": 0, "refused": []});
    let diagnostic = json!({"object": "service/a", "field": "Port", "reason": "is taken", "fix": "choose another"});
    let api = Api::serve(&[
        ("GET /v1/status/leader", 200, r#""127.0.0.1:8500""#),
        ("GET /starling/v1/proxies", 200, &json!({"revision": 9, "proxies": [proxy]}).to_string()),
        ("GET /starling/v1/nodes", 200, &json!({"revision": 9, "nodes": [node]}).to_string()),
        ("GET /starling/v1/diagnostics", 200, &json!({"diagnostics": [diagnostic]}).to_string()),
    ]);
    let expected = json!({
        "leader": "127.0.0.1:8500", "revision": 9, "nodes": [node], "proxies": [proxy], "diagnostics": [diagnostic],
    });
    is(api.run("status -o json"), 0, &expected);
}

#[test]
fn version() {
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "architecture": std::env::consts::ARCH,
        "consul_api": "1.22",
    });
    is(run("version -o json", "", &[]), 0, &expected);
    is(run("version -format=json", "", &[]), 0, &expected);
}
