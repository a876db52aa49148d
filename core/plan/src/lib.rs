//! Turns a snapshot of the catalog into what each proxy must do, and says what is wrong with it.
//!
//! `plan(snapshot, proxy) -> Plan + diagnostics`. A plan is immutable, numbered by revision and made of parts that all
//! proxies share: a change rebuilds the one part it touches, not a plan per proxy. Envoy and the native proxy are two
//! renderings of the same plan. User mistakes become diagnostics beside a partial plan; they never block the mesh.

pub mod plan;

pub use plan::{Cluster, Endpoint, Endpoints, Inbound, Limits, LocalApp, Outbound, Plan, Trust};
