//! A server on a real store: what is acknowledged is visible and stays, waiters wake for their subject only, and
//! receipts follow the proxies.

#[path = "../../../core/catalog/tests/support/records.rs"]
mod records;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use starling_attach::message::{AgentSays, Hello, Resume, Subscribe, encode_subject};
use starling_catalog::{Barrier, Command, Refused, Reporter, Subject, Until};
use starling_model::{ConfigEntry, InstanceKey, Protocol, Record, Revision, ServiceDefaults};
use starling_rpc::{AgentDoor, AgentStream};
use starling_server::{CommitFailure, Door, Next, Server, ServerConfig};
use starling_telemetry::Registry;

/// Longer than anything here takes; reached only when a test fails.
const DEADLINE: Duration = Duration::from_secs(20);

async fn start(directory: &Path) -> Arc<Server> {
    start_with(directory, &Registry::default()).await
}

async fn start_with(directory: &Path, registry: &Registry) -> Arc<Server> {
    let config = ServerConfig::new(directory.to_owned(), "dc1".parse().expect("a name"));
    Server::start(config, registry).await.expect("the server starts")
}

fn register(service: &str, port: i64) -> Command {
    let Record::Node(node) = records::node("n1", "10.0.0.1") else { unreachable!("a node") };
    let instances = vec![records::sidecar("n1", service, service, service, port)];
    Command::Register { name: node.name.clone(), node: Some(node), instances, checks: Vec::new() }
}

fn endpoints(service: &str) -> Subject {
    Subject::Endpoints(service.parse().expect("a name"))
}

#[tokio::test]
async fn what_is_acknowledged_is_visible_at_once_and_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let root = server.root();
    let revision = server.commit(&register("web", 80)).await.expect("committed");
    assert!(server.snapshot().revision() >= revision);
    assert_eq!(server.snapshot().service_names().count(), 1);
    let again = server.commit(&register("web", 80)).await.expect("nothing to do");
    assert_eq!(again, revision, "an unchanged registration takes no revision");
    drop(server);
    let restarted = reopened(directory.path()).await;
    assert_eq!(restarted.snapshot().revision(), revision, "the root is trusted already, so nothing was written");
    assert_eq!(restarted.root(), root);
    assert_eq!(restarted.snapshot().service_names().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_of_what_hangs_together_all_get_their_turn() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let write = |number: usize| {
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            for round in 0..20 {
                let mut entry = ServiceDefaults::bare(format!("svc-{number}-{round}").parse().expect("a name"));
                entry.protocol = Some(Protocol::Http);
                let command = Command::PutConfig { entry: ConfigEntry::ServiceDefaults(entry), cas: None };
                server.commit(&command).await.expect("written, however many write beside");
            }
        })
    };
    for writer in (0..48).map(write).collect::<Vec<_>>() {
        writer.await.expect("it ends");
    }
}

/// The old server's tasks let go of the directory a moment after it is dropped.
async fn reopened(directory: &Path) -> Arc<Server> {
    let config = ServerConfig::new(directory.to_owned(), "dc1".parse().expect("a name"));
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
async fn of_a_hundred_thousand_watchers_a_write_wakes_those_of_its_service_alone() {
    const WATCHERS: usize = 100_000;
    const SERVICES: usize = 2_000;
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let name = |service: usize| format!("svc-{service}");
    let (tell, mut woken) = tokio::sync::mpsc::unbounded_channel();
    for watcher in 0..WATCHERS {
        let subscription = server.subscribe(BTreeSet::from([endpoints(&name(watcher % SERVICES))]));
        let tell = tell.clone();
        tokio::spawn(async move {
            loop {
                subscription.changed().await;
                if tell.send(watcher).is_err() {
                    break;
                }
            }
        });
    }
    for (service, port) in [(7, 80), (SERVICES - 1, 81), (7, 82), (0, 83)] {
        server.commit(&register(&name(service), port)).await.expect("committed");
        let concerned: BTreeSet<usize> = (service..WATCHERS).step_by(SERVICES).collect();
        let mut told = Vec::new();
        while told.len() < concerned.len() {
            let one = tokio::time::timeout(DEADLINE, woken.recv()).await;
            told.push(one.expect("all of them are woken").expect("they watch on"));
        }
        assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), concerned, "each once, and nobody else");
    }
    assert_eq!(woken.try_recv().ok(), None, "nobody was woken by what is no concern of theirs");
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
                id: None,
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
    let report = server.change(elsewhere, Duration::ZERO, 10).await.expect("remembered");
    assert!(report.counts.affected == 0 && report.is_settled(), "nothing to do counts as applied");

    let revision = server.commit(&register("web", 81)).await.expect("committed");
    let report = server.change(revision, Duration::ZERO, 10).await.expect("remembered");
    assert_eq!(report.pending, [Reporter::Proxy(proxy.clone())]);
    attached.next().await;
    let waiting = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.change(revision, DEADLINE, 10).await })
    };
    attached.applied(revision, false);
    let report = waiting.await.expect("no panic").expect("remembered");
    assert_eq!(report.applied[0].0, Reporter::Proxy(proxy));
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
    let report = server.change(missed, Duration::ZERO, 10).await.expect("remembered");
    assert_eq!(report.pending, [Reporter::Proxy(proxy.clone())], "it is away, and owes the change");

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

/// The value of a metric in the text form.
fn metric(registry: &Registry, name: &str) -> f64 {
    let text = registry.encode();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

#[tokio::test]
async fn a_receipt_speaks_of_nodes_and_barriers_wait_for_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = Registry::default();
    let server = start_with(directory.path(), &registry).await;
    let before = server.snapshot().revision();
    let revision = server.commit(&register("web", 80)).await.expect("committed");
    let subjects = BTreeSet::from([endpoints("web")]);
    let names = ["n1", "n2", "n3", "n4"].map(|name| name.parse::<starling_model::NodeName>().expect("a name"));
    let nodes = names.clone().map(|name| server.attach_node(name));
    nodes.iter().for_each(|node| node.subscribed(before, &subjects));
    let until = |text: &str| text.parse::<Until>().expect("a barrier");
    let waiting = {
        let server = Arc::clone(&server);
        let half = until("applied:50%");
        tokio::spawn(async move { server.until(revision, &half, DEADLINE).await })
    };
    nodes[0].applied(revision, false, Duration::ZERO);
    nodes[1].applied(revision, false, Duration::ZERO);
    assert_eq!(waiting.await.expect("no panic"), Some(Barrier::Met));
    let now = |barrier: &str| {
        let (server, barrier) = (Arc::clone(&server), until(barrier));
        async move { server.until(revision, &barrier, Duration::ZERO).await }
    };
    assert_eq!(now("node=n1").await, Some(Barrier::Met));
    assert_eq!(now("node=n3").await, Some(Barrier::NotYet));
    assert_eq!(now("applied:all").await, Some(Barrier::NotYet));
    assert_eq!(metric(&registry, "starling_reporters_behind"), 2.0);
    assert!(metric(&registry, "starling_staleness_seconds_max") > 0.0);
    let of = |node: usize| format!("starling_node_staleness_seconds{{node=\"{}\"}}", names[node]);
    assert!(metric(&registry, &of(3)) > 0.0);
    assert!(!registry.encode().contains(&of(0)), "only nodes that are behind have a series");
    assert_eq!(server.nodes().iter().filter(|(node, stale_for)| node.owes > 0 && !stale_for.is_zero()).count(), 2);

    let proxy = Some("web".parse().expect("an id"));
    let (type_url, text) = ("lds".to_owned(), "no such port".to_owned());
    nodes[2].rejected(Refused {
        revision,
        since: Revision(0),
        proxy: proxy.clone(),
        type_url,
        resources: Vec::new(),
        text,
    });
    nodes[2].applied(revision, true, Duration::ZERO);
    assert_eq!(now("applied:all").await, Some(Barrier::Never));
    assert_eq!(now("node=n3").await, Some(Barrier::Never));
    server.remove_node(&names[3]);
    let report = server.change(revision, DEADLINE, 10).await.expect("remembered");
    assert_eq!((report.counts.affected, report.counts.applied, report.counts.rejected), (3, 2, 1));
    assert_eq!(
        (report.counts.lost, &*report.lost),
        (1, &[Reporter::Node(names[3].clone())][..]),
        "who is lost has not applied it"
    );
    assert_eq!((&report.rejected[0].0, &report.rejected[0].1.proxy), (&Reporter::Node(names[2].clone()), &proxy));
    assert_eq!(metric(&registry, "starling_reporters_behind"), 0.0);
    assert_eq!(metric(&registry, "starling_change_convergence_seconds_count{quantile=\"0.5\"}"), 1.0);
    assert_eq!(metric(&registry, "starling_change_convergence_seconds_count{quantile=\"1\"}"), 0.0);
}

#[tokio::test]
async fn the_end_of_an_earlier_stream_of_a_node_is_not_the_end_of_the_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let name: starling_model::NodeName = "n1".parse().expect("a name");
    let first = server.attach_node(name.clone());
    let second = server.attach_node(name.clone());
    assert_eq!(first.reporter(), second.reporter(), "a node keeps its number");
    first.applied(Revision(900), false, Duration::ZERO);
    drop(first);
    let standing = |server: &Server| server.nodes().into_iter().next().expect("known").0;
    assert!(standing(&server).connected);
    assert_eq!(standing(&server).applied_through, Revision(0), "what the superseded says no longer counts");
    drop(second);
    assert!(!standing(&server).connected);
    server.remove_node(&name);
    assert!(server.nodes().is_empty());
}

/// The frames that a stream has to send.
fn taken(stream: &dyn AgentStream) -> Option<usize> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match stream.poll_take(&mut context) {
        std::task::Poll::Ready(frames) => Some(frames.expect("it is the current one").len()),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn the_end_of_an_earlier_stream_of_a_node_is_not_the_end_of_another_nodes() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let door = Door::new(Arc::clone(&server), false, None);
    let attach = |name: &str| {
        let hello = Hello { node: name.to_owned(), ..Hello::default() };
        door.attach(name.parse().expect("a name"), hello).expect("attached")
    };
    let earlier = attach("n1");
    let _later = attach("n1");
    // It has the place of the one that was taken over.
    let other = attach("n2");
    drop(earlier);
    assert!(server.is_attached(&"n2".parse().expect("a name")));
    let subject = encode_subject(&endpoints("web"));
    let subscribe = Subscribe { resumes: vec![Resume { subject, have: 0 }], reached: None, more: false };
    other.handle(AgentSays::Subscribe(subscribe)).expect("subscribed");
    assert_eq!(
        [taken(&*other), taken(&*other), taken(&*other)],
        [Some(1), Some(2), None],
        "welcome; whole and through"
    );
    server.commit(&register("web", 80)).await.expect("committed");
    assert_eq!(taken(&*other), Some(2));
}

#[tokio::test]
async fn a_node_that_agrees_with_the_catalog_is_sent_its_records_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let door = Door::new(Arc::clone(&server), false, None);
    let name = "n1".parse().expect("a name");
    server.commit(&register("web", 80)).await.expect("committed");
    let first = door.own_records(&name, None).await.expect("answered");
    assert_eq!(first.records.as_ref().map(Vec::len), Some(2));
    let same = door.own_records(&name, Some(first.revision)).await.expect("answered");
    assert_eq!(same.records, None);
    let later = Some(Revision(first.revision.0 + 1));
    assert!(door.own_records(&name, later).await.expect("answered").records.is_some(), "of another past");
    server.commit(&register("api", 81)).await.expect("committed");
    let more = door.own_records(&name, Some(first.revision)).await.expect("answered");
    assert_eq!(more.records.map(|records| records.len()), Some(3));
}
