//! Which request is sent when: the one place that knows whether a loop is open or closed.
//!
//! In a closed loop whoever is free sends. In an open loop requests become due by the clock; each goes to whoever has been
//! free for longest, or waits, and its latency counts from when it was due.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Instant;

/// What the lanes of one thread take their requests from.
pub(super) struct Dispatch(RefCell<Loop>);

enum Loop {
    Closed { counted_from: Instant, end: Option<Instant>, left: Option<u64> },
    Open { due: VecDeque<Instant>, free: VecDeque<Waker>, over: bool },
}

impl Dispatch {
    /// A closed loop until a moment, or for so many requests from when they count, whichever is first.
    pub(super) fn closed(counted_from: Instant, end: Option<Instant>, left: Option<u64>) -> Self {
        Self(RefCell::new(Loop::Closed { counted_from, end, left }))
    }

    /// An open loop in which nothing is due yet.
    pub(super) fn open() -> Self {
        Self(RefCell::new(Loop::Open { due: VecDeque::new(), free: VecDeque::new(), over: false }))
    }

    /// A request is due.
    pub(super) fn arrive(&self, at: Instant) {
        if let Loop::Open { due, free, .. } = &mut *self.0.borrow_mut() {
            due.push_back(at);
            if let Some(waker) = free.pop_front() {
                waker.wake();
            }
        }
    }

    /// No more will be due.
    pub(super) fn close(&self) {
        match &mut *self.0.borrow_mut() {
            Loop::Closed { left, .. } => *left = Some(0),
            Loop::Open { free, over, .. } => {
                *over = true;
                free.drain(..).for_each(Waker::wake);
            }
        }
    }

    /// When the next request of the caller is due, which is now or was earlier; `None` when there are no more.
    pub(super) async fn next(&self) -> Option<Instant> {
        poll_fn(|context| match &mut *self.0.borrow_mut() {
            Loop::Closed { counted_from, end, left } => {
                let now = Instant::now();
                if end.is_some_and(|end| now >= end) || *left == Some(0) {
                    return Poll::Ready(None);
                }
                if now >= *counted_from {
                    *left = left.map(|left| left - 1);
                }
                Poll::Ready(Some(now))
            }
            Loop::Open { due, free, over } => match due.pop_front() {
                Some(at) => Poll::Ready(Some(at)),
                None if *over => Poll::Ready(None),
                None => {
                    free.push_back(context.waker().clone());
                    Poll::Pending
                }
            },
        })
        .await
    }

    /// Takes what was due and that nobody will send any more.
    pub(super) fn give_up(&self) -> VecDeque<Instant> {
        match &mut *self.0.borrow_mut() {
            Loop::Closed { .. } => VecDeque::new(),
            Loop::Open { due, .. } => std::mem::take(due),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_closed_loop_ends_with_its_count_or_its_time() {
        let dispatch = Dispatch::closed(Instant::now(), None, Some(2));
        let next = || dispatch.next().now_or_never().expect("it never waits");
        assert!(next().is_some() && next().is_some() && next().is_none());
        let over = Dispatch::closed(Instant::now(), Some(Instant::now()), None);
        assert_eq!(over.next().now_or_never(), Some(None));
    }

    #[test]
    fn what_warms_up_a_closed_loop_is_not_of_its_count() {
        let dispatch = Dispatch::closed(Instant::now() + Duration::from_secs(3600), None, Some(1));
        assert!((0..3).all(|_| dispatch.next().now_or_never().flatten().is_some()));
    }

    #[test]
    fn what_is_due_while_nobody_is_free_keeps_its_moment() {
        let dispatch = Dispatch::open();
        let first = Instant::now();
        let second = first + Duration::from_millis(1);
        dispatch.arrive(first);
        dispatch.arrive(second);
        assert_eq!(dispatch.next().now_or_never(), Some(Some(first)));
        assert_eq!(dispatch.next().now_or_never(), Some(Some(second)));
        assert_eq!(dispatch.next().now_or_never(), None, "it waits");
        dispatch.arrive(second);
        assert_eq!(dispatch.give_up(), [second]);
        dispatch.close();
        assert_eq!(dispatch.next().now_or_never(), Some(None));
    }
}
