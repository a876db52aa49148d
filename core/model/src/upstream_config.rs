//! How the sidecars of a service call others (`UpstreamConfig` of its `service-defaults`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::name::ServiceName;
use crate::percent::Percent;

/// How the sidecars of a service call others. What a registration says of an upstream comes before it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UpstreamConfig {
    /// Of one service called; what it leaves open falls to `defaults`.
    #[serde(default)]
    pub overrides: BTreeMap<ServiceName, UpstreamSettings>,
    /// Of every service called.
    #[serde(default)]
    pub defaults: UpstreamSettings,
}

impl UpstreamConfig {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What holds for calls of `service`.
    #[must_use]
    pub fn of(&self, service: &ServiceName) -> UpstreamSettings {
        let own = self.overrides.get(service).copied().unwrap_or_default();
        own.or(self.defaults)
    }
}

/// How one service is called; `None` says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct UpstreamSettings {
    /// Time to connect.
    #[serde(default)]
    pub connect_timeout: Option<Duration>,
    /// Connections at once.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// Requests waiting for a connection.
    #[serde(default)]
    pub max_pending_requests: Option<u32>,
    /// Requests under way.
    #[serde(default)]
    pub max_concurrent_requests: Option<u32>,
    /// When an instance that fails is left out for a while.
    #[serde(default)]
    pub passive_health_check: Option<PassiveHealthCheck>,
}

impl UpstreamSettings {
    /// These, and where they say nothing, `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            max_connections: self.max_connections.or(other.max_connections),
            max_pending_requests: self.max_pending_requests.or(other.max_pending_requests),
            max_concurrent_requests: self.max_concurrent_requests.or(other.max_concurrent_requests),
            passive_health_check: self.passive_health_check.or(other.passive_health_check),
        }
    }
}

/// When an instance that fails is left out for a while; what is `None` is Envoy's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct PassiveHealthCheck {
    /// How often it is looked who fails; 10 s.
    #[serde(default)]
    pub interval: Option<Duration>,
    /// Failures in a row after which one is left out; 5.
    #[serde(default)]
    pub max_failures: Option<u32>,
    /// How many of those that have failed so are left out; all.
    #[serde(default)]
    pub enforcing: Option<Percent>,
    /// How many of all may be left out at once; 10 %, and one always.
    #[serde(default)]
    pub max_ejected: Option<Percent>,
    /// For how long, times the number of times in a row; 30 s.
    #[serde(default)]
    pub base_ejection_time: Option<Duration>,
}

/// Requests that one instance takes (`RateLimits.InstanceLevel`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Requests per second, at least 1.
    pub per_second: u32,
    /// Requests at once after a quiet time, at least `per_second`.
    pub burst: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_comes_before_the_defaults_field_by_field() {
        let api = ServiceName::new("api").expect("a name");
        let own = UpstreamSettings { max_connections: Some(1), ..UpstreamSettings::default() };
        let all =
            UpstreamSettings { max_connections: Some(2), max_pending_requests: Some(3), ..UpstreamSettings::default() };
        let config = UpstreamConfig { overrides: BTreeMap::from([(api.clone(), own)]), defaults: all };
        assert_eq!(config.of(&api), UpstreamSettings { max_connections: Some(1), ..all });
        assert_eq!(config.of(&ServiceName::new("db").expect("a name")), all);
    }
}
