//! What is known of a node as a whole.

use std::sync::Arc;

use starling_model::{NodeName, Revision};

use super::{ProxyReport, Refused, Reporter};

/// What is known of one node: of its agent, or of its proxies where they report by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub node: NodeName,
    /// Whether its agent's stream is open; where only proxies report, whether one of theirs is.
    pub connected: bool,
    /// Everything up to this revision is applied, by the slowest of those who report, except what was refused.
    pub applied_through: Revision,
    /// The most remembered changes that one of them has yet to apply.
    pub owes: u32,
    /// When the oldest change that one of them owes was committed, on the clock of [`super::Receipts::committed`].
    pub owes_since_us: Option<u64>,
    /// What is refused, and by whom.
    pub refused: Vec<(Reporter, Arc<Refused>)>,
}

impl NodeReport {
    /// One report for each node, of reporters in the order of their names.
    pub fn of_each(reporters: impl IntoIterator<Item = (Reporter, ProxyReport)>) -> Vec<Self> {
        let mut nodes: Vec<Self> = Vec::new();
        for (reporter, report) in reporters {
            match nodes.last_mut().filter(|last| last.node == *reporter.node()) {
                Some(last) => last.add(&reporter, report),
                None => nodes.push(Self::new(reporter, report)),
            }
        }
        nodes
    }

    fn new(reporter: Reporter, report: ProxyReport) -> Self {
        Self {
            node: reporter.node().clone(),
            connected: report.connected,
            applied_through: report.applied_through,
            owes: report.owes,
            owes_since_us: report.owes_since_us,
            refused: report.refused.map(|refused| (reporter, refused)).into_iter().collect(),
        }
    }

    fn add(&mut self, reporter: &Reporter, report: ProxyReport) {
        self.connected |= report.connected;
        self.applied_through = self.applied_through.min(report.applied_through);
        self.owes = self.owes.max(report.owes);
        self.owes_since_us = self.owes_since_us.into_iter().chain(report.owes_since_us).min();
        self.refused.extend(report.refused.map(|refused| (reporter.clone(), refused)));
    }
}
