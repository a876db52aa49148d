//! One change, and how far each reporter that it concerns has got with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_model::Revision;

use super::Refused;
use super::earlier::Earlier;
use super::id_set::IdSet;
use crate::subject::Subject;

/// Refusals of one change that are kept per reporter. A node names each of its proxies that refused; the first few say why.
pub const REFUSALS_PER_REPORTER_MAX: usize = 16;

/// A share of the affected reporters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// 50 %.
    Half,
    /// 99 %.
    Most,
    /// 100 %.
    All,
}

impl Mark {
    /// Every mark, in the order in which they are reached.
    pub const ALL: [Self; 3] = [Self::Half, Self::Most, Self::All];

    /// The share in percent.
    #[must_use]
    pub fn percent(self) -> usize {
        match self {
            Self::Half => 50,
            Self::Most => 99,
            Self::All => 100,
        }
    }
}

/// Something worth telling those who wait for a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many of those whom a change concerns have applied it.
    Reached {
        /// The change.
        revision: Revision,
        /// How many.
        mark: Mark,
        /// Microseconds from its commit to the latest report.
        after_us: u64,
    },
    /// Nothing is outstanding for a change.
    Settled(Revision),
}

/// How far a reporter is with a change that concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Pending,
    /// Microseconds from commit to report.
    Applied(u32),
    Rejected,
    /// It was removed before it had reported: the change does not concern it after all.
    Released,
    /// It was lost before it had reported, and is not waited for. What it has in force nobody knows.
    Lost,
}

/// Outcomes as stored: a latency or, above the longest that is told apart (71 minutes), one of the others.
const PENDING: u32 = u32::MAX;
const REJECTED: u32 = u32::MAX - 1;
const RELEASED: u32 = u32::MAX - 2;
const LOST: u32 = u32::MAX - 3;
const LATENCY_US_MAX: u32 = u32::MAX - 4;

impl Outcome {
    pub(super) fn applied_after(us: u64) -> Self {
        Self::Applied(u32::try_from(us).unwrap_or(LATENCY_US_MAX).min(LATENCY_US_MAX))
    }

    fn stored(self) -> u32 {
        match self {
            Self::Pending => PENDING,
            Self::Applied(us) => us,
            Self::Rejected => REJECTED,
            Self::Released => RELEASED,
            Self::Lost => LOST,
        }
    }

    fn of(stored: u32) -> Self {
        match stored {
            PENDING => Self::Pending,
            REJECTED => Self::Rejected,
            RELEASED => Self::Released,
            LOST => Self::Lost,
            us => Self::Applied(us),
        }
    }

    /// That of a command whose parts ended as `self` and, later, as `next`.
    pub(super) fn and(self, next: Self) -> Self {
        match (self, next) {
            (Self::Rejected, _) | (_, Self::Rejected) => Self::Rejected,
            (Self::Pending, _) | (_, Self::Pending) => Self::Pending,
            (Self::Lost, _) | (_, Self::Lost) => Self::Lost,
            (earlier, Self::Released) => earlier,
            (Self::Applied(_) | Self::Released, later) => later,
        }
    }
}

/// How many reporters a change concerns, and how far they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Those that it concerns and that are not lost: the sum of the next three.
    pub affected: usize,
    /// Have applied it.
    pub applied: usize,
    /// Have neither applied nor refused it.
    pub pending: usize,
    /// Refused it.
    pub rejected: usize,
    /// Were lost before they had applied or refused it. Nobody waits for them, and no share is a share of them.
    pub lost: usize,
}

impl Counts {
    pub(super) fn add(&mut self, outcome: Outcome) {
        if let Some(count) = self.of(outcome) {
            *count += 1;
            self.affected += usize::from(outcome != Outcome::Lost);
        }
    }

    fn subtract(&mut self, outcome: Outcome) {
        if let Some(count) = self.of(outcome) {
            *count -= 1;
            self.affected -= usize::from(outcome != Outcome::Lost);
        }
    }

    fn of(&mut self, outcome: Outcome) -> Option<&mut usize> {
        match outcome {
            Outcome::Pending => Some(&mut self.pending),
            Outcome::Applied(_) => Some(&mut self.applied),
            Outcome::Rejected => Some(&mut self.rejected),
            Outcome::Lost => Some(&mut self.lost),
            Outcome::Released => None,
        }
    }

    /// Whether `percent` of those affected have applied it.
    pub(super) fn has_applied(&self, percent: usize) -> bool {
        self.applied * 100 >= self.affected * percent
    }

    /// Whether `percent` of those affected still can have applied it.
    pub(super) fn can_apply(&self, percent: usize) -> bool {
        (self.applied + self.pending) * 100 >= self.affected * percent
    }
}

/// A remembered change. Costs some 4 bytes for each reporter that it concerns.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// The earlier changes of the same command, if it took several; its receipt speaks of them too.
    pub(super) earlier: Earlier,
    subjects: BTreeSet<Subject>,
    pub(super) committed_us: u64,
    /// Everyone whom it concerns, and in the same order how far they are.
    members: IdSet,
    outcomes: Vec<u32>,
    counts: Counts,
    refusals: BTreeMap<u32, Vec<Arc<Refused>>>,
    slowest_us: u32,
    /// How many of [`Mark::ALL`] were told.
    marks_told: usize,
    settled_told: bool,
    refusal_bytes: usize,
}

impl Change {
    /// `members` rise, each with its outcome so far.
    pub(super) fn new(subjects: BTreeSet<Subject>, committed_us: u64, members: &[(u32, Outcome)]) -> Self {
        let mut change = Self { subjects, committed_us, ..Self::default() };
        change.members = members.iter().map(|(id, _)| *id).collect();
        change.outcomes = members.iter().map(|(_, outcome)| outcome.stored()).collect();
        members.iter().for_each(|(_, outcome)| change.counts.add(*outcome));
        change
    }

    /// What it touched.
    pub(super) fn subjects(&self) -> &BTreeSet<Subject> {
        &self.subjects
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Everyone whom it concerns, the lost among them.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (u32, Outcome)> {
        let all = self.members.iter().zip(self.outcomes.iter().map(|stored| Outcome::of(*stored)));
        all.filter(|(_, outcome)| *outcome != Outcome::Released)
    }

    /// How far a reporter is; `None` if the change does not concern it.
    pub(super) fn outcome(&self, id: u32) -> Option<Outcome> {
        let outcome = Outcome::of(self.outcomes[self.members.position(id)?]);
        (outcome != Outcome::Released).then_some(outcome)
    }

    /// The change concerns one more; `false` if it did already.
    pub(super) fn concern(&mut self, id: u32, outcome: Outcome) -> bool {
        match self.members.insert(id) {
            Ok(position) => {
                self.outcomes.insert(position, outcome.stored());
                self.counts.add(outcome);
                true
            }
            Err(position) if [RELEASED, LOST].contains(&self.outcomes[position]) => {
                self.replace(position, outcome);
                true
            }
            Err(_) => false,
        }
    }

    /// What was pending for a reporter is settled; `false` if nothing was.
    pub(super) fn settle(&mut self, id: u32, outcome: Outcome) -> bool {
        match self.members.position(id) {
            Some(position) if self.outcomes[position] == PENDING => {
                self.replace(position, outcome);
                true
            }
            Some(_) | None => false,
        }
    }

    fn replace(&mut self, position: usize, outcome: Outcome) {
        self.counts.subtract(Outcome::of(self.outcomes[position]));
        self.counts.add(outcome);
        self.outcomes[position] = outcome.stored();
        if let Outcome::Applied(us) = outcome {
            self.slowest_us = self.slowest_us.max(us);
        }
    }

    /// Keeps what a reporter that has refused the change said. Of several proxies of a node each has its say, once, as
    /// long as they speak of the same rendering.
    pub(super) fn keep_refusal(&mut self, id: u32, refused: &Arc<Refused>) {
        let kept = self.refusals.entry(id).or_default();
        let is_news = |other: &Arc<Refused>| other.revision == refused.revision && other.proxy != refused.proxy;
        if kept.len() < REFUSALS_PER_REPORTER_MAX && kept.iter().all(is_news) {
            kept.push(Arc::clone(refused));
            self.refusal_bytes += refused.bytes();
        }
    }

    pub(super) fn refusals(&self, id: u32) -> impl Iterator<Item = &Arc<Refused>> {
        self.refusals.get(&id).into_iter().flatten()
    }

    /// Adds what has come about since the last call.
    pub(super) fn tell(&mut self, revision: Revision, told: &mut Vec<Progress>) {
        while let Some(mark) = Mark::ALL.get(self.marks_told)
            && self.counts.affected > 0
            && self.counts.has_applied(mark.percent())
        {
            told.push(Progress::Reached { revision, mark: *mark, after_us: u64::from(self.slowest_us) });
            self.marks_told += 1;
        }
        let settled = self.counts.pending == 0;
        if settled && !self.settled_told {
            told.push(Progress::Settled(revision));
        }
        self.settled_told = settled;
    }

    /// About what it takes of memory.
    pub(super) fn bytes(&self) -> usize {
        // A subject is an enum of names that it shares with the snapshot of its time, in a tree; and by it the change is found.
        const SUBJECT_BYTES: usize = 256;
        let members = self.members.bytes() + self.outcomes.capacity() * size_of::<u32>();
        size_of::<Self>() + members + self.subjects.len() * SUBJECT_BYTES + self.refusal_bytes
    }
}
