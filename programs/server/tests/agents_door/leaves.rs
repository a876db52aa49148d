//! Which identities a node may bear.

use starling_model::{
    ConfigEntry, InstanceKind, LinkedName, LinkedService, OpaqueSettings, ServiceInstance, TerminatingGateway,
};
use starling_rpc::LeafRequest;

use super::*;

/// Asks for a certificate of a service; the refusal, if it is one.
async fn ask(client: &ServerClient, service: &str) -> Result<(), String> {
    let csr_der = LeafKey::generate().and_then(|key| key.csr_der()).expect("a request");
    let wanted = LeafRequest { service: service.parse().expect("a name"), csr_der };
    let answers = client.issue_leaves(vec![wanted]).await.expect("an answer");
    let answer = answers.into_iter().next().expect("one for each");
    answer.map(drop).map_err(|error| error.to_string())
}

async fn registered(mesh: &Mesh, on: &str, instances: Vec<ServiceInstance>) {
    let Record::Node(node) = records::node(on, "10.0.0.1") else { unreachable!("a node") };
    let command = Command::Register { name: node.name.clone(), node: Some(node), instances, checks: Vec::new() };
    mesh.server.commit(&command).await.expect("committed");
}

async fn linked(mesh: &Mesh, services: &[&str]) {
    let link = |name: &&str| LinkedService {
        service: LinkedName::Service(name.parse().expect("a name")),
        tls: None,
        keeps_host: false,
        allows_local: false,
    };
    let (gateway, services) = ("egress".parse().expect("a name"), services.iter().map(link).collect());
    let entry = TerminatingGateway { gateway, services, meta: std::collections::BTreeMap::new() };
    let entry = ConfigEntry::TerminatingGateway(Box::new(entry));
    mesh.server.commit(&Command::PutConfig { entry, cas: None }).await.expect("committed");
}

#[tokio::test]
async fn a_node_bears_what_runs_there_and_what_a_gateway_there_stands_for() {
    let mesh = Mesh::start().await;
    let kind = InstanceKind::TerminatingGateway(OpaqueSettings::default());
    registered(&mesh, "edge", vec![ServiceInstance { kind, ..records::instance("edge", "gw", "egress", 8443) }]).await;
    registered(&mesh, "other", vec![records::instance("other", "web", "web", 80)]).await;
    registered(&mesh, "outside", vec![records::instance("outside", "legacy", "legacy", 80)]).await;
    let (edge, other) = (mesh.connect("edge").await, mesh.connect("other").await);
    assert_eq!(ask(&edge, "egress").await, Ok(()));
    assert_eq!(ask(&other, "web").await, Ok(()));
    let refused = ask(&edge, "legacy").await.expect_err("nobody links it");
    assert!(refused.contains("no instance of legacy is registered on edge, and no gateway there stands for it"));
    linked(&mesh, &["legacy"]).await;
    assert_eq!(ask(&edge, "legacy").await, Ok(()));
    assert!(ask(&other, "legacy").await.is_err(), "the gateway is elsewhere");
    assert!(ask(&edge, "web").await.is_err(), "its entry does not name it");
    linked(&mesh, &[]).await;
    assert!(ask(&edge, "legacy").await.is_err(), "it is linked no more");
}
