//! `starling agent`: what runs on one node, apart from the servers.

pub(crate) mod arguments;
mod bearers;
mod directory;
mod part;
mod servers;
mod streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use starling_agent::remote::{NodeConfig, RemoteNode};
use starling_agent::{AgentConfig, data_plane};
use starling_http_api::parse::Definitions;
use starling_http_api::{AgentPort, EntryPoint, MeshFacts, Ports};
use starling_model::{Action, TrustDomain};
use starling_proxy::Engine;
use starling_rpc::LoopbackListener;
use starling_telemetry::Registry;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use arguments::AgentArgs;
use bearers::Bearers;
use directory::Directory;
use part::Part;
use servers::{Dns, Servers};

use crate::consul::Guise;
use crate::descriptors;
use crate::environment::Environment;
use crate::memory;
use crate::outcome::usage;
use crate::role::control::ENVOY_VERSIONS;
use crate::role::definitions::{self, Named, Unavailable};
use crate::role::doors::DnsSockets;
use crate::role::http_doors::{self, HttpSockets};
use crate::role::listeners::Listener;
use crate::role::local_agent::{LEFT_WITHIN, LocalAgent};
use crate::role::own_tokens::OwnTokens;
use crate::role::proxies_door::ProxiesDoor;
use crate::role::reload::{Files, Followed, Reload};
use crate::role::{self, Interrupt, Interrupts, Role, Serving, doors, node};

/// Runs until interrupted.
pub(crate) async fn run(args: AgentArgs, environment: &Environment) -> anyhow::Result<()> {
    let mut definitions = read_definitions(&args)?;
    definitions::keep_last(&mut definitions);
    judge(&args, &definitions, &Guise::default())?;
    run_judged(args, environment, definitions, Guise::default(), None).await
}

/// The same with definitions that were read and [judged](judge), a node that shows itself otherwise, and what is read anew if anything is.
pub(crate) async fn run_judged(
    args: AgentArgs,
    environment: &Environment,
    definitions: Vec<Definitions>,
    guise: Guise,
    files: Option<Arc<dyn Files>>,
) -> anyhow::Result<()> {
    let interrupts = if files.is_some() { Interrupts::listen_but_for_hangup() } else { Interrupts::listen() }?;
    if args.grpc_tls_addr.is_some() {
        tracing::warn!("--grpc-tls-addr is of no effect: an agent serves xDS in plaintext to its own machine");
    }
    let servers = args.servers()?;
    let join_token = args.join_token(environment)?;
    let listeners = &args.listeners;
    let http = HttpSockets::bind(listeners.opened(Listener::Http, &args.http_addr), &args.http_doors).await?;
    let grpc = match listeners.opens(Listener::Grpc) {
        true => Some(doors::grpc(args.grpc_addr).await?),
        false => None,
    };
    let dns = doors::dns(listeners.opened(Listener::Dns, &args.dns_addr)).await?;
    let given = Given { servers, join_token, definitions, guise, files, sockets: Sockets { http, grpc, dns } };
    role::run(interrupts, Running::start(args, given)).await
}

/// What the arguments come to, before anything is written.
struct Given {
    servers: Vec<String>,
    join_token: Option<String>,
    definitions: Vec<Definitions>,
    guise: Guise,
    files: Option<Arc<dyn Files>>,
    sockets: Sockets,
}

/// Whether it could be run so; nothing is opened, and nobody asked.
///
/// # Errors
/// What running it would fail with, as far as that lies in what is said and not in the machine.
pub(crate) fn judge(args: &AgentArgs, definitions: &[Definitions], guise: &Guise) -> anyhow::Result<()> {
    args.log.judge()?;
    args.http_doors.judge()?;
    args.servers()?;
    // Which one is the environment's to say, whether it is there the file's.
    args.join_token(&Environment::default())?;
    let grpc = [args.grpc_addr];
    let opened = |listener, addresses| args.listeners.opened(listener, addresses);
    let others = [("DNS", opened(Listener::Dns, &args.dns_addr)), ("xDS", opened(Listener::Grpc, &grpc))];
    let http = http_doors::places(opened(Listener::Http, &args.http_addr), &args.http_doors);
    doors::apart(http.into_iter().chain(others))?;
    definitions::refuse_config_entries(definitions)?;
    let node = node::unregistered(node::name(args.node_name.as_ref())?, args.advertise_addr);
    definitions::rehearse(definitions, node, (&guise.sidecar_ports(), args.script_checks.permitted()))
}

struct Sockets {
    http: HttpSockets,
    grpc: Option<LoopbackListener>,
    dns: Vec<DnsSockets>,
}

fn read_definitions(args: &AgentArgs) -> anyhow::Result<Vec<Definitions>> {
    let Some(directory) = &args.config_dir else { return Ok(Vec::new()) };
    let context = definitions::context(node::name(args.node_name.as_ref())?, args.datacenter.clone());
    let all = definitions::read_dir(directory, &context)?;
    definitions::refuse_config_entries(&all).context("--config-dir")?;
    Ok(all)
}

/// The parts that run.
struct Running {
    node: Arc<RemoteNode>,
    /// The native data plane, if this node has one.
    engine: Option<Arc<Engine>>,
    serving: Serving,
    /// The agent as its API has it.
    local: Arc<LocalAgent>,
    /// Upon what requests to end the node leaves the mesh.
    leaves_on: Vec<Interrupt>,
    /// Nobody else uses the directory meanwhile.
    _directory: Directory,
}

impl Running {
    async fn start(args: AgentArgs, given: Given) -> anyhow::Result<Self> {
        let directory = Directory::lock(role::data_dir(&args.data_dir)?)?;
        let Given { servers, join_token, definitions, guise, files, sockets } = given;
        let named = Named::of(&definitions);
        let joining = (servers, join_token);
        let node = start_node(&args, directory.path.clone(), joining, &definitions, &guise).await?;
        let (node, serving) = (Arc::new(node), Serving::new());
        definitions::register(definitions, &node.agent, Unavailable::IsWaitedFor).await?;
        let registry = registry(&node);
        let mut plane = args.data_plane.start(&registry).await?;
        if let Some(plane) = &mut plane {
            let engine = Arc::clone(&plane.engine);
            serving.spawn_endless(data_plane::run(Arc::clone(&node.agent), node.proxies.clone(), engine)).await;
            plane.open_admin(&serving).await;
        }
        let engine = plane.map(|plane| plane.engine);
        let http = sockets.http.places();
        let local = open(&node, &serving, sockets, registry, (guise, files.map(|files| (files, named)))).await?;
        tracing::info!(data_dir = %directory.path.display(), %http, attached = node.is_attached(), "ready");
        let leaves_on = args.leaves_on();
        Ok(Self { node, engine, serving, local, leaves_on, _directory: directory })
    }
}

impl Role for Running {
    const FINISHES_START: bool = false;
    const ASKED_WITHIN: Duration = LEFT_WITHIN;

    async fn serve(&mut self) -> anyhow::Result<()> {
        self.local.left().await;
        Ok(())
    }

    async fn asked_to_end(&mut self, by: Interrupt) {
        if self.leaves_on.contains(&by) {
            // It says itself where that failed.
            let _ = AgentPort::leave(&*self.local).await;
        }
    }

    async fn stop(self) {
        self.serving.stop().await;
        if let Some(engine) = &self.engine {
            role::drain(engine).await;
        }
        drop(self.node);
    }
}

async fn start_node(
    args: &AgentArgs,
    data_dir: PathBuf,
    (servers, join_token): (Vec<String>, Option<String>),
    definitions: &[Definitions],
    guise: &Guise,
) -> anyhow::Result<RemoteNode> {
    let mut node = node::local(node::name(args.node_name.as_ref())?, args.advertise_addr, &data_dir)?;
    if let Some(id) = guise.node_id {
        node.id = id.to_string();
    }
    node.meta = guise.node_meta.clone();
    let named = Named::of(definitions);
    let agent = AgentConfig {
        node,
        locality: definitions::locality(args.locality.as_ref(), definitions),
        datacenter: args.datacenter.clone(),
        data_dir,
        script_checks: args.script_checks.permitted(),
        sidecar_ports: guise.sidecar_ports(),
        services_of_files: named.services,
        checks_of_files: named.checks,
        clock: starling_agent::system_clock(),
    };
    let node =
        RemoteNode::start(NodeConfig { servers, standby: args.standby, join_token, agent, native: None }).await?;
    let theirs = &node.welcome.datacenter;
    ensure!(
        *theirs == args.datacenter.as_str(),
        usage(format!("--datacenter is {}, and the servers are in {theirs}", args.datacenter))
    );
    Ok(node)
}

/// Opens the doors.
async fn open(
    node: &Arc<RemoteNode>,
    serving: &Serving,
    sockets: Sockets,
    registry: Registry,
    (guise, files): (Guise, Option<Followed>),
) -> anyhow::Result<Arc<LocalAgent>> {
    let shares = descriptors::of_agent()?;
    let facts = facts(node, &sockets, guise.translates_addresses)?;
    let Sockets { http, grpc, dns } = sockets;
    let trust_domain = facts.trust_domain.clone();
    let servers = Servers(Arc::clone(&node.api));
    let bearers = Bearers::new(guise.denies_in_outage);
    let agent = local_agent(node, serving, trust_domain, guise, files).await?;
    let catalog = Arc::new(Part::new(Arc::clone(node), servers.clone(), facts, registry, bearers));
    let source = ProxiesDoor {
        proxies: node.proxies.clone(),
        agent: Arc::clone(&agent) as _,
        catalog: Arc::clone(&catalog) as _,
    };
    let api = starling_http_api::router(Ports {
        catalog,
        agent: Some(Arc::clone(&agent) as _),
        servers: Some(Arc::new(servers.clone())),
        entry_point: EntryPoint::Own,
    });
    for DnsSockets { udp, tcp } in dns {
        let upstream = Dns { servers: servers.clone(), agent: Arc::clone(&agent) as _ };
        serving.spawn(starling_dns::relay(udp, tcp, upstream, shares.dns, serving.stopped())).await;
    }
    http.serve(serving, api, &shares).await;
    if let Some(grpc) = grpc {
        let served = starling_rpc::serve(grpc, Arc::new(source), shares.grpc, serving.stopped());
        serving.spawn_door("xDS", served).await;
    }
    Ok(agent)
}

async fn local_agent(
    node: &Arc<RemoteNode>,
    serving: &Serving,
    trust_domain: TrustDomain,
    guise: Guise,
    files: Option<Followed>,
) -> anyhow::Result<Arc<LocalAgent>> {
    let agent = Arc::clone(&node.agent);
    let reload = files.map(|(files, known)| Reload {
        files,
        datacenter: agent.datacenter().clone(),
        server: None,
        script_checks: agent.script_checks(),
        sidecar_ports: agent.sidecar_ports(),
        known: known.into(),
    });
    let reloads = reload.is_some();
    let agent = Arc::new(LocalAgent::new(agent, trust_domain, reload, OwnTokens::new(guise.tokens)?).able_to_leave());
    if reloads {
        let hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
        serving.spawn_endless(Arc::clone(&agent).reload_at(hangup)).await;
    }
    Ok(agent)
}

fn facts(node: &RemoteNode, sockets: &Sockets, translates_addresses: bool) -> anyhow::Result<MeshFacts> {
    let (own, welcome) = (node.agent.node(), &node.welcome);
    Ok(MeshFacts {
        datacenter: node.agent.datacenter().clone(),
        trust_domain: welcome.trust_domain.parse().context("the servers' trust domain")?,
        default_intention_action: if welcome.default_allow { Action::Allow } else { Action::Deny },
        acl_default: match welcome.acl_default.as_str() {
            "" => None,
            "allow" => Some(Action::Allow),
            // A word of a later release is no reason to let anybody in.
            _ => Some(Action::Deny),
        },
        leader_address: String::new(),
        peer_addresses: Vec::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node_name: own.name.clone(),
        node_id: own.id.clone(),
        node_address: own.address.clone(),
        grpc_port: sockets.grpc.as_ref().map(LoopbackListener::local_addr).transpose()?.map(|at| at.port()),
        grpc_tls_port: None,
        dns_port: doors::port(&sockets.dns),
        envoy_versions: ENVOY_VERSIONS.map(str::to_owned).to_vec(),
        connect_off: false,
        translates_addresses,
    })
}

fn registry(node: &Arc<RemoteNode>) -> Registry {
    let registry = Registry::default();
    memory::register(&registry);
    let ask = |value: fn(&RemoteNode) -> f64| {
        let node = Arc::downgrade(node);
        move || node.upgrade().map_or(0.0, |node| value(&node))
    };
    let attached = ask(|node| f64::from(u8::from(node.is_attached())));
    registry.register_asked("agent_attached", "Whether a server is reached", attached);
    #[expect(clippy::cast_precision_loss, reason = "a revision beyond 2^53 is centuries away")]
    let heard = ask(|node| node.heard_through().0 as f64);
    registry.register_asked("agent_heard_revision", "Revision of the catalog up to which all has been heard", heard);
    streams::register(&registry, node);
    registry
}
