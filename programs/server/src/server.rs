//! The server itself: what it is made of, and how it starts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use arc_swap::ArcSwap;
use starling_catalog::{Barrier, ChangeReport, Command, ProxyReport, Reporter, Snapshot, Subject, Until};
use starling_identity::{ClusterId, IssuanceRules, Layout, SpiffeId};
use starling_model::{Datacenter, InstanceKey, Namespace, NodeName, Revision, ServiceName, UnixSeconds};
use starling_store::{EmbeddedOptions, EmbeddedStore, Store};
use starling_telemetry::{Counter, Gauge, Registry};
use starling_tls::{CertificateAuthority, IssueError, IssuedLeaf, OpenError};
use tokio::sync::watch;

use crate::commit::CommitFailure;
use crate::convergence::{self, Convergence};
use crate::hub::{AttachedNode, Hub, ProxySubscription, Subscription};
use crate::turn;

/// How often those who wait for a receipt look at what has come since the last mark. Settling wakes them at once.
const PROGRESS_STEP: Duration = Duration::from_millis(50);

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where the store and the CA keep their files.
    pub data_dir: PathBuf,
    /// The datacentre it serves.
    pub datacenter: Datacenter,
}

/// A running server. Reads go to [`Server::snapshot`], writes to [`Server::commit`].
pub struct Server {
    config: ServerConfig,
    store: Arc<dyn Store>,
    snapshot: ArcSwap<Snapshot>,
    /// The revision of the published snapshot, for those who wait for it.
    published: watch::Sender<Revision>,
    /// Why the catalog no longer follows the store, once it does not.
    halted: watch::Sender<Option<Arc<str>>>,
    hub: Arc<Hub>,
    authority: CertificateAuthority,
    metrics: Metrics,
}

/// How far a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStanding {
    /// The node.
    pub node: NodeName,
    /// What its agent reported.
    pub report: ProxyReport,
    /// Revisions between what it has applied and the newest; 0 if it owes nothing.
    pub behind_by: u64,
    /// Since when the oldest change that it owes waits; zero if it owes nothing.
    pub behind_for: Duration,
}

struct Metrics {
    changes: Counter,
    revision: Gauge,
    leaves: Counter,
}

impl Server {
    /// Opens the store and the CA under the data directory, loads the catalog and begins to follow the store.
    ///
    /// # Errors
    /// When the store or the CA cannot be opened; nothing in the directory is overwritten then.
    pub async fn start(config: ServerConfig, registry: &Registry) -> anyhow::Result<Arc<Self>> {
        let directory = config.data_dir.join("store");
        let opened =
            tokio::task::spawn_blocking(move || EmbeddedStore::open(&directory, EmbeddedOptions::default())).await?;
        let store: Arc<dyn Store> = Arc::new(opened?);
        let snapshot = turn::load(&*store).await?;
        let authority = open_authority(&config)?;
        let revision = snapshot.revision();
        let watch = store.watch(starling_store::Revision(revision.0)).await?;
        let hub = Arc::new(Hub::new(Convergence::new(registry)));
        convergence::register_staleness(registry, &hub);
        let server = Arc::new(Self {
            config,
            store,
            snapshot: ArcSwap::from_pointee(snapshot),
            published: watch::Sender::new(revision),
            halted: watch::Sender::new(None),
            hub,
            authority,
            metrics: Metrics::new(registry),
        });
        supervise(&server, watch);
        server.commit(&Command::PutRoot(server.authority.root().clone())).await.context("publishing the CA's root")?;
        Ok(server)
    }

    /// The catalog as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The datacentre it serves.
    #[must_use]
    pub fn datacenter(&self) -> &Datacenter {
        &self.config.datacenter
    }

    /// The CA's root and trust domain.
    #[must_use]
    pub fn root(&self) -> &starling_model::CaRootRecord {
        self.authority.root()
    }

    /// The identity of a service's workloads.
    #[must_use]
    pub fn identity_of(&self, service: &ServiceName) -> SpiffeId {
        let trust_domain = self.authority.trust_domain().clone();
        let datacenter = self.config.datacenter.clone();
        SpiffeId::new(Layout::Consul, trust_domain, default_namespace(), datacenter, service.clone())
    }

    /// Signs a workload's certificate; the name in it is ours, never the request's.
    ///
    /// # Errors
    /// [`IssueError`] if the request proves no key, or the rules forbid it.
    pub fn issue_leaf(&self, service: &ServiceName, csr_der: &[u8]) -> Result<IssuedLeaf, IssueError> {
        let identity = self.identity_of(service);
        let leaf = self.authority.issue_leaf(csr_der, &identity, &IssuanceRules::default(), now(), None)?;
        self.metrics.leaves.inc();
        Ok(leaf)
    }

    /// Signs the certificate of this server's own TLS listeners.
    ///
    /// # Errors
    /// [`IssueError`], as for leaves.
    pub fn issue_server(&self, csr_der: &[u8], addresses: &[std::net::IpAddr]) -> Result<IssuedLeaf, IssueError> {
        self.authority.issue_server(csr_der, &self.config.datacenter, addresses, &IssuanceRules::default(), now())
    }

    /// Subscribes a reader to subjects.
    #[must_use]
    pub fn subscribe(&self, subjects: BTreeSet<Subject>) -> Subscription {
        self.hub.subscribe(subjects)
    }

    /// Attaches a proxy's stream; receipts speak of it from now on.
    #[must_use]
    pub fn attach(&self, proxy: InstanceKey) -> ProxySubscription {
        self.hub.attach(proxy)
    }

    /// A node's agent has attached; receipts speak of the node from now on.
    #[must_use]
    pub fn attach_node(&self, node: NodeName) -> AttachedNode {
        self.hub.attach_node(node)
    }

    /// A node is lost or deregistered: receipts expect nothing more of it until it attaches anew.
    pub fn remove_node(&self, node: &NodeName) {
        self.hub.remove_node(node);
    }

    /// Returns the snapshot as soon as one of the subjects is past `after`, or when the time is over.
    pub async fn wait(&self, subjects: &[Subject], after: Revision, timeout: Duration) -> Arc<Snapshot> {
        // Subscribe before looking, so that nothing falls between.
        let subscription = self.subscribe(subjects.iter().cloned().collect());
        let past = |snapshot: &Snapshot| subjects.iter().any(|subject| snapshot.subject_revision(subject) > after);
        let changed = async {
            while !past(&self.snapshot()) {
                subscription.changed().await;
            }
        };
        // A timeout is an answer too: the snapshot as it is.
        let _ = tokio::time::timeout(timeout, changed).await;
        self.snapshot()
    }

    /// The receipt of a change, as soon as nothing is outstanding or the time is over, with at most `names` names of
    /// each kind; `None` if it is not remembered.
    pub async fn change(&self, revision: Revision, timeout: Duration, names: usize) -> Option<ChangeReport> {
        self.look_until(timeout, || self.hub.is_settled(revision) != Some(false)).await;
        self.hub.report(revision, names)
    }

    /// How it stands with a barrier behind a change, as soon as that is decided or the time is over; `None` if the change
    /// is not remembered.
    pub async fn until(&self, revision: Revision, until: &Until, timeout: Duration) -> Option<Barrier> {
        self.look_until(timeout, || self.hub.holds(revision, until) != Some(Barrier::NotYet)).await;
        self.hub.holds(revision, until)
    }

    /// Looks at the receipts until what is waited for is decided or the time is over.
    async fn look_until(&self, timeout: Duration, is_decided: impl Fn() -> bool) {
        let mut progress = self.hub.progress();
        let decided = async {
            while !is_decided() {
                // Whichever comes first, it is time for another look.
                let _ = tokio::time::timeout(PROGRESS_STEP, progress.changed()).await;
            }
        };
        let _ = tokio::time::timeout(timeout, decided).await;
    }

    /// The revisions whose receipts are remembered, newest first.
    #[must_use]
    pub fn changes(&self) -> Vec<Revision> {
        self.hub.revisions()
    }

    /// The receipt of a change as it stands, with at most `names` names of each kind.
    #[must_use]
    pub fn report(&self, revision: Revision, names: usize) -> Option<ChangeReport> {
        self.hub.report(revision, names)
    }

    /// Every proxy that was attached and is registered.
    #[must_use]
    pub fn proxies(&self) -> Vec<(InstanceKey, ProxyReport)> {
        let snapshot = self.snapshot();
        let proxies = self.hub.reporters().into_iter().filter_map(|(reporter, report)| match reporter {
            // One that waits to be registered again is none of the mesh's meanwhile.
            Reporter::Proxy(key) => snapshot.instance(&key).is_some().then_some((key, report)),
            Reporter::Node(_) => None,
        });
        proxies.collect()
    }

    /// Every node whose agent was attached and that is not removed, by name.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStanding> {
        let newest = self.snapshot().revision();
        let nodes = self.hub.reporters().into_iter().filter_map(|(reporter, report)| match reporter {
            Reporter::Node(node) => Some(NodeStanding {
                node,
                behind_by: report.owes_since_us.map_or(0, |_| newest.0.saturating_sub(report.applied_through.0)),
                behind_for: report.owes_since_us.map(|since| self.hub.age(since)).unwrap_or_default(),
                report,
            }),
            Reporter::Proxy(_) => None,
        });
        nodes.collect()
    }

    /// Returns when the catalog can no longer follow the store, with the reason. Nothing can be written from then on.
    pub async fn halted(&self) -> Arc<str> {
        let mut halted = self.halted.subscribe();
        loop {
            if let Some(reason) = &*halted.borrow_and_update() {
                return Arc::clone(reason);
            }
            // The sender lives as long as self, so this cannot fail.
            let _ = halted.changed().await;
        }
    }

    /// Waits until the published snapshot is at `revision` or later.
    pub(crate) async fn published(&self, revision: Revision) -> Result<(), CommitFailure> {
        let mut published = self.published.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as self, so this is reached in no other way.
            _ = published.wait_for(|published| *published >= revision) => Ok(()),
            reason = self.halted() => Err(CommitFailure::Halted(reason)),
        }
    }

    pub(crate) fn advance(&self, snapshot: Arc<Snapshot>) {
        self.snapshot.store(snapshot);
    }

    pub(crate) fn announce(&self, revision: Revision) {
        self.metrics.changes.inc();
        self.metrics.revision.set(i64::try_from(revision.0).unwrap_or(i64::MAX));
        self.published.send_replace(revision);
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }
}

/// Follows the store in a task of its own, and sees to it that the end of that task, a panic included, is known.
fn supervise(server: &Arc<Server>, watch: starling_store::Watch) {
    let followed = Arc::downgrade(server);
    let following = tokio::spawn(async move { turn::follow(&followed, watch).await });
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        let reason: Arc<str> = match following.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{error:#}").into(),
            Err(panic) => panic.to_string().into(),
        };
        tracing::error!(%reason, "the catalog no longer follows the store");
        if let Some(server) = server.upgrade() {
            server.halted.send_replace(Some(reason));
        }
    });
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        Self {
            changes: registry.register("changes", "Changes applied to the catalog", Counter::default()),
            revision: registry.register("catalog_revision", "Revision of the catalog", Gauge::default()),
            leaves: registry.register("leaf_certificates_issued", "Leaf certificates signed", Counter::default()),
        }
    }
}

/// The one namespace of this release.
///
/// # Panics
/// Never: the name is a name.
#[must_use]
pub fn default_namespace() -> Namespace {
    Namespace::new("default").expect("invariant: a name")
}

fn open_authority(config: &ServerConfig) -> anyhow::Result<CertificateAuthority> {
    match CertificateAuthority::open(&config.data_dir) {
        Err(OpenError::Absent { .. }) => {
            let trust_domain = ClusterId::from_random(fastrand::u128(..)).trust_domain();
            Ok(CertificateAuthority::create(&config.data_dir, &trust_domain, now())?)
        }
        opened => Ok(opened?),
    }
}

fn now() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixSeconds(since.as_secs())
}
