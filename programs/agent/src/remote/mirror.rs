//! The replica of what concerns this node, shared by the streams that feed it and the feeds that plan from it.
//!
//! Knows what every local proxy is subscribed to, asks servers for the union, wakes exactly those whom a `Through`
//! concerns, and knows up to which revision all of them have applied everything. One short lock; nobody awaits under it.
//! Cost model: a frame costs its own decoding; a `Through` one wake-up per proxy concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use starling_attach::Replica;
use starling_attach::message::{AgentSays, Rejected};
use starling_catalog::{Event, FanOut, MeshRead, Refused, Subject, SubscriberId};
use starling_model::{InstanceKey, Node, Revision, ServiceInstance};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::proxies::{MeshView, ProxyNext, ProxyWatch};
use refusals::Refusals;
use stream::{Feed, StreamNumber};

mod refusals;
mod returning;
mod stream;

pub(crate) use returning::RETURN_WITHIN;
pub use stream::{Role, Stream};

/// Revisions of writes that are kept until somebody looks; past this one only knows that there were others.
const WRITTEN_MAX: usize = 256;

/// The replica and those who read it.
pub struct Mirror {
    state: Mutex<State>,
    /// Something that was unknown has become known.
    known: Notify,
    /// The revisions at which the node's own records were written, by whomever, since somebody looked; 0 among them if
    /// there is no telling.
    written: watch::Sender<BTreeSet<Revision>>,
}

struct State {
    replica: Arc<Replica>,
    fan_out: FanOut,
    watches: BTreeMap<SubscriberId, Watched>,
    /// The current watch of each proxy.
    proxies: BTreeMap<InstanceKey, SubscriberId>,
    /// What registered proxies depended on that are not attached: they may be back while no server can be asked.
    left: BTreeMap<InstanceKey, Left>,
    /// What the native data plane depends on.
    native: BTreeSet<Subject>,
    /// How many want each subject, the mirror itself included.
    wanted: BTreeMap<Subject, usize>,
    /// What nobody wants since before the last sweep, and since after it.
    idle: [BTreeSet<Subject>; 2],
    streams: BTreeMap<StreamNumber, Feed>,
    /// How many there ever were.
    opened: StreamNumber,
    /// The stream whose server is told what is in force.
    primary: Option<StreamNumber>,
    /// What was last told to it.
    told: Option<Standing>,
    /// What is in force, and since when.
    standing: (Standing, Instant),
    /// Until when a server wishes not to be told what is in force.
    hold_until: Option<Instant>,
    /// When a server last said something.
    heard_at: Instant,
}

/// What is in force at the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Standing {
    through: u64,
    refusals_stand: bool,
}

/// What there is to tell the server.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// In order.
    pub says: Vec<AgentSays>,
    /// When there is more.
    pub next: Option<Instant>,
}

struct Watched {
    proxy: InstanceKey,
    waker: Arc<Notify>,
    subjects: BTreeSet<Subject>,
    owes: Owes,
    /// Up to where it has applied everything.
    applied: Revision,
    refusals: Refusals,
}

/// What a proxy goes on with that is not attached.
#[derive(Default)]
struct Left {
    subjects: BTreeSet<Subject>,
    owes: Owes,
    refusals: Refusals,
    /// Whether it was attached before the agent was restarted: what it depends on is not known then.
    returning: bool,
}

/// The first and the last revision that concern a proxy and that it has not applied.
#[derive(Debug, Clone, Copy, Default)]
struct Owes(Option<(Revision, Revision)>);

impl Owes {
    fn add(&mut self, first: Revision, last: Revision) {
        let (from, to) = self.0.unwrap_or((first, last));
        self.0 = Some((from.min(first), to.max(last)));
    }

    /// Everything up to `through` is applied.
    fn settle(&mut self, through: Revision) {
        self.0 = self.0.and_then(|(first, last)| {
            let next = first.max(Revision(through.0.saturating_add(1)));
            (next <= last).then_some((next, last))
        });
    }
}

impl Mirror {
    /// Mirrors `replica`, and always `own`: the subjects that the agent itself follows.
    #[must_use]
    pub fn new(replica: Replica, own: impl IntoIterator<Item = Subject>) -> Arc<Self> {
        let mut state = State {
            idle: [BTreeSet::new(), replica.subjects().cloned().collect()],
            replica: Arc::new(replica),
            fan_out: FanOut::default(),
            watches: BTreeMap::new(),
            proxies: BTreeMap::new(),
            left: BTreeMap::new(),
            native: BTreeSet::new(),
            wanted: BTreeMap::new(),
            streams: BTreeMap::new(),
            opened: 0,
            primary: None,
            told: None,
            standing: (Standing::default(), Instant::now()),
            hold_until: None,
            heard_at: Instant::now(),
        };
        for subject in own {
            state.want(&subject);
        }
        Arc::new(Self { state: Mutex::new(state), known: Notify::new(), written: watch::Sender::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain maps; a resubscription puts right what one feed made of them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replica as it is now.
    #[must_use]
    pub fn replica(&self) -> Arc<Replica> {
        Arc::clone(&self.lock().replica)
    }

    /// For how long no server has said anything.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        self.lock().heard_at.elapsed()
    }

    /// Servers know nothing of what this mirror has: everything is asked for anew, on another stream.
    pub fn begin_anew(&self) {
        let mut state = self.lock();
        Arc::make_mut(&mut state.replica).begin_anew();
        // These speak of revisions by another count. By the new one everybody owes what is announced next, which is all.
        state.refusals().for_each(Refusals::forget);
        for watched in state.watches.values_mut() {
            (watched.owes, watched.applied) = (Owes::default(), Revision(0));
        }
        state.left.values_mut().for_each(|left| left.owes = Owes::default());
        state.returning_owe_all();
    }

    /// A server wishes not to be told before `until` what is in force.
    pub fn hold_report(&self, now: Instant, until: Instant) {
        let mut state = self.lock();
        // Who is told more meanwhile reports when the first was due.
        let held = state.hold_until.filter(|held| *held > now);
        state.hold_until = held.or(Some(until));
    }

    /// Moves when somebody has written records of this node.
    #[must_use]
    pub fn written(&self) -> watch::Receiver<BTreeSet<Revision>> {
        self.written.subscribe()
    }

    /// Every revision at which somebody has written records of this node since the last look, as far as it was told; 0
    /// among them if there is no telling which.
    #[must_use]
    pub fn take_written(&self) -> BTreeSet<Revision> {
        let mut taken = BTreeSet::new();
        self.written.send_if_modified(|written| {
            taken = mem::take(written);
            false
        });
        taken
    }

    fn note_written(&self, revisions: &BTreeSet<Revision>) {
        if revisions.is_empty() {
            return;
        }
        self.written.send_modify(|written| {
            for revision in revisions {
                written.insert(if written.len() < WRITTEN_MAX { *revision } else { Revision(0) });
            }
        });
    }

    /// The node's own registrations are now these. Answers with the subjects that this changes.
    pub fn set_local(&self, node: &Node, instances: Vec<ServiceInstance>) -> BTreeSet<Subject> {
        let mut state = self.lock();
        let touched = Arc::make_mut(&mut state.replica).set_local(node, instances);
        for subject in &touched {
            let Subject::Instance(key) = subject else { continue };
            if state.replica.instance(key).is_none() {
                if let Some(id) = state.proxies.remove(key) {
                    state.end(id);
                }
                state.forget_left(key);
            }
        }
        let now = state.replica.through();
        state.announce(&touched, now);
        drop(state);
        // Whoever waits for what a proxy depends on that is deregistered waits in vain.
        self.known.notify_waiters();
        touched
    }

    /// Forgets what nobody has wanted since before the last sweep. A proxy that restarts must find what it had, so nothing
    /// goes at once; and nothing may go while no server is there to bring it back, so this is not called then.
    pub fn sweep(&self) {
        let mut state = self.lock();
        state.sweep();
        state.wake();
    }

    /// The native data plane depends on these now.
    pub fn want_for_native(&self, subjects: BTreeSet<Subject>) {
        let mut state = self.lock();
        let left = mem::replace(&mut state.native, subjects.clone());
        for subject in subjects.difference(&left) {
            state.want(subject);
        }
        for subject in left.difference(&subjects) {
            state.unwant(subject);
        }
        state.wake();
    }

    fn next(&self, id: SubscriberId) -> Option<ProxyNext> {
        let mut state = self.lock();
        let Some(watched) = state.watches.get(&id) else { return Some(ProxyNext::Deregistered) };
        if state.proxies.get(&watched.proxy) != Some(&id) {
            return Some(ProxyNext::Superseded);
        }
        (!state.fan_out.take(id).is_empty()).then_some(ProxyNext::Changed)
    }

    fn report(&self, id: SubscriberId, record: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        if state.watches.contains_key(&id) {
            record(&mut state);
            state.wake();
        }
    }
}

impl State {
    fn want(&mut self, subject: &Subject) {
        if matches!(subject, Subject::Instance(_)) {
            return;
        }
        *self.wanted.entry(subject.clone()).or_default() += 1;
        for idle in &mut self.idle {
            idle.remove(subject);
        }
        if Arc::make_mut(&mut self.replica).want(subject) {
            self.ask_for(subject);
        }
    }

    fn unwant(&mut self, subject: &Subject) {
        let Some(count) = self.wanted.get_mut(subject) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.wanted.remove(subject);
        self.idle[1].insert(subject.clone());
    }

    /// Wakes those whom a change of `touched` concerns; each owes it from now on. It came at `first` or later: of several
    /// that come together nobody says which changed what.
    fn announce(&mut self, touched: &BTreeSet<Subject>, first: Revision) {
        let revision = self.replica.through();
        let events: Vec<_> = touched.iter().map(|subject| Event { subject: subject.clone(), revision }).collect();
        for event in &events {
            let concerned: Vec<_> = self.fan_out.subscribers_of(&event.subject).collect();
            for id in concerned {
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.owes.add(first, revision);
                }
            }
        }
        for left in self.left.values_mut().filter(|left| left.returning || !left.subjects.is_disjoint(touched)) {
            left.owes.add(first, revision);
        }
        for id in self.fan_out.publish(&events) {
            if let Some(watched) = self.watches.get(&id) {
                watched.waker.notify_one();
            }
        }
    }

    /// Up to where every proxy of the node has applied everything. One that is away runs on with what it has.
    fn standing(&self) -> Standing {
        let attached = self.watches.values().map(|watched| (watched.owes, watched.refusals.stand()));
        let away = self.left.values().map(|left| (left.owes, left.refusals.stand()));
        let (mut first_owed, mut refusals_stand) = (None, false);
        for (owes, refuses) in attached.chain(away) {
            let first = owes.0.map(|(first, _)| first);
            first_owed = first_owed.into_iter().chain(first).min();
            refusals_stand |= refuses;
        }
        let through = first_owed.map_or(self.replica.through().0, |first: Revision| first.0.saturating_sub(1));
        Standing { through, refusals_stand }
    }

    /// What each proxy refuses, away or not.
    fn refusals(&mut self) -> impl Iterator<Item = &mut Refusals> {
        let attached = self.watches.values_mut().map(|watched| &mut watched.refusals);
        attached.chain(self.left.values_mut().map(|left| &mut left.refusals))
    }

    fn end(&mut self, id: SubscriberId) {
        let Some(watched) = self.watches.remove(&id) else { return };
        self.fan_out.unsubscribe(id);
        if self.proxies.get(&watched.proxy) == Some(&id) {
            self.proxies.remove(&watched.proxy);
        }
        let successor = self.proxies.get(&watched.proxy).and_then(|id| self.watches.get_mut(id));
        let successor = successor.filter(|successor| !successor.subjects.is_empty());
        if let Some(successor) = successor {
            successor.inherit(watched.owes, watched.refusals);
            watched.subjects.iter().for_each(|subject| self.unwant(subject));
        } else if !watched.subjects.is_empty() && self.replica.instance(&watched.proxy).is_some() {
            let Watched { proxy, subjects, mut owes, refusals, .. } = watched;
            if let Some((first, last)) = self.forget_left(&proxy).owes.0 {
                owes.add(first, last);
            }
            self.left.insert(proxy, Left { subjects, owes, refusals, returning: false });
        } else {
            watched.subjects.iter().for_each(|subject| self.unwant(subject));
        }
        watched.waker.notify_one();
    }

    /// What a proxy depended on when it was last attached is no longer wanted for its sake. Answers with what it was.
    fn forget_left(&mut self, proxy: &InstanceKey) -> Left {
        let left = self.left.remove(proxy).unwrap_or_default();
        left.subjects.iter().for_each(|subject| self.unwant(subject));
        left
    }
}

impl Watched {
    /// Owes what the same proxy owed over another stream, unless it has applied it since; and refuses what it refused
    /// there until it has said something itself.
    fn inherit(&mut self, owes: Owes, refusals: Refusals) {
        if self.applied == Revision(0) && !self.refusals.stand() {
            self.refusals = refusals;
        }
        if let Some((first, last)) = owes.0.filter(|(_, last)| *last > self.applied) {
            self.owes.add(first, last);
        }
    }
}

/// The mirror as feeds of proxies see it.
pub struct View(pub Arc<Mirror>);

impl MeshView for View {
    fn mesh(&self) -> Arc<dyn MeshRead + Send + Sync> {
        self.0.replica()
    }

    fn attach(&self, proxy: &InstanceKey) -> Box<dyn ProxyWatch> {
        let waker = Arc::new(Notify::new());
        let mut state = self.0.lock();
        let id = state.fan_out.subscribe(BTreeSet::new());
        let (proxy, watched) = (proxy.clone(), Arc::clone(&waker));
        let (subjects, owes, applied, refusals) = (BTreeSet::new(), Owes::default(), Revision(0), Refusals::default());
        state.watches.insert(id, Watched { proxy: proxy.clone(), waker: watched, subjects, owes, applied, refusals });
        if let Some(earlier) = state.proxies.insert(proxy, id)
            && let Some(earlier) = state.watches.get(&earlier)
        {
            earlier.waker.notify_one();
        }
        Box::new(Watch { mirror: Arc::clone(&self.0), id, waker })
    }
}

/// One proxy's watch; its subscriptions end when it is dropped.
struct Watch {
    mirror: Arc<Mirror>,
    id: SubscriberId,
    waker: Arc<Notify>,
}

#[async_trait]
impl ProxyWatch for Watch {
    fn resubscribe(&self, _as_of: Revision, subjects: BTreeSet<Subject>) {
        self.mirror.report(self.id, |state| {
            for subject in &subjects {
                state.want(subject);
            }
            let Some(watched) = state.watches.get_mut(&self.id) else { return };
            let (proxy, left) = (watched.proxy.clone(), mem::replace(&mut watched.subjects, subjects.clone()));
            for subject in &left {
                state.unwant(subject);
            }
            let left = state.forget_left(&proxy);
            if let Some(watched) = state.watches.get_mut(&self.id) {
                watched.inherit(left.owes, left.refusals);
            }
            state.fan_out.resubscribe(self.id, subjects);
        });
    }

    async fn known(&self) -> bool {
        loop {
            let mut notified = std::pin::pin!(self.mirror.known.notified());
            // Before the look, so that nothing falls between.
            notified.as_mut().enable();
            {
                let state = self.mirror.lock();
                let Some(watched) = state.watches.get(&self.id) else { return false };
                if watched.subjects.iter().all(|subject| state.replica.knows(subject)) {
                    return true;
                }
            }
            notified.await;
        }
    }

    async fn next(&self) -> ProxyNext {
        loop {
            if let Some(next) = self.mirror.next(self.id) {
                return next;
            }
            self.waker.notified().await;
        }
    }

    fn applied(&self, through: Revision, refusals_stand: bool) {
        self.mirror.report(self.id, |state| {
            // Planned before everything began anew, and so by another count.
            if through > state.replica.through() {
                return;
            }
            let Some(watched) = state.watches.get_mut(&self.id) else { return };
            watched.refusals.set_stand(refusals_stand);
            watched.applied = watched.applied.max(through);
            watched.owes.settle(through);
        });
    }

    fn rejected(&self, refused: Refused) {
        self.mirror.report(self.id, |state| {
            let Some(watched) = state.watches.get_mut(&self.id) else { return };
            let rejected = Rejected {
                proxy: watched.proxy.id.to_string(),
                revision: refused.revision.0,
                since: refused.since.0,
                type_url: refused.type_url,
                resources: refused.resources,
                text: refused.text,
            };
            watched.refusals.add(rejected);
        });
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.mirror.lock();
        state.end(self.id);
        state.wake();
    }
}

#[cfg(test)]
mod tests;
