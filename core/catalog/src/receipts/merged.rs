//! One receipt out of those of several servers, each of which hears of the nodes that are attached to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_model::{NodeName, Revision};

use super::change::{Counts, Outcome};
use super::earlier::Earlier;
use super::report::{ChangeReport, Latency, Reached, numbers};
use super::until::{Barrier, Until};
use super::{Refused, Reporter};

/// What is known of one reporter, the better known the greater.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    Lost,
    Pending,
    Rejected(Vec<Arc<Refused>>),
    Applied(u64),
}

impl Known {
    /// A node that has moved is known to two servers; what it has told one of them holds.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Applied(one), Self::Applied(other)) => Self::Applied(one.min(other)),
            (Self::Rejected(mut one), Self::Rejected(other)) => {
                one.extend(other);
                Self::Rejected(one)
            }
            (one, other) if one.rank() >= other.rank() => one,
            (_, other) => other,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Lost => 0,
            Self::Pending => 1,
            Self::Rejected(_) => 2,
            Self::Applied(_) => 3,
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Lost => Outcome::Lost,
            Self::Pending => Outcome::Pending,
            Self::Rejected(_) => Outcome::Rejected,
            Self::Applied(us) => Outcome::applied_after(*us),
        }
    }
}

impl ChangeReport {
    /// The receipt of a change by those that several servers have of it, each with all of its names; with at most `names`
    /// names of each kind.
    #[must_use]
    pub fn merged(revision: Revision, parts: impl IntoIterator<Item = Self>, names: usize) -> Self {
        let (mut unheard, mut earlier) = (Vec::new(), Earlier::default());
        let mut known: BTreeMap<Reporter, Known> = BTreeMap::new();
        let mut add = |who: Reporter, what: Known| {
            let what = match known.remove(&who) {
                Some(other) => other.or(what),
                None => what,
            };
            known.insert(who, what);
        };
        for part in parts {
            unheard.extend(part.unheard);
            earlier.extend(&part.earlier);
            part.lost.into_iter().for_each(|who| add(who, Known::Lost));
            part.pending.into_iter().for_each(|who| add(who, Known::Pending));
            for (who, refused) in part.rejected {
                add(who, Known::Rejected(vec![refused]));
            }
            part.applied.into_iter().for_each(|(who, us)| add(who, Known::Applied(us)));
        }
        let outcomes: Vec<_> = known.values().map(|what| (0, what.outcome())).collect();
        let (counts, latency, reached) = numbers(&outcomes);
        let mut merged = Self { revision, earlier, counts, latency, reached, unheard, ..Self::default() };
        for (who, what) in known {
            match what {
                Known::Lost => merged.lost.push(who),
                Known::Pending => merged.pending.push(who),
                Known::Rejected(all) => merged.rejected.extend(all.into_iter().map(|refused| (who.clone(), refused))),
                Known::Applied(us) => merged.applied.push((who, us)),
            }
        }
        merged.applied.sort_by_key(|(_, us)| std::cmp::Reverse(*us));
        merged.applied.truncate(names);
        merged.pending.truncate(names);
        merged.rejected.truncate(names);
        merged.lost.truncate(names);
        merged
    }

    /// One list's receipt out of those of several servers, which may lack names: what is not named is counted for each server
    /// that counts it, and latencies are at most those that are told.
    #[must_use]
    pub fn merged_in_part(revision: Revision, parts: Vec<Self>, names: usize) -> Self {
        let unnamed: Vec<_> = parts.iter().map(Self::unnamed).collect();
        let latencies: Vec<_> = parts.iter().filter_map(|part| part.latency).collect();
        let reached: Vec<_> = parts.iter().filter(|part| part.counts.affected > 0).map(|part| part.reached).collect();
        let mut merged = Self::merged(revision, parts, names);
        if unnamed.iter().all(|unnamed| *unnamed == Counts::default()) {
            return merged;
        }
        for Counts { affected, applied, pending, rejected, lost } in unnamed {
            merged.counts.affected += affected;
            merged.counts.applied += applied;
            merged.counts.pending += pending;
            merged.counts.rejected += rejected;
            merged.counts.lost += lost;
        }
        merged.latency = latencies.into_iter().reduce(|one, other| Latency {
            p50: one.p50.max(other.p50),
            p90: one.p90.max(other.p90),
            p99: one.p99.max(other.p99),
            max: one.max.max(other.max),
        });
        // Of so many of each server's, so of as many of all.
        let all = |of: fn(&Reached) -> Option<u64>| reached.iter().map(of).reduce(|one, other| Some(one?.max(other?)));
        merged.reached = Reached {
            half: all(|reached| reached.half).flatten(),
            most: all(|reached| reached.most).flatten(),
            all: all(|reached| reached.all).flatten(),
        };
        merged
    }

    /// How many are counted and not named.
    fn unnamed(&self) -> Counts {
        let refusers: BTreeSet<_> = self.rejected.iter().map(|(who, _)| who).collect();
        let applied = self.counts.applied.saturating_sub(self.applied.len());
        let pending = self.counts.pending.saturating_sub(self.pending.len());
        let rejected = self.counts.rejected.saturating_sub(refusers.len());
        let lost = self.counts.lost.saturating_sub(self.lost.len());
        Counts { affected: applied + pending + rejected, applied, pending, rejected, lost }
    }

    /// How it stands with a barrier, by a receipt that has all of its names. Of a node that is in none of them it has to be
    /// said whether anybody hears of it.
    #[must_use]
    pub fn barrier(&self, until: &Until, is_heard_of: impl Fn(&NodeName) -> bool) -> Barrier {
        let counts = self.counts;
        let of_share = |percent: usize| {
            if !self.unheard.is_empty() {
                return Barrier::NotYet;
            }
            let wanted = (counts.affected * percent).div_ceil(100);
            match (counts.applied >= wanted, counts.applied + counts.pending >= wanted) {
                (true, _) => Barrier::Met,
                (false, true) => Barrier::NotYet,
                (false, false) => Barrier::Never,
            }
        };
        match until {
            Until::AppliedAll => of_share(100),
            Until::AppliedPercent(percent) => of_share(usize::from(*percent)),
            Until::AppliedNode(node) => {
                let is_of = |who: &Reporter| who.node() == node;
                if self.rejected.iter().any(|(who, _)| is_of(who)) {
                    Barrier::Never
                } else if self.pending.iter().chain(&self.lost).any(is_of) || !is_heard_of(node) {
                    Barrier::NotYet
                } else {
                    Barrier::Met
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Reporter {
        Reporter::Node(name.parse().expect("a name"))
    }

    fn part(applied: &[(&str, u64)], pending: &[&str], lost: &[&str]) -> ChangeReport {
        ChangeReport {
            applied: applied.iter().map(|(name, us)| (node(name), *us)).collect(),
            pending: pending.iter().map(|name| node(name)).collect(),
            lost: lost.iter().map(|name| node(name)).collect(),
            ..ChangeReport::default()
        }
    }

    #[test]
    fn each_node_counts_once_by_the_best_that_is_known_of_it() {
        let parts = [part(&[("a", 10), ("b", 20)], &["c"], &["d"]), part(&[("d", 40), ("b", 15)], &["e"], &["c"])];
        let merged = ChangeReport::merged(Revision(7), parts, 100);
        assert_eq!(merged.counts, Counts { affected: 5, applied: 3, pending: 2, rejected: 0, lost: 0 });
        assert_eq!(merged.applied, [(node("d"), 40), (node("b"), 15), (node("a"), 10)]);
        assert_eq!(merged.pending, [node("c"), node("e")]);
        assert_eq!(merged.latency.map(|latency| (latency.p50, latency.max)), Some((15, 40)));
        assert_eq!((merged.reached.half, merged.reached.all), (Some(40), None));
        let heard = |_: &NodeName| true;
        assert_eq!(merged.barrier(&Until::AppliedPercent(60), heard), Barrier::Met);
        assert_eq!(merged.barrier(&Until::AppliedAll, heard), Barrier::NotYet);
        let until = |name: &str| Until::AppliedNode(name.parse().expect("a name"));
        assert_eq!(merged.barrier(&until("d"), heard), Barrier::Met);
        assert_eq!(merged.barrier(&until("c"), heard), Barrier::NotYet);
        assert_eq!(merged.barrier(&until("x"), heard), Barrier::Met, "it does not concern it");
        assert_eq!(merged.barrier(&until("x"), |_| false), Barrier::NotYet);
    }

    #[test]
    fn of_a_list_what_is_not_named_is_counted_and_what_is_named_twice_is_not() {
        let latency = |us| Some(Latency { p50: us, p90: us, p99: us, max: us });
        let whole = |part: ChangeReport, counts: Counts, us| ChangeReport {
            counts,
            latency: latency(us),
            reached: Reached { half: Some(us), most: Some(us), all: (counts.pending == 0).then_some(us) },
            ..part
        };
        let counts = |applied, pending| Counts { affected: applied + pending, applied, pending, rejected: 0, lost: 0 };
        let one = whole(part(&[("a", 10), ("b", 20)], &[], &[]), counts(2, 0), 20);
        let other = whole(part(&[("b", 15)], &["c"], &[]), counts(1, 1), 15);
        let merged = ChangeReport::merged_in_part(Revision(7), vec![one.clone(), other], 100);
        assert_eq!((merged.counts, merged.latency.map(|it| it.max)), (counts(2, 1), Some(15)));
        let larger = whole(part(&[("c", 50)], &["d"], &[]), counts(300, 200), 50);
        let merged = ChangeReport::merged_in_part(Revision(7), vec![one, larger], 100);
        assert_eq!((merged.counts, merged.latency), (counts(302, 200), latency(50)));
        assert_eq!((merged.reached.half, merged.reached.all), (Some(50), None));
    }

    #[test]
    fn a_server_that_is_not_heard_of_leaves_it_open() {
        let absent = ChangeReport { unheard: vec!["s2".to_owned()], ..ChangeReport::default() };
        let merged = ChangeReport::merged(Revision(7), [part(&[("a", 10)], &[], &[]), absent], 100);
        assert!(!merged.is_settled());
        assert_eq!(merged.barrier(&Until::AppliedAll, |_| true), Barrier::NotYet);
    }
}
