//! What an agent has yet to say, in order, until the connection takes it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::task::AtomicWaker;
use starling_attach::message::{AgentSays, Ping};

use crate::call::CallError;
use crate::client::SPEAK_AFTER;
use crate::pulse::Lull;

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
    /// The last ping that is not yet answered.
    ping: Option<Ping>,
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

    /// Answers a ping, before anything else is said.
    pub(super) fn answer(&self, ping: Ping) {
        self.lock().ping = Some(ping);
        self.sender.wake();
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

/// The frames of an outbox on their way, and a sign of life when there are none for a while: where flow control keeps
/// the server from asking for one, it must come unasked.
pub(super) struct Outgoing {
    outbox: Arc<Outbox>,
    lull: Lull,
    /// The last ping that was answered.
    answered: Ping,
}

impl Outgoing {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self { outbox, lull: Lull::new(SPEAK_AFTER), answered: Ping::default() }
    }
}

impl Stream for Outgoing {
    type Item = AgentSays;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentSays>> {
        let outgoing = &mut *self;
        outgoing.outbox.sender.register(cx.waker());
        let mut state = outgoing.outbox.lock();
        if let Some(ping) = state.ping.take() {
            outgoing.answered = ping;
            outgoing.lull.end();
            return Poll::Ready(Some(AgentSays::Pong(ping)));
        }
        if let Some(says) = state.frames.pop_front() {
            outgoing.lull.end();
            return Poll::Ready(Some(says));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        drop(state);
        outgoing.lull.poll(cx).map(|()| Some(AgentSays::Pong(outgoing.answered)))
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
        AgentSays::Applied(Applied { through, refusals_stand: false })
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
        let mut outgoing = Outgoing::new(Arc::clone(&outbox));
        for says in [applied(1), applied(2), rejected(), applied(3), applied(4)] {
            outbox.say(says).unwrap();
        }
        outbox.answer(Ping { number: 1 });
        outbox.answer(Ping { number: 2 });
        let expected = [AgentSays::Pong(Ping { number: 2 }), applied(2), rejected(), applied(4)];
        assert_eq!(said(&mut outgoing), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_nothing_to_say_says_so() {
        let mut outgoing = Outgoing::new(Arc::default());
        let before = tokio::time::Instant::now();
        for _ in 0..3 {
            assert_eq!(outgoing.next().await, Some(AgentSays::Pong(Ping { number: 0 })));
        }
        assert_eq!(before.elapsed().as_millis() / SPEAK_AFTER.as_millis(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_read_is_given_up() {
        let outbox = Arc::new(Outbox::default());
        let outgoing = Outgoing::new(Arc::clone(&outbox));
        for _ in 0..FRAMES_MAX {
            outbox.say(rejected()).unwrap();
        }
        assert!(outbox.say(rejected()).is_err());
        drop(outgoing);
        assert_eq!(outbox.say(applied(1)).unwrap_err(), CallError::unavailable("the stream to the server has ended"));
    }
}
