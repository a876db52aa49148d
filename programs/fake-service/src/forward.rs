//! What of an inbound request goes on to the upstreams.

use http::header::{self, HeaderMap};
use http::uri::{InvalidUri, PathAndQuery};
use http::{HeaderName, Uri};

/// Headers that tie the spans of one trace together, whichever tracing system is in use.
const TRACING_HEADERS: [&str; 17] = [
    "b3",
    "baggage",
    "grpc-trace-bin",
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "x-amzn-trace-id",
    "x-b3-flags",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-spanid",
    "x-b3-traceid",
    "x-client-trace-id",
    "x-cloud-trace-context",
    "x-datadog-parent-id",
    "x-datadog-trace-id",
    "x-request-id",
];

/// Headers that speak of the inbound connection, its body or its peer, and would be untrue of the next hop.
const HOP_HEADERS: [HeaderName; 16] = [
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::EXPECT,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Families of headers that a proxy sets for the service behind it, identity among them.
const PROXY_HEADER_PREFIXES: [&str; 2] = ["x-envoy-", "x-forwarded-"];

/// The headers that every upstream gets.
pub(crate) fn tracing_headers(inbound: &HeaderMap) -> HeaderMap {
    let mut outbound = HeaderMap::new();
    for name in TRACING_HEADERS {
        for value in inbound.get_all(name) {
            outbound.append(name, value.clone());
        }
    }
    outbound
}

/// The headers that HTTP upstreams of an HTTP request get when the request is appended.
pub(crate) fn all_headers(inbound: &HeaderMap) -> HeaderMap {
    let mut outbound = HeaderMap::with_capacity(inbound.len());
    for (name, value) in inbound {
        let by_proxy = PROXY_HEADER_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
        if !by_proxy && !HOP_HEADERS.contains(name) {
            outbound.append(name, value.clone());
        }
    }
    outbound
}

/// Appends path and query of a request to an upstream's URI; a request for `/` appends no path.
///
/// # Errors
/// [`InvalidUri`] if both together are longer than a URI may be.
pub(crate) fn append_target(base: &Uri, target: &str) -> Result<Uri, InvalidUri> {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let mut joined = match path {
        // An asterisk or an authority is the target of OPTIONS or CONNECT, and no path.
        path if !path.starts_with('/') || path == "/" => base.path().to_owned(),
        path => format!("{}{path}", base.path().trim_end_matches('/')),
    };
    for (query, mark) in [base.query(), query].into_iter().flatten().zip(['?', '&']) {
        joined.push(mark);
        joined.push_str(query);
    }
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(joined.parse::<PathAndQuery>()?);
    Ok(Uri::from_parts(parts).unwrap_or_else(|_| base.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_appended_to_path_and_query() {
        for (base, target, joined) in [
            ("http://b", "/", "http://b/"),
            ("http://b/", "/x", "http://b/x"),
            ("http://b/v1", "/", "http://b/v1"),
            ("http://b/v1/", "/x/y?q=1", "http://b/v1/x/y?q=1"),
            ("http://b/v1?a=2", "/x?q=1", "http://b/v1/x?a=2&q=1"),
            ("http://b?a=2", "/", "http://b/?a=2"),
            ("http://b", "*", "http://b/"),
        ] {
            let base: Uri = base.parse().unwrap();
            assert_eq!(append_target(&base, target).unwrap().to_string(), joined);
        }
    }

    #[test]
    fn tracing_goes_on_and_the_peers_identity_does_not() {
        let names = ["traceparent", "b3", "x-request-id", "x-version", "x-forwarded-client-cert", "host", "x-envoy-y"];
        let inbound: HeaderMap =
            names.iter().map(|name| (HeaderName::from_static(name), "v".parse().unwrap())).collect();
        let sorted = |headers: HeaderMap| {
            let mut names: Vec<_> = headers.keys().map(HeaderName::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(sorted(tracing_headers(&inbound)), ["b3", "traceparent", "x-request-id"]);
        assert_eq!(sorted(all_headers(&inbound)), ["b3", "traceparent", "x-request-id", "x-version"]);
    }
}
