//! Where the data planes are meant to differ, and why. What is not here is the same.

use super::Fate;
use super::grammar::Case;

/// Fields that an application may see differently.
pub(super) const FIELDS_OF_REQUESTS: [(&str, &str); 9] = [
    ("x-request-id", "Envoy gives one to every request without"),
    ("x-forwarded-proto", "Envoy says `http` where the client says nothing"),
    ("x-envoy-expected-rq-timeout-ms", "Envoy tells the next hop its timeout"),
    ("x-envoy-attempt-count", "Envoy tells the next hop how often it has tried"),
    ("connection", "of the hop to the application"),
    ("te", "of the hop to the application, by which Envoy lets `trailers` pass; native passes on none of HTTP/1.1"),
    ("content-length", "of the hop to the application; the body is compared"),
    ("transfer-encoding", "of the hop to the application; the body is compared"),
    ("keep-alive", "of the hop to the application"),
];

/// Fields that a client may be answered differently.
pub(super) const FIELDS_OF_RESPONSES: [(&str, &str); 7] = [
    ("server", "Envoy names itself"),
    ("date", "Envoy puts one in where the application has none"),
    ("x-envoy-upstream-service-time", "Envoy's own"),
    ("connection", "of the hop to the client"),
    ("content-length", "of the hop to the client; the body is compared"),
    ("transfer-encoding", "of the hop to the client; the body is compared"),
    ("keep-alive", "of the hop to the client"),
];

/// A difference that is meant.
pub(super) struct Deliberate {
    pub(super) what: &'static str,
    /// For whoever reads this.
    #[expect(dead_code, reason = "a reason is to be read, here and nowhere else")]
    why: &'static str,
    covers: fn(&Case, &Fate, &Fate) -> bool,
}

const DELIBERATE: [Deliberate; 21] = [
    Deliberate {
        what: "a call of gRPC over HTTP/1.1 that is no request",
        why: "Envoy answers in terms of gRPC, which is spoken over HTTP/2 only; what is no request is answered 400",
        covers: |case, envoy, native| {
            let in_its_terms = envoy.status == Some(200) && envoy.rpc_status.as_deref() == Some("13");
            case.called == "remote" && case.http2().is_none() && in_its_terms && native.status == Some(400)
        },
    },
    Deliberate {
        what: "a method that is not registered",
        why: "Envoy's HTTP/1 codec takes those of a list; a method is a token, and policies compare it as written",
        covers: |case, envoy, _| ["FROB", "M-SEARCH"].contains(&&*case.method) && envoy.status == Some(400),
    },
    Deliberate {
        what: "a query outside the grammar, over HTTP/2",
        why: "Envoy passes it on, and an application's reader of HTTP/2 may refuse it; here it is escaped",
        covers: |case, envoy, _| {
            let speaks_http2 = ["modern", "remote"].contains(&case.called);
            let broken = envoy.status == Some(502) || envoy.rpc_status.as_deref() == Some("14");
            speaks_http2 && case.target.contains(['"', '<', '>']) && broken && envoy.seen.is_empty()
        },
    },
    Deliberate {
        what: "a path with bytes outside ASCII, over HTTP/2",
        why: "no path has them (RFC 3986); Envoy refuses them in HTTP/1.1 only",
        covers: |case, _, native| case.http2().is_some() && !case.target.is_ascii() && refused(native),
    },
    Deliberate {
        what: "a method in small letters",
        why: "no policy that names GET is asked about get, and many an application takes one for the other; Envoy lets it \
              pass in HTTP/2",
        covers: |case, _, native| case.method == "get" && refused(native),
    },
    Deliberate {
        what: "CONNECT",
        why: "nobody here opens tunnels: 405 in whatever form, where Envoy minds the form first, and then the route",
        covers: |case, envoy, native| {
            let refused = matches!(envoy.status, Some(400 | 404 | 501)) && envoy.seen.is_empty();
            case.method == "CONNECT" && refused && native.status == Some(405)
        },
    },
    Deliberate {
        what: "an absolute target without a path",
        why: "Envoy makes a path; what is passed on is what was decided about",
        covers: |case, _, native| {
            let rest = case.target.split_once("://").map(|(_, rest)| rest);
            rest.is_some_and(|rest| !rest.split('?').next().unwrap_or_default().contains('/')) && refused(native)
        },
    },
    Deliberate {
        what: "a target and a host that disagree",
        why: "Envoy heeds the target; an application may heed the host",
        covers: |case, _, native| named_otherwise(case) && refused(native),
    },
    Deliberate {
        what: "a host with a user, a path or white space",
        why: "what the host is depends on the reader",
        covers: |case, _, native| {
            case.values("host").any(|host| host.trim().contains(['@', '/', ' '])) && refused(native)
        },
    },
    Deliberate {
        what: "a field that goes on in the next line",
        why: "Envoy mends it; where it ends depends on the reader (RFC 9112 section 5.2)",
        covers: |case, _, native| case.fields.iter().any(|(_, value)| value.contains("\r\n ")) && refused(native),
    },
    Deliberate {
        what: "white space in the request line",
        why: "Envoy takes some of it for nothing",
        covers: |case, _, native| (case.method.ends_with(' ') || case.target.contains(['\t', ' '])) && refused(native),
    },
    Deliberate {
        what: "a line that ends with LF alone",
        why: "Envoy takes it for a line's end, others for part of a value",
        covers: |case, _, native| case.fields.iter().any(|(_, value)| value.contains("a\n")) && refused(native),
    },
    Deliberate {
        what: "an absolute target with an empty port",
        why: "Envoy refuses it in a target and takes it in a host; RFC 3986 section 3.2.3 allows both",
        covers: |case, envoy, _| {
            case.target.contains("://shop:/") && envoy.status == Some(400) && envoy.seen.is_empty()
        },
    },
    Deliberate {
        what: "a field of credentials that Connection names",
        why: "Envoy takes it off, so that a caller can have another's credentials taken off; here it stays",
        covers: |case, envoy, native| {
            let names = case.values("connection").any(|value| value.trim() == "cookie");
            names && (envoy.status, &envoy.location) == (native.status, &native.location)
        },
    },
    Deliberate {
        what: "an unknown version",
        why: "505 says what is the matter (RFC 9110 section 15.6.6); Envoy says 426, as if another one would do",
        covers: |case, envoy, native| {
            !["HTTP/1.0", "HTTP/1.1"].contains(&case.version)
                && matches!(envoy.status, Some(400 | 426))
                && native.status == Some(505)
        },
    },
    Deliberate {
        what: "HTTP/1.0",
        why: "Envoy serves it only where it is told to",
        covers: |case, envoy, _| case.version == "HTTP/1.0" && envoy.status == Some(426),
    },
    Deliberate {
        what: "two hosts",
        why: "Envoy joins them to one; an application may heed either (RFC 9112 section 3.2)",
        covers: |case, _, native| case.values("host").count() > 1 && refused(native),
    },
    Deliberate {
        what: "which fault of a body's framing is named",
        why: "400 or 501, by what is looked at first",
        covers: |case, envoy, native| {
            let named = |fate: &Fate| matches!(fate.status, Some(400 | 501)) && fate.seen.is_empty();
            case.values("transfer-encoding").count() > 0 && named(envoy) && named(native)
        },
    },
    Deliberate {
        what: "which fault of a head that is too large is named",
        why: "it may have another, and what is read first differs",
        covers: |case, envoy, native| {
            let named = |fate: &Fate| matches!(fate.status, Some(400 | 414 | 431)) && fate.seen.is_empty();
            case.values("x-many").count() > 0 && named(envoy) && named(native)
        },
    },
    Deliberate {
        what: "a host that Connection names, where the target names it, too",
        why: "Envoy refuses it where it has no other; what Connection must not name is refused wherever it stands",
        covers: |case, _, native| {
            let named = case.values("connection").any(|value| value.trim() == "host");
            named && case.target.contains("://") && refused(native)
        },
    },
    Deliberate {
        what: "a field of the hop that is long",
        why: "Envoy refuses one that it would have to look through; here it stays on the hop, and the head has a limit",
        covers: |case, envoy, _| {
            let long = |name| case.values(name).any(|value| value.len() > 256);
            (long("te") || long("connection")) && envoy.status == Some(400) && envoy.seen.is_empty()
        },
    },
];

/// Whether the target is absolute and not of HTTP, has a user, or names another host than the field does.
fn named_otherwise(case: &Case) -> bool {
    let Some((scheme, rest)) = case.target.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '\\']).next().unwrap_or_default();
    let host = case.values("host").next().unwrap_or_default().trim();
    !["http", "https"].iter().any(|of_http| scheme.eq_ignore_ascii_case(of_http))
        || authority.contains('@')
        || !host.eq_ignore_ascii_case(authority)
}

/// Native has called it no request, in terms of HTTP or of gRPC.
fn refused(native: &Fate) -> bool {
    let in_terms_of_grpc = native.status == Some(200) && native.rpc_status.as_deref() == Some("13");
    (native.status == Some(400) || in_terms_of_grpc) && native.seen.is_empty()
}

/// The difference that these two fates are, if it is meant.
pub(super) fn covers(case: &Case, envoy: &Fate, native: &Fate) -> Option<&'static Deliberate> {
    DELIBERATE.iter().find(|meant| (meant.covers)(case, envoy, native))
}
