//! Liveness against a store that is slow, or fails: the catalog comes to say how it stands.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use starling_attach::Lineage;
use starling_identity::ClusterId;
use starling_model::{Node, RecordKey, Revision};
use starling_store::{
    CommitError, EmbeddedOptions, EmbeddedStore, Lease, LoadError, Store, Transaction, Watch, WatchError,
};
use starling_telemetry::Registry;
use starling_tls::CertificateAuthority;
use tokio::sync::{Semaphore, watch};

use super::*;
use crate::agents::AgentStream;
use crate::server::ServerConfig;

/// Longer than anything here takes; reached only when a test fails.
const DEADLINE: Duration = Duration::from_secs(20);

/// A store whose commits wait at a gate, and fail if they are to.
struct Gated {
    inner: EmbeddedStore,
    gate: Semaphore,
    waiting: AtomicUsize,
    failures: AtomicUsize,
    /// When it was last asked to commit, and how often.
    asked: watch::Sender<(Instant, usize)>,
}

#[async_trait]
impl Store for Gated {
    fn id(&self) -> starling_store::StoreId {
        self.inner.id()
    }

    async fn commit(&self, transaction: Transaction) -> Result<starling_store::Revision, CommitError> {
        self.asked.send_modify(|(at, times)| (*at, *times) = (Instant::now(), *times + 1));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let passed = self.gate.acquire().await.expect("it is never closed");
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(passed);
        let fails = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if fails.is_ok() {
            return Err(CommitError::Closed);
        }
        self.inner.commit(transaction).await
    }

    async fn load(&self) -> Result<starling_store::Snapshot, LoadError> {
        self.inner.load().await
    }

    async fn watch(&self, from: starling_store::Revision) -> Result<Watch, WatchError> {
        self.inner.watch(from).await
    }

    async fn barrier(&self) -> Result<starling_store::Revision, LoadError> {
        self.inner.barrier().await
    }

    async fn lease(&self, ttl: Duration) -> Result<Option<Lease>, LoadError> {
        self.inner.lease(ttl).await
    }
}

/// A server on such a store, with one node that is registered.
struct World {
    server: Arc<Server>,
    store: Arc<Gated>,
    node: NodeName,
    _directory: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        Self::start_with(Duration::from_millis(20)).await
    }

    async fn start_with(grace: Duration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        config.grace = grace;
        let path = directory.path().join("store");
        let inner =
            EmbeddedStore::examine(&path, EmbeddedOptions::default()).expect("nothing").adopt().expect("a store");
        let (gate, waiting, failures) = (Semaphore::new(1), AtomicUsize::new(0), AtomicUsize::new(0));
        let asked = watch::Sender::new((Instant::now(), 0));
        let store = Arc::new(Gated { inner, gate, waiting, failures, asked });
        let trust_domain = ClusterId::from_random(7).trust_domain();
        let authority = CertificateAuthority::create(directory.path(), &trust_domain, crate::server::now());
        let catalog = starling_catalog::Snapshot::default();
        let server = Server::run(
            config,
            Arc::clone(&store) as _,
            catalog,
            Lineage::default(),
            crate::signer::Signer::own(authority.expect("a CA")),
            &Registry::default(),
        )
        .await;
        let world = Self {
            server: server.expect("it runs"),
            store,
            node: "n1".parse().expect("a name"),
            _directory: directory,
        };
        let record = Node {
            name: world.node.clone(),
            id: String::new(),
            address: "10.0.0.1".to_owned(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
        };
        world.change(Change::Put(Record::Node(record))).await;
        world
    }

    async fn change(&self, change: Change) {
        let command = Command::of_node(self.node.clone(), vec![change]);
        self.server.commit(&command).await.expect("committed");
    }

    async fn attach(&self) -> AgentStream {
        self.server.attach_agent(self.node.clone()).await.expect("it is not leaving")
    }

    fn status(&self) -> Option<(CheckStatus, Revision)> {
        let snapshot = self.server.snapshot();
        snapshot.check(&self.node, &liveness_check()).map(|check| (check.value.status, check.modified))
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let held = async {
            while !holds(self) {
                // What the store is asked is announced nowhere, so it is looked at again soon.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(DEADLINE, held).await.unwrap_or_else(|_| panic!("{what}: {:?}", self.status()));
    }

    async fn until_status(&self, wanted: CheckStatus) {
        self.until(wanted.as_str(), |world| world.status().is_some_and(|(status, _)| status == wanted)).await;
    }
}

#[tokio::test]
async fn a_node_that_is_back_while_it_is_written_as_lost_counts_as_alive() {
    let world = World::start().await;
    let first = world.attach().await;
    let (status, before) = world.status().expect("written");
    assert_eq!(status, CheckStatus::Passing);
    let closed = world.store.gate.acquire().await.expect("it is never closed");
    drop(first);
    world.until("the loss is being written", |world| world.store.waiting.load(Ordering::SeqCst) == 1).await;
    // Nothing more is written of anybody until the loss is.
    let kind = crate::agents::StreamKind { standby: false, level: 0 };
    let _second = world.server.agents().attach(world.node.clone(), kind).expect("it is not leaving");
    let server = Arc::clone(&world.server);
    let node = world.node.clone();
    let noted = tokio::spawn(async move { server.write_liveness(&node).await });
    drop(closed);
    noted.await.expect("it does not panic");
    let is_back = |world: &World| {
        world.status().is_some_and(|(status, at)| status == CheckStatus::Passing && at.0 >= before.0 + 2)
    };
    world.until("lost, and alive after that", is_back).await;
}

#[tokio::test]
async fn what_the_store_did_not_take_is_written_later() {
    let world = World::start().await;
    world.store.failures.store(1, Ordering::SeqCst);
    let stream = world.attach().await;
    assert_eq!(world.status(), None, "the store failed");
    world.until_status(CheckStatus::Passing).await;
    world.store.failures.store(1, Ordering::SeqCst);
    drop(stream);
    world.until_status(CheckStatus::Critical).await;
    assert_eq!(world.store.failures.load(Ordering::SeqCst), 0, "it failed once");
}

#[tokio::test]
async fn a_node_whose_check_was_deleted_is_lost_like_any_other() {
    let world = World::start().await;
    let stream = world.attach().await;
    world.change(Change::Delete(RecordKey::Check(world.node.clone(), liveness_check()))).await;
    assert_eq!(world.status(), None);
    drop(stream);
    world.until_status(CheckStatus::Critical).await;
}

#[tokio::test]
async fn of_a_node_that_is_not_in_the_catalog_nothing_is_written() {
    let world = World::start().await;
    let before = world.server.snapshot().revision();
    world.server.write_liveness(&"n2".parse().expect("a name")).await;
    assert_eq!(world.server.snapshot().revision(), before);
}

/// By a clock that stands still while somebody works: what is left of the second that a loss may take beyond the grace is
/// the disk's and the wire's.
#[tokio::test]
async fn a_node_is_written_as_lost_as_soon_as_its_grace_is_over_and_not_before() {
    let grace = Duration::from_secs(10);
    let world = World::start_with(grace).await;
    let stream = world.attach().await;
    let (first, others) = (world.node.clone(), LIVENESS_NODES_MAX - 1);
    let mut asked = world.store.asked.subscribe();
    tokio::time::pause();
    let gone = Instant::now();
    drop(stream);
    asked.changed().await.expect("it is there");
    assert_soon_after(grace, asked.borrow_and_update().0 - gone);
    tokio::time::resume();
    world.until_status(CheckStatus::Critical).await;

    // As soon for as many as are written at once; and a second later where the store failed.
    let names = (0..others).map(|number| format!("rack-{number}").parse::<NodeName>().expect("a name"));
    let mut streams = Vec::new();
    for node in names.chain([first]) {
        let Some(record) = world.server.snapshot().node(&world.node).map(|node| node.value.clone()) else { panic!() };
        let changes = vec![Change::Put(Record::Node(Node { name: node.clone(), ..record }))];
        world.server.commit(&Command::of_node(node.clone(), changes)).await.expect("committed");
        streams.push(world.server.attach_agent(node).await.expect("it is not leaving"));
    }
    let before = asked.borrow_and_update().1;
    world.store.failures.store(1, Ordering::SeqCst);
    tokio::time::pause();
    let gone = Instant::now();
    drop(streams);
    asked.wait_for(|(_, times)| *times == before + 1).await.expect("it is there");
    assert_soon_after(grace, asked.borrow_and_update().0 - gone);
    asked.wait_for(|(_, times)| *times == before + 2).await.expect("it is there");
    assert_soon_after(grace + RETRY, asked.borrow_and_update().0 - gone);
}

/// Each timer on the way goes off at the next whole millisecond.
#[track_caller]
fn assert_soon_after(due: Duration, was: Duration) {
    assert!(due <= was && was <= due + Duration::from_millis(10), "{was:?} instead of {due:?}");
}

#[tokio::test(start_paused = true)]
async fn the_node_of_this_process_is_waited_for_by_nobody_and_never_lost() {
    let own = "n1".parse::<NodeName>().expect("a name");
    let liveness = Liveness::new(GRACE_DEFAULT, [own.clone()].into_iter());
    liveness.is_beside(&own);
    tokio::time::advance(RETURN_MAX * 2).await;
    assert!(liveness.take_lost().0.is_empty(), "it was alive when the server last knew, and it never attaches");
    assert!(liveness.is_waited_for(&own));
}

#[tokio::test(start_paused = true)]
async fn those_who_are_away_with_their_relay_are_waited_for_while_others_of_them_come() {
    let node = |name: &str| name.parse::<NodeName>().expect("a name");
    let liveness = Liveness::new(GRACE_DEFAULT, std::iter::empty());
    liveness.is_away_with_its_relay(&node("n1"));
    liveness.is_away_with_its_relay(&node("n2"));
    liveness.is_away(&node("n3"));
    tokio::time::advance(GRACE_DEFAULT * 8 / 10).await;
    liveness.has_come_back();
    liveness.is_here(&node("n1"));
    tokio::time::advance(GRACE_DEFAULT * 9 / 10).await;
    assert_eq!(liveness.take_lost().0, [node("n3")], "it is away by itself");
    tokio::time::advance(GRACE_DEFAULT * 2 / 10).await;
    assert_eq!(liveness.take_lost().0, [node("n2")]);
}
