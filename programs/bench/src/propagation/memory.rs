//! What further instances add to the memory of a server.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use http::Method;
use serde_json::json;

use crate::api::{Api, Call};
use crate::fleet::Server;
use crate::fleet_report::Further;
use crate::process;
use crate::progress::Progress;
use crate::shape;

/// Clients that register at the same time, so that many share a write to the disk.
const CLIENTS: u32 = 32;

/// Instances on a node.
const PER_NODE: u32 = 100;

/// The first address of a node.
const NODE_ADDRESS_FIRST: u32 = 0x0a61_0001;

/// The first address of an instance.
const ADDRESS_FIRST: u32 = 0x0a62_0001;

/// Memory is at rest when it was not less than before for so long: the allocator gives back what is free bit by bit.
const RESTS_AFTER: Duration = Duration::from_secs(5);

/// Longest wait for that.
const REST_MAX: Duration = Duration::from_secs(30);

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// Registers so many instances of the services of a fleet of so many workloads, on nodes that nobody runs.
///
/// # Errors
/// When the server refuses one, or is gone.
pub(super) async fn of_further_instances(
    server: &Server,
    instances: u32,
    workloads: u32,
    progress: &Progress,
) -> anyhow::Result<Further> {
    progress.say("letting the server come to rest");
    let rss_bytes_before = at_rest(server.pid()).await?;
    let services = shape::services(workloads);
    {
        let mut phase = progress.phase("further instances", u64::from(instances));
        let next = AtomicU32::new(0);
        let (registered, mut steps) = tokio::sync::mpsc::unbounded_channel();
        let clients = (0..CLIENTS).map(|_| register(server.api(), &next, instances, &services, registered.clone()));
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
    let rss_bytes_after = at_rest(server.pid()).await?;
    Ok(Further {
        instances,
        rss_bytes_before,
        rss_bytes_after,
        bytes_each: each(rss_bytes_before, rss_bytes_after, instances),
    })
}

/// Takes one number after the other and registers the instance of it.
async fn register(
    mut api: Api,
    next: &AtomicU32,
    instances: u32,
    services: &[String],
    registered: tokio::sync::mpsc::UnboundedSender<()>,
) -> anyhow::Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= instances {
            return Ok(());
        }
        let Call { method, target, body } = call(number, services);
        api.write(method, &target, &body).await?;
        // Nobody looks if the run is given up.
        let _ = registered.send(());
    }
}

fn call(number: u32, services: &[String]) -> Call {
    let node = number / PER_NODE;
    let service = &services[number as usize % services.len()];
    let body = json!({
        "Node": format!("bench-further-{node}"),
        "Address": Ipv4Addr::from(NODE_ADDRESS_FIRST + node),
        "Service": {
            "ID": format!("{service}-further-{number}"),
            "Service": service,
            "Address": Ipv4Addr::from(ADDRESS_FIRST + number),
            "Port": 9090,
            "Connect": { "Native": true },
        },
    });
    Call { method: Method::PUT, target: "/v1/catalog/register".to_owned(), body }
}

/// The memory of a process once it is at rest.
async fn at_rest(pid: u32) -> anyhow::Result<u64> {
    let deadline = Instant::now() + REST_MAX;
    let (mut least, mut since) = (process::resident(pid)?, Instant::now());
    while since.elapsed() < RESTS_AFTER && Instant::now() < deadline {
        tokio::time::sleep(LOOK_PAUSE).await;
        let now = process::resident(pid)?;
        if now < least {
            (least, since) = (now, Instant::now());
        }
    }
    Ok(least)
}

#[expect(clippy::cast_precision_loss, reason = "a bar is in tenths of a kilobyte")]
fn each(before: u64, after: u64, instances: u32) -> f64 {
    (after as f64 - before as f64) / f64::from(instances.max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn further_instances_are_all_others_and_spread_over_services_and_nodes() {
        let services = shape::services(356);
        let calls: Vec<Call> = (0..1000).map(|number| call(number, &services)).collect();
        let of = |field: &str| {
            let value = |call: &Call| call.body.pointer(field).unwrap().as_str().unwrap().to_owned();
            calls.iter().map(value).collect::<BTreeSet<_>>()
        };
        assert_eq!(of("/Service/ID").len(), 1000);
        assert_eq!(of("/Service/Address").len(), 1000);
        assert_eq!(of("/Service/Service").len(), services.len());
        assert_eq!((of("/Node").len(), of("/Address").len()), (10, 10));
    }

    #[test]
    fn memory_may_have_shrunk() {
        assert_eq!(each(1000, 5000, 4), 1000.0);
        assert_eq!(each(5000, 1000, 4), -1000.0);
    }
}
