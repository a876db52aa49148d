//! Receipts: for every recent change, whom it concerns and who has applied or refused it.
//!
//! A reporter is a node whose agent is attached, or a proxy attached in this process. It reports one number, the
//! revision up to which it has applied everything, and what was refused. A change concerns the reporters subscribed to
//! a subject it touched; every other has nothing to do and counts as applied. Reporters are known from their first
//! connection on: after a restart of the server, one that is not yet back is not expected.
//!
//! Cost model: reporters have small numbers. A change costs an array element per reporter that it concerns, about 4
//! bytes, and a report a bit test per change since the last. A subscription costs a look-up for each of its subjects: when a
//! server is lost, all of its nodes subscribe to others at once.

mod change;
mod earlier;
mod id_set;
mod merged;
mod node;
mod report;
mod reporter;
mod until;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use starling_model::{InstanceId, InstanceKey, NodeName, Revision};

pub use change::{Counts, Mark, Progress, REFUSALS_PER_REPORTER_MAX};
pub use earlier::{Earlier, EarlierError};
pub use node::NodeReport;
pub use report::{ChangeReport, Latency, Reached};
pub use reporter::{Reporter, ReporterId};
pub use until::{Barrier, Until, UntilError};

use crate::subject::Subject;
use change::{Change, Outcome};
use reporter::{Entry, Roll};

/// Changes that are remembered; older receipts are forgotten.
pub const CHANGES_MAX: usize = 8192;

/// Bytes that remembered changes take, the newest aside, so that a large fleet does not make the server large: some 800
/// changes of concern to 10,000.
pub const CHANGES_BYTES_MAX: usize = 32 << 20;

/// What was refused, and why.
///
/// A proxy that is busy gets several changes in one response. Which of them it refuses nobody can tell, so all of them
/// count as refused: those after `since`, the newest revision of whose resources of this type it had taken every one,
/// up to `revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The revision whose rendering was refused.
    pub revision: Revision,
    /// The newest revision of which the proxy had everything of the type; the changes up to it are not at fault.
    pub since: Revision,
    /// Which proxy of the node refused it; `None` where the reporter is the proxy.
    pub proxy: Option<InstanceId>,
    /// The resource type, an Envoy type URL.
    pub type_url: String,
    /// The resources in the refused response.
    pub resources: Vec<String>,
    /// The proxy's own words.
    pub text: String,
}

impl Refused {
    fn bytes(&self) -> usize {
        let resources: usize = self.resources.iter().map(|name| size_of::<String>() + name.len()).sum();
        size_of::<Self>() + self.type_url.len() + resources + self.text.len()
    }
}

/// What is known of one reporter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyReport {
    /// Whether its stream is open.
    pub connected: bool,
    /// Everything up to this revision is applied, except what was refused. Having nothing to do counts as applied.
    pub applied_through: Revision,
    /// What it, or a proxy of it, last refused, for as long as a refusal stands.
    pub refused: Option<Arc<Refused>>,
    /// How many remembered changes it owes: they concern it, and it has neither applied nor refused them.
    pub owes: u32,
    /// When the oldest change that it owes was committed, on the clock of [`Receipts::committed`].
    pub owes_since_us: Option<u64>,
}

/// Who has applied what. Methods that take a [`ReporterId`] ignore one that was removed.
#[derive(Debug, Default)]
pub struct Receipts {
    roll: Roll,
    changes: BTreeMap<Revision, Change>,
    /// The changes by what they touched.
    touched: BTreeMap<Subject, BTreeSet<Revision>>,
    /// What the changes take.
    bytes: usize,
    newest: Revision,
}

impl Receipts {
    /// A reporter's stream opened; it goes by this number until it is removed.
    pub fn connected(&mut self, reporter: &Reporter) -> ReporterId {
        let id = self.roll.enter(reporter);
        if let Some(entry) = self.roll.get_mut(id) {
            entry.connected = true;
        }
        id
    }

    /// A reporter's stream closed. What it has not applied stays outstanding until it is back or removed.
    pub fn disconnected(&mut self, id: ReporterId) {
        if let Some(entry) = self.roll.get_mut(id) {
            entry.connected = false;
        }
    }

    /// A reporter was deregistered: nothing more is expected of it, and what it owed does not concern it after all.
    pub fn removed(&mut self, id: ReporterId) -> Vec<Progress> {
        self.retired(id, Outcome::Released)
    }

    /// A reporter is lost: nothing more is expected of it until it connects anew, but what it owed names it.
    pub fn lost(&mut self, id: ReporterId) -> Vec<Progress> {
        self.retired(id, Outcome::Lost)
    }

    fn retired(&mut self, id: ReporterId, outcome: Outcome) -> Vec<Progress> {
        let progress = self.settle(id, Revision(0), Revision(u64::MAX), |_, _| outcome);
        self.roll.retire(id, self.oldest());
        progress
    }

    /// The number of a known reporter.
    #[must_use]
    pub fn find(&self, reporter: &Reporter) -> Option<ReporterId> {
        self.roll.find(reporter)
    }

    /// Whether a reporter has yet to apply a change that concerns it.
    #[must_use]
    pub fn owes(&self, id: ReporterId) -> bool {
        self.roll.get(id).is_some_and(|entry| entry.owes() > 0)
    }

    /// A change was committed at `now_us`, touched `subjects` and concerns `affected`.
    pub fn committed(
        &mut self,
        revision: Revision,
        subjects: BTreeSet<Subject>,
        mut affected: Vec<ReporterId>,
        now_us: u64,
    ) -> Vec<Progress> {
        self.newest = self.newest.max(revision);
        affected.sort_unstable();
        affected.dedup();
        let mut progress = Vec::new();
        if self.changes.contains_key(&revision) {
            // The catalog was read anew and found to be current.
            affected.into_iter().for_each(|id| self.concern(id, revision, &mut progress));
            return progress;
        }
        let mut members = Vec::with_capacity(affected.len());
        for id in affected {
            if let Some(outcome) = self.outcome_of_concern(id, revision) {
                self.roll.concern(id, revision, outcome == Outcome::Pending);
                members.push((id.0, outcome));
            }
        }
        for subject in &subjects {
            self.touched.entry(subject.clone()).or_default().insert(revision);
        }
        let mut change = Change::new(subjects, now_us, &members);
        change.tell(revision, &mut progress);
        self.bytes += change.bytes();
        self.changes.insert(revision, change);
        self.forget_oldest();
        progress
    }

    /// A reporter that is current as of `as_of` subscribes to `subjects`: what has touched them since concerns it. The
    /// caller sees to it that it reports on everything up to now, also where there turns out to be nothing to do.
    pub fn subscribed(&mut self, id: ReporterId, as_of: Revision, subjects: &BTreeSet<Subject>) -> Vec<Progress> {
        let since = (Bound::Excluded(as_of), Bound::Unbounded);
        let of = |subject| self.touched.get(subject).into_iter().flat_map(|revisions| revisions.range(since).copied());
        let missed: BTreeSet<_> = subjects.iter().flat_map(of).collect();
        let mut progress = Vec::new();
        for revision in missed {
            self.concern(id, revision, &mut progress);
        }
        self.forget_oldest();
        progress
    }

    fn concern(&mut self, id: ReporterId, revision: Revision, progress: &mut Vec<Progress>) {
        let Some(outcome) = self.outcome_of_concern(id, revision) else { return };
        let Some(change) = self.changes.get_mut(&revision) else { return };
        let before = change.bytes();
        if change.concern(id.0, outcome) {
            self.roll.concern(id, revision, outcome == Outcome::Pending);
            change.tell(revision, progress);
        }
        self.bytes += change.bytes() - before;
    }

    /// How far a reporter is with a change of which it has just become known that it concerns it.
    fn outcome_of_concern(&self, id: ReporterId, revision: Revision) -> Option<Outcome> {
        let entry = self.roll.get(id)?;
        // It may have seen the snapshot, and had nothing to send, before the change was announced.
        Some(if entry.applied_through >= revision { Outcome::Applied(0) } else { Outcome::Pending })
    }

    fn oldest(&self) -> Option<Revision> {
        self.changes.first_key_value().map(|(revision, _)| *revision)
    }

    fn forget_oldest(&mut self) {
        while self.changes.len() > CHANGES_MAX || (self.bytes > CHANGES_BYTES_MAX && self.changes.len() > 1) {
            let Some((revision, change)) = self.changes.pop_first() else { return };
            self.bytes -= change.bytes();
            for subject in change.subjects() {
                if let Some(revisions) = self.touched.get_mut(subject)
                    && revisions.remove(&revision)
                    && revisions.is_empty()
                {
                    self.touched.remove(subject);
                }
            }
            for (id, _) in change.outcomes().filter(|(_, outcome)| *outcome == Outcome::Pending) {
                self.roll.settle(ReporterId(id), 1, Revision(revision.0 + 1));
            }
            self.roll.free_before(self.oldest());
        }
    }

    /// A reporter has applied everything up to `through`, except what was refused and reported. `refusals_stand` says
    /// whether there is any such thing still.
    pub fn applied(&mut self, id: ReporterId, through: Revision, refusals_stand: bool, now_us: u64) -> Vec<Progress> {
        let Some(entry) = self.roll.get_mut(id) else { return Vec::new() };
        entry.applied_through = entry.applied_through.max(through);
        if !refusals_stand {
            entry.refused = None;
        }
        let refused = entry.refused.clone();
        let at_fault = refused.as_ref().and_then(|refused| self.registration_at_fault(id, refused, through));
        let progress = self.settle(id, Revision(0), through, |revision, change| match at_fault {
            Some(at_fault) if at_fault == revision => Outcome::Rejected,
            Some(_) | None => Outcome::applied_after(now_us.saturating_sub(change.committed_us)),
        });
        if let (Some(revision), Some(refused)) = (at_fault, refused) {
            self.keep_refusal(id, &refused, (Bound::Included(revision), Bound::Included(revision)));
        }
        progress
    }

    /// The change by which a proxy was registered that refuses what came of it. Its agent plans for a registration before
    /// that is written, and so refuses it as of an earlier revision than its own.
    fn registration_at_fault(&self, id: ReporterId, refused: &Refused, through: Revision) -> Option<Revision> {
        let node = self.roll.name(id.0)?.node().clone();
        let proxy = Subject::Instance(InstanceKey { node, id: refused.proxy.clone()? });
        let since = (Bound::Excluded(refused.revision), Bound::Included(through.max(refused.revision)));
        self.touched.get(&proxy)?.range(since).next().copied()
    }

    /// Something was refused; the proxy keeps serving what it had. Comes before the report of `refused.revision` as
    /// applied, which settles the changes that were not refused.
    pub fn rejected(&mut self, id: ReporterId, refused: Refused) -> Vec<Progress> {
        let Some(entry) = self.roll.get_mut(id) else { return Vec::new() };
        let refused = Arc::new(refused);
        entry.refused = Some(Arc::clone(&refused));
        // What was reported as applied before is history.
        let blameless = entry.applied_through.max(refused.since);
        let progress = self.settle(id, blameless, refused.revision, |_, _| Outcome::Rejected);
        // Another proxy of the same node may have settled it already; what this one says is kept beside.
        let blamed = (Bound::Excluded(blameless), Bound::Included(refused.revision.max(blameless)));
        self.keep_refusal(id, &refused, blamed);
        progress
    }

    /// Keeps what was refused with the changes of a range that the reporter has rejected.
    fn keep_refusal(&mut self, id: ReporterId, refused: &Arc<Refused>, blamed: (Bound<Revision>, Bound<Revision>)) {
        for (_, change) in self.changes.range_mut(blamed) {
            if change.outcome(id.0) == Some(Outcome::Rejected) {
                let before = change.bytes();
                change.keep_refusal(id.0, refused);
                self.bytes += change.bytes() - before;
            }
        }
        self.forget_oldest();
    }

    /// Settles what a reporter owes after `after` and up to `through`.
    fn settle(
        &mut self,
        id: ReporterId,
        after: Revision,
        through: Revision,
        outcome: impl Fn(Revision, &Change) -> Outcome,
    ) -> Vec<Progress> {
        let mut progress = Vec::new();
        let Some(entry) = self.roll.get(id) else { return progress };
        let Some(owes_from) = entry.owes_from() else { return progress };
        let from = owes_from.max(Revision(after.0.saturating_add(1)));
        if from > through {
            return progress;
        }
        let (owes, mut settled) = (entry.owes(), 0);
        for (revision, change) in self.changes.range_mut(from..=through) {
            if settled == owes {
                break;
            }
            if change.settle(id.0, outcome(*revision, change)) {
                change.tell(*revision, &mut progress);
                settled += 1;
            }
        }
        // What lies before `from` is still owed.
        let owes_from = if from > owes_from { owes_from } else { Revision(through.0.saturating_add(1)) };
        self.roll.settle(id, settled, owes_from);
        progress
    }

    /// One command was written as `earlier` and `last`: the receipt of the last speaks of all.
    pub fn join(&mut self, last: Revision, earlier: &Earlier) {
        if let Some(change) = self.changes.get_mut(&last) {
            change.earlier.extend(earlier);
        }
    }

    /// The remembered changes of which the command known as `revision` consists.
    fn parts(&self, revision: Revision) -> Option<impl Iterator<Item = &Change> + Clone> {
        let last = self.changes.get(&revision)?;
        Some(last.earlier.iter().filter_map(|earlier| self.changes.get(&earlier)).chain([last]))
    }

    /// Everyone whom a command concerns, each once.
    fn outcomes(&self, revision: Revision) -> Option<Vec<(u32, Outcome)>> {
        let last = self.changes.get(&revision)?;
        if last.earlier.is_empty() {
            return Some(last.outcomes().collect());
        }
        let mut all: BTreeMap<u32, Outcome> = BTreeMap::new();
        for (id, outcome) in self.parts(revision)?.flat_map(Change::outcomes) {
            all.entry(id).and_modify(|earlier| *earlier = earlier.and(outcome)).or_insert(outcome);
        }
        Some(all.into_iter().collect())
    }

    fn counts(&self, revision: Revision) -> Option<Counts> {
        let last = self.changes.get(&revision)?;
        if last.earlier.is_empty() {
            return Some(last.counts());
        }
        let mut counts = Counts::default();
        self.outcomes(revision)?.iter().for_each(|(_, outcome)| counts.add(*outcome));
        Some(counts)
    }

    /// Whether nothing is outstanding for a change; `None` if it is not remembered.
    #[must_use]
    pub fn is_settled(&self, revision: Revision) -> Option<bool> {
        let (mut pending, mut rejected) = (0, 0);
        for part in self.parts(revision)? {
            let counts = part.counts();
            (pending, rejected) = (pending.max(counts.pending), rejected + counts.rejected);
        }
        // Of a change in parts, whoever has refused one is not waited for, though it may owe another.
        if pending == 0 || pending > rejected {
            return Some(pending == 0);
        }
        Some(self.counts(revision)?.pending == 0)
    }

    /// How it stands with a barrier behind a change; `None` if the change is not remembered.
    #[must_use]
    pub fn holds(&self, revision: Revision, until: &Until) -> Option<Barrier> {
        let percent = match until {
            Until::AppliedAll => 100,
            Until::AppliedPercent(percent) => usize::from(*percent),
            Until::AppliedNode(node) => return self.holds_on(revision, node),
        };
        let counts = self.counts(revision)?;
        Some(match (counts.has_applied(percent), counts.can_apply(percent)) {
            (true, _) => Barrier::Met,
            (false, true) => Barrier::NotYet,
            (false, false) => Barrier::Never,
        })
    }

    fn holds_on(&self, revision: Revision, node: &NodeName) -> Option<Barrier> {
        let parts = self.parts(revision)?;
        let outcomes = self.roll.on_node(node).map(|(id, entry)| {
            // One that has not reported anything may not have said yet what concerns it.
            let idle = if entry.applied_through > Revision(0) { Outcome::Applied(0) } else { Outcome::Pending };
            parts.clone().filter_map(|change| change.outcome(id.0)).reduce(Outcome::and).unwrap_or(idle)
        });
        Some(match outcomes.reduce(Outcome::and) {
            Some(Outcome::Applied(_)) => Barrier::Met,
            Some(Outcome::Rejected) => Barrier::Never,
            Some(Outcome::Pending | Outcome::Released | Outcome::Lost) | None => Barrier::NotYet,
        })
    }

    /// The receipt of a change, which names at most `names` of each kind; `None` if it is not remembered.
    #[must_use]
    pub fn report(&self, revision: Revision, names: usize) -> Option<ChangeReport> {
        let outcomes = self.outcomes(revision)?;
        let (counts, latency, reached) = report::numbers(&outcomes);
        let earlier = self.changes.get(&revision).map(|last| last.earlier.clone()).unwrap_or_default();
        let mut report = ChangeReport { revision, earlier, counts, latency, reached, ..ChangeReport::default() };
        if names > 0 {
            self.name(&mut report, &outcomes, names);
        }
        Some(report)
    }

    fn name(&self, report: &mut ChangeReport, outcomes: &[(u32, Outcome)], names: usize) {
        let mut applied = Vec::with_capacity(report.counts.applied);
        for (id, outcome) in outcomes {
            let Some(name) = self.roll.name(*id) else { continue };
            match outcome {
                Outcome::Applied(us) => applied.push((*us, name)),
                Outcome::Pending if report.pending.len() < names => report.pending.push(name.clone()),
                Outcome::Rejected if report.rejected.len() < names => {
                    let said = self.refusals(report.revision, *id);
                    report.rejected.extend(said.into_iter().map(|refused| (name.clone(), refused)));
                }
                Outcome::Lost if report.lost.len() < names => report.lost.push(name.clone()),
                Outcome::Pending | Outcome::Rejected | Outcome::Lost | Outcome::Released => {}
            }
        }
        applied.sort_unstable_by(|(us, name), (other_us, other)| other_us.cmp(us).then(name.cmp(other)));
        applied.truncate(names);
        report.applied = applied.into_iter().map(|(us, name)| (name.clone(), u64::from(us))).collect();
        report.pending.sort_unstable();
        report.lost.sort_unstable();
        report.rejected.sort_by(|(name, _), (other, _)| name.cmp(other));
        report.rejected.truncate(names);
    }

    /// What a reporter that refused a command, or its proxies, said.
    fn refusals(&self, revision: Revision, id: u32) -> Vec<Arc<Refused>> {
        let mut said = Vec::new();
        for refused in self.parts(revision).into_iter().flatten().flat_map(|change| change.refusals(id)) {
            // One refusal settles every part that it came after.
            if !said.contains(refused) {
                said.push(Arc::clone(refused));
            }
        }
        said
    }

    /// The remembered revisions, newest first.
    pub fn revisions(&self) -> impl Iterator<Item = Revision> {
        self.changes.keys().rev().copied()
    }

    /// Every known reporter, by name. One that has applied all that concerns it has applied everything there is.
    pub fn reporters(&self) -> impl Iterator<Item = (&Reporter, ProxyReport)> {
        self.roll.known().map(|(id, entry)| {
            let owes_since_us = self.owes_since_us(id, entry);
            let current = owes_since_us.is_none() && entry.applied_through > Revision(0) && entry.refused.is_none();
            let report = ProxyReport {
                connected: entry.connected,
                applied_through: if current { entry.applied_through.max(self.newest) } else { entry.applied_through },
                refused: entry.refused.clone(),
                owes: entry.owes(),
                owes_since_us,
            };
            (&entry.name, report)
        })
    }

    fn owes_since_us(&self, id: ReporterId, entry: &Entry) -> Option<u64> {
        let owed = self.changes.range(entry.owes_from()?..);
        let mut pending = owed.filter(|(_, change)| change.outcome(id.0) == Some(Outcome::Pending));
        pending.next().map(|(_, change)| change.committed_us)
    }

    /// How many reporters have yet to apply a change that concerns them.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.roll.behind()
    }

    /// When the oldest change was committed that someone has yet to apply.
    #[must_use]
    pub fn owed_since_us(&self) -> Option<u64> {
        self.changes.values().find(|change| change.counts().pending > 0).map(|change| change.committed_us)
    }

    /// The bytes that the remembered changes take, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
