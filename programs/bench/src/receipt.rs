//! Receipts: who has applied a change, asked of the mesh itself.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::api::Api;

/// The receipt of one change, as far as a scenario looks at it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Receipt {
    counts: Counts,
    latency_us: Latency,
    /// Some of those who have applied it, slowest first.
    applied: Vec<Applied>,
    /// Some of those who have not.
    pending: Vec<String>,
    /// Some of those who refused it.
    rejected: Vec<Rejected>,
    /// Servers of whose nodes nothing is known.
    #[serde(default)]
    unheard_servers: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Counts {
    affected: u32,
    applied: u32,
    pending: u32,
    rejected: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Latency {
    max: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Applied {
    proxy: String,
    latency_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Rejected {
    proxy: String,
    reason: String,
}

/// Asks for the receipt of a revision, which the server holds back until nothing is outstanding or the wait is over.
///
/// # Errors
/// When the server does not answer, or does not remember the revision.
pub(crate) async fn wait(api: &mut Api, revision: u64, wait: Duration) -> anyhow::Result<Receipt> {
    api.read(&format!("/starling/v1/changes/{revision}?wait={}s", wait.as_secs()), wait).await
}

impl Receipt {
    /// Whether the change concerned so many proxies, and each has applied it.
    pub(crate) fn is_applied_by(&self, proxies: u32) -> bool {
        self.counts.affected == proxies && self.counts.applied == proxies
    }

    /// Whether the change concerned so many proxies or more, and each has applied it.
    pub(crate) fn is_applied_by_at_least(&self, proxies: u32) -> bool {
        self.counts.affected >= proxies && self.counts.applied == self.counts.affected
    }

    /// By the server's own clock, from the commit until the last proxy's report; `None` if it concerned nobody.
    pub(crate) fn since_commit(&self) -> Option<Duration> {
        self.latency_us.max.map(Duration::from_micros)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, applied, pending, rejected, unheard_servers, .. } = self;
        write!(formatter, "{} affected, {} applied", counts.affected, counts.applied)?;
        if let Some(Applied { proxy, latency_us }) = applied.first() {
            write!(formatter, " (the last after {:?} was {proxy})", Duration::from_micros(*latency_us))?;
        }
        write!(formatter, ", {} pending", counts.pending)?;
        if let Some(first) = pending.first() {
            write!(formatter, " (among them {first})")?;
        }
        write!(formatter, ", {} rejected", counts.rejected)?;
        if let Some(Rejected { proxy, reason }) = rejected.first() {
            write!(formatter, " (among them {proxy}: {reason})")?;
        }
        if !unheard_servers.is_empty() {
            write!(formatter, "; nothing is known of the nodes of {}", unheard_servers.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLED: &str = r#"{"revision": 9, "settled": true, "affected": ["n/b"],
        "counts": {"affected": 2, "applied": 2, "pending": 0, "rejected": 0},
        "applied": [{"proxy": "n/b", "latency_us": 2500}],
        "pending": [], "rejected": [], "latency_us": {"p50": 700, "p99": 2500, "max": 2500}}"#;

    const STUCK: &str = r#"{"revision": 9, "settled": false, "affected": ["n/a", "n/b"], "applied": [],
        "counts": {"affected": 5, "applied": 0, "pending": 4, "rejected": 1},
        "pending": ["n/a"], "rejected": [{"proxy": "n/b", "revision": 9, "type_url": "t", "resources": [],
        "reason": "bad listener"}], "latency_us": {"p50": null, "p99": null, "max": null}}"#;

    #[test]
    fn applied_means_by_all_whom_it_concerns() {
        let receipt: Receipt = serde_json::from_str(SETTLED).unwrap();
        assert!(receipt.is_applied_by(2));
        assert!(!receipt.is_applied_by(1) && !receipt.is_applied_by(3));
        assert!(receipt.is_applied_by_at_least(1) && !receipt.is_applied_by_at_least(3));
        assert_eq!(receipt.since_commit(), Some(Duration::from_micros(2500)));
        assert!(receipt.to_string().contains("the last after 2.5ms was n/b"), "{receipt}");
    }

    #[test]
    fn a_receipt_that_is_stuck_names_who_and_why() {
        let receipt: Receipt = serde_json::from_str(STUCK).unwrap();
        assert!(!receipt.is_applied_by(2) && !receipt.is_applied_by_at_least(2));
        assert_eq!(receipt.since_commit(), None);
        let text = receipt.to_string();
        assert!(text.contains("4 pending (among them n/a)") && text.contains("n/b: bad listener"), "{text}");
    }
}
