//! How much may pass: requests by time, and retries by what else is under way.

use starling_model::{RateLimit, RetryBudget};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Envoy's: so many retries at once where nothing is said.
const RETRIES_MAX: u32 = 64;

/// A bucket that fills evenly, as one number: the time at which it would be full (the generic cell rate algorithm, ITU-T
/// I.371). One word, so that workers may share it without a lock.
///
/// Answers with the new number if a request at `now` may pass, nanoseconds of any clock that does not go back.
#[must_use]
pub fn admit(limit: RateLimit, full_at: u64, now: u64) -> Option<u64> {
    let each = NANOS_PER_SECOND / u64::from(limit.per_second.max(1));
    let depth = each.saturating_mul(u64::from(limit.burst.max(1)));
    let next = full_at.max(now).saturating_add(each);
    (next.saturating_sub(now) <= depth).then_some(next)
}

/// Whether another retry may begin where so many requests, of which so many are retries, are under way.
#[must_use]
pub fn may_retry(budget: Option<RetryBudget>, active: u32, retries: u32) -> bool {
    let Some(budget) = budget else { return retries < RETRIES_MAX };
    let share = u64::from(active) * budget.percent.as_u64() / 10_000;
    u64::from(retries) < share.max(u64::from(budget.min_concurrency))
}
