//! One node, run apart from its servers: identity, connection, replica, agent, and what its proxies are fed from.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use starling_attach::Replica;
use starling_attach::message::Welcome;
use starling_catalog::Subject;
use starling_identity::{Identity, Layout};
use starling_model::{Action, InstanceId, InstanceKey, IntentionSubject, Namespace, Node, Revision};
use starling_plan::MeshSettings;
use starling_tls::{AgentIdentity, AgentIdentityError, agent_client_config};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::agent::{Agent, AgentConfig};
use crate::native::{NativePlane, Workload};
use crate::proxies::{Kept, Proxies};
use crate::remote::cache;
use crate::remote::join::{Newcomer, PATIENCE, join};
use crate::remote::mirror::{Mirror, RETURN_WITHIN, View};
use crate::remote::passage::Passage;
use crate::remote::renewal::Renewal;
use crate::remote::servers::{Member, Servers};
use crate::remote::uplink::{Figures, Listener, RemoteLink, Uplink, UplinkConfig, run};
use crate::roots::follow_roots;

/// From a write of the node's own records by somebody else until the agent looks, at most.
const HEAL_AFTER: Duration = Duration::from_secs(4);

/// How long a node that has been of the mesh waits for a server before it starts with what it kept.
const ATTACH_WITHIN: Duration = Duration::from_millis(500);

/// How a node is set up.
pub struct NodeConfig {
    /// The servers' TLS addresses, host and port: those by which the node finds the mesh.
    pub servers: Vec<String>,
    /// Whether a second stream is kept in reserve where there are several servers.
    pub standby: bool,
    /// What lets a node in that has no certificate yet.
    pub join_token: Option<String>,
    /// The agent's own settings.
    pub agent: AgentConfig,
    /// Who is told what has come in force at the workloads of the native data plane; `None` to plan for none.
    pub native: Option<Arc<dyn InForce>>,
}

/// Is told what has come in force.
pub trait InForce: Send + Sync + 'static {
    /// Everything up to `through` is in force at the workloads of this node; `concerned` had something to do for it.
    fn in_force(&self, through: Revision, concerned: &BTreeSet<InstanceId>);
}

/// A running node; it ends when dropped.
pub struct RemoteNode {
    /// Its agent.
    pub agent: Arc<Agent>,
    /// What its proxies are fed from.
    pub proxies: Proxies,
    /// How the mesh presented itself.
    pub welcome: Welcome,
    /// The servers' HTTP API.
    pub api: Arc<Passage>,
    uplink: Arc<Uplink>,
    mirror: Arc<Mirror>,
    hub: Arc<Switch>,
    _tasks: JoinSet<()>,
}

impl RemoteNode {
    /// Joins if need be, connects, and brings the catalog into line with what is registered here.
    ///
    /// # Errors
    /// When the node is not let in, what it keeps on disk cannot be used, or, on the first start, no server is reached.
    pub async fn start(config: NodeConfig) -> anyhow::Result<Self> {
        let node = config.agent.node.clone();
        let data_dir = config.agent.data_dir.clone();
        let identity = identity(&config, &node, &data_dir).await?;
        let tls = watch::Sender::new(Arc::new(tls_of(&identity)?));
        let own = [
            Subject::Roots,
            Subject::ProxyDefaults,
            Subject::Intentions(IntentionSubject::Any),
            Subject::Node(node.name.clone()),
            Subject::Servers,
        ];
        let path = cache::path(&data_dir);
        let (welcome, replica) = match cache::read(&path) {
            Some(kept) => (Some(kept.welcome), kept.replica),
            None => (None, Replica::default()),
        };
        let servers = Arc::new(Servers::new(node.name.clone(), config.servers));
        servers.set_kept_members(members(&replica));
        servers.keep_to_named(welcome.as_ref().is_some_and(|welcome| welcome.relay));
        let mirror = Mirror::new(replica, own);
        let attached_before = Kept::read(&data_dir);
        let key = |id| InstanceKey { node: node.name.clone(), id };
        mirror.expect_back(attached_before.ids().into_iter().map(key));
        let uplink = Uplink::new();
        let hub = Arc::new(Switch {
            mirror: Arc::clone(&mirror),
            welcome: watch::Sender::new(welcome),
            native: Mutex::new(None),
            in_force: config.native.clone(),
            servers: Arc::clone(&servers),
        });
        let mut tasks = JoinSet::new();
        let api = Arc::new(Passage::new(Arc::clone(&servers), tls.subscribe()));
        let uplink_config =
            UplinkConfig { servers, standby: config.standby, node: node.name.clone(), tls: tls.subscribe() };
        let listener = Arc::clone(&hub) as Arc<dyn Listener>;
        tasks.spawn(run(uplink_config, Arc::clone(&uplink), Arc::clone(&mirror), listener));
        let mut welcomed = hub.welcome.subscribe();
        let was_here = welcomed.borrow().is_some();
        let welcome = welcomed.wait_for(Option::is_some).await?.clone().unwrap_or_default();
        // The agent compares itself with the catalog when it starts, and who asks it for a session must find its node there.
        let attached = uplink.until_up();
        if was_here {
            // It starts with what it kept where no server answers.
            let _ = tokio::time::timeout(ATTACH_WITHIN, attached).await;
        } else {
            attached.await;
        }
        let settings = settings(&welcome)?;
        if config.native.is_some() {
            *hub.lock() = Some(NativePlane::new(settings.clone()));
        }
        let link = Arc::new(RemoteLink(Arc::clone(&uplink)));
        let clock = Arc::clone(&config.agent.clock);
        let agent = Arc::new(Agent::start(config.agent, link).await?);
        let view = Arc::new(View(Arc::clone(&mirror)));
        let proxies = Proxies::keeping(Arc::clone(&agent), Arc::clone(&view) as _, settings, Some(attached_before));
        tasks.spawn(hub.begin_to_follow(&agent));
        mirror.expect_only(|proxy| agent.has_service(&proxy.id));
        tasks.spawn(expect_no_longer(Arc::clone(&mirror)));
        tasks.spawn(cache::keep(path, welcome.clone(), Arc::clone(&mirror)));
        tasks.spawn(follow_roots(Arc::clone(&agent), view));
        tasks.spawn(heal(Arc::clone(&agent), Arc::clone(&mirror)));
        let renewal = Renewal { uplink: Arc::clone(&uplink), mirror: Arc::clone(&mirror), data_dir, clock, tls };
        tasks.spawn(renewal.run(identity));
        Ok(Self { agent, proxies, welcome, api, uplink, mirror, hub, _tasks: tasks })
    }

    /// Whether a server is reached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.uplink.is_up()
    }

    /// For how long no server has said anything: what is known here may be that old.
    #[must_use]
    pub fn away_for(&self) -> Duration {
        self.mirror.silent_for()
    }

    /// What has happened to the streams from servers.
    #[must_use]
    pub fn streams(&self) -> Figures {
        self.uplink.figures()
    }

    /// What is known of the catalog here.
    #[must_use]
    pub fn replica(&self) -> Arc<Replica> {
        self.mirror.replica()
    }

    /// Hands out every workload that the native data plane serves. Nothing comes in force there meanwhile.
    pub fn visit_workloads(&self, visit: &mut dyn FnMut(&InstanceId, &Workload)) {
        let native = self.hub.lock();
        native.iter().flat_map(NativePlane::workloads).for_each(|(id, workload)| visit(id, workload));
    }

    /// Everything up to here has been heard.
    #[must_use]
    pub fn heard_through(&self) -> Revision {
        self.mirror.replica().through()
    }
}

/// Whoever is not back in time has ended, and has nothing in force.
async fn expect_no_longer(mirror: Arc<Mirror>) {
    tokio::time::sleep(RETURN_WITHIN).await;
    mirror.expect_only(|_| false);
}

/// Has the agent look at what others may have written in its place.
async fn heal(agent: Arc<Agent>, mirror: Arc<Mirror>) {
    let mut written = mirror.written();
    while written.changed().await.is_ok() {
        // What the agent has written itself is answered within that time; and a fleet does not ask as one.
        tokio::time::sleep(HEAL_AFTER.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        written.mark_unchanged();
        agent.own_records_written(&mirror.take_written());
    }
}

/// Passes on what is heard.
struct Switch {
    mirror: Arc<Mirror>,
    welcome: watch::Sender<Option<Welcome>>,
    native: Mutex<Option<NativePlane>>,
    in_force: Option<Arc<dyn InForce>>,
    servers: Arc<Servers>,
}

/// What a replica says of the servers of the mesh, as far as they stay.
fn members(replica: &Replica) -> impl Iterator<Item = Member> + use<'_> {
    let stay = replica.servers().filter(|server| !server.leaving && !server.agents.is_empty());
    stay.map(|server| Member { id: server.id.to_string(), address: server.agents.clone() })
}

impl Switch {
    fn lock(&self) -> MutexGuard<'_, Option<NativePlane>> {
        // A panic while planning leaves memos, each of which is checked against revisions when used.
        self.native.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is registered here is in the replica from now on; what is registered later comes to be by the task that is answered.
    fn begin_to_follow(self: &Arc<Self>, agent: &Arc<Agent>) -> impl Future<Output = ()> + Send + use<> {
        let (hub, agent) = (Arc::clone(self), Arc::clone(agent));
        // Before the first look: what is registered between that and the first step of the task would be planned from nowhere.
        let mut changes = agent.changes();
        hub.set_local(&agent);
        async move {
            while changes.changed().await.is_ok() {
                hub.set_local(&agent);
            }
        }
    }

    fn set_local(&self, agent: &Agent) {
        let instances = agent.services().into_iter().map(|service| service.instance).collect();
        let touched = self.mirror.set_local(agent.node(), instances);
        self.apply(&touched);
    }

    fn apply(&self, touched: &BTreeSet<Subject>) {
        let mut native = self.lock();
        let Some(plane) = &mut *native else { return };
        let replica = self.mirror.replica();
        let concerned = plane.apply(&*replica, touched, &|subject| replica.knows(subject));
        let through = replica.through();
        // Held no longer than needed: the next frame changes the replica in place if nobody else holds it.
        drop(replica);
        if plane.take_moved() {
            self.mirror.want_for_native(plane.subjects().cloned().collect());
        }
        if let Some(in_force) = &self.in_force {
            in_force.in_force(through, &concerned);
        }
    }
}

impl Listener for Switch {
    fn welcomed(&self, welcome: &Welcome) {
        self.welcome.send_replace(Some(welcome.clone()));
    }

    fn heard(&self, touched: &BTreeSet<Subject>) {
        if touched.contains(&Subject::Servers) {
            self.servers.set_members(members(&self.mirror.replica()));
        }
        self.apply(touched);
    }
}

fn settings(welcome: &Welcome) -> anyhow::Result<MeshSettings> {
    Ok(MeshSettings {
        trust_domain: welcome.trust_domain.parse().context("the server's trust domain")?,
        datacenter: welcome.datacenter.parse().context("the server's datacenter")?,
        namespace: Namespace::new("default").context("the namespace")?,
        default_intention_action: if welcome.default_allow { Action::Allow } else { Action::Deny },
        layout: Layout::Consul,
    })
}

/// The identity on disk, or else that of a node that joins.
async fn identity(config: &NodeConfig, node: &Node, data_dir: &Path) -> anyhow::Result<AgentIdentity> {
    let token = config.join_token.as_deref();
    let newcomer = Newcomer { name: node.name.clone(), node_id: node.id.clone(), relay: false };
    let identity = match AgentIdentity::load(data_dir) {
        Err(AgentIdentityError::Absent { .. }) => join(&config.servers, token, &newcomer, data_dir, PATIENCE).await?,
        loaded => {
            let known = loaded?;
            let expired_at = known.credentials.validity().not_after();
            if expired_at < (config.agent.clock)() {
                // It has proxies to serve meanwhile.
                or_expired(join(&config.servers, token, &newcomer, data_dir, Duration::ZERO).await, node, known)
            } else {
                known
            }
        }
    };
    let known_as = identity.credentials.identity();
    if !matches!(known_as, Identity::Agent { node: own, .. } if *own == node.name) {
        bail!("{} holds the identity of {known_as}, and this is node {}", data_dir.display(), node.name);
    }
    Ok(identity)
}

/// The identity of a node that was away until its certificate had expired: a new one, if it is let in again. Otherwise it
/// serves its proxies from what it kept, and no server takes it in.
fn or_expired(joined: anyhow::Result<AgentIdentity>, node: &Node, expired: AgentIdentity) -> AgentIdentity {
    match joined {
        Ok(identity) => identity,
        Err(error) => {
            tracing::error!(
                node = %node.name,
                error = format!("{error:#}"),
                "the certificate of this node has expired, so servers turn it away; restart it with a new join token \
                 (starling token create --join)"
            );
            expired
        }
    }
}

pub(super) fn tls_of(identity: &AgentIdentity) -> anyhow::Result<rustls::ClientConfig> {
    let Identity::Agent { trust_domain, datacenter, .. } = identity.credentials.identity().clone() else {
        bail!("the identity on disk is not an agent's");
    };
    let server = Identity::Server { trust_domain, datacenter };
    Ok(agent_client_config(identity.credentials.clone(), &identity.roots, server)?)
}

#[cfg(test)]
mod tests;
