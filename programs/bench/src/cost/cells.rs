//! From measurements to cells: latencies merged over the rounds that count, and held against the baseline.

use std::collections::BTreeMap;
use std::time::Duration;

use super::limits::Limit;
use super::measure::{Measured, quantiles};
use super::report::{Cell, CostScenario, Floor, Mode, Point, ProxyKind};
use super::statistics::{Latencies, ROUNDS_MIN, added, differences, noise_floor};
use crate::histogram::Distribution;

/// What was measured of one variant at one point.
#[derive(Debug, Clone)]
pub(super) struct Measurements {
    pub(super) scenario: CostScenario,
    pub(super) proxy: ProxyKind,
    pub(super) mode: Mode,
    pub(super) point: Point,
    pub(super) rounds: Vec<Measured>,
    /// What could not even be measured.
    pub(super) problems: Vec<String>,
}

impl Measurements {
    /// Whether there is something to measure: a limit that holds no proxy on the way changes nothing.
    pub(super) fn applies(&self) -> bool {
        Limit::of(&self.point).concerns(self.mode)
    }

    /// Rounds that count, by number.
    fn sound(&self) -> BTreeMap<u32, &Latencies> {
        let sound = self.rounds.iter().filter(|measured| measured.round.void.is_none());
        sound.map(|measured| (measured.round.number, &measured.latencies)).collect()
    }

    fn is(&self, scenario: CostScenario, point: Point, mode: Mode) -> bool {
        self.scenario == scenario && self.point == point && self.mode == mode
    }
}

/// The cells, and the noise floors of the points at which the baseline was measured twice.
pub(super) fn cells(all: &[Measurements], seed: u64) -> (Vec<Cell>, Vec<Floor>) {
    let floor_at = |scenario, point| {
        let of = |mode| all.iter().find(|it| it.is(scenario, point, mode));
        let (once, again) = (of(Mode::Baseline)?, of(Mode::BaselineAgain)?);
        compare(again, once, seed).map(noise_floor)
    };
    let floors = all.iter().filter(|it| it.mode == Mode::Baseline).filter_map(|it| {
        let [p50, p90, p99, p999] = floor_at(it.scenario, it.point)?;
        Some(Floor { scenario: it.scenario, point: it.point, p50, p90, p99, p999 })
    });
    let cells = all.iter().map(|it| {
        let baseline = all.iter().find(|other| other.is(it.scenario, it.point, Mode::Baseline));
        let baseline = baseline.filter(|_| it.mode != Mode::Baseline);
        let added = baseline
            .zip(floor_at(it.scenario, it.point))
            .and_then(|(baseline, floor)| compare(it, baseline, seed).map(|intervals| added(intervals, floor)));
        let mut cell = cell(it);
        if baseline.is_some() && added.is_none() && it.scenario == CostScenario::Latency && cell.void.is_none() {
            cell.problems.push(format!(
                "what it adds cannot be told: that takes {ROUNDS_MIN} rounds in which it and both baselines count"
            ));
        }
        cell.added = added;
        cell
    });
    (cells.collect(), floors.collect())
}

/// By the rounds that count of both.
fn compare(slower: &Measurements, faster: &Measurements, seed: u64) -> Option<[super::statistics::Interval; 4]> {
    let (slower, faster) = (slower.sound(), faster.sound());
    let both = slower.iter().filter_map(|(number, one)| Some((*one, *faster.get(number)?)));
    let (slower, faster): (Vec<_>, Vec<_>) = both.unzip();
    differences(&slower, &faster, seed)
}

fn cell(measurements: &Measurements) -> Cell {
    let Measurements { scenario, proxy, mode, point, rounds, problems } = measurements;
    let mut merged: BTreeMap<u64, u64> = BTreeMap::new();
    for (microseconds, count) in measurements.sound().into_values().flatten() {
        *merged.entry(*microseconds).or_default() += count;
    }
    let sound = rounds.iter().filter(|measured| measured.round.void.is_none());
    // The best of many is nobody's figure.
    let is_void = sound.clone().count() * 2 < rounds.len().max(1);
    if is_void {
        merged.clear();
    }
    let longest = sound.clone().filter_map(|measured| measured.round.latency_ms).map(|it| it.max).fold(0.0, f64::max);
    let histogram_us: Vec<_> = merged.into_iter().collect();
    let latency = Distribution::of_recorded(histogram_us.iter().copied(), Duration::from_secs_f64(longest / 1e3));
    let mut problems = problems.clone();
    let void =
        |measured: &Measured| Some(format!("round {}: {}", measured.round.number, measured.round.void.as_ref()?));
    problems.extend(rounds.iter().filter_map(void));
    let nothing = || problems.first().cloned().unwrap_or_else(|| "not measured".to_owned());
    Cell {
        scenario: *scenario,
        proxy: *proxy,
        mode: *mode,
        point: *point,
        rounds: rounds.iter().map(|measured| measured.round.clone()).collect(),
        hdr: (latency.count() > 0).then(|| latency.to_log().ok()).flatten(),
        latency_ms: quantiles(&latency),
        histogram_us,
        added: None,
        void: is_void.then(nothing),
        problems,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Round;
    use super::*;

    /// A hundred requests that took as long each.
    fn measured(number: u32, microseconds: u64, void: Option<&str>) -> Measured {
        let latencies = vec![(microseconds, 100)];
        let distribution = Distribution::of_recorded(latencies.clone(), Duration::from_micros(microseconds));
        let round = Round {
            number,
            place: 0,
            latency_ms: quantiles(&distribution),
            requests: 100,
            rate: 100.0,
            errors: 0,
            status: BTreeMap::new(),
            failures: BTreeMap::new(),
            slip_p99_ms: None,
            proxies: None,
            throttled_seconds: None,
            churn: None,
            machine: None,
            void: void.map(str::to_owned),
        };
        Measured { round, latencies }
    }

    fn of(mode: Mode, rounds: Vec<Measured>) -> Measurements {
        let proxy = if mode == Mode::Both { ProxyKind::Native } else { ProxyKind::None };
        let point = Point { connections: 16, rate: Some(1000.0), ..Point::default() };
        Measurements { scenario: CostScenario::Latency, proxy, mode, point, rounds, problems: Vec::new() }
    }

    #[test]
    fn a_round_that_does_not_count_is_told_and_is_in_no_figure() {
        let void = Some("50 of 100 requests failed: status 503");
        let all = [
            of(Mode::Baseline, (0..3).map(|number| measured(number, 100, None)).collect()),
            of(Mode::BaselineAgain, (0..3).map(|number| measured(number, 101, None)).collect()),
            // Errors are answered fast.
            of(Mode::Both, vec![measured(0, 10, void), measured(1, 300, None), measured(2, 300, None)]),
        ];
        let (cells, floors) = cells(&all, 1);
        let both = &cells[2];
        assert_eq!((both.rounds.len(), both.histogram_us.as_slice()), (3, &[(300, 200)][..]));
        assert_eq!(both.problems, ["round 0: 50 of 100 requests failed: status 503"]);
        let added = both.added.unwrap();
        assert!((added.p50.value - 0.2).abs() < 1e-9 && !added.p50.below_floor, "{added:?}");
        assert!((floors[0].p99 - 0.001).abs() < 1e-9 && cells[1].added.unwrap().p50.below_floor, "{floors:?}");
        assert_eq!((cells[0].added, both.void.as_deref()), (None, None));
        assert!(both.hdr.as_deref().is_some_and(|log| log.starts_with("HISTF")));
    }

    #[test]
    fn nothing_that_counts_is_void_and_one_round_is_no_interval() {
        let void = Some("the generator could not keep the rate");
        let all = [
            of(Mode::Baseline, (0..2).map(|number| measured(number, 100, None)).collect()),
            of(Mode::BaselineAgain, (0..2).map(|number| measured(number, 100, None)).collect()),
            of(Mode::Both, vec![measured(0, 10, void), measured(1, 10, void)]),
            of(Mode::Client, vec![measured(0, 200, None), measured(1, 10, void)]),
        ];
        let (cells, _) = cells(&all, 1);
        assert_eq!(cells[2].void.as_deref(), Some("round 0: the generator could not keep the rate"));
        assert_eq!((cells[2].latency_ms, &cells[2].hdr, cells[2].added), (None, &None, None));
        assert!(cells[3].void.is_none() && cells[3].added.is_none());
        assert!(cells[3].problems[1].contains("takes 2 rounds"), "{:?}", cells[3].problems);
    }
}
