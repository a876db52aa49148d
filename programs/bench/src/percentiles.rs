//! Exact percentiles and a histogram of a fleet's latencies: every workload counts, and nothing is rounded or cut off.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bins of a histogram from one latency to ten times that.
const BINS_PER_DECADE: i32 = 20;

/// Names of the percentiles in reports and for people, in ascending order.
pub(crate) const PERCENTILES: [(&str, &str); 10] = [
    ("p50", "50 %"),
    ("p75", "75 %"),
    ("p90", "90 %"),
    ("p95", "95 %"),
    ("p96", "96 %"),
    ("p97", "97 %"),
    ("p98", "98 %"),
    ("p99", "99 %"),
    ("p999", "99.9 %"),
    ("max", "all"),
];

/// Percentiles of latencies, in milliseconds with three decimals. By nearest rank: each is a latency that occurred, and
/// at least that share of all are not longer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of all are not longer.
    pub p50: f64,
    /// 75 %.
    pub p75: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 96 %.
    pub p96: f64,
    /// 97 %.
    pub p97: f64,
    /// 98 %.
    pub p98: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Latencies in a range of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// The shortest that counts here, in milliseconds.
    pub from_ms: f64,
    /// The shortest that no longer does.
    pub to_ms: f64,
    /// How many there were.
    pub count: u64,
}

impl Percentiles {
    /// Of latencies in microseconds, in any order; `None` of none.
    pub fn of(latencies_us: &[u64]) -> Option<Self> {
        let mut sorted = latencies_us.to_vec();
        sorted.sort_unstable();
        let max = milliseconds(*sorted.last()?);
        let at = |permille: usize| {
            let rank = (sorted.len() * permille).div_ceil(1000);
            sorted.get(rank.saturating_sub(1)).map_or(max, |latency| milliseconds(*latency))
        };
        Some(Self {
            p50: at(500),
            p75: at(750),
            p90: at(900),
            p95: at(950),
            p96: at(960),
            p97: at(970),
            p98: at(980),
            p99: at(990),
            p999: at(999),
            max,
        })
    }

    /// All of them with their names in reports, in ascending order.
    pub fn named(&self) -> [(&'static str, f64); 10] {
        let Self { p50, p75, p90, p95, p96, p97, p98, p99, p999, max } = *self;
        [
            ("p50", p50),
            ("p75", p75),
            ("p90", p90),
            ("p95", p95),
            ("p96", p96),
            ("p97", p97),
            ("p98", p98),
            ("p99", p99),
            ("p999", p999),
            ("max", max),
        ]
    }

    /// What is quoted of several changes together: of each percentile the median (of an even number the upper one), but
    /// of `max` the longest over all. `None` of none.
    pub fn over_changes(changes: &[Self]) -> Option<Self> {
        let median = |of: fn(&Self) -> f64| {
            let mut values: Vec<f64> = changes.iter().map(of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some(Self {
            p50: median(|it| it.p50)?,
            p75: median(|it| it.p75)?,
            p90: median(|it| it.p90)?,
            p95: median(|it| it.p95)?,
            p96: median(|it| it.p96)?,
            p97: median(|it| it.p97)?,
            p98: median(|it| it.p98)?,
            p99: median(|it| it.p99)?,
            p999: median(|it| it.p999)?,
            max: changes.iter().map(|it| it.max).reduce(f64::max)?,
        })
    }
}

/// A histogram of latencies in microseconds: bins of equal width on a logarithmic scale, so that a body of 100 ms and a
/// tail of 30 s can both be seen, from the first that is not empty to the last. What took under 1 µs counts as 1 µs.
pub fn histogram(latencies_us: &[u64]) -> Vec<Bin> {
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    for latency in latencies_us {
        *counts.entry(bin_of(*latency)).or_default() += 1;
    }
    let (Some(first), Some(last)) = (counts.keys().next(), counts.keys().next_back()) else {
        return Vec::new();
    };
    (*first..=*last)
        .map(|bin| Bin {
            from_ms: edge_ms(bin),
            to_ms: edge_ms(bin + 1),
            count: counts.get(&bin).copied().unwrap_or_default(),
        })
        .collect()
}

/// The last bin whose lower edge is not above a latency.
#[expect(clippy::cast_possible_truncation, reason = "a logarithm of 64 bits is far below the limit of an i32")]
fn bin_of(latency_us: u64) -> i32 {
    let latency_ms = milliseconds(latency_us.max(1));
    let near = (latency_ms.log10() * f64::from(BINS_PER_DECADE)).floor() as i32;
    // The logarithm of an edge may come out on either side of it.
    (near - 1..=near + 1).rev().find(|bin| edge_ms(*bin) <= latency_ms).unwrap_or(near)
}

fn edge_ms(bin: i32) -> f64 {
    10_f64.powf(f64::from(bin) / f64::from(BINS_PER_DECADE))
}

#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 285 years of microseconds")]
fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_whatever_the_order() {
        let mut latencies: Vec<u64> = (1..=178_000).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut latencies);
        let found = Percentiles::of(&latencies).unwrap();
        assert_eq!(
            found.named().map(|(_, ms)| ms),
            [89.0, 133.5, 160.2, 169.1, 170.88, 172.66, 174.44, 176.22, 177.822, 178.0]
        );
    }

    #[test]
    fn one_straggler_of_178_000_is_the_maximum_and_nothing_else() {
        let mut latencies = vec![100_000; 178_000];
        latencies[4711] = 32_051_900_123;
        let found = Percentiles::of(&latencies).unwrap();
        assert_eq!((found.p50, found.p999, found.max), (100.0, 100.0, 32_051_900.123));
    }

    #[test]
    fn a_percentile_of_few_is_one_of_them() {
        let found = Percentiles::of(&[3000, 1000]).unwrap();
        assert_eq!((found.p50, found.p75, found.max), (1.0, 3.0, 3.0));
        assert_eq!(Percentiles::of(&[5000]).unwrap().named().map(|(_, ms)| ms), [5.0; 10]);
        assert_eq!(Percentiles::of(&[]), None);
    }

    #[test]
    fn several_changes_are_quoted_by_the_median_but_by_the_longest_maximum() {
        let changes: Vec<_> = [[10_000, 90_000], [30_000, 40_000], [20_000, 50_000]]
            .iter()
            .filter_map(|it| Percentiles::of(it))
            .collect();
        let found = Percentiles::over_changes(&changes).unwrap();
        assert_eq!((found.p50, found.p99, found.max), (20.0, 50.0, 90.0));
        assert_eq!(Percentiles::over_changes(&[]), None);
    }

    #[test]
    fn the_names_are_the_fields_of_the_report() {
        let found = Percentiles::of(&[1500, 2500]).unwrap();
        let json = serde_json::to_value(found).unwrap();
        assert_eq!(json.as_object().unwrap().len(), found.named().len());
        for (name, value) in found.named() {
            assert_eq!(json[name], value, "{name}");
        }
    }

    #[test]
    fn a_histogram_counts_every_latency_in_the_bin_that_holds_it() {
        let latencies: Vec<u64> = (0..60).flat_map(|number| [number, 100_000 + number * 997, 10_u64.pow(7)]).collect();
        let bins = histogram(&latencies);
        assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 180);
        for bin in &bins {
            let inside = |us: &&u64| (bin.from_ms..bin.to_ms).contains(&milliseconds((**us).max(1)));
            assert_eq!(u64::try_from(latencies.iter().filter(inside).count()).unwrap(), bin.count, "{bin:?}");
        }
        assert!(bins.windows(2).all(|pair| pair[0].to_ms == pair[1].from_ms), "no gap");
        assert!(bins.first().is_some_and(|bin| bin.count > 0) && bins.last().is_some_and(|bin| bin.count > 0));
        assert_eq!(histogram(&[]), []);
    }

    #[test]
    fn an_edge_belongs_to_the_bin_that_it_begins() {
        for (exponent, milliseconds) in [(-3, 0.001), (0, 1.0), (1, 10.0), (2, 100.0), (4, 10_000.0)] {
            let bins = histogram(&[10_u64.pow(u32::try_from(exponent + 3).unwrap())]);
            assert!((bins[0].from_ms - milliseconds).abs() < milliseconds * 1e-9, "{bins:?}");
        }
    }
}
