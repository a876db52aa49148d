//! A server on a real store: what is acknowledged is visible and stays, waiters wake for their subject only, and
//! receipts follow the proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use starling_catalog::{Command, Subject};
use starling_model::{InstanceKey, InstanceKind, Node, Port, Revision, ServiceInstance, SidecarProxy, Weights};
use starling_server::{CommitFailure, Next, Server, ServerConfig};
use starling_telemetry::Registry;

/// Longer than anything here takes; reached only when a test fails.
const DEADLINE: Duration = Duration::from_secs(20);

async fn start(directory: &Path) -> Arc<Server> {
    let config = ServerConfig { data_dir: directory.to_owned(), datacenter: "dc1".parse().expect("a name") };
    Server::start(config, &Registry::default()).await.expect("the server starts")
}

fn register(service: &str, port: i64) -> Command {
    let node: starling_model::NodeName = "n1".parse().expect("a name");
    let instance = ServiceInstance {
        key: InstanceKey { node: node.clone(), id: service.parse().expect("an id") },
        name: service.parse().expect("a name"),
        kind: InstanceKind::Sidecar(Box::new(SidecarProxy {
            destination: service.parse().expect("a name"),
            destination_id: None,
            local_address: "127.0.0.1".to_owned(),
            local_port: None,
            upstreams: Vec::new(),
            config: serde_json::Map::new(),
        })),
        address: None,
        port: Port::try_from(port).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
    };
    let record = Node {
        name: node.clone(),
        id: String::new(),
        address: "10.0.0.1".to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    };
    Command::Register { name: node, node: Some(record), instances: vec![instance], checks: Vec::new() }
}

fn endpoints(service: &str) -> Subject {
    Subject::Endpoints(service.parse().expect("a name"))
}

#[tokio::test]
async fn what_is_acknowledged_is_visible_at_once_and_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let root = server.root().clone();
    let revision = server.commit(&register("web", 80)).await.expect("committed");
    assert!(server.snapshot().revision() >= revision);
    assert_eq!(server.snapshot().service_names().count(), 1);
    let again = server.commit(&register("web", 80)).await.expect("nothing to do");
    assert_eq!(again, revision, "an unchanged registration takes no revision");
    drop(server);
    let restarted = reopened(directory.path()).await;
    assert_eq!(restarted.snapshot().revision(), revision, "the root is trusted already, so nothing was written");
    assert_eq!(restarted.root(), &root);
    assert_eq!(restarted.snapshot().service_names().count(), 1);
}

/// The old server's tasks let go of the directory a moment after it is dropped.
async fn reopened(directory: &Path) -> Arc<Server> {
    let config = ServerConfig { data_dir: directory.to_owned(), datacenter: "dc1".parse().expect("a name") };
    let opened = async {
        loop {
            match Server::start(config.clone(), &Registry::default()).await {
                Ok(server) => return server,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, opened).await.expect("the directory is free again")
}

#[tokio::test]
async fn a_waiter_wakes_for_its_own_subject_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let before = server.commit(&register("web", 80)).await.expect("committed");
    let waiting = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.wait(&[endpoints("web")], before, DEADLINE).await })
    };
    server.commit(&register("db", 5432)).await.expect("committed");
    let short = server.wait(&[endpoints("web")], before, Duration::from_millis(1)).await;
    assert_eq!(short.subject_revision(&endpoints("web")), before, "db does not concern web");
    let changed = server.commit(&register("web", 81)).await.expect("committed");
    let snapshot = tokio::time::timeout(DEADLINE, waiting).await.expect("woken").expect("no panic");
    assert_eq!(snapshot.subject_revision(&endpoints("web")), changed);
}

#[tokio::test]
async fn concurrent_writers_of_one_entry_all_get_through() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let writers = (0..16).map(|n| {
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            let intention = starling_model::SourceIntention {
                source: format!("source-{n}").parse().expect("a name"),
                decision: starling_model::SourceDecision::Connection(starling_model::Action::Deny),
                description: String::new(),
            };
            let destination = "web".parse().expect("a name");
            server.commit(&Command::PutIntention { destination, intention }).await
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic").expect("committed");
    }
    let snapshot = server.snapshot();
    let entry = snapshot.intentions_covering(&"web".parse().expect("a name")).next().expect("there");
    assert_eq!(entry.sources.len(), 16, "no writer lost another's intention");
}

#[tokio::test]
async fn a_refused_command_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let before = server.snapshot().revision();
    let Command::Register { name, instances, checks, .. } = register("web", 80) else { unreachable!("a registration") };
    let refused = server.commit(&Command::Register { name, node: None, instances, checks }).await;
    assert!(matches!(refused, Err(CommitFailure::Refused(_))));
    assert_eq!(server.snapshot().revision(), before);
}

#[tokio::test]
async fn a_receipt_settles_when_the_proxy_reports() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    server.commit(&register("web", 80)).await.expect("committed");
    let proxy = InstanceKey { node: "n1".parse().expect("a name"), id: "web".parse().expect("an id") };
    let attached = server.attach(proxy.clone());
    attached.resubscribe(Revision(0), BTreeSet::from([endpoints("web")]));
    let elsewhere = server.commit(&register("db", 5432)).await.expect("committed");
    let report = server.change(elsewhere, Duration::ZERO).await.expect("remembered");
    assert!(report.affected.is_empty() && report.is_settled(), "nothing to do counts as applied");

    let revision = server.commit(&register("web", 81)).await.expect("committed");
    let report = server.change(revision, Duration::ZERO).await.expect("remembered");
    assert_eq!(report.pending, BTreeSet::from([proxy.clone()]));
    attached.next().await;
    let waiting = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.change(revision, DEADLINE).await })
    };
    attached.applied(revision, false);
    let report = waiting.await.expect("no panic").expect("remembered");
    assert!(report.applied.contains_key(&proxy));
    drop(attached);
    assert!(!server.proxies()[0].1.connected);
}

#[tokio::test]
async fn a_proxy_that_comes_back_is_woken_by_the_next_change() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    server.commit(&register("web", 80)).await.expect("committed");
    let proxy = InstanceKey { node: "n1".parse().expect("a name"), id: "web".parse().expect("an id") };
    let first = server.attach(proxy.clone());
    first.resubscribe(Revision(0), BTreeSet::from([endpoints("web")]));
    drop(first);
    let missed = server.commit(&register("web", 81)).await.expect("committed");
    let report = server.change(missed, Duration::ZERO).await.expect("remembered");
    assert_eq!(report.pending, BTreeSet::from([proxy.clone()]), "it is away, and owes the change");

    let second = server.attach(proxy);
    second.resubscribe(Revision(0), BTreeSet::from([endpoints("web")]));
    server.commit(&register("web", 82)).await.expect("committed");
    tokio::time::timeout(DEADLINE, second.next()).await.expect("woken");
}

#[tokio::test]
async fn a_later_stream_of_a_proxy_ends_the_earlier_and_deregistration_ends_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    server.commit(&register("web", 80)).await.expect("committed");
    let proxy = InstanceKey { node: "n1".parse().expect("a name"), id: "web".parse().expect("an id") };
    let first = server.attach(proxy.clone());
    first.resubscribe(Revision(0), BTreeSet::from([Subject::Instance(proxy.clone())]));
    let second = server.attach(proxy.clone());
    second.resubscribe(Revision(0), BTreeSet::from([Subject::Instance(proxy.clone())]));
    assert_eq!(tokio::time::timeout(DEADLINE, first.next()).await.expect("told"), Next::Superseded);
    drop(first);
    assert!(server.proxies()[0].1.connected, "the end of the earlier is not the end of the later");

    server.commit(&Command::DeregisterInstance(proxy.clone())).await.expect("committed");
    server.commit(&register("web", 80)).await.expect("committed");
    let third = server.attach(proxy.clone());
    let told = tokio::time::timeout(DEADLINE, second.next()).await.expect("told");
    assert_eq!(told, Next::Superseded, "also when it was away for a blink");
    third.resubscribe(Revision(0), BTreeSet::from([Subject::Instance(proxy.clone())]));

    server.commit(&Command::DeregisterInstance(proxy.clone())).await.expect("committed");
    assert_eq!(tokio::time::timeout(DEADLINE, third.next()).await.expect("told"), Next::Deregistered);
    let waiting = server.attach(proxy.clone());
    waiting.resubscribe(Revision(0), BTreeSet::from([Subject::Instance(proxy)]));
    assert!(server.proxies().is_empty());
    server.commit(&register("web", 80)).await.expect("committed");
    assert_eq!(tokio::time::timeout(DEADLINE, waiting.next()).await.expect("told"), Next::Changed);
}
