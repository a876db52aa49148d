//! What receipts cost a server: a change that concerns 10,000 nodes, and the report of each.
//!
//! `cargo run --release -p starling-catalog --example receipts-cost`

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use starling_catalog::{Receipts, Reporter, ReporterId, Subject};
use starling_model::Revision;

const NODES: usize = 10_000;
const CHANGES: usize = 200;

/// 5 % of the server's CPU of a change at this size, which is some 150 ms.
const BAR: Duration = Duration::from_millis(5);

fn main() {
    let mut receipts = Receipts::default();
    let mut nodes: Vec<ReporterId> = (0..NODES).map(|n| receipts.connected(&node(n))).collect();
    let subjects = BTreeSet::from([Subject::Endpoints("service-hey".parse().expect("invariant: a name"))]);
    let (mut commits, mut reports, mut summaries) = (Vec::new(), Vec::new(), Vec::new());
    let empty = receipts.bytes();
    for number in 0..CHANGES {
        // Streams are woken, and report, in no order of their numbers.
        shuffle(&mut nodes, number);
        let revision = Revision(number as u64 + 1);
        let now = number as u64 * 1_000_000;
        let started = Instant::now();
        receipts.committed(revision, subjects.clone(), nodes.clone(), now);
        commits.push(started.elapsed());
        let started = Instant::now();
        for (after, node) in (0..).zip(&nodes) {
            receipts.applied(*node, revision, false, now + after);
        }
        reports.push(started.elapsed());
        let started = Instant::now();
        let report = receipts.report(revision, 0).expect("invariant: just committed");
        summaries.push(started.elapsed());
        assert_eq!((report.counts.affected, report.counts.applied), (NODES, NODES));
    }
    let bytes = (receipts.bytes() - empty) / CHANGES;
    let total: Vec<_> = commits.iter().zip(&reports).map(|(commit, reports)| *commit + *reports).collect();
    println!("{CHANGES} changes, each of concern to {NODES} nodes that all report; median and slowest");
    for (what, times) in [("commit", commits), ("all reports", reports), ("both", total), ("a summary", summaries)] {
        println!(
            "{what:<12} {:>9.3?} {:>9.3?}",
            median(times.clone()),
            times.iter().max().copied().unwrap_or_default()
        );
    }
    println!("memory       {bytes} bytes a change");
    println!("the bar for both is {BAR:?}, and 50,000 bytes");
}

fn node(n: usize) -> Reporter {
    Reporter::Node(format!("node-{n:05}").parse().expect("invariant: a name"))
}

/// A different order each time, the same in each run.
fn shuffle(nodes: &mut [ReporterId], seed: usize) {
    let mut state = seed as u64 + 1;
    for last in (1..nodes.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        nodes.swap(last, (state >> 33) as usize % (last + 1));
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
