//! Refusal of checks that could never run.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Uri};
use starling_model::{CheckKind, CheckSpec};

use crate::sidecar::FieldError;

/// Shortest interval: what is asked more often than this is load, not health.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Time for a run where none is given; Consul's figures.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const SCRIPT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The time that a run of this check may take.
pub(crate) fn timeout(spec: &CheckSpec) -> Duration {
    match (&spec.definition.kind, spec.definition.timeout) {
        (CheckKind::Script { .. } | CheckKind::Docker { .. }, Duration::ZERO) => SCRIPT_TIMEOUT_DEFAULT,
        (_, Duration::ZERO) => TIMEOUT_DEFAULT,
        (_, given) => given,
    }
}

/// Checks a check; `path` is its place in the registration (`Checks[0].`, or empty), and `scripts` whether it may run a
/// program, or why not.
pub(crate) fn verify(spec: &CheckSpec, path: &str, scripts: Result<(), &str>) -> Result<(), FieldError> {
    let field = |name: &str, reason: String| Err(FieldError::new(format!("{path}{name}"), reason));
    match &spec.definition.kind {
        CheckKind::Http { url, method, headers, .. } => {
            match url.parse::<Uri>() {
                Err(error) => return field("HTTP", format!("{url:?} is no URL: {error}")),
                Ok(uri)
                    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) =>
                {
                    return field("HTTP", format!("{url:?} is not an absolute http or https URL"));
                }
                Ok(_) => {}
            }
            if !method.is_empty() && Method::from_bytes(method.as_bytes()).is_err() {
                return field("Method", format!("{method:?} is no HTTP method"));
            }
            for (name, values) in headers {
                let bad_value = values.iter().any(|value| HeaderValue::from_str(value).is_err());
                if name.parse::<HeaderName>().is_err() || bad_value {
                    return field("Header", format!("{name:?} or a value of it is not allowed in HTTP"));
                }
            }
        }
        CheckKind::Tcp { address, .. }
        | CheckKind::Udp { address }
        | CheckKind::H2Ping { address, .. }
        | CheckKind::Grpc { address, .. } => {
            if !is_host_port(address) {
                let name = spec.definition.kind.as_str().to_uppercase();
                return field(&name, format!("{address:?} is not of the form host:port"));
            }
        }
        CheckKind::Ttl { ttl } => {
            return if *ttl < INTERVAL_MIN {
                field("TTL", format!("must be at least {INTERVAL_MIN:?}"))
            } else {
                Ok(())
            };
        }
        CheckKind::Script { .. } | CheckKind::Docker { .. } if let Err(reason) = scripts => {
            return field("Args", reason.to_owned());
        }
        CheckKind::Script { args } | CheckKind::Docker { args, .. } if args.first().is_none_or(String::is_empty) => {
            return field("Args", "names no program".to_owned());
        }
        CheckKind::Script { .. } | CheckKind::Docker { .. } => {}
        CheckKind::Alias { .. } | CheckKind::Maintenance => return Ok(()),
    }
    if spec.definition.interval < INTERVAL_MIN {
        return field("Interval", format!("must be at least {INTERVAL_MIN:?}"));
    }
    Ok(())
}

fn is_host_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && !host.contains([':', '/', ' ', '@']);
        (bracketed || plain) && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::is_host_port;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["localhost:80", "127.0.0.1:1", "[::1]:65535", "db.example:5432"] {
            assert!(is_host_port(good), "{good}");
        }
        for bad in ["localhost", ":80", "a:0", "a:70000", "::1:80", "http://a:80", "a:80/x"] {
            assert!(!is_host_port(bad), "{bad}");
        }
    }
}
