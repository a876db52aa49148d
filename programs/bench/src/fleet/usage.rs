//! CPU and memory of the servers and the fleet, looked at once a second for as long as a run lasts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::fleet_report::Sample;
use crate::process;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at processes until dropped.
pub(crate) struct Usage {
    samples: Arc<Mutex<Vec<Sample>>>,
    servers: Arc<Mutex<Vec<u32>>>,
    watcher: JoinHandle<()>,
}

impl Usage {
    /// Begins.
    pub(crate) fn watch(servers: Vec<u32>, fleet: Vec<u32>) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&samples);
        let servers = Arc::new(Mutex::new(servers));
        let watched = Arc::clone(&servers);
        let look = move || used(&watched.lock().unwrap_or_else(PoisonError::into_inner).clone(), &fleet);
        let watcher = tokio::spawn(async move {
            let begun = Instant::now();
            let (mut last, mut before) = (Instant::now(), look());
            loop {
                tokio::time::sleep(INTERVAL).await;
                let (now, after) = (Instant::now(), look());
                // A server that has just been killed has used nothing.
                if let (Some(before), Some(after)) = (&before, &after) {
                    let elapsed = (now - last).as_secs_f64();
                    let sample = Sample {
                        seconds: (now - begun).as_secs_f64(),
                        server_cpu_cores: after.server.0.saturating_sub(before.server.0).as_secs_f64() / elapsed,
                        fleet_cpu_cores: after.fleet.0.saturating_sub(before.fleet.0).as_secs_f64() / elapsed,
                        server_rss_bytes: after.server.1,
                        fleet_rss_bytes: after.fleet.1,
                    };
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                }
                (last, before) = (now, after);
            }
        });
        Self { samples, servers, watcher }
    }

    /// The servers have other processes from now on.
    pub(crate) fn servers_are(&self, pids: Vec<u32>) {
        *self.servers.lock().unwrap_or_else(PoisonError::into_inner) = pids;
    }

    /// What was seen so far.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// CPU time and memory so far, of all servers and of the whole fleet.
struct Used {
    server: (Duration, u64),
    fleet: (Duration, u64),
}

fn used(servers: &[u32], fleet: &[u32]) -> Option<Used> {
    let of = |pid: &u32| Some((process::cpu_time(*pid).ok()?, process::resident(*pid).ok()?));
    let sum = |pids: &[u32]| {
        let all = pids.iter().map(of).collect::<Option<Vec<_>>>()?;
        Some(all.into_iter().fold((Duration::ZERO, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1)))
    };
    Some(Used { server: sum(servers)?, fleet: sum(fleet)? })
}
