//! What the receipt of one change costs a server: to note whom it concerns, and what each of them reports.
//!
//! The catalog's own code, alone, for as many nodes as a fleet has. How the reports travel is not in it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use starling_catalog::{Receipts, Reporter, ReporterId, Subject};
use starling_model::{NodeName, Revision, ServiceName};

use crate::shape::COMMON_UPSTREAM;

/// Changes of which the median is taken.
const CHANGES: u64 = 21;

/// Microseconds between two changes.
const INTERVAL_US: u64 = 1_000_000;

/// Milliseconds for a change that concerns so many nodes: the median of several.
///
/// # Errors
/// Never with the names that it makes.
pub(super) fn milliseconds_per_change(nodes: u32) -> anyhow::Result<f64> {
    let mut receipts = Receipts::default();
    let mut reporters = Vec::new();
    for number in 0..nodes {
        reporters.push(receipts.connected(&Reporter::Node(NodeName::new(&format!("node-{number:05}"))?)));
    }
    let subjects = BTreeSet::from([Subject::Endpoints(ServiceName::new(COMMON_UPSTREAM)?)]);
    let mut order = fastrand::Rng::with_seed(CHANGES);
    let mut times: Vec<Duration> = (1..=CHANGES)
        .map(|number| {
            // Nodes report in no order of their numbers.
            order.shuffle(&mut reporters);
            one_change(&mut receipts, &subjects, &reporters, number)
        })
        .collect();
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e3)
}

fn one_change(receipts: &mut Receipts, subjects: &BTreeSet<Subject>, nodes: &[ReporterId], number: u64) -> Duration {
    let (revision, now) = (Revision(number), number * INTERVAL_US);
    let (subjects, concerned) = (subjects.clone(), nodes.to_vec());
    let begun = Instant::now();
    receipts.committed(revision, subjects, concerned, now);
    for (after, node) in (0..).zip(nodes) {
        receipts.applied(*node, revision, false, now + after);
    }
    begun.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_concerned_and_reports() {
        let mut receipts = Receipts::default();
        let name = |number: u32| Reporter::Node(NodeName::new(&format!("n{number}")).unwrap());
        let nodes: Vec<ReporterId> = (0..50).map(|number| receipts.connected(&name(number))).collect();
        let subjects = BTreeSet::from([Subject::Endpoints(ServiceName::new(COMMON_UPSTREAM).unwrap())]);
        one_change(&mut receipts, &subjects, &nodes, 3);
        let counts = receipts.report(Revision(3), 0).unwrap().counts;
        assert_eq!((counts.affected, counts.applied), (50, 50));
        assert!(milliseconds_per_change(50).unwrap() > 0.0);
    }
}
