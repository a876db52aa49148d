//! What a proxy of its own does when its service is deregistered, and who serves the service when it is registered again.

use serde_json::{Value, json};
use starling_e2e::{Connection, Instance, Mesh, MeshOptions, Plane, Served, Traffic, Workload, eventually, http};

/// A mesh whose agent serves what nobody else does.
async fn native() -> Mesh {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    mesh
}

async fn deregister(mesh: &Mesh, id: &str) {
    let answer = mesh.put(&format!("/v1/agent/service/deregister/{id}"), &Value::Null).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn refuses_connections(instance: &Instance<Served>, when: &str) {
    for authority in [instance.public(), instance.upstream("api")] {
        eventually(&format!("{authority} refuses connections when {when}"), async || {
            anyhow::ensure!(tokio::net::TcpStream::connect(&authority).await.is_err(), "somebody listens");
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_gives_up_its_ports_with_its_registration_and_serves_again_with_the_next() {
    let mesh = native().await;
    let (mut web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Native),
    );
    web.served_by("api", &["api"], "all is well").await;
    // Idle, and so not kept beyond its next request.
    let mut kept = Connection::open(&web.upstream("api")).await.expect("a connection");
    assert_eq!(kept.get("/").await.expect("an answer").status, 200);
    deregister(&mesh, "web").await;
    refuses_connections(&web, "its service is deregistered").await;
    web.sidecar.own().process.expect_running().expect("the proxy waits");
    let log = web.sidecar.own().process.log();
    assert_eq!(log.matches("not registered with the agent any more").count(), 1, "{log}");
    // Its ports are free for others, who have them alone.
    let mut other = web.registration.clone();
    other["ID"] = json!("other");
    other["Name"] = json!("other");
    mesh.register(&other).await;
    web.served_by("api", &["api"], "another service has its ports").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    traffic.requests(30).await;
    traffic.stop_without_failure().await;
    let served = web.sidecar.own().get("/config").await.text();
    assert!(!served.contains("web-sidecar-proxy"), "{served}");
    deregister(&mesh, "other").await;
    refuses_connections(&web, "the other is deregistered, too").await;
    mesh.register(&web.registration).await;
    web.served_by("api", &["api"], "it is registered again").await;
    let served = web.sidecar.own().get("/config").await.text();
    assert!(served.contains("# web-sidecar-proxy at revision"), "the agent left it to the process: {served}");
    let denied = mesh.intention("web", "api", "deny").await.index();
    mesh.settled(denied).await;
    assert_eq!(http::get(&web.upstream("api"), "/").await.expect("an answer").status, 403, "it follows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_serves_what_is_registered_again_when_its_proxy_is_gone() {
    let mesh = native().await;
    let (mut web, mut api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Own),
    );
    web.served_by("api", &["api"], "all is well").await;
    // One is gone before its service is deregistered, the other one after.
    web.sidecar.own().process.kill9();
    deregister(&mesh, "web").await;
    deregister(&mesh, "api").await;
    api.sidecar.own().process.kill9();
    mesh.register(&web.registration).await;
    mesh.register(&api.registration).await;
    web.served_by("api", &["api"], "both are registered again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_has_lost_its_registrations_is_heeded_and_followed_again() {
    let mut mesh = native().await;
    let (mut web, api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Native),
    );
    web.served_by("api", &["api"], "all is well").await;
    mesh.kill9();
    // What the agent says itself is the way to go on without what it had.
    let begun_anew = "{\"format\":\"starling-agent-journal\",\"version\":1}\n";
    let kept = mesh.data_dir().join("agent");
    std::fs::write(kept.join("journal.jsonl"), begun_anew).expect("the agent's journal");
    std::fs::remove_file(kept.join("journal.acknowledged")).expect("what the agent has acknowledged");
    mesh.restart().await;
    refuses_connections(&web, "the agent has lost its registration").await;
    mesh.register(&api.registration).await;
    mesh.register(&web.registration).await;
    eventually("the process serves it again", async || {
        web.sidecar.own().process.expect_running()?;
        let served = http::get(&web.sidecar.own().admin, "/config").await?.text();
        anyhow::ensure!(served.contains("# web-sidecar-proxy at revision"), "{served}");
        Ok(())
    })
    .await;
    web.served_by("api", &["api"], "it is registered again").await;
}
