//! When a server is tried again: of agents, and of relays, which go by the same.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause is random up to this, so that a fleet does not come as one (DESIGN §6).
const JITTER: Duration = Duration::from_millis(100);

/// The pause after the first failure in a row, doubled after each, and its ceiling.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A stream that has told everything and then lived this long was a good one: the next is tried at once. One that the server
/// ends sooner, because it turns this agent away or another of the same name takes its place, counts as a failure.
const GOOD_AFTER: Duration = Duration::from_secs(5);

/// Time after and within which a stream in reserve that was lost, or has become the primary, is followed by the next, at a
/// random moment. The first second is for what has changed meanwhile.
const RESERVE_AFTER: Duration = Duration::from_secs(1);
const RESERVE_WITHIN: Duration = Duration::from_secs(10);

/// Time after which a relay that reaches no server is left for one that does, and within which, at a random moment. Where several relays
/// have lost the same server, all have said so by then, and nobody goes round.
const LEAVE_AFTER: Duration = Duration::from_millis(500);
const LEAVE_WITHIN: Duration = Duration::from_millis(1_500);

/// Whether the other end, a relay, reaches no server, and when it is left for one that does.
#[derive(Debug, Default)]
pub struct CutOff(Option<Instant>);

impl CutOff {
    /// It has said so.
    pub fn said(&mut self, cut_off: bool) {
        let leave_at = || Instant::now() + LEAVE_AFTER + (LEAVE_WITHIN - LEAVE_AFTER).mul_f64(fastrand::f64());
        self.0 = cut_off.then(|| self.0.unwrap_or_else(leave_at));
    }

    /// Whether it is.
    #[must_use]
    pub fn is(&self) -> bool {
        self.0.is_some()
    }

    /// When a primary stream to it ends for the sake of one in reserve; `None` for never, as both are alike.
    #[must_use]
    pub fn leave_at(&self, reserve: &Self) -> Option<Instant> {
        self.0.filter(|_| !reserve.is())
    }
}

/// When a stream for one purpose may be made, and how often it was in vain.
#[derive(Debug, Default)]
pub struct Attempts {
    retries: Retries,
    not_before: Option<Instant>,
}

impl Attempts {
    /// One is over, that had told everything by `heard_at`; `None` if it never did. Answers with the pause, jitter apart.
    pub fn ended(&mut self, heard_at: Option<Instant>) -> Duration {
        let pause = self.retries.after(heard_at.map(|at| at.elapsed()));
        self.not_before = Some(Instant::now() + jittered(pause));
        pause
    }

    /// One that had told everything is gone, and nothing hangs on the next: a fleet that has lost a server must not open as
    /// many connections at once as it has nodes, which leaves the servers that are left no time for anything else.
    pub(super) fn can_wait(&mut self) {
        let spread = RESERVE_AFTER + (RESERVE_WITHIN - RESERVE_AFTER).mul_f64(fastrand::f64());
        self.not_before = self.not_before.max(Some(Instant::now() + spread));
    }

    /// There is no reason to wait any more.
    pub fn at_once(&mut self) {
        self.not_before = None;
    }

    /// Whether the next may be made.
    #[must_use]
    pub fn are_due(&self) -> bool {
        self.not_before.is_none_or(|at| at <= Instant::now())
    }

    /// When that is; `None` for at once.
    #[must_use]
    pub fn not_before(&self) -> Option<Instant> {
        self.not_before
    }
}

/// How often in a row there was no good stream.
#[derive(Debug, Default)]
struct Retries {
    failures: u32,
}

impl Retries {
    /// How long to wait, jitter apart, after a stream that lived for `heard` from when it had told everything; `None` if it
    /// never did.
    fn after(&mut self, heard: Option<Duration>) -> Duration {
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
fn jittered(pause: Duration) -> Duration {
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

    #[tokio::test(start_paused = true)]
    async fn those_who_lose_their_server_together_do_not_come_back_together() {
        let came = Instant::now();
        let mut returns: Vec<_> = (0..200)
            .map(|_| {
                let mut attempts = Attempts::default();
                assert!(attempts.are_due());
                assert_eq!(attempts.ended(Some(came - GOOD_AFTER)), Duration::ZERO);
                attempts.not_before().expect("a moment") - came
            })
            .collect();
        returns.sort_unstable();
        assert!(returns[199] <= JITTER, "{:?}", returns[199]);
        assert!(returns[199] - returns[0] > JITTER / 2, "{:?} to {:?}", returns[0], returns[199]);
    }
    #[tokio::test(start_paused = true)]
    async fn a_relay_without_servers_is_left_for_one_with_and_for_no_other() {
        let (mut primary, mut reserve) = (CutOff::default(), CutOff::default());
        assert_eq!(primary.leave_at(&reserve), None);
        let before = Instant::now();
        primary.said(true);
        let due = primary.leave_at(&reserve).expect("a moment");
        assert!((LEAVE_AFTER..=LEAVE_WITHIN).contains(&(due - before)), "{:?}", due - before);
        tokio::time::advance(LEAVE_AFTER).await;
        primary.said(true);
        assert_eq!(primary.leave_at(&reserve), Some(due), "what is said again puts nothing off");
        reserve.said(true);
        assert_eq!(primary.leave_at(&reserve), None);
        reserve.said(false);
        assert_eq!(primary.leave_at(&reserve), Some(due));
        primary.said(false);
        assert_eq!(primary.leave_at(&reserve), None);
    }
}
