//! A server that is cut off from its store: its nodes are not lost for it where another server can have them, nor for long where none can.

use std::time::Duration;

use starling_e2e::etcd::Etcd;
use starling_e2e::{Cable, Mesh, MeshOptions, Program, eventually};

use crate::servers::is;
use crate::streams::{STANDBY, agent, is_attached, metric, until_metric};

/// Short, so that a node that is lost by mistake is lost within the test.
const GRACE: &str = "node_grace = \"6s\"\n";

/// An address of the documentation's (RFC 5737), so of no machine.
const NOBODYS_ADDRESS: &str = "192.0.2.1";

const MOVES: &str = "starling_agent_stream_moves_total{result=\"done\"}";
const PROMOTIONS: &str = "starling_agent_stream_promotions_total";

async fn server(store: String, advertise: Option<&'static str>) -> Mesh {
    let program = Program::Server(GRACE.to_owned());
    Mesh::start(MeshOptions { program, store: Some(store), advertise, ..MeshOptions::default() }).await
}

/// A server that can be cut off, its cable, and an agent that is attached to it.
async fn first(etcd: &Etcd) -> (Mesh, Cable, Mesh) {
    let cable = etcd.cable().await;
    let first = server(etcd.store_over(&cable), None).await;
    let agent = agent("n1", &[&first]).await;
    is(&first, "n1", "passing").await;
    (first, cable, agent)
}

/// Waits until a server has had no contact with its store for so long.
pub(crate) async fn without_contact(server: &Mesh, at_least: Duration) {
    eventually(&format!("it is without contact for {at_least:?}"), async || {
        let read = server.get("/v1/catalog/nodes?stale").await.success();
        let age: u128 = read.header("x-consul-lastcontact").unwrap_or_default().parse()?;
        anyhow::ensure!(age >= at_least.as_millis(), "{age} ms");
        Ok(())
    })
    .await;
}

/// The index of what was written last on the node's liveness, as that server sees it.
async fn liveness_index(server: &Mesh) -> u64 {
    server.get("/v1/health/node/n1").await.success().index()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_server_that_is_cut_off_go_to_one_that_is_not() {
    let etcd = Etcd::start().await;
    let (first, cable, agent) = first(&etcd).await;
    let second = server(etcd.store(), None).await;
    until_metric(&agent, STANDBY, 1.0).await;
    is(&second, "n1", "passing").await;
    assert!(is_attached(&first, "n1").await, "one node alone stays where it is");
    let alive_since = liveness_index(&second).await;

    cable.cut();
    eventually("the node has gone to the server that has its store", async || {
        anyhow::ensure!(is_attached(&second, "n1").await);
        Ok(())
    })
    .await;
    assert_eq!(metric(&agent, MOVES).await, Some(1.0), "it was asked to, and lost no stream");
    assert_eq!(metric(&agent, PROMOTIONS).await, Some(0.0));
    // Longer than a lease and the grace.
    without_contact(&first, Duration::from_secs(13)).await;
    assert_eq!(liveness_index(&second).await, alive_since, "it was lost");

    cable.mend();
    eventually("the server is there again", async || {
        let ready = first.get("/starling/v1/health/ready?writes").await;
        anyhow::ensure!(ready.status == 200, "{}", ready.text());
        let peers = second.get("/v1/status/peers").await.success().json();
        anyhow::ensure!(peers.as_array().is_some_and(|peers| peers.len() == 2), "{peers}");
        Ok(())
    })
    .await;
    until_metric(&agent, STANDBY, 1.0).await;
    assert!(is_attached(&second, "n1").await && !is_attached(&first, "n1").await);
    assert_eq!(liveness_index(&second).await, alive_since);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_sent_anywhere_while_the_store_is_gone_for_all() {
    let mut etcd = Etcd::start().await;
    let (first, _cable, agent) = first(&etcd).await;
    let second = server(etcd.store(), None).await;
    until_metric(&agent, STANDBY, 1.0).await;
    is(&second, "n1", "passing").await;
    etcd.kill9();
    for server in [&first, &second] {
        // They look each second once five have passed.
        without_contact(server, Duration::from_secs(9)).await;
    }
    assert!(is_attached(&first, "n1").await);
    assert_eq!((metric(&agent, MOVES).await, metric(&agent, PROMOTIONS).await), (Some(0.0), Some(0.0)));
    etcd.restart().await;
    is(&second, "n1", "passing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_can_go_nowhere_is_lost_and_back_with_its_server() {
    let etcd = Etcd::start().await;
    let (first, cable, agent) = first(&etcd).await;
    // Neither the agent nor the first server reaches it.
    let second = server(etcd.store(), Some(NOBODYS_ADDRESS)).await;
    is(&second, "n1", "passing").await;
    cable.cut();
    is(&second, "n1", "critical").await;
    assert_eq!(metric(&agent, MOVES).await, Some(0.0));
    assert!(is_attached(&first, "n1").await, "it is there all the time");
    cable.mend();
    is(&second, "n1", "passing").await;
    assert!(is_attached(&first, "n1").await);
    assert_eq!(metric(&agent, PROMOTIONS).await, Some(0.0));
}
