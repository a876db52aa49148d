//! The server as the agent of the same process sees it: nothing stands between them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use starling_agent::{AliasView, IssuedLeaf, LinkError, MeshView, OwnRecords, ProxyNext, ProxyWatch, ServerLink};
use starling_catalog::{Command, MeshRead, Refused, Snapshot, Subject};
use starling_model::{Change, InstanceId, InstanceKey, NodeName, Record, Revision, ServiceName};
use starling_server::{CommitFailure, Next, ProxySubscription, Server};

/// The way from this node's agent to the server.
pub(super) struct Link {
    pub(super) node: NodeName,
    pub(super) server: Arc<Server>,
}

#[async_trait]
impl ServerLink for Link {
    async fn commit(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        let command = Command::Node { name: self.node.clone(), changes };
        self.server.commit(&command).await.map_err(|failure| match failure {
            CommitFailure::Refused(refusal) => LinkError::Refused(refusal.to_string()),
            invalid @ CommitFailure::Invalid(_) => LinkError::Refused(format!("{:#}", anyhow::Error::from(invalid))),
            other @ (CommitFailure::Contended | CommitFailure::Halted(_) | CommitFailure::Store(_)) => {
                LinkError::Unavailable(format!("{:#}", anyhow::Error::from(other)))
            }
        })
    }

    async fn own_records(&self) -> Result<OwnRecords, LinkError> {
        let snapshot = self.server.snapshot();
        let node = snapshot.node(&self.node).map(|node| Record::Node(node.value.clone()));
        let instances = snapshot.instances_on(&self.node).map(|instance| Record::Instance(instance.value.clone()));
        let checks = snapshot.checks_on(&self.node).map(|check| Record::Check(check.value.clone()));
        let records = node.into_iter().chain(instances).chain(checks).collect();
        Ok(OwnRecords { revision: snapshot.revision(), records })
    }

    async fn issue_leaf(&self, service: &ServiceName, csr_der: Vec<u8>) -> Result<IssuedLeaf, LinkError> {
        let snapshot = self.server.snapshot();
        if !snapshot.instances_on(&self.node).any(|instance| instance.value.identity() == service) {
            return Err(LinkError::Refused(format!("no instance of {service} is registered on {}", self.node)));
        }
        let (server, service) = (Arc::clone(&self.server), service.clone());
        // Signing takes tens of microseconds, but thousands may come at once.
        let signed = tokio::task::spawn_blocking(move || server.issue_leaf(&service, &csr_der)).await;
        let leaf = signed
            .map_err(|error| LinkError::Unavailable(error.to_string()))?
            .map_err(|error| LinkError::Refused(error.to_string()))?;
        Ok(IssuedLeaf {
            certificate_pem: leaf.certificate_pem,
            chain_pem: leaf.chain_pem,
            serial: leaf.serial,
            not_before: leaf.not_before,
            not_after: leaf.not_after,
        })
    }

    fn follow_checks(&self, node: &NodeName, service: Option<&InstanceId>) -> BoxStream<'static, AliasView> {
        let subscription = self.server.subscribe(BTreeSet::from([Subject::Node(node.clone())]));
        let (server, node, service) = (Arc::clone(&self.server), node.clone(), service.cloned());
        let first = stream::once({
            let view = view(&server.snapshot(), &node, service.as_ref());
            async move { view }
        });
        let later = stream::unfold((server, subscription, node, service), |state| async move {
            state.1.changed().await;
            let view = view(&state.0.snapshot(), &state.2, state.3.as_ref());
            Some((view, state))
        });
        first.chain(later).boxed()
    }
}

fn view(snapshot: &Snapshot, node: &NodeName, service: Option<&InstanceId>) -> AliasView {
    let exists = match service {
        None => snapshot.node(node).is_some(),
        Some(id) => snapshot.instance(&InstanceKey { node: node.clone(), id: id.clone() }).is_some(),
    };
    let concerns = |of: Option<&InstanceId>| of.is_none() || of == service;
    let checks = snapshot.checks_on(node).map(|check| &check.value);
    let checks = checks.filter(|check| concerns(check.service.as_ref().map(|service| &service.id)));
    AliasView { exists, checks: checks.cloned().collect() }
}

/// The catalog as the feeds of local proxies see it.
pub(super) struct View(pub(super) Arc<Server>);

impl MeshView for View {
    fn mesh(&self) -> Arc<dyn MeshRead + Send + Sync> {
        self.0.snapshot()
    }

    fn attach(&self, proxy: &InstanceKey) -> Box<dyn ProxyWatch> {
        Box::new(Watch(self.0.attach(proxy.clone())))
    }
}

struct Watch(ProxySubscription);

#[async_trait]
impl ProxyWatch for Watch {
    fn resubscribe(&self, as_of: Revision, subjects: BTreeSet<Subject>) {
        self.0.resubscribe(as_of, subjects);
    }

    async fn next(&self) -> ProxyNext {
        match self.0.next().await {
            Next::Changed => ProxyNext::Changed,
            Next::Deregistered => ProxyNext::Deregistered,
            Next::Superseded => ProxyNext::Superseded,
        }
    }

    fn applied(&self, through: Revision, refusals_stand: bool) {
        self.0.applied(through, refusals_stand);
    }

    fn rejected(&self, refused: Refused) {
        self.0.rejected(refused);
    }
}
