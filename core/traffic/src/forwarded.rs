//! What callers from outside say about themselves, and who believes it.
//!
//! Behind the edge of the mesh `x-forwarded-for` names the caller and `x-forwarded-client-cert` a peer's identity, so at the
//! edge such fields are taken off whoever has no right to them. An underscore counts as a hyphen: applications that get their
//! fields as variables (CGI, RFC 3875 section 4.1.18) cannot tell the two apart.

/// Fields that only the mesh itself may set: nobody outside is believed, whoever it is.
pub const INTERNAL_PREFIXES: [&str; 2] = ["x-envoy-", "x-starling-"];

/// The field that bears a peer's identity; the same holds for it.
pub const CLIENT_CERTIFICATE: &str = "x-forwarded-client-cert";

/// The addresses that a request has come from, the first one first.
pub const FORWARDED_FOR: &str = "x-forwarded-for";

/// By what the caller has come, `http` or `https`.
pub const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Fields by which a proxy says who called it: believed of trusted proxies, taken off all others. All that begin with
/// [`FORWARDED_PREFIX`] are, too.
pub const FORWARDED: [&str; 2] = ["forwarded", "x-real-ip"];

/// See [`FORWARDED`].
pub const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Whether a field of a request from outside the mesh is passed on; `trusted` is whether its sender is a proxy that may
/// speak for others.
#[must_use]
pub fn passes_edge(name: &str, trusted: bool) -> bool {
    let begins = |prefix: &str| begins(name, prefix);
    let is = |other: &str| name.len() == other.len() && begins(other);
    // Most fields begin with neither letter.
    match name.as_bytes().first() {
        Some(b'x' | b'X' | b'f' | b'F') => {
            let internal = INTERNAL_PREFIXES.into_iter().any(begins) || is(CLIENT_CERTIFICATE);
            let forwarded = FORWARDED.into_iter().any(is) || begins(FORWARDED_PREFIX);
            !internal && (trusted || !forwarded)
        }
        Some(_) | None => true,
    }
}

/// Whether an application may take a field of this name for [`CLIENT_CERTIFICATE`].
#[must_use]
pub fn is_client_certificate(name: &str) -> bool {
    name.len() == CLIENT_CERTIFICATE.len() && begins(name, CLIENT_CERTIFICATE)
}

/// Whether a field says to which trace a request belongs, or whether it is to be recorded.
#[must_use]
pub fn is_trace(name: &str) -> bool {
    TRACE.contains(&name) || name.starts_with(TRACE_PREFIX)
}

/// W3C Trace Context, and B3 in one field.
const TRACE: [&str; 3] = ["traceparent", "tracestate", "b3"];

/// B3 in several fields.
const TRACE_PREFIX: &str = "x-b3-";

/// An underscore counts as a hyphen, a capital as a small letter.
fn begins(name: &str, prefix: &str) -> bool {
    let same = |(a, b): (&u8, u8)| a.eq_ignore_ascii_case(&b) || (*a == b'_' && b == b'-');
    name.len() >= prefix.len() && name.as_bytes().iter().zip(prefix.bytes()).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_believed_nothing_and_proxies_what_proxies_say() {
        for name in ["x-forwarded-for", "X-Forwarded-Proto", "x-forwarded-host", "Forwarded", "x-real-ip"] {
            assert!(!passes_edge(name, false) && passes_edge(name, true), "{name}");
        }
        for name in ["x-forwarded-client-cert", "X-Forwarded-Client-Cert", "x-envoy-retry-on", "X-STARLING-source"] {
            assert!(!passes_edge(name, false) && !passes_edge(name, true), "{name}");
        }
        for name in ["x_forwarded_for", "X-Forwarded_Proto", "x_real-ip"] {
            assert!(!passes_edge(name, false) && passes_edge(name, true), "{name}");
        }
        for name in ["x_forwarded_client_cert", "X_Envoy_Retry_On", "x-starling_source"] {
            assert!(!passes_edge(name, true), "{name}");
        }
        for name in ["accept", "x-request-id", "x-forward", "x-envoy", "from", "forwarded-by", "traceparent", "x", ""] {
            assert!(passes_edge(name, false), "{name}");
        }
    }
}
