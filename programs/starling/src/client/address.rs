//! Where the API is: the forms in which Consul's clients write it.

use std::fmt;
use std::path::PathBuf;

use crate::outcome::usage;

/// Where the API is unless somebody says otherwise.
pub(crate) const DEFAULT: &str = "127.0.0.1:8500";

/// The port of an address without one.
const DEFAULT_PORT: u16 = 8500;

/// A way to the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// TCP, with TLS or without.
    Tcp {
        /// A name or an IP, without brackets.
        host: String,
        /// Port.
        port: u16,
        /// Whether TLS is spoken.
        tls: bool,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix://PATH`; `tls` is for an address without
    /// scheme.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if it is none of these.
    pub(crate) fn parse(text: &str, tls: bool) -> anyhow::Result<Self> {
        if let Some(path) = text.strip_prefix("unix://") {
            return match path {
                "" => Err(usage(format!("API address {text:?} has no path; write unix:///run/starling.sock"))),
                path => Ok(Self::Unix(PathBuf::from(path))),
            };
        }
        let (scheme, rest) = text.split_once("://").map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
        let tls = match scheme {
            None => tls,
            Some("http" | "tcp") => false,
            Some("https") => true,
            Some(other) => {
                return Err(usage(format!("API address {text:?}: scheme {other:?} is not one of http, https, unix")));
            }
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = host_and_port(rest).ok_or_else(|| usage(format!("API address {text:?} is no HOST:PORT")))?;
        Ok(Self::Tcp { host, port: port.unwrap_or(DEFAULT_PORT), tls })
    }

    /// The `Host` header for requests to it.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } => bracketed(host, *port),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// `HOST`, `HOST:PORT`, `:PORT`, `[IPV6]` or `[IPV6]:PORT`.
pub(crate) fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let host = if host.is_empty() && port.is_some() { "127.0.0.1" } else { host };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(plain) {
        return None;
    }
    match port {
        None => Some((host.to_owned(), None)),
        Some(port) => port.parse().ok().filter(|port| *port != 0).map(|port| (host.to_owned(), Some(port))),
    }
}

fn bracketed(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, tls } => {
                write!(f, "{}://{}", if *tls { "https" } else { "http" }, bracketed(host, *port))
            }
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_consuls_clients_take_is_read() {
        for (text, tls, expected) in [
            ("127.0.0.1:8500", false, "http://127.0.0.1:8500"),
            ("127.0.0.1:8500", true, "https://127.0.0.1:8500"),
            ("http://mesh.example:80/", true, "http://mesh.example:80"),
            ("https://mesh.example:8501", false, "https://mesh.example:8501"),
            ("mesh.example", false, "http://mesh.example:8500"),
            (":8600", false, "http://127.0.0.1:8600"),
            ("[::1]:8500", false, "http://[::1]:8500"),
            ("unix:///run/starling.sock", true, "unix:///run/starling.sock"),
        ] {
            assert_eq!(Address::parse(text, tls).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_text() {
        for text in ["", "http://", "unix://", "ftp://x:1", "host:0", "host:70000", "host:port", "a b:1", "[::1]8500"] {
            let error = Address::parse(text, false).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
