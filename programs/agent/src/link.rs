//! The port to a server: all that the agent asks of one, in process today, over a stream later.

use async_trait::async_trait;
use futures::stream::BoxStream;
use starling_model::{Change, Check, InstanceId, NodeName, Revision, ServiceName};
use starling_rpc::CallError;
pub use starling_rpc::OwnRecords;
pub use starling_tls::IssuedLeaf;

/// What an agent needs of a server.
#[async_trait]
pub trait ServerLink: Send + Sync + 'static {
    /// Writes records of this node; returns when all are durable. They go in one transaction unless they are more than
    /// one may hold; then in several, in this order.
    ///
    /// # Errors
    /// [`LinkError::Refused`] if the server will never take them and has written none, [`LinkError::Unavailable`] if it
    /// could not now; in the second case all, some or none may have been written.
    async fn commit(&self, changes: Vec<Change>) -> Result<Revision, LinkError>;

    /// The node leaves the mesh: `changes` take everything of it out of the catalog, and nobody waits for its agent any more. Nothing
    /// is to be written after this.
    ///
    /// # Errors
    /// [`LinkError`] as for [`ServerLink::commit`]; refused where the agent lives in its server's process.
    async fn leave(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        let _ = changes;
        Err(LinkError::Refused("the agent of a server's own process does not leave by itself".to_owned()))
    }

    /// The catalog's records of this node: the node itself, its instances and its checks; none if they are those that
    /// were answered at `since`.
    ///
    /// # Errors
    /// [`LinkError`] as for [`ServerLink::commit`].
    async fn own_records(&self, since: Option<Revision>) -> Result<OwnRecords, LinkError>;

    /// Signs a leaf for a workload of this node. Names inside the request are of no account.
    ///
    /// # Errors
    /// [`LinkError`] as for [`ServerLink::commit`].
    async fn issue_leaf(&self, service: &ServiceName, csr_der: Vec<u8>) -> Result<IssuedLeaf, LinkError>;

    /// The checks of another node that speak of `service` (or, if `None`, of the node alone) together with the node's
    /// own: as they are now, and again after every change. The stream ends when the server is lost.
    fn follow_checks(&self, node: &NodeName, service: Option<&InstanceId>) -> BoxStream<'static, AliasView>;
}

/// What an alias check of another node sees.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AliasView {
    /// Whether the node, and the instance if one was named, is in the catalog.
    pub exists: bool,
    /// The node's own checks and the instance's.
    pub checks: Vec<Check>,
}

/// Why the server did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It never will: the request itself is at fault.
    #[error("refused by the server: {0}")]
    Refused(String),
    /// It could not now: trying again may help.
    #[error("the server is unavailable: {0}")]
    Unavailable(String),
}

impl From<CallError> for LinkError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { reason } => Self::Refused(reason),
            CallError::BeginAnew { reason }
            | CallError::Unavailable { reason }
            | CallError::Overloaded { reason, .. } => Self::Unavailable(reason),
        }
    }
}
