//! A simulated fleet: thousands of nodes in a few processes, and servers of their own that they are attached to.
//!
//! A simulated node is the real agent: it joins by a token, keeps a connection with mutual TLS, subscribes to what its
//! workloads need, plans, and swaps the snapshot that its native data plane would serve from. Only the sockets of its
//! workloads are missing. A process holds so many nodes as its file descriptors allow, and is told over its standard input
//! what to do; times are of the one monotonic clock that all processes of a machine have in common.
//!
//! | Module | Owns |
//! |---|---|
//! | [`orders`] | what the coordinator and a process of the fleet say to each other |
//! | [`process`], [`node`], [`ledger`] | a process of the fleet: its nodes, and what came in force at them when |
//! | [`slow`], [`faults`] | nodes that read slowly; connections that are reset |
//! | [`crew`] | the processes, as the coordinator sees them |
//! | [`servers`], [`server`] | the servers, with the etcd that they share |
//! | [`clock`], [`usage`] | time, and what was used meanwhile |

mod clock;
pub(crate) mod crew;
mod faults;
mod ledger;
mod node;
mod orders;
pub(crate) mod process;
pub(crate) mod server;
pub(crate) mod servers;
mod slow;
pub(crate) mod usage;

pub(crate) use clock::Moment;
pub(crate) use crew::Crew;
pub(crate) use orders::{Among, Expected};
pub(crate) use server::Server;
pub(crate) use servers::Servers;
