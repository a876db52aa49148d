//! What became of each figure of A in B.
//!
//! The difference of two medians has a 95 % interval by resampling the rounds of each report; it is more than noise if that
//! interval has no 0 in it and the difference is above the noise floor of both reports. A regression is such a difference,
//! for the worse, beyond the tolerance. Only latencies have a noise floor; of CPU time, memory and rates the rounds alone
//! say how they vary.

use serde::Serialize;

use super::is_same;
use crate::cost::report::{Cell, CostReport, CostScenario, Floor, Mode, Point, ProxyKind, Quantiles, Round};
use crate::cost::statistics::{COMPARED_ROUNDS_MIN, Interval, difference_of_medians, median};

/// What came of it for one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Worse, by more than noise and the tolerance.
    Regression,
    /// In A, and not in B, or in too few of its rounds.
    Missing,
    /// B does not keep up with this rate, but the most that it answers is within the tolerance of A's.
    PastKnee,
    /// Worse by more than noise, within the tolerance.
    Worse,
    Better,
    /// No more than noise.
    Noise,
    /// Too few rounds to tell.
    Unsure,
}

impl Verdict {
    pub(super) fn fails(self) -> bool {
        matches!(self, Self::Regression | Self::Missing)
    }
}

/// Which way is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worse {
    Higher,
    Lower,
}

/// A figure of a round.
struct Figure {
    name: &'static str,
    worse: Worse,
    of: fn(&Round) -> Option<f64>,
    /// Below what it is noise; 0 of what has no floor.
    floor: fn(&Floor) -> f64,
    /// It hardly varies: where it was measured once by intent, once is enough.
    is_steady: bool,
}

impl Figure {
    const fn new(name: &'static str, worse: Worse, of: fn(&Round) -> Option<f64>) -> Self {
        Self { name, worse, of, floor: |_| 0.0, is_steady: false }
    }

    const fn latency(name: &'static str, of: fn(&Round) -> Option<f64>, floor: fn(&Floor) -> f64) -> Self {
        Self { floor, ..Self::new(name, Worse::Higher, of) }
    }

    const fn memory(name: &'static str, of: fn(&Round) -> Option<f64>) -> Self {
        Self { is_steady: true, ..Self::new(name, Worse::Higher, of) }
    }
}

fn latency(round: &Round, of: fn(&Quantiles) -> f64) -> Option<f64> {
    round.latency_ms.as_ref().map(of)
}

#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 requests")]
fn failed_percent(round: &Round) -> Option<f64> {
    (round.requests > 0).then(|| 100.0 * round.errors as f64 / round.requests as f64)
}

const FIGURES: [Figure; 9] = [
    Figure::latency("p50_ms", |round| latency(round, |it| it.p50), |it| it.p50),
    Figure::latency("p90_ms", |round| latency(round, |it| it.p90), |it| it.p90),
    Figure::latency("p99_ms", |round| latency(round, |it| it.p99), |it| it.p99),
    Figure::latency("p999_ms", |round| latency(round, |it| it.p999), |it| it.p999),
    Figure::new("rate", Worse::Lower, |round| Some(round.rate)),
    Figure::new("failed_percent", Worse::Higher, failed_percent),
    Figure::new("cpu_us_per_request", Worse::Higher, |round| round.proxies?.cpu_us_per_request),
    Figure::memory("caller_resident_mb", |round| round.proxies?.caller_resident_mb),
    Figure::memory("service_resident_mb", |round| round.proxies?.service_resident_mb),
];

/// One figure of one cell, in both reports.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    pub(super) scenario: CostScenario,
    pub(super) proxy: ProxyKind,
    pub(super) mode: Mode,
    pub(super) point: Point,
    pub(super) figure: &'static str,
    pub(super) before: f64,
    /// Absent if there is none.
    pub(super) after: Option<f64>,
    /// Rounds in which it was found, of A and of B.
    pub(super) rounds: [usize; 2],
    /// Of the difference of the medians; absent of too few rounds.
    pub(super) difference: Option<Ends>,
    /// In percent of what it was; absent if that was 0.
    pub(super) percent: Option<f64>,
    pub(super) floor: f64,
    pub(super) verdict: Verdict,
}

/// A difference and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Ends {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Two reports, and how much worse B may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) before: &'a CostReport,
    pub(super) after: &'a CostReport,
    pub(super) tolerance_percent: f64,
}

impl Pair<'_> {
    /// Every figure that A has.
    pub(super) fn changes(self) -> Vec<Change> {
        let of_cell = |old| FIGURES.iter().filter_map(move |figure| self.change(figure, old));
        self.before.cells.iter().flat_map(of_cell).collect()
    }

    /// `None` if there was no such figure before.
    fn change(self, figure: &Figure, old: &Cell) -> Option<Change> {
        let new = self.after.cells.iter().find(|new| is_same(old, new));
        let of_old = values(old, figure.of);
        let of_new = new.map(|new| values(new, figure.of)).unwrap_or_default();
        let (was, is) = (median(of_old.iter().copied())?, median(of_new.iter().copied()));
        let floor = self.floor(figure, old);
        let interval = difference_of_medians(&of_new, &of_old, self.before.settings.seed);
        let percent = is.filter(|_| was != 0.0).map(|is| (is / was - 1.0) * 100.0);
        let is_once = figure.is_steady && asked(self.before, old) == 1 && asked(self.after, old) == 1;
        let verdict = match (is, interval) {
            (None, _) => self.lost(old, new),
            (Some(_), _) if is_lost(of_old.len(), of_new.len(), asked(self.after, old)) => self.lost(old, new),
            (Some(_), Some(interval)) => self.judge(figure.worse, interval, floor, percent),
            // Without an interval nothing but the tolerance tells a change from noise.
            (Some(_), None) if is_once && !self.is_beyond(percent) => Verdict::Noise,
            (Some(is), None) if is_once => self.judge(figure.worse, exactly(is - was), 0.0, percent),
            (Some(_), None) => Verdict::Unsure,
        };
        let Cell { scenario, proxy, mode, point, .. } = *old;
        let difference = interval.map(|Interval { value, low, high }| Ends { value, low, high });
        let (figure, rounds) = (figure.name, [of_old.len(), of_new.len()]);
        let (before, after) = (was, is);
        Some(Change {
            scenario,
            proxy,
            mode,
            point,
            figure,
            before,
            after,
            rounds,
            difference,
            percent,
            floor,
            verdict,
        })
    }

    /// The higher of both reports.
    fn floor(self, figure: &Figure, cell: &Cell) -> f64 {
        let here = |floor: &&Floor| (floor.scenario, floor.point) == (cell.scenario, cell.point);
        self.before.floors.iter().chain(&self.after.floors).filter(here).map(figure.floor).fold(0.0, f64::max)
    }

    /// What is said of a figure that B should have and has not.
    fn lost(self, old: &Cell, new: Option<&Cell>) -> Verdict {
        let is_past_knee = new.is_some_and(|new| self.is_past_knee(old, new));
        if is_past_knee { Verdict::PastKnee } else { Verdict::Missing }
    }

    /// Whether B does not keep up with a rate that is near the end of its curve, which is no worse than A's. Such a rate is
    /// kept up with or not by chance: what counts is the most that is answered at any rate. A request that failed is no
    /// matter of keeping up.
    fn is_past_knee(self, old: &Cell, new: &Cell) -> bool {
        let most = |report| most_answered(report, old);
        let (Some(was), Some(is), Some(rate)) = (most(self.before), most(self.after), old.point.rate) else {
            return false;
        };
        let tolerated = 1.0 - self.tolerance_percent / 100.0;
        old.scenario == CostScenario::Throughput
            && is >= was * tolerated
            && rate >= is * tolerated
            && new.rounds.iter().all(|round| round.errors == 0)
    }

    fn judge(self, worse: Worse, Interval { value, low, high }: Interval, floor: f64, percent: Option<f64>) -> Verdict {
        if value.abs() <= floor || (low <= 0.0 && high >= 0.0) {
            return Verdict::Noise;
        }
        let for_the_worse = match worse {
            Worse::Higher => value > 0.0,
            Worse::Lower => value < 0.0,
        };
        match (for_the_worse, self.is_beyond(percent)) {
            (false, _) => Verdict::Better,
            (true, false) => Verdict::Worse,
            (true, true) => Verdict::Regression,
        }
    }

    /// What was nothing before has no percentage: whatever comes is beyond any.
    fn is_beyond(self, percent: Option<f64>) -> bool {
        percent.is_none_or(|percent| percent.abs() > self.tolerance_percent)
    }
}

/// A figure of each round that may be believed.
fn values(cell: &Cell, of: fn(&Round) -> Option<f64>) -> Vec<f64> {
    if cell.void.is_some() {
        return Vec::new();
    }
    cell.sound().filter_map(of).collect()
}

/// How many rounds of a cell were to be measured: with further services it is one.
fn asked(report: &CostReport, cell: &Cell) -> usize {
    let rounds = if cell.point.services.is_some() { 1 } else { report.settings.rounds };
    usize::try_from(rounds).unwrap_or(usize::MAX)
}

/// Whether B lost so many of the rounds that were asked of it that what is left is not to be held against A's. One that was
/// asked for fewer has lost nothing.
fn is_lost(before: usize, after: usize, asked: usize) -> bool {
    let too_few = before >= COMPARED_ROUNDS_MIN && after < COMPARED_ROUNDS_MIN;
    after < asked && (after < before.div_ceil(2) || too_few)
}

/// The most that the proxies of a cell answer over as many connections, at whatever rate, whether they keep up with that or
/// not; `None` if nothing was measured.
fn most_answered(report: &CostReport, like: &Cell) -> Option<f64> {
    let of = |cell: &Cell| (cell.scenario, cell.proxy, cell.mode, cell.point.connections);
    let curve = report.cells.iter().filter(|cell| of(cell) == of(like));
    curve.filter_map(|cell| median(cell.rounds.iter().map(|round| round.rate))).reduce(f64::max)
}

/// A difference of what was measured once.
fn exactly(value: f64) -> Interval {
    Interval { value, low: value, high: value }
}
