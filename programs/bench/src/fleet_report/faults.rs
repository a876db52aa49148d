//! What a run under hard conditions found beside its changes.

use serde::{Deserialize, Serialize};

/// What was done to a fleet, and what came of it; a part is absent when it was not done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// Nodes that read slowly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_readers: Option<SlowReaders>,
    /// Packets that are lost and connections that are reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_network: Option<BadNetwork>,
}

/// Nodes that read slowly, and everybody else beside them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowReaders {
    /// How many they are.
    pub nodes: u32,
    /// What each of them reads in a second.
    pub bytes_per_second: u32,
    /// Of the workloads of all other nodes, while nobody reads slowly; the median over the changes.
    pub p99_ms_without: Option<f64>,
    /// The same beside slow readers.
    pub p99_ms_with: Option<f64>,
    /// The latter, divided by the former.
    pub p99_ratio: Option<f64>,
    /// Resident memory of the servers before anybody read slowly.
    pub server_rss_bytes_before: u64,
    /// The most that was resident while somebody did.
    pub server_rss_bytes_peak: u64,
    /// The fewest of them that were behind when a change had reached everybody else.
    pub behind_min: u32,
    /// The most that waited for them in the servers' sockets.
    pub unsent_bytes_max: u64,
    /// Connections of theirs that ended while they read slowly.
    pub connections_lost: u32,
    /// Those that had the newest state in the end, still reading slowly.
    pub caught_up: u32,
    /// From the last call until the last of them had it; absent when not all of them did.
    pub caught_up_seconds: Option<f64>,
}

/// A network that loses packets, and connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BadNetwork {
    /// Share of the packets between nodes and servers that is lost, in either direction.
    pub loss_percent: f64,
    /// Packets that were.
    pub packets_lost: u64,
    /// Share of the connections that is reset during each change.
    pub resets_percent: f64,
    /// Connections that were, in all.
    pub connections_reset: u64,
    /// The median over the changes.
    pub p99_ms: Option<f64>,
    /// The longest of all.
    pub max_ms: Option<f64>,
}

impl SlowReaders {
    /// By how much the servers' memory grew beside them, at most.
    #[expect(clippy::cast_precision_loss, reason = "memory is counted in pages")]
    pub fn memory_grown_bytes(&self) -> f64 {
        self.server_rss_bytes_peak.saturating_sub(self.server_rss_bytes_before) as f64
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run with both parts that keeps every promise.
    pub(crate) fn example() -> Faults {
        let slow_readers = SlowReaders {
            nodes: 100,
            bytes_per_second: 1024,
            p99_ms_without: Some(200.0),
            p99_ms_with: Some(210.0),
            p99_ratio: Some(1.05),
            server_rss_bytes_before: 600 << 20,
            server_rss_bytes_peak: 610 << 20,
            behind_min: 100,
            unsent_bytes_max: 2 << 20,
            connections_lost: 0,
            caught_up: 100,
            caught_up_seconds: Some(41.5),
        };
        let bad_network = BadNetwork {
            loss_percent: 1.0,
            packets_lost: 1234,
            resets_percent: 5.0,
            connections_reset: 5000,
            p99_ms: Some(700.0),
            max_ms: Some(2500.0),
        };
        Faults { slow_readers: Some(slow_readers), bad_network: Some(bad_network) }
    }

    #[test]
    fn memory_that_shrinks_has_not_grown() {
        let slow = example().slow_readers.unwrap();
        assert_eq!(slow.memory_grown_bytes(), f64::from(10 << 20));
        let shrunk = SlowReaders { server_rss_bytes_peak: 1, ..slow };
        assert_eq!(shrunk.memory_grown_bytes(), 0.0);
    }

    #[test]
    fn what_was_not_done_is_not_in_the_report() {
        let json = serde_json::to_value(Faults { slow_readers: None, ..example() }).unwrap();
        assert_eq!(json.as_object().unwrap().keys().collect::<Vec<_>>(), ["bad_network"]);
        assert_eq!(json["bad_network"]["packets_lost"], 1234);
    }
}
