//! What each scenario asks of the mesh: the points of the published studies, unless others are given.

use super::limits::Limit;
use std::cmp::Ordering;

use super::report::{CostScenario, Mode, Point};

/// Requests a second where connections are what is varied, as in Istio's study.
const RATE: f64 = 1000.0;

/// Connections where the rate is what is varied.
const CONNECTIONS: u32 = 16;

/// Connections of a curve up to the knee: enough that a proxy is never idle for want of a caller.
const CONNECTIONS_OF_CURVE: u32 = 64;

const LATENCY_CONNECTIONS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const LATENCY_RATES: [f64; 5] = [100.0, 500.0, 1000.0, 2000.0, 4000.0];
const CPU_RATES: [f64; 6] = [100.0, 500.0, 1000.0, 2000.0, 3000.0, 4000.0];
const CURVE_RATES: [f64; 9] = [1000.0, 2000.0, 4000.0, 6000.0, 8000.0, 12_000.0, 16_000.0, 24_000.0, 32_000.0];
const MEMORY_CONNECTIONS: [u32; 5] = [1, 16, 64, 256, 1024];
const MEMORY_RATES: [f64; 3] = [100.0, 1000.0, 4000.0];

/// The points of a scenario, each once. What is given takes the place of what is usual: connections, each at 1,000 requests
/// a second; rates, each over 16 connections. Giving one of both leaves the other out. A curve has every rate over every
/// number of connections, rates ascending. Every point of a churn is measured with each number of changes a second.
pub(super) fn points(scenario: CostScenario, connections: &[u32], rates: &[f64], changes: &[f64]) -> Vec<Point> {
    let is_given = !connections.is_empty() || !rates.is_empty();
    let (connections, rates) = match scenario {
        CostScenario::Throughput => {
            let connections = if connections.is_empty() { &[CONNECTIONS_OF_CURVE] } else { connections };
            return curve(connections, if rates.is_empty() { &CURVE_RATES } else { rates });
        }
        CostScenario::Latency if !is_given => (&LATENCY_CONNECTIONS[..], &LATENCY_RATES[..]),
        CostScenario::Memory if !is_given => (&MEMORY_CONNECTIONS[..], &MEMORY_RATES[..]),
        CostScenario::Cpu if !is_given => (&[][..], &CPU_RATES[..]),
        CostScenario::Churn if !is_given => (&[CONNECTIONS][..], &[][..]),
        CostScenario::Latency
        | CostScenario::Memory
        | CostScenario::Cpu
        | CostScenario::Ingress
        | CostScenario::Churn => (connections, rates),
    };
    let by_connections = connections.iter().map(|connections| point(*connections, RATE));
    let by_rate = rates.iter().map(|rate| point(CONNECTIONS, *rate));
    let mut points = unique(by_connections.chain(by_rate));
    if scenario == CostScenario::Memory {
        // A process does not give back all that it had, so that each point asks no less of it than the one before.
        points.sort_by(|one, other| {
            one.connections.cmp(&other.connections).then(one.rate.partial_cmp(&other.rate).unwrap_or(Ordering::Equal))
        });
    }
    if scenario == CostScenario::Churn {
        return points.iter().flat_map(|point| changes.iter().map(|changes| changing(*point, *changes))).collect();
    }
    points
}

/// The points of `ingress`: each limit over each number of connections, in a closed loop of so many requests.
pub(super) fn of_ingress(connections: &[u32], requests: Option<u64>, limits: &[Limit]) -> Vec<Point> {
    let over = |connections: u32| Point { connections, requests, ..Point::default() };
    unique(connections.iter().flat_map(|connections| limits.iter().map(move |limit| limit.at(over(*connections)))))
}

fn curve(connections: &[u32], rates: &[f64]) -> Vec<Point> {
    let mut rates = rates.to_vec();
    rates.sort_unstable_by(f64::total_cmp);
    unique(connections.iter().flat_map(|connections| rates.iter().map(|rate| point(*connections, *rate))))
}

fn point(connections: u32, rate: f64) -> Point {
    Point { connections, rate: Some(rate), ..Point::default() }
}

fn changing(point: Point, changes: f64) -> Point {
    Point { changes_per_second: Some(changes), ..point }
}

fn unique(points: impl Iterator<Item = Point>) -> Vec<Point> {
    points.fold(Vec::new(), |mut all, point| {
        if !all.contains(&point) {
            all.push(point);
        }
        all
    })
}

/// The modes that a scenario measures unless others are given, those without a proxy not among them.
pub(super) fn usual_modes(scenario: CostScenario) -> Vec<Mode> {
    match scenario {
        CostScenario::Latency => vec![Mode::Client, Mode::Server, Mode::Both],
        CostScenario::Ingress => vec![Mode::Server, Mode::Gateway],
        CostScenario::Cpu | CostScenario::Throughput | CostScenario::Memory | CostScenario::Churn => vec![Mode::Both],
    }
}

/// The measurements without a mesh that a scenario has: what is added is asked of latency alone.
pub(super) fn baselines(scenario: CostScenario) -> &'static [Mode] {
    match scenario {
        CostScenario::Latency => &[Mode::Baseline, Mode::BaselineAgain],
        CostScenario::Cpu | CostScenario::Throughput | CostScenario::Ingress => &[Mode::Baseline],
        // What is held against each other is the same mesh, at rest and not.
        CostScenario::Memory | CostScenario::Churn => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(points: &[Point]) -> Vec<(u32, f64)> {
        points.iter().map(|point| (point.connections, point.rate.unwrap_or(0.0))).collect()
    }

    #[test]
    fn latency_has_the_points_of_the_published_studies_each_once() {
        let found = shown(&points(CostScenario::Latency, &[], &[], &[]));
        assert_eq!(found.len(), 11, "{found:?}");
        assert_eq!((found[0], found[6], found[10]), ((1, 1000.0), (64, 1000.0), (16, 4000.0)));
        assert_eq!(found.iter().filter(|point| **point == (16, 1000.0)).count(), 1);
    }

    #[test]
    fn what_is_given_is_all_there_is() {
        assert_eq!(shown(&points(CostScenario::Latency, &[2], &[], &[])), [(2, 1000.0)]);
        assert_eq!(shown(&points(CostScenario::Cpu, &[], &[50.0], &[])), [(16, 50.0)]);
        assert_eq!(shown(&points(CostScenario::Memory, &[4], &[10.0], &[])), [(4, 1000.0), (16, 10.0)]);
        // Memory only grows.
        let memory = shown(&points(CostScenario::Memory, &[64, 1], &[4000.0, 100.0], &[]));
        assert_eq!(memory, [(1, 1000.0), (16, 100.0), (16, 4000.0), (64, 1000.0)]);
    }

    #[test]
    fn ingress_is_a_closed_loop_of_requests_under_each_limit() {
        let limits = ["none", "gateway:0.1:100", "none"].map(|text| text.parse().unwrap());
        let found = of_ingress(&[10, 100], Some(15_000), &limits);
        let shown = found.iter().map(|point| (point.connections, point.rate, point.requests, point.cpu_limit));
        let shown: Vec<_> = shown.collect();
        let expected = |connections, limit| (connections, None, Some(15_000), limit);
        assert_eq!(shown, [expected(10, None), expected(10, Some(0.1)), expected(100, None), expected(100, Some(0.1))]);
    }

    #[test]
    fn a_curve_goes_upwards() {
        let found = shown(&points(CostScenario::Throughput, &[2, 4], &[500.0, 100.0, 500.0], &[]));
        assert_eq!(found, [(2, 100.0), (2, 500.0), (4, 100.0), (4, 500.0)]);
    }
}
