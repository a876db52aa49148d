//! The host and port that a request is for, in their one form: what is decided about, and what the next hop is told.

use std::borrow::Cow;

/// Whether bytes may stand for host and port: no user, no path, no white space.
#[must_use]
pub fn is_authority(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(byte))
}

/// Host and port without the dot of the root, before the port or at the end: `web.` is `web` to some readers and another
/// host to others.
///
/// Source: Envoy `HttpConnectionManager.strip_trailing_host_dot`.
#[must_use]
pub fn without_root_dot(authority: &str) -> Cow<'_, str> {
    match authority.rfind('.').map(|dot| (&authority[..dot], &authority[dot + 1..])) {
        Some((host, "")) => Cow::Borrowed(host),
        Some((host, port)) if port.starts_with(':') => Cow::Owned(format!("{host}{port}")),
        Some(_) | None => Cow::Borrowed(authority),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_dot_goes_and_no_other() {
        for (authority, plain) in [
            ("web.", "web"),
            ("web.:80", "web:80"),
            ("web..", "web."),
            (".", ""),
            ("a.web:80", "a.web:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]:80"),
            ("", ""),
        ] {
            assert_eq!(without_root_dot(authority), plain, "{authority}");
        }
    }
}
