//! The report for people: tables of what was found, what it is worth, and what is missing.

mod ingress;

use std::fmt::Write;

use super::measure::BEHIND;
use super::report::{Cell, CostReport, CostScenario, Difference, Limited, Mode, Point, ProxyUsage, Round};
use super::statistics::median;
use super::subjects::name;
use crate::table;

/// Stands where there is no figure.
const NOTHING: &str = "–";

/// The whole report.
pub(super) fn text(report: &CostReport) -> String {
    let mut text = String::new();
    for scenario in [
        CostScenario::Latency,
        CostScenario::Cpu,
        CostScenario::Throughput,
        CostScenario::Memory,
        CostScenario::Ingress,
        CostScenario::Churn,
    ] {
        let cells: Vec<_> = report.cells.iter().filter(|cell| cell.scenario == scenario).collect();
        if cells.is_empty() {
            continue;
        }
        match scenario {
            CostScenario::Latency => {
                let _ = writeln!(text, "Latency, milliseconds\n\n{}\n", latencies(&cells));
                if let Some(table) = additions(&cells) {
                    let _ = writeln!(text, "Added to no mesh, milliseconds, with 95 % intervals\n\n{table}\n");
                }
            }
            CostScenario::Churn => {
                let _ = writeln!(text, "Requests while the mesh changes, milliseconds\n\n{}\n", churn(&cells));
            }
            CostScenario::Ingress => text.push_str(&ingress::tables(&cells)),
            CostScenario::Cpu => {
                let _ = writeln!(text, "CPU time of all proxies on the way, and of the machine\n\n{}\n", cpu(&cells));
            }
            CostScenario::Throughput => {
                let _ = writeln!(text, "Latency by load, milliseconds\n\n{}\n", curve(&cells));
            }
            CostScenario::Memory => {
                let _ = writeln!(text, "Resident memory, 10^6 bytes\n\n{}\n", memory(&cells));
            }
        }
    }
    for missing in &report.missing {
        let _ = writeln!(text, "NOT TO BE HAD: {missing}");
    }
    let settings = &report.settings;
    let _ = write!(
        text,
        "{} in random order (seed {}); {} bytes each way\n{}\n{}",
        settings.rounds_line(),
        settings.seed,
        settings.payload_bytes,
        report.versions.line(),
        report.machine.line()
    );
    text
}

/// What may not be believed, cell by cell. Past the knee of a curve nothing is expected, as long as it was reached.
pub(super) fn complaints(cells: &[Cell], rounds: u32) -> Vec<String> {
    let is_expected = |cell: &Cell| {
        let of = |cell: &Cell| (cell.scenario, cell.proxy, cell.mode, cell.point.connections);
        let mut same = cells.iter().filter(|other| of(other) == of(cell));
        // What a lower rate has shown is that the mesh works; all else but that it is behind would be news.
        let is_behind = |problem: &String| problem.contains(BEHIND);
        cell.scenario == CostScenario::Throughput
            && cell.problems.iter().all(is_behind)
            && same.any(|other| other.void.is_none() && other.point.rate < cell.point.rate)
    };
    let of = |cell: &Cell| {
        let what = cell.void.as_ref().or(cell.problems.first())?;
        // With further services it is measured once.
        let rounds = if cell.point.services.is_some() { 1 } else { rounds };
        let counted = cell.sound().count();
        Some(format!("{}, {}: {counted} of {rounds} rounds count: {what}", through(cell), point(&cell.point)))
    };
    cells.iter().filter(|cell| !is_expected(cell)).filter_map(of).collect()
}

fn latencies(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let figures = cell.latency_ms.map(|it| [it.p50, it.p90, it.p99, it.p999]);
        let figures = figures.map_or_else(|| [(); 4].map(|()| void_or_nothing(cell)), |it| it.map(milliseconds));
        named(cell).into_iter().chain(figures).collect()
    });
    table::render(&["point", "through", "p50", "p90", "p99", "p99.9"], rows)
}

fn additions(cells: &[&Cell]) -> Option<String> {
    let added = cells.iter().filter_map(|cell| Some((cell, cell.added?)));
    let added = added.filter(|(cell, _)| cell.mode != Mode::BaselineAgain);
    let rows = added.map(|(cell, added)| {
        let figures = [added.p50, added.p90, added.p99, added.p999].map(difference);
        named(cell).into_iter().chain(figures).collect()
    });
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then(|| table::render(&["point", "through", "p50", "p90", "p99", "p99.9"], rows))
}

fn difference(difference: Difference) -> String {
    let Difference { value, low, high, floor, below_floor } = difference;
    if below_floor {
        return format!("below noise ({})", milliseconds(floor));
    }
    format!("{value:+.3} ({low:.3} to {high:.3})")
}

fn cpu(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let proxies = |of: fn(&ProxyUsage) -> Option<f64>| sound(cell, |round| of(round.proxies.as_ref()?));
        let machine = sound(cell, |round| round.machine?.cpu_us_per_request);
        let figures = [
            number(sound(cell, |round| Some(round.rate)), 0),
            number(proxies(|usage| usage.cpu_us_per_request), 1),
            number(proxies(|usage| Some(usage.cores)), 3),
            number(machine, 1),
        ];
        named(cell).into_iter().chain(figures).collect()
    });
    table::render(&["point", "through", "req/s", "proxies, µs/request", "proxies, cores", "machine, µs/request"], rows)
}

fn curve(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let figures = cell.latency_ms.map(|it| [it.p50, it.p99].map(milliseconds));
        let figures = figures.unwrap_or_else(|| [(); 2].map(|()| void_or_nothing(cell)));
        let rate = number(sound(cell, |round| Some(round.rate)), 0);
        let cores = number(sound(cell, |round| Some(round.proxies?.cores)), 2);
        named(cell).into_iter().chain([rate]).chain(figures).chain([cores]).collect()
    });
    table::render(&["point", "through", "answered/s", "p50", "p99", "proxies, cores"], rows)
}

/// The worst second is that of all rounds.
fn churn(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let of_churn = cell.sound().filter_map(|round| round.churn.as_ref());
        let (requests, errors) = cell.sound().fold((0, 0), |all, round| (all.0 + round.requests, all.1 + round.errors));
        let made: u64 = of_churn.flat_map(|churn| churn.made.values()).sum();
        let worst = cell.worst_second();
        let figures = match cell.latency_ms {
            Some(latency) => [latency.p50, latency.p99, latency.max].map(milliseconds),
            None => [(); 3].map(|()| void_or_nothing(cell)),
        };
        let worst = [
            worst.map_or_else(|| NOTHING.to_owned(), |worst| worst.errors.to_string()),
            number(worst.and_then(|worst| worst.p99), 3),
        ];
        let counts = [made.to_string(), requests.to_string(), errors.to_string()];
        named(cell).into_iter().chain(counts).chain(figures).chain(worst).collect()
    });
    let header =
        ["point", "through", "made", "requests", "errors", "p50", "p99", "max", "worst s: errors", "worst s: p99"];
    table::render(&header, rows)
}

fn memory(cells: &[&Cell]) -> String {
    let rows = cells.iter().map(|cell| {
        let of = |read: fn(&ProxyUsage) -> Option<f64>| number(sound(cell, |round| read(round.proxies.as_ref()?)), 1);
        let figures = [of(|usage| usage.caller_resident_mb), of(|usage| usage.service_resident_mb)];
        named(cell).into_iter().chain(figures).collect()
    });
    table::render(&["point", "through", "caller's proxy", "service's proxy"], rows)
}

/// The median over the rounds that count.
fn sound(cell: &Cell, read: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
    median(cell.sound().filter_map(read))
}

fn named(cell: &Cell) -> Vec<String> {
    vec![point(&cell.point), through(cell)]
}

/// A point, for people.
pub(crate) fn point(point: &Point) -> String {
    let Point {
        connections,
        rate,
        services,
        scoped,
        requests,
        cpu_limit,
        memory_limit_mib,
        limited,
        changes_per_second,
    } = point;
    let rate = rate.map_or_else(|| ", closed loop".to_owned(), |rate| format!(", {rate:.0}/s"));
    let services = services.map_or_else(String::new, |services| format!(", {services} services"));
    let scope = scoped.map_or("", |scoped| if scoped { ", scoped" } else { ", permissive" });
    let requests = requests.map_or_else(String::new, |requests| format!(", {requests} requests"));
    let limits = limited.map_or_else(String::new, |limited| {
        let cores = cpu_limit.map_or_else(String::new, |cores| format!(", {cores} cores"));
        let memory = memory_limit_mib.map_or_else(String::new, |memory| format!(", {memory} MiB"));
        let of = if limited == Limited::Gateway { "gateway" } else { "each proxy" };
        format!("{cores}{memory} ({of})")
    });
    let changes = changes_per_second.map_or_else(String::new, |changes| format!(", {changes} changes/s"));
    format!("{connections} conn.{rate}{services}{scope}{requests}{limits}{changes}")
}

pub(crate) fn through(cell: &Cell) -> String {
    let name = name(cell.proxy);
    match cell.mode {
        Mode::Baseline => name.to_owned(),
        Mode::BaselineAgain => format!("{name}, again"),
        Mode::Client => format!("{name}, client"),
        Mode::Server => format!("{name}, server"),
        Mode::Both => format!("{name}, both"),
        Mode::Gateway => format!("{name}, gateway"),
    }
}

fn void_or_nothing(cell: &Cell) -> String {
    if cell.void.is_some() { "void".to_owned() } else { NOTHING.to_owned() }
}

fn milliseconds(value: f64) -> String {
    format!("{value:.3}")
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    #[test]
    fn a_difference_has_its_interval_or_is_below_the_noise() {
        let clear = Difference { value: 0.5, low: 0.25, high: 0.75, floor: 0.125, below_floor: false };
        assert_eq!(difference(clear), "+0.500 (0.250 to 0.750)");
        assert_eq!(difference(Difference { below_floor: true, ..clear }), "below noise (0.125)");
    }

    #[test]
    fn what_is_void_has_no_figures_and_what_is_missing_is_named() {
        let mut report = sample();
        let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = words(text(&report));
        assert!(text.contains("| 16 conn., 1000/s | native, both | 1.000 | 2.000 | 3.000 | 4.000 |"), "{text}");
        assert!(text.contains("+0.500 (0.250"), "{text}");
        assert!(text.contains("NOT TO BE HAD: envoy: there is none"), "{text}");
        assert_eq!(point(&report.cells[1].point), "1 conn., closed loop, 10 services, scoped");
        report.cells[0].latency_ms = None;
        report.cells[0].void = Some("no round counts".to_owned());
        let text = words(super::text(&report));
        assert!(text.contains("| native, both | void | void | void | void |"), "{text}");
    }

    #[test]
    fn past_the_knee_nothing_is_missing_but_before_it_all_is() {
        let mut cell = sample().cells.remove(0);
        cell.scenario = CostScenario::Throughput;
        let mut past = cell.clone();
        let behind = "round 0: answers did not keep up: 2000 requests a second came".to_owned();
        (past.point.rate, past.void, past.problems) = (Some(2000.0), Some(behind.clone()), vec![behind]);
        cell.problems.clear();
        assert_eq!(complaints(&[cell.clone(), past.clone()], 1), Vec::<String>::new());
        // Over other connections, or for another reason, it says nothing of the knee.
        let mut other = past.clone();
        other.point.connections = 64;
        let mut late = past.clone();
        late.problems = vec!["round 0: the generator could not keep the rate".to_owned()];
        assert_eq!(complaints(&[cell.clone(), other, late], 1).len(), 2);
        cell.void = Some("connection refused".to_owned());
        let missing = complaints(&[cell, past], 1);
        assert_eq!(missing[0], "native, both, 16 conn., 1000/s: 0 of 1 rounds count: connection refused");
        assert_eq!(missing.len(), 2, "{missing:?}");
    }

    #[test]
    fn rounds_that_do_not_count_are_in_no_median() {
        // The only round of the sample is void.
        assert_eq!(sound(&sample().cells[0], |round| Some(round.rate)), None);
    }
}
