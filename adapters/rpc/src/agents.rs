//! What agents ask of a server: the door that the program supplies, and the gRPC service in front of it.
//!
//! Who calls is known from the certificate before anything of a request is read; no request names its caller, but for
//! [`Hello`], which must agree. A caller without a certificate may [`join`](AgentDoor::join) and nothing else.

mod attach;
mod body;
pub(crate) mod messages;
mod service;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use starling_attach::message::{AgentSays, Hello};
use starling_model::{
    Change, Check, InstanceId, KeyFingerprint, Member, NodeId, NodeName, Record, Revision, ServiceName,
};
use starling_tls::IssuedLeaf;

use crate::call::CallError;

pub use attach::FIRST_FRAME_TIMEOUT;
pub use body::PIECE_BYTES;
pub use messages::{
    AGENT_FRAME_BYTES_MAX, AGENT_REQUEST_BYTES_MAX, COMMIT_BYTES_MAX, SERVER_FRAME_BYTES_MAX, SERVER_REPLY_BYTES_MAX,
};
pub(crate) use messages::{FOR_NODE, FOR_RELAY, path, wire};
pub(crate) use service::AgentsService;

/// An agent or a relay as a caller, by its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Who it is.
    pub member: Member,
    /// The key of its certificate; `None` for a member that a relay speaks for.
    pub key: Option<KeyFingerprint>,
}

/// Serves the agents of the mesh. `node` is always what the caller's certificate says, or that of a relay which asks for it.
#[async_trait]
pub trait AgentDoor: Send + Sync + 'static {
    /// Lets a caller in, before each of its requests is read.
    ///
    /// # Errors
    /// [`CallError::Refused`] if another key holds the caller's name, or the caller was evicted.
    fn admit(&self, caller: &Credential) -> Result<(), CallError>;

    /// Notes that a caller has opened a connection. The answer completes once the caller is let in no more, and the
    /// connection is closed then; it is dropped with the connection.
    fn connected(&self, _caller: &Credential) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Begins a stream. It is the agent's until the answer is dropped.
    ///
    /// # Errors
    /// [`CallError`]; the agent is told.
    fn attach(&self, node: NodeName, hello: Hello) -> Result<Arc<dyn AgentStream>, CallError>;

    /// Begins the stream of a relay, which tells of the nodes behind it, and asks for them by the other calls. It is the relay's
    /// until the answer is dropped.
    ///
    /// # Errors
    /// [`CallError`]; the relay is told.
    fn relay(&self, relay: NodeName, _hello: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        Err(CallError::refused(format!("no relay is served here, and {relay} is one")))
    }

    /// Writes records of the node; returns when all are durable.
    ///
    /// # Errors
    /// [`CallError::Refused`] or [`CallError::Overloaded`] if nothing was written, [`CallError::Unavailable`] if all, some
    /// or none may have been.
    async fn commit(&self, caller: &Credential, changes: Vec<Change>) -> Result<Revision, CallError>;

    /// The catalog's records of the node, unless this server has had the same ever since `since`.
    ///
    /// # Errors
    /// [`CallError`].
    async fn own_records(&self, node: &NodeName, since: Option<Revision>) -> Result<OwnRecords, CallError>;

    /// Signs leaves for workloads of the node: one answer for each wanted, in order.
    ///
    /// # Errors
    /// [`CallError`] if none is signed.
    async fn issue_leaves(
        &self,
        node: &NodeName,
        wanted: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError>;

    /// Renews the caller's own certificate: an agent's, or a relay's.
    ///
    /// # Errors
    /// [`CallError`].
    async fn renew(&self, caller: &Credential, csr_der: Vec<u8>) -> Result<IssuedLeaf, CallError>;

    /// The checks of a node, be it the caller's or not, that speak of `service` or, if `None`, of the node alone, together
    /// with the node's own: as they are now, and again after every change. It is polled only when there is room to send.
    /// An error ends it; the agent is told.
    fn follow_checks(
        &self,
        of: &NodeName,
        service: Option<&InstanceId>,
    ) -> BoxStream<'static, Result<AliasView, CallError>>;

    /// Lets a node in, whose agent has a token and no certificate.
    ///
    /// # Errors
    /// [`CallError`].
    async fn join(&self, request: JoinRequest) -> Result<JoinAnswer, CallError>;
}

/// The server's end of one agent's stream. Dropped when the agent is gone, whatever the reason.
pub trait AgentStream: Send + Sync + 'static {
    /// What the agent said, in order; pongs are left out. Must not block.
    ///
    /// # Errors
    /// [`CallError`] ends the stream; the agent is told.
    fn handle(&self, says: AgentSays) -> Result<(), CallError>;

    /// Takes the frames to send next, one at least. Asked only when the connection has room for some; what is taken is
    /// sent as it is, so what may still change is better left. If there are none, the waker is woken when there are.
    ///
    /// # Errors
    /// [`CallError`] ends the stream; the agent is told.
    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>>;
}

/// The catalog's records of one node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OwnRecords {
    /// The catalog's revision when they were read.
    pub revision: Revision,
    /// The node, its instances and its checks, in any order; `None` if they are those of the revision that was named.
    pub records: Option<Vec<Record>>,
    /// Seconds after which the agent may ask again unless it has reason to, so that a fleet never asks much at once.
    pub again_after_s: u32,
}

/// What an alias check of another node sees.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AliasView {
    /// Whether the node, and the instance if one was named, is in the catalog.
    pub exists: bool,
    /// The node's own checks and the instance's.
    pub checks: Vec<Check>,
}

/// A leaf certificate that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafRequest {
    /// The workload's service, of which the node must have an instance.
    pub service: ServiceName,
    /// The signing request; names in it are of no account.
    pub csr_der: Vec<u8>,
}

/// A node asks to be let in.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The join token's text: a secret.
    pub token: String,
    /// What the node is called.
    pub node: NodeName,
    /// The node's UUID; may be empty.
    pub node_id: NodeId,
    /// The signing request; names in it are of no account.
    pub csr_der: Vec<u8>,
    /// Whether it is a relay by that name, and no node.
    pub relay: bool,
    /// The relay that passes this on, by its certificate; nobody says so of itself.
    pub through: Option<NodeName>,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("node", &self.node).field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

/// A node is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinAnswer {
    /// The agent's certificate.
    pub leaf: IssuedLeaf,
    /// All roots of the mesh, in one text.
    pub roots_pem: String,
}
