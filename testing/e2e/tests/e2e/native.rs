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
