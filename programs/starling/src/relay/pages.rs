//! What a relay shows of itself: whether it lives, whether it is ready, and what it counts.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use serde_json::json;
use starling_http_api::{Body, Router};
use starling_relay::RelayNode;
use starling_telemetry::Registry;
use tower::service_fn;

/// What OpenMetrics calls itself.
const METRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What is shown.
pub(super) struct State {
    relay: Arc<RelayNode>,
    registry: Registry,
    leaving: AtomicBool,
}

impl State {
    pub(super) fn new(relay: Arc<RelayNode>, registry: Registry) -> Self {
        Self { relay, registry, leaving: AtomicBool::new(false) }
    }

    /// The relay is leaving: nobody is to be sent to it.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    fn ready(&self) -> (StatusCode, serde_json::Value) {
        let server = self.relay.server();
        let leaving = self.leaving.load(Ordering::Acquire);
        let is_ready = server.is_some() && !leaving;
        let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let reason = match (leaving, &server) {
            (true, _) => Some("this relay is leaving"),
            (false, None) => Some("no server is reached; agents that are attached are served from what was heard"),
            (false, Some(_)) => None,
        };
        let body = json!({
            "ready": is_ready,
            "reason": reason,
            "server": server,
            "away_for_s": self.relay.away_for().as_secs(),
            "revision": self.relay.heard_through().0,
            "streams": self.relay.open(),
        });
        (status, body)
    }

    fn answer(&self, path: &str) -> Response<Body> {
        let (status, kind, text) = match path {
            "/starling/v1/health/live" => (StatusCode::OK, JSON, json!({"live": true}).to_string()),
            "/starling/v1/health/ready" => {
                let (status, body) = self.ready();
                (status, JSON, body.to_string())
            }
            "/metrics" => (StatusCode::OK, METRICS, self.registry.encode()),
            _ => {
                let known = "a relay has /starling/v1/health/live, /starling/v1/health/ready and /metrics; the API is at servers \
                             and agents";
                (StatusCode::NOT_FOUND, HeaderValue::from_static("text/plain"), known.to_owned())
            }
        };
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// The pages.
pub(super) fn router(state: Arc<State>) -> Router {
    Router::new().fallback_service(service_fn(move |request: Request<Body>| {
        let answer = state.answer(request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    }))
}

/// Adds what is asked of the relay when metrics are read.
pub(super) fn register(registry: &Registry, relay: &Arc<RelayNode>) {
    let ask = |value: fn(&RelayNode) -> f64| {
        let relay = Arc::downgrade(relay);
        move || relay.upgrade().map_or(0.0, |relay| value(&relay))
    };
    let away = ask(|relay| relay.away_for().as_secs_f64());
    registry.register_asked("relay_upstream_away_seconds", "For how long no server has been reached", away);
    #[expect(clippy::cast_precision_loss, reason = "a revision beyond 2^53 is centuries away")]
    let heard = ask(|relay| relay.heard_through().0 as f64);
    registry.register_asked("relay_heard_revision", "Revision of the catalog up to which all has been heard", heard);
}
