//! What operators ask of agents and servers, as Consul's commands and dashboards ask it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use starling_catalog::Command;
use starling_http_api::CatalogPort;
use starling_model::{Change, NodeName, RecordKey};
use tower::ServiceExt;
use world::World;

async fn send(world: &Arc<World>, method: &str, target: &str, body: &str) -> (u16, String) {
    let (head, text) = world.send(method, target, body).await;
    (head.status().as_u16(), text)
}

async fn json_of(world: &Arc<World>, method: &str, target: &str, body: &str) -> Value {
    let (status, text) = send(world, method, target, body).await;
    assert_eq!(status, 200, "{method} {target}: {text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

#[tokio::test]
async fn maintenance_is_a_critical_check_that_somebody_puts_and_takes_away() {
    let world = World::new();
    json_of(&world, "PUT", "/v1/agent/service/register", r#"{"Name": "web", "Port": 80}"#).await;
    for (target, id) in [
        ("/v1/agent/maintenance", "_node_maintenance"),
        ("/v1/agent/service/maintenance/web", "_service_maintenance:web"),
    ] {
        json_of(&world, "PUT", &format!("{target}?enable=true&reason=broken%20disk"), "").await;
        let check = json_of(&world, "GET", "/v1/agent/checks", "").await[id].clone();
        assert_eq!((&check["Status"], &check["Notes"]), (&json!("critical"), &json!("broken disk")), "{target}");
        assert_eq!(check["Type"], "maintenance");
        for _ in 0..2 {
            json_of(&world, "PUT", &format!("{target}?enable=false"), "").await;
        }
        assert_eq!(json_of(&world, "GET", "/v1/agent/checks", "").await[id], Value::Null);
        let (status, text) = send(&world, "PUT", target, "").await;
        assert!(status == 400 && text.contains("enable"), "{status} {text}");
    }
    assert_eq!(send(&world, "PUT", "/v1/agent/service/maintenance/gone?enable=true", "").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn an_agent_tells_of_its_machine_and_of_itself() {
    let world = World::new();
    assert!(json_of(&world, "GET", "/v1/agent/host", "").await["CollectionTime"].is_u64());
    assert_eq!(json_of(&world, "GET", "/v1/agent/version", "").await["HumanVersion"], "1.22.0");
    let metrics = json_of(&world, "GET", "/v1/agent/metrics", "").await;
    assert_eq!(metrics["Counters"][0]["Name"], "starling_commits");
    let (status, text) = send(&world, "GET", "/v1/agent/metrics?format=prometheus", "").await;
    assert!(status == 200 && text.contains("starling_commits_total 1"), "{status} {text}");
    assert_eq!(send(&world, "GET", "/v1/agent/metrics?format=xml", "").await.0, 400);
    let stream = http::Request::get("/v1/agent/metrics/stream").body(axum::body::Body::empty()).unwrap();
    let mut stream = world.router().oneshot(stream).await.unwrap().into_body();
    for _ in 0..2 {
        let line = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        let line: Value = serde_json::from_slice(line.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(line["Counters"][0]["Name"], "starling_commits");
    }
    assert_eq!(send(&world, "GET", "/v1/agent/health/service/name/_none_", "").await, (404, "[]".to_owned()));
    assert_eq!(send(&world, "GET", "/v1/agent/monitor?loglevel=loud", "").await.0, 400);
}

#[tokio::test]
async fn what_has_no_meaning_here_is_refused_with_what_to_do() {
    let world = World::new();
    for (method, target, told) in [
        ("PUT", "/v1/agent/join/10.0.0.2", "starling token create --join"),
        ("PUT", "/v1/agent/reload", "without definition files"),
        ("POST", "/v1/operator/raft/transfer-leader", "server/leave"),
        ("DELETE", "/v1/operator/raft/peer?id=x", "server/leave"),
    ] {
        let (status, text) = send(&world, method, target, "").await;
        assert!(status == 400 && text.contains(told), "{target}: {status} {text}");
    }
    // What an agent does with tokens is tested where there are some (acl.rs).
    let (status, text) = send(&world, "PUT", "/v1/agent/token/default", r#"{"Token": "x"}"#).await;
    assert!(status == 401 && text.contains("ACL support disabled"), "{status} {text}");
}

#[tokio::test]
async fn only_a_lost_node_is_taken_out() {
    let world = World::new();
    let node = |status: &str| json!({"Node": "n2", "Address": "10.0.0.2", "Check": {"CheckID": "serfHealth", "Name": "alive", "Status": status}});
    let leave = "/v1/agent/force-leave/n2";
    assert_eq!(send(&world, "PUT", leave, "").await.0, 404);
    json_of(&world, "PUT", "/v1/catalog/register", &node("passing").to_string()).await;
    let (status, text) = send(&world, "PUT", leave, "").await;
    assert!(status == 400 && text.contains("is alive"), "{status} {text}");
    json_of(&world, "PUT", "/v1/catalog/register", &node("critical").to_string()).await;
    assert_eq!(send(&world, "PUT", leave, "").await.0, 200);
    assert_eq!(json_of(&world, "GET", "/v1/catalog/node/n2", "").await, Value::Null);

    // What a removal left behind that was cut short goes as well.
    json_of(&world, "PUT", "/v1/catalog/register", &node("passing").to_string()).await;
    let name = NodeName::new("n2").unwrap();
    let changes = vec![Change::Delete(RecordKey::Node(name.clone()))];
    CatalogPort::commit(&*world, Command::of_node(name, changes)).await.unwrap();
    assert_ne!(json_of(&world, "GET", "/v1/health/state/any", "").await, json!([]));
    assert_eq!(send(&world, "PUT", leave, "").await.0, 200);
    assert_eq!(json_of(&world, "GET", "/v1/health/state/any", "").await, json!([]));
    assert_eq!(send(&world, "PUT", leave, "").await.0, 404);
}

#[tokio::test]
async fn servers_are_told_as_consul_tells_its_own() {
    let world = World::new();
    let raft = json_of(&world, "GET", "/v1/operator/raft/configuration", "").await;
    assert_eq!((&raft["Servers"][0]["Leader"], &raft["Servers"][0]["Voter"]), (&json!(true), &json!(true)));
    let health = json_of(&world, "GET", "/v1/operator/autopilot/health", "").await;
    assert_eq!((&health["Healthy"], &health["Servers"][0]["Name"]), (&json!(true), &json!("node-1")));
    let state = json_of(&world, "GET", "/v1/operator/autopilot/state", "").await;
    let leader = state["Leader"].as_str().unwrap();
    assert_eq!(state["Servers"][leader]["Status"], "leader");
    json_of(
        &world,
        "PUT",
        "/v1/agent/service/register",
        r#"{"Name": "web", "Port": 80, "Connect": {"SidecarService": {}}}"#,
    )
    .await;
    let usage = json_of(&world, "GET", "/v1/operator/usage", "").await["Usage"]["dc1"].clone();
    assert_eq!((&usage["ServiceInstances"], &usage["BillableServiceInstances"]), (&json!(2), &json!(1)));
    assert_eq!(usage["ConnectServiceInstances"]["connect-proxy"], 1);
}

#[tokio::test]
async fn settings_of_autopilot_are_kept_and_no_config_entry() {
    let world = World::new();
    let all = "/v1/operator/autopilot/configuration";
    assert_eq!(json_of(&world, "GET", all, "").await["CleanupDeadServers"], true);
    let off = r#"{"CleanupDeadServers": false, "LastContactThreshold": "1s"}"#;
    assert_eq!(json_of(&world, "PUT", &format!("{all}?cas=0"), off).await, false);
    assert_eq!(json_of(&world, "PUT", &format!("{all}?cas=1"), off).await, true);
    let written = json_of(&world, "GET", all, "").await;
    assert_eq!((&written["CleanupDeadServers"], &written["LastContactThreshold"]), (&json!(false), &json!("1s")));
    let at = written["ModifyIndex"].as_u64().unwrap();
    assert_eq!(json_of(&world, "PUT", &format!("{all}?cas={}", at - 1), off).await, false);
    assert_eq!(send(&world, "PUT", all, r#"{"CleanupDead": true}"#).await.0, 400);
    assert_eq!(send(&world, "GET", "/v1/config/autopilot-configuration", "").await.0, 400);
    let (status, _) = send(&world, "PUT", "/v1/config", r#"{"Kind": "autopilot-configuration", "Name": "x"}"#).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn a_read_that_may_be_cached_says_that_it_is() {
    let world = World::new();
    let (head, _) = world.send("GET", "/v1/catalog/service/web?cached", "").await;
    assert_eq!((head.headers()["x-cache"].to_str().unwrap(), head.headers()["age"].to_str().unwrap()), ("HIT", "0"));
    let (head, _) = world.send("GET", "/v1/catalog/service/web", "").await;
    assert!(!head.headers().contains_key("x-cache"));
}

#[tokio::test]
async fn every_answer_says_that_addresses_are_translated_where_they_are() {
    let world = World::new();
    for (translates, expected) in [(false, None), (true, Some("true"))] {
        world.translates_addresses.store(translates, std::sync::atomic::Ordering::Relaxed);
        for target in ["/v1/catalog/service/web", "/v1/kv/none", "/v1/nothing"] {
            let (head, _) = world.send("GET", target, "").await;
            let said = head.headers().get("x-consul-translate-addresses").map(|said| said.to_str().unwrap());
            assert_eq!(said, expected, "{target}");
        }
    }
}

#[tokio::test]
async fn where_connect_is_off_nobody_is_given_roots_or_leaves() {
    let world = World::new();
    world.connect_off.store(true, std::sync::atomic::Ordering::Relaxed);
    for target in ["/v1/connect/ca/roots", "/v1/agent/connect/ca/roots", "/v1/agent/connect/ca/leaf/web"] {
        let (status, text) = send(&world, "GET", target, "").await;
        assert!(status == 400 && text.starts_with("Connect must be enabled"), "{target}: {status} {text}");
    }
}

#[tokio::test]
async fn what_is_exported_is_told_by_service() {
    let world = World::new();
    assert_eq!(json_of(&world, "GET", "/v1/exported-services", "").await, json!([]));
    assert_eq!(json_of(&world, "GET", "/v1/imported-services", "").await, json!([]));
    for name in ["web", "api"] {
        json_of(&world, "PUT", "/v1/agent/service/register", &json!({"Name": name, "Port": 80}).to_string()).await;
    }
    let entry = json!({"Kind": "exported-services", "Name": "default", "Services": [
        {"Name": "web", "Consumers": [{"Peer": "east"}, {"Partition": "other"}]},
        {"Name": "*", "Consumers": [{"Peer": "west"}]},
    ]});
    json_of(&world, "PUT", "/v1/config", &entry.to_string()).await;
    let expected = json!([
        {"Service": "api", "Consumers": {"Peers": ["west"]}},
        {"Service": "web", "Consumers": {"Peers": ["east", "west"], "Partitions": ["other"]}},
    ]);
    assert_eq!(json_of(&world, "GET", "/v1/exported-services", "").await, expected);
}
