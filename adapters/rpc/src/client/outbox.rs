//! What an agent has yet to say, in order, until the connection takes it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::task::AtomicWaker;
use starling_attach::message::{AgentSays, Here};

use crate::call::CallError;
use crate::client::SPEAK_AFTER;
use crate::pulse::{Lull, Pulse};

/// Frames that wait for the connection; past this the server does not read, and the stream is of no use.
const FRAMES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// Of the task that sends.
    sender: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<AgentSays>,
    closed: bool,
}

impl Outbox {
    /// Adds a frame. Of several `Applied` in a row only the last is said.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if the stream has ended, or over [`FRAMES_MAX`].
    pub(super) fn say(&self, says: AgentSays) -> Result<(), CallError> {
        let mut state = self.lock();
        if state.closed {
            return Err(CallError::unavailable("the stream to the server has ended"));
        }
        if let (Some(AgentSays::Applied(waiting)), AgentSays::Applied(newer)) = (state.frames.back_mut(), &says) {
            *waiting = *newer;
            return Ok(());
        }
        if state.frames.len() >= FRAMES_MAX {
            return Err(CallError::unavailable("the server does not read what the agent says"));
        }
        state.frames.push_back(says);
        drop(state);
        self.sender.wake();
        Ok(())
    }

    /// How many frames wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().frames.len()
    }

    /// Nothing more will be said.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.sender.wake();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The frames of an outbox on their way, and a sign of life when nothing is said on the whole connection for a while: an
/// agent that is busy with what it has heard already pings no server, and is there all the same.
pub(super) struct Outgoing {
    outbox: Arc<Outbox>,
    pulse: Arc<Pulse>,
    lull: Lull,
}

impl Outgoing {
    pub(super) fn new(outbox: Arc<Outbox>, pulse: Arc<Pulse>) -> Self {
        Self { outbox, pulse, lull: Lull::new(SPEAK_AFTER) }
    }
}

impl Stream for Outgoing {
    type Item = AgentSays;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentSays>> {
        let Self { outbox, pulse, lull } = &mut *self;
        outbox.sender.register(cx.waker());
        let mut state = outbox.lock();
        if let Some(says) = state.frames.pop_front() {
            return Poll::Ready(Some(says));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        drop(state);
        lull.poll(cx, || pulse.spoke()).map(|()| Some(AgentSays::Here(Here {})))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};
    use starling_attach::message::{Applied, Rejected};

    use super::*;

    fn applied(through: u64) -> AgentSays {
        AgentSays::Applied(Applied { through, ..Applied::default() })
    }

    fn rejected() -> AgentSays {
        AgentSays::Rejected(Rejected::default())
    }

    fn said(outgoing: &mut Outgoing) -> Vec<AgentSays> {
        std::iter::from_fn(|| outgoing.next().now_or_never().flatten()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn of_receipts_in_a_row_the_last_is_said_and_order_is_kept() {
        let outbox = Arc::new(Outbox::default());
        let mut outgoing = Outgoing::new(Arc::clone(&outbox), Pulse::new());
        for says in [applied(1), applied(2), rejected(), applied(3), applied(4)] {
            outbox.say(says).unwrap();
        }
        assert_eq!(said(&mut outgoing), [applied(2), rejected(), applied(4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_nothing_to_say_says_so() {
        let mut outgoing = Outgoing::new(Arc::default(), Pulse::new());
        let before = tokio::time::Instant::now();
        for _ in 0..3 {
            assert_eq!(outgoing.next().await, Some(AgentSays::Here(Here {})));
        }
        assert_eq!(before.elapsed().as_millis() / SPEAK_AFTER.as_millis(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_read_is_given_up() {
        let outbox = Arc::new(Outbox::default());
        let outgoing = Outgoing::new(Arc::clone(&outbox), Pulse::new());
        for _ in 0..FRAMES_MAX {
            outbox.say(rejected()).unwrap();
        }
        assert!(outbox.say(rejected()).is_err());
        drop(outgoing);
        assert_eq!(outbox.say(applied(1)).unwrap_err(), CallError::unavailable("the stream to the server has ended"));
    }
}
