//! Relays in this process, before a real server, over real TLS: what they pass on besides the stream.

mod mesh;

use std::time::Duration;

use mesh::{Agent, Mesh, eventually};
use starling_tls::AgentIdentity;

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
