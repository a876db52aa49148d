//! Floods against a mesh that runs, each alone, and what they do to everybody else.
//!
//! Starts a mesh with the native data plane, measures it at rest, and again under each flood:
//!
//! - idle connections to one sidecar, opened again when they are closed;
//! - connections of five bytes to the port of agents;
//! - anonymous blocking queries on a public route.
//!
//! Prints the median and the 99th percentile of each probe, and fails if a bar is missed. `ATTACK_CONNECTIONS`,
//! `ATTACK_HELLOS` (a second) and `ATTACK_WAITS` change the size. Attackers are processes of their own, so that their
//! descriptors are not the mesh's.

mod flood;
mod probe;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use probe::{Figures, Probes};
use starling_e2e::{Instance, Mesh, MeshOptions, Plane, Served, Workload};

/// Idle connections of one attacker: its own descriptors are limited, too.
const CONNECTIONS_OF_PROCESS: usize = 10_000;

/// Time in which a flood comes to its full size before anything is measured.
const RISES_WITHIN: Duration = Duration::from_secs(10);

/// The bars, in milliseconds at the 99th percentile.
const API_MS_MAX: f64 = 50.0;
const HANDSHAKE_MS_MAX: f64 = 100.0;
const HEALTH_MS_MAX: f64 = 50.0;

/// How many times slower traffic of other sidecars may be.
const TRAFFIC_RATIO_MAX: f64 = 2.0;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, address, size] = &arguments[..] {
        return flood::run(kind, address, size.parse().context("the size of the flood")?).await;
    }
    let world = World::start().await;
    let rest = world.measure("at rest").await?;
    let waits = world.attack("waits", &world.mesh.addresses.http.clone(), size("ATTACK_WAITS", 16_000))?;
    let of_waits = world.under(waits, "waits on a public route").await?;
    let hellos = world.attack("hellos", &world.mesh.addresses.grpc_tls.clone(), size("ATTACK_HELLOS", 900))?;
    let of_hellos = world.under(hellos, "five-byte connections").await?;
    let idle = world.attack("idle", &world.victim.public(), size("ATTACK_CONNECTIONS", 20_000))?;
    let of_idle = world.under(idle, "idle connections to one sidecar").await?;
    let missed: Vec<_> = [of_waits, of_hellos, of_idle].iter().flat_map(|figures| missed(figures, &rest)).collect();
    if missed.is_empty() { Ok(()) } else { bail!("bars are missed:\n{}", missed.join("\n")) }
}

fn size(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The bars that figures miss.
fn missed(figures: &Figures, rest: &Figures) -> Vec<String> {
    let ratio = figures.traffic.p99 / rest.traffic.p99;
    let bars = [
        ("API p99, ms", figures.api.p99, API_MS_MAX),
        ("handshake p99, ms", figures.handshake.p99, HANDSHAKE_MS_MAX),
        ("health p99, ms", figures.health.p99, HEALTH_MS_MAX),
        ("traffic p99, ratio", ratio, TRAFFIC_RATIO_MAX),
    ];
    let missed = bars.into_iter().filter(|(_, found, max)| found > max);
    missed
        .map(|(name, found, max)| format!("{}: {name} is {found:.1}, and {max:.1} is allowed", figures.name))
        .collect()
}

/// A mesh in which web calls api, and nobody calls the victim.
struct World {
    mesh: Mesh,
    web: Instance<Served>,
    _api: Instance<Served>,
    victim: Instance<Served>,
}

impl World {
    async fn start() -> Self {
        let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
        let api = Workload::new("api").start_on(&mesh, Plane::Native).await;
        let victim = Workload::new("victim").start_on(&mesh, Plane::Native).await;
        let web = Workload::new("web").calls("api").start_on(&mesh, Plane::Native).await;
        web.served_by("api", &["api"], "the mesh is at rest").await;
        Self { mesh, web, _api: api, victim }
    }

    async fn measure(&self, name: &'static str) -> anyhow::Result<Figures> {
        let probes = Probes {
            http: self.mesh.addresses.http.clone(),
            grpc_tls: self.mesh.addresses.grpc_tls.clone(),
            upstream: self.web.upstream("api"),
        };
        let figures = probes.measure(name).await?;
        println!("{figures}");
        Ok(figures)
    }

    /// Starts attackers.
    fn attack(&self, kind: &str, address: &str, size: usize) -> anyhow::Result<Attackers> {
        let each = if kind == "hellos" { size } else { CONNECTIONS_OF_PROCESS };
        let mut attackers = Attackers(Vec::new());
        let mut left = size;
        while left > 0 {
            let part = left.min(each);
            left -= part;
            let mut command = Command::new(std::env::current_exe().context("this program")?);
            command.args([kind, address, &part.to_string()]).stdin(Stdio::null());
            attackers.0.push(command.spawn().context("starting an attacker")?);
        }
        Ok(attackers)
    }

    /// Measures under a flood, and ends it.
    async fn under(&self, attackers: Attackers, name: &'static str) -> anyhow::Result<Figures> {
        tokio::time::sleep(RISES_WITHIN).await;
        let figures = self.measure(name).await;
        drop(attackers);
        // What the flood has left is cleared away before the next one.
        tokio::time::sleep(RISES_WITHIN).await;
        figures
    }
}

/// Attackers, ended when this is dropped.
struct Attackers(Vec<Child>);

impl Drop for Attackers {
    fn drop(&mut self) {
        for attacker in &mut self.0 {
            // One that has ended needs no end.
            let _ = attacker.kill();
            let _ = attacker.wait();
        }
    }
}
