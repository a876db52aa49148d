//! Who waits for what: subscriptions of readers and proxies, and the receipts of proxies and nodes.
//!
//! One short lock around the pure [`FanOut`] and [`Receipts`]; nobody awaits while holding it. A subscriber is woken
//! through its own [`Notify`], so waking costs nothing for those whom a change does not concern. Those who wait for
//! receipts are woken when a change settles or reaches a mark, not by each of ten thousand reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use starling_catalog::{
    Barrier, ChangeReport, Earlier, Event, FanOut, Progress, ProxyReport, Receipts, Refused, Reporter, ReporterId,
    Snapshot, Subject, SubscriberId, Until,
};
use starling_model::{InstanceKey, NodeName, Revision};
use tokio::sync::{Notify, watch};

use crate::convergence::Convergence;

/// Subscriptions and receipts of one server.
pub(crate) struct Hub {
    state: Mutex<State>,
    /// Counts what came about; receipts are worth another look when it moves.
    progress: watch::Sender<u64>,
    convergence: Convergence,
    started: Instant,
}

#[derive(Default)]
struct State {
    fan_out: FanOut,
    wakers: BTreeMap<SubscriberId, Arc<Notify>>,
    receipts: Receipts,
    proxies: BTreeMap<InstanceKey, AttachedProxy>,
    /// The number of the attachment of each node that is attached or was.
    nodes: BTreeMap<ReporterId, u64>,
    /// Counts attachments of all proxies and nodes.
    attachments: u64,
    proxy_by_subscriber: BTreeMap<SubscriberId, InstanceKey>,
}

/// A proxy that is attached, or was and is still registered: its subscription outlives its stream, so that a receipt
/// names it as pending while it is away.
struct AttachedProxy {
    subscriber: SubscriberId,
    reporter: ReporterId,
    /// The number of its attachment; a stream that ends late must not end its successor.
    generation: u64,
}

impl Hub {
    pub(crate) fn new(convergence: Convergence) -> Self {
        Self {
            state: Mutex::new(State::default()),
            progress: watch::Sender::new(0),
            convergence,
            started: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain maps, each consistent by itself.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Tells everyone concerned of a published snapshot, and opens the receipt of its change. It concerns `nodes` too,
    /// to whom the caller sends it after this.
    pub(crate) fn publish(&self, snapshot: &Snapshot, events: &[Event], nodes: &[ReporterId]) {
        let mut state = self.lock();
        let mut affected = nodes.to_vec();
        let mut gone = BTreeSet::new();
        for event in events {
            for id in state.fan_out.subscribers_of(&event.subject) {
                let Some(key) = state.proxy_by_subscriber.get(&id) else { continue };
                let is_proxy = snapshot.instance(key).is_some_and(|instance| instance.value.is_proxy());
                match state.proxies.get(key) {
                    Some(attached) if is_proxy => affected.push(attached.reporter),
                    Some(_) | None => {
                        gone.insert(key.clone());
                    }
                }
            }
        }
        let subjects = events.iter().map(|event| event.subject.clone()).collect();
        let mut progress = state.receipts.committed(snapshot.revision(), subjects, affected, self.now_us());
        for id in state.fan_out.publish(events) {
            if let Some(waker) = state.wakers.get(&id) {
                waker.notify_one();
            }
        }
        for proxy in gone {
            progress.extend(state.forget(&proxy));
        }
        drop(state);
        self.tell(&progress);
    }

    /// Does what the progress of changes entails.
    fn tell(&self, progress: &[Progress]) {
        self.convergence.observe(progress);
        if !progress.is_empty() {
            self.progress.send_modify(|count| *count += 1);
        }
    }

    /// One command was written as `earlier` and `last`: the receipt of the last speaks of all.
    pub(crate) fn join(&self, last: Revision, earlier: &Earlier) {
        self.lock().receipts.join(last, earlier);
    }

    /// Subscribes a reader.
    pub(crate) fn subscribe(self: &Arc<Self>, subjects: BTreeSet<Subject>) -> Subscription {
        let waker = Arc::new(Notify::new());
        let mut state = self.lock();
        let id = state.fan_out.subscribe(subjects);
        state.wakers.insert(id, Arc::clone(&waker));
        Subscription { hub: Arc::clone(self), id, waker }
    }

    /// Attaches a proxy's stream.
    pub(crate) fn attach(self: &Arc<Self>, proxy: InstanceKey) -> ProxySubscription {
        let waker = Arc::new(Notify::new());
        let mut state = self.lock();
        let reporter = state.receipts.connected(&Reporter::Proxy(proxy.clone()));
        // A later stream of the same proxy takes over. It plans from the newest snapshot, so what was pending for the
        // earlier one is done with; left there, it would look as if this stream had been woken already.
        state.attachments += 1;
        let generation = state.attachments;
        let subscriber = match state.proxies.get(&proxy) {
            Some(attached) => attached.subscriber,
            None => state.fan_out.subscribe(BTreeSet::new()),
        };
        state.fan_out.take(subscriber);
        state.proxies.insert(proxy.clone(), AttachedProxy { subscriber, reporter, generation });
        if let Some(earlier) = state.wakers.insert(subscriber, Arc::clone(&waker)) {
            // The earlier stream sees that it is no longer the current one, and ends.
            earlier.notify_one();
        }
        state.proxy_by_subscriber.insert(subscriber, proxy.clone());
        ProxySubscription { hub: Arc::clone(self), proxy, id: subscriber, reporter, generation, waker }
    }

    /// A node's agent has attached; receipts speak of the node from now on. A later stream of it takes over.
    pub(crate) fn attach_node(self: &Arc<Self>, node: NodeName) -> AttachedNode {
        let mut state = self.lock();
        let reporter = state.receipts.connected(&Reporter::Node(node));
        state.attachments += 1;
        let generation = state.attachments;
        state.nodes.insert(reporter, generation);
        AttachedNode { hub: Arc::clone(self), reporter, generation }
    }

    /// A node is lost: receipts expect nothing more of it, and those of what it owed name it. Should it be attached still, it has
    /// to attach anew to be spoken of again.
    pub(crate) fn remove_node(&self, node: &NodeName) {
        self.retire_node(node, Receipts::lost);
    }

    /// A node has left the mesh: receipts expect nothing more of it, and what it owed does not concern it after all.
    pub(crate) fn release_node(&self, node: &NodeName) {
        self.retire_node(node, Receipts::removed);
    }

    fn retire_node(&self, node: &NodeName, retire: fn(&mut Receipts, ReporterId) -> Vec<Progress>) {
        let mut state = self.lock();
        let Some(reporter) = state.receipts.find(&Reporter::Node(node.clone())) else { return };
        state.nodes.remove(&reporter);
        let progress = retire(&mut state.receipts, reporter);
        drop(state);
        self.tell(&progress);
    }

    pub(crate) fn is_settled(&self, revision: Revision) -> Option<bool> {
        self.lock().receipts.is_settled(revision)
    }

    pub(crate) fn holds(&self, revision: Revision, until: &Until) -> Option<Barrier> {
        self.lock().receipts.holds(revision, until)
    }

    pub(crate) fn report(&self, revision: Revision, names: usize) -> Option<ChangeReport> {
        self.lock().receipts.report(revision, names)
    }

    pub(crate) fn revisions(&self) -> Vec<Revision> {
        self.lock().receipts.revisions().collect()
    }

    pub(crate) fn reporters(&self) -> Vec<(Reporter, ProxyReport)> {
        self.lock().receipts.reporters().map(|(reporter, report)| (reporter.clone(), report)).collect()
    }

    /// How many reporters have yet to apply a change that concerns them.
    pub(crate) fn behind(&self) -> usize {
        self.lock().receipts.behind()
    }

    /// Since when the oldest change that someone has yet to apply waits; zero if none does.
    pub(crate) fn staleness(&self) -> Duration {
        let since = self.lock().receipts.owed_since_us();
        since.map(|since| self.age(since)).unwrap_or_default()
    }

    /// For how long the oldest change waits that each node has yet to apply: of `max` nodes that owe one, the stalest first.
    pub(crate) fn stalest(&self, max: usize) -> Vec<(NodeName, Duration)> {
        let mut owed: BTreeMap<NodeName, u64> = BTreeMap::new();
        for (reporter, report) in self.lock().receipts.reporters() {
            let Some(since) = report.owes_since_us else { continue };
            let oldest = owed.entry(reporter.node().clone()).or_insert(since);
            *oldest = since.min(*oldest);
        }
        let mut owed: Vec<_> = owed.into_iter().collect();
        owed.sort_by_key(|(_, since)| *since);
        owed.truncate(max);
        owed.into_iter().map(|(node, since)| (node, self.age(since))).collect()
    }

    /// How long ago `us` was on the clock of the receipts.
    pub(crate) fn age(&self, us: u64) -> Duration {
        Duration::from_micros(self.now_us().saturating_sub(us))
    }

    /// Moves when a change settles, or has been applied by one more of the shares of [`starling_catalog::receipts::Mark`].
    pub(crate) fn progress(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }
}

impl State {
    fn forget(&mut self, proxy: &InstanceKey) -> Vec<Progress> {
        let Some(attached) = self.proxies.remove(proxy) else { return Vec::new() };
        self.fan_out.unsubscribe(attached.subscriber);
        self.proxy_by_subscriber.remove(&attached.subscriber);
        // Its stream, if still open, learns from its own next look that it is no longer registered.
        if let Some(waker) = self.wakers.remove(&attached.subscriber) {
            waker.notify_one();
        }
        self.receipts.removed(attached.reporter)
    }
}

/// A reader's subscription; ends when dropped.
pub struct Subscription {
    hub: Arc<Hub>,
    id: SubscriberId,
    waker: Arc<Notify>,
}

impl Subscription {
    /// Waits until one of the subjects changes. A change since the last call answers at once.
    pub async fn changed(&self) {
        loop {
            if !self.hub.lock().fan_out.take(self.id).is_empty() {
                return;
            }
            self.waker.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        state.fan_out.unsubscribe(self.id);
        state.wakers.remove(&self.id);
    }
}

/// What comes next for an attached proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Something that concerns it has changed.
    Changed,
    /// It was deregistered. Nothing more comes on this subscription; attach anew to wait for it to come back.
    Deregistered,
    /// A later stream of it took over. Nothing more comes.
    Superseded,
}

/// The subscription of an attached proxy; when dropped the proxy counts as disconnected.
pub struct ProxySubscription {
    hub: Arc<Hub>,
    proxy: InstanceKey,
    id: SubscriberId,
    reporter: ReporterId,
    generation: u64,
    waker: Arc<Notify>,
}

impl ProxySubscription {
    /// The proxy.
    #[must_use]
    pub fn proxy(&self) -> &InstanceKey {
        &self.proxy
    }

    /// Replaces the subjects that concern this proxy, whose plan was made at `as_of`. Plan again if the subjects are
    /// others than before: what happened to them until now wakes nobody.
    pub fn resubscribe(&self, as_of: Revision, subjects: BTreeSet<Subject>) {
        let mut state = self.hub.lock();
        if !self.is_current(&state) {
            return;
        }
        let progress = state.receipts.subscribed(self.reporter, as_of, &subjects);
        state.fan_out.resubscribe(self.id, subjects);
        drop(state);
        self.hub.tell(&progress);
    }

    /// Waits for what comes next.
    pub async fn next(&self) -> Next {
        loop {
            {
                let mut state = self.hub.lock();
                match state.proxies.get(&self.proxy) {
                    None => return Next::Deregistered,
                    Some(attached) if attached.generation != self.generation => return Next::Superseded,
                    Some(_) => {}
                }
                if !state.fan_out.take(self.id).is_empty() {
                    return Next::Changed;
                }
            }
            self.waker.notified().await;
        }
    }

    /// The proxy has applied everything up to `through`; `refusals_stand` if it still refuses something.
    pub fn applied(&self, through: Revision, refusals_stand: bool) {
        let now = self.hub.now_us();
        self.reported(|receipts| receipts.applied(self.reporter, through, refusals_stand, now));
    }

    /// The proxy refused a resource.
    pub fn rejected(&self, refused: Refused) {
        self.reported(|receipts| receipts.rejected(self.reporter, refused));
    }

    fn reported(&self, record: impl FnOnce(&mut Receipts) -> Vec<Progress>) {
        let mut state = self.hub.lock();
        if !self.is_current(&state) {
            return;
        }
        let progress = record(&mut state.receipts);
        drop(state);
        self.hub.tell(&progress);
    }

    fn is_current(&self, state: &State) -> bool {
        state.proxies.get(&self.proxy).is_some_and(|attached| attached.generation == self.generation)
    }
}

impl Drop for ProxySubscription {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if !self.is_current(&state) {
            return;
        }
        state.receipts.disconnected(self.reporter);
        if !state.fan_out.waits(self.id) {
            // It never got as far as a plan, so there is nothing to remember it by.
            let progress = state.forget(&self.proxy);
            drop(state);
            self.hub.tell(&progress);
        }
    }
}

/// What receipts know of a node whose agent is attached; when dropped the node counts as disconnected, and what it has
/// not applied stays outstanding until it is back or is removed.
pub struct AttachedNode {
    hub: Arc<Hub>,
    reporter: ReporterId,
    generation: u64,
}

impl AttachedNode {
    /// The number under which a change says that it concerns this node.
    #[must_use]
    pub fn reporter(&self) -> ReporterId {
        self.reporter
    }

    /// The node, current as of `as_of`, subscribes to `subjects`: what has touched them since concerns it. The caller
    /// sends it everything up to now, so that it reports on that, also where there is nothing to send.
    pub fn subscribed(&self, as_of: Revision, subjects: &BTreeSet<Subject>) {
        self.reported(|receipts, reporter, _| receipts.subscribed(reporter, as_of, subjects));
    }

    /// Whether there is a change that concerns the node and that it has not reported on.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.hub.lock().receipts.owes(self.reporter)
    }

    /// The proxies of the node have applied everything up to `through`, and had so for as long as `held`;
    /// `refusals_stand` if one still refuses something.
    pub fn applied(&self, through: Revision, refusals_stand: bool, held: Duration) {
        let held = u64::try_from(held.as_micros()).unwrap_or(u64::MAX);
        self.reported(|receipts, reporter, now| {
            receipts.applied(reporter, through, refusals_stand, now.saturating_sub(held))
        });
    }

    /// A proxy of the node, named in `refused`, refused a resource. Comes before the node's own report of that revision.
    pub fn rejected(&self, refused: Refused) {
        self.reported(|receipts, reporter, _| receipts.rejected(reporter, refused));
    }

    fn reported(&self, record: impl FnOnce(&mut Receipts, ReporterId, u64) -> Vec<Progress>) {
        let now = self.hub.now_us();
        let mut state = self.hub.lock();
        if !self.is_current(&state) {
            return;
        }
        let progress = record(&mut state.receipts, self.reporter, now);
        drop(state);
        self.hub.tell(&progress);
    }

    fn is_current(&self, state: &State) -> bool {
        state.nodes.get(&self.reporter) == Some(&self.generation)
    }
}

impl Drop for AttachedNode {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if self.is_current(&state) {
            state.receipts.disconnected(self.reporter);
        }
    }
}
