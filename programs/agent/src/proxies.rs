//! Feeds of local proxies: each keeps its proxy's resources at the newest plan.
//!
//! A feed sleeps until something that its plan was made from changes, plans and renders once, and hands the result to
//! the proxy's xDS session. Plans and resources are made of parts that all proxies of the node share, so a change costs
//! one rebuilt part plus, for each proxy concerned, a walk over pointers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use starling_catalog::{MeshRead, Refused, Subject};
use starling_identity::Identity;
use starling_model::ingress::certificate_names;
use starling_model::{AclSecret, InstanceId, InstanceKey, Revision, ServiceName};
use starling_plan::{Diagnostic, MeshSettings, Plan, PlanError, Planned, Planner};
use starling_rpc::{AttachError, NATIVE_PROXY, PROCESS, Peer, ProxyFeed, ProxySource};
use starling_tls::dns_names;
use starling_xds::{Leaf as RenderedLeaf, MeshNames, ProxyNode, Renderer, Report};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::leaves::Leaf;

mod certificates;
mod committed;
mod kept;
mod outside;
mod rendering;

use certificates::Certificates;
use committed::watch_committed;
pub(crate) use kept::Kept;
pub(crate) use outside::Outside;
pub(crate) use rendering::NativeForm;
use rendering::{Native, Rendering};

/// The catalog as the feeds need it: the whole of it in a server's process, a replica of what concerns the node elsewhere.
pub trait MeshView: Send + Sync + 'static {
    /// The catalog as it is now.
    fn mesh(&self) -> Arc<dyn MeshRead + Send + Sync>;

    /// Attaches a proxy. It counts as connected until the watch is dropped.
    fn attach(&self, proxy: &InstanceKey) -> Box<dyn ProxyWatch>;
}

/// What comes next for an attached proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyNext {
    /// Something that concerns it has changed.
    Changed,
    /// It was deregistered; nothing more comes on this watch.
    Deregistered,
    /// A later stream of it took over; nothing more comes on this watch.
    Superseded,
}

/// The catalog's changes, as far as they concern one proxy, and the way back for its reports.
#[async_trait]
pub trait ProxyWatch: Send + Sync {
    /// Replaces the subjects that concern the proxy, whose plan was made at `as_of`. What happened to them until now
    /// wakes nobody, so plan again if they are others than before.
    fn resubscribe(&self, as_of: Revision, subjects: BTreeSet<Subject>);

    /// Waits until everything that it is subscribed to is known: a plan made before would lack what it has not heard of,
    /// denials included. Where the whole catalog is at hand that is always so. False if nothing more comes on this watch.
    async fn known(&self) -> bool {
        true
    }

    /// Waits for what comes next. Safe to drop.
    async fn next(&self) -> ProxyNext;

    /// The proxy has applied everything up to `through`; `refusals_stand` if it still refuses something.
    fn applied(&self, through: Revision, refusals_stand: bool);

    /// The proxy refused something.
    fn rejected(&self, refused: Refused);
}

/// The feeds of this node's proxies. Clones are the same feeds.
#[derive(Clone)]
pub struct Proxies(Arc<Inner>);

struct Inner {
    view: Arc<dyn MeshView>,
    agent: Arc<Agent>,
    outside: Outside,
    /// Those attached from outside whom an agent that is restarted expects back; `None` if nobody is expected.
    kept: Option<Kept>,
    shared: Mutex<Shared>,
}

/// What the feeds share: parts of plans and of resources, and what is wrong with what each feed's plan was made from.
struct Shared {
    planner: Planner,
    renderer: Renderer,
    /// By service, with their generation.
    leaves: BTreeMap<ServiceName, (u64, Arc<RenderedLeaf>)>,
    next_feed: u64,
    diagnostics: BTreeMap<u64, Vec<Diagnostic>>,
}

impl Proxies {
    /// Feeds for the proxies of `agent`'s node.
    #[must_use]
    pub fn new(agent: Arc<Agent>, view: Arc<dyn MeshView>, settings: MeshSettings) -> Self {
        Self::keeping(agent, view, settings, None)
    }

    /// The same, with a list on disk of those that attach from outside.
    pub(crate) fn keeping(
        agent: Arc<Agent>,
        view: Arc<dyn MeshView>,
        settings: MeshSettings,
        kept: Option<Kept>,
    ) -> Self {
        let names = MeshNames {
            layout: settings.layout,
            trust_domain: settings.trust_domain.clone(),
            namespace: settings.namespace.clone(),
            datacenter: settings.datacenter.clone(),
        };
        let shared = Shared {
            planner: Planner::new(settings),
            renderer: Renderer::new(names),
            leaves: BTreeMap::new(),
            next_feed: 0,
            diagnostics: BTreeMap::new(),
        };
        let outside = Outside::default();
        Self(Arc::new(Inner { view, agent, outside, kept, shared: Mutex::new(shared) }))
    }

    /// What is wrong with the registrations of attached proxies, and with what they depend on; each once.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let all: BTreeSet<_> = self.0.lock().diagnostics.values().flatten().cloned().collect();
        all.into_iter().collect()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic while planning leaves memos, each of which is checked against revisions when used.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a proxy at the newest snapshot.
    fn plan(&self, feed: u64, proxy: &InstanceKey, rendering: &impl Rendering) -> Result<Planned, PlanError> {
        let mut shared = self.lock();
        // Read under the lock: the planner must never see the mesh go back.
        let mesh = self.view.mesh();
        let planned = shared.planner.plan(&*mesh, proxy)?;
        let diagnostics = planned.diagnostics.iter().cloned().chain(rendering.cannot(&planned.plan));
        shared.diagnostics.insert(feed, diagnostics.collect());
        Ok(planned)
    }

    fn feed_number(&self) -> u64 {
        let mut shared = self.lock();
        shared.next_feed += 1;
        shared.next_feed
    }

    fn forget(&self, feed: u64) {
        self.lock().diagnostics.remove(&feed);
    }
}

/// One workload's states for the native data plane, and the way back for its reports.
pub(crate) struct NativeFeed {
    pub(crate) states: watch::Receiver<Arc<NativeForm>>,
    reports: Reports,
}

impl NativeFeed {
    /// Everything up to `through` is in force.
    pub(crate) fn applied(&self, through: Revision) {
        self.watch().applied(through, false);
    }

    /// Something of the state at `revision` could not be put in force; everything was, up to `since`.
    pub(crate) fn rejected(&self, revision: Revision, since: Revision, resources: Vec<String>, text: String) {
        let type_url = NATIVE_TYPE.to_owned();
        self.watch().rejected(Refused { revision, since, proxy: None, type_url, resources, text });
        self.watch().applied(revision, true);
    }

    fn watch(&self) -> Arc<dyn ProxyWatch> {
        Arc::clone(&self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// In place of a type URL where the native data plane refuses something.
const NATIVE_TYPE: &str = "native";

impl Shared {
    /// A leaf in the form in which it is rendered; the same until it is renewed, so that it is rendered once.
    fn rendered_leaf(&mut self, leaf: &Arc<Leaf>) -> Arc<RenderedLeaf> {
        if let Some((generation, rendered)) = self.leaves.get(&leaf.service)
            && *generation == leaf.generation
        {
            return Arc::clone(rendered);
        }
        let rendered = Arc::new(RenderedLeaf {
            certificate_chain_pem: leaf.certificate_chain_pem.clone(),
            private_key_pem: leaf.private_key_pem.expose().to_owned(),
        });
        self.leaves.insert(leaf.service.clone(), (leaf.generation, Arc::clone(&rendered)));
        rendered
    }
}

impl Proxies {
    /// The sidecars that have a proxy of their own: the native data plane leaves them to it.
    pub(crate) fn outside(&self) -> &Outside {
        &self.0.outside
    }

    /// Feeds the native data plane with one sidecar of this node.
    pub(crate) async fn attach_native(&self, id: &InstanceId) -> Result<NativeFeed, AttachError> {
        let service = service_of(&self.0, id)?;
        let feed = Feed::attach(&self.0, id, &service, Native).await?;
        let reports = Arc::clone(&feed.reports);
        let states = feed.open().await.map_err(unplanned)?;
        Ok(NativeFeed { states, reports })
    }
}

/// Over TLS a proxy gets what its own identity may see; in plaintext the listener is on loopback, and whose door that is
/// has looked at the caller's token. What a proxy is sent includes its service's private key, which stays on
/// this machine.
fn admit(peer: &Peer, client: Client, service: &ServiceName) -> Result<(), AttachError> {
    let Peer::Member { identity, address, is_local, .. } = peer else { return Ok(()) };
    match &**identity {
        Identity::Workload(workload) if workload.service == *service => match client {
            Client::Envoy | Client::Native if !is_local => Err(AttachError::Refused {
                reason: format!(
                    "{address} is not this machine, which private keys do not leave; run the proxy beside its agent"
                ),
            }),
            Client::Envoy | Client::Native | Client::Grpc => Ok(()),
        },
        other @ (Identity::Workload(_)
        | Identity::Agent { .. }
        | Identity::Server { .. }
        | Identity::Relay { .. }
        | Identity::Authority(_)) => Err(AttachError::Refused {
            reason: format!("{other} may not have the configuration of a proxy of {service}"),
        }),
    }
}

#[async_trait]
impl ProxySource for Proxies {
    async fn attach(&self, node: ProxyNode, peer: Peer, _: Option<AclSecret>) -> Result<ProxyFeed, AttachError> {
        let unknown = || AttachError::Unknown { id: node.id.clone() };
        let id = InstanceId::new(&node.id).map_err(|_| unknown())?;
        let (client, service) = (Client::of(&node), service_of(&self.0, &id)?);
        admit(&peer, client, &service)?;
        // Those that nobody serves and nobody has registered any more are not kept for ever.
        let is_registered = |id: &InstanceId| self.0.agent.has_service(id);
        self.0.outside.forget_gone(is_registered);
        // Whoever is fed from outside, a gRPC library included, is the sidecar's only proxy: two would supersede each other, and
        // one of them would serve what is in force no more.
        let process = node.metadata.get(PROCESS).filter(|_| matches!(client, Client::Native));
        let attached = self.0.outside.attach(&id, process.map(String::as_str));
        let attached = attached.ok_or_else(|| AttachError::Occupied { id: id.to_string() })?;
        if let Some(kept) = &self.0.kept {
            kept.forget_gone(is_registered);
            kept.add(&id);
        }
        let feed = Feed::attach(&self.0, &id, &service, client).await?;
        let (agent, reports, returned) =
            (Arc::clone(&self.0.agent), Arc::clone(&feed.reports), Arc::clone(&feed.returned));
        let resources = feed.open().await.map_err(unplanned)?;
        let on_report = Box::new(move |report| {
            let _attached = &attached;
            if matches!(report, Report::Applied { .. }) && returned.swap(false, Ordering::Relaxed) {
                // Its listeners are up now: the check of them need not wait for its interval.
                agent.check_now(&id);
            }
            pass_on(&**reports.lock().unwrap_or_else(PoisonError::into_inner), report);
        });
        Ok(ProxyFeed { resources, on_report, ends: Box::pin(std::future::pending()) })
    }
}

/// What is at the other end of a stream, and so in which form it understands its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// A proxy beside the application.
    Envoy,
    /// The application itself, by its gRPC library.
    Grpc,
    /// A native proxy in a process of its own.
    Native,
}

impl Client {
    /// Whoever says nothing is taken for an Envoy.
    fn of(node: &ProxyNode) -> Self {
        match node.user_agent.as_str() {
            NATIVE_PROXY => Self::Native,
            _ if node.is_grpc_library() => Self::Grpc,
            _ => Self::Envoy,
        }
    }
}

/// Where a session's reports go: to the watch of the moment.
type Reports = Arc<Mutex<Arc<dyn ProxyWatch>>>;

/// One proxy's way from the catalog to whoever serves it.
struct Feed<R> {
    /// Told apart from other feeds by this, also from earlier ones of the same proxy.
    number: u64,
    rendering: R,
    proxies: Arc<Inner>,
    key: InstanceKey,
    watch: Arc<dyn ProxyWatch>,
    /// The watch, for the reports.
    reports: Reports,
    leaves: watch::Receiver<Arc<Leaf>>,
    /// Of the services for which it stands.
    certificates: Certificates,
    /// What it is subscribed to.
    subjects: BTreeSet<Subject>,
    /// DNS names that its leaf was last wanted with.
    names: BTreeSet<String>,
    /// Whether what comes next is the first that it listens for, since it attached or was registered again.
    returned: Arc<AtomicBool>,
}

fn unplanned(error: PlanError) -> AttachError {
    let reason = error.to_string();
    match error {
        // The catalog has just lost it again.
        PlanError::UnknownProxy(_) => AttachError::Unavailable { reason },
        PlanError::NotAProxy(_) => AttachError::Refused { reason },
    }
}

/// The service that a sidecar or gateway of this node stands for.
fn service_of(proxies: &Inner, id: &InstanceId) -> Result<ServiceName, AttachError> {
    let found = proxies.agent.service(id).ok_or_else(|| AttachError::Unknown { id: id.to_string() })?;
    if !found.instance.is_proxy() {
        let reason = format!("{id} is an application, not a sidecar; its sidecar is usually {id}-sidecar-proxy");
        return Err(AttachError::Refused { reason });
    }
    Ok(found.instance.identity().clone())
}

/// What is wrong with a plan is told for as long as somebody is fed with it.
impl<R> Drop for Feed<R> {
    fn drop(&mut self) {
        self.proxies.forget(self.number);
    }
}

impl<R: Rendering> Feed<R> {
    async fn attach(
        proxies: &Arc<Inner>,
        id: &InstanceId,
        service: &ServiceName,
        rendering: R,
    ) -> Result<Self, AttachError> {
        let key = InstanceKey { node: proxies.agent.node().name.clone(), id: id.clone() };
        let watch = watch_committed(proxies, &key).await?;
        let leaves = proxies.agent.leaves().leaf(service).await;
        let leaves = leaves.map_err(|error| AttachError::Unavailable { reason: error.to_string() })?;
        let reports = Arc::new(Mutex::new(Arc::clone(&watch)));
        let (number, proxies) = (proxies.feed_number(), Arc::clone(proxies));
        Ok(Self {
            number,
            rendering,
            watch,
            reports,
            key,
            leaves,
            certificates: Certificates::default(),
            proxies,
            subjects: BTreeSet::new(),
            names: BTreeSet::new(),
            returned: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Makes the first state and keeps it new for as long as somebody holds the receiver.
    async fn open(mut self) -> Result<watch::Receiver<Arc<R::Form>>, PlanError> {
        let plan = self.plan().await?;
        let leaf = self.leaf();
        self.name_leaf(&plan, &leaf);
        self.certify(&plan).await;
        let (sender, states) = watch::channel(self.rendered(&plan, &leaf));
        tokio::spawn(self.run(plan, leaf, sender));
        Ok(states)
    }

    async fn run(mut self, mut plan: Plan, mut leaf: Arc<Leaf>, sender: watch::Sender<Arc<R::Form>>) {
        let mut registrations = self.proxies.agent.service_changes();
        // It may have gone since it was attached for.
        registrations.mark_changed();
        loop {
            let next = tokio::select! {
                next = self.watch.next() => Some(next),
                changed = registrations.changed() => match changed {
                    Ok(()) if self.is_registered() => continue,
                    Ok(()) => Some(ProxyNext::Deregistered),
                    Err(_) => break,
                },
                renewed = self.leaves.changed() => match renewed {
                    Ok(()) => None,
                    Err(_) => break,
                },
                () = self.certificates.changed() => None,
                () = sender.closed() => break,
            };
            match next {
                None => {
                    leaf = self.leaf();
                    self.certify(&plan).await;
                }
                // The session ends with the sender, and the proxy keeps what it has. One with another identity has to
                // introduce itself anew.
                Some(next) => match self.newer(next, &plan, &sender).await {
                    Some(newer) if newer.service == plan.service => {
                        self.name_leaf(&newer, &leaf);
                        self.certify(&newer).await;
                        plan = newer;
                    }
                    Some(_) | None => break,
                },
            }
            sender.send_replace(self.rendered(&plan, &leaf));
        }
    }

    /// The plan after `next`; `None` if there is none to come. While the proxy is deregistered its stream stays open, so that
    /// it is there at once when it is registered again; until then it serves what it has, or nothing where it can be told so.
    async fn newer(&mut self, mut next: ProxyNext, last: &Plan, sender: &watch::Sender<Arc<R::Form>>) -> Option<Plan> {
        let mut registrations = self.proxies.agent.service_changes();
        let mut told = false;
        loop {
            match next {
                ProxyNext::Changed => {}
                ProxyNext::Deregistered => self.await_registration(),
                ProxyNext::Superseded => return None,
            }
            registrations.borrow_and_update();
            if self.is_registered() {
                match self.plan().await {
                    Ok(plan) => {
                        self.returned.fetch_or(told, Ordering::Relaxed);
                        return Some(plan);
                    }
                    Err(PlanError::NotAProxy(_)) => return None,
                    Err(PlanError::UnknownProxy(_)) => {}
                }
            } else if !std::mem::replace(&mut told, true)
                && let Some(withdrawn) = self.rendering.withdrawn(last)
            {
                sender.send_replace(withdrawn);
            }
            next = tokio::select! {
                next = self.watch.next() => next,
                changed = registrations.changed() => match changed {
                    Ok(()) => ProxyNext::Changed,
                    Err(_) => return None,
                },
                () = sender.closed() => return None,
            };
        }
    }

    /// Whether the agent has it: it decides, and the catalog follows.
    fn is_registered(&self) -> bool {
        self.proxies.agent.has_service(&self.key.id)
    }

    fn await_registration(&mut self) {
        self.watch = self.proxies.view.attach(&self.key).into();
        self.subjects = BTreeSet::from([Subject::Instance(self.key.clone())]);
        self.watch.resubscribe(self.proxies.view.mesh().revision(), self.subjects.clone());
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&self.watch);
    }

    /// Plans, and again if that subscribed to something new: a change of it may have come before the subscription.
    async fn plan(&mut self) -> Result<Plan, PlanError> {
        loop {
            let Planned { plan, subjects, .. } = self.proxies.plan(self.number, &self.key, &self.rendering)?;
            if subjects == self.subjects {
                return Ok(plan);
            }
            self.watch.resubscribe(plan.revision, subjects.clone());
            self.subjects = subjects;
            if !self.watch.known().await {
                // Deregistered, and perhaps registered again meanwhile.
                self.await_registration();
            }
        }
    }

    /// Has the leaf of a gateway issued anew if the hosts that it lets in are not in it; once for the same hosts.
    fn name_leaf(&mut self, plan: &Plan, leaf: &Leaf) {
        let ports = plan.edges.iter().map(|edge| {
            let hosts = edge.hosts().iter().flat_map(|host| &host.hosts);
            (edge.tls.as_ref(), hosts)
        });
        let wanted = certificate_names(ports, self.proxies.agent.datacenter());
        if wanted == self.names {
            return;
        }
        if !dns_names(&leaf.certificate_chain_pem).is_superset(&wanted) {
            self.proxies.agent.leaves().rename(&leaf.service);
        }
        self.names = wanted;
    }

    async fn certify(&mut self, plan: &Plan) {
        self.certificates.follow(&self.proxies.agent, plan).await;
    }

    fn rendered(&self, plan: &Plan, leaf: &Arc<Leaf>) -> Arc<R::Form> {
        self.rendering.render(&self.proxies, plan, leaf, &self.certificates.current())
    }

    fn leaf(&mut self) -> Arc<Leaf> {
        Arc::clone(&self.leaves.borrow_and_update())
    }
}

fn pass_on(watch: &dyn ProxyWatch, report: Report) {
    match report {
        Report::Applied { revision, refusals_stand } => watch.applied(revision, refusals_stand),
        Report::Rejected { revision, since, type_url, resources, text, .. } => {
            let resources = resources.iter().map(|name| name.to_string()).collect();
            watch.rejected(Refused { revision, since, proxy: None, type_url: type_url.to_owned(), resources, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_keys_are_not_sent_to_other_machines() {
        let service = ServiceName::new("web").unwrap();
        let uri = "spiffe://11111111-2222-4333-8444-555555555555.consul/ns/default/dc/dc1/svc/web";
        let member = |is_local| Peer::Member {
            key: starling_model::KeyFingerprint([1; 32]),
            identity: Arc::new(uri.parse().unwrap()),
            address: "10.0.0.2:9".parse().unwrap(),
            is_local,
        };
        assert_eq!(admit(&member(true), Client::Envoy, &service), Ok(()));
        assert!(matches!(admit(&member(false), Client::Envoy, &service), Err(AttachError::Refused { .. })));
        // A gRPC library brings its own certificate, and is sent none.
        assert_eq!(admit(&member(false), Client::Grpc, &service), Ok(()));
        let other = ServiceName::new("api").unwrap();
        assert!(admit(&member(true), Client::Envoy, &other).is_err());
    }
}
