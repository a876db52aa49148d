//! What a workload has let through, as one number that its workers share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use starling_model::RateLimit;
use starling_traffic::limit::admit;

/// A bucket of requests.
#[derive(Debug)]
pub(crate) struct Bucket {
    began: Instant,
    /// When it will be full, nanoseconds since it began.
    full_at: AtomicU64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { began: Instant::now(), full_at: AtomicU64::new(0) }
    }
}

impl Bucket {
    /// Takes one out, if there is one.
    pub(crate) fn admits(&self, limit: RateLimit) -> bool {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let admitted = |full_at| admit(limit, full_at, now);
        self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admitted).is_ok()
    }
}
