//! What is counted of captured connections: once for each, when it is decided about, by all workers in the same cells.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_telemetry::{Measure, MeasureFamily, Measurement};

use super::Ledger;

/// Who has made a captured connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The application.
    Outbound,
    /// Somebody to the application.
    Inbound,
}

/// What became of a captured connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was served as one of the mesh.
    Mesh,
    /// It was passed on as it was.
    Passed,
    /// It was to be passed on, and nobody was there.
    Unreachable,
    /// It was not of the mesh, and others are refused.
    NotMesh,
    /// It was called at a virtual address that is no service's, or none that may be called.
    NoService,
    /// It was the proxy's own, or went to the proxy itself.
    Loop,
    /// The kernel does not say where it was going.
    Unknown,
}

impl Fate {
    const ALL: [Self; 7] =
        [Self::Mesh, Self::Passed, Self::Unreachable, Self::NotMesh, Self::NoService, Self::Loop, Self::Unknown];

    fn as_str(self) -> &'static str {
        match self {
            Self::Mesh => "mesh",
            Self::Passed => "passed",
            Self::Unreachable => "unreachable",
            Self::NotMesh => "not_mesh",
            Self::NoService => "no_service",
            Self::Loop => "loop",
            Self::Unknown => "unknown",
        }
    }
}

/// The captured connections of one service.
#[derive(Debug, Default)]
pub(crate) struct CaptureCounts {
    outbound: [AtomicU64; Fate::ALL.len()],
    inbound: [AtomicU64; Fate::ALL.len()],
}

impl CaptureCounts {
    pub(crate) fn count(&self, direction: Direction, fate: Fate) {
        self.cell(direction, fate).fetch_add(1, Ordering::Relaxed);
    }

    fn cell(&self, direction: Direction, fate: Fate) -> &AtomicU64 {
        let cells = match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        };
        &cells[fate as usize]
    }
}

impl Ledger {
    pub(super) fn captured_connections(&self) -> MeasureFamily {
        let captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        let mut series = Vec::new();
        for (service, counts) in &*captured {
            for (direction, label) in [(Direction::Outbound, "outbound"), (Direction::Inbound, "inbound")] {
                for fate in Fate::ALL {
                    let count = counts.cell(direction, fate).load(Ordering::Relaxed);
                    let labels = vec![
                        ("service", service.to_string()),
                        ("direction", label.to_owned()),
                        ("outcome", fate.as_str().to_owned()),
                    ];
                    // Without what never happened.
                    if count > 0 {
                        series.push(Measurement { labels, measure: Measure::Counter(count) });
                    }
                }
            }
        }
        let help = "Connections that the kernel led to the proxy, by what became of them";
        MeasureFamily { name: "proxy_captured_connections", help, series }
    }
}
