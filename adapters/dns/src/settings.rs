//! What an operator chooses of answers: how long they may be cached, how many records they have, whether a warning counts.
//!
//! Source: `dns_config` of Consul's agent configuration
//! (<https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file/dns>).

use std::collections::BTreeMap;

/// Seconds between a secondary's visits (SOA); Consul's default, and without effect as zones are not transferred.
const REFRESH_S: i32 = 3600;

/// Seconds before a secondary tries again (SOA).
const RETRY_S: i32 = 600;

/// Seconds before a secondary gives up (SOA).
const EXPIRE_S: i32 = 86_400;

/// The longest time for which a record may be cached (RFC 2181 section 8), in seconds.
pub const TTL_S_MAX: u32 = i32::MAX.unsigned_abs();

/// What answers are like. The default lets nothing be cached, so that a change is seen at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether instances that warn are left out, as those that are critical are.
    pub only_passing: bool,
    /// Seconds that the addresses of nodes may be cached.
    pub node_ttl_s: u32,
    /// Seconds that the instances of services may be cached.
    pub service_ttl: ServiceTtls,
    /// What the zone says of itself.
    pub soa: Soa,
    /// Whether an answer over UDP that is cut says so; `None`: one that is cut for its size does, one that is cut by
    /// `udp_answers_max` does not. Over TCP it always does.
    pub says_truncated: Option<bool>,
    /// Records of an answer over UDP to a client that takes 512 bytes.
    pub udp_answers_max: Option<usize>,
    /// Addresses of an answer.
    pub addresses_max: Option<usize>,
    /// Whether a name that comes again is written as a pointer to where it stands (RFC 1035 section 4.1.4).
    pub compressed: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            only_passing: false,
            node_ttl_s: 0,
            service_ttl: ServiceTtls::default(),
            soa: Soa::default(),
            says_truncated: None,
            udp_answers_max: None,
            addresses_max: None,
            compressed: true,
        }
    }
}

/// The numbers of the SOA record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soa {
    /// Seconds between a secondary's visits.
    pub refresh_s: i32,
    /// Seconds before it tries again.
    pub retry_s: i32,
    /// Seconds before it gives up.
    pub expire_s: i32,
    /// Seconds that the absence of a name may be cached (RFC 2308).
    pub negative_ttl_s: u32,
}

impl Default for Soa {
    fn default() -> Self {
        Self { refresh_s: REFRESH_S, retry_s: RETRY_S, expire_s: EXPIRE_S, negative_ttl_s: 0 }
    }
}

/// For how long the instances of which services may be cached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceTtls {
    /// By the whole name, in lower case.
    exact: BTreeMap<String, u32>,
    /// By what names begin with, in lower case; the longest first.
    prefixes: Vec<(String, u32)>,
}

impl ServiceTtls {
    /// From names, and beginnings of names with a `*` behind them; `*` alone is for all that are not named.
    pub fn new(named: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut ttls = Self::default();
        for (name, ttl_s) in named {
            let name = name.to_ascii_lowercase();
            match name.strip_suffix('*') {
                Some(prefix) => ttls.prefixes.push((prefix.to_owned(), ttl_s)),
                None => drop(ttls.exact.insert(name, ttl_s)),
            }
        }
        ttls.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        ttls
    }

    /// Seconds for a service, whose name is in lower case.
    #[must_use]
    pub fn of(&self, service: &str) -> u32 {
        let prefixed = || self.prefixes.iter().find(|(prefix, _)| service.starts_with(prefix.as_str()));
        self.exact.get(service).copied().or_else(|| prefixed().map(|(_, ttl_s)| *ttl_s)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_counts_before_the_longest_beginning_and_that_before_all() {
        let named = [("*", 1), ("db*", 2), ("DB-Main*", 3), ("db", 4), ("web", 0)];
        let ttls = ServiceTtls::new(named.map(|(name, ttl_s)| (name.to_owned(), ttl_s)));
        for (service, ttl_s) in [("api", 1), ("dbx", 2), ("db-main-2", 3), ("db", 4), ("web", 0)] {
            assert_eq!(ttls.of(service), ttl_s, "{service}");
        }
        assert_eq!(ServiceTtls::default().of("web"), 0);
    }
}
