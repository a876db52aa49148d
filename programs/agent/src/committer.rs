//! The one who writes: takes what is pending, in order, to the server and to the journal, and keeps the catalog's records
//! of this node equal to the agent's.
//!
//! One write is under way at a time; what comes meanwhile goes together in the next. So registrations that come together
//! share a transaction and an fsync, while a lone one leaves at once.

use std::sync::Arc;
use std::time::Duration;

use starling_model::{Change, LIVENESS_CHECK, RecordKey, Revision};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::agent::{Shared, WriteError};
use crate::anti_entropy::difference;
use crate::journal::{Entry, Journal};
use crate::link::{LinkError, ServerLink};
use crate::registrations::Kept;
use crate::registrations::pending::Group;

/// Time between two full comparisons with the catalog; Consul's figure for small fleets.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// Wait after the first failure, doubled after each, and DESIGN's ceiling.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Between two times that a server is told that the node leaves.
const LEAVE_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Records that are named then; some 2 MiB.
const LEAVE_NAMES_MAX: usize = 8_192;

pub(crate) struct Committer {
    shared: Arc<Shared>,
    link: Arc<dyn ServerLink>,
    /// Away while a write is under way.
    journal: Option<Journal>,
    failures: u32,
    /// The revision at which the catalog's records of this node were found to be the agent's.
    agreed: Option<Revision>,
}

/// What became of a write.
enum Outcome {
    Done(Revision),
    Refused(String),
    Failed(WriteError),
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, link: Arc<dyn ServerLink>, journal: Journal) -> Self {
        Self { shared, link, journal: Some(journal), failures: 0, agreed: None }
    }

    /// Writes until dropped. `ready` is told when the first comparison with the catalog has been made and written, or has
    /// failed.
    pub(crate) async fn run(mut self, ready: oneshot::Sender<()>) {
        let mut ready = Some(ready);
        let mut compare_at = Instant::now();
        loop {
            if self.shared.leaving.is_asked() {
                self.leave().await;
                break;
            }
            let mut working = true;
            if Instant::now() >= compare_at || self.shared.lock().doubts {
                let compared = self.compare().await;
                working = compared.is_some();
                if let Some(pause) = compared {
                    compare_at = Instant::now() + pause.mul_f64(0.75 + fastrand::f64() / 4.0);
                }
            }
            while working {
                let groups = self.shared.take_pending();
                if groups.is_empty() {
                    break;
                }
                working = self.write(groups).await;
            }
            if let Some(ready) = ready.take() {
                // Nobody listens if starting was given up.
                let _ = ready.send(());
            }
            if working {
                self.failures = 0;
                tokio::select! {
                    () = self.shared.wake.notified() => {}
                    () = self.shared.leaving.until_asked() => {}
                    () = tokio::time::sleep_until(compare_at) => {}
                }
            } else {
                let wait = RETRY_FIRST.saturating_mul(1 << self.failures.min(8)).min(RETRY_MAX);
                self.failures += 1;
                tokio::select! {
                    () = self.shared.leaving.until_asked() => {}
                    () = tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                }
            }
        }
        // Who would have something written yet is told that nothing is.
        loop {
            self.shared.fail(self.shared.take_pending(), &WriteError::Stopped);
            self.shared.wake.notified().await;
        }
    }

    /// Takes the node out of the catalog. The journal keeps everything for a later start. While no server takes it, it is said again:
    /// whoever waits knows how long to.
    async fn leave(&mut self) {
        let outcome = loop {
            match self.link.leave(self.everything()).await {
                Ok(revision) => break Ok(revision),
                Err(LinkError::Refused(reason)) => break Err(WriteError::Refused(reason)),
                Err(LinkError::Unavailable(reason)) => {
                    tracing::info!(reason, "no server was told yet that this node leaves");
                    tokio::time::sleep(LEAVE_AGAIN_AFTER).await;
                }
            }
        };
        self.shared.leaving.ended(outcome);
    }

    /// That the node is gone. A server that knows what that means takes everything on it along; for others it is named, as far as
    /// it fits into a message.
    fn everything(&self) -> Vec<Change> {
        let state = self.shared.lock();
        let node = &state.registrations.node().name;
        let liveness = LIVENESS_CHECK.parse().expect("invariant: the name of a check");
        let checks = state.registrations.checks().keys().cloned().chain([liveness]);
        let checks = checks.map(|check| RecordKey::Check(node.clone(), check));
        let services = state.registrations.services().values();
        let services = services.map(|service| RecordKey::Instance(service.instance.key.clone()));
        let named = checks.chain(services).take(LEAVE_NAMES_MAX);
        named.chain([RecordKey::Node(node.clone())]).map(Change::Delete).collect()
    }

    /// Compares with the catalog and queues what differs; when to do so again, or `None` if it could not.
    async fn compare(&mut self) -> Option<Duration> {
        self.shared.lock().doubts = false;
        match self.link.own_records(self.agreed).await {
            Ok(theirs) => {
                let mut state = self.shared.lock();
                state.compared(theirs.revision);
                let pause = COMPARE_INTERVAL.max(Duration::from_secs(theirs.again_after_s.into()));
                let Some(records) = theirs.records else { return Some(pause) };
                let differing = difference(&state.registrations, &records);
                self.agreed = differing.is_empty().then_some(theirs.revision);
                for keys in differing {
                    state.pending.add(Group { keys: keys.into_iter().collect(), ..Group::default() });
                }
                Some(pause)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot compare this node with the catalog");
                self.shared.lock().doubts = true;
                None
            }
        }
    }

    /// Writes groups together, or one by one if the server refuses them together; whether writing works.
    async fn write(&mut self, groups: Vec<Group>) -> bool {
        let mut outcome = self.attempt(&groups).await;
        if matches!(outcome, Outcome::Refused(_)) && groups.len() > 1 {
            let mut groups = groups.into_iter();
            while let Some(group) = groups.next() {
                let mut tried = vec![group];
                outcome = self.attempt(&tried).await;
                if matches!(outcome, Outcome::Failed(_)) {
                    // With those whose turn did not come: whoever waits for them is told as well.
                    tried.extend(groups.by_ref());
                }
                if !self.settle(tried, outcome) {
                    return false;
                }
            }
            self.shared.lock().pending.landed();
            return true;
        }
        let working = self.settle(groups, outcome);
        self.shared.lock().pending.landed();
        working
    }

    async fn attempt(&mut self, groups: &[Group]) -> Outcome {
        let (changes, entries, durable, fallback) = self.contents(groups);
        let journal = self.journal.take();
        let rewrite = journal.as_ref().is_some_and(Journal::wants_rewrite).then(|| self.shared.entries());
        let kept = tokio::task::spawn_blocking(move || {
            let Some(mut journal) = journal else { return (None, Err("it was lost".to_owned())) };
            let written = journal.append(&entries, durable);
            let written = written.and_then(|()| rewrite.map_or(Ok(()), |entries| journal.rewrite(&entries)));
            (Some(journal), written.map_err(|error| crate::checks::chain(&error)))
        });
        let commits = !changes.is_empty();
        let committed = async { if commits { self.link.commit(changes).await } else { Ok(fallback) } };
        let (kept, committed) = tokio::join!(kept, committed);
        if let Ok(revision) = &committed
            && commits
        {
            self.shared.lock().wrote(*revision);
        }
        let kept = match kept {
            Ok((journal, written)) => {
                self.journal = journal;
                written
            }
            Err(panicked) => Err(panicked.to_string()),
        };
        match (committed, kept) {
            (Err(LinkError::Refused(reason)), _) => Outcome::Refused(reason),
            (Err(LinkError::Unavailable(reason)), _) => Outcome::Failed(WriteError::Unavailable(reason)),
            (Ok(_), Err(reason)) => Outcome::Failed(WriteError::Disk(reason)),
            (Ok(revision), Ok(())) => Outcome::Done(revision),
        }
    }

    /// What is to be written for these groups, as things stand now.
    fn contents(&self, groups: &[Group]) -> (Vec<Change>, Vec<Entry>, bool, Revision) {
        let now = self.shared.unix_now();
        let state = self.shared.lock();
        let keys = groups.iter().flat_map(|group| &group.keys);
        let changes = keys.map(|key| state.registrations.change(key)).collect();
        let kept = || groups.iter().flat_map(|group| &group.kept);
        let entries = kept().filter_map(|kept| state.registrations.entry(kept, now)).collect();
        // A status that is lost is found out again; a registration is not.
        let durable = kept().any(|kept| !matches!(kept, Kept::Status(_)));
        (changes, entries, durable, state.revision)
    }

    /// Tells those who wait what became of it; whether writing works.
    fn settle(&self, groups: Vec<Group>, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Done(revision) => {
                let mut state = self.shared.lock();
                state.revision = state.revision.max(revision);
                drop(state);
                groups.into_iter().flat_map(|group| group.waiters).for_each(|waiter| waiter.written(revision));
                true
            }
            Outcome::Refused(reason) => {
                for group in groups {
                    self.shared.take_back(group, &reason);
                }
                true
            }
            Outcome::Failed(error) => {
                tracing::warn!(%error, "cannot write; what was registered is kept and will be written later");
                self.shared.fail(groups, &error);
                false
            }
        }
    }
}
