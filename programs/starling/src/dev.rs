//! `starling dev`: a whole mesh's control plane in one process, for one machine.
//!
//! Owns the wiring and nothing else: it opens the store, starts server and agent, binds the doors, registers what files
//! ask for, and takes everything down in order.

mod agent;
mod catalog;
mod definitions;
mod demo;
mod doors;
mod interrupts;
mod link;
mod node;
mod tls;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use starling_agent::{Agent, AgentConfig, Proxies};
use starling_http_api::parse::{Context as ParseContext, Definitions, Dialect};
use starling_http_api::{AllowEverything, MeshFacts};
use starling_model::{InstanceId, Node};
use starling_plan::MeshSettings;
use starling_server::{Opening, Server, ServerConfig};
use starling_telemetry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::doors::Doors;
use self::interrupts::Interrupts;
use crate::descriptors::Shares;
use crate::dev_args::DevArgs;
use crate::outcome::usage;

/// Envoy minors that the tests run, newest first.
const ENVOY_VERSIONS: [&str; 1] = ["1.40.0"];

/// Runs until interrupted.
pub(crate) async fn run(args: DevArgs) -> anyhow::Result<()> {
    // First of all: whatever has begun when a signal comes is taken down in order.
    let mut interrupts = Interrupts::listen()?;
    let definitions = read_definitions(&args)?;
    if args.demo {
        demo::Demo::check_ports()?;
    }
    let doors = Doors::bind(&args).await?;
    let mut data_dir = DataDir::prepare(&args)?;
    let services = definitions.iter().flat_map(|definitions| &definitions.services);
    let services = services.map(|service| service.instance.key.id.clone()).collect();
    let starting = Running::start(&args, &doors, data_dir.path.clone(), services);
    let Some(running) = start(starting, &mut interrupts).await? else { return Ok(()) };
    let outcome = tokio::select! {
        outcome = running.work(doors, definitions, args.demo, &mut data_dir) => outcome,
        reason = running.server.halted() => Err(anyhow!("the catalog no longer follows the store: {reason}")),
        () = interrupts.next() => Ok(()),
    };
    interrupts.bound(running.stop()).await;
    outcome
}

/// Starts everything, unless interrupted before it is done.
async fn start(
    starting: impl Future<Output = anyhow::Result<Running>>,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Option<Running>> {
    let mut starting = pin!(starting);
    tokio::select! {
        started = &mut starting => started.map(Some),
        () = interrupts.next() => {
            // It writes to a directory that may be removed next.
            interrupts.bound(starting).await;
            Ok(None)
        }
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
            let prepare = || format!("preparing the data directory {}", path.display());
            if path.exists() && !path.is_dir() {
                return Err(usage(format!("--data-dir: {} is not a directory", path.display())));
            }
            std::fs::create_dir_all(path).with_context(prepare)?;
            let path = path.canonicalize().with_context(prepare)?;
            return Ok(Self { path, temporary: None });
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
    let context = ParseContext::new(Dialect::File, node::name(args)?, args.datacenter.clone());
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
    server: Arc<Server>,
    agent: Arc<Agent>,
    proxies: Proxies,
    catalog: Arc<catalog::Catalog>,
    http: SocketAddr,
    grpc: SocketAddr,
    /// Doors close when this changes.
    stop: watch::Sender<bool>,
    doors: tokio::sync::Mutex<JoinSet<()>>,
}

impl Running {
    /// `services_of_files` are all that are going to be registered from files.
    async fn start(
        args: &DevArgs,
        doors: &Doors,
        data_dir: PathBuf,
        services_of_files: BTreeSet<InstanceId>,
    ) -> anyhow::Result<Self> {
        let registry = Registry::default();
        let config = ServerConfig::new(data_dir.clone(), args.datacenter.clone());
        // Everything is read before anything is written, so that a start that is refused leaves all as it was.
        let opening = Opening::examine(config).await?;
        let (has_id, has_journal) = (node::has_id(&data_dir)?, starling_agent::has_journal(&data_dir)?);
        opening.verify_agent(&node::name(args)?, has_id, has_journal)?;
        let server = opening.start(&registry).await?;
        let node = node::local(args, &data_dir)?;
        let config = AgentConfig {
            node: node.clone(),
            datacenter: args.datacenter.clone(),
            data_dir,
            enable_script_checks: args.enable_script_checks,
            sidecar_ports: starling_agent::DEFAULT_SIDECAR_PORTS,
            services_of_files,
            clock: starling_agent::system_clock(),
        };
        let link = link::Link { node: node.name.clone(), server: Arc::clone(&server) };
        let agent = Arc::new(Agent::start(config, Arc::new(link)).await?);
        let settings = MeshSettings {
            trust_domain: server.root().trust_domain.clone(),
            datacenter: args.datacenter.clone(),
            namespace: starling_server::default_namespace(),
            default_intention_action: args.default_intention_policy.into(),
            layout: starling_identity::Layout::Consul,
        };
        let view = Arc::new(link::View(Arc::clone(&server)));
        let proxies = Proxies::new(Arc::clone(&agent), view, settings.clone());
        let facts = facts(&settings, &node, doors)?;
        let (http, grpc) = (doors.http.local_addr()?, doors.grpc.local_addr()?);
        let catalog =
            Arc::new(catalog::Catalog { server: Arc::clone(&server), proxies: proxies.clone(), registry, facts });
        let (stop, doors) = (watch::Sender::new(false), tokio::sync::Mutex::default());
        Ok(Self { server, agent, proxies, catalog, http, grpc, stop, doors })
    }

    /// Registers what files ask for, and only then opens the doors, so that who is answered sees it; then serves, and
    /// plays the demo, until something fails.
    async fn work(
        &self,
        doors: Doors,
        definitions: Vec<Definitions>,
        demo: bool,
        data_dir: &mut DataDir,
    ) -> anyhow::Result<()> {
        definitions::register(definitions, &self.server, &self.agent).await?;
        self.open(doors).await?;
        tracing::info!(data_dir = %data_dir.path.display(), http = %self.http, "ready");
        if !demo {
            return std::future::pending().await;
        }
        let logs = data_dir.path.join("demo");
        let played = self.play(&logs).await;
        data_dir.keep();
        played.with_context(|| format!("the demo failed; its logs are in {}", logs.display()))
    }

    /// Plays the demo until it fails.
    async fn play(&self, logs: &Path) -> anyhow::Result<()> {
        let mut demo = demo::Demo::start(logs, self.http, self.grpc)?;
        say(&mut std::io::stderr(), "starting four services and their sidecars; this takes a few seconds …");
        demo.ready().await?;
        say(&mut std::io::stdout(), &demo.page(self.http));
        demo.load().await
    }

    async fn open(&self, doors: Doors) -> anyhow::Result<()> {
        let api = starling_http_api::router(
            Arc::clone(&self.catalog) as _,
            Arc::new(agent::LocalAgent { agent: Arc::clone(&self.agent), server: Arc::clone(&self.server) }),
            Arc::new(AllowEverything),
        );
        let shares = Shares::here()?;
        let dns = starling_dns::Responder::new(Arc::clone(&self.catalog)).counted(&self.catalog.registry);
        let (tls, renewing) = tls::listener(&self.server, doors.grpc_tls.local_addr()?.ip()).await?;
        let mut tasks = self.doors.lock().await;
        let stopped = self.stopped();
        tasks.spawn(async move {
            tokio::select! {
                () = renewing => {}
                () = stopped => {}
            }
        });
        tasks.spawn(starling_http_api::serve(doors.http, api, shares.http, self.stopped()));
        tasks.spawn(starling_dns::serve(doors.dns_udp, doors.dns_tcp, dns, self.stopped()));
        let source = Arc::new(self.proxies.clone());
        let serving = starling_rpc::serve(doors.grpc, Arc::clone(&source) as _, shares.grpc, self.stopped());
        tasks.spawn(async move { logged("xDS", serving.await) });
        let served = starling_rpc::Doors { proxies: Some(source), agents: None };
        let serving = starling_rpc::serve_tls(doors.grpc_tls, tls, served, shares.grpc, self.stopped());
        tasks.spawn(async move { logged("xDS over TLS", serving.await) });
        Ok(())
    }

    /// Ends when the doors are to close.
    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // A dropped sender is the end, too.
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        let mut doors = self.doors.into_inner();
        // Each bounds its own end; whatever is left when this is dropped ends with it.
        while doors.join_next().await.is_some() {}
    }
}

fn logged(door: &str, served: Result<(), starling_rpc::ServeError>) {
    if let Err(error) = served {
        tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "{door} is no longer served");
    }
}

fn facts(settings: &MeshSettings, node: &Node, doors: &Doors) -> anyhow::Result<MeshFacts> {
    let http = doors.http.local_addr()?.to_string();
    Ok(MeshFacts {
        datacenter: settings.datacenter.clone(),
        trust_domain: settings.trust_domain.clone(),
        default_intention_action: settings.default_intention_action,
        leader_address: http.clone(),
        peer_addresses: vec![http],
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node_name: node.name.clone(),
        node_id: node.id.clone(),
        node_address: node.address.clone(),
        grpc_port: Some(doors.grpc.local_addr()?.port()),
        grpc_tls_port: Some(doors.grpc_tls.local_addr()?.port()),
        dns_port: Some(doors.dns_udp.local_addr()?.port()),
        envoy_versions: ENVOY_VERSIONS.map(str::to_owned).to_vec(),
    })
}

/// Writes a line for whoever runs this; that nobody reads any longer is no reason to end.
fn say(output: &mut dyn Write, text: &str) {
    let _ = writeln!(output, "{text}");
}
