//! `starling proxy`: the native data plane in a process of its own, for one workload.
//!
//! Looks the sidecar up at the local agent, as `connect envoy` does, follows its plan, and serves it. It goes on serving
//! while the agent is away.

mod dial;
mod follow;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use starling_model::InstanceId;
use starling_proxy::Engine;
use starling_proxy::admin::{self, AdminAddress, AdminListener};
use tokio::time::{Instant, sleep};

use crate::arguments::Surroundings;
use crate::client::ApiArgs;
use crate::connect::arguments::{SidecarArgs, XdsArgs};
use crate::connect::sidecar::{self, Wanted};
use crate::connect::xds::Xds;
use crate::role::arguments::{LogArgs, proxy_workers};
use crate::role::{self, Interrupts, Role, Serving};
use dial::Dial;
use follow::Follower;

/// Between two looks at whether connections are left, while draining.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serve one workload of this node with the native data plane, in a process of its own
///
/// The service is registered with the local agent and has a sidecar (`connect { sidecar_service {} }`). While this process
/// runs, the agent leaves the sidecar to it. SIGTERM and Ctrl-C let requests that are under way finish first.
#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,

    /// Where it shows what it does and is drained: a loopback address, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    admin_bind: Option<AdminAddress>,

    /// Threads [default: the CPU limit of this process]
    #[arg(long, value_name = "N", env = "STARLING_PROXY_WORKERS", value_parser = clap::value_parser!(u16).range(1..=512))]
    workers: Option<u16>,

    /// Seconds that requests under way are given at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(..=3_600))]
    drain_time: u64,

    #[command(flatten)]
    xds: XdsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: ProxyArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    let interrupts = Interrupts::listen()?;
    let drain_time = Duration::from_secs(args.drain_time);
    role::run_within(interrupts, drain_time + role::STOP_WITHIN, start(args, surroundings, drain_time)).await
}

async fn start(args: ProxyArgs, surroundings: &Surroundings, drain_time: Duration) -> anyhow::Result<OwnProcess> {
    let client = surroundings.client(&args.api)?;
    let wanted = Wanted::of(&args.sidecar, &surroundings.environment)?;
    let agent = sidecar::agent(&client).await?;
    let sidecar = sidecar::find(&client, wanted).await?;
    let dial = Dial::new(Xds::find(&args.xds, &client, &surroundings.environment, &agent)?)?;
    let id = InstanceId::new(&sidecar.id).context("the sidecar's ID")?;
    let admin = match &args.admin_bind {
        None => None,
        Some(address) => {
            let bound = AdminListener::bind(address).await;
            Some(bound.with_context(|| format!("--admin-bind: cannot listen on {address}"))?)
        }
    };
    let engine = Arc::new(Engine::start(proxy_workers(args.workers)).context("starting the workers")?);
    let serving = Serving::new();
    if let Some(listener) = admin {
        serving.spawn_endless(admin::serve(listener, Arc::clone(&engine))).await;
    }
    let follower = Follower::new(id, dial, client.token().map(str::to_owned), Arc::clone(&engine));
    Ok(OwnProcess { follower, engine, serving, drain_time })
}

/// A proxy that is all that its process does.
struct OwnProcess {
    follower: Follower,
    engine: Arc<Engine>,
    serving: Serving,
    drain_time: Duration,
}

impl Role for OwnProcess {
    const FINISHES_START: bool = false;

    async fn serve(&mut self) -> anyhow::Result<()> {
        self.follower.follow().await
    }

    async fn stop(self) {
        self.engine.drain().await;
        let until = Instant::now() + self.drain_time;
        while Instant::now() < until && self.engine.standing().await > 0 {
            sleep(LOOK_EVERY).await;
        }
        self.serving.stop().await;
    }
}
