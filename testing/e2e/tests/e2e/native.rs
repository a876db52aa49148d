//! Sidecars that the agent serves itself: nothing is started for them.

use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Plane, Traffic, Workload};

use crate::passing::Passing;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_passes_between_native_sidecars() {
    let passing = Passing::start(Plane::Native, Plane::Native).await;
    passing.all_passes().await;
    passing.intentions_decide().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_come_and_go_under_traffic_and_no_request_fails() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    let (web, _one) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Native),
        Workload::new("api").id("api-1").start_on(&mesh, Plane::Native),
    );
    web.served_by("api", &["api-1"], "there is one").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    let check = json!({"CheckID": "well", "TTL": "10m", "Status": "passing"});
    let _two = Workload::new("api").id("api-2").field("Check", check).start_on(&mesh, Plane::Native).await;
    for _ in 0..3 {
        web.served_by("api", &["api-1", "api-2"], "both are well").await;
        traffic.requests(50).await;
        says(&mesh, "fail").await;
        web.served_by("api", &["api-1"], "the second one is not").await;
        traffic.requests(50).await;
        says(&mesh, "pass").await;
    }
    traffic.stop_without_failure().await;
}

async fn says(mesh: &Mesh, state: &str) {
    let answer = mesh.put(&format!("/v1/agent/check/{state}/well"), &Value::Null).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// An address of the documentation's (RFC 5737), so of no machine.
const NOBODYS_ADDRESS: &str = "192.0.2.1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_cannot_be_had_is_a_refusal_and_the_rest_goes_on() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    let (web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Native),
        Workload::new("api").id("api-1").start_on(&mesh, Plane::Native),
    );
    web.served_by("api", &["api-1"], "there is one").await;
    let mut broken = web.registration.clone();
    let upstreams = &mut broken["Connect"]["SidecarService"]["Proxy"]["Upstreams"];
    upstreams.as_array_mut().expect("upstreams").push(json!({
        "DestinationName": "elsewhere", "LocalBindAddress": NOBODYS_ADDRESS, "LocalBindPort": 9_999,
    }));
    let refused = mesh.put("/v1/agent/service/register?until=applied:all&wait=20s", &broken).await.success();
    assert_eq!(refused.header("x-starling-until"), Some("never"), "{:?}", refused.headers);
    let receipt = mesh.receipt(refused.index(), "10s").await;
    let rejected = receipt["rejected"].to_string();
    assert!(rejected.contains("web-sidecar-proxy") && rejected.contains(NOBODYS_ADDRESS), "{receipt:#}");
    web.served_by("api", &["api-1"], "what can be served is").await;
    let repaired = mesh.register(&web.registration).await.index();
    mesh.settled(repaired).await;
    let status = mesh.cli(&["status", "-o", "json"]).await.success();
    assert!(!status.stdout.contains(NOBODYS_ADDRESS), "{status}");
}
