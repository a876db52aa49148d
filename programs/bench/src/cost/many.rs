//! Memory by the number of services in the mesh: those that proxies do not call, and, permissive, those that they may.
//!
//! Measured once each, and at the end: a process does not give back all that it had, so that a second round would find what
//! the first one left. The number only grows, and the scoped ones come first.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::net::TcpStream;

use super::cells::Measurements;
use super::measure::{Timing, measure};
use super::report::{CostScenario, Point, ProxyKind};
use super::subjects::Subjects;
use crate::plane::Plane;
use crate::progress::Progress;
use crate::proxy::services::{name, register};

/// Connections and rate at which memory is looked at: a proxy that does something, and little.
const CONNECTIONS: u32 = 16;
const RATE: f64 = 100.0;

/// The first port at which a caller's sidecar takes requests for them, on an address of its own: above those that this
/// program hands out for all addresses.
const FIRST_PORT: u16 = 40_000;

/// Time in which a sidecar must listen for the last of them.
const THERE_WITHIN: Duration = Duration::from_secs(120);

/// After services came, until memory is looked at: the plans that they change are made by then.
const SETTLING: Duration = Duration::from_secs(3);

/// Between two looks.
const GLANCE: Duration = Duration::from_millis(50);

/// Measures every variant with each number of services, scoped and then permissive.
pub(super) async fn measure_all(
    subjects: &mut Subjects,
    services: &[u32],
    timing: Timing,
    progress: &Progress,
    all: &mut Vec<Measurements>,
) {
    let total = 2 * services.len() * subjects.variants.len();
    if total == 0 {
        return;
    }
    let mut phase = progress.phase("measurements with further services", u64::try_from(total).unwrap_or(u64::MAX));
    for scoped in [true, false] {
        for services in services {
            for variant in 0..subjects.variants.len() {
                all.push(measure_one(subjects, variant, (*services, scoped), timing).await);
                phase.step();
            }
        }
    }
}

async fn measure_one(
    subjects: &mut Subjects,
    variant: usize,
    (services, scoped): (u32, bool),
    timing: Timing,
) -> Measurements {
    let of = &subjects.variants[variant];
    let (proxy, mode) = (of.proxy, of.mode);
    let point = Point {
        connections: CONNECTIONS,
        rate: Some(RATE),
        services: Some(services),
        scoped: Some(scoped),
        ..Point::default()
    };
    let measured = async {
        for (_, plane) in subjects.planes.iter().filter(|(kind, _)| *kind == proxy) {
            prepare(plane, proxy, services, scoped).await?;
        }
        // A run that short shows that all works, and its figures are nobody's.
        tokio::time::sleep(SETTLING.min(timing.length)).await;
        measure(of, &[], point, timing, (0, 0)).await
    };
    let mut measurements =
        Measurements { scenario: CostScenario::Memory, proxy, mode, point, rounds: Vec::new(), problems: Vec::new() };
    match measured.await {
        Ok(measured) => measurements.rounds.push(measured),
        Err(error) => measurements.problems.push(format!("{error:#}")),
    }
    measurements
}

/// Has a mesh have so many services, and its caller know of them where it is permissive.
async fn prepare(plane: &Plane, kind: ProxyKind, services: u32, scoped: bool) -> anyhow::Result<()> {
    if scoped {
        return register(plane, services).await;
    }
    plane.call_also((0..services).map(|number| (name(number), bind(kind, number)))).await?;
    let deadline = Instant::now() + THERE_WITHIN;
    for number in [0, services / 2, services - 1] {
        while TcpStream::connect(bind(kind, number)).await.is_err() {
            if Instant::now() > deadline {
                bail!("the caller's proxy does not listen for each of {services} services within {THERE_WITHIN:?}");
            }
            tokio::time::sleep(GLANCE).await;
        }
    }
    Ok(())
}

/// Each kind of proxies has an address of its own, for all are up at the same time.
fn bind(kind: ProxyKind, number: u32) -> SocketAddr {
    let address = if kind == ProxyKind::Envoy { Ipv4Addr::new(127, 0, 0, 3) } else { Ipv4Addr::new(127, 0, 0, 2) };
    SocketAddr::from((address, FIRST_PORT.saturating_add(u16::try_from(number).unwrap_or(u16::MAX))))
}
