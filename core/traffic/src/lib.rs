//! Decisions taken while traffic flows: who may call whom, with which request, in which normalised form.
//!
//! The same code answers `starling can`, the API's intention check and, compiled, Envoy's filters, so that a verdict
//! shown is the verdict enforced.

pub mod policy;

pub use policy::{Policy, PolicyRule};
