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
mod sizing;
pub mod view;
pub mod zone;

use std::sync::Arc;

use starling_catalog::Snapshot;
use starling_model::{AclRights, Datacenter, TrustDomain};

pub use relay::{Unreached, Upstream, relay};
pub use responder::{Responder, Transport};
pub use serve::serve;
pub use view::View;
pub use zone::Zone;

/// Where answers come from.
pub trait CatalogReader: Send + Sync + 'static {
    /// The newest catalog.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// What whoever asks may see of a catalog; `None` for all of it. DNS knows no tokens.
    fn rights(&self, snapshot: &Snapshot) -> Option<AclRights> {
        let _ = snapshot;
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

    fn rights(&self, snapshot: &Snapshot) -> Option<AclRights> {
        R::rights(self, snapshot)
    }

    fn datacenter(&self) -> &Datacenter {
        R::datacenter(self)
    }

    fn trust_domain(&self) -> &TrustDomain {
        R::trust_domain(self)
    }
}
