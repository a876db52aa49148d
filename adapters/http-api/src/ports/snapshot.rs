//! What the API needs of whoever keeps the catalog to save it and to set it back.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use starling_model::{NodeName, Revision};

/// A snapshot on its way out.
pub struct OutgoingSnapshot {
    /// The revision that it is of.
    pub revision: Revision,
    /// The file, piece by piece. After an error the file is cut off, which its reader notices.
    pub pieces: BoxStream<'static, Result<Bytes, Box<dyn std::error::Error + Send + Sync>>>,
}

/// A snapshot on its way in.
#[async_trait]
pub trait IncomingSnapshot: Send {
    /// Takes the next piece of the file; what was taken by then is thrown away if it is no good.
    ///
    /// # Errors
    /// [`SnapshotFailure::Wrong`].
    fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotFailure>;

    /// Sets the catalog back to what the file, which is whole now, holds. Goes on to its end if the caller leaves.
    ///
    /// # Errors
    /// [`SnapshotFailure`].
    async fn restore(self: Box<Self>) -> Result<RestoreReport, SnapshotFailure>;
}

/// What came of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    /// The revision at which it is complete, and whose receipt speaks of it.
    pub revision: Revision,
    /// Records that were written.
    pub written: u64,
    /// Records that were removed.
    pub removed: u64,
    /// Keys of records that others wrote meanwhile, and that stay so; the first of them.
    pub younger: Vec<String>,
    /// How many there are.
    pub younger_count: u64,
    /// Nodes whose agent is there: what they differ in is the agent's.
    pub attached_nodes: Vec<NodeName>,
    /// Roots and keys of the CA that were left.
    pub authority: u64,
    /// Join tokens that were left.
    pub join_tokens: u64,
    /// Virtual addresses that were left.
    pub virtual_addresses: u64,
    /// Records of the file that this release cannot use.
    pub unreadable: u64,
}

/// Why a snapshot was not saved or restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFailure {
    /// This program has no catalog of its own.
    #[error("an agent has no snapshot of the catalog: ask a server")]
    NotHere,
    /// The file is no good; nothing was changed.
    #[error("{0}")]
    Wrong(String),
    /// Another restore is at work.
    #[error("{0}")]
    Busy(String),
    /// The store or the catalog does not do what it must.
    #[error("{0}")]
    Failed(String),
}
