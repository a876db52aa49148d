//! Every write answers its revision, and that revision has a receipt.

use serde_json::{Value, json};
use starling_e2e::{Answer, Mesh, MeshOptions, Method, free_port};

const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=api";
const API_DEFAULTS: &str = "/v1/config/service-defaults/api";

fn service(version: &str) -> Value {
    let check = json!({"CheckID": "web-alive", "TTL": "1h"});
    let sidecar = json!({"SidecarService": {"Port": free_port()}});
    json!({"Name": "web", "Port": free_port(), "Meta": {"version": version}, "Check": check, "Connect": sidecar})
}

fn on_another_node() -> Value {
    json!({"Node": "elsewhere", "Address": "192.0.2.7", "Service": {"Service": "cache", "Port": 6379},
        "Check": {"CheckID": "cache-alive", "Name": "cache-alive", "ServiceID": "cache", "Status": "passing"}})
}

/// Each changes something, given those before it.
fn writes() -> Vec<(Method, &'static str, Value)> {
    let (put, post, delete) = (Method::PUT, Method::POST, Method::DELETE);
    let defaults = |protocol: &str| json!({"Kind": "service-defaults", "Name": "api", "Protocol": protocol});
    vec![
        (put.clone(), "/v1/agent/service/register", service("1")),
        (put.clone(), "/v1/agent/service/register", service("2")),
        (put.clone(), "/v1/agent/check/pass/web-alive", Value::Null),
        (put.clone(), "/v1/agent/check/warn/web-alive?note=slow", Value::Null),
        (put.clone(), "/v1/agent/check/fail/web-alive", Value::Null),
        (put.clone(), "/v1/agent/check/update/web-alive", json!({"Status": "passing", "Output": "fine"})),
        (put.clone(), "/v1/agent/check/register", json!({"Name": "more", "ServiceID": "web", "TTL": "1h"})),
        (put.clone(), "/v1/agent/check/deregister/more", Value::Null),
        (put.clone(), "/v1/agent/service/deregister/web", Value::Null),
        (put.clone(), "/v1/catalog/register", on_another_node()),
        (put.clone(), "/v1/catalog/deregister", json!({"Node": "elsewhere", "CheckID": "cache-alive"})),
        (put.clone(), "/v1/catalog/deregister", json!({"Node": "elsewhere", "ServiceID": "cache"})),
        (put.clone(), "/v1/catalog/deregister", json!({"Node": "elsewhere"})),
        (put.clone(), "/v1/config", defaults("tcp")),
        (put.clone(), "/v1/config", defaults("http")),
        (put.clone(), EXACT, json!({"Action": "deny"})),
        (put.clone(), EXACT, json!({"Permissions": [{"Action": "deny", "HTTP": {"PathPrefix": "/"}}]})),
        (delete.clone(), EXACT, Value::Null),
        (post, "/v1/connect/intentions", json!({"SourceName": "web", "DestinationName": "api", "Action": "allow"})),
        (delete.clone(), EXACT, Value::Null),
        (put, "/v1/config", json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}})),
        (delete.clone(), "/v1/config/proxy-defaults/global", Value::Null),
        (delete, API_DEFAULTS, Value::Null),
    ]
}

async fn send(mesh: &Mesh, method: &Method, target: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    mesh.call(method.clone(), target, body).await.success()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_write_answers_a_revision_that_has_a_receipt() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let mut last = mesh.revision().await;
    for (method, target, body) in writes() {
        let what = format!("{method} {target} {body}");
        let revision = send(&mesh, &method, target, &body).await.index();
        assert!(revision > last, "{what} answers {revision}, which is not after {last}");
        last = revision;
        assert_eq!(mesh.receipt(revision, "1ms").await["revision"], revision, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_nothing_answers_a_revision_that_has_a_receipt() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let service = service("1");
    let repeatable = [
        (Method::PUT, "/v1/agent/service/register", service),
        (Method::PUT, "/v1/agent/check/pass/web-alive", Value::Null),
        (Method::PUT, "/v1/catalog/register", on_another_node()),
        (Method::PUT, "/v1/config", json!({"Kind": "service-defaults", "Name": "api", "Protocol": "http"})),
        (Method::PUT, EXACT, json!({"Action": "deny"})),
        (Method::DELETE, EXACT, Value::Null),
        (Method::DELETE, API_DEFAULTS, Value::Null),
        (Method::PUT, "/v1/catalog/deregister", json!({"Node": "elsewhere"})),
    ];
    for (method, target, body) in repeatable {
        let _ = send(&mesh, &method, target, &body).await;
        let before = mesh.revision().await;
        let revision = send(&mesh, &method, target, &body).await.index();
        assert!(revision <= before, "{method} {target} {body} again is no change, but answers {revision}");
        assert_eq!(mesh.receipt(revision, "1ms").await["revision"], revision, "{method} {target} {body} again");
    }
}
