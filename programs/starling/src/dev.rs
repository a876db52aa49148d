//! `starling dev`: a whole mesh's control plane in one process, for one machine.
//!
//! Owns the wiring and nothing else: it opens the store, starts server and agent, binds the doors, registers what files
//! ask for, and takes everything down in order.

mod agent;
mod catalog;
mod definitions;
mod demo;
mod link;
mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use starling_agent::{Agent, AgentConfig, Proxies};
use starling_http_api::parse::{Context as ParseContext, Definitions, Dialect, parse_definitions};
use starling_http_api::{AllowEverything, MeshFacts};
use starling_identity::ClusterId;
use starling_model::{Node, NodeName};
use starling_plan::MeshSettings;
use starling_server::{Server, ServerConfig};
use starling_telemetry::Registry;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::dev_args::DevArgs;

/// Envoy minors that the tests run, newest first.
const ENVOY_VERSIONS: [&str; 1] = ["1.40.0"];

/// Runs until interrupted.
pub(crate) async fn run(args: DevArgs) -> anyhow::Result<()> {
    if args.demo {
        demo::Demo::check_ports()?;
    }
    let doors = Doors::bind(&args).await?;
    let data_dir = DataDir::prepare(&args)?;
    let definitions = read_definitions(&args)?;
    let running = Running::start(&args, &doors, data_dir.path.clone()).await?;
    running.open(doors).await?;
    definitions::register(definitions, &running.server, &running.agent).await?;
    tracing::info!(data_dir = %data_dir.path.display(), http = %running.http, "ready");
    let outcome = if args.demo { run_demo(&running, &data_dir).await } else { interrupted().await };
    running.stop().await;
    outcome
}

/// The sockets, bound before anything else so that a port in use leaves no trace.
struct Doors {
    http: TcpListener,
    grpc: TcpListener,
    grpc_tls: TcpListener,
    dns_udp: UdpSocket,
    dns_tcp: TcpListener,
}

impl Doors {
    async fn bind(args: &DevArgs) -> anyhow::Result<Self> {
        let dns_udp =
            UdpSocket::bind(args.dns_addr).await.with_context(|| taken("DNS", args.dns_addr, "--dns-addr"))?;
        // With port 0 both halves of DNS still share one port.
        let dns = dns_udp.local_addr()?;
        Ok(Self {
            http: bind("the HTTP API", args.http_addr, "--http-addr").await?,
            grpc: bind("xDS", args.grpc_addr, "--grpc-addr").await?,
            grpc_tls: bind("xDS over TLS", args.grpc_tls_addr, "--grpc-tls-addr").await?,
            dns_tcp: bind("DNS", dns, "--dns-addr").await?,
            dns_udp,
        })
    }
}

async fn bind(what: &str, address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| taken(what, address, flag))
}

fn taken(what: &str, address: SocketAddr, flag: &str) -> String {
    format!("cannot listen on {address} for {what}; is another starling running? choose another with {flag}")
}

/// Where everything is kept; a temporary directory goes with this.
struct DataDir {
    path: PathBuf,
    /// Removed when dropped.
    _temporary: Option<tempfile::TempDir>,
}

impl DataDir {
    fn prepare(args: &DevArgs) -> anyhow::Result<Self> {
        if let Some(path) = &args.data_dir {
            let prepare = || format!("preparing the data directory {}", path.display());
            std::fs::create_dir_all(path).with_context(prepare)?;
            let path = path.canonicalize().with_context(prepare)?;
            return Ok(Self { path, _temporary: None });
        }
        let temporary =
            tempfile::Builder::new().prefix("starling-dev-").tempdir().context("making a data directory")?;
        Ok(Self { path: temporary.path().to_owned(), _temporary: Some(temporary) })
    }
}

/// Parses everything before anything starts, so that a mistake in a file changes nothing.
fn read_definitions(args: &DevArgs) -> anyhow::Result<Vec<Definitions>> {
    let context = ParseContext::new(Dialect::File, node_name(args)?, args.datacenter.clone());
    let mut all = Vec::new();
    if args.demo {
        for (file, text) in demo::DEFINITIONS {
            all.push(parse_definitions(file, text.as_bytes(), &context)?);
        }
    }
    if let Some(directory) = &args.config_dir {
        all.extend(definitions::read_dir(directory, &context)?);
    }
    Ok(all)
}

fn node_name(args: &DevArgs) -> anyhow::Result<NodeName> {
    if let Some(name) = &args.node_name {
        return Ok(name.clone());
    }
    let host = nix::unistd::gethostname().context("reading the host's name")?;
    let host = host.to_string_lossy();
    let host = host.split('.').next().unwrap_or_default().to_owned();
    host.parse().with_context(|| format!("the host name {host:?} is no node name; give one with --node-name"))
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
    async fn start(args: &DevArgs, doors: &Doors, data_dir: PathBuf) -> anyhow::Result<Self> {
        let registry = Registry::default();
        let config = ServerConfig { data_dir: data_dir.clone(), datacenter: args.datacenter.clone() };
        let server = Server::start(config, &registry).await?;
        let node = local_node(args, &data_dir)?;
        let config = AgentConfig {
            node: node.clone(),
            datacenter: args.datacenter.clone(),
            data_dir,
            enable_script_checks: args.enable_script_checks,
            sidecar_ports: starling_agent::DEFAULT_SIDECAR_PORTS,
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

    /// Opens the doors.
    async fn open(&self, doors: Doors) -> anyhow::Result<()> {
        let api = starling_http_api::router(
            Arc::clone(&self.catalog) as _,
            Arc::new(agent::LocalAgent { agent: Arc::clone(&self.agent), server: Arc::clone(&self.server) }),
            Arc::new(AllowEverything),
        );
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
        tasks.spawn(starling_http_api::serve(doors.http, api, self.stopped()));
        tasks.spawn(starling_dns::serve(doors.dns_udp, doors.dns_tcp, dns, self.stopped()));
        let plaintext = starling_rpc::LoopbackListener::new(doors.grpc).context("opening --grpc-addr")?;
        let source = Arc::new(self.proxies.clone());
        let serving = starling_rpc::serve(plaintext, Arc::clone(&source) as _, self.stopped());
        tasks.spawn(async move { logged("xDS", serving.await) });
        let serving = starling_rpc::serve_tls(doors.grpc_tls, tls, source, self.stopped());
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
        while doors.join_next().await.is_some() {}
    }
}

fn logged(door: &str, served: Result<(), starling_rpc::ServeError>) {
    if let Err(error) = served {
        tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "{door} is no longer served");
    }
}

fn local_node(args: &DevArgs, data_dir: &Path) -> anyhow::Result<Node> {
    Ok(Node {
        name: node_name(args)?,
        id: node_id(data_dir)?,
        address: args.advertise_addr.to_string(),
        tagged_addresses: ["lan", "wan"].map(|tag| (tag.to_owned(), args.advertise_addr.to_string())).into(),
        meta: BTreeMap::new(),
    })
}

/// The node's UUID: made once, kept in the data directory.
fn node_id(data_dir: &Path) -> anyhow::Result<String> {
    let path = data_dir.join("node-id");
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let id: ClusterId = text.trim().parse().with_context(|| format!("{} holds no UUID", path.display()))?;
            Ok(id.to_string())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = ClusterId::from_random(fastrand::u128(..)).to_string();
            std::fs::write(&path, &id).with_context(|| format!("writing {}", path.display()))?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
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

/// Until Ctrl-C or a request to terminate.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt.context("waiting for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}

async fn run_demo(running: &Running, data_dir: &DataDir) -> anyhow::Result<()> {
    let mut demo = demo::Demo::start(&data_dir.path, running.http, running.grpc)?;
    eprintln!("starting four services and their sidecars; this takes a few seconds …");
    tokio::select! {
        ready = demo.ready() => ready?,
        ended = interrupted() => return ended,
    }
    println!("{}", demo.page(running.http));
    tokio::select! {
        () = demo::Demo::load() => Ok(()),
        ended = interrupted() => ended,
    }
}
