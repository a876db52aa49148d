//! Decisions taken while traffic flows: who may call whom, with which request, in which normalised form, and where it goes.
//!
//! The same code answers `starling can`, the API's intention check and, compiled, Envoy's filters, so that a verdict
//! shown is the verdict enforced.
//!
//! Cost model: [`Policy::build`] is linear in the intentions written for the destination. [`CompiledPolicy::new`] compiles
//! each expression once. After that a verdict costs one map lookup by source and, for a rule by request, one pass over
//! that rule's permissions; a path already in normal form is recognised in one pass without allocation.

pub mod authorise;
pub mod balance;
pub mod eject;
pub mod forwarded;
pub mod host;
pub mod limit;
pub mod path;
pub mod pattern;
pub mod policy;
pub mod proxy_protocol;
pub mod retry;
pub mod route;
mod route_index;
mod table;
pub mod trace;

pub use authorise::{CompiledPolicy, CompiledRules, Decider, HeaderFields, Request, Verdict, authorise};
pub use host::HostTable;
pub use path::{PathError, http2_form, normalise};
pub use pattern::{PatternError, check_regex};
pub use policy::{Policy, PolicyRule};
pub use route::{Forward, MirrorTo, RouteRule, RouteTable, RuleAction, WEIGHT_TOTAL, WeightedTarget, hits, scheme};
pub use table::PolicyTable;
