//! How long to wait before a server is tried again.

use std::time::Duration;

/// The first pause is random up to this, so that a fleet does not come as one (DESIGN §6).
const JITTER: Duration = Duration::from_millis(100);

/// The pause after the first failure in a row, doubled after each, and its ceiling.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A stream that has told everything and then lived this long was a good one: the next is tried at once. One that the server
/// ends sooner, because it turns this agent away or another of the same name takes its place, counts as a failure.
const GOOD_AFTER: Duration = Duration::from_secs(5);

/// How often in a row there was no good stream.
#[derive(Default)]
pub(super) struct Retries {
    failures: u32,
}

impl Retries {
    /// How long to wait, jitter apart, after a stream that lived for `heard` from when it had told everything; `None` if it
    /// never did.
    pub(super) fn after(&mut self, heard: Option<Duration>) -> Duration {
        if heard.is_some_and(|heard| heard >= GOOD_AFTER) {
            self.failures = 0;
        }
        let pause = match self.failures {
            0 => Duration::ZERO,
            some => RETRY_FIRST.saturating_mul(1 << (some - 1).min(8)).min(RETRY_MAX),
        };
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

/// A pause with its jitter.
pub(super) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0) + JITTER.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_that_was_good_for_a_while_is_followed_at_once() {
        let mut retries = Retries::default();
        // Opened and welcomed, then turned away; or superseded as soon as all was told.
        let pauses: Vec<_> = [None, Some(Duration::ZERO), None, Some(GOOD_AFTER / 2), None, None, None]
            .map(|heard| retries.after(heard).as_millis())
            .into();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!(retries.after(Some(GOOD_AFTER)), Duration::ZERO);
        assert_eq!(retries.after(None), RETRY_FIRST);
    }
}
