//! How many signing requests are taken on at once, and how fast: a fleet that comes up together must not starve the turn.
//!
//! Requests are admitted one by one in the order in which they came, so a node with a thousand workloads waits among the
//! others and not before them. Either limit may be off.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A request that would wait longer than this is turned away, with the time after which to ask again.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Limits on signing certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsrLimits {
    /// Signatures begun in a second; `None` for no limit.
    pub per_second_max: Option<u32>,
    /// Signatures under way at once; `None` for no limit.
    pub concurrent_max: Option<u32>,
}

impl Default for CsrLimits {
    /// One at a time, as fast as it goes: some 13,000 a second, on one core.
    fn default() -> Self {
        Self { per_second_max: None, concurrent_max: Some(1) }
    }
}

/// There is more to sign than is taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more certificates are asked for than csr_max_per_second lets through; ask again in {} s", .retry_after.as_secs())]
pub struct Overloaded {
    /// When to ask again.
    pub retry_after: Duration,
}

/// The door in front of the CA.
pub(crate) struct Admission {
    places: Option<Arc<Semaphore>>,
    pace: Option<Pace>,
}

/// Spreads signatures over time. A request that is cancelled while it waits leaves its slot to the next one.
struct Pace {
    /// Between two signatures.
    step: Duration,
    /// When the next may begin.
    next: StdMutex<Instant>,
    /// Held by the request whose turn is next; fair.
    first: Mutex<()>,
    waiting: AtomicU32,
}

impl Pace {
    async fn enter(&self) -> Result<(), Overloaded> {
        let place = Waiting::among(&self.waiting);
        let until_next = self.next().saturating_duration_since(Instant::now());
        let retry_after = until_next.saturating_add(self.step.saturating_mul(place.before));
        if retry_after > WAIT_MAX {
            return Err(Overloaded { retry_after });
        }
        let _first = self.first.lock().await;
        let begin = self.next();
        tokio::time::sleep_until(begin).await;
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = begin.max(Instant::now()) + self.step;
        Ok(())
    }

    fn next(&self) -> Instant {
        // A panic while holding the lock leaves a plain time.
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the waiting requests, given up when dropped.
struct Waiting<'a> {
    all: &'a AtomicU32,
    before: u32,
}

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicU32) -> Self {
        Self { all, before: all.fetch_add(1, Ordering::AcqRel) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Admission {
    pub(crate) fn new(limits: CsrLimits) -> Self {
        let places = limits.concurrent_max.map(|max| Arc::new(Semaphore::new(max.max(1) as usize)));
        let pace = limits.per_second_max.map(|max| Pace {
            step: Duration::from_secs(1) / max.max(1),
            next: StdMutex::new(Instant::now()),
            first: Mutex::default(),
            waiting: AtomicU32::new(0),
        });
        Self { places, pace }
    }

    /// Waits until one certificate may be signed.
    pub(crate) async fn enter(&self) -> Result<Option<OwnedSemaphorePermit>, Overloaded> {
        if let Some(pace) = &self.pace {
            pace.enter().await?;
        }
        match &self.places {
            None => Ok(None),
            // Never closed while this stands.
            Some(places) => Ok(Arc::clone(places).acquire_owned().await.ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_spreads_and_then_turns_away() {
        let admission = Admission::new(CsrLimits { per_second_max: Some(10), concurrent_max: None });
        let began = Instant::now();
        for _ in 0..11 {
            admission.enter().await.expect("admitted");
        }
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        let waiting: Vec<_> = (0..500).map(|_| admission.enter()).collect();
        let answers = futures::future::join_all(waiting).await;
        let refused = answers.iter().filter(|answer| answer.is_err()).count();
        assert_eq!(refused, 500 - 200, "{WAIT_MAX:?} at 10 a second are waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_leaves_its_slot_to_the_next() {
        let admission = Admission::new(CsrLimits { per_second_max: Some(1), concurrent_max: None });
        let began = Instant::now();
        admission.enter().await.expect("admitted");
        for _ in 0..50 {
            let cancelled = tokio::time::timeout(Duration::ZERO, admission.enter()).await;
            assert!(cancelled.is_err(), "it waits, and is cancelled");
        }
        admission.enter().await.expect("admitted");
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test]
    async fn no_more_than_the_limit_are_under_way() {
        let admission = Admission::new(CsrLimits { per_second_max: None, concurrent_max: Some(1) });
        let first = admission.enter().await.expect("admitted");
        let second = tokio::time::timeout(Duration::ZERO, admission.enter()).await;
        assert!(second.is_err(), "the place is taken");
        drop(first);
        admission.enter().await.expect("admitted");
    }
}
