//! Where a proxy's resources come from, and where its reports go.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use starling_model::AclSecret;
use starling_xds::{ProxyNode, Report, ResourceSet};
use tokio::sync::watch;
use tonic::Status;

use crate::connection::Peer;

/// Knows the proxies.
#[async_trait]
pub trait ProxySource: Send + Sync + 'static {
    /// Begins to serve a proxy, which introduces itself as `node` over a connection from `peer`, and may show a token.
    ///
    /// Awaited before anything is sent, so it may wait until there is something to send.
    ///
    /// # Errors
    /// [`AttachError`] if the proxy is not served; it is told the reason.
    async fn attach(&self, node: ProxyNode, peer: Peer, token: Option<AclSecret>) -> Result<ProxyFeed, AttachError>;
}

/// One proxy's resources and reports, for as long as its stream lives: the feed is dropped when the stream ends.
pub struct ProxyFeed {
    /// The newest set. It may change as often as it likes; sets that nobody saw are skipped. When the sender is gone,
    /// the stream ends and the proxy comes back; so it does when a set is of a lower revision than the one before.
    pub resources: watch::Receiver<Arc<ResourceSet>>,
    /// Called with every report, in order; must not block. Whatever it owns is dropped when the stream ends.
    pub on_report: Box<dyn FnMut(Report) + Send>,
    /// Completes when the proxy may be served no more, and the stream ends.
    pub ends: BoxFuture<'static, AttachError>,
}

impl fmt::Debug for ProxyFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyFeed").field("revision", &self.resources.borrow().revision).finish_non_exhaustive()
    }
}

/// Why a proxy is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// No such proxy is registered.
    #[error("no proxy {id:?} is registered")]
    Unknown {
        /// As it calls itself.
        id: String,
    },
    /// The peer may not have this proxy's resources.
    #[error("{reason}")]
    Refused {
        /// For the operator of the proxy.
        reason: String,
    },
    /// Another process is attached for it.
    #[error("another process serves {id} here; end that one, or take over from it with --take-over")]
    Occupied {
        /// As it calls itself.
        id: String,
    },
    /// Not now; the proxy should try again.
    #[error("{reason}")]
    Unavailable {
        /// For the operator of the proxy.
        reason: String,
    },
}

impl From<AttachError> for Status {
    fn from(error: AttachError) -> Self {
        let text = error.to_string();
        match error {
            AttachError::Unknown { .. } => Status::not_found(text),
            AttachError::Refused { .. } => Status::permission_denied(text),
            AttachError::Occupied { .. } => Status::already_exists(text),
            AttachError::Unavailable { .. } => Status::unavailable(text),
        }
    }
}
