//! Which instances a call of a service may reach, and how one is chosen (Consul's `service-resolver`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::filter::Filter;
use crate::locality::LocalityMode;
use crate::name::{ServiceName, SubsetName};

/// How the instances of one service are told apart, replaced and chosen from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceResolver {
    /// The service.
    pub service: ServiceName,
    /// The subset called where none is named; `None` is every instance. One of `subsets`.
    #[serde(default)]
    pub default_subset: Option<SubsetName>,
    /// Its subsets.
    #[serde(default)]
    pub subsets: BTreeMap<SubsetName, Subset>,
    /// Another service, called instead of this one; beside it nothing else is said.
    #[serde(default)]
    pub redirect: Option<ServiceTarget>,
    /// Who is called, in this order, where nobody is in health: for a subset of `subsets`, or under [`Failovers::any`] for
    /// all of them that have none of their own.
    #[serde(default)]
    pub failover: Failovers,
    /// Time to connect.
    #[serde(default)]
    pub connect_timeout: Option<Duration>,
    /// Time for a request that no route gives another.
    #[serde(default)]
    pub request_timeout: Option<Duration>,
    /// How an instance is chosen.
    #[serde(default)]
    pub load_balancer: Option<LoadBalancer>,
    /// Whether those near the caller come first; `None` is as proxy-defaults say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prioritize_by_locality: Option<LocalityMode>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

impl ServiceResolver {
    /// A resolver that says nothing.
    #[must_use]
    pub fn bare(service: ServiceName) -> Self {
        Self {
            service,
            default_subset: None,
            subsets: BTreeMap::new(),
            redirect: None,
            failover: Failovers::default(),
            connect_timeout: None,
            request_timeout: None,
            load_balancer: None,
            prioritize_by_locality: None,
            meta: BTreeMap::new(),
        }
    }

    /// Whether what was registered with an instance decides which subsets it belongs to.
    #[must_use]
    pub fn has_filters(&self) -> bool {
        self.subsets.values().any(|subset| subset.filter.is_some())
    }
}

/// Some of the instances of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subset {
    /// Which; `None` is all of them.
    #[serde(default)]
    pub filter: Option<Filter>,
    /// Whether those with a warning are left out, too.
    #[serde(default)]
    pub only_passing: bool,
}

/// A service or one of its subsets, as written: what is `None` is the one in whose entry it stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServiceTarget {
    /// The service.
    #[serde(default)]
    pub service: Option<ServiceName>,
    /// The subset; `None` is the service's default.
    #[serde(default)]
    pub subset: Option<SubsetName>,
}

/// Who is called where nobody is in health.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Failovers {
    /// Instead of one subset.
    #[serde(default)]
    pub by_subset: BTreeMap<SubsetName, Vec<ServiceTarget>>,
    /// Instead of every other (`*`).
    #[serde(default)]
    pub any: Vec<ServiceTarget>,
}

impl Failovers {
    /// Whether there is nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_subset.is_empty() && self.any.is_empty()
    }

    /// Who is called instead of `subset`; `None` is the service as a whole.
    #[must_use]
    pub fn of(&self, subset: Option<&SubsetName>) -> &[ServiceTarget] {
        subset.and_then(|subset| self.by_subset.get(subset)).unwrap_or(&self.any)
    }
}

/// How an instance is chosen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct LoadBalancer {
    /// The rule.
    #[serde(default)]
    pub policy: BalancePolicy,
    /// What a request's hash is taken of, for ring hash and maglev.
    #[serde(default)]
    pub hash_policies: Vec<HashPolicy>,
}

/// The rules by which an instance is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancePolicy {
    /// The one with the fewest requests under way, of some taken at random.
    LeastRequest {
        /// How many are taken; 2 unless said otherwise.
        choice_count: Option<u32>,
    },
    /// Of two taken at random the one that answers faster, by a moving average that heeds peaks. Starling's own; Envoy, which
    /// has no such rule, takes the one with the fewest requests.
    PeakEwma,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The next one on a ring.
    RingHash {
        /// Entries of the ring at least.
        minimum_size: Option<u64>,
        /// Entries of the ring at most.
        maximum_size: Option<u64>,
    },
    /// By Maglev's table.
    Maglev,
}

impl Default for BalancePolicy {
    fn default() -> Self {
        Self::LeastRequest { choice_count: None }
    }
}

impl BalancePolicy {
    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeastRequest { .. } => "least_request",
            Self::PeakEwma => "peak_ewma",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::RingHash { .. } => "ring_hash",
            Self::Maglev => "maglev",
        }
    }

    /// Whether equal hashes get the same instance.
    #[must_use]
    pub fn is_hashing(self) -> bool {
        match self {
            Self::RingHash { .. } | Self::Maglev => true,
            Self::LeastRequest { .. } | Self::PeakEwma | Self::RoundRobin | Self::Random => false,
        }
    }
}

/// What a request's hash is taken of; all of them together, in order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HashPolicy {
    /// Of what.
    pub on: HashOn,
    /// Whether those after it are left out where this one gave a hash.
    #[serde(default)]
    pub terminal: bool,
}

/// Parts of a request that a hash is taken of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashOn {
    /// A header field, by name in lower case.
    Header(String),
    /// A cookie.
    Cookie {
        /// Its name.
        name: String,
        /// How long one lives that is made for a caller without; `None` makes none, unless `session`.
        ttl: Option<Duration>,
        /// Its path, if it is made.
        path: Option<String>,
        /// Whether one is made that lives as long as the caller's session.
        session: bool,
    },
    /// A parameter of the query.
    QueryParameter(String),
    /// The address of the caller.
    SourceAddress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_has_its_own_failover_or_that_of_all() {
        let target = |name: &str| ServiceTarget { service: Some(name.parse().expect("a name")), subset: None };
        let (v1, v2) = (SubsetName::new("v1").expect("a name"), SubsetName::new("v2").expect("a name"));
        let failovers =
            Failovers { by_subset: BTreeMap::from([(v1.clone(), vec![target("one")])]), any: vec![target("all")] };
        assert_eq!(failovers.of(Some(&v1)), [target("one")]);
        assert_eq!(failovers.of(Some(&v2)), [target("all")]);
        assert_eq!(failovers.of(None), [target("all")]);
    }
}
