//! `starling dev`: a whole mesh's control plane in one process, for one machine.
//!
//! Owns the wiring and nothing else: it opens the store, starts server and agent, binds the doors, registers what files
//! ask for, and takes everything down in order.

mod demo;
mod link;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use starling_agent::{Agent, AgentConfig, Proxies, data_plane};
use starling_http_api::parse::Definitions;
use starling_model::Node;
use starling_plan::MeshSettings;
use starling_rpc::LoopbackListener;
use starling_server::{Opening, ServerConfig};
use starling_telemetry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::consul::{self, GivenTokens, Guise};
use crate::descriptors;
use crate::dev_args::DevArgs;
use crate::memory;
use crate::role::arguments::NativePlane;
use crate::role::control::{Beside, Control, ServerSockets};
use crate::role::definitions::{self, Named, Rival, Unavailable};
use crate::role::http_doors::{self, HttpSockets};
use crate::role::listeners::Listener;
use crate::role::local_agent::LocalAgent;
use crate::role::own_tokens::OwnTokens;
use crate::role::reload::{Files, Reload, Sources};
use crate::role::{self, Interrupts, Role, Serving, doors, node};

/// Runs until interrupted.
pub(crate) async fn run(args: DevArgs) -> anyhow::Result<()> {
    let mut definitions = read_definitions(&args)?;
    definitions::keep_last(&mut definitions);
    let guise = Guise::default();
    judge(&args, &definitions, &guise)?;
    let sources = Sources { directories: args.config_dir.iter().cloned().collect(), ..Sources::default() };
    run_judged(args, definitions, guise, Arc::new(sources)).await
}

/// The same with definitions that were read and [judged](judge), a node that shows itself otherwise, and what is read anew.
pub(crate) async fn run_judged(
    mut args: DevArgs,
    definitions: Vec<Definitions>,
    guise: Guise,
    files: Arc<dyn Files>,
) -> anyhow::Result<()> {
    // First of all: whatever has begun when a signal comes is taken down in order.
    let interrupts = if guise.is_consul { Interrupts::listen_but_for_hangup() } else { Interrupts::listen() }?;
    if args.demo {
        args.listeners.judge_demo()?;
        demo::Demo::check_ports(args.data_plane.is_native())?;
        args.data_plane.show_at(demo::ADMIN);
    }
    let sockets = Sockets::bind(&args).await?;
    let data_dir = DataDir::prepare(&args)?;
    role::run(interrupts, Running::start(args, sockets, data_dir, definitions, (guise, files))).await
}

/// Whether it could be run so; nothing is opened, and nothing written.
///
/// # Errors
/// What running it would fail with, as far as that lies in what is said and not in the machine.
pub(crate) fn judge(args: &DevArgs, definitions: &[Definitions], guise: &Guise) -> anyhow::Result<()> {
    args.log.judge()?;
    args.http_doors.judge()?;
    let (grpc, grpc_tls) = ([args.grpc_addr], [args.grpc_tls_addr]);
    let opened = |listener, addresses| args.listeners.opened(listener, addresses);
    let others = [
        ("DNS", opened(Listener::Dns, &args.dns_addr)),
        ("xDS", opened(Listener::Grpc, &grpc)),
        ("gRPC over TLS", opened(Listener::GrpcTls, &grpc_tls)),
    ];
    let http = http_doors::places(opened(Listener::Http, &args.http_addr), &args.http_doors);
    doors::apart(http.into_iter().chain(others))?;
    let node = node::unregistered(node::name(args.node_name.as_ref())?, args.advertise_addr);
    definitions::rehearse(definitions, node, (&guise.sidecar_ports(), args.script_checks.permitted()))?;
    let mesh = definitions::mesh_in(args.data_dir.as_deref(), definitions);
    definitions::rehearse_config_entries(definitions, mesh, guise.rival())
}

struct Sockets {
    server: ServerSockets,
    grpc: Option<LoopbackListener>,
}

impl Sockets {
    async fn bind(args: &DevArgs) -> anyhow::Result<Self> {
        let listeners = &args.listeners;
        let grpc = match listeners.opens(Listener::Grpc) {
            true => Some(doors::grpc(args.grpc_addr).await?),
            false => None,
        };
        let dns = doors::dns(listeners.opened(Listener::Dns, &args.dns_addr)).await?;
        let http = HttpSockets::bind(listeners.opened(Listener::Http, &args.http_addr), &args.http_doors).await?;
        let grpc_tls = listeners.opens(Listener::GrpcTls).then(|| doors::grpc_tls(args.grpc_tls_addr)).transpose()?;
        Ok(Self { server: ServerSockets { http, grpc_tls, dns }, grpc })
    }
}

/// Where everything is kept; a temporary directory goes with this.
struct DataDir {
    path: PathBuf,
    /// Removed when dropped.
    temporary: Option<tempfile::TempDir>,
}

impl DataDir {
    fn prepare(args: &DevArgs) -> anyhow::Result<Self> {
        if let Some(path) = &args.data_dir {
            return Ok(Self { path: role::data_dir(path)?, temporary: None });
        }
        let temporary =
            tempfile::Builder::new().prefix("starling-dev-").tempdir().context("making a data directory")?;
        Ok(Self { path: temporary.path().to_owned(), temporary: Some(temporary) })
    }

    /// Leaves even a temporary directory where it is, for somebody to look into.
    fn keep(&mut self) {
        if let Some(temporary) = &mut self.temporary {
            temporary.disable_cleanup(true);
        }
    }
}

/// Parses everything before anything starts, so that a mistake in a file changes nothing.
fn read_definitions(args: &DevArgs) -> anyhow::Result<Vec<Definitions>> {
    let context = definitions::context(node::name(args.node_name.as_ref())?, args.datacenter.clone());
    let mut all = Vec::new();
    if args.demo {
        for (file, text) in demo::DEFINITIONS {
            all.push(definitions::read(file, text.as_bytes(), &context)?);
        }
    }
    if let Some(directory) = &args.config_dir {
        all.extend(definitions::read_dir(directory, &context)?);
    }
    Ok(all)
}

/// The parts that run, from the first to the last.
struct Running {
    control: Control,
    agent: Arc<Agent>,
    proxies: Proxies,
    node: Node,
    /// What is opened when everything is registered.
    closed: Option<(Sockets, Vec<Definitions>)>,
    /// Whether the node has Consul's check and service.
    is_consul: bool,
    /// What becomes of config entries that the mesh has already.
    rival: Rival,
    /// Where what is registered is written.
    files: Arc<dyn Files>,
    /// Tokens that the configuration gives.
    tokens: GivenTokens,
    demo: bool,
    /// The native data plane, if this node has one.
    engine: Option<NativePlane>,
    serving: Serving,
    /// Last, so that it is removed last.
    data_dir: DataDir,
}

impl Running {
    async fn start(
        args: DevArgs,
        sockets: Sockets,
        data_dir: DataDir,
        definitions: Vec<Definitions>,
        (guise, files): (Guise, Arc<dyn Files>),
    ) -> anyhow::Result<Self> {
        let registry = Registry::default();
        memory::register(&registry);
        let (path, name) = (data_dir.path.clone(), node::name(args.node_name.as_ref())?);
        // Everything is read before anything is written, so that a start that is refused leaves all as it was.
        let seal = match args.seal_key_file.clone() {
            None if guise.is_consul => consul::seal_key(&path)?,
            named => named,
        };
        let authority = role::authority(seal.as_deref(), None)?;
        let cluster = guise.cluster;
        let config = ServerConfig { authority, cluster, ..ServerConfig::new(path.clone(), args.datacenter.clone()) };
        let opening = Opening::examine(config).await?;
        opening.verify_agent(&name, node::has_id(&path)?, starling_agent::has_journal(&path)?)?;
        let server = opening.start(&registry).await?;
        server.has_beside(&name);
        let mut node = node::local(name.clone(), args.advertise_addr, &path)?;
        let (sidecar_ports, rival) = (guise.sidecar_ports(), guise.rival());
        if let Some(id) = guise.node_id {
            node.id = id.to_string();
        }
        node.meta = guise.node_meta;
        let settings = MeshSettings {
            trust_domain: server.trust_domain().clone(),
            datacenter: args.datacenter.clone(),
            namespace: starling_server::default_namespace(),
            default_intention_action: args.intention_policy().into(),
            layout: starling_identity::Layout::Consul,
        };
        let view = Arc::new(link::View(Arc::clone(&server)));
        let engine = args.data_plane.start(&registry).await?;
        let acl_default = args.acl_default_policy.map(Into::into);
        let mut control =
            Control::new(server, registry, settings.default_intention_action, acl_default, Some(name.clone()));
        control.connect_off = guise.connect_off;
        control.translates_addresses = guise.translates_addresses;
        control.dns = guise.dns;
        let named = Named::of(&definitions);
        let config = AgentConfig {
            node: node.clone(),
            locality: definitions::locality(args.locality.as_ref(), &definitions),
            datacenter: args.datacenter,
            data_dir: path,
            script_checks: args.script_checks.permitted(),
            sidecar_ports,
            services_of_files: named.services,
            checks_of_files: named.checks,
            clock: starling_agent::system_clock(),
        };
        let link = link::Link { node: name, door: Arc::clone(&control.door) };
        let agent = Arc::new(Agent::start(config, Arc::new(link)).await?);
        let proxies = Proxies::new(Arc::clone(&agent), Arc::clone(&view) as _, settings);
        let (closed, serving) = (Some((sockets, definitions)), Serving::new());
        serving.spawn_endless(starling_agent::follow_roots(Arc::clone(&agent), view)).await;
        let (is_consul, tokens, demo) = (guise.is_consul, guise.tokens, args.demo);
        Ok(Self {
            control,
            agent,
            proxies,
            node,
            closed,
            is_consul,
            rival,
            files,
            tokens,
            demo,
            engine,
            serving,
            data_dir,
        })
    }

    /// How the files that were read are read again.
    fn reload(&self, known: Named) -> Reload {
        Reload {
            files: Arc::clone(&self.files),
            datacenter: self.agent.datacenter().clone(),
            server: Some((Arc::clone(&self.control.server), self.rival)),
            script_checks: self.agent.script_checks(),
            sidecar_ports: self.agent.sidecar_ports(),
            known: known.into(),
        }
    }

    /// Opens the doors; where xDS in plaintext and the API are then.
    async fn open(&self, sockets: Sockets, reload: Reload) -> anyhow::Result<(SocketAddr, Option<SocketAddr>)> {
        let shares = descriptors::of_agent()?;
        let (http, grpc) =
            (sockets.server.http.address(), sockets.grpc.as_ref().map(LoopbackListener::local_addr).transpose()?);
        let trust_domain = self.control.server.trust_domain().clone();
        let agent =
            LocalAgent::new(Arc::clone(&self.agent), trust_domain, Some(reload), OwnTokens::new(self.tokens.clone())?);
        let agent = Arc::new(agent);
        if self.is_consul {
            // As Consul's agent does.
            let hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
            self.serving.spawn_endless(Arc::clone(&agent).reload_at(hangup)).await;
        }
        let beside = Beside { agent, proxies: self.proxies.clone(), grpc: sockets.grpc };
        self.control.open(&self.serving, sockets.server, &self.node, Some(beside), shares).await?;
        Ok((http, grpc))
    }

    /// Registers what files ask for, and only then opens the doors, so that who is answered sees it; then serves, and
    /// plays the demo, until something fails.
    async fn work(&mut self) -> anyhow::Result<()> {
        let Some((sockets, definitions)) = self.closed.take() else { return Ok(()) };
        // Those of the demo are in no file.
        let known = if self.demo { Named::default() } else { Named::of(&definitions) };
        definitions::write_config_entries(&definitions, &self.control.server, self.rival).await?;
        if self.is_consul {
            self.tokens.keep_initial_management(&self.control.server).await?;
            let port = sockets.server.grpc_tls.as_ref().map(TcpListener::local_addr).transpose()?.map(|at| at.port());
            consul::enter(&self.control.server, &self.node, port).await?;
        }
        definitions::register(definitions, &self.agent, Unavailable::Fails).await?;
        if let Some(plane) = &mut self.engine {
            let serving = data_plane::run(Arc::clone(&self.agent), self.proxies.clone(), Arc::clone(&plane.engine));
            self.serving.spawn_endless(serving).await;
            plane.open_admin(&self.serving).await;
        }
        let places = sockets.server.http.places();
        let (http, grpc) = self.open(sockets, self.reload(known)).await?;
        tracing::info!(data_dir = %self.data_dir.path.display(), http = %places, "ready");
        if !self.demo {
            return std::future::pending().await;
        }
        let logs = self.data_dir.path.join("demo");
        let sidecars = match (&self.engine, grpc) {
            (None, Some(grpc)) => demo::Sidecars::Envoys { http, grpc },
            (_, _) => demo::Sidecars::Native,
        };
        let played = play(&logs, http, sidecars).await;
        self.data_dir.keep();
        played.with_context(|| format!("the demo failed; its logs are in {}", logs.display()))
    }
}

impl Role for Running {
    const FINISHES_START: bool = true;

    async fn serve(&mut self) -> anyhow::Result<()> {
        let server = Arc::clone(&self.control.server);
        tokio::select! {
            outcome = self.work() => outcome,
            error = crate::role::control::failed(&server) => Err(error),
        }
    }

    async fn stop(self) {
        self.serving.stop().await;
        if let Some(plane) = &self.engine {
            role::drain(&plane.engine).await;
        }
    }
}

/// Plays the demo until it fails.
async fn play(logs: &Path, http: SocketAddr, sidecars: demo::Sidecars) -> anyhow::Result<()> {
    let mut demo = demo::Demo::start(logs, sidecars)?;
    say(&mut std::io::stderr(), "starting four services and their sidecars; this takes a few seconds …");
    demo.ready().await?;
    say(&mut std::io::stdout(), &demo.page(http, sidecars));
    demo.load().await
}

/// Writes a line for whoever runs this; that nobody reads any longer is no reason to end.
fn say(output: &mut dyn Write, text: &str) {
    let _ = writeln!(output, "{text}");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DevArgs,
    }

    fn args(words: &[&str]) -> DevArgs {
        let ports = ["dev", "--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"];
        let more = ["--grpc-tls-addr", "127.0.0.1:0", "--dns-addr", "127.0.0.1:0"];
        Line::parse_from(ports.into_iter().chain(more).chain(words.iter().copied())).args
    }

    #[tokio::test]
    async fn a_disabled_listener_does_not_exist() {
        for (disabled, [http, grpc, grpc_tls, dns]) in [
            (&[][..], [true; 4]),
            (&["--disable-listener", "http,grpc,grpc-tls,dns"], [false; 4]),
            (&["--disable-listener", "http"], [false, true, true, true]),
            (&["--disable-listener", "grpc,dns"], [true, false, true, false]),
        ] {
            let Sockets { server, grpc: xds } = Sockets::bind(&args(disabled)).await.expect("bound");
            assert_eq!(!server.http.places().is_empty(), http, "{disabled:?}: {}", server.http.places());
            assert_eq!(xds.is_some(), grpc, "{disabled:?}");
            assert_eq!(server.grpc_tls.is_some(), grpc_tls, "{disabled:?}");
            assert_eq!(!server.dns.is_empty(), dns, "{disabled:?}");
        }
    }
}
