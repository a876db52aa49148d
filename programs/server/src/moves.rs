//! Agents that are to go to another server: a few, so that all servers have about as many, or all, since this one is leaving.
//!
//! Nobody is sent away: an agent is asked, opens a stream elsewhere, or has one open, and closes the one here when it
//! needs it no more. What is asked in a round is bounded, since the others have to take them in.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use starling_attach::balance::{Move, directed};
use starling_attach::message::MoveTo;
use starling_catalog::Snapshot;
use starling_model::{ServerId, ServerRecord};
use tokio::time::Instant;

use crate::server::Server;

/// Between two rounds of balancing: an agent that was asked has moved by the next.
const ROUND: Duration = Duration::from_secs(10);

/// How long leaving takes at most: a fleet of ten thousand takes a third of it.
pub const LEAVE_WITHIN: Duration = Duration::from_secs(30);

/// Agents asked in one step when all are to go, and the pause between two steps: a thousand each second.
pub const LEAVING_STEP: usize = 100;
/// See [`LEAVING_STEP`].
pub const LEAVING_PAUSE: Duration = Duration::from_millis(100);

/// How far a server is that is leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Whether it has begun.
    pub begun: bool,
    /// Agents that are attached to it still.
    pub attached: u32,
    /// Agents that have a stream in reserve here still.
    pub standby: u32,
    /// Whether it has left: it is no longer among the servers, and ends.
    pub done: bool,
}

/// Directs agents to servers that have fewer, until the server is dropped.
pub(crate) async fn balance(server: Weak<Server>) {
    loop {
        // Servers that started together do not count together.
        tokio::time::sleep(ROUND.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let Some(server) = server.upgrade() else { return };
        let Some(me) = server.id() else { return };
        let snapshot = server.snapshot();
        // Of one that is cut off from the store nobody says how many the others have.
        if server.agents().is_leaving() || !server.currency().knows_leader {
            continue;
        }
        let counts = attached(&snapshot, me);
        let others: Vec<_> = counts.iter().map(|(id, (_, count))| (*id, *count)).collect();
        let own = server.agents().attached() as usize;
        let Some(Move { to, count }) = directed(own, &others) else { continue };
        let (record, theirs) = counts[&to];
        let asked = server.send_away(count, record);
        tracing::info!(own, theirs, asked, to = %record.name, address = record.agents, "agents are asked to move");
    }
}

/// How many nodes each of the other servers has that take any.
fn attached(snapshot: &Snapshot, me: ServerId) -> BTreeMap<ServerId, (&ServerRecord, usize)> {
    let others = snapshot.servers().map(|server| &server.value);
    let others = others.filter(|server| server.id != me && !server.leaving && !server.agents.is_empty());
    let mut counts: BTreeMap<_, _> = others.map(|server| (server.id, (server, 0))).collect();
    for attachment in snapshot.attachments() {
        if let Some((_, count)) = counts.get_mut(&attachment.value.server) {
            *count += 1;
        }
    }
    counts
}

impl Server {
    /// Asks at most `max` of the agents that are attached here to go to another server, but none that was asked within half a
    /// minute to go to any: it is on its way, or could not go. Answers with how many these were.
    #[must_use]
    pub fn send_away(&self, max: usize, to: &ServerRecord) -> usize {
        let to = MoveTo { server: to.id.to_string(), address: to.agents.clone() };
        self.agents().direct(max, &to, std::time::Instant::now())
    }

    /// Asks every relay that is attached here to go to another server with all nodes behind it, but none that was asked within half
    /// a minute. Answers with how many these were.
    #[must_use]
    pub fn send_relays_away(&self, to: &ServerRecord) -> usize {
        let to = MoveTo { server: to.id.to_string(), address: to.agents.clone() };
        self.agents().direct_relays(&to, std::time::Instant::now())
    }

    /// Begins to leave, and answers with how far that is; what has begun goes on. It is leaving once, and for good.
    pub fn leave(self: &Arc<Self>) -> Leaving {
        if self.agents().begin_leaving() {
            tokio::spawn(Arc::clone(self).see_off());
        }
        self.leaving()
    }

    /// How far leaving is.
    #[must_use]
    pub fn leaving(&self) -> Leaving {
        let done = *self.left_sender().borrow();
        Leaving {
            begun: self.agents().is_leaving(),
            attached: self.agents().attached(),
            standby: self.agents().standby(),
            done,
        }
    }

    /// Returns once this server has left.
    pub async fn left(&self) {
        let mut left = self.left_sender().subscribe();
        // The sender lives as long as self, so this is reached in no other way.
        let _ = left.wait_for(|left| *left).await;
    }

    async fn see_off(self: Arc<Self>) {
        let until = Instant::now() + LEAVE_WITHIN;
        self.announce_leaving();
        let has_others = self.id().is_some_and(|me| !attached(&self.snapshot(), me).is_empty());
        tracing::info!(attached = self.agents().attached(), has_others, "leaving");
        while has_others && Instant::now() < until {
            let asked = self.agents().say_leaving(LEAVING_STEP);
            if asked == 0 && self.agents().attached() + self.agents().standby() == 0 {
                break;
            }
            tokio::time::sleep(LEAVING_PAUSE).await;
        }
        let Leaving { attached, standby, .. } = self.leaving();
        self.resign().await;
        tracing::info!(attached, standby, "left");
        self.left_sender().send_replace(true);
    }
}
