//! When requests of an open loop are due: moments that are fixed beforehand, whatever the answers do.

use std::time::Duration;

use clap::ValueEnum;

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Arrivals {
    /// All at the same distance
    #[default]
    Constant,
    /// As of many independent callers: distances are exponentially distributed
    Poisson,
}

/// Moments from the start of a run, without end.
pub(super) struct Schedule {
    arrivals: Arrivals,
    distance_s: f64,
    /// How far a constant moment is moved at most, as a share of the distance; up to a half the order stays.
    jitter: f64,
    next_s: f64,
    random: fastrand::Rng,
}

impl Schedule {
    /// So many a second, above 0, as the share `number` of `of` that together make a steady stream.
    pub(super) fn new(arrivals: Arrivals, rate: f64, (number, of): (u32, u32), seed: u64) -> Self {
        let distance_s = rate.recip();
        let random = fastrand::Rng::with_seed(seed);
        let mut schedule = Self { arrivals, distance_s, jitter: 0.0, next_s: 0.0, random };
        schedule.next_s = match arrivals {
            Arrivals::Constant => distance_s * f64::from(number) / f64::from(of.max(1)),
            Arrivals::Poisson => schedule.gap(),
        };
        schedule
    }

    /// With each moment moved, earlier or later by up to this share of the distance; the rate stays.
    pub(super) fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    fn gap(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => self.distance_s,
            // 1 - f64() is never 0, whose logarithm is infinite.
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln() * self.distance_s,
        }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let moved = match self.jitter {
            0.0 => 0.0,
            share => share * self.distance_s * (2.0 * self.random.f64() - 1.0),
        };
        let due = Duration::try_from_secs_f64((self.next_s + moved).max(0.0)).ok()?;
        self.next_s += self.gap();
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(schedule: Schedule, end: Duration) -> Vec<Duration> {
        schedule.take_while(|due| *due < end).collect()
    }

    #[test]
    fn constant_arrivals_of_two_threads_are_one_stream() {
        let of = |number| within(Schedule::new(Arrivals::Constant, 500.0, (number, 2), 1), Duration::from_secs(1));
        let mut all = [of(0), of(1)].concat();
        all.sort_unstable();
        assert_eq!(all.len(), 1000);
        let gaps = all.windows(2).map(|pair| (pair[1] - pair[0]).as_micros());
        assert!(gaps.into_iter().all(|gap| gap.abs_diff(1000) <= 1), "{all:?}");
    }

    #[test]
    fn jitter_moves_moments_and_keeps_their_order_and_rate() {
        let schedule = Schedule::new(Arrivals::Constant, 1000.0, (0, 1), 3).with_jitter(0.1);
        let all = within(schedule, Duration::from_micros(999_500));
        assert_eq!(all.len(), 1000);
        let off = all.iter().zip(0_u32..).map(|(due, number)| due.abs_diff(Duration::from_millis(1) * number));
        let off: Vec<_> = off.collect();
        assert!(off.iter().all(|off| *off <= Duration::from_micros(101)), "{off:?}");
        let far = off.iter().filter(|off| **off > Duration::from_micros(50)).count();
        assert!(far.abs_diff(500) < 80, "{far} of 1000 are in the outer half");
        assert!(all.is_sorted());
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread() {
        let all = within(Schedule::new(Arrivals::Poisson, 1000.0, (0, 1), 7), Duration::from_secs(100));
        assert!(all.len().abs_diff(100_000) < 1500, "{}", all.len());
        // Of an exponential distribution, 36.8 % of the distances are longer than the mean.
        let long = all.windows(2).filter(|pair| pair[1] - pair[0] > Duration::from_millis(1)).count();
        assert!(long.abs_diff(36_800) < 1000, "{long}");
    }
}
