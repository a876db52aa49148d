//! What has happened to a node's streams, for its metrics.

use std::time::Duration;

/// Seconds of the buckets in which times without a primary are counted.
pub const GAP_BUCKETS_S: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 60.0];

/// Counts since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Whether a stream to a primary is open now.
    pub primary: bool,
    /// Whether one in reserve is, and has told everything.
    pub standby: bool,
    /// How often the stream in reserve took the primary's place because that was lost.
    pub promotions: u64,
    /// How often a stream was moved since its server wished so.
    pub moves: u64,
    /// How often that was tried in vain.
    pub moves_failed: u64,
    /// Times without a primary, those of [`GAP_BUCKETS_S`] each by itself, and longer ones last.
    pub gaps: [u64; GAP_BUCKETS_S.len() + 1],
    /// Their sum, seconds.
    pub gaps_sum_s: f64,
}

impl Figures {
    /// There was no primary for so long.
    pub(super) fn gap(&mut self, gap: Duration) {
        let seconds = gap.as_secs_f64();
        let bucket = GAP_BUCKETS_S.iter().position(|bound| seconds <= *bound).unwrap_or(GAP_BUCKETS_S.len());
        self.gaps[bucket] += 1;
        self.gaps_sum_s += seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_counted_once_in_the_bucket_that_holds_it() {
        let mut figures = Figures::default();
        for ms in [0, 1, 2, 100, 101, 60_000, 60_001] {
            figures.gap(Duration::from_millis(ms));
        }
        assert_eq!(figures.gaps, [2, 1, 1, 1, 0, 0, 0, 1, 1]);
        assert!((figures.gaps_sum_s - 120.205).abs() < 1e-9);
    }
}
