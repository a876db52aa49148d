//! What the agent and its tasks share: the state, and the ways in which it changes.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use starling_model::{CheckId, CheckStatus, RecordKey, Revision, UnixSeconds};
use tokio::sync::{Notify, oneshot, watch};

use super::{WallClock, WriteError};
use crate::checks::schedule::{Schedule, Sink};
use crate::checks::timetable::First;
use crate::journal::Entry;
use crate::registrations::pending::{Group, Pending, Waiter};
use crate::registrations::{Health, Registrations, Touched};

/// Revisions of own writes that are remembered: those of some seconds. One that is forgotten costs a comparison.
const OWN_WRITES_MAX: usize = 256;

/// What the agent and its tasks share.
pub(crate) struct Shared {
    pub(super) state: Mutex<State>,
    pub(crate) wake: Notify,
    pub(super) schedule: Schedule,
    pub(super) changes: watch::Sender<u64>,
    /// Told of changes of services alone: there are far more of checks.
    pub(super) service_changes: watch::Sender<()>,
    pub(super) clock: WallClock,
    pub(crate) leaving: Leaving,
}

/// How far the node is with leaving the mesh.
#[derive(Default)]
pub(crate) struct Leaving {
    asked: watch::Sender<bool>,
    /// What came of it.
    outcome: watch::Sender<Option<Result<Revision, WriteError>>>,
}

impl Leaving {
    /// Whether the node is to leave, or has left.
    pub(crate) fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Returns once it is asked to.
    pub(crate) async fn until_asked(&self) {
        // The sender is borrowed, so the channel is not closed.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// What came of it; it is not tried again.
    pub(crate) fn ended(&self, outcome: Result<Revision, WriteError>) {
        self.outcome.send_replace(Some(outcome));
    }
}

pub(crate) struct State {
    pub(crate) registrations: Registrations,
    pub(crate) pending: Pending,
    /// Of the last write or comparison.
    pub(crate) revision: Revision,
    /// Of the last comparison: what was written before has been looked at.
    pub(crate) compared: Revision,
    /// The last revisions that this agent wrote.
    pub(crate) own_writes: BTreeSet<Revision>,
    /// Whether the catalog's records of this node may be others than they should.
    pub(crate) doubts: bool,
}

pub(super) type Waiting = oneshot::Receiver<Result<Revision, WriteError>>;

impl State {
    pub(super) fn new(registrations: Registrations) -> Self {
        Self {
            registrations,
            pending: Pending::default(),
            revision: Revision::default(),
            compared: Revision::default(),
            own_writes: BTreeSet::new(),
            doubts: false,
        }
    }

    /// This agent has written at `revision`.
    pub(crate) fn wrote(&mut self, revision: Revision) {
        self.own_writes.insert(revision);
        if self.own_writes.len() > OWN_WRITES_MAX {
            self.own_writes.pop_first();
        }
    }

    /// The catalog's records were compared as they are at `revision`.
    pub(crate) fn compared(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
        // Set back with the catalog, if that was.
        self.compared = revision;
        self.own_writes.retain(|own| *own > revision);
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unix_now(&self) -> UnixSeconds {
        (self.clock)()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.lock().registrations.entries(self.unix_now())
    }

    pub(crate) fn take_pending(&self) -> Vec<Group> {
        let State { registrations, pending, .. } = &mut *self.lock();
        pending.take(|key| registrations.change_bytes(key))
    }

    /// Takes the node out of the catalog, after what is being written now and before anything else.
    pub(super) async fn leave(&self) -> Result<Revision, WriteError> {
        let mut outcome = self.leaving.outcome.subscribe();
        self.leaving.asked.send_replace(true);
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(WriteError::Stopped)),
            Err(_) => Err(WriteError::Stopped),
        }
    }

    /// Queues what was touched for somebody who waits. If nothing was, but some of `keys` is not yet written, they wait
    /// for that; otherwise there is nothing to wait for.
    pub(super) fn enlist(
        &self,
        state: &mut State,
        mut touched: Touched,
        keys: Vec<RecordKey>,
    ) -> Result<Revision, Waiting> {
        if touched.is_empty() {
            if !state.pending.holds(keys.iter().cloned()) {
                return Ok(state.revision);
            }
            touched.keys.extend(keys);
        }
        let (waiter, receiver) = Waiter::new();
        self.submit(state, touched, vec![waiter]);
        Err(receiver)
    }

    /// The catalog's records of this node were written at `revisions`, by whomever; 0 among them if not all are known.
    pub(super) fn written(&self, revisions: &BTreeSet<Revision>) {
        let mut state = self.lock();
        let foreign = |revision: &Revision| *revision > state.compared && !state.own_writes.contains(revision);
        if revisions.contains(&Revision(0)) || revisions.iter().any(foreign) {
            state.doubts = true;
            drop(state);
            self.wake.notify_one();
        }
    }

    pub(super) fn submit(&self, state: &mut State, touched: Touched, waiters: Vec<Waiter>) {
        if touched.is_empty() && touched.checks.is_empty() {
            return;
        }
        for check in &touched.checks {
            self.schedule.set(check, state.registrations.plan(check), First::AtOnce);
        }
        let of_services = touched.keys.iter().any(|key| matches!(key, RecordKey::Instance(_)));
        let mut group = Group::from(touched);
        group.waiters = waiters;
        state.pending.add(group);
        self.changes.send_modify(|count| *count += 1);
        if of_services {
            self.service_changes.send_replace(());
        }
        self.wake.notify_one();
    }

    /// Undoes what the server refused, unless something newer is on its way that includes it. Whoever waits is told when
    /// nothing of it is left on disk either.
    pub(crate) fn take_back(&self, mut group: Group, reason: &str) {
        if group.waiters.is_empty() {
            tracing::error!(reason, keys = ?group.keys, "the server refused records of this node");
        }
        let verdict = WriteError::Refused(reason.to_owned());
        let waiters = std::mem::take(&mut group.waiters).into_iter().map(|waiter| waiter.refused(verdict.clone()));
        let waiters: Vec<Waiter> = waiters.collect();
        let mut state = self.lock();
        if state.pending.queued(&group.keys) {
            group.waiters = waiters;
            state.pending.put_back(group);
            return;
        }
        let touched = state.registrations.undo(group.before, Instant::now());
        if touched.is_empty() {
            waiters.into_iter().for_each(|waiter| waiter.failed(&verdict));
        } else {
            self.submit(&mut state, touched, waiters);
        }
    }

    /// Puts groups back that could not be written, and tells everybody who waits that it will take longer.
    pub(crate) fn fail(&self, groups: Vec<Group>, error: &WriteError) {
        let mut state = self.lock();
        state.pending.landed();
        for group in groups {
            state.pending.put_back(group);
        }
        let waiters = state.pending.take_waiters();
        drop(state);
        waiters.into_iter().for_each(|waiter| waiter.failed(error));
    }
}

impl Sink for Shared {
    fn observed(&self, check: &CheckId, health: Health) {
        let mut state = self.lock();
        let touched = state.registrations.observe(check, health, Instant::now());
        self.submit(&mut state, touched, Vec::new());
    }

    fn reported(&self, check: &CheckId, health: Health) {
        let mut state = self.lock();
        let touched = state.registrations.report(check, health, Instant::now());
        self.submit(&mut state, touched, Vec::new());
    }

    fn lapsed(&self, check: &CheckId) {
        let mut state = self.lock();
        // A heartbeat that came first was answered, and holds; one that comes now waits for the lock.
        if !self.schedule.is_silent(check) {
            return;
        }
        let last = state.registrations.checks().get(check).map(|check| check.record.output.clone());
        let output = match last.unwrap_or_default() {
            silent if silent.is_empty() => "TTL expired".to_owned(),
            spoken if spoken.starts_with("TTL expired") => spoken,
            spoken => format!("TTL expired (last output before timeout follows): {spoken}"),
        };
        let health = Health { status: CheckStatus::Critical, output };
        let touched = state.registrations.report(check, health, Instant::now());
        self.submit(&mut state, touched, Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use starling_model::{CheckDefinition, CheckKind, CheckSpec, Node, NodeName};

    use super::*;
    use crate::registrations::Source;

    fn shared() -> Shared {
        let node = Node {
            name: NodeName::new("n1").unwrap(),
            id: String::new(),
            address: "10.0.0.1".to_owned(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
        };
        let registrations = Registrations::new(node, 21000..=21255);
        let state = State::new(registrations);
        Shared {
            state: Mutex::new(state),
            wake: Notify::new(),
            schedule: Schedule::default(),
            changes: watch::channel(0).0,
            service_changes: watch::Sender::default(),
            clock: Arc::new(|| UnixSeconds(0)),
            leaving: Leaving::default(),
        }
    }

    #[test]
    fn a_write_by_another_is_noticed_whatever_the_agent_writes_after_it() {
        let shared = shared();
        let doubts = |revisions: &[u64]| {
            shared.written(&revisions.iter().copied().map(Revision).collect());
            std::mem::take(&mut shared.lock().doubts)
        };
        shared.lock().compared(Revision(8));
        shared.lock().wrote(Revision(9));
        shared.lock().wrote(Revision(11));
        assert!(!doubts(&[7, 8, 9, 11]), "its own, and what a comparison has seen");
        assert!(doubts(&[10, 11]), "somebody else's, before its own");
        assert!(doubts(&[0, 11]), "nobody knows whose");
        shared.lock().compared(Revision(12));
        assert!(!doubts(&[10, 11, 12]));
        for revision in 13..1_000 {
            shared.lock().wrote(Revision(revision));
        }
        assert!(shared.lock().own_writes.len() <= OWN_WRITES_MAX);
        assert!(!doubts(&[998, 999]));
    }

    #[test]
    fn a_heartbeat_that_came_before_the_lapse_holds() {
        let shared = shared();
        let check = CheckId::new("alive").unwrap();
        let definition = CheckDefinition {
            kind: CheckKind::Ttl { ttl: Duration::from_secs(60) },
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            success_before_passing: 1,
            failures_before_warning: 1,
            failures_before_critical: 1,
            deregister_after: None,
        };
        let spec = CheckSpec {
            id: Some(check.clone()),
            name: "alive".to_owned(),
            notes: String::new(),
            initial_status: CheckStatus::Passing,
            definition,
            interval_text: String::new(),
            timeout_text: String::new(),
        };
        let mut state = shared.lock();
        let touched =
            state.registrations.register_check(check.clone(), None, spec, Source::Caller, Instant::now()).unwrap();
        shared.submit(&mut state, touched, Vec::new());
        drop(state);
        // The deadline stands again by the time that its end is told.
        shared.schedule.heard(&check);
        shared.lapsed(&check);
        assert_eq!(shared.lock().registrations.checks()[&check].record.status, CheckStatus::Passing);
    }
}
