//! The figures of a run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Outcome;
use crate::histogram::Distribution;
use crate::table;

/// Slip at p99 past which the generator, and not the server, is what was measured, in milliseconds.
pub(crate) const SLIP_P99_MS_MAX: f64 = 5.0;

/// The figures of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    /// Requests that were answered or failed.
    pub(crate) requests: u64,
    /// Successful answers in a second; those that came after the end of a run by time are not in it.
    pub(crate) rate: f64,
    /// Requests without an answer, or with one that says that something is wrong.
    pub(crate) errors: u64,
    /// How long requests were sent.
    pub(crate) seconds: f64,
    /// It was ended before it was over.
    pub(crate) interrupted: bool,
    /// Answers by status.
    pub(crate) status: BTreeMap<String, u64>,
    /// Errors by reason.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Of requests that succeeded; absent if none did.
    pub(crate) latency_ms: Option<Latencies>,
    /// Of the same requests, from when each was sent, as generators count that know no schedule: without the waits for a
    /// free connection, and for the generator itself. Absent of a closed loop, in which it is the same.
    pub(crate) from_send_ms: Option<Latencies>,
    /// How much later than due the generator was; absent of a closed loop.
    pub(crate) slip_ms: Option<Slip>,
    /// Why the figures say nothing, if they do not.
    pub(crate) void: Option<String>,
    /// The latencies themselves: microseconds and how many took up to that, three digits exact.
    pub(crate) histogram_us: Vec<(u64, u64)>,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Latencies {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p75: f64,
    pub(crate) p90: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// Lateness of the generator, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Slip {
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Latencies {
    fn of(distribution: &Distribution) -> Option<Self> {
        let at = |quantile| distribution.at(quantile);
        Some(Self {
            mean: distribution.mean()?,
            p50: at(0.50)?,
            p75: at(0.75)?,
            p90: at(0.90)?,
            p95: at(0.95)?,
            p99: at(0.99)?,
            p999: at(0.999)?,
            max: at(1.0)?,
        })
    }
}

impl Summary {
    /// Of what came of a run.
    #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 requests")]
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let Outcome { tally, elapsed } = outcome;
        let seconds = elapsed.as_secs_f64();
        let slip = &tally.slip;
        let slip_ms = slip.at(0.99).zip(slip.at(1.0)).map(|(p99, max)| Slip { p99, max });
        Self {
            requests: tally.requests(),
            rate: (tally.latency.count() - tally.late) as f64 / seconds.max(1e-9),
            errors: tally.errors,
            seconds,
            interrupted: false,
            status: tally.status.iter().map(|(status, count)| (status.to_string(), *count)).collect(),
            failures: tally.failures.clone(),
            latency_ms: Latencies::of(&tally.latency),
            from_send_ms: slip_ms.and_then(|_| Latencies::of(&tally.from_send)),
            slip_ms,
            void: void(slip_ms, tally.requests()),
            histogram_us: tally.latency.recorded(),
        }
    }

    /// Whether the figures may be believed: every request succeeded, and the generator kept its schedule.
    pub(crate) fn is_sound(&self) -> bool {
        self.errors == 0 && self.void.is_none()
    }
}

fn void(slip: Option<Slip>, requests: u64) -> Option<String> {
    if requests == 0 {
        return Some("no request was sent".to_owned());
    }
    let slip = slip.filter(|slip| slip.p99 > SLIP_P99_MS_MAX)?;
    Some(format!(
        "the generator could not keep the rate: 1 % of the requests were more than {} ms late, which is above \
         {SLIP_P99_MS_MAX} ms; ask for a lower rate or give it more threads",
        table::milliseconds(slip.p99)
    ))
}
