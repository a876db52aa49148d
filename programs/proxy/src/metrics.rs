//! What is counted. One worker writes its own cells; whoever reads adds them up.
//!
//! Cost model: an event costs one load and one store, and nothing is looked up: a listener holds its cells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency buckets, microseconds; a last one has no bound.
pub const LATENCY_BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// A cell with one writer.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    fn take(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(count), Ordering::Relaxed);
    }

    /// What it holds.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker counts of one direction of one workload.
#[derive(Debug, Default)]
pub struct Counts {
    /// Responses by the hundreds of their status, from 1xx.
    pub responses: [Cell; 5],
    /// Requests that were broken off by the client, or within their response.
    pub broken: Cell,
    /// Requests refused before anything was decided about them.
    pub malformed: Cell,
    /// Requests and connections that no intention allows.
    pub denied: Cell,
    /// Connections accepted.
    pub opened: Cell,
    /// Connections that stand.
    pub open: Cell,
    /// Connections refused for their number.
    pub overflowed: Cell,
    /// Handshakes that failed.
    pub handshakes_failed: Cell,
    /// Bytes of bodies received from clients.
    pub received_bytes: Cell,
    /// Bytes of bodies sent to clients.
    pub sent_bytes: Cell,
    /// Requests by their time, by bucket.
    pub latency: [Cell; LATENCY_BOUNDS_US.len() + 1],
    /// Microseconds of all requests.
    pub latency_us: Cell,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending {
    Answered(u16),
    Broken,
}

/// A listener's hold of its cells.
pub(crate) struct SideMetrics(pub(crate) Arc<Counts>);

impl SideMetrics {
    pub(crate) fn finished(&self, ending: Ending, took: Duration, received: u64, sent: u64) {
        let counts = &self.0;
        match ending {
            Ending::Answered(status) => {
                counts.responses[usize::from(status / 100).clamp(1, 5) - 1].add(1);
                if status == 403 {
                    counts.denied.add(1);
                }
            }
            Ending::Broken => counts.broken.add(1),
        }
        counts.received_bytes.add(received);
        counts.sent_bytes.add(sent);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        counts.latency[LATENCY_BOUNDS_US.partition_point(|bound| *bound < micros)].add(1);
        counts.latency_us.add(micros);
    }

    /// Refused before it was a request, or where there are no requests.
    pub(crate) fn refused(&self, status: u16) {
        if status == 403 {
            self.0.denied.add(1);
        } else {
            self.0.malformed.add(1);
        }
    }

    pub(crate) fn moved(&self, received: u64, sent: u64) {
        self.0.received_bytes.add(received);
        self.0.sent_bytes.add(sent);
    }

    pub(crate) fn opened(&self) {
        self.0.opened.add(1);
        self.0.open.add(1);
    }

    pub(crate) fn closed(&self) {
        self.0.open.take(1);
    }

    pub(crate) fn overflowed(&self) {
        self.0.overflowed.add(1);
    }

    pub(crate) fn handshake_failed(&self) {
        self.0.handshakes_failed.add(1);
    }
}
