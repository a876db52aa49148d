//! The load generator: `starling load`, and what scenarios send requests with.
//!
//! Each thread has connections and a runtime of its own (`worker`), and takes its requests from one place that knows whether
//! the loop is open or closed (`dispatch`). In an open loop requests are due by the clock (`arrivals`, `alarm`), and a
//! latency counts from when the request was due: a server that stalls is not let off by requests that nobody could send.
//! How late the clock itself was is told as *slip*; with too much of it the figures are void.

mod alarm;
mod arguments;
mod arrivals;
mod descriptors;
mod dispatch;
mod failure;
mod hdr_log;
mod http1;
mod http2;
mod idle;
mod plan;
mod summary;
mod tally;
mod tcp;
mod text;
mod tls;
mod wire;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;

pub(crate) use arguments::header;
pub use arguments::{LoadArgs, run};
pub(crate) use arrivals::Arrivals;
pub(crate) use failure::Failure;
pub(crate) use idle::IdleConnection;
pub(crate) use plan::{Length, Load, Message, Pace, Protocol, parse_url};
pub(crate) use summary::{SLIP_P99_MS_MAX, Summary};
pub(crate) use tally::{Each, Tally};
pub(crate) use tls::{AnyServer, TlsArgs};
pub(crate) use wire::Peer;

/// What came of a run.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// How long requests were sent.
    pub(crate) elapsed: Duration,
}

/// A run that is under way; dropping it ends it early.
pub(crate) struct Running {
    common: Arc<worker::Common>,
    outcome: tokio::task::JoinHandle<anyhow::Result<Outcome>>,
}

impl Running {
    /// Begins a run.
    pub(crate) fn start(load: Load) -> Self {
        let load = Arc::new(load);
        let threads = load.share(0).threads;
        let common = Arc::new(worker::Common {
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            ready: Barrier::new(usize::try_from(threads).unwrap_or(1)),
            begun: OnceLock::new(),
        });
        let of_threads = Arc::clone(&common);
        let outcome = tokio::task::spawn_blocking(move || {
            let started: Vec<_> = (0..threads)
                .map(|number| {
                    let (share, common) = (load.share(number), Arc::clone(&of_threads));
                    std::thread::spawn(move || worker::run(&share, &common))
                })
                .collect();
            let mut outcome = Outcome { tally: Tally::default(), elapsed: Duration::ZERO };
            for thread in started {
                let seen = thread.join().map_err(|_| anyhow::anyhow!("a thread of the load generator panicked"))??;
                outcome.tally.merge(seen.tally);
                outcome.elapsed = outcome.elapsed.max(seen.elapsed);
            }
            Ok(outcome)
        });
        Self { common, outcome }
    }

    /// When it began to send, with the warm-up; `None` while connections are opened.
    pub(crate) fn begun(&self) -> Option<Instant> {
        self.common.begun.get().copied()
    }

    /// Requests that have come to an end so far, those of the warm-up not counted.
    pub(crate) fn done(&self) -> u64 {
        self.common.done.load(Ordering::Relaxed)
    }

    /// Those of them that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.common.failed.load(Ordering::Relaxed)
    }

    /// Sends nothing more, and waits for what is under way.
    pub(crate) fn stop(&self) {
        self.common.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When the first connections could not be opened.
    pub(crate) async fn outcome(&mut self) -> anyhow::Result<Outcome> {
        (&mut self.outcome).await.context("the load generator ended early")?
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Does a whole run.
///
/// # Errors
/// As for [`Running::outcome`].
pub(crate) async fn generate(load: Load) -> anyhow::Result<Outcome> {
    Running::start(load).outcome().await
}

#[cfg(test)]
mod tests;
