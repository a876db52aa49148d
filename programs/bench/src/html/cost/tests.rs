use std::collections::BTreeMap;

use super::*;
use crate::cost::report::tests::sample;
use crate::cost::report::{
    Added, Cell, Churn, Difference, Limited, MachineUsage, Mode, Point, ProxyKind, ProxyUsage, Quantiles, Round,
    WorstSecond,
};
use crate::html::{Report, page_of_one};

const PROXIES: [(ProxyKind, Mode, f64); 3] =
    [(ProxyKind::None, Mode::Baseline, 1.0), (ProxyKind::Native, Mode::Both, 2.0), (ProxyKind::Envoy, Mode::Both, 4.0)];

/// A round that is so many times as costly as one of no mesh.
fn round(number: u32, times: f64, rate: f64) -> Round {
    let times = times * (1.0 + f64::from(number) / 10.0);
    let latency = [1.0, 1.0, 2.0, 3.0, 4.0, 9.0].map(|it| it * times);
    let [mean, p50, p90, p99, p999, max] = latency;
    Round {
        number,
        place: 0,
        latency_ms: Some(Quantiles { mean, p50, p90, p99, p999, max }),
        requests: 1000,
        rate,
        errors: 0,
        status: BTreeMap::new(),
        failures: BTreeMap::new(),
        slip_p99_ms: Some(0.1),
        proxies: Some(ProxyUsage {
            cpu_us_per_request: Some(20.0 * times),
            cores: rate * 2e-5 * times,
            caller_resident_mb: Some(8.0 * times),
            service_resident_mb: Some(7.0 * times),
        }),
        throttled_seconds: None,
        churn: None,
        machine: Some(MachineUsage { cpu_us_per_request: Some(90.0 * times), cores: 1.5 }),
        void: None,
    }
}

fn cell(scenario: CostScenario, (proxy, mode, times): (ProxyKind, Mode, f64), point: Point) -> Cell {
    let mut rounds: Vec<Round> = (0..3).map(|number| round(number, times, point.rate.unwrap_or(500.0))).collect();
    if proxy == ProxyKind::None {
        rounds.iter_mut().for_each(|round| round.proxies = None);
    }
    let clear = Difference { value: 0.5, low: 0.25, high: 0.75, floor: 0.125, below_floor: false };
    let added = Difference { below_floor: proxy == ProxyKind::Envoy, ..clear };
    let has_addition = scenario == CostScenario::Latency && mode != Mode::Baseline;
    Cell {
        scenario,
        proxy,
        mode,
        point,
        latency_ms: rounds[1].latency_ms,
        rounds,
        histogram_us: vec![(1000, 900), (2000, 90), (30_000, 10)],
        hdr: None,
        added: has_addition.then_some(Added { p50: added, p90: added, p99: added, p999: added }),
        void: None,
        problems: Vec::new(),
    }
}

fn at(scenario: CostScenario, point: Point) -> Vec<Cell> {
    PROXIES.map(|proxies| cell(scenario, proxies, point)).to_vec()
}

fn point(connections: u32, rate: f64) -> Point {
    Point { connections, rate: Some(rate), ..Point::default() }
}

fn report(cells: Vec<Cell>) -> CostReport {
    let mut report = CostReport { cells, missing: Vec::new(), ..sample() };
    report.settings.rounds = 3;
    report
}

/// By connections and by rate.
pub(in crate::html) fn latency() -> CostReport {
    let points = [point(1, 1000.0), point(16, 1000.0), point(64, 1000.0), point(16, 100.0), point(16, 4000.0)];
    report(points.into_iter().flat_map(|point| at(CostScenario::Latency, point)).collect())
}

fn gateways() -> Vec<Cell> {
    let limited = Point {
        connections: 100,
        requests: Some(15_000),
        cpu_limit: Some(0.1),
        memory_limit_mib: Some(100),
        limited: Some(Limited::Gateway),
        ..Point::default()
    };
    let mut cell = cell(CostScenario::Ingress, (ProxyKind::Native, Mode::Gateway, 30.0), limited);
    cell.rounds.iter_mut().for_each(|round| round.throttled_seconds = Some(4.5));
    vec![cell]
}

fn churn() -> Vec<Cell> {
    let worst = |number: u32| WorstSecond {
        number,
        requests: 1000,
        errors: u64::from(number),
        p99: Some(7.5),
        max: Some(40.0),
    };
    let at = |changes: Option<f64>| {
        let point = Point { changes_per_second: changes, ..point(16, 1000.0) };
        let mut cell = cell(CostScenario::Churn, PROXIES[1], point);
        for round in &mut cell.rounds {
            let made = BTreeMap::from([("routes".to_owned(), 30), ("endpoints".to_owned(), 20)]);
            let worst_second = worst(round.number);
            round.errors = worst_second.errors;
            round.churn = changes.map(|_| Churn { made, refused: BTreeMap::new(), worst_second });
        }
        cell
    };
    vec![at(None), at(Some(10.0)), at(Some(100.0))]
}

fn memory() -> Vec<Cell> {
    let services = [(10, true), (1000, true), (10, false), (1000, false)].map(|(services, scoped)| Point {
        services: Some(services),
        scoped: Some(scoped),
        ..point(16, 100.0)
    });
    let points = [point(16, 1000.0), point(1024, 1000.0), point(16, 100.0)].into_iter().chain(services);
    points.flat_map(|point| at(CostScenario::Memory, point).split_off(1)).collect()
}

/// A cell of every scenario at least.
pub(in crate::html) fn every_scenario() -> CostReport {
    let mut throughput: Vec<Cell> =
        [1000.0, 4000.0, 8000.0].into_iter().flat_map(|rate| at(CostScenario::Throughput, point(64, rate))).collect();
    let last = throughput.last_mut().unwrap();
    (last.latency_ms, last.void) = (None, Some("answers did not keep up".to_owned()));
    last.rounds.iter_mut().for_each(|round| round.void.clone_from(&last.void));
    let cpu = [100.0, 1000.0, 3000.0].into_iter().flat_map(|rate| at(CostScenario::Cpu, point(16, rate)));
    report([latency().cells, cpu.collect(), throughput, memory(), gateways(), churn()].concat())
}

/// The part of the page with a scenario.
fn section(report: &CostReport, id: &str) -> String {
    let text = page_of_one("everything", Report::Cost(report));
    let start = text.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("{id} in\n{text}"));
    text[start..].split_once("</section>").unwrap().0.to_owned()
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn latency_has_bands_by_connections_and_by_rate() {
    let text = section(&latency(), "latency");
    for name in ["p50, by connections, at 1,000 requests a second", "p99, by rate, over 16 connections"] {
        assert_has(&text, &[&format!("aria-label=\"Latency, {name}\"")]);
    }
    // Four charts of three lines each, and three curves without bands.
    assert_eq!((text.matches("<svg").count(), text.matches("class=\"band").count()), (5, 12), "{text}");
    assert_has(&text, &["<title>native, both, 16 conn., 1000/s: 2.20 (2 to 2.40, rounds: 3)</title>"]);
}

#[test]
fn what_is_added_has_its_interval_or_is_noise_and_stands_beside_the_studies() {
    let text = section(&latency(), "latency");
    assert_has(
        &text,
        &[
            "<td>16 conn., 1000/s</td><td>+0.500<br/><small>0.250 to 0.750</small></td>\
             <td class=\"noise\">below noise<br/><small>of 0.125</small></td>\
             <td class=\"published\">+3</td><td class=\"published\">+1</td>",
            "+12<br/>+7 <small>telemetry off</small>",
            "<h4>Added to no mesh at p99, milliseconds</h4>",
            "histograms had buckets of 1 ms",
            "3 Kubernetes nodes",
        ],
    );
    // Nothing published is lost where its point was not measured.
    let few = report(at(CostScenario::Latency, point(4, 1000.0)));
    assert_has(&section(&few, "latency"), &["<td class=\"published\">64 conn., 1,000/s, telemetry off</td><td>–</td>"]);
}

#[test]
fn percentiles_are_drawn_at_the_point_of_the_studies() {
    let text = section(&latency(), "latency");
    assert_has(&text, &["aria-label=\"Latency by percentile, 16 conn., 1000/s\"", ">99 %</text>", ">99.9 %</text>"]);
    assert!(!text.contains(">99.99 %</text>"), "a thousand requests do not have that: {text}");
}

#[test]
fn cpu_stands_beside_the_published_sidecars() {
    let text = section(&every_scenario(), "cpu");
    assert_has(
        &text,
        &[
            "CPU time of all proxies for a request, by rate, over 16 connections",
            ">published: Istio 1.2, one sidecar</text>",
            "published: OSM, one sidecar, at 3,000: 3.06",
            "44<br/><small>40 to 48</small>",
            "<td class=\"published\">0.500</td><td class=\"published\">1.06</td>",
        ],
    );
}

#[test]
fn a_curve_ends_at_the_knee() {
    let text = section(&every_scenario(), "throughput");
    let row = |name: &str| {
        text.lines().find(|line| line.contains(&format!("<td>{name}</td><td>64</td>"))).unwrap().to_owned()
    };
    assert_has(&row("native, both"), &["<td>8,000</td>", "above what was asked"]);
    assert_has(&row("Envoy, both"), &["<td>4,000</td>", "<td>8,000</td></tr>"]);
}

#[test]
fn a_figure_of_fewer_rounds_says_so_and_a_knee_takes_half_of_them() {
    let mut all = every_scenario();
    let keep = |report: &mut CostReport, scenario, point: Point, sound: usize| {
        let same = |cell: &&mut Cell| (cell.scenario, cell.point, cell.proxy) == (scenario, point, ProxyKind::Native);
        let cell = report.cells.iter_mut().find(same).unwrap();
        cell.rounds[sound..].iter_mut().for_each(|round| round.void = Some("late".to_owned()));
    };
    keep(&mut all, CostScenario::Latency, point(16, 1000.0), 2);
    let text = section(&all, "latency");
    assert_has(
        &text,
        &[
            "<title>native, both, 16 conn., 1000/s: 2.20 (2 to 2.20, 2 of 3 rounds)</title>",
            "<td>+0.500<br/><small>0.250 to 0.750</small><br/><small>2 of 3 rounds</small></td>",
            "<td>16 conn., 1000/s</td><td class=\"name\">native, both<br/><small>2 of 3 rounds</small></td>",
        ],
    );
    let answers = page_of_one("everything", Report::Cost(&all));
    assert_has(&answers, &["<td>+0.500<br/><small>0.250 to 0.750</small><br/><small>2 of 3 rounds</small></td>"]);
    let knee = |report: &CostReport| {
        let text = section(report, "throughput");
        text.lines().find(|line| line.contains("<td>native, both</td><td>64</td>")).unwrap().to_owned()
    };
    let highest = point(64, 8000.0);
    keep(&mut all, CostScenario::Throughput, highest, 2);
    assert_has(&knee(&all), &["<td>8,000<br/><small>2 of 3 rounds</small></td>", "above what was asked"]);
    keep(&mut all, CostScenario::Throughput, highest, 1);
    assert_has(&knee(&all), &["<td>4,000</td>", "<td>8,000</td></tr>"]);
    // Rounds that ended at a lower rate were not even begun at this one.
    let cell = all.cells.iter_mut().rfind(|cell| (cell.point, cell.proxy) == (highest, ProxyKind::Native)).unwrap();
    cell.rounds.truncate(1);
    assert_has(&knee(&all), &["<td>4,000</td>"]);
}

#[test]
fn memory_is_drawn_by_connections_rate_and_services() {
    let text = section(&every_scenario(), "memory");
    assert_eq!(text.matches("<svg").count(), 3, "{text}");
    assert_has(
        &text,
        &[
            ">native, both, caller's</text>",
            ">native, both, permissive</text>",
            "published: OSM sidecar, at 1,024: 191",
            "<td class=\"published\">50</td><td class=\"published\">141</td>",
        ],
    );
}

#[test]
fn gateways_stand_beside_the_published_ones_of_the_same_limits() {
    let text = section(&every_scenario(), "ingress");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("<tr><td")).collect();
    assert_eq!(rows.len(), 5, "{text}");
    assert_has(
        rows[0],
        &[
            "<td class=\"words\">gateway: 0.1 cores, 100 MiB</td><td class=\"words\">native, gateway</td><td>100</td><td>500</td>",
            "<td>4.50</td>",
        ],
    );
    assert_has(rows[1], &["gateway: 0.1 cores, 100 MiB", "published: Consul, its default", ">896<", ">195<"]);
    assert_has(rows[4], &["each proxy: 0.25 cores, 500 MiB"]);
}

#[test]
fn errors_while_the_mesh_changes_are_those_of_all_rounds() {
    let text = section(&every_scenario(), "churn");
    assert_has(
        &text,
        &[
            "p99 of the worst second, by changes a second",
            "<td>16 conn., 1000/s, 100 changes/s</td><td class=\"name\">native, both</td><td>3000</td><td class=\"missing\">3</td><td>2</td><td>7.50</td><td>40</td>",
            "<td>60 endpoints, 90 routes</td><td>–</td>",
        ],
    );
}

#[test]
fn what_may_not_be_believed_is_told_and_has_no_figure() {
    let mut report = latency();
    let cell =
        report.cells.iter_mut().find(|cell| cell.point.connections == 16 && cell.proxy == ProxyKind::Native).unwrap();
    cell.void = Some("1 of 9 requests failed".to_owned());
    (cell.latency_ms, cell.added, cell.histogram_us) = (None, None, Vec::new());
    cell.rounds.iter_mut().for_each(|round| round.void = Some("late".to_owned()));
    cell.problems = vec!["round 0: late".to_owned()];
    report.missing = vec!["native, both, 16 conn., 1000/s: 0 of 3 rounds count".to_owned()];
    let text = section(&report, "latency");
    assert_has(
        &text,
        &[
            "<li>native, both, 16 conn., 1000/s: 0 of 3 rounds count</li>",
            "<title>native, both, 16 conn., 1000/s: void: 1 of 9 requests failed</title>",
            "<td>16 conn., 1000/s</td><td class=\"missing\">void</td>",
        ],
    );
    assert_has(&section(&report, "origin"), &["Measurements with problems: 1", "round 0: late"]);
}

#[test]
fn how_it_was_measured_is_told_in_full() {
    let report = latency();
    let text = section(&report, "origin");
    assert_has(
        &text,
        &["<code>starling bench latency</code>", "3 rounds of 10 s", "mutual TLS", "Seed 1;", "starling-bench-cost/1"],
    );
    assert_has(&text, &[&escape(&report.machine.line()), &escape(&report.versions.line())]);
}
