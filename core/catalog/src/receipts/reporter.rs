//! Who reports, each under a small number, so that a change of concern to ten thousand costs no string.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use starling_model::{InstanceId, InstanceKey, NodeName, Revision};

use super::Refused;

/// Whose reports receipts are made of. Ordered by node, a node before its proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reporter {
    /// A proxy whose stream ends in this process.
    Proxy(InstanceKey),
    /// A node whose agent is attached, and reports for all its proxies.
    Node(NodeName),
}

impl Reporter {
    /// The node it is, or is on.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Proxy(key) => &key.node,
            Self::Node(name) => name,
        }
    }

    fn proxy(&self) -> Option<&InstanceId> {
        match self {
            Self::Proxy(key) => Some(&key.id),
            Self::Node(_) => None,
        }
    }
}

impl Ord for Reporter {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.node(), self.proxy()).cmp(&(other.node(), other.proxy()))
    }
}

impl PartialOrd for Reporter {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(key) => key.fmt(f),
            Self::Node(name) => f.write_str(name.as_str()),
        }
    }
}

/// Stands for a [`Reporter`] from its first connection until it is removed; then the number may be another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReporterId(pub(super) u32);

/// What is known of one reporter.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Reporter,
    pub(super) connected: bool,
    pub(super) applied_through: Revision,
    pub(super) refused: Option<Arc<Refused>>,
    /// Whether reports are expected of it; an entry that is not known is kept for the receipts that name it.
    known: bool,
    /// The remembered changes that concern it and that it has neither applied nor refused.
    owes: u32,
    /// No change before this one is owed.
    owes_from: Revision,
    /// The latest change that concerns it.
    mentioned: Revision,
}

impl Entry {
    fn new(name: Reporter) -> Self {
        Self {
            name,
            connected: false,
            applied_through: Revision(0),
            refused: None,
            known: true,
            owes: 0,
            owes_from: Revision(0),
            mentioned: Revision(0),
        }
    }

    /// How many changes it owes.
    pub(super) fn owes(&self) -> u32 {
        self.owes
    }

    /// The first change that it may owe; `None` if it owes nothing.
    pub(super) fn owes_from(&self) -> Option<Revision> {
        (self.owes > 0).then_some(self.owes_from)
    }
}

/// Every reporter, by number and by name.
#[derive(Debug, Default)]
pub(super) struct Roll {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_name: BTreeMap<Reporter, u32>,
    /// Entries that are no longer known, by the last change that names them.
    retired: BTreeSet<(Revision, u32)>,
    behind: usize,
}

impl Roll {
    /// The number of a reporter, which is known from now on.
    pub(super) fn enter(&mut self, name: &Reporter) -> ReporterId {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => self.add(name.clone()),
        };
        if let Some(Some(entry)) = self.entries.get_mut(index as usize)
            && !entry.known
        {
            self.retired.remove(&(entry.mentioned, index));
            *entry = Entry { mentioned: entry.mentioned, ..Entry::new(name.clone()) };
        }
        ReporterId(index)
    }

    fn add(&mut self, name: Reporter) -> u32 {
        let entry = Some(Entry::new(name.clone()));
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("invariant: entries fit into memory, so into 32 bits")
            }
        };
        self.by_name.insert(name, index);
        index
    }

    /// The reporter of a name, if it is known.
    pub(super) fn find(&self, name: &Reporter) -> Option<ReporterId> {
        let id = ReporterId(*self.by_name.get(name)?);
        self.get(id).map(|_| id)
    }

    /// A reporter, if it is known.
    pub(super) fn get(&self, id: ReporterId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_ref().filter(|entry| entry.known)
    }

    pub(super) fn get_mut(&mut self, id: ReporterId) -> Option<&mut Entry> {
        self.entries.get_mut(id.0 as usize)?.as_mut().filter(|entry| entry.known)
    }

    /// Its name, also when only a receipt still speaks of it.
    pub(super) fn name(&self, index: u32) -> Option<&Reporter> {
        Some(&self.entries.get(index as usize)?.as_ref()?.name)
    }

    /// A change concerns it; if it `owes` the change, its report is outstanding.
    pub(super) fn concern(&mut self, id: ReporterId, revision: Revision, owes: bool) {
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        entry.mentioned = entry.mentioned.max(revision);
        if owes {
            if entry.owes == 0 {
                self.behind += 1;
                entry.owes_from = revision;
            }
            entry.owes_from = entry.owes_from.min(revision);
            entry.owes += 1;
        }
    }

    /// It no longer owes `count` changes, nor any at all before `from`.
    pub(super) fn settle(&mut self, id: ReporterId, count: u32, from: Revision) {
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        if entry.owes > 0 && entry.owes <= count {
            self.behind -= 1;
        }
        entry.owes = entry.owes.saturating_sub(count);
        entry.owes_from = entry.owes_from.max(from);
    }

    /// Nothing more is expected of it. Its name is kept while a change since `oldest` speaks of it.
    pub(super) fn retire(&mut self, id: ReporterId, oldest: Option<Revision>) {
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        entry.known = false;
        entry.refused = None;
        self.retired.insert((entry.mentioned, id.0));
        self.free_before(oldest);
    }

    /// Gives back the numbers of those that no change since `oldest` speaks of.
    pub(super) fn free_before(&mut self, oldest: Option<Revision>) {
        while let Some((mentioned, index)) = self.retired.first().copied() {
            if oldest.is_some_and(|oldest| mentioned >= oldest) {
                return;
            }
            self.retired.pop_first();
            if let Some(entry) = self.entries[index as usize].take() {
                self.by_name.remove(&entry.name);
                self.free.push(index);
            }
        }
    }

    /// Every known reporter, by name.
    pub(super) fn known(&self) -> impl Iterator<Item = (ReporterId, &Entry)> {
        self.by_name.values().filter_map(|index| self.get(ReporterId(*index)).map(|entry| (ReporterId(*index), entry)))
    }

    /// The known reporters that are a node or are on it.
    pub(super) fn on_node<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = (ReporterId, &'a Entry)> {
        let range = self.by_name.range(Reporter::Node(node.clone())..).take_while(move |(name, _)| name.node() == node);
        range.filter_map(|(_, index)| self.get(ReporterId(*index)).map(|entry| (ReporterId(*index), entry)))
    }

    /// How many owe something.
    pub(super) fn behind(&self) -> usize {
        self.behind
    }
}
