//! End-to-end tests: the real binary, real Envoy, real sockets.
//!
//! Nothing of ours is linked: what is tested is what a user runs. This library is the harness; the tests are in `tests/`.
//! A [`Mesh`] is one `starling dev`, `server` or `agent` with its own ports and data directory, an [`App`] is one `starling fake-service`, a
//! [`Sidecar`] one Envoy started by `starling connect envoy`, and a [`Workload`] all that makes one instance of a
//! service. Whatever a test starts is killed when it is dropped, and what it wrote is printed if the test failed.

pub mod app;
pub mod cable;
pub mod cli;
pub mod etcd;
pub mod http;
pub mod mesh;
pub mod namespace;
pub mod own_proxy;
pub mod ports;
pub mod process;
pub mod sidecar;
pub mod tls;
pub mod tools;
pub mod traffic;
pub mod wait;
pub mod workload;

pub use app::App;
pub use cable::Cable;
pub use cli::{Output, run_within};
pub use http::{Answer, Connection, Method, request};
pub use mesh::{Mesh, MeshOptions, Program, Seal, bare, new_seal_key};
pub use own_proxy::OwnProxy;
pub use ports::free_port;
pub use process::Process;
pub use sidecar::{Sidecar, Xds};
pub use traffic::Traffic;
pub use wait::{DEADLINE, eventually, eventually_within};
pub use workload::{Instance, Plane, Served, Workload};
