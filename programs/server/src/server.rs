//! The server itself: what it is made of, and how it starts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use starling_attach::Lineage;
use starling_catalog::{Barrier, ChangeReport, Earlier, NodeReport, ProxyReport, Reporter, Snapshot, Subject, Until};
use starling_identity::{ClusterId, Layout, SpiffeId};
use starling_model::{
    CaRootRecord, Datacenter, InstanceKey, Namespace, NodeName, Revision, ServiceName, TrustDomain, UnixSeconds,
};
use starling_store::{EtcdOptions, Store};
use starling_telemetry::{Counter, Gauge, Registry};
use starling_tls::{IssuedLeaf, LeafProfile};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::admission::{Admission, CsrLimits};
use crate::agents::{AgentStream, Agents, IsLeaving, StreamKind};
use crate::commit::CommitFailure;
use crate::connections::Connections;
use crate::contact::{self, Contact};
use crate::convergence::{self, Convergence};
use crate::garbage;
use crate::hub::{AttachedNode, Hub, ProxySubscription, Subscription};
use crate::liveness::{self, Liveness};
use crate::membership::{self, Advertised, Membership};
use crate::moves;
use crate::opening::Opening;
use crate::rotation;
use crate::signer::{AuthorityConfig, CurrentSigner, SignFailure, Signer};
use crate::turn;

/// How often those who wait for a receipt look at what has come since the last mark. Settling wakes them at once.
const PROGRESS_STEP: Duration = Duration::from_millis(50);

/// How far one server is behind another at most, unless it is cut off.
const BEHIND_MAX: Duration = Duration::from_secs(1);

/// How long a write waits to come back by the watch: far longer than it takes, unless the store is gone since.
const PUBLISHED_TIMEOUT: Duration = Duration::from_secs(15);

/// Where a server's catalog is.
#[derive(Debug, Clone)]
pub enum StoreKind {
    /// In the data directory.
    Embedded,
    /// On an etcd, which other servers may share. What is remembered of it is in the data directory, whatever this says.
    Etcd(Box<EtcdOptions>),
}

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where the store and the CA keep their files.
    pub data_dir: PathBuf,
    /// Where the catalog is.
    pub store: StoreKind,
    /// The datacentre it serves.
    pub datacenter: Datacenter,
    /// How long an agent may be away before its node is lost.
    pub grace: Duration,
    /// How fast certificates are signed.
    pub csr: CsrLimits,
    /// How others reach it; of no account where the store is its own.
    pub advertised: Advertised,
    /// How it comes by the CA.
    pub authority: AuthorityConfig,
    /// What the trust domain is made from if there is none yet; without it, it is drawn.
    pub cluster: Option<ClusterId>,
}

impl ServerConfig {
    /// The usual settings.
    #[must_use]
    pub fn new(data_dir: PathBuf, datacenter: Datacenter) -> Self {
        Self {
            data_dir,
            store: StoreKind::Embedded,
            datacenter,
            grace: liveness::GRACE_DEFAULT,
            csr: CsrLimits::default(),
            advertised: Advertised::to_nobody(),
            authority: AuthorityConfig::default(),
            cluster: None,
        }
    }
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
    agents: Arc<Agents>,
    signer: CurrentSigner,
    admission: Admission,
    connections: Arc<Connections>,
    membership: Arc<Membership>,
    contact: Arc<Contact>,
    /// Whether it has left.
    left: watch::Sender<bool>,
    metrics: Metrics,
    /// Whose turn it is among those whose writes were beaten by another.
    beaten: tokio::sync::Mutex<()>,
    /// Held while a snapshot is restored.
    restoring: tokio::sync::Mutex<()>,
}

struct Metrics {
    changes: Counter,
    revision: Gauge,
    leaves: Counter,
    quarantined: Gauge,
}

impl Server {
    /// Opens the store and the CA under the data directory, loads the catalog and begins to follow the store.
    ///
    /// # Errors
    /// When the store or the CA cannot be opened; nothing in the directory is overwritten then.
    pub async fn start(config: ServerConfig, registry: &Registry) -> anyhow::Result<Arc<Self>> {
        Opening::examine(config).await?.start(registry).await
    }

    pub(crate) async fn run(
        config: ServerConfig,
        store: Arc<dyn Store>,
        snapshot: Snapshot,
        lineage: Lineage,
        signer: Signer,
        registry: &Registry,
    ) -> anyhow::Result<Arc<Self>> {
        let revision = snapshot.revision();
        let watch = store.watch(starling_store::Revision(revision.0)).await?;
        let hub = Arc::new(Hub::new(Convergence::new(registry)));
        convergence::register_staleness(registry, &hub);
        let (membership, waited_for) = match &config.store {
            StoreKind::Embedded => (Membership::alone(), liveness::alive(&snapshot).collect()),
            // They are another server's, or else the leader's.
            StoreKind::Etcd(_) => (Membership::among(&config.advertised), Vec::new()),
        };
        let liveness = Arc::new(Liveness::new(config.grace, waited_for.into_iter()));
        let agents = Arc::new(Agents::new(Arc::clone(&hub), Arc::clone(&liveness), lineage, &snapshot, registry));
        let admission = Admission::new(config.csr);
        let signer = CurrentSigner::new(config.authority.clone(), signer, &snapshot);
        let server = Arc::new(Self {
            config,
            store,
            snapshot: ArcSwap::from_pointee(snapshot),
            published: watch::Sender::new(revision),
            halted: watch::Sender::new(None),
            hub,
            agents,
            signer,
            admission,
            connections: Arc::default(),
            membership: Arc::new(membership),
            contact: Contact::new(registry),
            left: watch::Sender::new(false),
            metrics: Metrics::new(registry),
            beaten: tokio::sync::Mutex::default(),
            restoring: tokio::sync::Mutex::default(),
        });
        server.count_quarantined(&server.snapshot());
        supervise(&server, watch);
        tokio::spawn(liveness::watch(Arc::downgrade(&server), Arc::clone(&liveness)));
        tokio::spawn(liveness::write(Arc::downgrade(&server), liveness));
        tokio::spawn(Agents::tell_reserve(Arc::downgrade(&server.agents)));
        tokio::spawn(membership::run(Arc::downgrade(&server)));
        if server.id().is_some() {
            tokio::spawn(contact::keep(Arc::downgrade(&server)));
        }
        rotation::spawn(&server);
        tokio::spawn(garbage::run(Arc::downgrade(&server)));
        tokio::spawn(garbage::end_sessions(Arc::downgrade(&server)));
        tokio::spawn(moves::balance(Arc::downgrade(&server)));
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

    /// The trust domain, which is that of the cluster for ever.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        self.signer.trust_domain()
    }

    /// The root under which this server signs.
    #[must_use]
    pub fn root(&self) -> CaRootRecord {
        self.signer.current().root().clone()
    }

    /// The identity of a service's workloads.
    #[must_use]
    pub fn identity_of(&self, service: &ServiceName) -> SpiffeId {
        let trust_domain = self.trust_domain().clone();
        let datacenter = self.config.datacenter.clone();
        SpiffeId::new(Layout::Consul, trust_domain, default_namespace(), datacenter, service.clone())
    }

    /// Signs a workload's certificate; the names in it are ours, never the request's. A gateway's bears those of the hosts
    /// that it lets in.
    ///
    /// # Errors
    /// [`SignFailure`] if the request proves no key, the rules forbid it, or what signs is not reached.
    pub async fn issue_leaf(&self, service: &ServiceName, csr_der: Vec<u8>) -> Result<IssuedLeaf, SignFailure> {
        let identity = self.identity_of(service);
        let snapshot = self.snapshot();
        let gateway = snapshot.ingress_gateway(service);
        let names = gateway.map(|gateway| gateway.certificate_names(&self.config.datacenter)).unwrap_or_default();
        let leaf =
            self.signer.sign(csr_der, LeafProfile::workload(&identity, &names), now(), self.last_contact()).await?;
        self.metrics.leaves.inc();
        Ok(leaf)
    }

    /// Signs the certificate by which the agent of `node` is known.
    ///
    /// # Errors
    /// [`SignFailure`], as for leaves.
    pub async fn issue_agent(&self, node: &NodeName, csr_der: Vec<u8>) -> Result<IssuedLeaf, SignFailure> {
        let profile = LeafProfile::agent(self.trust_domain(), &self.config.datacenter, node);
        self.signer.sign(csr_der, profile, now(), self.last_contact()).await
    }

    /// Signs the certificate by which a relay is known, to servers and to agents. The root ends its chain, as it does a server's.
    ///
    /// # Errors
    /// [`SignFailure`], as for leaves.
    pub async fn issue_relay(&self, relay: &NodeName, csr_der: Vec<u8>) -> Result<IssuedLeaf, SignFailure> {
        let profile = LeafProfile::relay(self.trust_domain(), &self.config.datacenter, relay);
        let leaf = self.signer.sign(csr_der, profile, now(), self.last_contact()).await?;
        Ok(IssuedLeaf { chain_pem: leaf.chain_pem + &self.signer.server_tail(), ..leaf })
    }

    /// Signs the certificate of this server's own TLS listeners. The root ends its chain: of that, an agent that joins knows
    /// no more than the fingerprint.
    ///
    /// # Errors
    /// [`SignFailure`], as for leaves.
    pub async fn issue_server(
        &self,
        csr_der: Vec<u8>,
        addresses: &[std::net::IpAddr],
    ) -> Result<IssuedLeaf, SignFailure> {
        let profile = LeafProfile::server(self.trust_domain(), &self.config.datacenter, addresses);
        let leaf = self.signer.sign(csr_der, profile, now(), self.last_contact()).await?;
        Ok(IssuedLeaf { chain_pem: leaf.chain_pem + &self.signer.server_tail(), ..leaf })
    }

    /// The connections of members.
    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// What signs.
    #[must_use]
    pub(crate) fn signer(&self) -> &CurrentSigner {
        &self.signer
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

    /// Opens the stream of a node's agent; an earlier one of the same node ends.
    ///
    /// # Errors
    /// [`IsLeaving`] if this server is.
    pub async fn attach_agent(&self, node: NodeName) -> Result<AgentStream, IsLeaving> {
        let stream = self.agents.attach(node.clone(), StreamKind { standby: false, level: 0 })?;
        self.write_liveness(&node).await;
        Ok(stream)
    }

    /// Whether a node's agent is attached.
    #[must_use]
    pub fn is_attached(&self, node: &NodeName) -> bool {
        self.agents.is_attached(node)
    }

    /// A node's agent has attached; receipts speak of the node from now on.
    #[must_use]
    pub fn attach_node(&self, node: NodeName) -> AttachedNode {
        self.hub.attach_node(node)
    }

    /// A node is lost: receipts expect nothing more of it until it attaches anew, and name it.
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
        self.part_of_change(revision, &Earlier::default(), timeout, names).await
    }

    /// The same where another server says of which `earlier` transactions the command consists besides.
    pub async fn part_of_change(
        &self,
        revision: Revision,
        earlier: &Earlier,
        timeout: Duration,
        names: usize,
    ) -> Option<ChangeReport> {
        let by = Instant::now() + timeout;
        if revision > self.snapshot().revision() {
            // Another server has answered it, and this one has yet to hear of it, which takes no time to speak of.
            let _ = tokio::time::timeout(timeout.max(BEHIND_MAX), self.published(revision)).await;
        }
        self.hub.join(revision, earlier);
        let left = by.saturating_duration_since(Instant::now());
        self.look_until(left, || self.hub.is_settled(revision) != Some(false)).await;
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

    /// Every node from which reports come, of its agent or of its proxies, by name; with each for how long the oldest
    /// change waits that it has yet to apply, zero if it owes none.
    #[must_use]
    pub fn nodes(&self) -> Vec<(NodeReport, Duration)> {
        let snapshot = self.snapshot();
        let reporters = self.hub.reporters().into_iter().filter(|(reporter, _)| match reporter {
            Reporter::Proxy(key) => snapshot.instance(key).is_some(),
            Reporter::Node(_) => true,
        });
        let stale_for = |node: &NodeReport| node.owes_since_us.map(|since| self.hub.age(since)).unwrap_or_default();
        NodeReport::of_each(reporters).into_iter().map(|node| (node.clone(), stale_for(&node))).collect()
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
            () = tokio::time::sleep(PUBLISHED_TIMEOUT) => Err(CommitFailure::Behind),
        }
    }

    pub(crate) fn count_change(&self) {
        self.metrics.changes.inc();
    }

    pub(crate) fn count_quarantined(&self, snapshot: &Snapshot) {
        self.metrics.quarantined.set(i64::try_from(snapshot.quarantined().len()).unwrap_or(i64::MAX));
    }

    pub(crate) fn advance(&self, snapshot: Arc<Snapshot>) {
        self.snapshot.store(snapshot);
    }

    /// Tells those who wait for a revision that the published snapshot is at it.
    pub(crate) fn announce(&self, revision: Revision) {
        self.metrics.revision.set(i64::try_from(revision.0).unwrap_or(i64::MAX));
        self.published.send_replace(revision);
    }

    pub(crate) fn beaten(&self) -> &tokio::sync::Mutex<()> {
        &self.beaten
    }

    pub(crate) fn restoring(&self) -> &tokio::sync::Mutex<()> {
        &self.restoring
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Whether the catalog can no longer follow the store.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.halted.borrow().is_some()
    }

    /// The catalog stays as it is, for that reason.
    pub(crate) fn halt(&self, reason: Arc<str>) {
        tracing::error!(%reason, "the catalog no longer follows the store");
        self.halted.send_replace(Some(reason));
    }

    pub(crate) fn contact(&self) -> &Arc<Contact> {
        &self.contact
    }

    pub(crate) fn left_sender(&self) -> &watch::Sender<bool> {
        &self.left
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(crate) fn agents(&self) -> &Arc<Agents> {
        &self.agents
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
        if let Some(server) = server.upgrade() {
            server.halt(reason);
        }
    });
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        Self {
            changes: registry.register("changes", "Changes applied to the catalog", Counter::default()),
            revision: registry.register("catalog_revision", "Revision of the catalog", Gauge::default()),
            quarantined: registry.register(
                "quarantined_records",
                "Stored records that this release cannot use",
                Gauge::default(),
            ),
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

pub(crate) fn now() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixSeconds(since.as_secs())
}
