//! Traces of requests: whether proxies record spans, of which requests, and where they send them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::percent::Percent;

/// The port of OTLP over gRPC.
const OTLP_PORT: u16 = 4_317;

/// Bytes of a host name (RFC 1035 section 2.3.4).
const HOST_BYTES_MAX: usize = 253;

/// What is said of traces of all proxies (`Tracing` of proxy-defaults).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Tracing {
    /// Where spans go; `None` for no spans, and for trace headers that pass as they come.
    pub collector: Option<Collector>,
    /// Of how many requests about which no caller has decided.
    pub sampled: Percent,
}

/// Who takes spans, in OTLP over gRPC without TLS: `http://HOST[:PORT]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Collector {
    /// A name or an address; that of an IPv6 address without brackets.
    pub host: String,
    /// 4317 unless said otherwise.
    pub port: u16,
}

/// Not a collector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectorError {
    /// Another scheme.
    #[error("{0:?} does not begin with http://; collectors are spoken to in OTLP over gRPC without TLS")]
    Scheme(String),
    /// No host, or a path behind it.
    #[error("{0:?} is not http://HOST or http://HOST:PORT")]
    Host(String),
}

impl FromStr for Collector {
    type Err = CollectorError;

    fn from_str(text: &str) -> Result<Self, CollectorError> {
        let rest = text.strip_prefix("http://").ok_or_else(|| CollectorError::Scheme(text.to_owned()))?;
        let bad = || CollectorError::Host(text.to_owned());
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => {
                address.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
                (address, port)
            }
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        let of_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(of_host) {
            return Err(bad());
        }
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => OTLP_PORT,
            None => return Err(bad()),
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?,
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "http://[{host}]:{port}") } else { write!(f, "http://{host}:{port}") }
    }
}

impl TryFrom<String> for Collector {
    type Error = CollectorError;

    fn try_from(text: String) -> Result<Self, CollectorError> {
        text.parse()
    }
}

impl From<Collector> for String {
    fn from(collector: Collector) -> Self {
        collector.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_host_and_a_port() {
        for (text, shown) in [
            ("http://otel", "http://otel:4317"),
            ("http://10.0.0.1:55680", "http://10.0.0.1:55680"),
            ("http://[::1]", "http://[::1]:4317"),
            ("http://[fd00::1]:9", "http://[fd00::1]:9"),
        ] {
            let collector: Collector = text.parse().unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(shown.parse(), Ok(collector));
        }
        for bad in [
            "",
            "otel:4317",
            "https://otel",
            "http://",
            "http://otel:",
            "http://otel:0",
            "http://otel:70000",
            "http://otel/v1/traces",
            "http://a b",
            "http://user@otel",
            "http://[::1",
            "http://[x]",
            "http://[::1]x",
        ] {
            assert!(bad.parse::<Collector>().is_err(), "{bad}");
        }
    }
}
