//! Requests that a page of another site makes with its visitor's browser.
//!
//! A page may send them to whatever its browser reaches: a listener on loopback, or one of the visitor's network.

use std::net::IpAddr;

use http::uri::{Authority, Uri};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::error::ApiError;

/// The listener of a request is on loopback.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnLoopback;

/// Refuses what pages of other sites ask: every write, and on loopback also every read by a name that its owner has
/// pointed here (DNS rebinding).
///
/// A browser names the page's site in `Origin` with every write, and in `Sec-Fetch-Site` where it trusts the connection.
/// Another port of one host counts as another site: `same-site` is refused.
///
/// # Errors
/// [`ApiError`] with 403.
/// Source: Fetch, section 3.2 (`Origin`); Fetch Metadata, section 2.3.
pub(crate) fn check_site(
    method: &Method,
    target: &Uri,
    headers: &HeaderMap,
    on_loopback: Option<&OnLoopback>,
) -> Result<(), ApiError> {
    let denied = |reason: String| Err(ApiError::new(StatusCode::FORBIDDEN, format!("Permission denied: {reason}")));
    if ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
        let is_foreign = |site: &HeaderValue| site == "cross-site" || site == "same-site";
        if headers.get_all("sec-fetch-site").iter().any(is_foreign) {
            return denied("a page of another site may not write".to_owned());
        }
        if let Some(origin) = headers.get_all(header::ORIGIN).iter().find(|origin| !is_own(origin, target, headers)) {
            return denied(format!(
                "a page of {origin:?} may not write: the Origin of a write is the host it is sent to"
            ));
        }
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

/// Whether an origin is the host and port that the request is sent to. An opaque one (`null`) is not.
fn is_own(origin: &HeaderValue, target: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()) else { return false };
    let (Some(scheme), Some(origin)) = (origin.scheme_str(), origin.authority()) else { return false };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.parse().ok());
    let Some(own) = host.as_ref().or(target.authority()) else { return false };
    let place = |of: &Authority| (of.host().to_ascii_lowercase(), of.port_u16().unwrap_or(usual));
    place(origin) == place(own)
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
            let checked = check_site(&Method::GET, &Uri::default(), &headers, Some(&OnLoopback));
            assert_eq!(checked.is_ok(), heard, "{host}");
            assert_eq!(check_site(&Method::GET, &Uri::default(), &headers, None), Ok(()), "{host}");
        }
        assert_eq!(check_site(&Method::GET, &Uri::default(), &HeaderMap::new(), Some(&OnLoopback)), Ok(()));
    }

    #[test]
    fn a_write_is_heard_from_the_page_of_its_own_host_or_from_no_page() {
        for (host, origin, site, heard) in [
            ("127.0.0.1:8500", None, None, true),
            ("127.0.0.1:8500", Some("http://127.0.0.1:8500"), None, true),
            ("consul.example", Some("https://consul.example"), Some("same-origin"), true),
            ("Consul.example:443", Some("https://consul.example"), None, true),
            ("127.0.0.1:8500", Some("http://evil.example"), None, false),
            ("127.0.0.1:8500", Some("http://evil.example"), Some("none"), false),
            ("127.0.0.1:8500", Some("http://127.0.0.1:3000"), None, false),
            ("localhost:8500", Some("http://127.0.0.1:8500"), None, false),
            ("127.0.0.1:8500", Some("null"), None, false),
            ("127.0.0.1:8500", Some("file://"), None, false),
            ("127.0.0.1:8500", Some("http://127.0.0.1:8500.evil.example"), None, false),
            ("127.0.0.1:8500", None, Some("same-site"), false),
            ("127.0.0.1:8500", None, Some("cross-site"), false),
            ("127.0.0.1:8500", None, Some("none"), true),
        ] {
            let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            headers.extend(origin.map(|origin| (header::ORIGIN, HeaderValue::from_static(origin))));
            headers.extend(
                site.map(|site| (http::HeaderName::from_static("sec-fetch-site"), HeaderValue::from_static(site))),
            );
            let what = format!("{host} {origin:?} {site:?}");
            for method in [Method::PUT, Method::POST, Method::DELETE] {
                assert_eq!(check_site(&method, &Uri::default(), &headers, None).is_ok(), heard, "{method} {what}");
            }
            assert_eq!(check_site(&Method::GET, &Uri::default(), &headers, None), Ok(()), "{what}");
        }
        let two =
            ["http://127.0.0.1:8500", "http://evil.example"].map(|it| (header::ORIGIN, HeaderValue::from_static(it)));
        let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("127.0.0.1:8500"))]);
        for (name, value) in two {
            headers.append(name, value);
        }
        check_site(&Method::PUT, &Uri::default(), &headers, None).expect_err("two origins");
    }
}
