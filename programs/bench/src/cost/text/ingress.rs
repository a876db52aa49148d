//! The tables of `ingress`: throughput and latency; and answers, what proxies took, and when the kernel did not let them.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::limits::Limit;
use super::super::report::{Cell, Point, Round};
use super::{milliseconds, number, sound, through, void_or_nothing};
use crate::table;

/// Two tables for each number of connections and requests.
pub(super) fn tables(cells: &[&Cell]) -> String {
    let asked = |point: &Point| (point.connections, point.requests);
    let mut text = String::new();
    for of in cells.chunk_by(|one, other| asked(&one.point) == asked(&other.point)) {
        let Some((connections, requests)) = of.first().map(|cell| asked(&cell.point)) else { continue };
        let requests = requests.unwrap_or_default();
        let _ = write!(
            text,
            "{requests} requests from outside on {connections} connections, closed loop; latency in milliseconds\n\n{}\n\n\
             What it took: CPU time and resident memory of proxies (10^6 bytes); and for how long the limits held them up\n\n{}\n\n",
            latencies(of),
            usage(of)
        );
    }
    text
}

fn latencies(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let figures = figures(cell).map(|figures| figures.map(milliseconds));
        let figures = figures.unwrap_or_else(|| [(); 5].map(|()| void_or_nothing(cell)));
        let rate = number(sound(cell, |round| Some(round.rate)), 0);
        named(cell).into_iter().chain([rate]).chain(figures).collect()
    });
    table::render(&["limits", "through", "req/s", "p50", "p90", "p95", "p99", "max"], rows)
}

fn usage(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let figures = [
            answers(&cell.rounds),
            number(sound(cell, |round| round.proxies?.cpu_us_per_request), 1),
            number(sound(cell, |round| round.throttled_seconds), 2),
            number(sound(cell, |round| round.proxies?.caller_resident_mb), 1),
            number(sound(cell, |round| round.proxies?.service_resident_mb), 1),
            number(sound(cell, |round| Some(round.machine?.cores)), 2),
        ];
        named(cell).into_iter().chain(figures).collect()
    });
    let header = ["limits", "through", "answers", "µs/request", "throttled, s", "gateway", "sidecar", "machine, cores"];
    table::render(&header, rows)
}

fn named(cell: &Cell) -> [String; 2] {
    [Limit::of(&cell.point).to_string(), through(cell)]
}

/// p50, p90, p95, p99 and the longest; `None` of nothing that counts.
fn figures(cell: &Cell) -> Option<[f64; 5]> {
    let latency = cell.latency_ms?;
    Some([latency.p50, latency.p90, cell.quantile(0.95)?, latency.p99, latency.max])
}

/// Of all rounds, those that do not count included: answers by status, and what was not even answered.
fn answers(rounds: &[Round]) -> String {
    let mut answers: BTreeMap<&str, u64> = BTreeMap::new();
    let mut total = 0;
    for round in rounds {
        total += round.requests;
        for (status, count) in &round.status {
            *answers.entry(status).or_default() += count;
        }
    }
    let unanswered = total.saturating_sub(answers.values().sum());
    if unanswered > 0 {
        answers.insert("none", unanswered);
    }
    let told: Vec<_> = answers.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    if told.is_empty() { super::NOTHING.to_owned() } else { told.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::super::report::tests::sample;
    use super::*;

    #[test]
    fn latencies_are_those_of_all_rounds_together() {
        let mut cell = sample().cells.remove(0);
        cell.histogram_us = vec![(1000, 90), (2000, 4), (2500, 2), (3000, 4)];
        assert_eq!(figures(&cell), Some([1.0, 2.0, 2.5, 3.0, 5.0]));
        cell.latency_ms = None;
        assert_eq!(figures(&cell), None);
    }

    #[test]
    fn every_answer_is_told_and_so_is_what_had_none() {
        let mut round = sample().cells.remove(0).rounds.remove(0);
        assert_eq!(answers(&[round.clone(), round.clone()]), "200: 2, 503: 2");
        round.requests = 5;
        assert_eq!(answers(&[round]), "200: 1, 503: 1, none: 3");
        assert_eq!(answers(&[]), super::super::NOTHING);
    }
}
