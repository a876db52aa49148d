//! xDS in plaintext, for the proxies of this machine: where access is controlled a proxy shows a token that may write its service, as Consul's do.
//!
//! What a proxy is sent has its service's private key in it, and whoever attaches takes the place of who was attached before. A gRPC
//! library, which cannot show a token, is judged by the agent's default one. Over TLS a proxy is known by its certificate.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use starling_agent::Proxies;
use starling_http_api::{AgentPort, BearerFailure, CatalogPort};
use starling_model::{Access, AclSecret, InstanceId, Resource, ServiceName};
use starling_rpc::{AttachError, Peer, ProxyFeed, ProxyNode, ProxySource};

/// How soon a token that ends, or a right that is taken away, ends a stream.
const JUDGED_EVERY: Duration = Duration::from_secs(5);

/// The proxies of this machine, for who may have what they are sent.
pub(crate) struct ProxiesDoor {
    pub(crate) proxies: Proxies,
    pub(crate) agent: Arc<dyn AgentPort>,
    pub(crate) catalog: Arc<dyn CatalogPort>,
}

#[async_trait]
impl ProxySource for ProxiesDoor {
    async fn attach(&self, node: ProxyNode, peer: Peer, token: Option<AclSecret>) -> Result<ProxyFeed, AttachError> {
        let id = InstanceId::new(&node.id).ok().filter(|_| matches!(peer, Peer::Loopback(_)));
        // Who is no proxy of this node is told so by what is behind this door.
        let proxy = id.and_then(|id| self.agent.service(&id)).filter(|instance| instance.is_proxy());
        let Some(proxy) = proxy else { return self.proxies.attach(node, peer, token).await };
        let claim = Claim {
            token: token.clone(),
            service: proxy.identity().clone(),
            agent: Arc::clone(&self.agent),
            catalog: Arc::clone(&self.catalog),
        };
        claim.judge().await?;
        let feed = self.proxies.attach(node, peer, token).await?;
        Ok(ProxyFeed { ends: Box::pin(claim.fails()), ..feed })
    }
}

/// That somebody may have what a proxy of a service is sent.
struct Claim {
    token: Option<AclSecret>,
    service: ServiceName,
    agent: Arc<dyn AgentPort>,
    catalog: Arc<dyn CatalogPort>,
}

impl Claim {
    /// By the token that was shown, else the agent's default one, else the anonymous one.
    async fn judge(&self) -> Result<(), AttachError> {
        let token = self.token.clone().or_else(|| self.agent.default_token());
        let bearer = self.catalog.bearer(token.as_ref().map(AclSecret::reveal)).await.map_err(unknown)?;
        bearer.require(Resource::Service, self.service.as_str(), Access::Write).map_err(|denied| AttachError::Refused {
            reason: format!("{denied} (proxies show their token by --token or CONSUL_HTTP_TOKEN)"),
        })
    }

    /// Completes when it does not hold any more; while that cannot be found out, it holds.
    async fn fails(self) -> AttachError {
        loop {
            tokio::time::sleep(JUDGED_EVERY).await;
            match self.judge().await {
                Ok(()) | Err(AttachError::Unavailable { .. }) => {}
                Err(refused) => return refused,
            }
        }
    }
}

fn unknown(failure: BearerFailure) -> AttachError {
    let reason = failure.to_string();
    match failure {
        BearerFailure::Unavailable(_) => AttachError::Unavailable { reason },
        BearerFailure::Unknown | BearerFailure::NotBootstrapped => AttachError::Refused { reason },
    }
}
