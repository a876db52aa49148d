//! Receipts: for every recent change, which proxies it concerns and which have applied or refused it.
//!
//! A proxy reports one number, the revision up to which it has applied everything, and what it refused. The affected
//! proxies of a change are those subscribed to a subject it touched; every other proxy has nothing to do and counts as
//! applied. Cost model: one integer per proxy, and one set of keys per remembered change.

use std::collections::{BTreeMap, BTreeSet};

use starling_model::{InstanceKey, Revision};

/// Changes that are remembered; older receipts are forgotten.
pub const CHANGES_MAX: usize = 1024;

/// What a proxy refused, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The revision whose rendering was refused.
    pub revision: Revision,
    /// The resource type, an Envoy type URL.
    pub type_url: String,
    /// The resources in the refused response.
    pub resources: Vec<String>,
    /// The proxy's own words.
    pub text: String,
}

/// What is known of one proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyReport {
    /// Whether its stream is open.
    pub connected: bool,
    /// Everything up to this revision is applied. Having nothing to do counts as applied.
    pub applied_through: Revision,
    /// What it last refused, for as long as that stands.
    pub refused: Option<Refused>,
}

#[derive(Debug, Clone, Default)]
struct Change {
    affected: BTreeSet<InstanceKey>,
    committed_us: u64,
    /// When each affected proxy had applied it.
    applied_us: BTreeMap<InstanceKey, u64>,
    rejected: BTreeMap<InstanceKey, Refused>,
}

/// The receipt of one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeReport {
    /// The change.
    pub revision: Revision,
    /// Proxies that it concerns.
    pub affected: BTreeSet<InstanceKey>,
    /// Of those, the ones that have applied it, with microseconds from commit to report.
    pub applied: BTreeMap<InstanceKey, u64>,
    /// Of those, the connected ones that have neither applied nor rejected it.
    pub pending: BTreeSet<InstanceKey>,
    /// Of those, the ones that refused it, and why.
    pub rejected: BTreeMap<InstanceKey, Refused>,
}

impl ChangeReport {
    /// Whether nothing is outstanding.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Who has applied what.
#[derive(Debug, Default)]
pub struct Receipts {
    proxies: BTreeMap<InstanceKey, Proxy>,
    changes: BTreeMap<Revision, Change>,
    newest: Revision,
}

#[derive(Debug, Default)]
struct Proxy {
    /// As it reported.
    report: ProxyReport,
    /// The newest change that concerns it.
    concerned: Revision,
}

impl Receipts {
    /// A change was committed and concerns `affected`. Call before the affected proxies can report on it.
    pub fn committed(&mut self, revision: Revision, affected: BTreeSet<InstanceKey>, now_us: u64) {
        self.newest = self.newest.max(revision);
        for key in &affected {
            if let Some(proxy) = self.proxies.get_mut(key) {
                proxy.concerned = revision;
            }
        }
        self.changes.insert(revision, Change { affected, committed_us: now_us, ..Change::default() });
        while self.changes.len() > CHANGES_MAX {
            self.changes.pop_first();
        }
    }

    /// A proxy's stream opened.
    pub fn connected(&mut self, proxy: &InstanceKey) {
        self.proxies.entry(proxy.clone()).or_default().report.connected = true;
    }

    /// A proxy's stream closed. What it has not applied stays outstanding until it is back or deregistered.
    pub fn disconnected(&mut self, proxy: &InstanceKey) {
        if let Some(proxy) = self.proxies.get_mut(proxy) {
            proxy.report.connected = false;
        }
    }

    /// A proxy was deregistered: nothing more is expected of it.
    pub fn removed(&mut self, proxy: &InstanceKey) {
        self.proxies.remove(proxy);
        for change in self.changes.values_mut() {
            if !change.applied_us.contains_key(proxy) {
                change.affected.remove(proxy);
            }
        }
    }

    /// A proxy has applied everything up to `through`.
    pub fn applied(&mut self, proxy: &InstanceKey, through: Revision, now_us: u64) {
        let report = &mut self.proxies.entry(proxy.clone()).or_default().report;
        let before = report.applied_through;
        report.applied_through = before.max(through);
        if report.refused.as_ref().is_some_and(|refused| refused.revision < through) {
            report.refused = None;
        }
        if through <= before {
            return;
        }
        // From the beginning, not from `before`: a proxy that joined late may still owe older changes.
        for change in self.changes.range_mut(..=through).map(|(_, change)| change) {
            if change.affected.contains(proxy) && !change.rejected.contains_key(proxy) {
                let elapsed = now_us.saturating_sub(change.committed_us);
                change.applied_us.entry(proxy.clone()).or_insert(elapsed);
            }
        }
    }

    /// A proxy refused what was rendered for `refused.revision`; it keeps serving what it had.
    pub fn rejected(&mut self, proxy: &InstanceKey, refused: Refused) {
        let report = &mut self.proxies.entry(proxy.clone()).or_default().report;
        let (after, through) = (report.applied_through, refused.revision);
        report.refused = Some(refused.clone());
        if through <= after {
            return;
        }
        let span = (std::ops::Bound::Excluded(after), std::ops::Bound::Included(through));
        for change in self.changes.range_mut(span).map(|(_, change)| change) {
            if change.affected.contains(proxy) && !change.applied_us.contains_key(proxy) {
                change.rejected.insert(proxy.clone(), refused.clone());
            }
        }
    }

    /// The receipt of a change; `None` if it is not remembered.
    #[must_use]
    pub fn report(&self, revision: Revision) -> Option<ChangeReport> {
        let change = self.changes.get(&revision)?;
        let settled =
            |proxy: &&InstanceKey| change.applied_us.contains_key(*proxy) || change.rejected.contains_key(*proxy);
        Some(ChangeReport {
            revision,
            affected: change.affected.clone(),
            applied: change.applied_us.clone(),
            pending: change.affected.iter().filter(|proxy| !settled(proxy)).cloned().collect(),
            rejected: change.rejected.clone(),
        })
    }

    /// The remembered revisions, newest first.
    pub fn revisions(&self) -> impl Iterator<Item = Revision> {
        self.changes.keys().rev().copied()
    }

    /// Every known proxy. One that has applied all that concerns it has applied everything there is.
    pub fn proxies(&self) -> impl Iterator<Item = (&InstanceKey, ProxyReport)> {
        self.proxies.iter().map(|(key, proxy)| {
            let mut report = proxy.report.clone();
            if report.applied_through >= proxy.concerned && report.applied_through > Revision(0) {
                report.applied_through = report.applied_through.max(self.newest);
            }
            (key, report)
        })
    }
}
