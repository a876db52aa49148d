//! Bodies from stream to stream, no faster than they are taken.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use tokio::time::sleep;

use crate::timeouts::{Expiry, Patience};

/// What a call has moved so far.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// Bytes of the request's body.
    pub(crate) up: Cell<u64>,
    /// Bytes of the response's body.
    pub(crate) down: Cell<u64>,
    /// When the request was over.
    pub(crate) over: Cell<Option<Instant>>,
    /// The client has been told the response's status.
    pub(crate) answered: Cell<bool>,
    /// The endpoint that was called last.
    pub(crate) host: Cell<Option<SocketAddr>>,
    /// That one has been asked, and how it does is not known yet.
    pub(crate) asked: Cell<bool>,
    /// Whether somebody wants to know the fields of the response.
    pub(crate) wants_response: bool,
    pub(crate) response: RefCell<Option<HeaderMap>>,
}

impl Moved {
    /// Nothing yet; notes the fields of the response if somebody wants to know them.
    pub(crate) fn noting(wants_response: bool) -> Self {
        Self { wants_response, ..Self::default() }
    }

    /// The fields of a response, for whoever wants to know them.
    pub(crate) fn note_response(&self, fields: &HeaderMap) {
        if self.wants_response {
            *self.response.borrow_mut() = Some(fields.clone());
        }
    }

    /// An endpoint is asked.
    pub(crate) fn asks(&self, host: Option<SocketAddr>) {
        self.host.set(host);
        self.asked.set(true);
    }

    pub(crate) fn add_up(&self, bytes: usize) {
        self.up.set(self.up.get() + bytes as u64);
    }

    pub(crate) fn add_down(&self, bytes: usize) {
        self.down.set(self.down.get() + bytes as u64);
    }

    /// The client has said everything.
    pub(crate) fn request_over(&self) {
        if self.over.get().is_none() {
            self.over.set(Some(Instant::now()));
        }
    }
}

/// Waits for a call until patience is at its end.
pub(crate) async fn patiently<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    whole: Option<Duration>,
    still: Duration,
    moved: &Moved,
) -> Result<T, Expiry> {
    let mut patience = Patience::new(whole, still, Instant::now());
    let mut timer = pin!(sleep(patience.first_look()));
    loop {
        tokio::select! {
            biased;
            done = &mut call => return Ok(done),
            () = &mut timer => {
                let count = moved.up.get() + moved.down.get();
                let again = patience.look(Instant::now(), count, moved.over.get())?;
                timer.as_mut().reset(again.into());
            }
        }
    }
}

/// Which end of a pump broke off.
#[derive(Debug)]
pub(crate) enum PumpError {
    /// The one that sends.
    From(h2::Error),
    /// The one that receives.
    To(h2::Error),
}

impl From<PumpError> for h2::Error {
    fn from(error: PumpError) -> Self {
        match error {
            PumpError::From(error) | PumpError::To(error) => error,
        }
    }
}

/// Passes a body on, with its trailers; tells `count` of each piece, and whether it was the last one.
pub(crate) async fn pass(
    mut from: RecvStream,
    to: &mut SendStream<Bytes>,
    mut count: impl FnMut(usize, bool),
) -> Result<(), PumpError> {
    loop {
        let chunk = poll_fn(|cx| match from.poll_data(cx) {
            Poll::Ready(chunk) => Poll::Ready(chunk.transpose().map_err(PumpError::From)),
            // Nothing may come for long: whoever waits for it may leave meanwhile.
            Poll::Pending => {
                to.poll_reset(cx).map(|reset| Err(PumpError::To(reset.map_or_else(|error| error, Into::into))))
            }
        });
        let Some(chunk) = chunk.await? else { break };
        let (length, over) = (chunk.len(), from.is_end_stream());
        count(length, over);
        send(to, chunk, over).await.map_err(PumpError::To)?;
        from.flow_control().release_capacity(length).map_err(PumpError::From)?;
        if over {
            return Ok(());
        }
    }
    let trailers = from.trailers().await.map_err(PumpError::From)?;
    count(0, true);
    let ended = match trailers {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    };
    ended.map_err(PumpError::To)
}

/// Sends as much at a time as the other end will take.
pub(crate) async fn send(to: &mut SendStream<Bytes>, mut chunk: Bytes, over: bool) -> Result<(), h2::Error> {
    if chunk.is_empty() {
        return if over { to.send_data(chunk, true) } else { Ok(()) };
    }
    poll_fn(|cx| poll_send(cx, to, &mut chunk, over)).await
}

/// Sends what is left of a chunk; ready when nothing is.
pub(crate) fn poll_send(
    cx: &mut Context<'_>,
    to: &mut SendStream<Bytes>,
    chunk: &mut Bytes,
    over: bool,
) -> Poll<Result<(), h2::Error>> {
    while !chunk.is_empty() {
        to.reserve_capacity(chunk.len());
        if to.capacity() == 0 {
            match ready!(to.poll_capacity(cx)) {
                Some(granted) => {
                    granted?;
                    continue;
                }
                None => return Poll::Ready(Err(Reason::CANCEL.into())),
            }
        }
        let part = chunk.split_to(to.capacity().min(chunk.len()));
        let last = over && chunk.is_empty();
        to.send_data(part, last)?;
    }
    Poll::Ready(Ok(()))
}
