//! What the list and status commands print as JSON: one document, with the fields that scripts rely on.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Output, Workload, eventually};

const INTENTION: &[&str] = &[
    "SourceNS",
    "SourceName",
    "DestinationNS",
    "DestinationName",
    "SourceType",
    "Action",
    "Precedence",
    "CreateIndex",
    "ModifyIndex",
];
const RECEIPT: &[&str] = &["revision", "settled", "affected", "applied", "pending", "rejected", "latency_us"];

/// Fails unless the object has all these fields.
#[track_caller]
fn assert_fields(object: &Value, fields: &[&str]) {
    let there: BTreeSet<_> = object.as_object().unwrap_or_else(|| panic!("no object: {object}")).keys().collect();
    let missing: Vec<_> = fields.iter().filter(|field| !there.iter().any(|name| name == *field)).collect();
    assert!(missing.is_empty(), "{missing:?} are missing in {object:#}");
}

/// The row of a list whose `field` is `value`.
#[track_caller]
fn row<'a>(list: &'a Value, field: &str, value: &str) -> &'a Value {
    let rows = list.as_array().unwrap_or_else(|| panic!("no list: {list:#}"));
    rows.iter().find(|row| row[field] == value).unwrap_or_else(|| panic!("no {field} {value:?} in {list:#}"))
}

/// A mesh in which web calls api, all is healthy, and an intention denies that web calls db.
async fn mesh_with_history() -> (Mesh, [starling_e2e::Instance; 2]) {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, api) = tokio::join!(
        Workload::new("web").calls("api").field("Tags", json!(["shop"])).start(&mesh),
        Workload::new("api").start(&mesh)
    );
    eventually("every check passes", async || {
        let critical = mesh.get("/v1/health/state/critical").await.success().json();
        anyhow::ensure!(critical == json!([]), "{critical:#}");
        Ok(())
    })
    .await;
    mesh.intention("web", "db", "deny").await;
    mesh.intention("*", "api", "allow").await;
    let denied = json!([{"Action": "deny", "HTTP": {"PathPrefix": "/admin"}}]);
    let change = mesh.permissions("web", "api", &denied).await.index();
    mesh.settled(change).await;
    (mesh, [web, api])
}

/// Runs a command with `-o json`.
async fn output(mesh: &Mesh, arguments: &[&str]) -> Output {
    mesh.cli(&[arguments, &["-o", "json"]].concat()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_have_the_fields_that_scripts_rely_on() {
    let (mesh, _instances) = mesh_with_history().await;
    for command in [&["services"][..], &["services", "list"]] {
        let services = output(&mesh, command).await.success().json();
        let healthy = json!(
            {"name": "web", "instances": 1, "passing": 1, "warning": 0, "critical": 0, "tags": ["shop"]}
        );
        assert_eq!(*row(&services, "name", "web"), healthy);
    }

    let nodes = output(&mesh, &["nodes"]).await.success().json();
    assert_fields(&nodes[0], &["Node", "ID", "Address", "Datacenter", "Meta", "CreateIndex", "ModifyIndex"]);

    let intentions = output(&mesh, &["intention", "list"]).await.success().json();
    assert_eq!(intentions.as_array().map(Vec::len), Some(3), "{intentions:#}");
    let to_db = row(&intentions, "DestinationName", "db");
    assert_fields(to_db, INTENTION);
    assert_eq!(
        (&to_db["SourceName"], &to_db["Action"], &to_db["Precedence"]),
        (&json!("web"), &json!("deny"), &json!(9))
    );
    let matched = output(&mesh, &["intention", "match", "api"]).await.success().json();
    assert_eq!((&matched[0]["SourceName"], &matched[1]["SourceName"]), (&json!("web"), &json!("*")), "{matched:#}");
    let matched = output(&mesh, &["intention", "match", "-source", "web"]).await.success().json();
    assert_eq!(matched.as_array().map(Vec::len), Some(3), "{matched:#}");
    assert_eq!(output(&mesh, &["intention", "match", "nobody"]).await.success().json(), json!([]));

    let defaults = output(&mesh, &["config", "list", "-kind", "service-defaults"]).await.success().json();
    assert_fields(row(&defaults, "Name", "api"), &["Kind", "Name", "Protocol", "CreateIndex", "ModifyIndex"]);
    assert_eq!(output(&mesh, &["config", "list", "-kind", "proxy-defaults"]).await.success().json(), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_about_one_thing_have_the_fields_that_scripts_rely_on() {
    let (mesh, _instances) = mesh_with_history().await;
    let intention = output(&mesh, &["intention", "get", "web", "api"]).await.success().json();
    assert_fields(&intention, &["SourceName", "DestinationName", "Permissions", "Precedence", "ModifyIndex"]);
    assert_eq!(intention["Permissions"][0]["HTTP"]["PathPrefix"], "/admin");
    let allowed = output(&mesh, &["intention", "check", "other", "api"]).await.success().json();
    assert_eq!(allowed, json!({"Allowed": true}));
    let denied = output(&mesh, &["intention", "check", "web", "db"]).await;
    assert_eq!((denied.code, denied.json()), (1, json!({"Allowed": false})));

    let can = output(&mesh, &["can", "web", "api", "--path", "/admin/users"]).await;
    let answer = can.json();
    assert_fields(&answer, &["allowed", "source", "destination", "protocol", "decided_by", "reason", "revision"]);
    assert_eq!((can.code, &answer["allowed"], &answer["protocol"]), (1, &json!(false), &json!("http")));
    let decided_by = json!(
        {"kind": "intention", "source": "web", "destination": "api", "precedence": 9, "permission": 0}
    );
    assert_eq!(answer["decided_by"], decided_by);
    let can = output(&mesh, &["can", "web", "elsewhere"]).await.success().json();
    assert_eq!(can["decided_by"], json!({"kind": "default", "action": "allow"}));

    let entry = mesh.cli(&["config", "read", "-kind", "service-defaults", "-name", "api"]).await.success().json();
    assert_fields(&entry, &["Kind", "Name", "Protocol", "CreateIndex", "ModifyIndex"]);
    let version = output(&mesh, &["version"]).await.success().json();
    assert_fields(&version, &["version", "os", "architecture", "consul_api"]);
    assert_eq!((&version["version"], &version["consul_api"]), (&json!(env!("CARGO_PKG_VERSION")), &json!("1.22")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_and_changes_have_the_fields_that_scripts_rely_on() {
    let (mesh, _instances) = mesh_with_history().await;
    let revision = mesh.revision().await;
    let status = output(&mesh, &["status"]).await.success().json();
    assert_fields(&status, &["leader", "revision", "proxies", "diagnostics"]);
    assert_eq!((&status["revision"], status["leader"].as_str().map(str::is_empty)), (&json!(revision), Some(false)));
    let proxy = row(&status["proxies"], "id", "api-sidecar-proxy");
    assert_fields(proxy, &["proxy", "node", "id", "service", "connected", "applied_through", "lag", "refused"]);
    let applied = (&proxy["service"], &proxy["connected"], &proxy["applied_through"], &proxy["lag"], &proxy["refused"]);
    assert_eq!(applied, (&json!("api"), &json!(true), &json!(revision), &json!(0), &Value::Null));

    let changes = output(&mesh, &["changes"]).await.success().json();
    assert_eq!((&changes["revision"], &changes["changes"][0]["revision"]), (&json!(revision), &json!(revision)));
    let receipt = output(&mesh, &["changes", &revision.to_string()]).await.success().json();
    for receipt in [&receipt, &changes["changes"][0]] {
        assert_fields(receipt, RECEIPT);
        assert_eq!((&receipt["settled"], &receipt["pending"]), (&json!(true), &json!([])), "{receipt:#}");
        assert_eq!(receipt["applied"][0]["proxy"], proxy["proxy"], "{receipt:#}");
        assert!(receipt["applied"][0]["latency_us"].is_u64(), "{receipt:#}");
        assert_fields(&receipt["latency_us"], &["p50", "p99", "max"]);
    }
}
