//! How sure a difference is: intervals by resampling rounds, the noise floor of measuring the same thing twice, and the
//! order in which variants take turns.
//!
//! Rounds are resampled, and not requests: requests of one round share whatever else the machine did during it, so they
//! are not independent of each other. Both variants of a difference are resampled by the same rounds, since what falls on
//! a whole round falls on both. Latencies are merged before a quantile is read; quantiles are never averaged.

use super::report::{Added, Difference};

/// The quantiles that are compared.
pub(crate) const QUANTILES: [f64; 4] = [0.50, 0.90, 0.99, 0.999];

/// Resamples of a difference: with more, the ends of the interval do not move by what is shown of them.
const RESAMPLES: usize = 2000;

/// What an interval covers.
const CONFIDENCE: f64 = 0.95;

/// Fewest rounds of a difference within a run. Both variants are resampled by the same rounds, and the noise floor, which is
/// found by as few, is held against it: with two, an interval is no more than the range of both.
pub(crate) const ROUNDS_MIN: usize = 2;

/// Fewest rounds of each of two reports whose medians are compared. Each is resampled by itself: with two or three, an end
/// of the interval is a single round, and a difference is found by chance.
pub(crate) const COMPARED_ROUNDS_MIN: usize = 4;

/// Latencies of a round: microseconds, ascending, and how many requests took up to that.
pub(crate) type Latencies = Vec<(u64, u64)>;

/// A difference of two quantiles in milliseconds, and the 95 % interval around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Rounds of one variant, on one scale of values, so that any multiset of them is merged by adding up counts.
struct Rounds {
    microseconds: Vec<u64>,
    /// By value, then by round.
    counts: Vec<Vec<u64>>,
    /// Of each round.
    totals: Vec<u64>,
}

impl Rounds {
    fn new(rounds: &[&Latencies]) -> Self {
        let mut microseconds: Vec<u64> =
            rounds.iter().flat_map(|round| round.iter().map(|(value, _)| *value)).collect();
        microseconds.sort_unstable();
        microseconds.dedup();
        let mut counts = vec![vec![0; rounds.len()]; microseconds.len()];
        for (number, round) in rounds.iter().enumerate() {
            for (value, count) in *round {
                if let Ok(place) = microseconds.binary_search(value) {
                    counts[place][number] += count;
                }
            }
        }
        let totals = rounds.iter().map(|round| round.iter().map(|(_, count)| count).sum()).collect();
        Self { microseconds, counts, totals }
    }

    /// The quantiles in milliseconds of the rounds together, each taken so many times.
    fn quantiles(&self, times: &[u64]) -> [f64; 4] {
        let weigh = |counts: &[u64]| counts.iter().zip(times).map(|(count, times)| count * times).sum::<u64>();
        let total = weigh(&self.totals);
        let ranks = QUANTILES.map(|quantile| rank(quantile, total));
        let mut found = [0.0; 4];
        let (mut seen, mut next) = (0, 0);
        for (value, counts) in self.microseconds.iter().zip(&self.counts) {
            seen += weigh(counts);
            while next < ranks.len() && seen >= ranks[next] {
                found[next] = milliseconds(*value);
                next += 1;
            }
            if next == ranks.len() {
                break;
            }
        }
        found
    }
}

/// What a share of all took at most, in milliseconds, by microseconds in ascending order and how many took up to that;
/// `None` of nothing.
pub(super) fn quantile(latencies: &[(u64, u64)], quantile: f64) -> Option<f64> {
    // Reports that are read may have any counts.
    let total = latencies.iter().fold(0, |total: u64, (_, count)| total.saturating_add(*count));
    let rank = rank(quantile, total);
    let mut seen: u64 = 0;
    let found = latencies.iter().find(|(_, count)| {
        seen = seen.saturating_add(*count);
        seen >= rank
    });
    found.map(|(microseconds, _)| milliseconds(*microseconds))
}

/// The place of a quantile among so many, from 1.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an f64 is exact up to 2^53 requests, and a share of them is neither negative nor above them"
)]
fn rank(quantile: f64, total: u64) -> u64 {
    ((quantile * total as f64).ceil() as u64).clamp(1, total.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "an hour of microseconds is far below 2^53")]
fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e3
}

/// By how much a variant is slower than another at each of [`QUANTILES`]. Rounds of the same place were measured in the
/// same round. `None` with fewer than [`ROUNDS_MIN`] of them, or if one is empty.
pub(crate) fn differences(variant: &[&Latencies], other: &[&Latencies], seed: u64) -> Option<[Interval; 4]> {
    let count = variant.len();
    let is_empty = |round: &&Latencies| round.iter().all(|(_, count)| *count == 0);
    if count < ROUNDS_MIN || count != other.len() || variant.iter().chain(other).any(is_empty) {
        return None;
    }
    let (variant, other) = (Rounds::new(variant), Rounds::new(other));
    let difference = |times: &[u64]| {
        let (slower, faster) = (variant.quantiles(times), other.quantiles(times));
        // Whole microseconds, as both are.
        std::array::from_fn::<f64, 4, _>(|place| ((slower[place] - faster[place]) * 1e3).round() / 1e3)
    };
    let value = difference(&vec![1; count]);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut resampled = QUANTILES.map(|_| Vec::with_capacity(RESAMPLES));
    for _ in 0..RESAMPLES {
        let mut times = vec![0; count];
        for _ in 0..count {
            times[random.usize(..count)] += 1;
        }
        for (all, one) in resampled.iter_mut().zip(difference(&times)) {
            all.push(one);
        }
    }
    let mut intervals = value.map(|value| Interval { value, low: value, high: value });
    for (interval, all) in intervals.iter_mut().zip(&mut resampled) {
        all.sort_unstable_by(f64::total_cmp);
        interval.low = at(all, (1.0 - CONFIDENCE) / 2.0);
        interval.high = at(all, f64::midpoint(1.0, CONFIDENCE));
    }
    Some(intervals)
}

/// By how much the median of some rounds is above that of others, which were not measured beside them: each side is
/// resampled by itself. `None` with fewer than [`COMPARED_ROUNDS_MIN`] of either.
pub(crate) fn difference_of_medians(these: &[f64], others: &[f64], seed: u64) -> Option<Interval> {
    if these.len() < COMPARED_ROUNDS_MIN || others.len() < COMPARED_ROUNDS_MIN {
        return None;
    }
    let value = median(these.iter().copied())? - median(others.iter().copied())?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut resampled_median = |values: &[f64]| median((0..values.len()).map(|_| values[random.usize(..values.len())]));
    let mut differences = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        differences.push(resampled_median(these)? - resampled_median(others)?);
    }
    differences.sort_unstable_by(f64::total_cmp);
    let (low, high) = (at(&differences, (1.0 - CONFIDENCE) / 2.0), at(&differences, f64::midpoint(1.0, CONFIDENCE)));
    Some(Interval { value, low, high })
}

/// A quantile of sorted values.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    let place = rank(quantile, sorted.len() as u64) - 1;
    usize::try_from(place).ok().and_then(|place| sorted.get(place)).copied().unwrap_or(f64::NAN)
}

/// What two measurements of the same may differ by, at each of [`QUANTILES`], in milliseconds: the end of the interval that
/// is further from 0.
pub(crate) fn noise_floor(of_the_same: [Interval; 4]) -> [f64; 4] {
    of_the_same.map(|Interval { value, low, high }| value.abs().max(low.abs()).max(high.abs()))
}

/// What is said of differences, by the floor of where they were found.
pub(crate) fn added(intervals: [Interval; 4], floor: [f64; 4]) -> Added {
    let verdict = |place: usize| {
        let (Interval { value, low, high }, floor) = (intervals[place], floor[place]);
        let below_floor = value.abs() <= floor || (low <= 0.0 && high >= 0.0);
        Difference { value, low, high, floor, below_floor }
    };
    Added { p50: verdict(0), p90: verdict(1), p99: verdict(2), p999: verdict(3) }
}

/// The order in which so many variants are measured in a round.
pub(crate) fn order(variants: usize, round: u32, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..variants).collect();
    // Rounds differ from each other, and by the seed all of them are the same again.
    fastrand::Rng::with_seed(seed ^ (u64::from(round) << 32 | 0x5eed)).shuffle(&mut order);
    order
}

/// The median; of an even number the mean of the two in the middle. `None` of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], upper) } else { upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of 1,000 requests that took from `least` to `least` + 980 µs, but for one in a hundred that took `slow`.
    fn round(least: u64, slow: u64) -> Latencies {
        let mut all: Latencies = (0..99).map(|step| (least + 10 * step, 10)).collect();
        all.push((slow, 10));
        all
    }

    fn rounds(least: &[u64]) -> Vec<Latencies> {
        least.iter().map(|least| round(*least, least + 5000)).collect()
    }

    fn compare(variant: &[Latencies], other: &[Latencies]) -> [Interval; 4] {
        differences(&variant.iter().collect::<Vec<_>>(), &other.iter().collect::<Vec<_>>(), 7).unwrap()
    }

    #[test]
    fn quantiles_are_those_of_all_rounds_together_and_no_mean_of_quantiles() {
        // 900 fast ones and 100 slow ones: the median of the whole is fast, the mean of both medians is neither.
        let (fast, slow) = (vec![(100, 900)], vec![(10_000, 100)]);
        let merged = Rounds::new(&[&fast, &slow]);
        assert_eq!(merged.quantiles(&[1, 1]), [0.1, 0.1, 10.0, 10.0]);
        assert_eq!(merged.quantiles(&[1, 100]), [10.0, 10.0, 10.0, 10.0]);
        assert_eq!((rank(0.5, 10), rank(0.999, 10), rank(0.5, 1), rank(0.0, 5)), (5, 10, 1, 1));
    }

    #[test]
    fn a_quantile_is_read_off_the_counts() {
        let histogram = [(1000, 90), (2000, 9), (50_000, 1)];
        assert_eq!([0.5, 0.95, 0.99, 1.0].map(|it| quantile(&histogram, it)), [1.0, 2.0, 2.0, 50.0].map(Some));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[(1000, u64::MAX), (2000, u64::MAX)], 0.99), Some(1.0), "counts may be anything");
    }

    #[test]
    fn medians_of_few_rounds_are_not_compared() {
        let (three, four) = ([1.0, 1.1, 0.9], [1.0, 1.1, 0.9, 1.0]);
        assert_eq!((difference_of_medians(&three, &four, 1), difference_of_medians(&four, &three, 1)), (None, None));
        let shifted = difference_of_medians(&four.map(|it| it + 1.0), &four, 1).unwrap();
        assert!(shifted.low > 0.5 && shifted.high < 1.5, "{shifted:?}");
    }

    #[test]
    fn a_shift_of_all_rounds_is_found_and_is_sure() {
        // What differs from round to round falls on both variants, and is no doubt about their difference.
        let base = rounds(&[1000, 1300, 900, 1100, 2000]);
        let shifted: Vec<_> = [1000, 1300, 900, 1100, 2000].map(|least| round(least + 400, least + 5400)).into();
        for Interval { value, low, high } in compare(&shifted, &base) {
            assert!((value - 0.4).abs() < 1e-9 && low > 0.39 && high < 0.41, "{value} in {low} to {high}");
        }
    }

    #[test]
    fn a_difference_of_one_round_in_five_is_not_sure() {
        let base = rounds(&[1000; 5]);
        let one = rounds(&[1000, 1000, 4000, 1000, 1000]);
        let [_, p90, ..] = compare(&one, &base);
        assert!(p90.value > 1.0 && p90.low <= 0.0 && p90.high >= p90.value, "{p90:?}");
        assert!(added([p90; 4], [0.0; 4]).p50.below_floor, "its interval has 0 in it");
    }

    #[test]
    fn what_is_not_above_the_noise_is_said_to_be_below_it() {
        let (one, again) = (rounds(&[1000, 1020, 990, 1010, 1000]), rounds(&[1030, 1000, 1010, 1000, 1020]));
        let floor = noise_floor(compare(&one, &again));
        assert!(floor[0] > 0.0 && floor[0] < 0.05, "{floor:?}");
        let verdict = |by: u64| {
            let variant = rounds(&[1000, 1020, 990, 1010, 1000].map(|least| least + by));
            added(compare(&variant, &one), floor).p50
        };
        assert!(verdict(5).below_floor, "{:?}", verdict(5));
        let clear = verdict(500);
        assert!(!clear.below_floor && clear.low > clear.floor, "{clear:?}");
        // Faster than the baseline by more than the noise is a finding, too.
        let faster = added(compare(&rounds(&[400; 5]), &one), floor).p50;
        assert!(!faster.below_floor && faster.high < 0.0, "{faster:?}");
    }

    #[test]
    fn too_little_says_nothing() {
        let (one, none) = (round(1000, 2000), Vec::new());
        assert_eq!(differences(&[&one], &[&one], 1), None);
        assert_eq!(differences(&[&one, &one], &[&one], 1), None);
        assert_eq!(differences(&[&one, &none], &[&one, &one], 1), None);
        assert_eq!((median([]), median([3.0, 1.0, 2.0]), median([4.0, 1.0])), (None, Some(2.0), Some(2.5)));
    }

    #[test]
    fn a_seed_repeats_itself_and_rounds_do_not() {
        let (variant, other) = (rounds(&[1000, 1500, 900]), rounds(&[800, 1000, 1100]));
        assert_eq!(compare(&variant, &other), compare(&variant, &other));
        let orders: Vec<_> = (0..20).map(|round| order(6, round, 3)).collect();
        assert_eq!(orders, (0..20).map(|round| order(6, round, 3)).collect::<Vec<_>>());
        assert!(orders.windows(2).any(|pair| pair[0] != pair[1]), "{orders:?}");
        // Over many rounds everyone is first about as often: 200 of 1200, give or take.
        let firsts = |who: usize| (0..1200).filter(|round| order(6, *round, 11)[0] == who).count();
        assert!((0..6).all(|who| firsts(who).abs_diff(200) < 60), "{:?}", (0..6).map(firsts).collect::<Vec<_>>());
    }
}
