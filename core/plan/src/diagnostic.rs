//! What is wrong with what users wrote: beside the plan, never instead of it.

use std::fmt;

use starling_model::{ConfigEntryKey, InstanceKey, ServiceName};

/// One thing to mend. Ordered by object, then field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic {
    /// Where it was written, or what it is about.
    pub object: Object,
    /// The field there, as a path in Consul's spelling; empty if it is about the object as a whole.
    pub field: String,
    /// What is wrong, and what the plan does about it.
    pub reason: String,
    /// What to do.
    pub fix: String,
    /// How much it matters.
    pub severity: Severity,
}

/// How much a diagnostic matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Traffic flows, but not all of what was written is in force.
    Warning,
    /// Something that was written does not work.
    Error,
}

/// What a diagnostic is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// The mesh as a whole.
    Mesh,
    /// A service, whatever its instances.
    Service(ServiceName),
    /// One instance, mostly a sidecar.
    Instance(InstanceKey),
    /// A config entry.
    Config(ConfigEntryKey),
}

impl Severity {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mesh => f.write_str("mesh"),
            Self::Service(name) => write!(f, "service {name}"),
            Self::Instance(key) => write!(f, "instance {key}"),
            Self::Config(key) => write!(f, "config {key}"),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, reason, fix, severity } = self;
        let field = if field.is_empty() { String::new() } else { format!(" {field}") };
        write!(f, "{} {object}{field}: {reason}; {fix}", severity.as_str())
    }
}
