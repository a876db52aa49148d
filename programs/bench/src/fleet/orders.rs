//! What the coordinator and a process of the fleet say to each other: a line of JSON each.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
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
    /// Only one in so many nodes takes the steps that follow, from the first on and those that have not; every one unless
    /// this is said. The answer is how many nodes are there then.
    Part(u32),
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
    /// Let the nodes that read slowly take only so many bytes a second, or as many as there are.
    Slow(Option<NonZeroU32>),
    /// Wait until the nodes that read slowly know what they should.
    CatchUp(CatchUp),
    /// Tell how the nodes that read slowly are.
    LookAtSlow(u64),
    /// Choose so many connections to the server at random, to be reset. The answer is how many they are.
    Aim(u32),
    /// Reset them, each at a random moment of the time from now on. The answer is how many they were.
    Reset(Duration),
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
    /// The servers' addresses for agents. Each node begins with another of them.
    pub(super) servers: Vec<String>,
    /// A reusable join token.
    pub(super) token: String,
    /// Where the nodes keep what real ones keep on their disks.
    pub(super) directory: PathBuf,
    /// Nodes that can be made to read slowly, by number; they watch the service that is never at rest, too.
    pub(super) slow: BTreeSet<u32>,
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
    /// Whose workloads count.
    pub(super) among: Among,
}

/// Which nodes are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Among {
    /// Every node.
    All,
    /// All but those that read slowly.
    Prompt,
}

/// What nodes that read slowly will know in the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CatchUp {
    /// The newest revision that concerns them.
    pub(super) revision: u64,
    /// What holds then.
    pub(super) expected: Vec<Expected>,
    /// How long it is waited for.
    pub(super) within: Duration,
}

/// How the nodes that read slowly are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlowNodes {
    /// Those that have not yet heard of a revision.
    pub(crate) behind: u32,
    /// Connections of theirs that have ended since they were there.
    pub(crate) ended: u32,
}

/// What every node must know once a change is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Expected {
    /// The common upstream has so many endpoints.
    Endpoints(u32),
    /// A wildcard intention denies, or there is none.
    Denied(bool),
    /// Every endpoint of the service that is never at rest is at this address.
    RestlessAt(Ipv4Addr),
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
    /// How the nodes that read slowly are.
    Slow(SlowNodes),
    /// So many.
    Count(u32),
    /// It cannot be done; the process ends.
    Failed(String),
}

/// Where a change came in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Collected {
    /// When, and at how many workloads.
    pub(crate) reached: Vec<(Moment, u32)>,
    /// Workloads that were looked at.
    pub(crate) workloads: u64,
    /// Nodes of which some workload was not reached, or that know other than what is expected; some of them by name.
    pub(crate) amiss: u32,
    /// The first few of those.
    pub(crate) examples: Vec<String>,
}

impl Collected {
    /// How long after a moment each workload that was reached was so.
    pub(crate) fn latencies_us(&self, since: Moment) -> Vec<u64> {
        let each = self.reached.iter();
        each.flat_map(|(at, count)| std::iter::repeat_n(at.microseconds_since(since), *count as usize)).collect()
    }

    /// Adds what another process tells.
    pub(super) fn merge(&mut self, other: Self) {
        self.reached.extend(other.reached);
        self.workloads += other.workloads;
        self.amiss += other.amiss;
        self.examples.extend(other.examples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_words_are_lines() {
        let collect = Collect {
            revision: 7,
            expected: Expected::Endpoints(3),
            within: Duration::from_secs(60),
            among: Among::All,
        };
        for order in [Order::Join, Order::Collect(collect), Order::Slow(NonZeroU32::new(1024))] {
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
