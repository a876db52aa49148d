//! Spans: a hop's part in a trace, what is known of it at its end, and the way to a collector.
//!
//! Cost model: where there is no tracing, a request pays one comparison; where there is, a request that is not recorded pays for
//! the context that goes on, and one that is recorded for its span, which is handed over a bounded queue to the one thread that
//! sends. Nobody waits: what the queue does not take is lost, and counted.

mod export;
mod otlp;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use starling_model::Tracing;
use starling_plan::Plan;
use starling_traffic::HeaderFields;
use starling_traffic::trace::{Begun, Received};

use crate::access_log::{Asked, Event};
use crate::failure::Failure;
use crate::metrics::Ending;
pub(crate) use export::Collectors;
use export::Queue;
use otlp::{KeyValue, Span, Status};

/// Bytes of a value that a client chose.
const VALUE_BYTES_MAX: usize = 1_024;

/// Methods by which a span may be named; clients can make up others without end (OpenTelemetry, "HTTP spans").
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"];

/// Which end of a call a hop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The called workload's sidecar.
    Server,
    /// The calling workload's.
    Client,
}

/// Whose spans they are.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) service: String,
    pub(crate) instance: String,
}

/// The spans of one direction of a workload.
pub(crate) struct Tracer {
    tracing: Arc<Tracing>,
    kind: Kind,
    origin: Arc<Origin>,
    queue: Arc<Queue>,
}

impl Tracer {
    /// What the plan asks for, if it does.
    pub(crate) fn new(plan: &Plan, kind: Kind, collectors: &Collectors) -> Option<Self> {
        let queue = collectors.open(plan.tracing.collector.as_ref()?);
        let origin = Origin { service: plan.service.to_string(), instance: plan.proxy.to_string() };
        Some(Self { tracing: Arc::clone(&plan.tracing), kind, origin: Arc::new(origin), queue })
    }

    /// This hop's part in the trace of a request.
    pub(crate) fn begin(&self, fields: &dyn HeaderFields) -> Begun {
        Received::read(fields).begin(self.tracing.sampled, || fastrand::u64(..))
    }

    /// Sends what has become of it, if it is recorded.
    pub(crate) fn end(&self, begun: &Begun, event: &Event<'_>) {
        if begun.sampled {
            self.queue.put(Arc::clone(&self.origin), self.span(begun, event));
        }
    }

    fn span(&self, begun: &Begun, event: &Event<'_>) -> Span {
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (status, error) = outcome(event.ending, self.kind);
        let mut attributes = Vec::with_capacity(12);
        let method = event.request.as_ref().map_or("", |request| request.method);
        let known = METHODS.contains(&method);
        attributes.push(KeyValue::text("http.request.method", if known { method } else { "_OTHER" }));
        if !known {
            attributes.push(KeyValue::text("http.request.method_original", bounded(method)));
        }
        attributes.extend(event.request.iter().flat_map(of_request));
        attributes.extend(status.map(|status| KeyValue::number("http.response.status_code", status.into())));
        attributes.extend(error.as_deref().map(|error| KeyValue::text("error.type", error)));
        match self.kind {
            Kind::Client => {
                attributes.extend(event.upstream.and_then(service).map(|name| KeyValue::text("peer.service", name)));
                if let Some(host) = event.host {
                    attributes.push(KeyValue::text("network.peer.address", &host.ip().to_string()));
                    attributes.push(KeyValue::number("network.peer.port", host.port().into()));
                }
            }
            Kind::Server => {
                let remote = event.connection.remote();
                attributes.push(KeyValue::text("network.peer.address", &remote.ip().to_string()));
                attributes.push(KeyValue::number("network.peer.port", remote.port().into()));
                let identity = event.connection.identity();
                let caller = identity.and_then(|identity| identity.rsplit_once("/svc/"));
                attributes.extend(caller.map(|(_, caller)| KeyValue::text("peer.service", caller)));
            }
        }
        Span {
            trace_id: begun.trace.0.to_be_bytes().to_vec(),
            span_id: begun.span.0.to_be_bytes().to_vec(),
            parent_span_id: begun.parent.map(|parent| parent.0.to_be_bytes().to_vec()).unwrap_or_default(),
            name: if known { method.to_owned() } else { "HTTP".to_owned() },
            kind: match self.kind {
                Kind::Server => otlp::KIND_SERVER,
                Kind::Client => otlp::KIND_CLIENT,
            },
            start_time_unix_nano: nanos(end.saturating_sub(event.took)),
            end_time_unix_nano: nanos(end),
            attributes,
            status: error.map(|_| Status { code: otlp::STATUS_ERROR }),
        }
    }
}

/// The status, and what went wrong, as the conventions have it: a server's fault from 500 on, a caller's from 400 on.
fn outcome(ending: Ending, kind: Kind) -> (Option<u16>, Option<String>) {
    let error_from = if kind == Kind::Server { 500 } else { 400 };
    let of_status = |status: u16| (status >= error_from).then(|| status.to_string());
    match ending {
        Ending::Answered(status) => (Some(status), of_status(status)),
        Ending::Failed(failure) => {
            let reason = failure.place().map(|place| Failure::REASONS[place].to_owned());
            (Some(failure.status()), of_status(failure.status()).and(reason.or_else(|| of_status(failure.status()))))
        }
        Ending::Broken | Ending::Closed => (None, Some("broken".to_owned())),
    }
}

/// What a request says of itself; its query is its own affair.
fn of_request(request: &Asked<'_>) -> Vec<KeyValue> {
    let path = request.target.split('?').next().unwrap_or_default();
    let version = request.version.strip_prefix("HTTP/").unwrap_or(request.version);
    let mut attributes = vec![
        KeyValue::text("url.path", bounded(path)),
        KeyValue::text("url.scheme", "http"),
        KeyValue::text("network.protocol.name", "http"),
        KeyValue::text("network.protocol.version", version),
    ];
    for (name, key) in [("host", "server.address"), ("user-agent", "user_agent.original")] {
        request.fields.any(name, &mut |value| {
            let value = String::from_utf8_lossy(value);
            attributes.push(KeyValue::text(key, bounded(&value)));
            true
        });
    }
    attributes
}

/// The service in a cluster's name: `[SUBSET.]SERVICE.NAMESPACE.DATACENTER.internal.TRUST-DOMAIN`.
fn service(cluster: &str) -> Option<&str> {
    let (names, _) = cluster.split_once(".internal.")?;
    names.rsplit('.').nth(2)
}

fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(VALUE_BYTES_MAX)]
}

fn nanos(since: Duration) -> u64 {
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_of_a_cluster_is_known_with_and_without_a_subset() {
        for (cluster, name) in [
            ("api.default.dc1.internal.x.consul", Some("api")),
            ("v2.api.default.dc1.internal.x.consul", Some("api")),
            ("local_app", None),
        ] {
            assert_eq!(service(cluster), name);
        }
    }

    #[test]
    fn a_status_is_a_callers_fault_before_it_is_a_servers() {
        for (ending, kind, error) in [
            (Ending::Answered(404), Kind::Client, Some("404")),
            (Ending::Answered(404), Kind::Server, None),
            (Ending::Answered(500), Kind::Server, Some("500")),
            (Ending::Failed(Failure::NoEndpoint), Kind::Client, Some("no_endpoint")),
            (Ending::Failed(Failure::DENIED), Kind::Server, None),
            (Ending::Broken, Kind::Server, Some("broken")),
        ] {
            assert_eq!(outcome(ending, kind).1.as_deref(), error, "{ending:?} {kind:?}");
        }
    }
}
