//! What was seen while the member of etcd that leads was gone.

use serde::{Deserialize, Serialize};

/// From the end of etcd's leader until a change was in force everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// From the leader's end until a write was acknowledged.
    pub writes_back_ms: f64,
    /// Reads of the catalog meanwhile, at all servers.
    pub reads: u64,
    /// Those that failed.
    pub reads_failed: u64,
    /// The one that took longest.
    pub reads_slowest_ms: f64,
    /// Streams of agents in whose place another one had to come.
    pub streams_lost: f64,
}

impl Outage {
    /// The worst of several in each respect, and all of their reads; `None` of none.
    pub fn worst(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|one, other| Self {
            writes_back_ms: one.writes_back_ms.max(other.writes_back_ms),
            reads: one.reads + other.reads,
            reads_failed: one.reads_failed + other.reads_failed,
            reads_slowest_ms: one.reads_slowest_ms.max(other.reads_slowest_ms),
            streams_lost: one.streams_lost + other.streams_lost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts_and_every_read() {
        let of = |writes_back_ms, reads_failed| Outage {
            writes_back_ms,
            reads: 10,
            reads_failed,
            reads_slowest_ms: 3.0,
            streams_lost: 0.0,
        };
        let worst = Outage::worst([of(900.0, 0), of(1_700.0, 1), of(30.0, 0)]).unwrap();
        assert!((worst.writes_back_ms - 1_700.0).abs() < f64::EPSILON);
        assert_eq!((worst.reads, worst.reads_failed), (30, 1));
        assert_eq!(Outage::worst([]), None);
    }
}
