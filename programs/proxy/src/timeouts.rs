//! How long is waited, and for what.

use std::time::{Duration, Instant};

/// How long the engine waits. The defaults are those of the Envoy that Starling configures.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a TLS handshake, and for the first bytes that tell what is spoken once the first of them is there.
    pub handshake: Duration,
    /// For the head of a request, from its first byte.
    pub head: Duration,
    /// For the next request of a connection; a peer closes earlier.
    pub idle: Duration,
    /// For the first request of a connection from another machine.
    pub first: Duration,
    /// A connection of which nothing is known but bytes may carry none for so long.
    pub tcp_idle: Duration,
    /// A TCP connection may carry nothing for so long once one direction has ended.
    pub half_closed: Duration,
    /// A request or its response may stand still for so long.
    pub still: Duration,
    /// For a client to take an answer to a request that was not read to its end.
    pub linger: Duration,
    /// For what is under way when an intention denies it, or its peer is no longer trusted.
    pub revoked: Duration,
    /// For the request that may be on its way to a connection that is to end.
    pub leave: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(60),
            idle: Duration::from_secs(3600),
            first: Duration::from_secs(60),
            tcp_idle: Duration::from_secs(3600),
            half_closed: Duration::from_secs(300),
            still: Duration::from_secs(300),
            linger: Duration::from_secs(1),
            revoked: Duration::ZERO,
            leave: Duration::from_millis(500),
        }
    }
}

/// Which time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// That for the whole response.
    Whole,
    /// Nothing moved for too long.
    Still,
}

/// When a call is given up. Looked at when a timer ends, not at every byte.
#[derive(Debug)]
pub(crate) struct Patience {
    whole: Option<Duration>,
    still: Duration,
    /// What had moved when it last was another number, and when that was seen.
    seen: (u64, Instant),
}

impl Patience {
    /// Begins `now`; `whole` counts from the end of the request.
    pub(crate) fn new(whole: Option<Duration>, still: Duration, now: Instant) -> Self {
        Self { whole, still, seen: (0, now) }
    }

    /// When to look first.
    pub(crate) fn first_look(&self) -> Duration {
        self.whole.map_or(self.still, |whole| whole.min(self.still))
    }

    /// When to look again. What stands still is found after at least `still`, and at most twice that.
    ///
    /// # Errors
    /// [`Expiry`] if it is time to give up.
    pub(crate) fn look(&mut self, now: Instant, moved: u64, request_over: Option<Instant>) -> Result<Instant, Expiry> {
        if let (Some(whole), Some(over)) = (self.whole, request_over) {
            let end = over + whole;
            return if now < end { Ok(end) } else { Err(Expiry::Whole) };
        }
        if moved != self.seen.0 {
            self.seen = (moved, now);
        }
        let end = self.seen.1 + self.still;
        if now >= end {
            return Err(Expiry::Still);
        }
        Ok(self.whole.map_or(end, |whole| end.min(now + whole)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_whole_counts_from_the_end_of_the_request() {
        let begin = Instant::now();
        let mut patience = Patience::new(Some(seconds(15)), seconds(300), begin);
        assert_eq!(patience.first_look(), seconds(15));
        let at = |second| begin + seconds(second);
        assert_eq!(patience.look(at(15), 1_000, None), Ok(at(30)), "the request is still coming");
        assert_eq!(patience.look(at(30), 2_000, Some(at(20))), Ok(at(35)));
        assert_eq!(patience.look(at(35), 3_000, Some(at(20))), Err(Expiry::Whole), "though the response moves");
    }

    #[test]
    fn what_moves_does_not_stand_still() {
        let begin = Instant::now();
        let mut patience = Patience::new(None, seconds(300), begin);
        assert_eq!(patience.first_look(), seconds(300));
        let at = |second| begin + seconds(second);
        assert_eq!(patience.look(at(300), 10, Some(begin)), Ok(at(600)));
        assert_eq!(patience.look(at(600), 20, Some(begin)), Ok(at(900)));
        assert_eq!(patience.look(at(900), 20, Some(begin)), Err(Expiry::Still));
    }

    #[test]
    fn a_request_that_never_ends_stands_still_at_last() {
        let begin = Instant::now();
        let mut patience = Patience::new(Some(seconds(15)), seconds(20), begin);
        let at = |second| begin + seconds(second);
        assert_eq!(patience.look(at(15), 0, None), Ok(at(20)));
        assert_eq!(patience.look(at(20), 0, None), Err(Expiry::Still));
    }
}
