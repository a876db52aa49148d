//! What a receipt says.

use std::sync::Arc;

use starling_model::Revision;

use super::change::{Counts, Mark, Outcome};
use super::earlier::Earlier;
use super::{Refused, Reporter};

/// The receipt of one change. Of a command in several parts, a reporter has applied it once it has applied each part
/// that concerns it, and has refused it if it refused one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeReport {
    /// The change.
    pub revision: Revision,
    /// The transactions of the same command before it, of which the receipt speaks as well.
    pub earlier: Earlier,
    /// How many it concerns, and how far they are.
    pub counts: Counts,
    /// Of those that have applied it; `None` if none has.
    pub latency: Option<Latency>,
    /// When so many of those affected had applied it.
    pub reached: Reached,
    /// Those that have applied it, slowest first, with microseconds from commit to report; so many as were asked for.
    pub applied: Vec<(Reporter, u64)>,
    /// By name, those that have neither applied nor refused it, connected or not; so many as were asked for.
    pub pending: Vec<Reporter>,
    /// By name, those that refused it, and what each, or each proxy of it, said; so many as were asked for.
    pub rejected: Vec<(Reporter, Arc<Refused>)>,
    /// By name, those that were lost before they had applied or refused it; so many as were asked for.
    pub lost: Vec<Reporter>,
    /// The servers of which it is not known what their nodes have done, by name: they could not be asked.
    pub unheard: Vec<String>,
}

impl ChangeReport {
    /// Whether nothing is outstanding.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.counts.pending == 0 && self.unheard.is_empty()
    }
}

/// Microseconds from commit to report, by nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// Of the median.
    pub p50: u64,
    /// Of nine in ten.
    pub p90: u64,
    /// Of 99 in a hundred.
    pub p99: u64,
    /// Of the slowest.
    pub max: u64,
}

/// Microseconds from commit until so many of those affected had applied a change; `None` where they have not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// 50 %.
    pub half: Option<u64>,
    /// 99 %.
    pub most: Option<u64>,
    /// 100 %.
    pub all: Option<u64>,
}

/// The numbers of a receipt.
pub(super) fn numbers(outcomes: &[(u32, Outcome)]) -> (Counts, Option<Latency>, Reached) {
    let mut counts = Counts::default();
    let mut latencies = Vec::with_capacity(outcomes.len());
    for (_, outcome) in outcomes {
        counts.add(*outcome);
        if let Outcome::Applied(us) = outcome {
            latencies.push(*us);
        }
    }
    latencies.sort_unstable();
    let at = |percent: usize, of: usize| {
        let rank = (of * percent).div_ceil(100);
        latencies.get(rank.checked_sub(1)?).copied().map(u64::from)
    };
    let of_applied = |percent| at(percent, counts.applied);
    let latency = of_applied(50).zip(of_applied(90)).zip(of_applied(99)).zip(of_applied(100));
    let latency = latency.map(|(((p50, p90), p99), max)| Latency { p50, p90, p99, max });
    let mark = |mark: Mark| at(mark.percent(), counts.affected);
    (counts, latency, Reached { half: mark(Mark::Half), most: mark(Mark::Most), all: mark(Mark::All) })
}
