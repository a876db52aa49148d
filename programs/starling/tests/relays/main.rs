//! Relays in this process, before a real server, over real TLS: what they pass on besides the stream.

mod mesh;
mod wire;

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use mesh::{Agent, DEADLINE, Mesh, eventually};
use starling_rpc::{AliasView, CallError};
use starling_tls::AgentIdentity;
use wire::Wire;

/// More than a server answers at once on one connection.
const FOLLOWS: usize = 300;

/// Of each agent; its own connection takes no more than 256 either.
const FOLLOWS_OF_ONE: usize = 100;

/// Two thirds of a certificate's lifetime and more: it is due.
const LATER: Duration = Duration::from_secs(60 * 60 * 49);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_of_a_tree_renew_their_certificates_each_by_its_own_name() {
    let mesh = Mesh::start().await;
    let above = mesh.relay("above", &mesh.address()).await;
    let middle = mesh.relay("middle", &above.address).await;
    let below = mesh.relay("below", &middle.address).await;
    for relay in [&below, &middle, &above] {
        let before = AgentIdentity::load(relay.data_dir()).expect("it has joined").credentials;
        relay.set_clock_forward(LATER);
        let after = eventually("its certificate is another", async || {
            let now = AgentIdentity::load(relay.data_dir())?.credentials;
            anyhow::ensure!(now.serial() != before.serial(), "it is the same");
            Ok(now)
        })
        .await;
        assert_eq!(after.identity(), before.identity());
        relay.set_clock_forward(Duration::ZERO);
    }
    // By what they have now they are relays as before.
    let agent = Agent::behind(&mesh, &below.address, "n1").await;
    agent.commits().await;
}

type Views = BoxStream<'static, Result<AliasView, CallError>>;

/// Agents that follow another node, and have heard of it.
async fn followers(mesh: &Mesh, relay: &str) -> Vec<(Agent, Vec<Views>)> {
    let mut followers = Vec::new();
    for number in 0..FOLLOWS / FOLLOWS_OF_ONE {
        let agent = Agent::behind(mesh, relay, &format!("n{number}")).await;
        let mut follows = Vec::new();
        for follow in 0..FOLLOWS_OF_ONE {
            let mut views = agent.client.follow_checks(&"elsewhere".parse().expect("a name"), None);
            let first = tokio::time::timeout(DEADLINE, views.next()).await;
            let first = first.unwrap_or_else(|_| panic!("nothing is heard by follower {follow} of {number}"));
            assert_eq!(first, Some(Ok(AliasView::default())));
            follows.push(views);
        }
        followers.push((agent, follows));
    }
    followers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_agents_follow_holds_up_nothing_that_they_ask() {
    let mesh = Mesh::start().await;
    let relay = mesh.relay("r1", &mesh.address()).await;
    let mut followers = followers(&mesh, &relay.address).await;
    for (agent, _) in &followers {
        agent.commits().await;
    }
    // Everyone who follows hears what happens.
    let elsewhere = Agent::behind(&mesh, &relay.address, "elsewhere").await;
    elsewhere.commits().await;
    for views in followers.iter_mut().flat_map(|(_, follows)| follows) {
        let next = tokio::time::timeout(DEADLINE, views.next()).await.expect("it is told").expect("it goes on");
        assert!(next.is_ok_and(|view| view.exists));
    }
    let metrics = relay.metrics();
    assert!(metrics.contains(&format!("relay_follows {FOLLOWS}\n")), "{metrics}");
    drop(followers);
    eventually("nobody follows any more", async || {
        let metrics = relay.metrics();
        anyhow::ensure!(metrics.contains("relay_follows 0\n"), "{metrics}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_for_calls_that_die_alone_are_made_anew_and_the_stream_stays() {
    let mesh = Mesh::start().await;
    let wire = Wire::to(mesh.address()).await;
    let relay = mesh.relay("r1", &wire.address).await;
    eventually("the connection by which it joined is closed", async || {
        anyhow::ensure!(wire.has_ended(1), "{}", wire.count());
        Ok(())
    })
    .await;
    let agent = Agent::behind(&mesh, &relay.address, "n1").await;
    agent.commits().await;
    let mut views = agent.client.follow_checks(&"elsewhere".parse().expect("a name"), None);
    assert_eq!(views.next().await, Some(Ok(AliasView::default())));
    // That of the stream is the oldest that is open.
    assert!(wire.cut_all_but_the_oldest() > 0);
    let ended = tokio::time::timeout(DEADLINE, views.next()).await.expect("it ends").expect("it says why");
    assert!(matches!(ended, Err(CallError::Unavailable { .. })), "{ended:?}");
    agent.commits().await;
    let mut views = agent.client.follow_checks(&"elsewhere".parse().expect("a name"), None);
    assert_eq!(views.next().await, Some(Ok(AliasView::default())));
    let metrics = relay.metrics();
    assert!(metrics.contains("relay_upstream_lost_total 0\n"), "the stream stays: {metrics}");
}
