//! DNS: authoritative answers for `consul.` from the catalog, over UDP and TCP.
//!
//! [`Zone`] decides the answer to one question and is pure: what the catalog holds comes in as a [`View`], the order of
//! the records by a number. [`Responder`] turns a packet into a packet and holds the limits on sizes. [`serve()`] owns the
//! sockets. Nothing here recurses, forwards, transfers zones or signs.

mod asked;
mod metrics;
mod records;
pub mod relay;
pub mod responder;
pub mod serve;
pub mod settings;
mod sizing;
pub mod view;
pub mod zone;

use std::sync::Arc;

use starling_catalog::Snapshot;
use starling_model::{AclRights, Datacenter, NodeName, TrustDomain};

pub use relay::{Unreached, Upstream, relay};
pub use responder::{Responder, Transport};
pub use serve::serve;
pub use settings::Settings;
pub use view::View;
pub use zone::Zone;

/// What of a catalog is answered.
#[derive(Debug, Clone, Default)]
pub enum Sight {
    /// All of it.
    #[default]
    Everything,
    /// What these rights let read.
    Only(AclRights),
    /// Nothing, and every question is refused: it is not known who asks.
    Nothing,
}

/// Where answers come from.
pub trait CatalogReader: Send + Sync + 'static {
    /// The newest catalog.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// What whoever asks may see of a catalog. DNS knows no tokens, so this holds for all who ask.
    fn sight(&self, snapshot: &Snapshot) -> Sight {
        let _ = snapshot;
        Sight::Everything
    }

    /// Changes whenever [`Self::sight`] may for another reason than a change of the catalog.
    fn sight_version(&self) -> u64 {
        0
    }

    /// The node of the agent that answers, if there is one.
    fn node(&self) -> Option<&NodeName> {
        None
    }

    /// The datacentre that names may bear; names that bear another do not exist.
    fn datacenter(&self) -> &Datacenter;

    /// The trust domain, which decides about virtual IPv6 addresses.
    fn trust_domain(&self) -> &TrustDomain;
}

impl<R: CatalogReader + ?Sized> CatalogReader for Arc<R> {
    fn snapshot(&self) -> Arc<Snapshot> {
        R::snapshot(self)
    }

    fn sight(&self, snapshot: &Snapshot) -> Sight {
        R::sight(self, snapshot)
    }

    fn sight_version(&self) -> u64 {
        R::sight_version(self)
    }

    fn node(&self) -> Option<&NodeName> {
        R::node(self)
    }

    fn datacenter(&self) -> &Datacenter {
        R::datacenter(self)
    }

    fn trust_domain(&self) -> &TrustDomain {
        R::trust_domain(self)
    }
}
