//! The tries of one request.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use starling_model::RetryPolicy;
use starling_traffic::retry::{Ended, is_retriable, retries};

use crate::http2::pump::Moved;
use crate::served::Forward;
use crate::upstream::{Retry, Upstream, Wish};

/// Tries of one request that were refused unseen, or met a kept connection that was closed, and are made up for whatever the
/// plan says.
const STALE_MAX: u32 = 2;

/// What is left of them.
pub(crate) struct Tries<'a> {
    policy: Option<&'a RetryPolicy>,
    left: u32,
    each: Option<Duration>,
    upstream: Rc<Upstream>,
    stale: u32,
    wish: Wish,
    /// Counted as a retry under way while this is held.
    retrying: Option<Retry>,
    again: bool,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(forward: &Forward<'a>) -> Self {
        let policy = forward.retry();
        let left = policy.map_or(0, retries);
        let each = forward.route.and_then(|route| route.forward.per_try_timeout);
        let (upstream, wish) = (Rc::clone(&forward.upstream), Wish { hash: forward.hash, not: None });
        Self { policy, left, each, upstream, stale: 0, wish, retrying: None, again: false }
    }

    /// Whether the request's body has to be kept for another try.
    pub(crate) fn keeps_body(&self) -> bool {
        self.left > 0
    }

    /// Whether this is not the first one.
    pub(crate) fn is_again(&self) -> bool {
        self.again
    }

    /// Whether a new connection is to be opened: kept ones were closed.
    pub(crate) fn wants_fresh(&self) -> bool {
        self.stale > 0
    }

    /// Where the next one should go.
    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// Whether an answer is not passed on, but asked for again. Who is told so ends its try with it:
    /// another answer is not to be had.
    pub(crate) fn refuses(&self, status: u16, grpc: Option<u32>) -> bool {
        let ended = Ended::Answered { status, grpc };
        self.policy.is_some_and(|policy| {
            let own = u32::from(self.retrying.is_some());
            self.left > 0 && is_retriable(policy, ended) && self.upstream.may_retry(policy.budget, own)
        })
    }

    /// Makes one try after the other, until one of them is the last. `attempt` says what came of it, and how it ended if
    /// nothing of it keeps it from being made again: what it has taken of the request is kept, and the client was told nothing.
    pub(crate) async fn run<T>(
        &mut self,
        moved: &Moved,
        mut attempt: impl AsyncFnMut(&Self) -> (T, Option<Ended>),
    ) -> T {
        loop {
            moved.asked.set(false);
            let (done, ended) = attempt(self).await;
            if !ended.is_some_and(|ended| self.again(ended, moved.host.get())) {
                return done;
            }
            drop(done);
            tokio::task::yield_now().await;
        }
    }

    /// Whether there is another try after one that ended so, at this endpoint.
    fn again(&mut self, ended: Ended, host: Option<SocketAddr>) -> bool {
        if ended == Ended::Refused {
            // Nothing has come of it: it may be made again, whatever the plan says.
            self.stale += 1;
            if self.stale <= STALE_MAX {
                self.again = true;
                return true;
            }
        }
        // An answer was looked at before it was held back.
        let refused = matches!(ended, Ended::Answered { .. });
        let Some(policy) = self.policy.filter(|policy| self.left > 0 && (refused || is_retriable(policy, ended)))
        else {
            return false;
        };
        self.retrying = None;
        if !refused && !self.upstream.may_retry(policy.budget, 0) {
            return false;
        }
        self.retrying = Some(self.upstream.retry());
        self.left -= 1;
        self.wish.not = host;
        self.again = true;
        true
    }

    /// Waits for one try, for as long as one may take to bring an answer; `None` if its time was up. It counts from the end of
    /// the request, as the time for the whole does: whoever takes long to say what is wanted is no fault of who is asked. What
    /// has begun to answer the client is not cut off: it is not made again anyway.
    pub(crate) async fn within<T>(&self, moved: &Moved, mut attempt: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let Some(each) = self.each else { return Some(attempt.await) };
        let began = Instant::now();
        let mut until = began + each;
        loop {
            if let Ok(done) = tokio::time::timeout_at(until.into(), attempt.as_mut()).await {
                return Some(done);
            }
            if moved.answered.get() {
                return Some(attempt.await);
            }
            let now = Instant::now();
            until = moved.over.get().map_or(now, |over| over.max(began)) + each;
            if until <= now {
                return None;
            }
        }
    }
}

/// What a call of gRPC ended with, if that is all that the answer says.
pub(crate) fn grpc_status(value: Option<&[u8]>) -> Option<u32> {
    std::str::from_utf8(value?).ok()?.parse().ok()
}
