//! Which of several a host belongs to.
//!
//! An exact host comes before every wildcard, a longer wildcard before a shorter one, and one that leaves the beginning open
//! before one that leaves the end open, as in Envoy. Letters of either case are equal; port and trailing dot count for
//! nothing.
//!
//! Cost model: a look-up among exact hosts, then one for each dot of the host where there are wildcards; nothing is
//! allocated.

use std::cmp::Ordering;

use starling_model::HostPattern;

/// Bytes of a host beyond which it is no name (RFC 1035 section 3.1), and no wildcard is looked for.
const HOST_BYTES_MAX: usize = 253;

/// Hosts, each with a number.
#[derive(Debug, Clone, Default)]
pub struct HostTable {
    exact: Names,
    /// By what a host ends with, the dot before it included.
    under: Names,
    /// By what a host begins with, the dot behind it included.
    begins: Names,
    any: Option<usize>,
}

/// Sorted without regard to case.
type Names = Vec<(Box<str>, usize)>;

impl HostTable {
    /// A table; where a pattern is given twice the first counts.
    #[must_use]
    pub fn new<'a>(hosts: impl IntoIterator<Item = (&'a HostPattern, usize)>) -> Self {
        let mut table = Self::default();
        for (pattern, number) in hosts {
            match pattern {
                HostPattern::Exact(host) => table.exact.push((host.as_str().into(), number)),
                HostPattern::Under(suffix) => table.under.push((suffix.as_str().into(), number)),
                HostPattern::Begins(prefix) => table.begins.push((prefix.as_str().into(), number)),
                HostPattern::Any => table.any = table.any.or(Some(number)),
            }
        }
        for names in [&mut table.exact, &mut table.under, &mut table.begins] {
            names.sort_by(|(a, _), (b, _)| compare(a, b));
            names.dedup_by(|(a, _), (b, _)| compare(a, b) == Ordering::Equal);
        }
        table
    }

    /// The number of the host in `authority`, which may have a port.
    #[must_use]
    pub fn find(&self, authority: &str) -> Option<usize> {
        let host = host_of(authority);
        if host.len() > HOST_BYTES_MAX {
            return self.any;
        }
        look_up(&self.exact, host).or_else(|| self.wildcard(host)).or(self.any)
    }

    fn wildcard(&self, host: &str) -> Option<usize> {
        let dots = || host.bytes().enumerate().filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
        let under = || dots().filter(|at| *at > 0).find_map(|at| look_up(&self.under, &host[at..]));
        let begins =
            || dots().rev().filter(|at| at + 1 < host.len()).find_map(|at| look_up(&self.begins, &host[..=at]));
        let under = if self.under.is_empty() { None } else { under() };
        under.or_else(|| if self.begins.is_empty() { None } else { begins() })
    }
}

/// The host in an authority: without port and trailing dot.
#[must_use]
pub fn host_of(authority: &str) -> &str {
    let (host, _) = split_port(authority);
    host.strip_suffix('.').unwrap_or(host)
}

/// Host and `:PORT`; the port is empty where there is none.
pub(crate) fn split_port(authority: &str) -> (&str, &str) {
    let after_ip6 = authority.rfind(']').map_or(0, |at| at + 1);
    let colon = authority[after_ip6..].rfind(':').map_or(authority.len(), |at| after_ip6 + at);
    authority.split_at(colon)
}

fn look_up(names: &Names, name: &str) -> Option<usize> {
    names.binary_search_by(|(other, _)| compare(other, name)).ok().map(|place| names[place].1)
}

fn compare(a: &str, b: &str) -> Ordering {
    a.bytes().map(|byte| byte.to_ascii_lowercase()).cmp(b.bytes().map(|byte| byte.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(hosts: &[&str]) -> HostTable {
        let patterns: Vec<_> =
            hosts.iter().map(|host| HostPattern::try_from((*host).to_owned()).expect("a host")).collect();
        HostTable::new(patterns.iter().enumerate().map(|(number, pattern)| (pattern, number)))
    }

    #[test]
    fn the_most_exact_pattern_counts() {
        let hosts = ["*", "*.example.com", "a.example.com", "*.b.example.com", "api.ingress.*", "api.*"];
        let table = table(&hosts);
        let found = |authority: &str| hosts[table.find(authority).expect("there is *")];
        for (authority, expected) in [
            ("a.example.com", "a.example.com"),
            ("b.example.com", "*.example.com"),
            ("x.b.example.com", "*.b.example.com"),
            ("x.y.example.com", "*.example.com"),
            ("example.com", "*"),
            (".example.com", "*"),
            ("api.ingress.dc1.consul", "api.ingress.*"),
            ("api.ingress.x.example.com", "*.example.com"),
            ("api.other", "api.*"),
            ("api.", "*"),
            ("[::1]:80", "*"),
            ("", "*"),
        ] {
            assert_eq!(found(authority), expected, "{authority}");
        }
    }

    #[test]
    fn case_port_and_trailing_dot_count_for_nothing() {
        let table = table(&["a.example.com", "*.wild.example", "api.ingress.*"]);
        for authority in ["A.Example.COM", "a.example.com:8080", "a.example.com.", "a.EXAMPLE.com.:443"] {
            assert_eq!(table.find(authority), Some(0), "{authority}");
        }
        for authority in ["x.WILD.example:1", "X.Y.wild.example."] {
            assert_eq!(table.find(authority), Some(1), "{authority}");
        }
        assert_eq!(table.find("API.Ingress.local:80"), Some(2));
        let long = format!("{}.wild.example", "a.".repeat(200));
        for authority in ["example.com", "a.example.com.evil", "xa.example.com", "wild.example", "api.ingress.", &long]
        {
            assert_eq!(table.find(authority), None, "{authority}");
        }
    }
}
