//! The native data plane: serves workloads as their plans say.
//!
//! | Module | Owns |
//! |---|---|
//! | [`engine`] | workers and what they serve |
//! | [`workload`] | a workload's snapshot, and the slots in which it changes |
//! | [`serving`] | a workload on its way into the engine |
//! | [`keys`] | its certificate and whom it trusts |
//! | `worker` | one thread: listeners and what they mean |
//! | `listener` | connections accepted, known and told apart by what they speak |
//! | [`door`] | an address that is listened at, and sockets that another process hands over |
//! | `served` | what is decided about a call |
//! | `edge` | callers from outside the mesh: hosts, certificates, who is believed |
//! | `upstream`, `host`, `quota` | where calls go, connections kept, and how many there may be |
//! | `http1`, `exchange` | HTTP/1.1: requests, and one request with its response |
//! | `http2` | HTTP/2 and gRPC |
//! | `tcp` | bytes |
//! | `failure` | why a request is answered here |
//! | [`timeouts`] | how long is waited, and for what |
//! | [`metrics`] | what is counted |
//! | `access_log` | lines about requests |
//! | `spans` | parts of traces |
//! | `connections` | who is connected |
//! | `rights` | what ends when a right does |
//! | `room` | how many may be connected, and whose idle connection makes room |
//! | `capture` | connections that the kernel leads here |
//! | `exits` | services outside the mesh, for which a gateway stands |
//! | [`snapshot`] | what a worker is doing |
//! | [`admin`] | the door for whoever operates it |
//!
//! A worker is one thread with one single-threaded runtime: nothing on the way of a request is shared, locked or atomic but
//! the slots. It is given plans and never sees where they come from.

mod access_log;
pub mod admin;
mod affinity;
mod bucket;
mod capture;
mod connections;
mod contain;
pub mod door;
mod edge;
mod edits;
pub mod engine;
mod exchange;
mod exits;
mod failure;
mod host;
mod http1;
mod http2;
mod inbound;
pub mod keys;
mod listener;
pub mod metrics;
mod mirror;
mod quota;
mod rights;
mod room;
mod served;
pub mod serving;
pub mod snapshot;
mod spans;
mod stream;
mod tcp;
pub mod timeouts;
mod tries;
mod upstream;
mod worker;
pub mod workload;

pub use door::Inherited;
pub use engine::Engine;
pub use keys::Keys;
pub use serving::{LeafPem, Serving};
pub use timeouts::Timeouts;
pub use worker::ListenError;
pub use workload::{Slot, Workload};

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    fn of_four<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    fn of_two<A, B, F>(_: fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Every connection holds one of these for as long as it stands, idle ones included.
    #[test]
    fn connections_that_rest_hold_little() {
        let sizes = [of_two(crate::listener::serve), of_four(crate::http1::serve), of_four(crate::http2::serve)];
        for (size, most) in sizes.into_iter().zip([1_024, 1_280, 4_096]) {
            assert!(size <= most, "{sizes:?}");
        }
    }
}
