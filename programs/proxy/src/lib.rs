//! The native data plane: serves workloads as their plans say.
//!
//! | Module | Owns |
//! |---|---|
//! | [`engine`] | workers and what they serve |
//! | [`workload`] | a workload's snapshot, and the slots in which it changes |
//! | [`keys`] | its certificate and whom it trusts |
//! | `worker` | one thread: listeners and what they mean |
//! | `listener` | connections accepted, known and told apart by what they speak |
//! | `served` | what is decided about a call |
//! | `upstream` | where calls go, and connections kept |
//! | `http1`, `exchange` | HTTP/1.1: requests, and one request with its response |
//! | `http2` | HTTP/2 and gRPC |
//! | `tcp` | bytes |
//! | [`metrics`] | what is counted |
//!
//! A worker is one thread with one single-threaded runtime: nothing on the way of a request is shared, locked or atomic but
//! the slots. It is given plans and never sees where they come from.

pub mod engine;
mod exchange;
mod http1;
mod http2;
pub mod keys;
mod listener;
pub mod metrics;
mod random;
mod served;
mod stream;
mod tcp;
mod upstream;
mod worker;
pub mod workload;

pub use engine::Engine;
pub use keys::Keys;
pub use worker::{ListenError, SideCounts};
pub use workload::{Slot, Workload};
