//! The servers' API and DNS, for what is asked of this agent and only they can answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use starling_agent::remote::Passage;
use starling_dns::responder::TCP_BYTES_MAX;
use starling_dns::{Transport, Upstream};
use starling_http_api::{AgentPort, Body, ServersPort, Unreached};

use crate::role::dns_for_agents;

/// Resolvers ask elsewhere after some seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The way to them.
#[derive(Clone)]
pub(super) struct Servers(pub(super) Arc<Passage>);

#[async_trait]
impl ServersPort for Servers {
    async fn ask(&self, request: Request<Bytes>) -> Result<Response<Body>, Unreached> {
        let answer = self.0.ask(request).await;
        Ok(answer.map_err(|error| Unreached(error.to_string()))?.map(Body::new))
    }
}

/// Their DNS, which answers what the agent's token for it may read, else its default token.
pub(super) struct Dns {
    pub(super) servers: Servers,
    pub(super) agent: Arc<dyn AgentPort>,
}

impl Upstream for Dns {
    async fn ask(&self, packet: &[u8], transport: Transport) -> Result<Option<Vec<u8>>, starling_dns::Unreached> {
        let unreached = |reason: String| {
            tracing::debug!(reason, "a DNS question is not answered");
            starling_dns::Unreached
        };
        let by = match transport {
            Transport::Udp => format!("?{}", dns_for_agents::BY_DATAGRAM),
            Transport::Tcp => String::new(),
        };
        let target = format!("{}{by}", dns_for_agents::PATH);
        let mut request = Request::post(target);
        if let Some(token) = self.agent.dns_token().or_else(|| self.agent.default_token()) {
            request = request.header(dns_for_agents::TOKEN, token.reveal());
        }
        let request = request.body(Bytes::copy_from_slice(packet)).map_err(|error| unreached(error.to_string()))?;
        let asking = async {
            let answer = self.servers.0.ask(request).await.map_err(|error| unreached(error.to_string()))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), TCP_BYTES_MAX).collect().await;
            let body = body.map_err(|error| unreached(error.to_string()))?.to_bytes();
            match status {
                StatusCode::OK => Ok(Some(body.to_vec())),
                StatusCode::NO_CONTENT => Ok(None),
                other => Err(unreached(other.to_string())),
            }
        };
        let answered = tokio::time::timeout(ANSWER_WITHIN, asking).await;
        answered.unwrap_or_else(|_| Err(unreached("no answer in time".to_owned())))
    }
}
