//! Which requests the audit log has: writes, logins and denials, with who asked, and from where.
//!
//! Reads that are allowed are left out, and so are reports of TTL checks and renewals of sessions, which say that something lives.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::{Method, StatusCode};
use starling_model::Uuid;
use starling_telemetry::{AuditEntry, AuditLog};

use crate::serve::CameFrom;

/// Put into a request that is to be audited, so that its answer names its caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Audited;

/// Put into the answer to such a request: the token by which it was asked, if it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedBy(pub(crate) Option<Uuid>);

/// The router, with its writes, logins and denials in an audit log.
pub fn audited(router: axum::Router, log: Arc<AuditLog>) -> axum::Router {
    router.layer(middleware::from_fn_with_state(log, record))
}

async fn record(State(log): State<Arc<AuditLog>>, mut request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let from = request.extensions().get::<CameFrom>().map(|CameFrom(from)| *from);
    request.extensions_mut().insert(Audited);
    let response = next.run(request).await;
    if !is_recorded(&method, &path, response.status()) {
        return response;
    }
    let revision = response.headers().get("x-consul-index").and_then(|value| value.to_str().ok()?.parse().ok());
    let entry = AuditEntry {
        time_ms: u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
        from: from.map_or_else(|| "local".to_owned(), |from: IpAddr| from.to_string()),
        accessor: response
            .extensions()
            .get::<AskedBy>()
            .and_then(|AskedBy(accessor)| accessor.map(|id| id.to_string())),
        method: method.to_string(),
        path,
        status: response.status().as_u16(),
        revision,
    };
    if let Err(error) = log.append(&entry) {
        tracing::error!(%error, path = entry.path, "cannot write the audit log");
    }
    response
}

fn is_recorded(method: &Method, path: &str, status: StatusCode) -> bool {
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return true;
    }
    let is_sign_of_life =
        ["pass", "warn", "fail", "update"].iter().any(|report| path.starts_with(&format!("/v1/agent/check/{report}/")))
            || path.starts_with("/v1/session/renew/");
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) && !is_sign_of_life
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_denials_are_recorded_and_reads_and_signs_of_life_are_not() {
        for (method, path, status, expected) in [
            (Method::PUT, "/v1/kv/a", 200, true),
            (Method::DELETE, "/v1/kv/a", 500, true),
            (Method::POST, "/v1/acl/login", 403, true),
            (Method::GET, "/v1/kv/a", 403, true),
            (Method::GET, "/v1/kv/a", 200, false),
            (Method::PUT, "/v1/agent/check/pass/c1", 200, false),
            (Method::PUT, "/v1/agent/check/pass/c1", 403, true),
            (Method::PUT, "/v1/session/renew/x", 200, false),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(is_recorded(&method, path, status), expected, "{method} {path} {status}");
        }
    }
}
