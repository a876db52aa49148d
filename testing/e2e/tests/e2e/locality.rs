//! Callers prefer who is near, on both data planes: two zones with a server, two agents, and calls between them.

use serde_json::{Value, json};
use starling_e2e::{Instance, Mesh, MeshOptions, Plane, Program, Served, Traffic, Workload};
use tempfile::TempDir;

use crate::apart;

/// A node whose agent says where it is, by the file that Consul's agents have it in.
async fn node(server: &Mesh, name: &str, zone: &str) -> (Mesh, TempDir) {
    let files = TempDir::with_prefix("starling-e2e-zone-").expect("a directory");
    let text = format!("locality {{ region = \"eu\" zone = \"{zone}\" }}\n");
    std::fs::write(files.path().join("agent.hcl"), text).expect("a file");
    let token = apart::token(server, &[]).await;
    let options = apart::node(server, name, Some(&token));
    let config_dir = Some(files.path().to_owned());
    (Mesh::start(MeshOptions { config_dir, native: true, ..options }).await, files)
}

/// An instance of api whose health it says itself.
async fn api(mesh: &Mesh, id: &str, plane: Plane) -> Instance<Served> {
    let check = json!([{"CheckID": format!("{id}-says"), "Name": id, "TTL": "10m", "Status": "passing"}]);
    Workload::new("api").id(id).field("Checks", check).start_on(mesh, plane).await
}

async fn says(mesh: &Mesh, verdict: &str, id: &str) {
    let target = format!("/v1/agent/check/{verdict}/{id}-says");
    let _ = mesh.put(&target, &Value::Null).await.success();
}

async fn locality_of(mesh: &Mesh, id: &str) -> Value {
    mesh.get(&format!("/v1/agent/service/{id}")).await.success().json()["Locality"].clone()
}

/// `near` and `far` are those of web's zone and of the other.
async fn calls_stay_near(web: &Instance<Served>, (near, far): (&Mesh, &Mesh), from: &str) {
    web.served_by("api", &["near-1", "near-2"], &format!("all are well, {from}")).await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    says(near, "fail", "near-1").await;
    web.served_by("api", &["near-2"], "one of the zone is unwell").await;
    says(near, "fail", "near-2").await;
    web.served_by("api", &["far-1"], "nobody of the zone is well").await;
    says(near, "pass", "near-1").await;
    web.served_by("api", &["near-1"], "one of the zone is back").await;
    says(far, "fail", "far-1").await;
    says(near, "pass", "near-2").await;
    web.served_by("api", &["near-1", "near-2"], "the zone is well, and the other is not").await;
    says(far, "pass", "far-1").await;
    traffic.stop_without_failure().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_stay_in_the_zone_while_somebody_there_is_well() {
    let server = Mesh::start(MeshOptions { program: Program::Server(String::new()), ..MeshOptions::default() }).await;
    let ((near, _near_files), (far, _far_files)) = tokio::join!(node(&server, "n1", "a"), node(&server, "n2", "b"));
    server.protocol("api", "http").await;
    let caller = |id: &'static str| Workload::new("web").id(id).calls("api");
    let (first, second, other, native, envoy, own, across) = tokio::join!(
        api(&near, "near-1", Plane::Native),
        api(&near, "near-2", Plane::Envoy),
        api(&far, "far-1", Plane::Native),
        caller("web-native").start_on(&near, Plane::Native),
        caller("web-envoy").start_on(&near, Plane::Envoy),
        caller("web-own").start_on(&near, Plane::Own),
        caller("web-across").start_on(&far, Plane::Native),
    );
    assert_eq!(locality_of(&near, "near-1-sidecar-proxy").await, json!({"Region": "eu", "Zone": "a"}));
    assert_eq!(locality_of(&far, "far-1").await, json!({"Region": "eu", "Zone": "b"}));
    let everybody = ["far-1", "near-1", "near-2"];
    for web in [&native, &envoy, &own, &across] {
        web.served_by("api", &everybody, "nobody prefers who is near").await;
    }

    server.config(&json!({"Kind": "proxy-defaults", "PrioritizeByLocality": {"Mode": "failover"}})).await;
    across.served_by("api", &["far-1"], "the mesh prefers who is near").await;
    for web in [&native, &envoy, &own] {
        calls_stay_near(web, (&near, &far), &web.id).await;
    }

    // Gone for good, and come anew; what a resolver says comes first.
    for id in ["near-1", "near-2"] {
        let _ = near.put(&format!("/v1/agent/service/deregister/{id}"), &Value::Null).await.success();
    }
    for web in [&native, &envoy, &own] {
        web.served_by("api", &["far-1"], "the zone is empty").await;
    }
    drop((first, second));
    let third = api(&near, "near-3", Plane::Native).await;
    for web in [&native, &envoy, &own] {
        web.served_by("api", &["near-3"], "somebody has come").await;
    }
    let resolver =
        |mode: &str| json!({"Kind": "service-resolver", "Name": "api", "PrioritizeByLocality": {"Mode": mode}});
    server.config(&resolver("none")).await;
    for web in [&native, &envoy, &own, &across] {
        web.served_by("api", &["far-1", "near-3"], "the resolver says otherwise").await;
    }
    let _ = server.delete("/v1/config/proxy-defaults/global").await.success();
    server.config(&resolver("failover")).await;
    for web in [&native, &envoy, &own] {
        web.served_by("api", &["near-3"], "the resolver alone says so").await;
    }
    drop((third, other));
}
