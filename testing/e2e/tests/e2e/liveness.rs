//! Nodes that go away: back within the grace nobody has noticed, and after it what they had is gone everywhere at once.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Program, Workload, eventually};

use crate::apart::{agent, answered, connected};

/// A server with this grace, in seconds.
async fn server(grace: u64) -> Mesh {
    let program = Program::Server(format!("node_grace = \"{grace}s\"\n"));
    Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await
}

/// A read that waits for a change of what it has seen; answers with the index before and after.
async fn watched(server: &Mesh, target: &str, seconds: u64) -> (u64, u64) {
    let before = server.get(target).await.success().index();
    let separator = if target.contains('?') { '&' } else { '?' };
    let after = server.get(&format!("{target}{separator}index={before}&wait={seconds}s")).await.success().index();
    (before, after)
}

/// The check that says whether a node lives.
async fn liveness_check(server: &Mesh, node: &str) -> Value {
    let checks = server.get(&format!("/v1/health/node/{node}")).await.success().json();
    let check = checks.as_array().into_iter().flatten().find(|check| check["CheckID"] == "serfHealth");
    check.unwrap_or_else(|| panic!("no liveness check: {checks}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_back_within_the_grace_was_never_away() {
    let server = server(60).await;
    let mut agent = agent(&server, "n1").await;
    agent.register(&json!({"Name": "web", "Port": 80})).await;
    eventually("the node counts as alive", async || {
        let check = liveness_check(&server, "n1").await;
        anyhow::ensure!(check["Status"] == "passing", "{check}");
        Ok(())
    })
    .await;
    let (revision, check) = (server.revision().await, liveness_check(&server, "n1").await);

    let comes_and_goes = async {
        // Its process ends, and another takes its place.
        agent.kill9();
        connected(&server, "n1", false).await;
        agent.restart().await;
        connected(&server, "n1", true).await;
        // It falls silent, which is found out, and goes on as if nothing had been.
        let pid = agent.server().pid();
        kill(pid, Signal::SIGSTOP).expect("it runs");
        connected(&server, "n1", false).await;
        kill(pid, Signal::SIGCONT).expect("it runs");
        connected(&server, "n1", true).await;
    };
    let ((), node, service, list) = tokio::join!(
        comes_and_goes,
        watched(&server, "/v1/health/node/n1", 10),
        watched(&server, "/v1/health/service/web?passing=true", 10),
        watched(&server, "/v1/catalog/nodes", 10),
    );
    for (before, after) in [node, service, list] {
        assert_eq!(before, after, "a watcher was woken");
    }
    assert_eq!(server.revision().await, revision, "something was written");
    assert_eq!(liveness_check(&server, "n1").await, check);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_node_had_is_gone_everywhere_right_after_the_grace() {
    const GRACE: Duration = Duration::from_secs(4);
    // Promised is a second. Here other tests want the cores, too; what would be wrong takes longer than this: to notice the
    // end of the connection by its silence (three seconds), or to wait for the grace twice.
    const LATE: Duration = Duration::from_millis(2500);
    let server = server(GRACE.as_secs()).await;
    let (here, mut there) = tokio::join!(agent(&server, "here"), agent(&server, "there"));
    server.protocol("api", "http").await;
    let _api = Workload::new("api").start(&there).await;
    let web = Workload::new("web").calls("api").start(&here).await;
    web.served_by("api", &["api"], "both nodes are up").await;

    let gone_from = async |mesh: &Mesh, since: Instant| {
        eventually("the instance is gone", async || {
            let passing = mesh.get("/v1/health/service/api?passing=true").await.success().json();
            anyhow::ensure!(passing.as_array().is_some_and(Vec::is_empty), "{passing}");
            Ok(since.elapsed())
        })
        .await
    };
    // The workload and its proxy are up still: it is by the word of the mesh alone that nobody calls them.
    there.kill9();
    let since = Instant::now();
    let (at_server, at_agent, ()) = tokio::join!(gone_from(&server, since), gone_from(&here, since), async {
        answered(&web, "api", 503, "the node is lost").await;
    });
    let in_traffic = since.elapsed();
    println!("gone after {at_server:?} at the server, {at_agent:?} through an agent, {in_traffic:?} in traffic");
    for after in [at_server, at_agent, in_traffic] {
        assert!(after >= GRACE, "lost after {after:?}, within the grace");
        assert!(after <= GRACE + LATE, "gone only after {after:?}");
    }
}
