//! Turns a snapshot of the catalog into what each proxy must do, and says what is wrong with it.
//!
//! `plan(snapshot, proxy) -> Plan + diagnostics`. A plan is immutable, numbered by revision and made of parts that all
//! proxies share: a change rebuilds the one part it touches, not a plan per proxy. Envoy and the native proxy are two
//! renderings of the same plan. User mistakes become diagnostics beside a partial plan; they never block the mesh.
//!
//! Cost model: with U upstreams, planning a proxy costs a memo lookup of O(log parts) per part and, per part, one comparison
//! of revisions for each of the one to four subjects it was read from: O(U log) in all, whatever the size of the fleet. A
//! part whose subject moved is built once, for whichever plan asks first: endpoints cost O(instances of the service and
//! checks on their nodes), a policy O(intentions towards the service), every other part O(1). Only proxies subscribed to a
//! moved subject need planning. Memory is that of the parts held by living plans, plus at most as many labels again.
//!
//! Read [`planner`] first, then `parts` for what each part means; `view` notes what is read, `shelf` keeps what is shared.

pub mod diagnostic;
pub mod diff;
pub mod part;
mod parts;
pub mod plan;
pub mod planner;
mod shelf;
mod view;

pub use diagnostic::{Diagnostic, Object, Severity};
pub use diff::{PartDiff, PartName, PlanDiff, describe, diff, replaced};
pub use part::{Assembly, Part, Whose};
pub use parts::routes::OUTBOUND_TIMEOUT;
pub use plan::{
    Capture, Cluster, Edge, EdgeHost, EdgeRoute, Endpoint, Endpoints, EndpointsKey, Exit, FailoverGroup, Inbound,
    Limits, LocalApp, Origins, Outbound, OutsideEndpoint, Plan, Routes, Target, Trust, Virtual, is_local,
    is_local_name,
};
pub use planner::{MeshSettings, PlanError, Planned, Planner};
pub use shelf::Origin;
