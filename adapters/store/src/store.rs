//! The contract between the control plane and whatever keeps its data.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{BoxStream, Stream, StreamExt};

use crate::StoreId;
use crate::lease::Lease;
use crate::transaction::{Committed, Expected, Key, Revision, Snapshot, Transaction};

/// What went wrong underneath a store; shared, because one failure answers many callers.
pub type Failure = Arc<dyn std::error::Error + Send + Sync>;

/// A durable, versioned map of keys to bytes.
///
/// Revisions rise with every transaction. On the embedded store they are also contiguous; on etcd
/// other users of the same cluster take numbers too, so only their order may be relied on.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Which store this is.
    fn id(&self) -> StoreId;

    /// Commits the transaction and answers its revision once it is durable.
    ///
    /// A transaction whose writes are all deletes of absent keys changes nothing: it takes no
    /// revision, no watcher sees it, and the answer is the revision at which that was found.
    /// If the returned future is dropped, the transaction may or may not take place.
    ///
    /// # Errors
    /// [`CommitError`]. After [`CommitError::Unavailable`], [`CommitError::Failed`] or [`CommitError::Closed`] it is not
    /// known whether the transaction took place; after any other error it did not.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError>;

    /// Reads everything at one revision.
    ///
    /// # Errors
    /// [`LoadError`] if the data cannot be read.
    async fn load(&self) -> Result<Snapshot, LoadError>;

    /// Watches all transactions with a revision greater than `from`.
    ///
    /// # Errors
    /// [`WatchError`]; for [`WatchError::Compacted`] the remedy is to [`load`](Store::load) and to
    /// watch from the snapshot's revision.
    async fn watch(&self, from: Revision) -> Result<Watch, WatchError>;

    /// A revision not before that of any transaction that was acknowledged, by whichever process, before this was called.
    /// Watches come to it, also if nothing is written.
    ///
    /// # Errors
    /// [`LoadError`] if that cannot be found out now: on etcd, if too few members answer.
    async fn barrier(&self) -> Result<Revision, LoadError>;

    /// Takes out a lease, kept up until it is dropped, that ends `ttl` after its holder is gone; `None` if no other process
    /// shares this store, since there is nobody then to take note.
    ///
    /// # Errors
    /// [`LoadError`] if it cannot be had now.
    async fn lease(&self, ttl: Duration) -> Result<Option<Lease>, LoadError>;

    /// How it stands with each process that keeps this store and can be asked; none where the store is this process's own.
    /// Takes some seconds where one does not answer.
    async fn members(&self) -> Vec<StoreMember> {
        Vec::new()
    }
}

/// One of the processes that keep a shared store, such as a member of etcd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreMember {
    /// Where it is asked, `HOST:PORT`.
    pub address: String,
    /// Whether it leads.
    pub leads: bool,
    /// Its release; empty where it did not answer.
    pub version: String,
    /// Bytes of its data.
    pub bytes: u64,
    /// Why it is of no use now, or what it complains of.
    pub trouble: Option<String>,
}

/// What of a transaction exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Number of writes.
    Writes,
    /// Number of conditions.
    Conditions,
    /// Bytes of keys and values.
    Bytes,
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Quantity::Writes => "writes",
            Quantity::Conditions => "conditions",
            Quantity::Bytes => "bytes",
        })
    }
}

/// Why a transaction was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A condition does not hold; nothing was written.
    #[error("key {key} was expected {expected}, but its last modification is {found}")]
    Conflict {
        /// The key of the first condition that failed.
        key: Key,
        /// What was demanded of it.
        expected: Expected,
        /// The transaction that wrote it last; 0 if it is absent.
        found: Revision,
    },
    /// There is no write in it.
    #[error("the transaction writes nothing")]
    Empty,
    /// Two writes name one key.
    #[error("key {key} is written twice in one transaction")]
    DuplicateKey {
        /// The key.
        key: Key,
    },
    /// It is over a limit.
    #[error("the transaction has {found} {quantity}, the limit is {limit}")]
    TooLarge {
        /// What there is too much of.
        quantity: Quantity,
        /// How much there is.
        found: usize,
        /// How much there may be.
        limit: usize,
    },
    /// The store takes no writes now; nothing was written.
    #[error("the store takes no writes now: {0}")]
    Refused(Failure),
    /// The store cannot be asked now.
    #[error("the store did not say whether it has taken the write: {0}")]
    Unavailable(Failure),
    /// The store cannot make anything durable any more.
    #[error("the store has failed and accepts no writes until it is opened again")]
    Failed(#[source] Failure),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why the data could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store cannot be asked now.
    #[error("the store cannot be read now: {0}")]
    Unavailable(Failure),
    /// The store has failed, now or earlier.
    #[error("the store has failed and must be opened again")]
    Failed(#[source] Failure),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why a watch cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Transactions after `from` are no longer kept, at the start or because the watcher is slow.
    #[error("transactions after revision {from} are no longer kept, only those after {oldest}")]
    Compacted {
        /// The last revision that the watcher has.
        from: Revision,
        /// The oldest revision from which a watch can begin now.
        oldest: Revision,
    },
    /// The revision was never given out here, so it comes from another store or a lost one.
    #[error("revision {from} does not exist yet, the latest is {latest}")]
    Ahead {
        /// The revision asked for.
        from: Revision,
        /// The latest revision there is.
        latest: Revision,
    },
    /// The store cannot be asked now, at the start only: a watch that runs waits until it can be.
    #[error("the store cannot be watched now: {0}")]
    Unavailable(Failure),
    /// The store has failed: no more transactions will come.
    #[error("the store has failed and must be opened again")]
    Failed(#[source] Failure),
    /// The store was closed: no more transactions will come.
    #[error("the store is closed")]
    Closed,
}

/// A running watch: every transaction after its start, in order, none missing.
///
/// It ends with one error that says why; after that the stream is exhausted. Also a [`Stream`],
/// for callers who take ready transactions in chunks.
pub struct Watch {
    stream: BoxStream<'static, Result<Committed, WatchError>>,
}

impl Watch {
    /// Wraps an implementation's stream, which must end after its first error.
    pub fn new(stream: impl Stream<Item = Result<Committed, WatchError>> + Send + 'static) -> Watch {
        Watch { stream: stream.boxed() }
    }

    /// Waits for the next transaction. Nothing is lost if the future is dropped. One without writes says only that there is
    /// nothing up to its revision.
    ///
    /// # Errors
    /// [`WatchError`] if no further transaction can be delivered.
    pub async fn next(&mut self) -> Result<Committed, WatchError> {
        self.stream.next().await.unwrap_or(Err(WatchError::Closed))
    }
}

impl Stream for Watch {
    type Item = Result<Committed, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.poll_next_unpin(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watch").finish_non_exhaustive()
    }
}
