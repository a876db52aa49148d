//! Hosts that requests are for, as whoever lets them in writes them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a host at most (RFC 1035 section 3.1).
const HOST_BYTES_MAX: usize = 253;

/// Bytes of one label at most (RFC 1035 section 2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// The hosts that are meant. Letters are kept in lower case; a port is never part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPattern {
    /// This one.
    Exact(String),
    /// Every host that ends so, with at least one label before it; `.example.com` for `*.example.com`.
    Under(String),
    /// Every host that begins so; `api.ingress.` for `api.ingress.*`. Nobody writes it: it is what a service has that is
    /// given no hosts.
    Begins(String),
    /// Every host.
    Any,
}

/// Why a text is no host pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host: write a name, *.NAME or *, without scheme, port or path")]
pub struct HostPatternError(pub String);

impl HostPattern {
    /// The hosts of a service that is given none, as in Consul: `SERVICE.ingress.*`.
    #[must_use]
    pub fn of_service(service: &str) -> Self {
        Self::Begins(format!("{}.ingress.", service.to_ascii_lowercase()))
    }

    /// Whether it can stand in a certificate.
    #[must_use]
    pub fn is_name(&self) -> bool {
        match self {
            Self::Exact(host) => host.parse::<std::net::IpAddr>().is_err(),
            Self::Under(_) => true,
            Self::Begins(_) | Self::Any => false,
        }
    }

    /// Reads what a user writes: a host, `*.HOST` or `*`.
    ///
    /// # Errors
    /// [`HostPatternError`] if it is none of them.
    pub fn parse(text: &str) -> Result<Self, HostPatternError> {
        let wrong = || HostPatternError(text.to_owned());
        let lower = text.to_ascii_lowercase();
        match lower.strip_prefix('*') {
            Some("") => Ok(Self::Any),
            Some(suffix) => {
                let host = suffix.strip_prefix('.').filter(|host| is_host(host)).ok_or_else(wrong)?;
                Ok(Self::Under(format!(".{host}")))
            }
            None if is_host(&lower) => Ok(Self::Exact(lower)),
            None => Err(wrong()),
        }
    }
}

/// A name of labels, or an IPv4 address, which has the same form.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let outer = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
        let bytes = label.as_bytes();
        bytes.len() <= LABEL_BYTES_MAX
            && outer(bytes.first())
            && outer(bytes.last())
            && bytes.iter().copied().all(inner)
    };
    text.len() <= HOST_BYTES_MAX && text.split('.').all(is_label)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Under(suffix) => write!(f, "*{suffix}"),
            Self::Begins(prefix) => write!(f, "{prefix}*"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl TryFrom<String> for HostPattern {
    type Error = HostPatternError;
    fn try_from(text: String) -> Result<Self, HostPatternError> {
        match text.strip_suffix(".*") {
            Some(prefix) if is_host(prefix) => Ok(Self::Begins(format!("{}.", prefix.to_ascii_lowercase()))),
            Some(_) => Err(HostPatternError(text)),
            None => Self::parse(&text),
        }
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_with_at_most_a_leading_wildcard() {
        let long = format!("{}.example.com", "a".repeat(64));
        for good in ["example.com", "a.b-c.d", "localhost", "*.example.com", "*", "10.0.0.1", "a_b.example"] {
            assert_eq!(HostPattern::parse(good).map(|host| host.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "example.com:80",
            "http://a",
            "a/b",
            "a..b",
            ".a",
            "a.",
            "*a.com",
            "a.*",
            "*.",
            "a.*.b",
            "-a",
            "a-",
            "a b",
            &long,
            "ü.de",
        ] {
            assert!(HostPattern::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(HostPattern::parse("Example.COM"), Ok(HostPattern::Exact("example.com".to_owned())));
    }

    #[test]
    fn every_form_survives_the_round_trip() {
        let default = HostPattern::of_service("Api.v2");
        assert_eq!(default.to_string(), "api.v2.ingress.*");
        for pattern in [default, HostPattern::Any, HostPattern::Under(".a.b".to_owned())] {
            assert_eq!(HostPattern::try_from(pattern.to_string()), Ok(pattern));
        }
        assert!(HostPattern::try_from("*.*".to_owned()).is_err());
    }
}
