//! What an agent is asked to run with: a service, its checks, and perhaps its sidecar.

use serde::{Deserialize, Serialize};

use crate::check::{CheckDefinition, CheckStatus};
use crate::name::CheckId;
use crate::service::ServiceInstance;

/// A service as given to an agent: valid, but not yet expanded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRegistration {
    /// The instance.
    pub instance: ServiceInstance,
    /// Its checks.
    pub checks: Vec<CheckSpec>,
    /// The nested sidecar (`Connect.SidecarService`), its port and checks already filled in where they were given.
    pub sidecar: Option<Box<ServiceRegistration>>,
}

/// A check as given to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckSpec {
    /// Its identifier; `None` where the agent is to make one (`service:ID`, `service:ID:2`, …).
    pub id: Option<CheckId>,
    /// Its name; empty where the agent is to make one.
    pub name: String,
    /// Notes for people.
    pub notes: String,
    /// Status until the first result; Consul begins at critical.
    pub initial_status: CheckStatus,
    /// How it runs.
    pub definition: CheckDefinition,
    /// The interval as given, for display.
    pub interval_text: String,
    /// The timeout as given, for display.
    pub timeout_text: String,
}
