//! Commands that are larger than a transaction of the store may be.

#[path = "../../../core/catalog/tests/support/records.rs"]
mod records;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use starling_catalog::{Command, Reporter, Subject};
use starling_model::{
    Change, InstanceKey, InstanceKind, NodeName, OpaqueSettings, Port, Record, ServiceInstance, SidecarProxy,
};
use starling_server::{CommitFailure, Server, ServerConfig};
use starling_store::{CommitError, MAX_TRANSACTION_BYTES};
use starling_telemetry::Registry;

/// Enough that 128 of them, the most writes of a transaction, are more bytes than it may hold.
const RECORD_BYTES: usize = 10 * 1024;

async fn start(directory: &Path) -> Arc<Server> {
    let config = ServerConfig::new(directory.to_owned(), "dc1".parse().expect("a name"));
    Server::start(config, &Registry::default()).await.expect("the server starts")
}

fn node() -> NodeName {
    "n1".parse().expect("a name")
}

fn key(id: &str) -> InstanceKey {
    InstanceKey { node: node(), id: id.parse().expect("an id") }
}

fn instance(id: &str, bytes: usize) -> ServiceInstance {
    ServiceInstance { tags: vec!["x".repeat(bytes)], ..records::instance("n1", id, "web", 80) }
}

fn register(instances: Vec<ServiceInstance>) -> Command {
    let Record::Node(record) = records::node("n1", "10.0.0.1") else { unreachable!("a node") };
    Command::Register { name: node(), node: Some(record), instances, checks: Vec::new() }
}

fn many() -> Vec<ServiceInstance> {
    (0..300).map(|number| instance(&format!("web-{number}"), RECORD_BYTES)).collect()
}

#[tokio::test]
async fn a_command_over_both_limits_takes_several_transactions_and_is_visible_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let before = server.snapshot().revision();
    let revision = server.commit(&register(many())).await.expect("committed");
    let least = (300 * RECORD_BYTES).div_ceil(MAX_TRANSACTION_BYTES) as u64;
    assert!((least..300).contains(&(revision.0 - before.0)), "from {before:?} to {revision:?}");
    let snapshot = server.snapshot();
    assert!(snapshot.revision() >= revision);
    assert_eq!(snapshot.instances_on(&node()).count(), 300);
    let newest = snapshot.instances_on(&node()).map(|instance| instance.modified).max();
    assert_eq!(newest, Some(revision), "the revision is that of the last transaction");

    let removed = server.commit(&Command::DeregisterNode(node())).await.expect("committed");
    assert!(removed.0 - revision.0 >= 3, "deletes are small, but many");
    assert!(server.snapshot().node(&node()).is_none());
}

#[tokio::test]
async fn the_receipt_of_such_a_command_names_the_proxies_of_every_part() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let mut proxies = Vec::new();
    for (id, port) in [("first", 21_000), ("last", 21_001)] {
        let mut sidecar = instance(id, 1);
        sidecar.port = Port::try_from(port).ok();
        sidecar.kind = InstanceKind::Sidecar(Box::new(SidecarProxy {
            destination: "web".parse().expect("a name"),
            destination_id: None,
            local_address: "127.0.0.1".to_owned(),
            local_port: None,
            upstreams: Vec::new(),
            config: OpaqueSettings::default(),
            transparent: None,
            kept: starling_model::OpaqueSettings::default(),
        }));
        proxies.push(sidecar.key.clone());
        server.commit(&register(vec![sidecar])).await.expect("committed");
    }
    let watched = [key("web-0"), key("web-299")].map(Subject::Instance);
    let attached: Vec<_> = proxies.iter().map(|proxy| server.attach(proxy.clone())).collect();
    for (attached, subject) in attached.iter().zip(watched) {
        attached.resubscribe(server.snapshot().revision(), BTreeSet::from([subject]));
    }
    let revision = server.commit(&register(many())).await.expect("committed");
    let report = server.report(revision, 10).expect("remembered");
    assert_eq!(report.pending, proxies.into_iter().map(Reporter::Proxy).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rival_between_two_transactions_leaves_no_instances_without_their_node() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    for _ in 0..20 {
        let first = server.snapshot().revision();
        let rival = async {
            // Comes when the first transaction is there.
            let _ = server.wait(&[Subject::Node(node())], first, std::time::Duration::from_secs(10)).await;
            server.commit(&Command::DeregisterNode(node())).await
        };
        let registration = register(many());
        let (registered, removed) = tokio::join!(server.commit(&registration), rival);
        let (registered, removed) = (registered.expect("registered"), removed.expect("removed"));
        let snapshot = server.snapshot();
        if snapshot.node(&node()).is_none() {
            let left = snapshot.instances_on(&node()).count();
            assert_eq!(left, 0, "registered at {registered:?}, removed at {removed:?}");
        }
        server.commit(&Command::DeregisterNode(node())).await.expect("removed");
    }
}

#[tokio::test]
async fn a_record_that_no_transaction_holds_is_refused_and_nothing_before_it_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let before = server.snapshot().revision();
    let mut instances = many();
    instances.push(instance("huge", MAX_TRANSACTION_BYTES));
    let refused = server.commit(&register(instances)).await;
    assert!(matches!(refused, Err(CommitFailure::Invalid(CommitError::TooLarge { .. }))), "{refused:?}");
    // A write that is taken is published after everything that was written before it.
    let next = server.commit(&register(Vec::new())).await.expect("committed");
    assert_eq!(next.0, before.0 + 1);
    assert_eq!(server.snapshot().instances_on(&node()).count(), 0);
}

#[tokio::test]
async fn a_record_that_is_changed_twice_is_refused_also_when_the_two_would_go_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let before = server.snapshot().revision();
    let mut instances = many();
    instances.push(instance("web-0", 1));
    let changes = instances.into_iter().map(|instance| Change::Put(Record::Instance(instance))).collect();
    let refused = server.commit(&Command::of_node(node(), changes)).await;
    assert!(matches!(refused, Err(CommitFailure::Invalid(CommitError::DuplicateKey { .. }))), "{refused:?}");
    assert_eq!(server.snapshot().revision(), before);
}
