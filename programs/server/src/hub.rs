//! Who waits for what: subscriptions of readers and proxies, and the receipts of the proxies.
//!
//! One short lock around the pure [`FanOut`] and [`Receipts`]; nobody awaits while holding it. A subscriber is woken
//! through its own [`Notify`], so waking costs nothing for those whom a change does not concern.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use starling_catalog::{ChangeReport, Event, FanOut, ProxyReport, Receipts, Refused, Snapshot, Subject, SubscriberId};
use starling_model::{InstanceKey, Revision};
use tokio::sync::{Notify, watch};

/// Subscriptions and receipts of one server.
pub(crate) struct Hub {
    state: Mutex<State>,
    /// Counts reports; receipts are worth another look when it moves.
    reports: watch::Sender<u64>,
    started: Instant,
}

#[derive(Default)]
struct State {
    fan_out: FanOut,
    wakers: BTreeMap<SubscriberId, Arc<Notify>>,
    receipts: Receipts,
    proxies: BTreeMap<InstanceKey, AttachedProxy>,
    /// Counts attachments of all proxies.
    attachments: u64,
    proxy_by_subscriber: BTreeMap<SubscriberId, InstanceKey>,
}

/// A proxy that is attached, or was and is still registered: its subscription outlives its stream, so that a receipt
/// names it as pending while it is away.
struct AttachedProxy {
    subscriber: SubscriberId,
    /// The number of its attachment; a stream that ends late must not end its successor.
    generation: u64,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::default()), reports: watch::Sender::new(0), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain maps, each consistent by itself.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Tells everyone concerned of a published snapshot, and opens the receipt of its change.
    pub(crate) fn publish(&self, snapshot: &Snapshot, events: &[Event]) {
        let mut state = self.lock();
        let mut affected = BTreeSet::new();
        for event in events {
            for id in state.fan_out.subscribers_of(&event.subject) {
                if let Some(proxy) = state.proxy_by_subscriber.get(&id) {
                    affected.insert(proxy.clone());
                }
            }
        }
        let is_proxy = |key: &InstanceKey| snapshot.instance(key).is_some_and(|i| i.value.sidecar().is_some());
        let gone: Vec<_> = affected.iter().filter(|key| !is_proxy(key)).cloned().collect();
        for proxy in &gone {
            affected.remove(proxy);
        }
        let now = self.now_us();
        let subjects = events.iter().map(|event| event.subject.clone()).collect();
        state.receipts.committed(snapshot.revision(), subjects, affected, now);
        for id in state.fan_out.publish(events) {
            if let Some(waker) = state.wakers.get(&id) {
                waker.notify_one();
            }
        }
        for proxy in gone {
            state.forget(&proxy);
        }
        drop(state);
        self.reports.send_modify(|count| *count += 1);
    }

    /// One command was written as `earlier` and `last`: the receipt of the last speaks of all.
    pub(crate) fn join(&self, last: Revision, earlier: &[Revision]) {
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
        state.receipts.connected(&proxy);
        // A later stream of the same proxy takes over. It plans from the newest snapshot, so what was pending for the
        // earlier one is done with; left there, it would look as if this stream had been woken already.
        state.attachments += 1;
        let generation = state.attachments;
        let subscriber = match state.proxies.get(&proxy) {
            Some(attached) => attached.subscriber,
            None => state.fan_out.subscribe(BTreeSet::new()),
        };
        state.fan_out.take(subscriber);
        state.proxies.insert(proxy.clone(), AttachedProxy { subscriber, generation });
        if let Some(earlier) = state.wakers.insert(subscriber, Arc::clone(&waker)) {
            // The earlier stream sees that it is no longer the current one, and ends.
            earlier.notify_one();
        }
        state.proxy_by_subscriber.insert(subscriber, proxy.clone());
        ProxySubscription { hub: Arc::clone(self), proxy, id: subscriber, generation, waker }
    }

    pub(crate) fn is_settled(&self, revision: Revision) -> Option<bool> {
        self.lock().receipts.is_settled(revision)
    }

    pub(crate) fn report(&self, revision: Revision) -> Option<ChangeReport> {
        self.lock().receipts.report(revision)
    }

    pub(crate) fn revisions(&self) -> Vec<Revision> {
        self.lock().receipts.revisions().collect()
    }

    pub(crate) fn proxies(&self) -> Vec<(InstanceKey, ProxyReport)> {
        self.lock().receipts.proxies().map(|(key, report)| (key.clone(), report)).collect()
    }

    /// Moves whenever a receipt may have changed.
    pub(crate) fn reports(&self) -> watch::Receiver<u64> {
        self.reports.subscribe()
    }
}

impl State {
    fn forget(&mut self, proxy: &InstanceKey) {
        if let Some(attached) = self.proxies.remove(proxy) {
            self.fan_out.unsubscribe(attached.subscriber);
            self.proxy_by_subscriber.remove(&attached.subscriber);
            // Its stream, if still open, learns from its own next look that it is no longer registered.
            if let Some(waker) = self.wakers.remove(&attached.subscriber) {
                waker.notify_one();
            }
        }
        self.receipts.removed(proxy);
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
        if self.is_current(&state) {
            state.receipts.subscribed(&self.proxy, as_of, &subjects);
            state.fan_out.resubscribe(self.id, subjects);
        }
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
        self.reported(|receipts, proxy, now| receipts.applied(proxy, through, refusals_stand, now));
    }

    /// The proxy refused a resource.
    pub fn rejected(&self, refused: Refused) {
        self.reported(|receipts, proxy, _| receipts.rejected(proxy, refused));
    }

    fn reported(&self, record: impl FnOnce(&mut Receipts, &InstanceKey, u64)) {
        let now = self.hub.now_us();
        let mut state = self.hub.lock();
        if !self.is_current(&state) {
            return;
        }
        record(&mut state.receipts, &self.proxy, now);
        drop(state);
        self.hub.reports.send_modify(|count| *count += 1);
    }

    fn is_current(&self, state: &State) -> bool {
        state.proxies.get(&self.proxy).is_some_and(|attached| attached.generation == self.generation)
    }
}

impl Drop for ProxySubscription {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if self.is_current(&state) {
            state.receipts.disconnected(&self.proxy);
            if !state.fan_out.waits(self.id) {
                // It never got as far as a plan, so there is nothing to remember it by.
                state.forget(&self.proxy);
            }
        }
        drop(state);
        self.hub.reports.send_modify(|count| *count += 1);
    }
}
