//! Requests that an agent cannot answer itself: the catalog is at the servers, and they answer.
//!
//! What is checked of a request is checked here first; then it goes to a server as it came, and its answer goes back.

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};

use starling_model::NodeName;

use crate::blocking::Stopping;
use crate::error::ApiError;

/// The way from an agent to the servers' API.
#[async_trait]
pub trait ServersPort: Send + Sync + 'static {
    /// Asks a server; the answer is whatever it says. `request` has a path and a query for an address. Safe to drop.
    ///
    /// # Errors
    /// [`Unreached`] if no answer begins.
    async fn ask(&self, request: Request<Bytes>) -> Result<Response<Body>, Unreached>;
}

/// No server answered, for this reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(pub String);

/// Who answers a request at an agent that has but its part of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answerer {
    /// The agent: it is about what is here.
    Agent,
    /// A server.
    Servers,
    /// A server, and the agent while none is reached: proxies are to start without.
    ServersElseAgent,
}

impl Answerer {
    /// Of a request by its method, its path, and the path's pattern in the route table.
    pub(crate) fn of(method: &Method, path: &str, pattern: &str) -> Self {
        match pattern {
            "/v1/agent/connect/ca/roots" | "/v1/connect/ca/roots" => Self::ServersElseAgent,
            // Who the others are an agent does not know; while it reaches nobody, it is there itself.
            "/v1/agent/members" => Self::ServersElseAgent,
            // Of other entries an agent does not know whether they are there.
            "/v1/config/{kind}/{name}" if *method == Method::GET && path == "/v1/config/proxy-defaults/global" => {
                Self::ServersElseAgent
            }
            // Judged by intentions that the agent need not have.
            "/v1/agent/connect/authorize" => Self::Servers,
            // About a node that is not this one.
            "/v1/agent/force-leave/{node}" => Self::Servers,
            "/metrics" | "/starling/v1/diagnostics" => Self::Agent,
            _ if pattern.starts_with("/v1/agent/") || pattern.starts_with("/starling/v1/agent/") => Self::Agent,
            _ => Self::Servers,
        }
    }
}

/// Header fields that speak of one connection (RFC 9110, section 7.6.1), or that are made anew for the next.
const OF_ONE_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    header::HOST,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Says for which node's programs an agent asks: what they leave out is theirs. It gives no right.
pub(crate) const ASKING_NODE: &str = "x-starling-node";

/// Says that a program of the mesh asks for itself. Heard only where nobody else can ask, and taken off what is passed on.
pub const INSIDE: &str = "x-starling-inside";

/// The request as a server is to see it.
pub(crate) fn passed_on(
    method: &Method,
    target: &http::Uri,
    headers: &HeaderMap,
    body: Bytes,
    node: &NodeName,
) -> Request<Bytes> {
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.path_and_query().cloned().map_or_else(http::Uri::default, http::Uri::from);
    *request.headers_mut() = headers.clone();
    for name in OF_ONE_CONNECTION {
        request.headers_mut().remove(name);
    }
    request.headers_mut().remove(INSIDE);
    if let Ok(node) = HeaderValue::from_str(node.as_str()) {
        request.headers_mut().insert(HeaderName::from_static(ASKING_NODE), node);
    }
    request
}

/// Asks a server, unless serving ends before it has answered.
pub(crate) async fn ask(
    servers: &dyn ServersPort,
    request: Request<Bytes>,
    stopping: &Stopping,
) -> Result<Response<Body>, Unreached> {
    let ended = || Err(Unreached("this agent is ending".to_owned()));
    stopping.cuts_short(servers.ask(request)).await.unwrap_or_else(ended)
}

/// What is said when no server is reached.
pub(crate) fn unanswered(method: &Method, path: &str, reason: &Unreached) -> ApiError {
    let text = format!("this agent asks a server for {method} {path}, and none is reached: {reason}");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_answers_for_what_is_here_and_no_more() {
        use Answerer::{Agent, Servers, ServersElseAgent};
        let entry = "/v1/config/{kind}/{name}";
        for (method, path, pattern, expected) in [
            (Method::PUT, "/v1/agent/service/register", "/v1/agent/service/register", Agent),
            (Method::GET, "/v1/agent/connect/ca/leaf/web", "/v1/agent/connect/ca/leaf/{service}", Agent),
            (Method::GET, "/v1/agent/members", "/v1/agent/members", ServersElseAgent),
            (Method::GET, "/starling/v1/agent/xds", "/starling/v1/agent/xds", Agent),
            (Method::PUT, "/v1/agent/leave", "/v1/agent/leave", Agent),
            (Method::GET, "/metrics", "/metrics", Agent),
            (Method::PUT, "/v1/agent/force-leave/n2", "/v1/agent/force-leave/{node}", Servers),
            (Method::PUT, "/v1/agent/maintenance", "/v1/agent/maintenance", Agent),
            (Method::POST, "/v1/agent/connect/authorize", "/v1/agent/connect/authorize", Servers),
            (Method::GET, "/v1/catalog/nodes", "/v1/catalog/nodes", Servers),
            (Method::PUT, "/starling/v1/tokens/join", "/starling/v1/tokens/join", Servers),
            (Method::GET, "/v1/config/proxy-defaults/global", entry, ServersElseAgent),
            (Method::DELETE, "/v1/config/proxy-defaults/global", entry, Servers),
            (Method::GET, "/v1/config/service-defaults/web", entry, Servers),
            (Method::GET, "/v1/agent/connect/ca/roots", "/v1/agent/connect/ca/roots", ServersElseAgent),
        ] {
            assert_eq!(Answerer::of(&method, path, pattern), expected, "{method} {path}");
        }
    }

    #[test]
    fn what_is_of_one_connection_stays_behind() {
        let mut headers = HeaderMap::new();
        headers.insert("connection", "keep-alive".parse().unwrap());
        headers.insert("host", "127.0.0.1:8500".parse().unwrap());
        headers.insert("content-length", "2".parse().unwrap());
        headers.insert("x-consul-token", "secret".parse().unwrap());
        headers.insert(INSIDE, "1".parse().unwrap());
        let target = "http://127.0.0.1:8500/v1/config?cas=1".parse().unwrap();
        let request =
            passed_on(&Method::PUT, &target, &headers, Bytes::from_static(b"{}"), &"n1".parse().expect("a name"));
        assert_eq!(request.headers()[ASKING_NODE], "n1", "whoever else may have asked for it");
        assert_eq!(request.uri(), "/v1/config?cas=1");
        assert_eq!(request.headers().keys().collect::<Vec<_>>(), ["x-consul-token", ASKING_NODE]);
    }
}
