//! The replica of what concerns this node, shared by the stream that feeds it and the feeds that plan from it.
//!
//! Knows what every local proxy is subscribed to, asks the server for the union, wakes exactly those whom a `Through`
//! concerns, and knows up to which revision all of them have applied everything. One short lock; nobody awaits under it.
//! Cost model: a frame costs its own decoding; a `Through` one wake-up per proxy concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use starling_attach::message::{AgentSays, Applied, Rejected, Resume, ServerSays, Subjects, Subscribe, encode_subject};
use starling_attach::{Replica, ReplicaError};
use starling_catalog::{Event, FanOut, MeshRead, Refused, Subject, SubscriberId};
use starling_model::{InstanceKey, Node, Revision, ServiceInstance};
use tokio::sync::Notify;

use crate::proxies::{MeshView, ProxyNext, ProxyWatch};

/// Refusals that wait to be told; past this the oldest goes, its proxy's standing is told all the same.
const REFUSALS_QUEUED_MAX: usize = 256;

/// The replica and those who read it.
pub struct Mirror {
    state: Mutex<State>,
    /// There is something to tell the server.
    outgoing: Notify,
    /// Something that was unknown has become known.
    known: Notify,
}

struct State {
    replica: Arc<Replica>,
    fan_out: FanOut,
    watches: BTreeMap<SubscriberId, Watched>,
    /// The current watch of each proxy.
    proxies: BTreeMap<InstanceKey, SubscriberId>,
    /// What the native data plane depends on.
    native: BTreeSet<Subject>,
    /// How many want each subject, the mirror itself included.
    wanted: BTreeMap<Subject, usize>,
    subscribe: BTreeSet<Subject>,
    unsubscribe: BTreeSet<Subject>,
    refusals: Vec<Rejected>,
    /// What was last told to the server.
    told: Option<Applied>,
}

struct Watched {
    proxy: InstanceKey,
    waker: Arc<Notify>,
    subjects: BTreeSet<Subject>,
    /// The first and the last revision that concern it and that it has not applied.
    owes: Option<(Revision, Revision)>,
    refuses: bool,
}

impl Mirror {
    /// Mirrors `replica`, and always `own`: the subjects that the agent itself follows.
    #[must_use]
    pub fn new(replica: Replica, own: impl IntoIterator<Item = Subject>) -> Arc<Self> {
        let mut state = State {
            replica: Arc::new(replica),
            fan_out: FanOut::default(),
            watches: BTreeMap::new(),
            proxies: BTreeMap::new(),
            native: BTreeSet::new(),
            wanted: BTreeMap::new(),
            subscribe: BTreeSet::new(),
            unsubscribe: BTreeSet::new(),
            refusals: Vec::new(),
            told: None,
        };
        for subject in own {
            state.want(&subject);
        }
        Arc::new(Self { state: Mutex::new(state), outgoing: Notify::new(), known: Notify::new() })
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

    /// What to say first on a new stream: every subject, each with what is there of it.
    #[must_use]
    pub fn resume(&self) -> AgentSays {
        let mut state = self.lock();
        // What waited to be asked for is among them.
        state.subscribe.clear();
        state.unsubscribe.clear();
        state.told = None;
        let resumes = Arc::make_mut(&mut state.replica).resumes();
        AgentSays::Subscribe(Subscribe { resumes: resumes.iter().filter_map(resume).collect() })
    }

    /// The server knows nothing of what this mirror has: everything is asked for anew.
    pub fn begin_anew(&self) {
        Arc::make_mut(&mut self.lock().replica).begin_anew();
    }

    /// Waits until there is something to tell the server. Safe to drop.
    pub async fn outgoing(&self) {
        self.outgoing.notified().await;
    }

    /// What there is to tell the server, in order.
    #[must_use]
    pub fn take_outgoing(&self) -> Vec<AgentSays> {
        let mut state = self.lock();
        let mut says = Vec::new();
        let leave = mem::take(&mut state.unsubscribe);
        if !leave.is_empty() {
            let subjects = leave.iter().filter_map(encode_subject).collect();
            says.push(AgentSays::Unsubscribe(Subjects { subjects }));
        }
        let join = mem::take(&mut state.subscribe);
        if !join.is_empty() {
            let resumes = join.into_iter().map(|subject| (subject, Revision(0)));
            says.push(AgentSays::Subscribe(Subscribe { resumes: resumes.filter_map(|r| resume(&r)).collect() }));
        }
        says.extend(mem::take(&mut state.refusals).into_iter().map(AgentSays::Rejected));
        let standing = state.standing();
        if state.told != Some(standing) && standing.through > 0 {
            state.told = Some(standing);
            says.push(AgentSays::Applied(standing));
        }
        says
    }

    /// Applies what the server said. At a `Through` everyone concerned is woken, and the subjects that changed are
    /// answered.
    ///
    /// # Errors
    /// [`ReplicaError`]; the stream has to end then.
    pub fn handle(&self, says: &ServerSays) -> Result<Option<BTreeSet<Subject>>, ReplicaError> {
        let mut state = self.lock();
        let Some(touched) = Arc::make_mut(&mut state.replica).handle(says)? else { return Ok(None) };
        state.announce(&touched);
        drop(state);
        self.known.notify_waiters();
        self.outgoing.notify_one();
        Ok(Some(touched))
    }

    /// The node's own registrations are now these. Answers with the subjects that this changes.
    pub fn set_local(&self, node: &Node, instances: Vec<ServiceInstance>) -> BTreeSet<Subject> {
        let mut state = self.lock();
        let touched = Arc::make_mut(&mut state.replica).set_local(node, instances);
        for subject in &touched {
            let Subject::Instance(key) = subject else { continue };
            if state.replica.instance(key).is_none()
                && let Some(id) = state.proxies.remove(key)
            {
                state.end(id);
            }
        }
        state.announce(&touched);
        touched
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
        drop(state);
        self.outgoing.notify_one();
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
            drop(state);
            self.outgoing.notify_one();
        }
    }
}

impl State {
    fn want(&mut self, subject: &Subject) {
        if matches!(subject, Subject::Instance(_)) {
            return;
        }
        *self.wanted.entry(subject.clone()).or_default() += 1;
        if Arc::make_mut(&mut self.replica).want(subject) {
            // One that waits to be unsubscribed is told so first: what was sent under it is forgotten here.
            self.subscribe.insert(subject.clone());
        }
    }

    fn unwant(&mut self, subject: &Subject) {
        let Some(count) = self.wanted.get_mut(subject) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.wanted.remove(subject);
        Arc::make_mut(&mut self.replica).forget(subject);
        if !self.subscribe.remove(subject) {
            self.unsubscribe.insert(subject.clone());
        }
    }

    /// Wakes those whom a change of `touched` concerns; each owes it from now on.
    fn announce(&mut self, touched: &BTreeSet<Subject>) {
        let revision = self.replica.through();
        let events: Vec<_> = touched.iter().map(|subject| Event { subject: subject.clone(), revision }).collect();
        for event in &events {
            let concerned: Vec<_> = self.fan_out.subscribers_of(&event.subject).collect();
            for id in concerned {
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.owes.get_or_insert((revision, revision)).1 = revision;
                }
            }
        }
        for id in self.fan_out.publish(&events) {
            if let Some(watched) = self.watches.get(&id) {
                watched.waker.notify_one();
            }
        }
    }

    /// Up to where every proxy of the node has applied everything.
    fn standing(&self) -> Applied {
        let owed = self.watches.values().filter_map(|watched| watched.owes).map(|(first, _)| first).min();
        let through = owed.map_or(self.replica.through().0, |first| first.0.saturating_sub(1));
        Applied { through, refusals_stand: self.watches.values().any(|watched| watched.refuses) }
    }

    fn end(&mut self, id: SubscriberId) {
        let Some(watched) = self.watches.remove(&id) else { return };
        self.fan_out.unsubscribe(id);
        for subject in &watched.subjects {
            self.unwant(subject);
        }
        if self.proxies.get(&watched.proxy) == Some(&id) {
            self.proxies.remove(&watched.proxy);
        }
        watched.waker.notify_one();
    }
}

fn resume((subject, have): &(Subject, Revision)) -> Option<Resume> {
    Some(Resume { subject: Some(encode_subject(subject)?), have: have.0 })
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
        let (subjects, owes, refuses) = (BTreeSet::new(), None, false);
        state.watches.insert(id, Watched { proxy: proxy.clone(), waker: watched, subjects, owes, refuses });
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
            let left = mem::replace(&mut watched.subjects, subjects.clone());
            for subject in &left {
                state.unwant(subject);
            }
            state.fan_out.resubscribe(self.id, subjects);
        });
    }

    async fn known(&self) {
        loop {
            let mut notified = std::pin::pin!(self.mirror.known.notified());
            // Before the look, so that nothing falls between.
            notified.as_mut().enable();
            {
                let state = self.mirror.lock();
                let Some(watched) = state.watches.get(&self.id) else { return };
                if watched.subjects.iter().all(|subject| state.replica.knows(subject)) {
                    return;
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
            let Some(watched) = state.watches.get_mut(&self.id) else { return };
            watched.refuses = refusals_stand;
            watched.owes = watched.owes.and_then(|(first, last)| {
                let next = first.max(Revision(through.0.saturating_add(1)));
                (next <= last).then_some((next, last))
            });
        });
    }

    fn rejected(&self, refused: Refused) {
        self.mirror.report(self.id, |state| {
            let Some(watched) = state.watches.get_mut(&self.id) else { return };
            watched.refuses = true;
            let rejected = Rejected {
                proxy: watched.proxy.id.to_string(),
                revision: refused.revision.0,
                since: refused.since.0,
                type_url: refused.type_url,
                resources: refused.resources,
                text: refused.text,
            };
            if state.refusals.len() == REFUSALS_QUEUED_MAX {
                state.refusals.remove(0);
            }
            state.refusals.push(rejected.bounded());
        });
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.mirror.lock().end(self.id);
        self.mirror.outgoing.notify_one();
    }
}
