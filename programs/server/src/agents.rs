//! The streams of agents: one lock around the pure [`Fleet`], one waker per stream, and the way of each node's reports to
//! its receipts.
//!
//! Nobody awaits while holding the lock. It is taken before the hub's, never after. A commit notes what is pending, opens
//! its receipt, and only then wakes the streams concerned, so that no report can come before there is something to report on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use starling_attach::message::Reached;
use starling_attach::{Fleet, Lineage, StreamId, SubscribeError};
use starling_catalog::{Event, Refused, ReporterId, Snapshot, Subject};
use starling_model::{Change, NodeName, Revision};
use starling_telemetry::{Counter, Gauge, Registry};

use crate::hub::{AttachedNode, Hub};
use crate::liveness::{Liveness, Presence};

/// Every agent's stream.
pub(crate) struct Agents {
    state: Mutex<State>,
    hub: Arc<Hub>,
    liveness: Arc<Liveness>,
    /// Of the store.
    lineage: Lineage,
    started: Instant,
    metrics: Metrics,
}

struct State {
    fleet: Fleet,
    /// By the stream's number.
    attached: BTreeMap<StreamId, Attached>,
    /// The newest stream of each node that is attached, or was and is not yet given up.
    nodes: BTreeMap<NodeName, StreamId>,
}

impl State {
    /// Whether the newest stream of a node is open.
    fn is_attached(&self, node: &NodeName) -> bool {
        let newest = self.nodes.get(node).and_then(|id| self.attached.get(id));
        newest.is_some_and(|attached| !attached.away)
    }
}

struct Attached {
    node: NodeName,
    reporter: ReporterId,
    waker: Option<Waker>,
    /// Whether its connection is gone.
    away: bool,
}

struct Metrics {
    attached: Gauge,
    encoded: Counter,
    sent_frames: Counter,
    sent_bytes: Counter,
}

impl Agents {
    pub(crate) fn new(
        hub: Arc<Hub>,
        liveness: Arc<Liveness>,
        lineage: Lineage,
        snapshot: &Snapshot,
        registry: &Registry,
    ) -> Self {
        let state = State { fleet: Fleet::new(snapshot.clone()), attached: BTreeMap::new(), nodes: BTreeMap::new() };
        let (started, metrics) = (Instant::now(), Metrics::new(registry));
        Self { state: Mutex::new(state), hub, liveness, lineage, started, metrics }
    }

    /// The present epoch of the store.
    pub(crate) fn epoch(&self) -> u64 {
        self.lineage.current()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain maps; at worst a stream is sent something twice.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells everyone concerned of a published snapshot: streams, and in the hub receipts, readers and proxies.
    pub(crate) fn publish(&self, snapshot: &Snapshot, events: &[Event], changes: &[Change]) {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let before = state.fleet.encoded();
        let published = state.fleet.publish(snapshot, changes, now_ms);
        self.metrics.encoded.inc_by(state.fleet.encoded() - before);
        let reporters = published.concerned.iter().filter_map(|id| Some(state.attached.get(id)?.reporter));
        let reporters: Vec<_> = reporters.collect();
        self.hub.publish(snapshot, events, &reporters);
        let wakers = published.woken.iter().filter_map(|id| state.attached.get_mut(id)?.waker.take());
        let wakers: Vec<_> = wakers.collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Attaches a node's stream. An earlier stream of the node ends.
    pub(crate) fn attach(self: &Arc<Self>, node: NodeName) -> AgentStream {
        let mut state = self.lock();
        self.liveness.is_here(&node);
        let receipts = self.hub.attach_node(node.clone());
        let id = state.fleet.attach(node.clone());
        let attached = Attached { node: node.clone(), reporter: receipts.reporter(), waker: None, away: false };
        state.attached.insert(id, attached);
        if let Some(earlier) = state.nodes.insert(node, id) {
            state.fleet.remove(earlier);
            if let Some(Attached { away: false, waker, .. }) = state.attached.remove(&earlier) {
                // It sees that it is no longer the current one, and ends.
                waker.into_iter().for_each(Waker::wake);
            } else {
                self.metrics.attached.inc();
            }
        } else {
            self.metrics.attached.inc();
        }
        AgentStream { agents: Arc::clone(self), id, receipts }
    }

    /// How it stands with a node, at one moment.
    pub(crate) fn presence(&self, node: &NodeName) -> Presence {
        let state = self.lock();
        if state.is_attached(node) {
            Presence::Attached
        } else if self.liveness.is_waited_for(node) {
            Presence::WaitedFor
        } else {
            Presence::Lost
        }
    }

    /// Which nodes are alive.
    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Nodes whose server has ended are this one's to wait for.
    pub(crate) fn look_after(&self, nodes: Vec<NodeName>) {
        let state = self.lock();
        self.liveness.look_after(nodes, |node| state.is_attached(node));
    }

    /// A node has come to another server: its stream here, if there is one, ends.
    pub(crate) fn supersede(&self, node: &NodeName) {
        let mut state = self.lock();
        let Some(id) = state.nodes.get(node).copied() else { return };
        if let Some(Attached { away, waker, .. }) = state.attached.remove(&id) {
            tracing::debug!(%node, "the node has come to another server");
            state.nodes.remove(node);
            state.fleet.remove(id);
            self.liveness.is_here(node);
            if !away {
                self.metrics.attached.dec();
            }
            // It sees that it is no longer the current one, and ends.
            waker.into_iter().for_each(Waker::wake);
        }
        drop(state);
        self.hub.remove_node(node);
    }

    /// How many agents are attached.
    pub(crate) fn attached(&self) -> u32 {
        u32::try_from(self.metrics.attached.get()).unwrap_or_default()
    }

    /// Whether a node's agent is attached.
    pub(crate) fn is_attached(&self, node: &NodeName) -> bool {
        self.presence(node) == Presence::Attached
    }

    /// Gives up a node unless it is attached: receipts expect nothing more of it.
    pub(crate) fn give_up(&self, node: &NodeName) {
        let mut state = self.lock();
        if let Some(id) = state.nodes.get(node).copied() {
            if state.attached.get(&id).is_some_and(|attached| !attached.away) {
                return;
            }
            state.nodes.remove(node);
            state.attached.remove(&id);
            state.fleet.remove(id);
        }
        self.hub.remove_node(node);
    }
}

/// One agent's stream; when dropped the node counts as away.
pub struct AgentStream {
    agents: Arc<Agents>,
    id: StreamId,
    receipts: AttachedNode,
}

/// A later stream of the same node has taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a later stream of this node has taken over")]
pub struct Superseded;

impl AgentStream {
    /// Subscribes to subjects, each with what the agent has of it, having heard so far.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing is subscribed then.
    pub fn subscribe(
        &self,
        mut resumes: Vec<(Subject, Revision)>,
        reached: Option<&Reached>,
    ) -> Result<(), SubscribeError> {
        let mut state = self.agents.lock();
        if !state.attached.contains_key(&self.id) {
            return Ok(());
        }
        let at = state.fleet.revision();
        self.agents.lineage.admit(&mut resumes, reached, at)?;
        state.fleet.subscribe(self.id, &resumes)?;
        // What is fresh to the agent is sent as it is now; only what it had before may be behind.
        let mut by_revision: BTreeMap<Revision, BTreeSet<Subject>> = BTreeMap::new();
        for (subject, have) in resumes {
            let as_of = if have == Revision(0) { at } else { have };
            by_revision.entry(as_of).or_default().insert(subject);
        }
        for (as_of, subjects) in by_revision {
            self.receipts.subscribed(as_of, &subjects);
        }
        wake(&mut state, self.id);
        Ok(())
    }

    /// Ends subscriptions.
    pub fn unsubscribe(&self, subjects: &[Subject]) {
        let mut state = self.agents.lock();
        if state.attached.contains_key(&self.id) {
            state.fleet.unsubscribe(self.id, subjects);
        }
    }

    /// Everything up to `through` is in force at the node, and has been for as long as `held`; `refusals_stand` if a proxy
    /// still refuses something.
    pub fn applied(&self, through: Revision, refusals_stand: bool, held: Duration) {
        self.receipts.applied(through, refusals_stand, held);
    }

    /// A proxy of the node, named in `refused`, refused a resource.
    pub fn rejected(&self, refused: Refused) {
        self.receipts.rejected(refused);
    }

    /// The frames to send next, in order.
    ///
    /// # Errors
    /// [`Superseded`] once a later stream of the node has taken over.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, Superseded>> {
        let mut state = self.agents.lock();
        let Some(attached) = state.attached.get_mut(&self.id) else { return Poll::Ready(Err(Superseded)) };
        attached.waker = Some(context.waker().clone());
        let before = state.fleet.encoded();
        let frames = state.fleet.take(self.id, self.agents.now_ms());
        let encoded = state.fleet.encoded() - before;
        drop(state);
        if frames.is_empty() {
            return Poll::Pending;
        }
        let metrics = &self.agents.metrics;
        metrics.encoded.inc_by(encoded);
        metrics.sent_frames.inc_by(frames.len() as u64);
        metrics.sent_bytes.inc_by(frames.iter().map(|frame| frame.len() as u64).sum());
        Poll::Ready(Ok(frames))
    }
}

impl Drop for AgentStream {
    fn drop(&mut self) {
        let mut state = self.agents.lock();
        let Some(attached) = state.attached.get_mut(&self.id) else { return };
        attached.away = true;
        attached.waker = None;
        self.agents.liveness.is_away(&attached.node);
        state.fleet.leave(self.id);
        self.agents.metrics.attached.dec();
    }
}

fn wake(state: &mut State, id: StreamId) {
    let waker = state.attached.get_mut(&id).and_then(|attached| attached.waker.take());
    waker.into_iter().for_each(Waker::wake);
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        let counter = |name, help| registry.register(name, help, Counter::default());
        Self {
            attached: registry.register("agents_attached", "Agents whose stream is open", Gauge::default()),
            encoded: counter("agent_frames_encoded", "Frames encoded for agents; each is encoded once for all"),
            sent_frames: counter("agent_frames_sent", "Frames taken by agents' streams"),
            sent_bytes: counter("agent_bytes_sent", "Bytes of frames taken by agents' streams"),
        }
    }
}
