//! The figures of a run for people, in the order in which `hey` has them.

use std::fmt::Write;

use super::summary::{Latencies, Slip, Summary};
use crate::table;

/// Lines of the histogram up to the 99th percentile; one more has what is above.
const LINES: u64 = 10;

/// Characters of the longest bar.
const BAR_WIDTH: u64 = 40;

impl Summary {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let Self { requests, rate, errors, seconds, .. } = self;
        let mut text = format!("Requests: {requests} in {seconds:.2} s, {rate:.1} successes/s, {errors} errors\n");
        if let Some(latencies) = &self.latency_ms {
            text.push_str("\nLatency histogram:\n");
            text.push_str(&bars(&self.histogram_us, latencies.p99));
            text.push_str("\nLatency:\n");
            for (name, value) in named(latencies) {
                let _ = writeln!(text, "  {name:<7} {:>10} ms", shown(value));
            }
        }
        if let Some(Slip { p99, max }) = self.slip_ms {
            let (p99, max) = (table::milliseconds(p99), table::milliseconds(max));
            let _ = writeln!(text, "\nSchedule slip: 99 % within {p99} ms, at most {max} ms");
            if let Some(Latencies { p50, p99, .. }) = &self.from_send_ms {
                let (p50, p99) = (shown(*p50), shown(*p99));
                let _ = writeln!(text, "From when they were sent: 50 % within {p50} ms, 99 % within {p99} ms");
            }
        }
        if !self.status.is_empty() {
            text.push_str("\nStatus:\n");
        }
        for (status, count) in &self.status {
            let _ = writeln!(text, "  {status}  {count}");
        }
        if !self.failures.is_empty() {
            text.push_str("\nErrors:\n");
        }
        for (failure, count) in &self.failures {
            let _ = writeln!(text, "  {count} × {failure}");
        }
        if let Some(void) = &self.void {
            let _ = writeln!(text, "\nVOID: {void}");
        }
        text
    }
}

fn named(latencies: &Latencies) -> [(&'static str, f64); 8] {
    let Latencies { mean, p50, p75, p90, p95, p99, p999, max } = *latencies;
    [
        ("mean", mean),
        ("50 %", p50),
        ("75 %", p75),
        ("90 %", p90),
        ("95 %", p95),
        ("99 %", p99),
        ("99.9 %", p999),
        ("max", max),
    ]
}

/// Milliseconds; of fewer than one, the microseconds.
fn shown(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { table::milliseconds(value) }
}

/// How many took up to how long: equal steps from the fastest to the 99th percentile, and the rest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "microseconds of at most an hour"
)]
fn bars(recorded: &[(u64, u64)], p99_ms: f64) -> String {
    let (Some((fastest, _)), Some((slowest, _))) = (recorded.first(), recorded.last()) else { return String::new() };
    let p99 = (p99_ms * 1e3).ceil() as u64;
    let step = p99.saturating_sub(*fastest).div_ceil(LINES).max(1);
    let mut bounds: Vec<u64> =
        (1..=LINES).map(|line| fastest + step * line).take_while(|end| *end < *slowest).collect();
    bounds.push(*slowest);
    let mut counts = vec![0; bounds.len()];
    for (microseconds, count) in recorded {
        counts[bounds.partition_point(|end| end < microseconds).min(bounds.len() - 1)] += count;
    }
    let most = counts.iter().max().copied().unwrap_or(1).max(1);
    let mut text = String::new();
    for (end, count) in bounds.iter().zip(counts) {
        let bar = "■".repeat(usize::try_from((count * BAR_WIDTH).div_ceil(most)).unwrap_or(0));
        let _ = writeln!(text, "  {:>10} ms {count:>9} {bar}", shown(*end as f64 / 1e3));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histogram_has_every_request_once_and_its_longest_bar_where_most_are() {
        let recorded: Vec<(u64, u64)> = (0..100).map(|it| (1000 + it * 10, it + 1)).chain([(50_000, 3)]).collect();
        let text = bars(&recorded, 1.99);
        let counts = text.lines().map(|line| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap());
        assert_eq!(counts.sum::<u64>(), 5053, "{text}");
        assert_eq!(text.lines().count(), 11, "{text}");
        let longest = text.lines().max_by_key(|line| line.matches('■').count()).unwrap();
        assert_eq!(longest.matches('■').count(), 40);
        assert!(longest.trim_start().starts_with("1.99 ms"), "{text}");
        assert!(text.lines().last().unwrap().contains("50.0 ms"), "{text}");
    }

    #[test]
    fn one_latency_is_one_bar() {
        assert_eq!(bars(&[(7, 2)], 0.007).lines().count(), 1);
        assert_eq!(bars(&[], 0.0), "");
    }
}
