//! The server: commits commands to the store, follows it, and tells everyone concerned.
//!
//! One task follows the store's watch and is the only one that advances the catalog (see `turn.rs`); doors and agents
//! read snapshots, commit commands and subscribe to subjects. A write is answered after its own snapshot is published,
//! so that whoever wrote can read it.

mod admission;
mod agents;
mod backup;
mod commit;
mod connections;
mod contact;
mod convergence;
mod departed;
mod door;
mod enrolments;
mod garbage;
mod hub;
mod liveness;
mod membership;
mod moves;
mod opening;
mod rotation;
mod server;
mod signer;
mod turn;

pub use admission::CsrLimits;
pub use agents::{AgentStream, IsLeaving, Superseded};
pub use backup::{Incoming, IncomingError, RestoreFailure, Restored, Saved, Unreadable};
pub use commit::{CommitFailure, Unmade};
pub use contact::Currency;
pub use door::Door;
pub use hub::{AttachedNode, Next, ProxySubscription, Subscription};
pub use liveness::GRACE_DEFAULT;
pub use membership::{Advertised, LEASE_TTL, LostServer};
pub use moves::{LEAVE_WITHIN, LEAVING_PAUSE, LEAVING_STEP, Leaving};
pub use opening::{Inconsistent, Opening};
pub use rotation::NotSealed;
pub use server::{Server, ServerConfig, StoreKind, default_namespace};
pub use signer::{AuthorityConfig, SignFailure, Signs};
pub use starling_store::StoreMember;
