//! Untrusted bytes into valid values: one parser for API bodies and for definition files.

mod access_log;
pub mod acl;
pub mod catalog;
pub mod check;
mod check_definition;
pub mod config_entry;
pub mod duration;
pub mod field;
pub mod file;
pub mod hcl;
mod ingress;
pub mod intention;
mod kept;
mod nearest;
pub mod opaque;
mod resolver;
mod router;
pub mod service;
mod terminating;
mod tracing;
mod upstream_config;

pub use catalog::parse_operation;
pub use check::{CheckRegistration, parse_check};
pub use config_entry::parse_config_entry;
pub use duration::{duration_text, parse_duration};
pub use field::{Context, Dialect, FieldError, Fields, parse_json};
pub use file::{Definitions, FileError, FileFormat, parse_config_entry_file, parse_definitions};
pub use service::parse_service;
