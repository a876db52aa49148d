//! The figures, and what is promised of each.

use serde::{Deserialize, Serialize};

use super::Row;

/// A figure of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    RequestsPerSecond,
    CpuPerRequestUs,
    AddedP50Ms,
    AddedP99Ms,
    Http2PerSecond,
    GrpcPerSecond,
    BulkMbPerSecond,
    MemoryIdleMb,
    MemoryUnderLoadMb,
    HandshakesPerSecond,
    ChangeErrors,
    ChangeStepMs,
    IdleConnectionKb,
    AfterBurstTimes,
    ServicesMb,
}

/// What is promised of the native plane.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    /// At least so many times Envoy's.
    TimesAtLeast(f64),
    /// At most so many times Envoy's.
    TimesAtMost(f64),
    /// At most this.
    AtMost(f64),
}

impl Figure {
    /// All, in the order of the table.
    pub(crate) const ALL: [Self; 15] = [
        Self::RequestsPerSecond,
        Self::CpuPerRequestUs,
        Self::AddedP50Ms,
        Self::AddedP99Ms,
        Self::Http2PerSecond,
        Self::GrpcPerSecond,
        Self::BulkMbPerSecond,
        Self::MemoryIdleMb,
        Self::MemoryUnderLoadMb,
        Self::IdleConnectionKb,
        Self::AfterBurstTimes,
        Self::ServicesMb,
        Self::HandshakesPerSecond,
        Self::ChangeErrors,
        Self::ChangeStepMs,
    ];

    /// The row that measures it.
    pub(crate) fn row(self) -> Row {
        match self {
            Self::RequestsPerSecond | Self::CpuPerRequestUs => Row::Throughput,
            Self::AddedP50Ms | Self::AddedP99Ms => Row::Latency,
            Self::Http2PerSecond => Row::Http2,
            Self::GrpcPerSecond => Row::Grpc,
            Self::BulkMbPerSecond => Row::Bulk,
            Self::MemoryIdleMb | Self::MemoryUnderLoadMb => Row::Memory,
            Self::HandshakesPerSecond => Row::Handshakes,
            Self::ChangeErrors | Self::ChangeStepMs => Row::Change,
            Self::IdleConnectionKb | Self::AfterBurstTimes => Row::Connections,
            Self::ServicesMb => Row::Services,
        }
    }

    /// For people, with its unit.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "HTTP/1.1, 64 connections: requests/s",
            Self::CpuPerRequestUs => "CPU of both proxies per request, µs",
            Self::AddedP50Ms => "added at 1,000/s, 1 KB: p50, ms",
            Self::AddedP99Ms => "added at 1,000/s, 1 KB: p99, ms",
            Self::Http2PerSecond => "HTTP/2, 4 × 16 streams: requests/s",
            Self::GrpcPerSecond => "gRPC unary, 4 × 16 streams: calls/s",
            Self::BulkMbPerSecond => "TCP, one stream, there and back: MB/s",
            Self::MemoryIdleMb => "resident, idle, MB",
            Self::MemoryUnderLoadMb => "resident, under load, MB",
            Self::HandshakesPerSecond => "new mTLS connections/s",
            Self::ChangeErrors => "endpoint changed at 10,000/s: errors",
            Self::ChangeStepMs => "endpoint changed at 10,000/s: step, ms",
            Self::IdleConnectionKb => "each idle mTLS connection, KB",
            Self::AfterBurstTimes => "resident a minute after them, times idle",
            Self::ServicesMb => "plan of 5,000 services, MB added",
        }
    }

    /// What is promised.
    pub(crate) fn bar(self) -> Bar {
        match self {
            Self::RequestsPerSecond => Bar::TimesAtLeast(2.0),
            Self::CpuPerRequestUs | Self::AddedP50Ms | Self::AddedP99Ms => Bar::TimesAtMost(0.5),
            Self::Http2PerSecond | Self::GrpcPerSecond => Bar::TimesAtLeast(1.3),
            Self::BulkMbPerSecond => Bar::TimesAtLeast(1.0),
            Self::MemoryIdleMb => Bar::AtMost(10.0),
            Self::MemoryUnderLoadMb => Bar::AtMost(25.0),
            Self::HandshakesPerSecond => Bar::TimesAtLeast(1.2),
            Self::ChangeErrors => Bar::AtMost(0.0),
            Self::ChangeStepMs => Bar::AtMost(5.0),
            Self::IdleConnectionKb => Bar::AtMost(15.0),
            Self::AfterBurstTimes => Bar::AtMost(1.25),
            Self::ServicesMb => Bar::AtMost(40.0),
        }
    }
}

impl Bar {
    /// Whether what was found keeps the promise. What was not found keeps none.
    pub(crate) fn is_met(self, native: Option<f64>, envoy: Option<f64>) -> bool {
        let Some(native) = native else { return false };
        match (self, envoy) {
            (Self::AtMost(limit), _) => native <= limit,
            (Self::TimesAtLeast(times), Some(envoy)) => native >= envoy * times,
            (Self::TimesAtMost(times), Some(envoy)) => native <= envoy * times,
            (Self::TimesAtLeast(_) | Self::TimesAtMost(_), None) => false,
        }
    }

    /// For people.
    pub(crate) fn text(self) -> String {
        match self {
            Self::TimesAtLeast(times) => format!("≥ {times:.1} × Envoy"),
            Self::TimesAtMost(times) => format!("≤ {times:.1} × Envoy"),
            Self::AtMost(limit) => format!("≤ {limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_row_has_a_figure() {
        for row in Row::value_variants() {
            assert!(Figure::ALL.iter().any(|figure| figure.row() == *row), "{row:?}");
        }
    }

    #[test]
    fn a_bar_holds_against_envoy_or_by_itself() {
        assert!(Bar::TimesAtLeast(2.0).is_met(Some(200.0), Some(100.0)));
        assert!(!Bar::TimesAtLeast(2.0).is_met(Some(199.0), Some(100.0)));
        assert!(Bar::TimesAtMost(0.5).is_met(Some(50.0), Some(100.0)));
        assert!(!Bar::TimesAtMost(0.5).is_met(Some(51.0), Some(100.0)));
        assert!(Bar::AtMost(0.0).is_met(Some(0.0), None) && !Bar::AtMost(0.0).is_met(Some(1.0), None));
        assert!(!Bar::AtMost(5.0).is_met(None, None) && !Bar::TimesAtMost(1.0).is_met(Some(1.0), None));
    }
}
