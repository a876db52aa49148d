//! The agent as the HTTP API sees it.

use std::sync::Arc;
use std::time::Duration;

use super::own_tokens::OwnTokens;
use super::reload::Reload;
use async_trait::async_trait;
use starling_agent::{
    Agent, CheckRegistration, DeregisterError, ExistingChecks, RegisterError, UpdateCheckError, WriteError,
};
use starling_http_api::{AgentFailure, AgentPort, Leaf, PrivateKeyText};
use starling_identity::{Layout, SpiffeId};
use starling_model::{
    AclSecret, Check, CheckId, CheckStatus, InstanceId, Revision, ServiceInstance, ServiceName, ServiceRegistration,
    TrustDomain,
};
use tokio::signal::unix::Signal;
use tokio::sync::watch;

/// How long a server is waited for to take in that the node leaves, before the orderly end: who asked for it waits as well, and not for
/// ever.
pub(crate) const LEFT_WITHIN: Duration = Duration::from_secs(5);

/// The agent behind the HTTP API of its process.
pub(crate) struct LocalAgent {
    agent: Arc<Agent>,
    /// The trust domain of its workloads.
    trust_domain: TrustDomain,
    /// How definition files are read anew, if there are any.
    reload: Option<Reload>,
    /// The tokens of those who show none.
    tokens: OwnTokens,
    /// Where the node may leave: turns true once it has, and the process is to end.
    has_left: Option<watch::Sender<bool>>,
}

#[async_trait]
impl AgentPort for LocalAgent {
    async fn register_service(
        &self,
        registration: ServiceRegistration,
        replace_existing_checks: bool,
    ) -> Result<Revision, AgentFailure> {
        let existing = if replace_existing_checks { ExistingChecks::Replace } else { ExistingChecks::Keep };
        Ok(self.agent.register_service(registration, existing).await.map_err(registering)?.revision)
    }

    async fn deregister_service(&self, id: &InstanceId) -> Result<Revision, AgentFailure> {
        self.agent.deregister_service(id).await.map_err(deregistering)
    }

    async fn register_check(
        &self,
        registration: starling_http_api::parse::CheckRegistration,
    ) -> Result<Revision, AgentFailure> {
        let given = CheckRegistration { spec: registration.spec, service: registration.service };
        Ok(self.agent.register_check(given).await.map_err(registering)?.revision)
    }

    async fn deregister_check(&self, id: &CheckId) -> Result<Revision, AgentFailure> {
        self.agent.deregister_check(id).await.map_err(deregistering)
    }

    async fn update_check(&self, id: &CheckId, status: CheckStatus, output: String) -> Result<Revision, AgentFailure> {
        self.agent.update_check(id, status, &output).await.map_err(|error| match error {
            UpdateCheckError::UnknownCheck(_) => AgentFailure::NotFound,
            UpdateCheckError::NotTtl(_) => {
                AgentFailure::BadRequest { path: "CheckID".to_owned(), reason: error.to_string() }
            }
            UpdateCheckError::Write(error) => writing(error),
        })
    }

    fn services(&self) -> Vec<ServiceInstance> {
        self.agent.services().into_iter().map(|service| service.instance).collect()
    }

    fn service(&self, id: &InstanceId) -> Option<ServiceInstance> {
        self.agent.service(id).map(|service| service.instance)
    }

    fn checks(&self) -> Vec<Check> {
        self.agent.checks().into_iter().map(|check| check.check).collect()
    }

    fn generation(&self) -> u64 {
        *self.agent.changes().borrow()
    }

    async fn wait_generation(&self, after: u64, timeout: Duration) {
        let mut changes = self.agent.changes();
        // Running out of time is an answer too.
        let _ = tokio::time::timeout(timeout, changes.wait_for(|generation| *generation > after)).await;
    }

    async fn leaf(&self, service: &ServiceName, after: Revision, timeout: Duration) -> Result<Leaf, AgentFailure> {
        let mut here = self.agent.services().into_iter();
        if !here.any(|local| local.instance.identity() == service) {
            return Err(AgentFailure::NotFound);
        }
        let leaves = self.agent.leaves().leaf(service).await;
        let mut leaves = leaves.map_err(|error| AgentFailure::Internal(format!("{:#}", anyhow::Error::from(error))))?;
        let _ = tokio::time::timeout(timeout, leaves.wait_for(|leaf| index(leaf) > after)).await;
        let leaf = Arc::clone(&leaves.borrow());
        Ok(Leaf {
            serial_number: leaf.serial.clone(),
            certificate_pem: leaf.certificate_chain_pem.clone(),
            private_key_pem: PrivateKeyText::new(leaf.private_key_pem.expose().to_owned()),
            service: service.clone(),
            uri: self.identity_of(service).to_uri(),
            valid_after: leaf.not_before,
            valid_before: leaf.not_after,
            created: index(&leaf),
            modified: index(&leaf),
        })
    }

    fn has_no_leaf(&self) -> bool {
        self.agent.leaves().is_empty()
    }

    fn rotate_leaves(&self) {
        self.agent.leaves().rotate();
    }

    async fn reload(&self) -> Result<Vec<String>, AgentFailure> {
        let refused = |reason: String| AgentFailure::BadRequest { path: "reload".to_owned(), reason };
        let Some(reload) = &self.reload else {
            return Err(refused("this agent was started without definition files that it could read anew".to_owned()));
        };
        reload.run(&self.agent).await.map_err(|error| refused(format!("{error:#}")))
    }

    async fn leave(&self) -> Result<(), AgentFailure> {
        let Some(has_left) = &self.has_left else {
            let reason = "this agent is part of a server".to_owned();
            return Err(AgentFailure::BadRequest { path: "leave".to_owned(), reason });
        };
        let (agent, has_left) = (Arc::clone(&self.agent), has_left.clone());
        // Apart from who asks: what was begun ends, though he hangs up.
        let leaving = tokio::spawn(async move {
            let left = tokio::time::timeout(LEFT_WITHIN, agent.leave()).await;
            match left.unwrap_or_else(|_| Err(WriteError::Unavailable("no answer in time".to_owned()))) {
                Ok(revision) => tracing::info!(%revision, "this node has left the mesh"),
                Err(error) => tracing::warn!(%error, "no server was told that this node leaves; it counts as lost"),
            }
            has_left.send_replace(true);
        });
        leaving.await.map_err(|error| AgentFailure::Internal(error.to_string()))
    }

    fn default_token(&self) -> Option<AclSecret> {
        self.tokens.default()
    }

    fn set_default_token(&self, token: Option<AclSecret>) {
        self.tokens.set_default(token);
    }

    fn dns_token(&self) -> Option<AclSecret> {
        self.tokens.dns()
    }

    fn set_dns_token(&self, token: Option<AclSecret>) {
        self.tokens.set_dns(token);
    }

    fn tokens_version(&self) -> u64 {
        self.tokens.version()
    }
}

impl LocalAgent {
    /// Reads the files anew at each such signal.
    pub(crate) async fn reload_at(self: Arc<Self>, mut hangup: Signal) {
        while hangup.recv().await.is_some() {
            match AgentPort::reload(&*self).await {
                Ok(_) => tracing::info!("the files were read anew"),
                Err(error) => tracing::error!(%error, "the files are not read anew, and all stays as it was"),
            }
        }
    }

    /// The agent, with the trust domain of its workloads, and how its files are read anew.
    pub(crate) fn new(agent: Arc<Agent>, trust_domain: TrustDomain, reload: Option<Reload>, tokens: OwnTokens) -> Self {
        Self { agent, trust_domain, reload, tokens, has_left: None }
    }

    /// The same with a node that leaves when it is asked to, upon which the process ends.
    pub(crate) fn able_to_leave(self) -> Self {
        Self { has_left: Some(watch::Sender::new(false)), ..self }
    }

    /// Returns once the node has left.
    pub(crate) async fn left(&self) {
        match &self.has_left {
            // The sender lives as long as this.
            Some(has_left) => drop(has_left.subscribe().wait_for(|left| *left).await),
            None => std::future::pending().await,
        }
    }

    fn identity_of(&self, service: &ServiceName) -> SpiffeId {
        let datacenter = self.agent.datacenter().clone();
        let (domain, namespace) = (self.trust_domain.clone(), starling_server::default_namespace());
        SpiffeId::new(Layout::Consul, domain, namespace, datacenter, service.clone())
    }
}

/// Rises with every leaf of a service, also across restarts, after which generations begin anew.
fn index(leaf: &starling_agent::Leaf) -> Revision {
    Revision(leaf.not_before.0 + leaf.generation)
}

fn registering(error: RegisterError) -> AgentFailure {
    match error {
        RegisterError::Field(error) => AgentFailure::BadRequest { path: error.field, reason: error.reason },
        RegisterError::UnknownService(_) => AgentFailure::NotFound,
        RegisterError::Write(error) => writing(error),
    }
}

fn deregistering(error: DeregisterError) -> AgentFailure {
    match error {
        DeregisterError::UnknownService(_) | DeregisterError::UnknownCheck(_) => AgentFailure::NotFound,
        DeregisterError::Write(error) => writing(error),
    }
}

fn writing(error: WriteError) -> AgentFailure {
    match error {
        WriteError::Refused(reason) => AgentFailure::BadRequest { path: "registration".to_owned(), reason },
        WriteError::Unavailable(_) | WriteError::Disk(_) | WriteError::Stopped => {
            AgentFailure::Internal(error.to_string())
        }
    }
}
