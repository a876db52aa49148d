//! Envoys that speak the older form of xDS, in which each response holds all resources of a type.

use starling_e2e::{Instance, Mesh, MeshOptions, Traffic, Workload, Xds, eventually, http};

fn workload(name: &str) -> Workload {
    Workload::new(name).xds(Xds::StateOfTheWorld)
}

async fn api_answers(web: &Instance, expected: u16) {
    eventually(&format!("api answers {expected}"), async || {
        let answer = http::get(&web.upstream("api"), "/").await?;
        anyhow::ensure!(answer.status == expected, "{}", answer.status);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_that_takes_the_whole_state_follows_every_change() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, first) =
        tokio::join!(workload("web").calls("api").start(&mesh), workload("api").id("api-1").start(&mesh));
    let bootstrap = web.sidecar.config_dump().await["configs"][0]["bootstrap"].take();
    assert_eq!(bootstrap["dynamic_resources"]["ads_config"]["api_type"], "GRPC", "what this test is about");
    web.served_by("api", &["api-1"], "it is the only one").await;

    let traffic = Traffic::start(&web.upstream("api"), "/");
    let _second = workload("api").id("api-2").start(&mesh).await;
    web.served_by("api", &["api-1", "api-2"], "another has come").await;
    let gone = mesh.put("/v1/agent/service/deregister/api-1", &().into()).await.success().index();
    mesh.settled(gone).await;
    web.served_by("api", &["api-2"], "one is deregistered").await;
    // Whoever still called it would fail.
    drop(first);
    mesh.kill9();
    traffic.requests(100).await;
    mesh.restart().await;
    traffic.stop_without_failure().await;

    let deny = mesh.intention("web", "api", "deny").await.index();
    mesh.settled(deny).await;
    api_answers(&web, 403).await;
    let allow = mesh.delete_intention("web", "api").await.index();
    mesh.settled(allow).await;
    api_answers(&web, 200).await;
}
