//! The agent apart from its server: what it hears over the attach stream, and what it asks by calls.
//!
//! | Module | Owns |
//! |---|---|
//! | [`node`] | one node, put together |
//! | [`uplink`] | the connections, and the calls over them |
//! | [`servers`] | which servers there are, and which is next |
//! | [`mirror`] | the replica, and who reads it |
//! | [`Passage`] | the servers' HTTP API, for whoever asks this node |

mod cache;
pub mod join;
pub mod mirror;
pub mod node;
mod passage;
mod renewal;
pub mod servers;
pub mod uplink;

pub use node::{InForce, NodeConfig, RemoteNode};
pub use passage::Passage;
