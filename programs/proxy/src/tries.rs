//! The tries of one request.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use starling_model::RetryPolicy;
use starling_traffic::retry::{Ended, is_retriable, retries};

use crate::served::Forward;
use crate::upstream::{Retry, Upstream, Wish};

/// Kept connections that turn out to be closed, one after the other, until a new one is opened.
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

    /// Whether an answer is not passed on, but asked for again. Who is told so says [`Self::again`] before anything else
    /// happens: another answer is not to be had.
    pub(crate) fn refuses(&self, status: u16, grpc: Option<u32>) -> bool {
        let ended = Ended::Answered { status, grpc };
        self.policy.is_some_and(|policy| {
            let own = u32::from(self.retrying.is_some());
            self.left > 0 && is_retriable(policy, ended) && self.upstream.may_retry(policy.budget, own)
        })
    }

    /// A kept connection turned out to be closed; whether that may happen once more.
    pub(crate) fn stale(&mut self) -> bool {
        self.stale += 1;
        self.stale <= STALE_MAX
    }

    /// Whether there is another try after one that ended so, at this endpoint.
    pub(crate) fn again(&mut self, ended: Ended, host: Option<SocketAddr>) -> bool {
        if ended == Ended::Refused && (1..=STALE_MAX).contains(&self.stale) {
            self.again = true;
            return true;
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

    /// Waits for one try, for as long as one may take; `None` if its time was up.
    pub(crate) async fn within<T>(&self, attempt: impl Future<Output = T>) -> Option<T> {
        match self.each {
            Some(each) => tokio::time::timeout(each, attempt).await.ok(),
            None => Some(attempt.await),
        }
    }
}
