//! What was committed: every revision, with the changes that led to it, and the revisions that were lost when the store
//! was set back.

use starling_attach::{Epoch, Lineage};
use starling_catalog::{Snapshot, Subject};
use starling_model::{Change, Revision};

use crate::seen::Seen;

/// The store of all servers.
pub(crate) struct Store {
    /// By revision.
    snapshots: Vec<Snapshot>,
    /// What led to each revision; of the first nothing.
    changes: Vec<Vec<Change>>,
    /// What was there before the store was set back.
    lost: Vec<Snapshot>,
    epochs: Vec<Epoch>,
    /// How many there ever were.
    epochs_begun: u64,
}

impl Store {
    pub(crate) fn new() -> Self {
        let epochs = vec![Epoch { id: 1, after: Revision(0) }];
        let snapshots = vec![Snapshot::default()];
        Self { snapshots, changes: vec![Vec::new()], lost: Vec::new(), epochs, epochs_begun: 1 }
    }

    /// What a server that starts now tells agents' pasts by.
    pub(crate) fn lineage(&self) -> Lineage {
        Lineage::new(self.epochs.clone())
    }

    /// The newest revision.
    pub(crate) fn head(&self) -> Revision {
        self.snapshots[self.snapshots.len() - 1].revision()
    }

    pub(crate) fn commit(&mut self, changes: Vec<Change>) {
        let revision = Revision(self.head().0 + 1);
        let next = self.snapshots[self.snapshots.len() - 1].apply(revision, &changes).snapshot;
        self.snapshots.push(next);
        self.changes.push(changes);
    }

    /// Puts an older copy in its place; opening it begins an epoch.
    pub(crate) fn set_back(&mut self, by: usize) {
        let kept = self.snapshots.len().saturating_sub(by).max(1);
        self.lost.extend(self.snapshots.drain(kept..));
        self.changes.truncate(kept);
        let head = self.head();
        self.epochs.retain(|epoch| epoch.id == 1 || epoch.after < head);
        self.epochs_begun += 1;
        self.epochs.push(Epoch { id: self.epochs_begun, after: head });
    }

    /// The catalog at a revision.
    pub(crate) fn at(&self, revision: Revision) -> Option<&Snapshot> {
        self.snapshots.get(usize::try_from(revision.0).ok()?)
    }

    /// What led to a revision.
    pub(crate) fn changes(&self, revision: Revision) -> Option<&[Change]> {
        self.changes.get(usize::try_from(revision.0).ok()?).map(Vec::as_slice)
    }

    /// What a server loads that starts now.
    pub(crate) fn load(&self) -> Snapshot {
        let newest = &self.snapshots[self.snapshots.len() - 1];
        Snapshot::load(newest.revision(), newest.records())
    }

    /// Whether a subject ever showed `seen` at `since` or later.
    pub(crate) fn showed(&self, subject: &Subject, seen: &Seen, since: Revision) -> bool {
        self.since(since).any(|snapshot| Seen::of(snapshot, subject) == *seen)
    }

    /// Whether each item of a subject was ever as in `seen` at `since` or later. What is heard is there at once, item by
    /// item, so that a plan may be made from a part of what was committed together.
    pub(crate) fn showed_each(&self, subject: &Subject, seen: &Seen, since: Revision) -> bool {
        let Seen::Fronts(fronts) = seen else { return self.showed(subject, seen, since) };
        let ever: Vec<_> = self.since(since).filter_map(|snapshot| Seen::of(snapshot, subject).fronts()).collect();
        let keys = ever.iter().flat_map(|then| then.keys()).chain(fronts.keys());
        keys.into_iter().all(|key| ever.iter().any(|then| then.get(key) == fronts.get(key)))
    }

    fn since(&self, since: Revision) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.iter().chain(&self.lost).filter(move |snapshot| snapshot.revision() >= since)
    }
}
