//! How many connections the API holds, and how many of their requests may wait.

use std::sync::Arc;

use axum::body::Body;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use starling_admission::{Limits, Share};
use starling_sockets::Entrance;

use super::waits::Waits;

/// Seconds after which a refused client may try again.
pub(super) const RETRY_AFTER_S: &str = "5";

/// What the paths begin with that are answered however many connections there are: whether this process works.
const ALWAYS_ANSWERED: [&str; 2] = ["/starling/v1/health/", "/v1/status/"];

/// The places of the API; its listeners share them.
#[derive(Debug)]
pub struct Places {
    pub(super) entrance: Arc<Entrance>,
    pub(super) waits: Arc<Waits>,
}

impl Places {
    /// Those of `share`, and of `reserve` for requests about health while they are taken.
    #[must_use]
    pub fn new(share: Share, reserve: Share) -> Arc<Self> {
        let limits = Limits::of(share.connections).with_reserve(reserve.connections);
        let entrance = Entrance::limited("HTTP API", share, reserve, limits);
        Arc::new(Self { entrance, waits: Arc::new(Waits::of(share.connections)) })
    }

    /// So many, whatever else the process has, and one for health.
    #[must_use]
    pub fn of(connections: usize) -> Arc<Self> {
        Self::new(Share::of(connections), Share::of(1))
    }
}

/// Whether a request is answered over a place of the reserve.
pub(super) fn is_always_answered(path: &str) -> bool {
    ALWAYS_ANSWERED.iter().any(|beginning| path.starts_with(beginning))
}

/// The answer to any other.
pub(super) fn refusal() -> Response<Body> {
    let mut answer = Response::new(Body::from("too many connections; try again later"));
    *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
