//! Every change has a receipt: who has applied it, and who has refused it and why.

use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Workload, Xds, eventually, free_port, http};

/// An address that no machine has (RFC 5737), so that Envoy cannot listen on it.
const NOBODYS_ADDRESS: &str = "192.0.2.1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_applied_by_the_proxies_that_it_concerns() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, _api, _other) = tokio::join!(
        Workload::new("web").calls("api").start(&mesh),
        Workload::new("api").start(&mesh),
        Workload::new("other").start(&mesh),
    );

    let mut last = mesh.revision().await;
    let deny = mesh.intention("web", "api", "deny").await.index();
    let protocol = mesh.protocol("other", "http").await.index();
    let service = json!({"Name": "api", "ID": "api-9", "Port": free_port(), "Check": {"CheckID": "c", "TTL": "1h"}});
    let registered = mesh.register(&service).await.index();
    let passed = mesh.put("/v1/agent/check/pass/c", &Value::Null).await.success().index();
    let deregistered = mesh.put("/v1/agent/service/deregister/api-9", &Value::Null).await.success().index();
    for revision in [deny, protocol, registered, passed, deregistered] {
        assert!(revision > last, "{revision} is not after {last}");
        last = revision;
        mesh.settled(revision).await;
    }

    let receipt = mesh.receipt(deny, "10s").await;
    let applied = names(&receipt, "applied");
    assert!(applied.contains(&"api-sidecar-proxy".to_owned()), "{receipt:#}");
    assert!(!applied.contains(&"other-sidecar-proxy".to_owned()), "{receipt:#}");
    let answer = http::get(&web.upstream("api"), "/").await.expect("an answer");
    assert_eq!(answer.status, 403, "what is applied is in effect");

    let unknown = mesh.get("/starling/v1/changes/999999999?wait=1ms").await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_is_answered_when_it_is_in_effect() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, _api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
    eventually("api answers", async || {
        let answer = http::get(&web.upstream("api"), "/").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    })
    .await;
    for (action, status) in [("deny", 403), ("allow", 200), ("deny", 403)] {
        let target = "/v1/connect/intentions/exact?source=web&destination=api&until=applied:all&wait=10s";
        let written = mesh.put(target, &json!({"Action": action})).await.success();
        assert_eq!(written.header("x-starling-until"), Some("met"), "{:?}", written.headers);
        let answer = http::get(&web.upstream("api"), "/").await.expect("an answer");
        assert_eq!(answer.status, status, "{action} is in effect when the write is answered");
    }

    let nodes = mesh.get("/starling/v1/nodes").await.success().json();
    let node = &nodes["nodes"][0];
    assert_eq!(
        (&node["connected"], &node["lag"], &node["refused"]),
        (&json!(true), &json!(0), &json!([])),
        "{nodes:#}"
    );
    assert_eq!(node["applied_through"], nodes["revision"], "{nodes:#}");

    let folder = tempfile::TempDir::with_prefix("starling-e2e-apply-").expect("a temporary directory");
    let file = folder.path().join("api.hcl");
    let entry = "Kind = \"service-intentions\"\nName = \"api\"\nSources = [{ Name = \"web\", Action = \"allow\" }]\n";
    std::fs::write(&file, entry).expect("a file");
    for _ in 0..2 {
        let applied = mesh.cli(&["apply", "-f", &file.to_string_lossy(), "--wait", "10s"]).await.success();
        assert!(applied.stdout.contains("0 pending, 0 rejected"), "{applied}");
        let answer = http::get(&web.upstream("api"), "/").await.expect("an answer");
        assert_eq!(answer.status, 200, "what was applied is in effect");
    }
}

/// The instances listed in a field of a receipt, without their node.
fn names(receipt: &Value, field: &str) -> Vec<String> {
    let listed = receipt[field].as_array().unwrap_or_else(|| panic!("no {field}: {receipt:#}"));
    let proxies = listed.iter().map(|entry| entry["proxy"].as_str().unwrap_or_else(|| panic!("no proxy: {entry}")));
    proxies.map(|proxy| proxy.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_told_and_the_previous_version_keeps_serving() {
    a_refusal_is_told(Xds::Incremental).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_state_of_the_world_is_told_as_well() {
    a_refusal_is_told(Xds::StateOfTheWorld).await;
}

async fn a_refusal_is_told(xds: Xds) {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, _api) =
        tokio::join!(Workload::new("web").calls("api").xds(xds).start(&mesh), Workload::new("api").start(&mesh));
    let serves = async || {
        let answer = http::get(&web.upstream("api"), "/").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    };
    eventually("api answers", serves).await;

    let mut broken = web.registration.clone();
    let upstreams = &mut broken["Connect"]["SidecarService"]["Proxy"]["Upstreams"];
    upstreams.as_array_mut().expect("upstreams").push(json!({
        "DestinationName": "elsewhere", "LocalBindAddress": NOBODYS_ADDRESS, "LocalBindPort": free_port(),
    }));
    let refused = mesh.put("/v1/agent/service/register?until=applied:all&wait=20s", &broken).await.success();
    assert_eq!(refused.header("x-starling-until"), Some("never"), "{:?}", refused.headers);
    let receipt = mesh.receipt(refused.index(), "10s").await;
    assert_eq!(names(&receipt, "rejected"), ["web-sidecar-proxy"]);
    let text = receipt["rejected"].to_string();
    assert!(text.contains("cannot bind") && text.contains(NOBODYS_ADDRESS), "{text}");
    let status = mesh.cli(&["status", "-o", "json"]).await.success();
    assert!(status.stdout.contains("cannot bind"), "{status}");
    serves().await.expect("the previous version serves");

    // What comes next is applied in spite of it.
    let deny = mesh.intention("web", "api", "deny").await.index();
    eventually("a later change is in effect", async || {
        let answer = http::get(&web.upstream("api"), "/").await?;
        anyhow::ensure!(answer.status == 403, "{}", answer.status);
        Ok(())
    })
    .await;
    let receipt = mesh.receipt(deny, "10s").await;
    assert!(names(&receipt, "applied").contains(&"api-sidecar-proxy".to_owned()), "{receipt:#}");
    let allow = mesh.delete_intention("web", "api").await.index();
    mesh.receipt(allow, "10s").await;

    let repaired = mesh.register(&web.registration).await.index();
    mesh.settled(repaired).await;
    let status = mesh.cli(&["status", "-o", "json"]).await.success();
    assert!(!status.stdout.contains("cannot bind"), "{status}");
    eventually("api answers", serves).await;
}
