//! Who may ask by way of somebody's browser: a listener on loopback is reached by every page that the browser shows.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::error::ApiError;

/// The listener of a request is on loopback.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnLoopback;

/// Refuses what pages of other sites ask with their visitor's browser: every write, and on loopback also every read by a
/// name that its owner has pointed here, which makes the page one of the same site (DNS rebinding).
pub(crate) fn check_site(
    method: &Method,
    headers: &HeaderMap,
    on_loopback: Option<&OnLoopback>,
) -> Result<(), ApiError> {
    let denied = |reason: String| Err(ApiError::new(StatusCode::FORBIDDEN, format!("Permission denied: {reason}")));
    let cross_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    if cross_site && *method != Method::GET {
        return denied("a page of another site may not write".to_owned());
    }
    // No browser leaves the header out.
    let foreign = headers.get_all(header::HOST).iter().find(|host| !is_ours(host));
    match foreign.filter(|_| on_loopback.is_some()) {
        None => Ok(()),
        Some(host) => denied(format!(
            "this API listens on loopback and is asked for by an IP address or as localhost, not {host:?}"
        )),
    }
}

/// Whether nobody can point this host somewhere: an address, or the name that means this machine (RFC 6761, section 6.3).
fn is_ours(host: &HeaderValue) -> bool {
    let Some(host) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else { return false };
    let name = host.host().trim_end_matches('.').to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    name == "localhost" || name.ends_with(".localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_loopback_only_names_that_nobody_owns_are_heard() {
        for (host, heard) in [
            ("127.0.0.1:8500", true),
            ("10.0.0.1", true),
            ("[::1]:8500", true),
            ("localhost", true),
            ("LocalHost.:8500", true),
            ("consul.localhost", true),
            ("evil.example:8500", false),
            ("localhost.evil.example", false),
            ("notlocalhost", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            let checked = check_site(&Method::GET, &headers, Some(&OnLoopback));
            assert_eq!(checked.is_ok(), heard, "{host}");
            assert_eq!(check_site(&Method::GET, &headers, None), Ok(()), "{host}");
        }
        assert_eq!(check_site(&Method::GET, &HeaderMap::new(), Some(&OnLoopback)), Ok(()));
    }
}
