//! What the coordinator and a process of the fleet say to each other: a line of JSON each.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Moment;

/// What the coordinator asks. Each is answered with any number of [`Word::Progress`] and one other word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Be these nodes; the first order.
    Muster(Muster),
    /// Start every node: it joins, attaches, and compares itself with the catalog. A step is a node.
    Join,
    /// Register every workload with its sidecar, all of a node together. A step is a node.
    Register,
    /// Get the certificate of every workload, all of a node together. A step is a node.
    Certify,
    /// From now on, note what comes in force.
    Watch,
    /// Wait until a change is in force at every workload, and tell when it was at each.
    Collect(Collect),
}

/// Which nodes of which fleet a process is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Muster {
    /// Nodes of the whole fleet.
    pub(super) nodes: u32,
    /// Workloads of the whole fleet.
    pub(super) workloads: u32,
    /// Decides which workload is where.
    pub(super) seed: u64,
    /// The nodes of this process, by number.
    pub(super) own: Range<u32>,
    /// The server's address for agents.
    pub(super) server: String,
    /// A reusable join token.
    pub(super) token: String,
    /// Where the nodes keep what real ones keep on their disks.
    pub(super) directory: PathBuf,
}

/// Which change is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Collect {
    /// Its revision.
    pub(super) revision: u64,
    /// What holds once it is in force.
    pub(super) expected: Expected,
    /// How long it is waited for.
    pub(super) within: Duration,
}

/// What every node must know once a change is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Expected {
    /// The common upstream has so many endpoints.
    Endpoints(u32),
    /// A wildcard intention denies, or there is none.
    Denied(bool),
}

/// What a process of the fleet answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// So many more steps are done.
    Progress(u32),
    /// What was asked for is done.
    Done,
    /// What came of a change.
    Collected(Collected),
    /// It cannot be done; the process ends.
    Failed(String),
}

/// Where a change came in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Collected {
    /// When, and at how many workloads.
    pub(crate) reached: Vec<(Moment, u32)>,
    /// Nodes of which some workload was not reached, or that know other than what is expected; some of them by name.
    pub(crate) amiss: u32,
    /// The first few of those.
    pub(crate) examples: Vec<String>,
}

impl Collected {
    /// Adds what another process tells.
    pub(super) fn merge(&mut self, other: Self) {
        self.reached.extend(other.reached);
        self.amiss += other.amiss;
        self.examples.extend(other.examples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_words_are_lines() {
        let collect = Collect { revision: 7, expected: Expected::Endpoints(3), within: Duration::from_secs(60) };
        for order in [Order::Join, Order::Collect(collect)] {
            let line = serde_json::to_string(&order).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Order>(&line).unwrap(), order);
        }
        let word = Word::Failed("node a\nis not let in".to_owned());
        let line = serde_json::to_string(&word).unwrap();
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(serde_json::from_str::<Word>(&line).unwrap(), word);
    }
}
