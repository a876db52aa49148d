//! Servers, agents and the network between them, all in one hand: the production code, run from one seed without a clock,
//! a socket or a thread.
//!
//! | Module | Owns |
//! |---|---|
//! | [`step`] | what may happen, and what does by a seed |
//! | [`world`] | all of it together; takes one step after the other, and lets everything heal at the end |
//! | `store` | what was committed, and what each revision looked like |
//! | `server` | a server: the real `Fleet` and `Receipts`, joined as in `programs/server/src/agents.rs` |
//! | `connection` | one connection, at some stage of its life; an agent has several that are not quite dead |
//! | `agent` | an agent: the real `Mirror`, which holds the real `Replica`, driven as in `programs/agent/src/remote/uplink.rs` |
//! | `proxy` | a proxy: plans from the mirror, applies or refuses, as in `programs/agent/src/proxies.rs` |
//! | `seen` | what of a subject shows, to be compared |
//! | [`mod@run`] | a run from a seed, and the shortest run that fails alike |
//!
//! What is checked at every step: an agent that heard a `Through` has of every subject what the catalog had then; within
//! one life of a replica its revision never goes back; what is reported as applied is in force; the same frame is the same
//! bytes for everyone. At the end, once everything is healed: everyone has everything, and no receipt is outstanding.

mod agent;
mod changes;
mod connection;
mod proxy;
pub mod run;
mod seen;
mod server;
pub mod step;
mod store;
pub mod world;

pub use run::{Failure, run};
