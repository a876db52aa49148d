//! The services behind a service: which they are, how they are called, and how their answers are recorded.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::{Map, Value};
use tonic::transport::{Channel, Endpoint};

use crate::answer::{Arrival, Protocol};
use crate::config::Config;
use crate::forward;
use crate::over_grpc::{self, HandleRequest};

/// Largest answer read from an upstream; a wide tree of nested answers fits, a runaway body does not.
pub(crate) const UPSTREAM_ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Idle connections kept per upstream, so that a burst does not pin its sockets for ever.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Time after which an idle upstream connection is closed; shorter than the idle limits of common proxies.
const IDLE_CONNECTION_LIFETIME: Duration = Duration::from_secs(60);

/// Counts the fake services a request has passed.
pub(crate) const HOPS_HEADER: &str = "x-fake-service-hops";

/// Code recorded for an upstream that gave no answer at all.
const NO_ANSWER: i32 = -1;

/// The URI is not one of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamUriError {
    /// Not a URI with a host.
    #[error("not a URI with a host")]
    Syntax,
    /// A scheme other than http and grpc.
    #[error("scheme {0:?} is not supported")]
    Scheme(String),
    /// Something else than host and port where they belong.
    #[error("host and port are malformed")]
    Authority,
    /// A gRPC upstream without a port, or with a path.
    #[error("a grpc URI has a host and a port, and no path")]
    GrpcForm,
}

/// One upstream, parsed from `http://host[:port][/path]` or `grpc://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    written: String,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Http(Uri),
    Grpc(Authority),
}

impl fmt::Display for Upstream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.written)
    }
}

impl FromStr for Upstream {
    type Err = UpstreamUriError;

    fn from_str(text: &str) -> Result<Self, UpstreamUriError> {
        let uri: Uri = text.parse().map_err(|_| UpstreamUriError::Syntax)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(UpstreamUriError::Syntax);
        };
        let port = authority.port_u16();
        let has_only_host = authority.as_str() == authority.host();
        if authority.host().is_empty() || port == Some(0) || (port.is_none() && !has_only_host) {
            return Err(UpstreamUriError::Authority);
        }
        let target = match scheme {
            "http" => Target::Http(uri),
            "grpc" if port.is_some() && uri.path().len() <= 1 && uri.query().is_none() => {
                Target::Grpc(authority.clone())
            }
            "grpc" => return Err(UpstreamUriError::GrpcForm),
            other => return Err(UpstreamUriError::Scheme(other.to_owned())),
        };
        Ok(Self { written: text.to_owned(), target })
    }
}

/// The outcome of all upstream calls of one request.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Each upstream's answer by its URI, in configured order.
    pub(crate) answers: Map<String, Value>,
    /// The first failure in that order.
    pub(crate) failure: Option<String>,
}

/// Clients for every upstream of a service.
pub(crate) struct Upstreams {
    routes: Vec<Route>,
    http: Client<HttpConnector, Full<Bytes>>,
    workers: usize,
    timeout: Duration,
    keep_alives: bool,
    append_request: bool,
    body: Bytes,
}

struct Route {
    /// Key of the answer: the URI, numbered when it is listed more than once.
    key: String,
    uri: String,
    peer: Peer,
}

enum Peer {
    Http(Uri),
    Grpc(Channel),
}

/// What came back from one upstream.
struct Called {
    answer: Map<String, Value>,
    code: i32,
    headers: Map<String, Value>,
    error: Option<String>,
}

impl Upstreams {
    pub(crate) fn new(config: &Config) -> anyhow::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(if config.client_keep_alives { IDLE_CONNECTIONS_MAX } else { 0 })
            .pool_idle_timeout(IDLE_CONNECTION_LIFETIME)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let mut routes: Vec<Route> = Vec::with_capacity(config.upstreams.len());
        for upstream in &config.upstreams {
            let uri = upstream.to_string();
            let earlier = routes.iter().filter(|route| route.uri == uri).count();
            let key = if earlier == 0 { uri.clone() } else { format!("{uri} ({})", earlier + 1) };
            let peer = match &upstream.target {
                Target::Http(uri) => Peer::Http(uri.clone()),
                Target::Grpc(authority) => {
                    Peer::Grpc(Endpoint::from_shared(format!("http://{authority}"))?.tcp_nodelay(true).connect_lazy())
                }
            };
            routes.push(Route { key, uri, peer });
        }
        Ok(Self {
            routes,
            http,
            workers: config.upstream_workers.max(1),
            timeout: config.client_request_timeout,
            keep_alives: config.client_keep_alives,
            append_request: config.client_append_request,
            body: Bytes::from(config.upstream_request_body.clone()),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Calls every upstream, as many at once as there are workers, and keeps going when one fails.
    pub(crate) async fn call_all(&self, arrival: &Arrival<'_>, hops: u32) -> Calls {
        let pending: Vec<_> = self.routes.iter().map(|route| self.call(route, arrival, hops)).collect();
        let mut done = futures::stream::iter(pending).buffered(self.workers);
        let mut calls = Calls::default();
        for route in &self.routes {
            let Some((answer, error)) = done.next().await else { break };
            calls.answers.insert(route.key.clone(), Value::Object(answer));
            calls.failure = calls.failure.or(error);
        }
        calls
    }

    async fn call(&self, route: &Route, arrival: &Arrival<'_>, hops: u32) -> (Map<String, Value>, Option<String>) {
        let call = async {
            match &route.peer {
                Peer::Http(uri) => self.call_http(uri, arrival, hops).await,
                Peer::Grpc(channel) => Ok(self.call_grpc(channel.clone(), arrival, hops).await),
            }
        };
        let called = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(called)) => called,
            Ok(Err(error)) => Called::none(format!("{error:#}")),
            Err(_) => Called::none(format!("no answer within {:?}", self.timeout)),
        };
        called.record(&route.uri)
    }

    async fn call_http(&self, base: &Uri, arrival: &Arrival<'_>, hops: u32) -> anyhow::Result<Called> {
        let append = self.append_request && arrival.protocol == Protocol::Http;
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = if append { forward::append_target(base, arrival.target)? } else { base.clone() };
        *request.headers_mut() =
            if append { forward::all_headers(arrival.headers) } else { forward::tracing_headers(arrival.headers) };
        request.headers_mut().insert(HOPS_HEADER, HeaderValue::from(hops));
        if !self.keep_alives {
            request.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        let (head, body) = self.http.request(request).await?.into_parts();
        let body = Limited::new(body, UPSTREAM_ANSWER_BYTES_MAX).collect().await.map_err(anyhow::Error::from_boxed)?;
        let code = head.status.as_u16();
        Ok(Called {
            answer: parse_answer(&body.to_bytes()),
            code: i32::from(code),
            headers: record_headers(&head.headers),
            error: (!head.status.is_success()).then(|| format!("expected status 200, got {code}")),
        })
    }

    async fn call_grpc(&self, channel: Channel, arrival: &Arrival<'_>, hops: u32) -> Called {
        let mut headers = forward::tracing_headers(arrival.headers);
        headers.insert(HeaderName::from_static(HOPS_HEADER), HeaderValue::from(hops));
        match over_grpc::call(channel, headers, HandleRequest { data: self.body.to_vec() }).await {
            Ok((headers, message)) => Called {
                answer: parse_answer(message.as_bytes()),
                code: tonic::Code::Ok.into(),
                headers: record_headers(&headers),
                error: None,
            },
            Err(status) => Called {
                answer: over_grpc::message_in(&status).map(|json| parse_answer(json.as_bytes())).unwrap_or_default(),
                code: status.code().into(),
                headers: Map::new(),
                error: Some(format!("expected code Ok, got {:?}: {}", status.code(), status.message())),
            },
        }
    }
}

impl Called {
    fn none(error: String) -> Self {
        Self { answer: Map::new(), code: NO_ANSWER, headers: Map::new(), error: Some(error) }
    }

    /// Adds what only the caller knows, and returns the record with the error to report upwards.
    fn record(self, uri: &str) -> (Map<String, Value>, Option<String>) {
        let mut answer = self.answer;
        answer.insert("uri".to_owned(), Value::from(uri));
        if !self.headers.is_empty() {
            answer.insert("headers".to_owned(), Value::Object(self.headers));
        }
        answer.insert("code".to_owned(), Value::from(self.code));
        if let Some(error) = &self.error {
            // What the upstream says of itself is closer to the cause than its status.
            answer.entry("error").or_insert_with(|| Value::from(error.as_str()));
        }
        let error = self.error.map(|error| format!("upstream {uri}: {error}"));
        (answer, error)
    }
}

/// Takes a fake service's answer as it is; anything else becomes the body of one.
fn parse_answer(bytes: &[u8]) -> Map<String, Value> {
    let body = match serde_json::from_slice(bytes) {
        Ok(Value::Object(answer)) if answer.contains_key("name") && answer.contains_key("code") => return answer,
        Ok(other) => other,
        Err(_) if bytes.is_empty() => return Map::new(),
        Err(_) => Value::from(String::from_utf8_lossy(bytes)),
    };
    Map::from_iter([("body".to_owned(), body)])
}

fn record_headers(headers: &HeaderMap) -> Map<String, Value> {
    let mut record: Map<String, Value> = Map::new();
    for name in headers.keys() {
        let values: Vec<_> =
            headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        record.insert(name.to_string(), Value::from(values.join(",")));
    }
    record
}
