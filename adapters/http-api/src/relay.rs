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

/// Who answers a route, and so at which listeners it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// The agent that is asked, about its own node or process. Other nodes cannot reach it: not at the port for agents.
    Agent,
    /// A server. Agents pass the request on, and the port for agents serves it.
    Servers,
    /// A server, as for [`Answerer::Servers`]; while an agent reaches none, it answers itself, so that proxies can start.
    ServersElseAgent,
    /// A server at its own listeners. It is an operator's business, and the port for agents refuses it.
    OwnListeners,
}

impl Answerer {
    /// Whether the port for agents serves the route. This is an allow-list: a new variant is refused until it is named here.
    #[must_use]
    pub fn is_for_agents(self) -> bool {
        matches!(self, Self::Servers | Self::ServersElseAgent)
    }

    /// How an agent of this request's path gets an answer. Of other config entries it does not know whether they exist.
    pub(crate) fn at_agent(self, method: &Method, path: &str) -> Self {
        match self {
            Self::Servers if *method == Method::GET && path == "/v1/config/proxy-defaults/global" => {
                Self::ServersElseAgent
            }
            Self::Agent | Self::Servers | Self::ServersElseAgent | Self::OwnListeners => self,
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
        use Answerer::{Agent, OwnListeners, Servers, ServersElseAgent};
        let entry = "/v1/config/{kind}/{name}";
        let table = crate::routes::table();
        for (method, path, pattern, expected) in [
            ("PUT", "/v1/agent/service/register", "/v1/agent/service/register", Agent),
            ("GET", "/v1/agent/connect/ca/leaf/web", "/v1/agent/connect/ca/leaf/{service}", Agent),
            ("GET", "/v1/agent/members", "/v1/agent/members", ServersElseAgent),
            ("GET", "/starling/v1/agent/xds", "/starling/v1/agent/xds", Agent),
            ("PUT", "/v1/agent/leave", "/v1/agent/leave", Agent),
            ("GET", "/metrics", "/metrics", Agent),
            ("PUT", "/v1/agent/force-leave/n2", "/v1/agent/force-leave/{node}", OwnListeners),
            ("PUT", "/v1/agent/maintenance", "/v1/agent/maintenance", Agent),
            ("POST", "/v1/agent/connect/authorize", "/v1/agent/connect/authorize", Servers),
            ("GET", "/v1/catalog/nodes", "/v1/catalog/nodes", Servers),
            ("PUT", "/starling/v1/tokens/join", "/starling/v1/tokens/join", OwnListeners),
            ("GET", "/v1/config/proxy-defaults/global", entry, ServersElseAgent),
            ("DELETE", "/v1/config/proxy-defaults/global", entry, Servers),
            ("GET", "/v1/config/service-defaults/web", entry, Servers),
            ("GET", "/v1/agent/connect/ca/roots", "/v1/agent/connect/ca/roots", ServersElseAgent),
        ] {
            let route = table.iter().find(|route| (route.method(), route.path()) == (method, pattern)).unwrap();
            let method: Method = method.parse().unwrap();
            assert_eq!(route.answerer().at_agent(&method, path), expected, "{method} {path}");
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
