//! Which nodes are alive: those whose agent is attached, and those that were within the grace.
//!
//! Liveness is no write per heartbeat. One check per node, named as Consul names it, is written when the node comes, when
//! it is lost, and when it is back after that; a stream that breaks and is back within the grace writes nothing. Where the
//! store is shared it is also written to which server a node has come. That server waits for it when it is away; should the
//! server itself be gone, the leader does.
//!
//! Many nodes come at once, and are lost at once: what is to be said of them while one transaction is under way, and shortly
//! after, goes together in the next. A node may come or be lost while the opposite is being written. So whoever has written looks
//! again, and writes until the catalog says how it stands.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use starling_catalog::{Command, LIVENESS_NODES_MAX, LivenessCommand, Said, decide};
use starling_model::{Change, CheckId, CheckStatus, LIVENESS_CHECK, NodeName, Record, Revision};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::commit::CommitFailure;
use crate::server::Server;

/// How long a node may be away before it is lost, unless the configuration says otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(10);

/// After a start of the server nobody is attached, and after the end of another its nodes are not. As long as nodes keep
/// coming the others are waited for, but no longer than this.
const RETURN_MAX: Duration = Duration::from_secs(60);

/// Pause before a node whose liveness could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Pause after something was written of several nodes. More are coming, as when a server has ended and all of its nodes go
/// elsewhere; every transaction costs each server and each member of the store, and who waits for the nodes' content needs
/// the machine more.
const GATHER: Duration = Duration::from_millis(50);

/// The nodes that are away, and when each is lost.
pub(crate) struct Liveness {
    grace: Duration,
    state: Mutex<State>,
    changed: Notify,
    /// There are nodes of which something may have to be written.
    noted: Notify,
}

struct State {
    /// The node whose agent is of this process: it is alive as long as this is.
    beside: Option<NodeName>,
    away: BTreeMap<NodeName, Away>,
    last_return: Instant,
    /// Nodes of which something may have to be written, each with those who wait for that.
    noted: BTreeMap<NodeName, Vec<oneshot::Sender<()>>>,
}

#[derive(Clone, Copy)]
struct Away {
    lost_at: Instant,
    /// Since when it is known to be away, if that is not its own doing: a server has ended, this one or another, or a relay is
    /// gone with all nodes behind it.
    server_ended_at: Option<Instant>,
}

impl Liveness {
    /// Every node in `alive` was alive when the server last knew, and is waited for.
    pub(crate) fn new(grace: Duration, alive: impl Iterator<Item = NodeName>) -> Self {
        let now = Instant::now();
        let away = Away { lost_at: now + grace, server_ended_at: Some(now) };
        let away = alive.map(|node| (node, away)).collect();
        let state = State { beside: None, away, last_return: now, noted: BTreeMap::new() };
        Self { grace, state: Mutex::new(state), changed: Notify::new(), noted: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves a plain map.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the agent of `node` is of this process.
    pub(crate) fn has_beside(&self, node: &NodeName) -> bool {
        self.lock().beside.as_ref() == Some(node)
    }

    /// The agent of `node` is of this process, so that it never attaches.
    pub(crate) fn is_beside(&self, node: &NodeName) {
        let mut state = self.lock();
        state.away.remove(node);
        state.beside = Some(node.clone());
    }

    /// A node's stream is open.
    pub(crate) fn is_here(&self, node: &NodeName) {
        let mut state = self.lock();
        state.away.remove(node);
        state.last_return = Instant::now();
    }

    /// A node has left the mesh, and is not waited for.
    pub(crate) fn has_left(&self, node: &NodeName) {
        self.lock().away.remove(node);
    }

    /// A node's stream is gone.
    pub(crate) fn is_away(&self, node: &NodeName) {
        let away = Away { lost_at: Instant::now() + self.grace, server_ended_at: None };
        self.lock().away.insert(node.clone(), away);
        self.changed.notify_one();
    }

    /// A node is away with the relay that it was behind; it is on its way here, or elsewhere, with many others.
    pub(crate) fn is_away_with_its_relay(&self, node: &NodeName) {
        let now = Instant::now();
        let away = Away { lost_at: now + self.grace, server_ended_at: Some(now) };
        let mut state = self.lock();
        state.away.insert(node.clone(), away);
        // None of them has had the time to come yet.
        state.last_return = now;
        drop(state);
        self.changed.notify_one();
    }

    /// Nodes whose server has ended are this one's to wait for, but for those that it waits for or has already: it is not
    /// told which these are, so `is_here` says.
    pub(crate) fn look_after(&self, nodes: Vec<NodeName>, is_here: impl Fn(&NodeName) -> bool) {
        let now = Instant::now();
        let mut state = self.lock();
        // Those that were attached there have yet to come.
        state.last_return = now;
        let away = Away { lost_at: now + self.grace, server_ended_at: Some(now) };
        for node in nodes.into_iter().filter(|node| !is_here(node)) {
            state.away.entry(node).or_insert(away);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// A node has come back, here or at another server.
    pub(crate) fn has_come_back(&self) {
        self.lock().last_return = Instant::now();
    }

    /// Has looked at what is to be written of a node; what is returned ends when that was done, or put off.
    fn note(&self, node: NodeName) -> oneshot::Receiver<()> {
        let (done, noted) = oneshot::channel();
        self.lock().noted.entry(node).or_default().push(done);
        self.noted.notify_one();
        noted
    }

    /// Some of the nodes that were noted.
    fn take_noted(&self) -> BTreeMap<NodeName, Vec<oneshot::Sender<()>>> {
        let mut state = self.lock();
        let rest = state.noted.keys().nth(LIVENESS_NODES_MAX).cloned();
        let rest = rest.map(|first| state.noted.split_off(&first)).unwrap_or_default();
        mem::replace(&mut state.noted, rest)
    }

    /// Whether a node is not attached, and not lost either.
    pub(crate) fn is_waited_for(&self, node: &NodeName) -> bool {
        let state = self.lock();
        state.beside.as_ref() == Some(node) || state.away.contains_key(node)
    }

    /// The nodes that are lost by now, or are to be looked at again, and when to look again.
    fn take_lost(&self) -> (Vec<NodeName>, Option<Instant>) {
        let now = Instant::now();
        let mut state = self.lock();
        let come_by = state.last_return + self.grace;
        let due = |away: &Away| match away.server_ended_at {
            Some(ended_at) => away.lost_at.max(come_by.min(ended_at + RETURN_MAX)),
            None => away.lost_at,
        };
        let lost: Vec<_> =
            state.away.iter().filter(|(_, away)| due(away) <= now).map(|(node, _)| node.clone()).collect();
        for node in &lost {
            state.away.remove(node);
        }
        (lost, state.away.values().map(due).min())
    }

    /// Has a node looked at again in a while.
    pub(crate) fn look_again(&self, node: NodeName) {
        let away = Away { lost_at: Instant::now() + RETRY, server_ended_at: None };
        self.lock().away.entry(node).or_insert(away);
        self.changed.notify_one();
    }
}

/// Gives nodes up whose grace is over, until the server is dropped.
pub(crate) async fn watch(server: Weak<Server>, liveness: Arc<Liveness>) {
    loop {
        let (lost, next) = liveness.take_lost();
        let Some(strong) = server.upgrade() else { return };
        for node in lost {
            strong.agents().give_up(&node);
            // Whether it is written in time is nothing to wait for.
            drop(liveness.note(node));
        }
        drop(strong);
        let until = next.unwrap_or_else(|| Instant::now() + RETURN_MAX);
        tokio::select! {
            () = liveness.changed.notified() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

/// Writes what is to be said of nodes, until the server is dropped.
pub(crate) async fn write(server: Weak<Server>, liveness: Arc<Liveness>) {
    loop {
        let noted = liveness.take_noted();
        if noted.is_empty() {
            tokio::select! {
                () = liveness.noted.notified() => {}
                () = tokio::time::sleep(RETURN_MAX) => {}
            }
        }
        let Some(server) = server.upgrade() else { return };
        let (nodes, waiting): (Vec<_>, Vec<_>) = noted.into_iter().unzip();
        server.say(&liveness, &nodes).await;
        for done in waiting.into_iter().flatten() {
            // Not everyone waits.
            let _ = done.send(());
        }
        drop(server);
        // After a full one the next has waited already.
        if (2..LIVENESS_NODES_MAX).contains(&nodes.len()) {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// How it stands with a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its agent is attached.
    Attached,
    /// Away within the grace: the catalog stays as it is.
    WaitedFor,
    /// Neither; it may never have been here.
    Lost,
}

impl Server {
    /// The agent of `node` is of this process: the node is alive without ever attaching.
    pub fn has_beside(&self, node: &NodeName) {
        self.agents().liveness().is_beside(node);
    }

    /// Sees to it that the catalog says whether a node is alive, and whose it is: now, or in a while if it cannot be written
    /// now. Writes only what is news.
    pub(crate) async fn write_liveness(&self, node: &NodeName) {
        // Nobody is left to write where the server ends.
        let _ = self.agents().liveness().note(node.clone()).await;
    }

    /// Takes a node out of the catalog whose agent says that it leaves, with everything on it.
    ///
    /// # Errors
    /// [`CommitFailure`] if that cannot be written; the node is as it was then, or partly gone.
    pub(crate) async fn leave_node(&self, node: &NodeName) -> Result<Revision, CommitFailure> {
        let revision = self.commit(&Command::DeregisterNode(node.clone())).await?;
        self.agents().has_left(node);
        // Where the store is shared it is written that the node is nobody's.
        self.write_liveness(node).await;
        tracing::info!(%node, "node left");
        Ok(revision)
    }

    /// The same for several, at most [`LIVENESS_NODES_MAX`].
    async fn say(&self, liveness: &Liveness, nodes: &[NodeName]) {
        loop {
            let said = nodes.iter().filter_map(|node| match self.agents().presence(node) {
                Presence::Attached => Some((node.clone(), Said::Attached)),
                Presence::WaitedFor => None,
                Presence::Lost => Some((node.clone(), Said::Lost)),
            });
            let command = Command::Liveness(LivenessCommand { by: self.id(), nodes: said.collect() });
            // Nothing of this kind is refused.
            let changes = decide(&self.snapshot(), &command).unwrap_or_default().changes;
            if changes.is_empty() {
                return;
            }
            // Looks again: who came or was lost meanwhile found the catalog as it was before.
            let Err(error) = self.commit(&command).await else {
                changes.iter().for_each(log);
                continue;
            };
            tracing::warn!(nodes = nodes.len(), %error, "cannot write whether nodes are alive");
            nodes.iter().for_each(|node| liveness.look_again(node.clone()));
            return;
        }
    }
}

fn log(change: &Change) {
    if let Change::Put(Record::Check(check)) = change {
        tracing::info!(node = %check.node, status = check.status.as_str(), "node");
    }
}

pub(crate) fn liveness_check() -> CheckId {
    CheckId::new(LIVENESS_CHECK).expect("invariant: an identifier")
}

/// The nodes that count as alive in `snapshot` because their agent was attached.
pub(crate) fn alive(snapshot: &starling_catalog::Snapshot) -> impl Iterator<Item = NodeName> {
    snapshot.nodes().map(|node| &node.value.name).filter(|name| is_alive(snapshot, name)).cloned()
}

/// Whether `snapshot` says that a node's agent is there.
pub(crate) fn is_alive(snapshot: &starling_catalog::Snapshot, node: &NodeName) -> bool {
    let check = snapshot.check(node, &liveness_check());
    check.is_some_and(|check| check.value.status != CheckStatus::Critical)
}

#[cfg(test)]
mod tests;
