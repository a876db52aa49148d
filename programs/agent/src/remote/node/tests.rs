//! What is registered with the agent is known to the replica, whenever it was registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use starling_catalog::MeshRead;
use starling_model::{
    Change, Datacenter, InstanceKind, NodeName, Port, ServiceInstance, ServiceName, ServiceRegistration, Weights,
};

use super::*;
use crate::link::{AliasView, IssuedLeaf, LinkError, OwnRecords, ServerLink};
use crate::registrations::ExistingChecks;
use crate::system_clock;

/// A server that takes everything and knows nothing.
struct Takes;

#[async_trait]
impl ServerLink for Takes {
    async fn commit(&self, _: Vec<Change>) -> Result<Revision, LinkError> {
        Ok(Revision(1))
    }

    async fn own_records(&self, _: Option<Revision>) -> Result<OwnRecords, LinkError> {
        Ok(OwnRecords { revision: Revision(1), again_after_s: 60, records: Some(Vec::new()) })
    }

    async fn issue_leaf(&self, _: &ServiceName, _: Vec<u8>) -> Result<IssuedLeaf, LinkError> {
        Err(LinkError::Unavailable("nothing is signed".to_owned()))
    }

    fn follow_checks(&self, _: &NodeName, _: Option<&InstanceId>) -> BoxStream<'static, AliasView> {
        stream::empty().boxed()
    }
}

fn node() -> Node {
    Node {
        name: NodeName::new("n1").unwrap(),
        id: "0f0e0d0c-0b0a-0908-0706-050403020100".to_owned(),
        address: "127.0.0.1".to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    }
}

async fn agent(data_dir: &Path) -> Arc<Agent> {
    let config = AgentConfig {
        node: node(),
        locality: None,
        datacenter: Datacenter::new("dc1").unwrap(),
        data_dir: data_dir.to_owned(),
        script_checks: crate::ScriptChecks::NONE,
        sidecar_ports: 2..=6,
        services_of_files: BTreeSet::new(),
        checks_of_files: BTreeSet::new(),
        clock: system_clock(),
    };
    Arc::new(Agent::start(config, Arc::new(Takes)).await.unwrap())
}

fn web() -> ServiceInstance {
    ServiceInstance {
        key: InstanceKey { node: node().name, id: InstanceId::new("web").unwrap() },
        name: ServiceName::new("web").unwrap(),
        kind: InstanceKind::Typical,
        address: None,
        port: Port::try_from(8080).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    }
}

#[tokio::test]
async fn what_is_registered_before_the_task_that_follows_runs_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let agent = agent(directory.path()).await;
    let mirror = Mirror::new(Replica::default(), []);
    let hub = Arc::new(Switch {
        mirror: Arc::clone(&mirror),
        welcome: watch::Sender::new(None),
        native: Mutex::new(None),
        in_force: None,
        servers: Arc::new(Servers::new(node().name, Vec::new())),
    });
    let follow = hub.begin_to_follow(&agent);
    let given = ServiceRegistration { instance: web(), checks: Vec::new(), sidecar: None };
    agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    let known = async {
        while mirror.replica().instance(&web().key).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = known => {}
        () = follow => panic!("the agent is there, and so are its changes"),
        () = tokio::time::sleep(Duration::from_secs(10)) => panic!("what was registered is not in the replica"),
    }
}
