//! Receipts: for every recent change, which proxies it concerns and which have applied or refused it.
//!
//! A proxy reports one number, the revision up to which it has applied everything, and what it refused. The affected
//! proxies of a change are those subscribed to a subject it touched; every other proxy has nothing to do and counts as
//! applied. Proxies are known from their first stream on: after a restart of the server, one that is not yet back is not
//! expected. Cost model: a change costs O(log) per affected proxy, a report O(log) per change that it settles.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use starling_model::{InstanceKey, Revision};

use crate::subject::Subject;

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
    /// The earlier changes of the same command, if it took several; its receipt speaks of them too.
    earlier: Vec<Revision>,
    subjects: BTreeSet<Subject>,
    affected: BTreeSet<InstanceKey>,
    committed_us: u64,
    /// When each affected proxy had applied it.
    applied_us: BTreeMap<InstanceKey, u64>,
    rejected: BTreeMap<InstanceKey, Refused>,
}

impl Change {
    fn is_settled(&self) -> bool {
        self.applied_us.len() + self.rejected.len() >= self.affected.len()
    }
}

/// The receipt of one change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// The remembered changes that concern it and that it has neither applied nor refused.
    owes: BTreeSet<Revision>,
}

impl Receipts {
    /// A change was committed, touched `subjects` and concerns `affected`.
    pub fn committed(
        &mut self,
        revision: Revision,
        subjects: BTreeSet<Subject>,
        affected: BTreeSet<InstanceKey>,
        now_us: u64,
    ) {
        self.newest = self.newest.max(revision);
        let change = Change { subjects, committed_us: now_us, ..Change::default() };
        self.changes.insert(revision, change);
        for proxy in affected {
            self.concern(&proxy, revision);
        }
        while self.changes.len() > CHANGES_MAX {
            let Some((oldest, change)) = self.changes.pop_first() else { return };
            for key in &change.affected {
                if let Some(proxy) = self.proxies.get_mut(key) {
                    proxy.owes.remove(&oldest);
                }
            }
        }
    }

    /// A proxy, whose plan was made at `as_of`, subscribes to `subjects`: what has touched them since concerns it.
    pub fn subscribed(&mut self, proxy: &InstanceKey, as_of: Revision, subjects: &BTreeSet<Subject>) {
        let since = (Bound::Excluded(as_of), Bound::Unbounded);
        let missed = self.changes.range(since).filter(|(_, change)| !change.subjects.is_disjoint(subjects));
        for revision in missed.map(|(revision, _)| *revision).collect::<Vec<_>>() {
            self.concern(proxy, revision);
        }
    }

    fn concern(&mut self, key: &InstanceKey, revision: Revision) {
        let Some(change) = self.changes.get_mut(&revision) else { return };
        if !change.affected.insert(key.clone()) {
            return;
        }
        let proxy = self.proxies.entry(key.clone()).or_default();
        // Its feed may have seen the snapshot, and had nothing to send, before the change was announced.
        if proxy.report.applied_through >= revision {
            change.applied_us.insert(key.clone(), 0);
        } else {
            proxy.owes.insert(revision);
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
    pub fn removed(&mut self, key: &InstanceKey) {
        let Some(proxy) = self.proxies.remove(key) else { return };
        for revision in proxy.owes {
            if let Some(change) = self.changes.get_mut(&revision) {
                change.affected.remove(key);
            }
        }
    }

    /// A proxy has applied everything up to `through`, except what it refused and was reported for. `refusals_stand`
    /// says whether there is any such thing still.
    pub fn applied(&mut self, key: &InstanceKey, through: Revision, refusals_stand: bool, now_us: u64) {
        let proxy = self.proxies.entry(key.clone()).or_default();
        proxy.report.applied_through = proxy.report.applied_through.max(through);
        if !refusals_stand {
            proxy.report.refused = None;
        }
        for revision in proxy.take_owed(through) {
            if let Some(change) = self.changes.get_mut(&revision) {
                let elapsed = now_us.saturating_sub(change.committed_us);
                change.applied_us.insert(key.clone(), elapsed);
            }
        }
    }

    /// A proxy refused what was rendered for `refused.revision`; it keeps serving what it had.
    pub fn rejected(&mut self, key: &InstanceKey, refused: Refused) {
        let proxy = self.proxies.entry(key.clone()).or_default();
        proxy.report.refused = Some(refused.clone());
        for revision in proxy.take_owed(refused.revision) {
            if let Some(change) = self.changes.get_mut(&revision) {
                change.rejected.insert(key.clone(), refused.clone());
            }
        }
    }

    /// One command was written as `earlier` and `last`: the receipt of the last speaks of all.
    pub fn join(&mut self, last: Revision, earlier: &[Revision]) {
        if let Some(change) = self.changes.get_mut(&last) {
            change.earlier = earlier.to_vec();
        }
    }

    /// The remembered changes of which the command known as `revision` consists.
    fn parts(&self, revision: Revision) -> Option<impl Iterator<Item = &Change>> {
        let last = self.changes.get(&revision)?;
        Some(last.earlier.iter().filter_map(|earlier| self.changes.get(earlier)).chain([last]))
    }

    /// Whether nothing is outstanding for a change; `None` if it is not remembered.
    #[must_use]
    pub fn is_settled(&self, revision: Revision) -> Option<bool> {
        Some(self.parts(revision)?.all(Change::is_settled))
    }

    /// The receipt of a change; `None` if it is not remembered. A proxy counts as having applied a command of several
    /// parts once it has applied each that concerns it, and as having refused it if it refused one.
    #[must_use]
    pub fn report(&self, revision: Revision) -> Option<ChangeReport> {
        let mut report = ChangeReport { revision, ..ChangeReport::default() };
        for change in self.parts(revision)? {
            let settled = |p: &&InstanceKey| change.applied_us.contains_key(*p) || change.rejected.contains_key(*p);
            report.affected.extend(change.affected.iter().cloned());
            report.pending.extend(change.affected.iter().filter(|proxy| !settled(proxy)).cloned());
            report.rejected.extend(change.rejected.iter().map(|(proxy, refused)| (proxy.clone(), refused.clone())));
            report.applied.extend(change.applied_us.iter().map(|(proxy, elapsed)| (proxy.clone(), *elapsed)));
        }
        report.pending.retain(|proxy| !report.rejected.contains_key(proxy));
        report.applied.retain(|proxy, _| !report.rejected.contains_key(proxy) && !report.pending.contains(proxy));
        Some(report)
    }

    /// The remembered revisions, newest first.
    pub fn revisions(&self) -> impl Iterator<Item = Revision> {
        self.changes.keys().rev().copied()
    }

    /// Every known proxy. One that has applied all that concerns it has applied everything there is.
    pub fn proxies(&self) -> impl Iterator<Item = (&InstanceKey, ProxyReport)> {
        self.proxies.iter().map(|(key, proxy)| {
            let mut report = proxy.report.clone();
            if proxy.owes.is_empty() && report.applied_through > Revision(0) && report.refused.is_none() {
                report.applied_through = report.applied_through.max(self.newest);
            }
            (key, report)
        })
    }
}

impl Proxy {
    /// Removes and returns what it owes up to `through`.
    fn take_owed(&mut self, through: Revision) -> BTreeSet<Revision> {
        let later = self.owes.split_off(&Revision(through.0.saturating_add(1)));
        std::mem::replace(&mut self.owes, later)
    }
}
