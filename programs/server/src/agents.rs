//! The streams of agents: one lock around the pure [`Fleet`], one waker per stream, and the way of each node's reports to
//! its receipts.
//!
//! A node has one primary stream, by which it is here and reports to receipts, and may have one in reserve, which is told the
//! same and counts for nothing until it is promoted.
//!
//! Nobody awaits while holding the lock. It is taken before the hub's, never after. A commit notes what is pending, opens
//! its receipt, and only then wakes the streams concerned, so that no report can come before there is something to report on.

mod behind;
mod elsewhere;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use starling_attach::message::{LEVEL_OF_MOVES, Reached};
use starling_attach::{Fleet, Lineage, StreamId, SubscribeError};
use starling_catalog::{Event, Refused, ReporterId, Snapshot, Subject};
use starling_model::{Change, NodeName, Revision};
use starling_telemetry::{Counter, Gauge, Registry};
use tokio::sync::Notify;

use crate::hub::{AttachedNode, Hub};
use crate::liveness::{Liveness, Presence};

use behind::OfRelay;
pub(crate) use behind::RelayStream;

/// Time after which streams in reserve are told what primaries are told at once: with several servers the machines of a fleet have
/// twice as much to hear, and hear what counts first.
const RESERVE_AFTER: Duration = Duration::from_millis(100);

/// Every agent's stream.
pub(crate) struct Agents {
    state: Mutex<State>,
    /// There are streams in reserve to be told of something.
    later: Arc<Notify>,
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
    /// The newest primary stream of each node that is attached, or was and is not yet given up.
    nodes: BTreeMap<NodeName, StreamId>,
    /// The newest stream in reserve of each node that has one here.
    standbys: BTreeMap<NodeName, StreamId>,
    /// The streams of relays.
    relays: BTreeMap<StreamId, OfRelay>,
    /// Streams in reserve that are to be told of something.
    later: Vec<StreamId>,
    /// Whether the server is leaving: nobody attaches any more.
    leaving: bool,
}

impl State {
    /// Whether a stream is one that its node has beside its primary.
    fn is_in_reserve(&self, id: StreamId) -> bool {
        self.attached.get(&id).is_some_and(|attached| self.standbys.get(&attached.node) == Some(&id))
    }

    /// What wakes these streams.
    fn wakers(&mut self, streams: Vec<StreamId>) -> Vec<Waker> {
        streams.into_iter().filter_map(|id| self.attached.get_mut(&id)?.waker.take()).collect()
    }

    /// Whether the newest stream of a node is open.
    fn is_attached(&self, node: &NodeName) -> bool {
        let newest = self.nodes.get(node).and_then(|id| self.attached.get(id));
        newest.is_some_and(|attached| !attached.away)
    }
}

struct Attached {
    /// The node, or the relay.
    node: NodeName,
    /// By what it reports, once it is a primary; kept by the stream.
    reporter: Option<ReporterId>,
    waker: Option<Waker>,
    /// Whether its connection is gone.
    away: bool,
    /// What to say to it before anything else. Nothing to those that would not understand.
    notices: Option<Vec<Bytes>>,
    /// Whether it was told that the server is leaving.
    told_leaving: bool,
    /// When it was last asked to go to another server, whichever.
    directed: Option<Instant>,
    /// Of a node behind a relay, that one's stream and number for it.
    behind: Option<(StreamId, u32)>,
}

/// What kind of stream is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamKind {
    /// Whether it is in reserve.
    pub standby: bool,
    /// What the agent understands, by [`LEVEL`](starling_attach::message::LEVEL).
    pub level: u32,
}

struct Metrics {
    attached: Gauge,
    relays: Gauge,
    behind: Gauge,
    standbys: Gauge,
    promotions: Counter,
    directed: Counter,
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
        let state = State {
            fleet: Fleet::new(snapshot.clone()),
            attached: BTreeMap::new(),
            nodes: BTreeMap::new(),
            standbys: BTreeMap::new(),
            relays: BTreeMap::new(),
            later: Vec::new(),
            leaving: false,
        };
        let (started, metrics) = (Instant::now(), Metrics::new(registry));
        let later = Arc::new(Notify::new());
        Self { state: Mutex::new(state), later, hub, liveness, lineage, started, metrics }
    }

    /// Of the store.
    pub(crate) fn lineage(&self) -> &Lineage {
        &self.lineage
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
        let reporters = published.concerned.iter().filter_map(|id| state.attached.get(id)?.reporter);
        let reporters: Vec<_> = reporters.collect();
        self.hub.publish(snapshot, events, &reporters);
        let (later, now): (Vec<_>, Vec<_>) = published.woken.into_iter().partition(|id| state.is_in_reserve(*id));
        let wakers = state.wakers(now);
        let is_first = state.later.is_empty() && !later.is_empty();
        state.later.extend(later);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        if is_first {
            self.later.notify_one();
        }
    }

    /// Tells streams in reserve what their nodes have heard by their primaries, until the server is dropped.
    pub(crate) async fn tell_reserve(agents: Weak<Self>) {
        loop {
            let Some(later) = agents.upgrade().map(|agents| Arc::clone(&agents.later)) else { return };
            later.notified().await;
            tokio::time::sleep(RESERVE_AFTER).await;
            let Some(agents) = agents.upgrade() else { return };
            let wakers = {
                let mut state = agents.lock();
                let due = std::mem::take(&mut state.later);
                state.wakers(due)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Attaches a node's stream. An earlier stream of the node of the same kind ends.
    ///
    /// # Errors
    /// [`IsLeaving`] if the server is.
    pub(crate) fn attach(self: &Arc<Self>, node: NodeName, kind: StreamKind) -> Result<AgentStream, IsLeaving> {
        let mut state = self.lock();
        if state.leaving {
            return Err(IsLeaving);
        }
        let id = state.fleet.attach(node.clone());
        let notices = (kind.level >= LEVEL_OF_MOVES).then(Vec::new);
        if notices.is_some() {
            state.fleet.tell_endings(id);
        }
        state.attached.insert(id, Attached { notices, ..Attached::new(node.clone()) });
        let mut receipts = None;
        if kind.standby {
            let earlier = state.standbys.insert(node, id);
            if !earlier.is_some_and(|earlier| state.end(earlier)) {
                self.metrics.standbys.inc();
            }
        } else {
            receipts = Some(self.is_primary(&mut state, id, &node));
        }
        Ok(AgentStream { agents: Arc::clone(self), id, receipts: Mutex::new(receipts) })
    }

    /// A stream is its node's primary from now on, in the place of the one before it.
    fn is_primary(&self, state: &mut State, id: StreamId, node: &NodeName) -> AttachedNode {
        self.liveness.is_here(node);
        let receipts = self.hub.attach_node(node.clone());
        if let Some(attached) = state.attached.get_mut(&id) {
            attached.reporter = Some(receipts.reporter());
        }
        let earlier = state.nodes.insert(node.clone(), id);
        if !earlier.is_some_and(|earlier| state.end(earlier)) {
            self.metrics.attached.inc();
        }
        receipts
    }

    /// Whether the server is leaving.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// The server is leaving: streams that are open stay, and nobody attaches any more. Whether it was not before.
    pub(crate) fn begin_leaving(&self) -> bool {
        !std::mem::replace(&mut self.lock().leaving, true)
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
        if state.attached.contains_key(&id) {
            tracing::debug!(%node, "the node has come to another server");
            state.nodes.remove(node);
            self.liveness.is_here(node);
            if state.end(id) {
                self.metrics.attached.dec();
            }
        }
        drop(state);
        self.hub.remove_node(node);
    }

    /// A node has left the mesh: its streams end, nobody waits for it, and receipts expect nothing of it.
    pub(crate) fn has_left(&self, node: &NodeName) {
        let mut state = self.lock();
        if let Some(id) = state.nodes.remove(node)
            && state.end(id)
        {
            self.metrics.attached.dec();
        }
        self.liveness.has_left(node);
        drop(state);
        self.hub.release_node(node);
    }

    /// How many agents are attached.
    pub(crate) fn attached(&self) -> u32 {
        u32::try_from(self.metrics.attached.get()).unwrap_or_default()
    }

    /// How many agents have a stream in reserve here.
    pub(crate) fn standby(&self) -> u32 {
        u32::try_from(self.metrics.standbys.get()).unwrap_or_default()
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

impl State {
    /// A stream is over, since another has its place; whether its connection was there still.
    fn end(&mut self, id: StreamId) -> bool {
        self.fleet.remove(id);
        let Some(ended) = self.attached.remove(&id).filter(|attached| !attached.away) else { return false };
        // It sees that it is no longer the current one, and ends.
        ended.waker.into_iter().for_each(Waker::wake);
        // So does one at a relay when this has told it.
        if let Some((relay, number)) = ended.behind
            && let Some(OfRelay { notices, .. }) = self.relays.get_mut(&relay)
        {
            notices.superseded(number, ended.node);
            wake(self, relay);
        }
        true
    }
}

impl Attached {
    fn new(node: NodeName) -> Self {
        Self {
            node,
            reporter: None,
            waker: None,
            away: false,
            notices: None,
            told_leaving: false,
            directed: None,
            behind: None,
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // Whoever tells streams in reserve finds that there are none any more.
        self.later.notify_one();
    }
}

/// One agent's stream; when a primary is dropped the node counts as away.
pub struct AgentStream {
    agents: Arc<Agents>,
    id: StreamId,
    /// Once it is a primary.
    receipts: Mutex<Option<AttachedNode>>,
}

/// The server is leaving, and takes no more agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this server is leaving; attach to another")]
pub struct IsLeaving;

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
        if let Some(receipts) = &*self.receipts() {
            for (as_of, subjects) in by_revision {
                receipts.subscribed(as_of, &subjects);
            }
        }
        wake(&mut state, self.id);
        Ok(())
    }

    /// The stream is its node's primary from now on; everything up to `through` is in force at the node. Answers with the
    /// node, unless the stream was its primary already or is over.
    pub fn promote(&self, through: Revision) -> Option<NodeName> {
        let mut state = self.agents.lock();
        let node = state.attached.get(&self.id).filter(|attached| attached.reporter.is_none())?.node.clone();
        if state.standbys.get(&node) == Some(&self.id) {
            state.standbys.remove(&node);
        }
        self.agents.metrics.standbys.dec();
        self.agents.metrics.promotions.inc();
        let receipts = self.agents.is_primary(&mut state, self.id, &node);
        let subjects = state.fleet.subjects(self.id);
        receipts.subscribed(through.min(state.fleet.revision()), &subjects);
        *self.receipts() = Some(receipts);
        // It reports on everything up to now, also where there was nothing to send.
        state.fleet.remind(self.id);
        wake(&mut state, self.id);
        Some(node)
    }

    fn receipts(&self) -> MutexGuard<'_, Option<AttachedNode>> {
        // A panic while holding the lock leaves it as it was before or after.
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.receipts().iter().for_each(|receipts| receipts.applied(through, refusals_stand, held));
    }

    /// A proxy of the node, named in `refused`, refused a resource.
    pub fn rejected(&self, refused: Refused) {
        if let Some(receipts) = &*self.receipts() {
            receipts.rejected(refused);
        }
    }

    /// The frames to send next, in order.
    ///
    /// # Errors
    /// [`Superseded`] once a later stream of the node has taken over.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, Superseded>> {
        self.agents.poll_take(self.id, context)
    }
}

impl Agents {
    fn poll_take(&self, id: StreamId, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, Superseded>> {
        let mut state = self.lock();
        let Some(attached) = state.attached.get_mut(&id) else { return Poll::Ready(Err(Superseded)) };
        attached.waker = Some(context.waker().clone());
        let mut notices = attached.notices.as_mut().map(std::mem::take).unwrap_or_default();
        notices.extend(state.relays.get_mut(&id).into_iter().flat_map(|relay| relay.notices.take()));
        if !notices.is_empty() {
            return Poll::Ready(Ok(notices));
        }
        let before = state.fleet.encoded();
        let frames = state.fleet.take(id, self.now_ms());
        let encoded = state.fleet.encoded() - before;
        drop(state);
        if frames.is_empty() {
            return Poll::Pending;
        }
        let metrics = &self.metrics;
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
        if attached.reporter.is_none() {
            let node = attached.node.clone();
            state.attached.remove(&self.id);
            state.fleet.remove(self.id);
            if state.standbys.get(&node) == Some(&self.id) {
                state.standbys.remove(&node);
            }
            self.agents.metrics.standbys.dec();
            return;
        }
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
            attached: registry.register(
                "agents_attached",
                "Agents whose stream is open, here or at a relay below",
                Gauge::default(),
            ),
            relays: registry.register("relays_attached", "Streams of relays that are open", Gauge::default()),
            behind: registry.register(
                "agents_behind_relays",
                "Agents whose stream is open at a relay below",
                Gauge::default(),
            ),
            standbys: registry.register(
                "agents_standby",
                "Agents that have a stream open here in reserve, and are attached elsewhere",
                Gauge::default(),
            ),
            promotions: counter("agent_promotions", "Streams in reserve that became their node's primary"),
            directed: counter("agent_moves_directed", "Agents that were asked to attach to another server"),
            encoded: counter("agent_frames_encoded", "Frames encoded for agents; each is encoded once for all"),
            sent_frames: counter("agent_frames_sent", "Frames taken by agents' streams"),
            sent_bytes: counter("agent_bytes_sent", "Bytes of frames taken by agents' streams"),
        }
    }
}
