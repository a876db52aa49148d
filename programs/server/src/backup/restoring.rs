//! A restore onto a running mesh: the difference, written by ordinary transactions in the order of its [plan].
//!
//! A restore counts as having happened at the moment it began. What others write while it is at work is younger: it stays, and
//! is named in the answer. So each record is written on condition that it is as it was at that moment, and nothing that was
//! acknowledged is lost unsaid. One that is interrupted leaves a part of its changes; the same again does the rest.
//!
//! [plan]: starling_backup::plan

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use starling_backup::plan::{self, Left, Plan, Records, Stage};
use starling_catalog::Snapshot;
use starling_model::{Change, Fence, NodeName, OnNode, Record, RecordKey, Revision};
use starling_store::{
    CommitError, Condition, Expected, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS, Transaction,
};

use super::Unreadable;
use crate::commit::{CommitFailure, store_key, write};
use crate::liveness::is_alive;
use crate::server::Server;

/// Conditions of one transaction: one on each record, and one on what it relies on. Leaves room for a fence.
const CONDITIONS_AT_ONCE: usize = MAX_TRANSACTION_CONDITIONS - 7;

/// Bytes of one transaction's changes; its conditions come on top.
const BYTES_AT_ONCE: usize = MAX_TRANSACTION_BYTES / 4 * 3;

/// Records that are named as changed by others meanwhile; beyond, they are counted.
const YOUNGER_NAMED_MAX: usize = 1_000;

/// What came of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The revision at which it is complete, whose receipt speaks of all of it; that of the catalog if nothing had to change.
    pub revision: Revision,
    /// Records that were written.
    pub written: u64,
    /// Records that were removed.
    pub removed: u64,
    /// Keys of records that others changed meanwhile, which stay as those left them; the first of them.
    pub younger: Vec<String>,
    /// How many there are in all.
    pub younger_count: u64,
    /// Records of the snapshot that this release cannot use.
    pub unreadable: u64,
    /// What is never set back.
    pub left: Left,
}

/// Why a restore did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum RestoreFailure {
    /// This server is at work on one.
    #[error("this server is restoring a snapshot already: wait until it is done")]
    Busy,
    /// It was not begun.
    #[error("the restore could not begin; nothing was changed")]
    NotBegun(#[source] CommitFailure),
    /// The store or the catalog failed while it was at work.
    #[error(
        "the restore was interrupted after {done} of {all} changes: the catalog is in part as in the snapshot, in part as \
         before; run it again, which does the rest"
    )]
    Interrupted {
        /// Changes that are surely made.
        done: u64,
        /// Changes that there were to make.
        all: u64,
        /// Why.
        #[source]
        source: CommitFailure,
    },
}

/// A restore at work.
pub(super) struct Work<'a> {
    server: &'a Server,
    /// The catalog as it was when the restore began.
    begun: Arc<Snapshot>,
    stages: Vec<Stage>,
    /// Records that the plan puts somewhere.
    planned: BTreeSet<RecordKey>,
    /// When a record was last written by this restore; `None` for one that it removed.
    own: BTreeMap<RecordKey, Option<Revision>>,
    transactions: Vec<Revision>,
    restored: Restored,
}

impl Server {
    /// Sets the catalog back to `then`, but for what runs (see [`starling_backup::plan`]). `own_node` is the node whose agent
    /// lives in the server's process, and so is always there.
    ///
    /// Must be let come to its end: dropped before, it is one that is interrupted.
    ///
    /// # Errors
    /// [`RestoreFailure`].
    pub async fn restore(
        &self,
        then: &Records,
        unreadable: &Unreadable,
        own_node: Option<&NodeName>,
    ) -> Result<Restored, RestoreFailure> {
        let _one_at_a_time = self.restoring().try_lock().map_err(|_| RestoreFailure::Busy)?;
        Work::begin(self, then, unreadable, own_node).await.map_err(RestoreFailure::NotBegun)?.finish().await
    }
}

impl<'a> Work<'a> {
    /// The moment at which the restore counts as having happened.
    pub(super) async fn begin(
        server: &'a Server,
        then: &Records,
        unreadable: &Unreadable,
        own_node: Option<&NodeName>,
    ) -> Result<Self, CommitFailure> {
        // Everything that was acknowledged before, by whichever server, is to be set back.
        let barrier = server.store().barrier().await;
        let barrier = barrier.map_err(|error| CommitError::Unavailable(Arc::new(error)))?;
        server.published(Revision(barrier.0)).await?;
        let begun = server.snapshot();
        let now = begun.records().map(|record| (record.value.key(), record.value));
        let now: Records = now.filter(|(key, _)| !unreadable.keys.contains(key)).collect();
        let Plan { stages, left } = plan::plan(&now, then, |node| own_node == Some(node) || is_alive(&begun, node));
        let puts = stages.iter().flat_map(|stage| &stage.changes).filter(|change| matches!(change, Change::Put(_)));
        let planned = puts.map(Change::key).collect();
        let restored = Restored {
            revision: begun.revision(),
            written: 0,
            removed: 0,
            younger: Vec::new(),
            younger_count: 0,
            unreadable: unreadable.count,
            left,
        };
        Ok(Self { server, begun, stages, planned, own: BTreeMap::new(), transactions: Vec::new(), restored })
    }

    pub(super) async fn finish(mut self) -> Result<Restored, RestoreFailure> {
        let stages = std::mem::take(&mut self.stages);
        let all = stages.iter().map(|stage| stage.changes.len() as u64).sum();
        tracing::info!(revision = %self.begun.revision(), changes = all, "a snapshot is being restored");
        match self.run(stages).await {
            Ok(()) => {
                tracing::info!(revision = %self.restored.revision, "the snapshot is restored");
                Ok(self.restored)
            }
            Err(source) => {
                let done = self.restored.written + self.restored.removed;
                Err(RestoreFailure::Interrupted { done, all, source })
            }
        }
    }

    async fn run(&mut self, stages: Vec<Stage>) -> Result<(), CommitFailure> {
        for stage in stages {
            self.make(stage.changes).await?;
        }
        self.put_grounds_back().await?;
        if let Some((last, earlier)) = self.transactions.split_last() {
            self.restored.revision = *last;
            self.server.published(*last).await?;
            if !earlier.is_empty() {
                self.server.hub().join(*last, &earlier.iter().copied().collect());
            }
        }
        Ok(())
    }

    async fn make(&mut self, changes: Vec<Change>) -> Result<(), CommitFailure> {
        let mut waiting = VecDeque::from(changes);
        while !waiting.is_empty() {
            let batch = next_batch(&mut waiting);
            self.commit(batch).await?;
        }
        Ok(())
    }

    /// Makes these changes at once, but for those to what others have changed meanwhile.
    async fn commit(&mut self, mut batch: Vec<Change>) -> Result<(), CommitFailure> {
        while !batch.is_empty() {
            match self.server.store().commit(self.transaction(&batch)).await {
                Ok(revision) => {
                    let revision = Revision(revision.0);
                    self.transactions.push(revision);
                    for change in batch {
                        let (count, at) = match &change {
                            Change::Put(_) => (&mut self.restored.written, Some(revision)),
                            Change::Delete(_) => (&mut self.restored.removed, None),
                        };
                        // One that is written twice is one.
                        *count += u64::from(self.own.insert(change.key(), at).is_none());
                    }
                    return Ok(());
                }
                Err(CommitError::Conflict { key: conflict, found, .. }) => {
                    let concerned = |change: &Change| {
                        store_key(&change.key()) == conflict
                            || self.ground(change).is_some_and(|it| store_key(&it) == conflict)
                    };
                    let (out, rest): (Vec<_>, Vec<_>) = batch.iter().cloned().partition(concerned);
                    let is_gone = found == starling_store::Revision::ZERO;
                    for change in out {
                        // What was to be removed and is gone is as it was to be.
                        if !(is_gone && matches!(change, Change::Delete(_))) {
                            self.name_younger(&change.key());
                        }
                    }
                    batch = rest;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn transaction(&self, batch: &[Change]) -> Transaction {
        let mut conditions: Vec<_> = batch.iter().map(|change| self.unchanged(&change.key())).collect();
        let grounds: BTreeSet<_> = batch.iter().filter_map(|change| self.ground(change)).collect();
        conditions
            .extend(grounds.iter().map(|ground| Condition { key: store_key(ground), expected: Expected::Present }));
        let mut writes: Vec<_> = batch.iter().map(write).collect();
        if batch.iter().any(|change| matches!(change.key(), RecordKey::Config(_))) {
            // Whoever decides about protocols on what was before decides anew.
            writes.push(write(&Change::Put(Record::Fence(Fence::Protocols))));
        }
        Transaction { conditions, writes }
    }

    /// That a record is as it was when the restore began, or as the restore itself has left it.
    fn unchanged(&self, record: &RecordKey) -> Condition {
        let seen = self.own.get(record).copied().unwrap_or_else(|| self.begun.modified(record));
        let expected = match seen {
            Some(revision) => Expected::ModifiedAt(starling_store::Revision(revision.0)),
            None => Expected::Absent,
        };
        Condition { key: store_key(record), expected }
    }

    /// What must be there for a change, and was there before: what the restore itself writes or removes is looked after by
    /// its order.
    fn ground(&self, change: &Change) -> Option<RecordKey> {
        let Change::Put(record) = change else { return None };
        plan::ground(record).filter(|ground| !self.planned.contains(ground) && !self.own.contains_key(ground))
    }

    fn name_younger(&mut self, key: &RecordKey) {
        self.restored.younger_count += 1;
        if self.restored.younger.len() < YOUNGER_NAMED_MAX {
            self.restored.younger.push(key.encode());
        }
    }

    /// Nodes and instances that were removed while somebody registered something on them are put back: that is younger, and
    /// must not be without what it relies on.
    async fn put_grounds_back(&mut self) -> Result<(), CommitFailure> {
        let Some(last) = self.transactions.last().copied() else { return Ok(()) };
        self.server.published(last).await?;
        let present = self.server.snapshot();
        let removed: Vec<_> = self.own.iter().filter(|(_, at)| at.is_none()).map(|(key, _)| key.clone()).collect();
        let needed = removed.into_iter().filter(|key| match key.on_node() {
            Some(OnNode::Node(node)) => {
                present.instances_on(node).next().is_some() || present.checks_on(node).next().is_some()
            }
            Some(OnNode::Instance(key)) => present.own_checks_of(key).next().is_some(),
            Some(OnNode::Check(..)) | None => false,
        });
        let needed: BTreeSet<_> = needed.collect();
        let before = self.begun.records().filter(|record| needed.contains(&record.value.key()));
        let back: Vec<_> = before.map(|record| Change::Put(record.value)).collect();
        for change in &back {
            self.name_younger(&change.key());
        }
        self.make(back).await
    }
}

/// As many as fit into a transaction, one at least.
fn next_batch(waiting: &mut VecDeque<Change>) -> Vec<Change> {
    let (mut batch, mut conditions, mut bytes) = (Vec::new(), 0, 0);
    while let Some(change) = waiting.front() {
        let relies = matches!(change, Change::Put(record) if plan::ground(record).is_some());
        conditions += if relies { 2 } else { 1 };
        bytes += write(change).size();
        if !batch.is_empty() && (conditions > CONDITIONS_AT_ONCE || bytes > BYTES_AT_ONCE) {
            break;
        }
        batch.extend(waiting.pop_front());
    }
    batch
}
