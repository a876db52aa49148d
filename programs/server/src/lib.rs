//! The server: commits commands to the store, follows it, and tells everyone concerned.
//!
//! One task follows the store's watch and is the only one that advances the catalog (see `turn.rs`); doors and agents
//! read snapshots, commit commands and subscribe to subjects. A write is answered after its own snapshot is published,
//! so that whoever wrote can read it.

mod commit;
mod convergence;
mod hub;
mod server;
mod turn;

pub use commit::CommitFailure;
pub use hub::{AttachedNode, Next, ProxySubscription, Subscription};
pub use server::{NodeStanding, Server, ServerConfig, default_namespace};
