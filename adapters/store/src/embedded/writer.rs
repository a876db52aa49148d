//! Group commit: the hot path of every write.
//!
//! One thread owns all writing. It takes whatever is queued, up to the limits below, judges and
//! applies the transactions one after the other inside a single redb transaction, syncs once,
//! publishes, answers. It never waits for company: a lone transaction is written at once, and a
//! group is simply what arrived during the previous sync.
//!
//! Cost model, for a group of T transactions with W writes in all, on a table of N entries:
//!
//! * one sync of the disk, whatever T; it dominates until T reaches the hundreds;
//! * one rewrite of each B-tree page touched: at most W × depth, depth growing with log N;
//! * per write two tree look-ups (creation revision, insert) and one copy of the value;
//! * publishing: one append per transaction and one wake-up in all, whatever the number of
//!   watchers.
//!
//! After the first error from the disk nothing is written or acknowledged again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redb::{Durability, ReadableTable, Table};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::Engine;
use super::acknowledged::Acknowledged;
use super::door::{ENTRIES, META, REVISION, panic_text};
use super::record;
use super::window::{End, Window};
use crate::store::{CommitError, Failure};
use crate::transaction::{Committed, Key, Revision, Transaction, Write};

/// Most transactions per sync. Past this the work of a group outweighs its sync, and waiting for
/// more only delays the first.
const MAX_GROUP_TRANSACTIONS: usize = 1024;

/// Most bytes of keys and values per sync, give or take one transaction, so that a flood of large
/// values cannot hold up the small one queued with it for long.
const MAX_GROUP_BYTES: usize = 4 * 1024 * 1024;

/// A transaction in the queue.
pub(super) struct Job {
    pub(super) transaction: Transaction,
    pub(super) answer: oneshot::Sender<Result<Revision, CommitError>>,
    /// The job's share of the queue's memory, given back with it.
    pub(super) _space: OwnedSemaphorePermit,
}

pub(super) struct Writer {
    pub(super) engine: Arc<Engine>,
    pub(super) acknowledged: Acknowledged,
    pub(super) window: Arc<Window>,
    pub(super) queue: mpsc::Receiver<Job>,
    /// The last revision written.
    pub(super) revision: Revision,
}

/// What became of a group once it was durable.
struct Written {
    verdicts: Vec<Result<Revision, CommitError>>,
    committed: Vec<Committed>,
}

/// Why a group could not be made durable.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("writing the database failed")]
    Database(#[from] redb::Error),
    #[error("writing the high-water mark failed")]
    Mark(#[source] std::io::Error),
    #[error("the database engine failed: {0}")]
    Panicked(String),
    #[error("the entry of key {0} is malformed")]
    Malformed(Key),
}

impl Writer {
    /// Works until the queue is closed and empty.
    pub(super) fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let group = self.gather(first);
            self.commit(group);
        }
        self.window.end(End::Closed);
    }

    fn gather(&mut self, first: Job) -> Vec<Job> {
        let mut bytes = first.transaction.size();
        let mut group = vec![first];
        while group.len() < MAX_GROUP_TRANSACTIONS && bytes < MAX_GROUP_BYTES {
            let Ok(job) = self.queue.try_recv() else { break };
            bytes += job.transaction.size();
            group.push(job);
        }
        group
    }

    fn commit(&mut self, group: Vec<Job>) {
        if let Some(failure) = self.window.failure() {
            return refuse(group, &failure);
        }
        // redb aborts a transaction that unwinds, and nothing else is used after a failure.
        let written = catch_unwind(AssertUnwindSafe(|| self.write(&group)))
            .unwrap_or_else(|panic| Err(WriteError::Panicked(panic_text(panic.as_ref()).to_string())));
        match written {
            Ok(Written { verdicts, committed }) => {
                if let Some(last) = committed.last() {
                    self.revision = last.revision;
                    self.window.publish(committed);
                }
                for (job, verdict) in group.into_iter().zip(verdicts) {
                    // The caller may have gone; the transaction stands all the same.
                    let _ = job.answer.send(verdict);
                }
            }
            Err(error) => {
                let failure: Failure = Arc::new(error);
                tracing::error!(error = %Chain(&failure), "the store has failed and accepts no more writes");
                self.window.end(End::Failed(failure.clone()));
                refuse(group, &failure);
            }
        }
    }

    /// Judges and writes the group; returns once it is durable.
    fn write(&self, group: &[Job]) -> Result<Written, WriteError> {
        let mut transaction = self.engine.database.begin_write().map_err(redb::Error::from)?;
        transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
        let mut written = Written { verdicts: Vec::with_capacity(group.len()), committed: Vec::new() };
        let mut revision = self.revision;
        {
            let mut entries = transaction.open_table(ENTRIES).map_err(redb::Error::from)?;
            for job in group {
                if let Some(conflict) = judge(&entries, &job.transaction)? {
                    written.verdicts.push(Err(conflict));
                    continue;
                }
                let writes = apply(&mut entries, &job.transaction, revision.next())?;
                if !writes.is_empty() {
                    revision = revision.next();
                    written.committed.push(Committed { revision, writes: writes.into() });
                }
                written.verdicts.push(Ok(revision));
            }
        }
        if revision == self.revision {
            transaction.abort().map_err(redb::Error::from)?;
            return Ok(written);
        }
        {
            let mut meta = transaction.open_table(META).map_err(redb::Error::from)?;
            meta.insert(REVISION, &revision.0.to_le_bytes()[..]).map_err(redb::Error::from)?;
        }
        self.window.assign(revision);
        transaction.commit().map_err(redb::Error::from)?;
        self.acknowledged.record(revision).map_err(WriteError::Mark)?;
        Ok(written)
    }
}

fn refuse(group: Vec<Job>, failure: &Failure) {
    for job in group {
        let _ = job.answer.send(Err(CommitError::Failed(failure.clone())));
    }
}

type Entries<'a> = Table<'a, &'static [u8], &'static [u8]>;

/// The first condition that does not hold, if any.
fn judge(entries: &Entries<'_>, transaction: &Transaction) -> Result<Option<CommitError>, WriteError> {
    for condition in &transaction.conditions {
        let found = revisions(entries, &condition.key)?.map_or(Revision::ZERO, |r| r.modified);
        if !condition.expected.holds(found) {
            let key = condition.key.clone();
            return Ok(Some(CommitError::Conflict { key, expected: condition.expected, found }));
        }
    }
    Ok(None)
}

/// Applies the writes as `revision`; answers those that changed something.
fn apply(entries: &mut Entries<'_>, transaction: &Transaction, revision: Revision) -> Result<Vec<Write>, WriteError> {
    let mut effective = Vec::with_capacity(transaction.writes.len());
    for write in &transaction.writes {
        match write {
            Write::Put { key, value, .. } => {
                let created = revisions(entries, key)?.map_or(revision, |found| found.created);
                let record = record::encode(created, revision, value);
                entries.insert(key.as_bytes(), &record[..]).map_err(redb::Error::from)?;
                effective.push(write.clone());
            }
            Write::Delete { key } => {
                let removed = entries.remove(key.as_bytes()).map_err(redb::Error::from)?;
                if removed.is_some() {
                    effective.push(write.clone());
                }
            }
        }
    }
    Ok(effective)
}

fn revisions(entries: &Entries<'_>, key: &Key) -> Result<Option<record::Revisions>, WriteError> {
    let Some(found) = entries.get(key.as_bytes()).map_err(redb::Error::from)? else {
        return Ok(None);
    };
    match record::decode(found.value()) {
        Some((revisions, _)) => Ok(Some(revisions)),
        None => Err(WriteError::Malformed(key.clone())),
    }
}

/// An error with its causes, on one line.
struct Chain<'a>(&'a Failure);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(formatter, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
