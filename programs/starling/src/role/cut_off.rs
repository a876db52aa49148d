//! A server that has no contact with its store while another one has: its nodes go there.
//!
//! To the others such a server is gone, and the nodes of a server that is gone are lost after a grace, though their agents are
//! well and hear it. Whether the store is gone for everybody it cannot know by itself, so it asks the other servers that it
//! knew last; as long as none of them has heard of the store much later than this one the agents are best where they are, and
//! stay.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use starling_model::ServerRecord;
use starling_server::{LEASE_TTL, LEAVING_PAUSE, LEAVING_STEP, Server};
use tokio::time::sleep;

use super::peers::Peers;

/// Between two looks at whether there is contact.
const LOOK: Duration = Duration::from_secs(1);

/// For so long a server may be without contact to which agents are sent: it asks the store every second. Far less than what
/// makes a server one that is cut off, so that of several that lose the store together none sends its agents to another.
const CONTACT_WITHIN: Duration = Duration::from_secs(3);

/// Sends agents away when it is due, for as long as this is not dropped.
pub(crate) async fn run(server: Arc<Server>, peers: Arc<Peers>) {
    loop {
        sleep(LOOK).await;
        if !is_cut_off(&server) {
            continue;
        }
        let others = peers.others();
        let contact = join_all(others.iter().map(|peer| peers.without_contact(&peer.value))).await;
        let has_contact = |without: &Option<Duration>| without.is_some_and(|without| without < CONTACT_WITHIN);
        let to = others.iter().zip(contact).filter(|(_, without)| has_contact(without)).map(|(peer, _)| &peer.value);
        let to: Vec<_> = to.collect();
        if !to.is_empty() {
            send_away(&server, &to).await;
        }
    }
}

/// Its record has gone with its lease by then, or is about to.
fn is_cut_off(server: &Server) -> bool {
    server.id().is_some() && server.currency().last_contact > LEASE_TTL
}

/// Asks every agent, some at a time, each of the servers being given as many; one that is here still after half a minute is asked
/// again.
async fn send_away(server: &Server, to: &[&ServerRecord]) {
    let mut sent = 0;
    if let Some(to) = to.first() {
        let relays = server.send_relays_away(to);
        if relays > 0 {
            tracing::warn!(relays, to = %to.name, "this server is cut off from its store: relays are asked to go elsewhere");
        }
    }
    for to in to.iter().cycle() {
        let asked = server.send_away(LEAVING_STEP, to);
        sent += asked;
        if asked < LEAVING_STEP || !is_cut_off(server) {
            break;
        }
        sleep(LEAVING_PAUSE).await;
    }
    if sent > 0 {
        tracing::warn!(
            agents = sent,
            without_contact = ?server.currency().last_contact,
            "this server is cut off from its store, and others are not: its agents are asked to go there"
        );
    }
}
