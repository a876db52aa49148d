//! The HTTP API in the shape of Consul 1.22, and the parsers of Consul's JSON and HCL forms.
//!
//! Requests become valid values here and answers take Consul's form here; what happens in between is behind two traits,
//! [`CatalogPort`] and [`AgentPort`]; what an agent apart from its servers cannot answer goes to them by [`ServersPort`]. Every route stands in one table with the permission it needs and the body it may
//! have. The crate owns no state beyond the connections it serves.

pub mod acl;
mod answer;
mod audit;
mod barrier;
mod blocking;
mod call;
mod error;
mod filter;
pub mod limits;
mod login;
pub mod parse;
pub mod ports;
mod relay;
pub mod router;
pub mod routes;
mod serve;
mod site;
mod volatile;

pub use acl::{Bearer, BearerFailure, Denied};
pub use audit::audited;
pub use axum::Router;
pub use axum::body::Body;
pub use ports::{
    AgentFailure, AgentPort, AuthorityChange, AuthorityChanged, CatalogPort, CommitFailure, Committed, Currency,
    DiagnosticRow, IncomingSnapshot, Leaf, Leaving, LostServer, MeshFacts, OthersSay, OutgoingSnapshot, PrivateKeyText,
    RestoreReport, SnapshotFailure, StoreMember,
};
pub use relay::{Answerer, INSIDE, ServersPort, Unreached};
pub use router::{EntryPoint, Permission, Ports, Route, router};
pub use routes::CONSUL_VERSION;
pub use serve::{Door, Guards, Places, guarded, serve, stopped_by};
