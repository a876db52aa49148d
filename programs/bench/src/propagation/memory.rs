//! What further registrations add to the memory of a server: instances, and a sidecar with an upstream for each, as a fleet
//! has them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use http::Method;
use serde_json::json;

use crate::api::{Api, Call};
use crate::fleet::Server;
use crate::fleet_report::Further;
use crate::progress::Progress;
use crate::shape::{self, COMMON_UPSTREAM};

/// Clients that register at the same time, so that many share a write to the disk.
const CLIENTS: u32 = 32;

/// Instances on a node, each with its sidecar: as many as on one of the published fleet.
const PER_NODE: u32 = 18;

/// The first address of a node.
const NODE_ADDRESS_FIRST: u32 = 0x0a61_0001;

/// The ports of the first instance of a node, of its sidecar, and of what it calls.
const PORTS_FIRST: [u32; 3] = [10_000, 20_000, 25_000];

/// Registrations of an instance: its own, and its sidecar's.
const EACH: u32 = 2;

/// Memory is at rest when it was not less than before for so long: what has come in is still being worked on.
const RESTS_AFTER: Duration = Duration::from_secs(5);

/// Longest wait for that.
const REST_MAX: Duration = Duration::from_secs(30);

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// Makes so many registrations, of instances of the services of a fleet of so many workloads, on nodes that nobody runs.
///
/// # Errors
/// When the server refuses one, or is gone.
pub(super) async fn of_further_registrations(
    server: &Server,
    registrations: u32,
    workloads: u32,
    progress: &Progress,
) -> anyhow::Result<Further> {
    progress.say("letting the server come to rest");
    let allocated_bytes_before = at_rest(server).await?;
    let services = shape::services(workloads);
    {
        let mut phase = progress.phase("further registrations", u64::from(registrations));
        let next = AtomicU32::new(0);
        let (registered, mut steps) = tokio::sync::mpsc::unbounded_channel();
        let clients = (0..CLIENTS).map(|_| register(server.api(), &next, registrations, &services, registered.clone()));
        let clients = try_join_all(clients);
        drop(registered);
        let shown = async {
            while steps.recv().await.is_some() {
                phase.step();
            }
        };
        tokio::join!(clients, shown).0?;
    }
    progress.say("letting the server come to rest");
    let allocated_bytes_after = at_rest(server).await?;
    Ok(Further {
        registrations,
        allocated_bytes_before,
        allocated_bytes_after,
        bytes_each: each(allocated_bytes_before, allocated_bytes_after, registrations),
    })
}

/// Takes one number after the other, and registers the instance of it and then its sidecar.
async fn register(
    mut api: Api,
    next: &AtomicU32,
    registrations: u32,
    services: &[String],
    registered: tokio::sync::mpsc::UnboundedSender<()>,
) -> anyhow::Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let left = registrations.saturating_sub(number.saturating_mul(EACH));
        if left == 0 {
            return Ok(());
        }
        for Call { method, target, body } in calls(number, services).into_iter().take(left as usize) {
            api.write(method, &target, &body).await?;
            // Nobody looks if the run is given up.
            let _ = registered.send(());
        }
    }
}

/// An instance, and its sidecar, which calls the common upstream.
fn calls(number: u32, services: &[String]) -> [Call; EACH as usize] {
    let node = number / PER_NODE;
    let service = &services[number as usize % services.len()];
    let id = format!("{service}-further-{number}");
    let [port, sidecar_port, upstream_port] = PORTS_FIRST.map(|first| first + number % PER_NODE);
    let sidecar = json!({
        "ID": format!("{id}-sidecar-proxy"),
        "Service": format!("{service}-sidecar-proxy"),
        "Kind": "connect-proxy",
        "Port": sidecar_port,
        "Proxy": {
            "DestinationServiceName": service,
            "DestinationServiceID": id,
            "LocalServiceAddress": "127.0.0.1",
            "LocalServicePort": port,
            "Upstreams": [{ "DestinationName": COMMON_UPSTREAM, "LocalBindPort": upstream_port }],
        },
    });
    [json!({ "ID": id, "Service": service, "Port": port }), sidecar].map(|service| {
        let address = Ipv4Addr::from(NODE_ADDRESS_FIRST + node);
        let body = json!({ "Node": format!("bench-further-{node}"), "Address": address, "Service": service });
        Call { method: Method::PUT, target: "/v1/catalog/register".to_owned(), body }
    })
}

/// The memory that a server has in use once it is at rest.
async fn at_rest(server: &Server) -> anyhow::Result<u64> {
    let deadline = Instant::now() + REST_MAX;
    let (mut least, mut since) = (server.allocated_bytes().await?, Instant::now());
    while since.elapsed() < RESTS_AFTER && Instant::now() < deadline {
        tokio::time::sleep(LOOK_PAUSE).await;
        let now = server.allocated_bytes().await?;
        if now < least {
            (least, since) = (now, Instant::now());
        }
    }
    Ok(least)
}

#[expect(clippy::cast_precision_loss, reason = "a bar is in tenths of a kilobyte")]
fn each(before: u64, after: u64, registrations: u32) -> f64 {
    (after as f64 - before as f64) / f64::from(registrations.max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn further_registrations_are_all_others_and_spread_over_services_and_nodes() {
        let services = shape::services(356);
        let calls: Vec<Call> = (0..900).flat_map(|number| calls(number, &services)).collect();
        let of = |field: &str| {
            let value = |call: &Call| call.body.pointer(field).map(ToString::to_string);
            calls.iter().filter_map(value).collect::<BTreeSet<_>>()
        };
        assert_eq!(of("/Service/ID").len(), 1800);
        assert_eq!(of("/Service/Service").len(), 2 * services.len());
        assert_eq!((of("/Node").len(), of("/Address").len()), (50, 50));
        assert_eq!(of("/Service/Port").len(), 36, "no two of a node have a port in common");
        assert_eq!(of("/Service/Proxy/DestinationServiceID").len(), 900);
        assert_eq!(of("/Service/Proxy/Upstreams/0/DestinationName").len(), 1);
    }

    #[test]
    fn memory_may_have_shrunk() {
        assert_eq!(each(1000, 5000, 4), 1000.0);
        assert_eq!(each(5000, 1000, 4), -1000.0);
    }
}
