//! Which nodes are alive: those whose agent is attached, and those that were within the grace.
//!
//! Liveness is no write per heartbeat. One check per node, named as Consul names it, is written when the node comes, when
//! it is lost, and when it is back after that; a stream that breaks and is back within the grace writes nothing.
//!
//! A node may come or be lost while the opposite is being written. So whoever has written looks again, and writes until the
//! catalog says how it stands.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use starling_catalog::Command;
use starling_model::{Change, Check, CheckId, CheckStatus, LIVENESS_CHECK, NodeName, Record};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::server::Server;

/// How long a node may be away before it is lost, unless the configuration says otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(10);

/// After a start of the server nobody is attached. As long as nodes keep coming the others are waited for, but no longer
/// than this.
const RETURN_MAX: Duration = Duration::from_secs(60);

/// Nodes written as lost at once: a rack that goes dark must not crowd out what users write.
const WRITES_MAX: usize = 32;

/// Pause before a node whose liveness could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The nodes that are away, and when each is lost.
pub(crate) struct Liveness {
    grace: Duration,
    started: Instant,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    away: BTreeMap<NodeName, Away>,
    last_return: Instant,
}

#[derive(Clone, Copy)]
struct Away {
    lost_at: Instant,
    /// Whether it has not been here since the server started.
    since_start: bool,
}

impl Liveness {
    /// Every node in `alive` was alive when the server last knew, and is waited for.
    pub(crate) fn new(grace: Duration, alive: impl Iterator<Item = NodeName>) -> Self {
        let now = Instant::now();
        let away = Away { lost_at: now + grace, since_start: true };
        let state = State { away: alive.map(|node| (node, away)).collect(), last_return: now };
        Self { grace, started: now, state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves a plain map.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's stream is open.
    pub(crate) fn is_here(&self, node: &NodeName) {
        let mut state = self.lock();
        state.away.remove(node);
        state.last_return = Instant::now();
    }

    /// A node's stream is gone.
    pub(crate) fn is_away(&self, node: &NodeName) {
        let away = Away { lost_at: Instant::now() + self.grace, since_start: false };
        self.lock().away.insert(node.clone(), away);
        self.changed.notify_one();
    }

    /// Whether a node is away and not lost yet.
    pub(crate) fn is_waited_for(&self, node: &NodeName) -> bool {
        self.lock().away.contains_key(node)
    }

    /// The nodes that are lost by now, or are to be looked at again, and when to look again.
    fn take_lost(&self) -> (Vec<NodeName>, Option<Instant>) {
        let now = Instant::now();
        let mut state = self.lock();
        let waited_for = (state.last_return + self.grace).min(self.started + RETURN_MAX);
        let due = |away: &Away| if away.since_start { away.lost_at.max(waited_for) } else { away.lost_at };
        let lost: Vec<_> =
            state.away.iter().filter(|(_, away)| due(away) <= now).map(|(node, _)| node.clone()).collect();
        for node in &lost {
            state.away.remove(node);
        }
        (lost, state.away.values().map(due).min())
    }

    /// Has a node looked at again in a while.
    pub(crate) fn look_again(&self, node: NodeName) {
        let away = Away { lost_at: Instant::now() + RETRY, since_start: false };
        self.lock().away.entry(node).or_insert(away);
        self.changed.notify_one();
    }
}

/// Writes nodes as lost until the server is dropped.
pub(crate) async fn watch(server: Weak<Server>, liveness: Arc<Liveness>) {
    loop {
        let (lost, next) = liveness.take_lost();
        for some in lost.chunks(WRITES_MAX) {
            let Some(server) = server.upgrade() else { return };
            let mut writes = tokio::task::JoinSet::new();
            for node in some {
                let (server, node) = (Arc::clone(&server), node.clone());
                writes.spawn(async move {
                    server.agents().give_up(&node);
                    server.write_liveness(&node).await;
                });
            }
            while writes.join_next().await.is_some() {}
        }
        if server.strong_count() == 0 {
            return;
        }
        let until = next.unwrap_or_else(|| Instant::now() + RETURN_MAX);
        tokio::select! {
            () = liveness.changed.notified() => {}
            () = tokio::time::sleep_until(until) => {}
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
    /// Sees to it that the catalog says whether a node is alive: now, or in a while if it cannot be written now. Writes only
    /// what is news.
    pub(crate) async fn write_liveness(&self, node: &NodeName) {
        loop {
            let status = match self.agents().presence(node) {
                Presence::Attached => CheckStatus::Passing,
                Presence::WaitedFor => return,
                Presence::Lost => CheckStatus::Critical,
            };
            let snapshot = self.snapshot();
            let known = snapshot.check(node, &liveness_check()).map(|check| check.value.status);
            if snapshot.node(node).is_none() || known == Some(status) {
                return;
            }
            match self.commit(&liveness_command(node, status)).await {
                // Looks again: who came or was lost meanwhile found the catalog as it was before.
                Ok(revision) => tracing::info!(%node, %revision, status = status.as_str(), "node"),
                Err(error) => {
                    tracing::warn!(%node, %error, "cannot write whether a node is alive");
                    return self.agents().look_again(node.clone());
                }
            }
        }
    }
}

fn liveness_check() -> CheckId {
    CheckId::new(LIVENESS_CHECK).expect("invariant: an identifier")
}

fn liveness_command(node: &NodeName, status: CheckStatus) -> Command {
    let output = match status {
        CheckStatus::Passing | CheckStatus::Warning => "Agent alive and reachable",
        CheckStatus::Critical => "Agent not attached to any server",
    };
    let check = Check {
        node: node.clone(),
        id: liveness_check(),
        name: "Agent liveness".to_owned(),
        status,
        notes: String::new(),
        output: output.to_owned(),
        service: None,
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
    };
    Command::Node { name: node.clone(), changes: vec![Change::Put(Record::Check(check))] }
}

/// The nodes that count as alive in `snapshot` because their agent was attached.
pub(crate) fn alive(snapshot: &starling_catalog::Snapshot) -> impl Iterator<Item = NodeName> {
    let id = liveness_check();
    snapshot.nodes().map(|node| &node.value.name).filter_map(move |name| {
        let check = snapshot.check(name, &id)?;
        (check.value.status != CheckStatus::Critical).then(|| name.clone())
    })
}

#[cfg(test)]
mod tests;
