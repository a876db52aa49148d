//! The server as the agent of the same process sees it: nothing stands between them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use starling_agent::{AliasView, IssuedLeaf, LinkError, MeshView, OwnRecords, ProxyNext, ProxyWatch, ServerLink};
use starling_catalog::{MeshRead, Refused, Subject};
use starling_model::{Change, InstanceId, InstanceKey, Member, NodeName, Revision, ServiceName};
use starling_rpc::{AgentDoor, Credential, LeafRequest};
use starling_server::{Door, Next, ProxySubscription, Server};

/// The way from this node's agent to the server: the door that agents of other nodes come to.
pub(super) struct Link {
    pub(super) node: NodeName,
    pub(super) door: Arc<Door>,
}

#[async_trait]
impl ServerLink for Link {
    async fn commit(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        let own = Credential { member: Member::Node(self.node.clone()), key: None };
        Ok(self.door.commit(&own, changes).await?)
    }

    async fn own_records(&self, since: Option<Revision>) -> Result<OwnRecords, LinkError> {
        Ok(self.door.own_records(&self.node, since).await?)
    }

    async fn issue_leaf(&self, service: &ServiceName, csr_der: Vec<u8>) -> Result<IssuedLeaf, LinkError> {
        let wanted = LeafRequest { service: service.clone(), csr_der };
        let issued = self.door.issue_leaves(&self.node, vec![wanted]).await?.pop();
        Ok(issued.unwrap_or_else(|| Err(starling_rpc::CallError::unavailable("no answer")))?)
    }

    fn follow_checks(&self, node: &NodeName, service: Option<&InstanceId>) -> BoxStream<'static, AliasView> {
        let views = self.door.follow_checks(node, service).scan((), |(), view| std::future::ready(view.ok()));
        views.map(|view| AliasView { exists: view.exists, checks: view.checks }).boxed()
    }
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
