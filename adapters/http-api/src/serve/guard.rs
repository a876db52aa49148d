//! Whom a door turns away, whatever token is shown, before anything else of a request is looked at.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use starling_model::IpRange;

/// Where a request came from; a Unix socket is of this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CameFrom(pub(crate) IpAddr);

/// Who is turned away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guards {
    /// What paths begin with that are closed to everybody.
    pub closed: Vec<String>,
    /// The networks from which one may write; none for all.
    pub writers: Vec<IpRange>,
}

/// The router behind these guards.
pub fn guarded(router: axum::Router, guards: Guards) -> axum::Router {
    if guards == Guards::default() {
        return router;
    }
    let guards = Arc::new(guards);
    router.layer(from_fn(move |request: Request, next: Next| {
        let from = request.extensions().get::<CameFrom>().map(|CameFrom(from)| *from);
        let reason = guards.reason(request.method(), request.uri().path(), from);
        async move {
            match reason {
                None => next.run(request).await,
                Some(reason) => (StatusCode::FORBIDDEN, format!("Permission denied: {reason}")).into_response(),
            }
        }
    }))
}

impl Guards {
    /// Why a request is turned away, if it is.
    fn reason(&self, method: &Method, path: &str, from: Option<IpAddr>) -> Option<String> {
        // As the router reads parts of it, however they were written.
        let read = percent_decode_str(path).decode_utf8_lossy();
        if self.closed.iter().any(|beginning| read.starts_with(beginning.as_str())) {
            return Some(format!("{path} is closed by this agent's configuration"));
        }
        let writes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        let may_write =
            || self.writers.is_empty() || from.is_some_and(|from| self.writers.iter().any(|it| it.contains(from)));
        (writes && !may_write()).then(|| "nobody may write from there, by this agent's configuration".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_paths_are_closed_to_all_and_writes_to_those_who_come_from_elsewhere() {
        let guards = Guards {
            closed: vec!["/v1/acl".to_owned(), "/v1/kv/secret".to_owned(), "/v1/agent/token/default".to_owned()],
            writers: vec!["127.0.0.0/8".parse().expect("a range"), "::1".parse().expect("a range")],
        };
        for (method, path, from, is_heard) in [
            (Method::GET, "/v1/acl/tokens", "127.0.0.1", false),
            (Method::GET, "/v1/kv/secret/a", "127.0.0.1", false),
            (Method::GET, "/v1/kv/%73ecret/a", "127.0.0.1", false),
            (Method::GET, "/v1/kv/secret%2Fa", "127.0.0.1", false),
            (Method::PUT, "/v1/agent/token/%64efault", "127.0.0.1", false),
            (Method::GET, "/v1/kv/%2573ecret/a", "127.0.0.1", true),
            (Method::GET, "/v1/kv/a", "10.0.0.1", true),
            (Method::HEAD, "/v1/kv/a", "10.0.0.1", true),
            (Method::PUT, "/v1/kv/a", "10.0.0.1", false),
            (Method::POST, "/v1/query", "10.0.0.1", false),
            (Method::DELETE, "/v1/kv/a", "fd00::1", false),
            (Method::PUT, "/v1/kv/a", "127.0.0.1", true),
            (Method::PUT, "/v1/kv/a", "::ffff:127.0.0.1", true),
            (Method::PUT, "/v1/kv/a", "::1", true),
        ] {
            let reason = guards.reason(&method, path, from.parse().ok());
            assert_eq!(reason.is_none(), is_heard, "{method} {path} from {from}: {reason:?}");
        }
        assert!(guards.reason(&Method::PUT, "/v1/kv/a", None).is_some(), "from nobody knows where");
        assert!(Guards::default().reason(&Method::PUT, "/v1/kv/a", None).is_none());
    }
}
