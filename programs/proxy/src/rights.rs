//! Rights that end: what is under way at a listener is judged again when intentions or trust change.
//!
//! Cost model: a request that is under way when it is first waited for takes a slot, and gives it back. A change wakes
//! everything under way at the listener once.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// What changed since something was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Who may call.
    Intentions,
    /// Which roots are trusted, and perhaps who may call.
    Trust,
}

/// The rights at one listener, and who waits for their change.
#[derive(Default)]
pub(crate) struct Rights {
    changes: Cell<u64>,
    /// The last change of trust, by number.
    trust: Cell<u64>,
    waiting: RefCell<Waiting>,
}

#[derive(Default)]
struct Waiting {
    slots: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl Rights {
    /// Has everything under way judged again.
    pub(crate) fn change(&self, what: Changed) {
        self.changes.set(self.changes.get() + 1);
        if what == Changed::Trust {
            self.trust.set(self.changes.get());
        }
        self.waiting.borrow().slots.iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// Completes `grace` after a change upon which `judge` says no.
    pub(crate) fn until_denied<J: FnMut(Changed) -> bool>(&self, grace: Duration, judge: J) -> UntilDenied<'_, J> {
        UntilDenied { rights: self, seen: self.changes.get(), slot: None, judge, grace, ending: None }
    }
}

/// What is under way by a right.
pub(crate) struct UntilDenied<'a, J> {
    rights: &'a Rights,
    seen: u64,
    slot: Option<usize>,
    judge: J,
    grace: Duration,
    ending: Option<Pin<Box<Sleep>>>,
}

impl<J: FnMut(Changed) -> bool + Unpin> Future for UntilDenied<'_, J> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let now = this.rights.changes.get();
        if this.ending.is_none() && this.seen != now {
            let is_trust = this.rights.trust.get() > this.seen;
            this.seen = now;
            if !(this.judge)(if is_trust { Changed::Trust } else { Changed::Intentions }) {
                this.ending = Some(Box::pin(sleep(this.grace)));
            }
        }
        if let Some(ending) = &mut this.ending {
            ready!(ending.as_mut().poll(cx));
            return Poll::Ready(());
        }
        let mut waiting = this.rights.waiting.borrow_mut();
        let slot = *this.slot.get_or_insert_with(|| waiting.take());
        match &mut waiting.slots[slot] {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            other => *other = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Waiting {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }
}

impl<J> Drop for UntilDenied<'_, J> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let mut waiting = self.rights.waiting.borrow_mut();
            waiting.slots[slot] = None;
            waiting.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_ends_a_grace_after_it_is_denied() {
        let (rights, allowed) = (Rights::default(), Rc::new(Cell::new(true)));
        let seen = RefCell::new(Vec::new());
        let judge = |changed| {
            seen.borrow_mut().push(changed);
            allowed.get()
        };
        let mut right = std::pin::pin!(rights.until_denied(Duration::from_secs(2), judge));
        assert!(futures::poll!(right.as_mut()).is_pending());
        assert!(seen.borrow().is_empty(), "nothing has changed");
        rights.change(Changed::Intentions);
        assert!(futures::poll!(right.as_mut()).is_pending());
        allowed.set(false);
        rights.change(Changed::Trust);
        rights.change(Changed::Intentions);
        let began = tokio::time::Instant::now();
        right.await;
        assert_eq!(began.elapsed().as_secs(), 2);
        assert_eq!(*seen.borrow(), [Changed::Intentions, Changed::Trust]);
        assert_eq!(rights.waiting.borrow().free.len(), 0, "it is not dropped yet");
    }

    #[tokio::test]
    async fn slots_are_given_back() {
        let rights = Rights::default();
        for _ in 0..3 {
            let mut right = std::pin::pin!(rights.until_denied(Duration::ZERO, |_| true));
            assert!(futures::poll!(right.as_mut()).is_pending());
        }
        assert_eq!(rights.waiting.borrow().slots.len(), 1, "each takes the slot of the one before");
    }
}
