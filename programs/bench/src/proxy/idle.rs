//! Connections of mutual TLS that have carried one request and then nothing: what each costs the proxy that has them.

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use tokio::task::JoinSet;

use super::measure::RESTING;
use crate::load::{IdleConnection, Peer};
use crate::plane::registrations::Service;
use crate::plane::{Plane, tls};
use crate::process;

/// Descriptors of this process that are for something else.
const OTHER_DESCRIPTORS: u64 = 1000;

/// Connections that are opened at the same time.
const AT_ONCE: usize = 32;

/// After the last connection, until memory is looked at: what was needed for handshakes alone is given back by then.
const SETTLING: Duration = Duration::from_secs(3);

/// Time after the last connection in which memory is given back.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(60);

/// Nothing is waited for below this share of what was resident before.
const GIVEN_BACK: f64 = 1.05;

/// How many, and what each costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) connections: u32,
    pub(super) kilobytes_each: f64,
    /// What is resident a minute after they have ended, in what was resident before them.
    pub(super) times_idle_after: f64,
}

/// Opens up to so many connections and looks at the memory of the proxy that accepts them.
///
/// # Errors
/// When one cannot be opened, or is not served.
pub(super) async fn memory(plane: &Plane, wanted: u32) -> anyhow::Result<Found> {
    let tls = tls::as_caller(&mut plane.calling_api()).await?;
    let peer = Peer { address: plane.public(Service::Http), tls: Some(tls) };
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let connections = wanted.min(u32::try_from(limit.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(u32::MAX));
    let [_, accepting] = plane.proxies(Service::Http);
    tokio::time::sleep(RESTING).await;
    let idle = process::resident(accepting)?;
    // What the first connections bring about is not theirs.
    let mut kept = vec![IdleConnection::open(&peer).await?];
    let before = process::resident(accepting)?;
    let mut opening = JoinSet::new();
    for _ in 0..connections {
        if opening.len() >= AT_ONCE
            && let Some(opened) = opening.join_next().await
        {
            kept.push(opened??);
        }
        let peer = peer.clone();
        opening.spawn(async move { IdleConnection::open(&peer).await });
    }
    while let Some(opened) = opening.join_next().await {
        kept.push(opened??);
    }
    tokio::time::sleep(SETTLING).await;
    let added = process::resident(accepting)?.saturating_sub(before);
    for connection in &mut kept {
        connection.check_open()?;
    }
    drop(kept);
    let times_idle_after = given_back(accepting, idle).await?;
    #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 bytes")]
    let kilobytes_each = added as f64 / 1000.0 / f64::from(connections);
    Ok(Found { connections, kilobytes_each, times_idle_after })
}

/// What is resident once as much as will be is given back, in `idle`.
async fn given_back(process: u32, idle: u64) -> anyhow::Result<f64> {
    let until = Instant::now() + GIVEN_BACK_WITHIN;
    loop {
        #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 bytes")]
        let times = process::resident(process)? as f64 / idle as f64;
        if times <= GIVEN_BACK || Instant::now() > until {
            return Ok(times);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
