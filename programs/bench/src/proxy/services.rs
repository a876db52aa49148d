//! A plan of many services: what it adds to the memory of a proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::api::{Api, Call};
use crate::mesh::Ports;
use crate::plane::Plane;
use crate::plane::registrations::{caller, elsewhere, put};
use crate::process;

/// Where a sidecar takes requests for them: an address of its own, so that no other port is in the way.
const UPSTREAMS_AT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The first port there, and the one in its place where the sidecar's own is among those that follow.
const FIRST_PORT: u16 = 10_000;
const OTHER_FIRST_PORT: u16 = 40_000;

/// Clients that register at the same time.
const CLIENTS: u32 = 16;

/// The instance whose sidecar has all of them as upstreams.
const INSTANCE: &str = "bench-calls-many";

/// Time in which the last of them must be there.
const THERE_WITHIN: Duration = Duration::from_secs(120);

/// After that, until memory is looked at.
const SETTLING: Duration = Duration::from_secs(3);

/// Megabytes that so many services add to the proxy that has all of them as upstreams, each with a route of HTTP.
///
/// # Errors
/// When a registration is refused, or the proxy does not listen for all of them in time.
pub(super) async fn memory_mb(plane: &mut Plane, services: u32) -> anyhow::Result<f64> {
    let mut ports = Ports::new();
    let (application, sidecar) = (ports.loopback()?, ports.loopback()?);
    plane.register_caller(&caller(INSTANCE, application, sidecar, [])).await?;
    plane.further_sidecar(INSTANCE, &mut ports).await?;
    tokio::time::sleep(SETTLING).await;
    let proxy = plane.proxy_of(INSTANCE);
    let before = process::resident(proxy)?;
    register(plane, services).await?;
    let in_the_way = sidecar.port().checked_sub(FIRST_PORT).is_some_and(|place| u32::from(place) < services);
    let first = if in_the_way { OTHER_FIRST_PORT } else { FIRST_PORT };
    let bind = |number: u32| {
        let port = first.saturating_add(u16::try_from(number).unwrap_or(u16::MAX));
        SocketAddr::from((UPSTREAMS_AT, port))
    };
    let upstreams = (0..services).map(|number| (name(number), bind(number)));
    plane.register_caller(&caller(INSTANCE, application, sidecar, upstreams)).await?;
    let deadline = Instant::now() + THERE_WITHIN;
    for number in [0, services / 2, services - 1] {
        while TcpStream::connect(bind(number)).await.is_err() {
            if Instant::now() > deadline {
                bail!("a proxy does not listen for each of {services} upstreams within {THERE_WITHIN:?}");
            }
            plane.check_alive()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    tokio::time::sleep(SETTLING).await;
    let added = process::resident(proxy)?.saturating_sub(before);
    // None of them is in the way of what is measured next.
    plane.register_caller(&caller(INSTANCE, application, sidecar, [])).await?;
    #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 bytes")]
    Ok(added as f64 / 1e6)
}

/// Registers the services in the catalog, each with an instance that nobody runs. What they speak is said by one client:
/// several would hold each other up, for config entries are written under the condition that no other one was.
pub(crate) async fn register(plane: &Plane, services: u32) -> anyhow::Result<()> {
    let mut api = plane.server_api();
    for number in 0..services {
        let defaults = json!({ "Kind": "service-defaults", "Name": name(number), "Protocol": "http" });
        let Call { method, target, body } = put("/v1/config", defaults);
        api.write(method, &target, &body).await?;
    }
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut api: Api = plane.server_api();
        clients.spawn(async move {
            for number in (client..services).step_by(usize::try_from(CLIENTS)?) {
                let name = name(number);
                let address = SocketAddr::from((Ipv4Addr::from(0x0a4f_0001 + number), 9090));
                let Call { method, target, body } = elsewhere(&name, &name, address);
                api.write(method, &target, &body).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

/// The name of one of them.
pub(crate) fn name(number: u32) -> String {
    format!("bench-many-{number}")
}
