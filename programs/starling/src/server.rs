//! `starling server`: the catalog, the CA, the API and the way in for agents, without an agent of its own.

mod arguments;
pub(crate) mod etcd;
mod leave;
mod settings;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use starling_model::NodeName;
use starling_server::{Advertised, AuthorityConfig, LEAVE_WITHIN, Opening, ServerConfig, StoreKind};
use starling_telemetry::Registry;

pub(crate) use arguments::ServerArgs;
use arguments::{ServerCommand, Store};
use settings::Settings;

use crate::arguments::Surroundings;
use crate::descriptors;
use crate::environment::Environment;
use crate::memory;
use crate::outcome::usage;
use crate::role::control::{Control, ServerSockets, failed};
use crate::role::http_doors::HttpSockets;
use crate::role::{self, Interrupts, Role, STOP_WITHIN, Serving, doors, node};

/// Runs until interrupted, or does what is asked of a server that runs.
pub(crate) async fn run(args: ServerArgs, surroundings: &Surroundings) -> anyhow::Result<ExitCode> {
    if let Some(ServerCommand::Leave(args)) = &args.command {
        return Ok(leave::run(args, surroundings).await?.into());
    }
    serve(args, &surroundings.environment).await.map(|()| ExitCode::SUCCESS)
}

async fn serve(args: ServerArgs, environment: &Environment) -> anyhow::Result<()> {
    let interrupts = Interrupts::listen()?;
    if args.grpc_addr.is_some() {
        tracing::warn!(
            "--grpc-addr is of no effect: a server has no proxies; they find xDS at the agent of their node"
        );
    }
    let settings = Settings::of(&args)?;
    let authority = role::authority(args.seal_key_file.as_deref(), settings.vault.clone())?;
    let store = store(&args, environment)?;
    let sockets = ServerSockets {
        http: HttpSockets::bind(&[settings.http_addr], &args.http_doors).await?,
        grpc_tls: Some(doors::grpc_tls(settings.grpc_tls_addr)?),
        dns: doors::dns(&[settings.dns_addr]).await?,
    };
    let starting = Running::start(args, settings, (store, authority), sockets);
    role::run_within(interrupts, LEAVE_WITHIN + STOP_WITHIN, starting).await
}

/// Where the catalog is, by the flags.
fn store(args: &ServerArgs, environment: &Environment) -> anyhow::Result<StoreKind> {
    match &args.store {
        Store::Embedded if args.etcd.is_given() => {
            Err(usage("--etcd-…: the store is embedded; name an etcd by --store etcd://HOST:PORT"))
        }
        Store::Embedded => Ok(StoreKind::Embedded),
        Store::Etcd(address) => Ok(StoreKind::Etcd(Box::new(args.etcd.options(address, environment)?))),
    }
}

/// How other servers and agents reach this one.
fn advertised(args: &ServerArgs, name: &NodeName, sockets: &ServerSockets) -> anyhow::Result<Advertised> {
    let reached_at = |bound: SocketAddr| match args.advertise_addr {
        Some(address) => Ok(SocketAddr::new(address, bound.port()).to_string()),
        None if bound.ip().is_unspecified() && matches!(args.store, Store::Etcd(_)) => Err(usage(format!(
            "--advertise-addr: this server listens at {bound}, that is at every address of the machine; name the one \
             at which agents and other servers reach it"
        ))),
        None => Ok(bound.to_string()),
    };
    let (http, agents) = (reached_at(sockets.http.address())?, reached_at(agents_at(sockets)?)?);
    Ok(Advertised { name: name.clone(), http, agents })
}

/// Where the port for agents is, which a server always opens.
fn agents_at(sockets: &ServerSockets) -> anyhow::Result<SocketAddr> {
    Ok(sockets.grpc_tls.as_ref().ok_or_else(|| anyhow!("invariant: a server serves agents"))?.local_addr()?)
}

struct Running {
    control: Control,
    serving: Serving,
}

impl Running {
    async fn start(
        args: ServerArgs,
        settings: Settings,
        (store, authority): (StoreKind, AuthorityConfig),
        sockets: ServerSockets,
    ) -> anyhow::Result<Self> {
        let data_dir = role::data_dir(args.data_dir())?;
        let name = node::name(args.node_name.as_ref())?;
        let advertised = advertised(&args, &name, &sockets)?;
        let Settings { datacenter, grace, csr, .. } = settings;
        let data = data_dir.clone();
        let config = ServerConfig { store, grace, csr, advertised, authority, ..ServerConfig::new(data, datacenter) };
        let registry = Registry::default();
        memory::register(&registry);
        let server = Opening::examine(config).await?.start(&registry).await?;
        let own = node::local(name, agents_at(&sockets)?.ip(), &data_dir)?;
        let (http, grpc_tls) = (sockets.http.places(), agents_at(&sockets)?);
        let acl_default = settings.acl_default_policy.map(Into::into);
        let control = Control::new(server, registry, settings.default_intention_policy.into(), acl_default, None);
        let serving = Serving::new();
        control.open(&serving, sockets, &own, None, descriptors::of_server()?).await?;
        tracing::info!(data_dir = %data_dir.display(), %http, %grpc_tls, "ready");
        Ok(Self { control, serving })
    }
}

impl Role for Running {
    const FINISHES_START: bool = false;

    async fn serve(&mut self) -> anyhow::Result<()> {
        let server = Arc::clone(&self.control.server);
        tokio::select! {
            error = failed(&server) => Err(error),
            () = server.left() => Ok(()),
        }
    }

    async fn stop(self) {
        let server = Arc::clone(&self.control.server);
        if server.id().is_some() {
            server.leave();
            server.left().await;
        }
        self.serving.stop().await;
        self.control.server.resign().await;
    }
}
