//! How often a repeated event is logged: once, and then once a period with the number of events since.

use std::time::Duration;

/// Time between two log lines about the same event. A flood of events must not become a flood of lines.
pub const PERIOD: Duration = Duration::from_secs(60);

/// Counts one kind of event between its log lines.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// When the last line was due, since the caller's epoch.
    last: Option<Duration>,
    count: u64,
}

impl Tally {
    /// Notes an event at `now`, which is measured from any fixed instant.
    ///
    /// Returns the number of events since the last line, this one included, if a line is due.
    pub fn note(&mut self, now: Duration) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now.saturating_sub(last) < PERIOD) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_is_logged_and_later_ones_once_a_period_with_their_count() {
        let mut tally = Tally::default();
        let at = Duration::from_secs;
        assert_eq!(tally.note(at(5)), Some(1));
        assert_eq!((6..65).filter_map(|second| tally.note(at(second))).count(), 0);
        assert_eq!(tally.note(at(65)), Some(60));
        assert_eq!(tally.note(at(66)), None);
        assert_eq!(tally.note(at(1_000)), Some(2));
    }
}
