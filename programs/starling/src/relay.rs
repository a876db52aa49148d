//! `starling relay`: streams from servers, passed on to agents.

mod arguments;
mod pages;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use starling_relay::{RelayConfig, RelayNode};
use starling_telemetry::Registry;
use tokio::net::TcpListener;

pub(crate) use arguments::RelayArgs;

use crate::descriptors;
use crate::environment::Environment;
use crate::memory;
use crate::role::http_doors::HttpSockets;
use crate::role::{self, Interrupts, Role, STOP_WITHIN, Serving, doors, node};

/// How long leaving takes at most.
const LEAVE_WITHIN: Duration = Duration::from_secs(15);

/// Runs until interrupted.
pub(crate) async fn run(args: RelayArgs, environment: &Environment) -> anyhow::Result<()> {
    let interrupts = Interrupts::listen()?;
    let name = node::name(args.node_name.as_ref())?;
    let (servers, join_token) = (args.servers()?, args.join_token(environment)?);
    let http = HttpSockets::bind(&[args.http_addr], &args.http_doors).await?;
    let grpc_tls = doors::grpc_tls(args.grpc_tls_addr)?;
    let data_dir = role::data_dir(&args.data_dir)?;
    let clock = starling_agent::system_clock();
    let config = RelayConfig { name, servers, join_token, data_dir: data_dir.clone(), clock };
    let starting = Running::start(config, &data_dir, http, grpc_tls);
    role::run_within(interrupts, LEAVE_WITHIN + STOP_WITHIN, starting).await
}

struct Running {
    relay: Arc<RelayNode>,
    state: Arc<pages::State>,
    serving: Serving,
}

impl Running {
    async fn start(
        config: RelayConfig,
        data_dir: &Path,
        http: HttpSockets,
        grpc_tls: TcpListener,
    ) -> anyhow::Result<Self> {
        let registry = Registry::default();
        memory::register(&registry);
        let (addr, tls_addr) = (http.places(), grpc_tls.local_addr()?);
        let serving = Serving::new();
        let relay = Arc::new(RelayNode::start(config, &registry).await?);
        pages::register(&registry, &relay);
        let state = Arc::new(pages::State::new(Arc::clone(&relay), registry));
        let shares = descriptors::of_relay()?;
        let router = pages::router(Arc::clone(&state));
        http.serve(&serving, router, &shares).await;
        let (doors, tls) = (relay.doors.clone(), Arc::clone(&relay.tls));
        let served = starling_rpc::serve_tls(grpc_tls, tls, doors, shares.grpc_tls, serving.stopped());
        serving.spawn_door("gRPC over TLS", served).await;
        relay.attached().await;
        let server = relay.server().unwrap_or_default();
        tracing::info!(data_dir = %data_dir.display(), http = %addr, grpc_tls = %tls_addr, server, "ready");
        Ok(Self { relay, state, serving })
    }
}

impl Role for Running {
    const FINISHES_START: bool = false;

    async fn serve(&mut self) -> anyhow::Result<()> {
        std::future::pending().await
    }

    async fn stop(self) {
        self.state.leave();
        self.relay.leave(LEAVE_WITHIN).await;
        self.serving.stop().await;
    }
}
