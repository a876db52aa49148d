//! Naive receipts, plain maps by name, beside the real ones.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use starling_catalog::receipts::CHANGES_MAX;
use starling_catalog::{Barrier, Progress, ProxyReport, Receipts, Refused, Reporter, ReporterId, Subject, Until};
use starling_model::{InstanceKey, Revision};

/// More than a word of the real sets has.
const REPORTERS: usize = 100;
const SERVICES: usize = 4;

/// One step; revisions are counted back from the newest.
#[derive(Debug, Clone)]
enum Step {
    Connect(usize),
    Disconnect(usize),
    Remove(usize),
    Commit { service: usize, affected: BTreeSet<usize>, join: bool },
    Subscribe { who: usize, back: u64, service: usize },
    Apply { who: BTreeSet<usize>, back: u64, stands: bool },
    Reject { who: usize, back: u64, taken: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (who, back) = (0..REPORTERS, 0..6u64);
    let some = || prop::collection::btree_set(0..REPORTERS, 0..REPORTERS);
    prop_oneof![
        2 => who.clone().prop_map(Step::Connect),
        1 => who.clone().prop_map(Step::Disconnect),
        1 => who.clone().prop_map(Step::Remove),
        5 => (0..SERVICES, some(), prop::bool::weighted(0.2))
            .prop_map(|(service, affected, join)| Step::Commit { service, affected, join }),
        2 => (who.clone(), back.clone(), 0..SERVICES)
            .prop_map(|(who, back, service)| Step::Subscribe { who, back, service }),
        5 => (some(), back.clone(), any::<bool>()).prop_map(|(who, back, stands)| Step::Apply { who, back, stands }),
        3 => (who, back, 0..4u64).prop_map(|(who, back, taken)| Step::Reject { who, back, taken }),
    ]
}

/// Every third is a node, the others are proxies on it.
fn name(who: usize) -> Reporter {
    let node = format!("n{}", who / 3).parse().expect("a name");
    match who % 3 {
        0 => Reporter::Node(node),
        n => Reporter::Proxy(InstanceKey { node, id: format!("p{n}").parse().expect("an id") }),
    }
}

fn subjects(service: usize) -> BTreeSet<Subject> {
    BTreeSet::from([Subject::Endpoints(format!("s{service}").parse().expect("a name"))])
}

#[derive(Default)]
struct NaiveChange {
    earlier: Vec<Revision>,
    service: usize,
    committed_us: u64,
    affected: BTreeSet<Reporter>,
    applied: BTreeMap<Reporter, u64>,
    rejected: BTreeMap<Reporter, Refused>,
}

impl NaiveChange {
    fn pending(&self) -> BTreeSet<Reporter> {
        let settled = |who: &&Reporter| self.applied.contains_key(*who) || self.rejected.contains_key(*who);
        self.affected.iter().filter(|who| !settled(who)).cloned().collect()
    }
}

#[derive(Default)]
struct Naive {
    /// Whom reports are expected of, and up to where each has reported.
    known: BTreeMap<Reporter, Revision>,
    changes: BTreeMap<Revision, NaiveChange>,
}

/// What a naive receipt says: applied, pending, rejected.
type Said = (BTreeMap<Reporter, u64>, BTreeSet<Reporter>, BTreeMap<Reporter, Refused>);

impl Naive {
    fn concern(&mut self, who: &Reporter, revision: Revision) {
        let (Some(through), Some(change)) = (self.known.get(who), self.changes.get_mut(&revision)) else { return };
        if change.affected.insert(who.clone()) && *through >= revision {
            change.applied.insert(who.clone(), 0);
        }
    }

    fn remove(&mut self, who: &Reporter) {
        for change in self.changes.values_mut() {
            if change.pending().contains(who) {
                change.affected.remove(who);
            }
        }
        self.known.remove(who);
    }

    fn apply(&mut self, who: &Reporter, through: Revision, now: u64) {
        let Some(known) = self.known.get_mut(who) else { return };
        *known = (*known).max(through);
        for (_, change) in self.changes.range_mut(..=through) {
            if change.pending().contains(who) {
                change.applied.insert(who.clone(), now - change.committed_us);
            }
        }
    }

    fn reject(&mut self, who: &Reporter, refused: &Refused) {
        if !self.known.contains_key(who) {
            return;
        }
        for (revision, change) in self.changes.range_mut(..=refused.revision) {
            if *revision > refused.since && change.pending().contains(who) {
                change.rejected.insert(who.clone(), refused.clone());
            }
        }
    }

    fn report(&self, revision: Revision) -> Said {
        let (mut applied, mut pending, mut rejected) = Said::default();
        let last = &self.changes[&revision];
        for change in last.earlier.iter().filter_map(|earlier| self.changes.get(earlier)).chain([last]) {
            pending.extend(change.pending());
            applied.extend(change.applied.iter().map(|(who, us)| (who.clone(), *us)));
            rejected.extend(change.rejected.iter().map(|(who, refused)| (who.clone(), refused.clone())));
        }
        pending.retain(|who| !rejected.contains_key(who));
        applied.retain(|who, _| !rejected.contains_key(who) && !pending.contains(who));
        (applied, pending, rejected)
    }
}

/// Both, taking the same steps.
#[derive(Default)]
struct Both {
    real: Receipts,
    naive: Naive,
    ids: BTreeMap<usize, ReporterId>,
    newest: u64,
    now: u64,
    settled: BTreeSet<Revision>,
}

impl Both {
    fn take(&mut self, step: Step) {
        self.now += 7;
        let (now, newest) = (self.now, self.newest);
        let before = |back: u64| Revision(newest.saturating_sub(back));
        let mut told = Vec::new();
        match step {
            Step::Connect(who) => {
                self.ids.insert(who, self.real.connected(&name(who)));
                self.naive.known.entry(name(who)).or_insert(Revision(0));
            }
            Step::Disconnect(who) => self.ids.get(&who).into_iter().for_each(|id| self.real.disconnected(*id)),
            Step::Remove(who) => {
                if let Some(id) = self.ids.remove(&who) {
                    told = self.real.removed(id);
                    self.naive.remove(&name(who));
                }
            }
            Step::Commit { service, affected, join } => told = self.commit(service, &affected, join),
            Step::Subscribe { who, back, service } => {
                let Some(id) = self.ids.get(&who) else { return };
                told = self.real.subscribed(*id, before(back), &subjects(service));
                let missed = self.naive.changes.range(Revision(before(back).0 + 1)..);
                let missed: Vec<_> = missed.filter(|(_, c)| c.service == service).map(|(r, _)| *r).collect();
                missed.into_iter().for_each(|revision| self.naive.concern(&name(who), revision));
            }
            Step::Apply { who, back, stands } => {
                for who in who {
                    let Some(id) = self.ids.get(&who) else { continue };
                    told.extend(self.real.applied(*id, before(back), stands, now));
                    self.naive.apply(&name(who), before(back), now);
                }
            }
            Step::Reject { who, back, taken } => {
                let Some(id) = self.ids.get(&who) else { return };
                let (revision, since) = (before(back), before(back + taken));
                let (text, type_url) = (format!("at {now}"), "cds".to_owned());
                let refused = Refused { revision, since, proxy: None, type_url, resources: Vec::new(), text };
                told = self.real.rejected(*id, refused.clone());
                self.naive.reject(&name(who), &refused);
            }
        }
        for progress in told {
            if let Progress::Settled(revision) = progress {
                self.settled.insert(revision);
            }
        }
    }

    fn commit(&mut self, service: usize, affected: &BTreeSet<usize>, join: bool) -> Vec<Progress> {
        let revision = Revision(self.newest + 1);
        let known = affected.iter().filter_map(|who| self.ids.get(who)).copied().collect();
        let told = self.real.committed(revision, subjects(service), known, self.now);
        let change = NaiveChange { service, committed_us: self.now, ..NaiveChange::default() };
        self.naive.changes.insert(revision, change);
        affected.iter().for_each(|who| self.naive.concern(&name(*who), revision));
        while self.naive.changes.len() > CHANGES_MAX {
            self.naive.changes.pop_first();
        }
        if join && self.newest > 0 {
            let earlier = [Revision(self.newest)];
            self.real.join(revision, &earlier.iter().copied().collect());
            self.naive.changes.get_mut(&revision).expect("just inserted").earlier = earlier.to_vec();
        }
        self.newest += 1;
        told
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let remembered: Vec<_> = self.naive.changes.keys().rev().copied().collect();
        prop_assert_eq!(self.real.revisions().collect::<Vec<_>>(), remembered.clone());
        for revision in remembered.into_iter().take(8) {
            self.compare_change(revision)?;
        }
        let pending: Vec<_> = self.naive.changes.values().map(|c| (c.committed_us, c.pending())).collect();
        let owed_by = |who: &Reporter| {
            let owed = pending.iter().filter(|(_, pending)| pending.contains(who));
            (owed.clone().count(), owed.map(|(us, _)| *us).next())
        };
        let wanted: BTreeMap<_, _> = self.naive.known.keys().map(|who| (who.clone(), owed_by(who))).collect();
        let owes = |report: ProxyReport| (report.owes as usize, report.owes_since_us);
        let reported: BTreeMap<_, _> = self.real.reporters().map(|(who, report)| (who.clone(), owes(report))).collect();
        prop_assert_eq!(&reported, &wanted);
        let reported: BTreeMap<_, _> = reported.into_iter().map(|(who, (_, since_us))| (who, since_us)).collect();
        prop_assert_eq!(self.real.behind(), reported.values().flatten().count());
        prop_assert_eq!(self.real.owed_since_us(), reported.values().flatten().min().copied());
        Ok(())
    }

    fn compare_change(&self, revision: Revision) -> Result<(), TestCaseError> {
        let report = self.real.report(revision, usize::MAX).expect("remembered");
        let (applied, pending, rejected) = self.naive.report(revision);
        prop_assert_eq!(report.applied.iter().cloned().collect::<BTreeMap<_, _>>(), applied.clone());
        prop_assert!(report.applied.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        prop_assert_eq!(&report.pending, &pending.iter().cloned().collect::<Vec<_>>());
        let refusals = report.rejected.iter().map(|(who, refused)| (who.clone(), Refused::clone(refused)));
        prop_assert_eq!(refusals.collect::<BTreeMap<_, _>>(), rejected.clone());
        let affected = applied.len() + pending.len() + rejected.len();
        prop_assert_eq!(report.counts.affected, affected);
        prop_assert_eq!(report.counts.applied, applied.len());
        prop_assert_eq!(report.counts.pending, pending.len());
        prop_assert_eq!(report.counts.rejected, rejected.len());
        prop_assert_eq!(self.real.is_settled(revision), Some(report.is_settled()));
        let plain = self.naive.changes[&revision].earlier.is_empty();
        prop_assert!(!plain || !report.is_settled() || self.settled.contains(&revision), "nobody was told");
        let mut latencies: Vec<u64> = applied.values().copied().collect();
        latencies.sort_unstable();
        prop_assert_eq!(report.latency.map(|latency| latency.max), latencies.last().copied());
        let all = (affected > 0 && applied.len() == affected).then(|| latencies[affected - 1]);
        prop_assert_eq!(report.reached.all, all);
        let named = self.real.report(revision, 2).expect("remembered");
        prop_assert_eq!(named.counts, report.counts);
        prop_assert_eq!(&named.applied, &report.applied[..report.applied.len().min(2)]);
        prop_assert_eq!(named.pending.len(), pending.len().min(2));
        for percent in [1, 50, 100] {
            let wanted = match (applied.len() * 100, affected * percent) {
                (applied, wanted) if applied >= wanted => Barrier::Met,
                (applied, wanted) if applied + pending.len() * 100 >= wanted => Barrier::NotYet,
                _ => Barrier::Never,
            };
            let until = Until::AppliedPercent(u8::try_from(percent).expect("small"));
            prop_assert_eq!(self.real.holds(revision, &until), Some(wanted));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn receipts_say_what_naive_receipts_say(steps in prop::collection::vec(step(), 1..60)) {
        let mut both = Both::default();
        (0..REPORTERS).step_by(2).for_each(|who| both.take(Step::Connect(who)));
        for step in steps {
            both.take(step);
            both.compare()?;
        }
        let everyone: BTreeSet<_> = (0..REPORTERS).collect();
        both.take(Step::Apply { who: everyone, back: 0, stands: false });
        prop_assert_eq!(both.real.behind(), 0);
        both.compare()?;
    }
}

#[test]
fn numbers_of_the_removed_are_used_again_but_not_while_a_receipt_names_them() {
    let mut receipts = Receipts::default();
    let mut ids = BTreeSet::new();
    for round in 0..3 * CHANGES_MAX {
        let id = receipts.connected(&name(round));
        ids.insert(id);
        let revision = Revision(u64::try_from(round + 1).expect("small"));
        receipts.committed(revision, BTreeSet::new(), vec![id], 0);
        receipts.applied(id, revision, false, 1);
        receipts.removed(id);
    }
    assert!(ids.len() <= CHANGES_MAX + 1, "{} numbers", ids.len());
    for revision in receipts.revisions() {
        let who = name(usize::try_from(revision.0).expect("small") - 1);
        assert_eq!(receipts.report(revision, 1).map(|report| report.applied), Some(vec![(who, 1)]));
    }
}

#[test]
fn a_receipt_names_who_applied_it_after_they_are_gone() {
    let mut receipts = Receipts::default();
    let (first, second) = (name(0), name(3));
    let id = receipts.connected(&first);
    receipts.committed(Revision(1), BTreeSet::new(), vec![id], 0);
    receipts.applied(id, Revision(1), false, 5);
    receipts.removed(id);
    assert_ne!(receipts.connected(&second), id);
    assert_eq!(receipts.report(Revision(1), 1).map(|report| report.applied), Some(vec![(first.clone(), 5)]));
    assert_eq!(receipts.connected(&first), id, "who comes back has its number still");
}
