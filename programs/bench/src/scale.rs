//! Scenario `scale`: what many services and sidecars cost the server, and what one change costs among them.
//!
//! Services are registered through the agent or the catalog by several clients at once, sidecars with upstreams among them are
//! registered at the agent, and real Envoys attach. Then one instance after another is deregistered and registered again,
//! of a service that every Envoy watches, of one that a single Envoy watches, and of one that none does: the cost of a
//! change should follow its watchers, not the fleet.

mod changes;
mod findings;
mod fleet;

use std::process::ExitCode;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::bail;
use clap::value_parser;
use http::Method;

use crate::api::Call;
use crate::mesh::{Envoy, Mesh, MeshOptions};
use crate::process::{self, Memory};
use crate::progress::Progress;
use crate::report::{OutputArgs, Versions};
use findings::{EnvoyMemory, Findings, Registration, ServerMemory};
use fleet::{Door, Fleet};

/// Worker threads of each Envoy: without traffic one is enough, and each costs memory that is not the mesh's.
const ENVOY_WORKERS: usize = 1;

/// Arguments of `starling bench scale`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = findings::JSON_HELP)]
pub(crate) struct Args {
    /// Services to register
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..=100_000))]
    services: u32,
    /// Instances of each
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    instances: u32,
    /// Sidecars to register
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(0..=200))]
    sidecars: u32,
    /// Upstreams of each sidecar
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=200))]
    upstreams: u32,
    /// Sidecars that run as real Envoys of about 70 MB each; by default all of them
    #[arg(long, value_parser = value_parser!(u32).range(0..=200))]
    envoys: Option<u32>,
    /// Which API registers and deregisters instances
    #[arg(long, value_enum, default_value_t = Door::Agent)]
    through: Door,
    /// Clients that register at the same time
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u16).range(1..=512))]
    connections: u16,
    /// Changes of each kind
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(2..=1000))]
    changes: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the scenario.
///
/// # Errors
/// When the mesh cannot be brought up or breaks, a call is refused, or a change is not applied by every Envoy.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let fleet = fleet(&args)?;
    let envoy = if fleet.attached > 0 { Some(Envoy::find()?) } else { None };
    let versions = Versions::of(envoy.as_ref());
    progress.say("starting a server");
    args.output.verify()?;
    let mut mesh = Mesh::start(MeshOptions { envoy, keep: args.output.keep }).await?;
    if args.output.keep {
        progress.say(&format!("data and logs are in {}", mesh.directory().display()));
    }
    let at_start = process::memory(mesh.server_pid())?;
    let registration = register_services(&mesh, &fleet, usize::from(args.connections), &progress).await?;
    let registered = process::memory(mesh.server_pid())?;
    attach_sidecars(&mut mesh, &fleet, &progress).await?;
    changes::all_attached(&mut mesh, &fleet).await?;
    let attached = process::memory(mesh.server_pid())?;
    let changes = changes::measure(&mut mesh, &fleet, args.changes, &progress).await?;
    let at_end = process::memory(mesh.server_pid())?;

    let findings = Findings {
        registration,
        server_memory: ServerMemory { at_start, registered, attached, at_end },
        envoy_memory: envoy_memory(&mesh)?,
        changes,
    };
    let report = findings.report(&fleet, versions);
    args.output.deliver(&report, slice::from_ref(&report.bar), || findings::table(&report))
}

fn fleet(args: &Args) -> anyhow::Result<Fleet> {
    let attached = args.envoys.unwrap_or(args.sidecars);
    if attached > args.sidecars {
        bail!("--envoys {attached} is more than --sidecars {}: an Envoy needs a sidecar's registration", args.sidecars);
    }
    if args.upstreams > args.services {
        bail!("--upstreams {} is more than --services {}: there is no such service", args.upstreams, args.services);
    }
    let Args { services, instances, sidecars, upstreams, through, .. } = *args;
    Ok(Fleet { door: through, services, instances, sidecars, upstreams, attached })
}

/// Registers every instance, by several clients at once, and tells how long that took.
async fn register_services(
    mesh: &Mesh,
    fleet: &Fleet,
    connections: usize,
    progress: &Progress,
) -> anyhow::Result<Registration> {
    let total = u64::from(fleet.services) * u64::from(fleet.instances);
    let phase = Arc::new(Mutex::new(progress.phase("instances registered", total)));
    let mut shares: Vec<Vec<_>> = vec![Vec::new(); connections];
    for (number, call) in fleet.registrations().enumerate() {
        shares[number % connections].push(call);
    }
    let begun = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for share in shares {
        let (mut api, phase) = (mesh.api(), Arc::clone(&phase));
        clients.spawn(async move {
            let mut took = Vec::with_capacity(share.len());
            for Call { method, target, body } in share {
                let written = api.write(method, &target, &body).await?;
                took.push(written.answered - written.called);
                phase.lock().unwrap_or_else(PoisonError::into_inner).step();
            }
            anyhow::Ok(took)
        });
    }
    let mut took = Vec::new();
    while let Some(ended) = clients.join_next().await {
        took.extend(ended??);
    }
    Ok(Registration { connections, took: begun.elapsed(), each: took.into_iter().collect() })
}

/// Registers the sidecars at the agent and starts as many Envoys as were asked for.
async fn attach_sidecars(mesh: &mut Mesh, fleet: &Fleet, progress: &Progress) -> anyhow::Result<()> {
    let mut api = mesh.api();
    for sidecar in 0..fleet.sidecars {
        let body = fleet.sidecar(sidecar, || mesh.free_address())?;
        api.write(Method::PUT, "/v1/agent/service/register", &body).await?;
    }
    for sidecar in 0..fleet.attached {
        mesh.start_envoy(&fleet::sidecar_for(sidecar), ENVOY_WORKERS)?;
    }
    let mut phase = progress.phase("Envoys", u64::from(fleet.attached));
    mesh.envoys_ready(|| phase.step()).await
}

fn envoy_memory(mesh: &Mesh) -> anyhow::Result<Option<EnvoyMemory>> {
    let each: Vec<Memory> = mesh.envoy_pids().map(process::memory).collect::<anyhow::Result<_>>()?;
    Ok(EnvoyMemory::of(&each))
}
