//! How many signing requests are taken on at once, and how fast: a fleet that comes up together must not starve the turn.
//!
//! Requests are admitted one by one in the order in which they came, so a node with a thousand workloads waits among the
//! others and not before them. Either limit may be off.

use std::sync::Arc;
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
    /// Between two signatures, and when the next may begin.
    pace: Option<(Duration, Mutex<Instant>)>,
}

impl Admission {
    pub(crate) fn new(limits: CsrLimits) -> Self {
        let places = limits.concurrent_max.map(|max| Arc::new(Semaphore::new(max.max(1) as usize)));
        let pace = limits.per_second_max.map(|max| (Duration::from_secs(1) / max.max(1), Mutex::new(Instant::now())));
        Self { places, pace }
    }

    /// Waits until one certificate may be signed.
    pub(crate) async fn enter(&self) -> Result<Option<OwnedSemaphorePermit>, Overloaded> {
        if let Some((step, next)) = &self.pace {
            let mut next = next.lock().await;
            let now = Instant::now();
            let begin = (*next).max(now);
            if begin - now > WAIT_MAX {
                return Err(Overloaded { retry_after: begin - now });
            }
            *next = begin + *step;
            drop(next);
            tokio::time::sleep_until(begin).await;
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
