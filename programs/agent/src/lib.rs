//! The node agent: what runs on this machine, how it fares, and the keys of its workloads.
//!
//! It owns three things. *Registrations*: which services, sidecars and checks this node has; the agent is their
//! authority, the catalog follows it. *Health*: it runs the checks and reports what they say. *Leaves*: the private key of
//! every workload is born here and never leaves; only the signing request does. It knows the server through
//! [`ServerLink`] alone, so the same code runs inside the server's process and apart from it.

pub mod agent;
pub mod data_plane;
pub mod leaves;
pub mod link;
pub mod native;
pub mod proxies;
pub mod remote;

mod anti_entropy;
mod checks;
mod committer;
mod journal;
mod registrations;
mod roots;
mod sidecar;

pub use agent::{
    Agent, AgentConfig, CheckRegistration, DeregisterError, LocalCheck, LocalService, RegisterError, Registered,
    Rehearsal, StartError, UpdateCheckError, WallClock, WriteError, has_journal, system_clock,
};
pub use checks::permission::ScriptChecks;
pub use journal::{JournalError, LostState};
pub use leaves::{Leaf, LeafError, Leaves};
pub use link::{AliasView, IssuedLeaf, LinkError, OwnRecords, ServerLink};
pub use proxies::{MeshView, Proxies, ProxyNext, ProxyWatch};
pub use registrations::ExistingChecks;
pub use roots::follow_roots;
pub use sidecar::{DEFAULT_SIDECAR_PORTS, FieldError};
