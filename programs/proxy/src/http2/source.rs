//! The body of a request of HTTP/2 as every try of it has it: what was passed on so far, and what is still to come.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use super::kept::Kept;
use super::pump::{Moved, PumpError, send};

/// A body that comes from a client.
pub(super) struct Source {
    from: RecvStream,
    kept: Kept,
    over: bool,
    trailers: Option<HeaderMap>,
    /// Bytes that have come, and that the client was not yet told it may send more for.
    unreleased: usize,
}

impl Source {
    /// Of which nothing has come; `wanted` if it may have to be sent again.
    pub(super) fn new(from: RecvStream, wanted: bool) -> Self {
        let over = from.is_end_stream();
        Self { from, kept: Kept::new(wanted), over, trailers: None, unreleased: 0 }
    }

    /// Whether everything has come.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether there is no body.
    pub(super) fn is_empty(&self) -> bool {
        self.over && self.kept.chunks().is_empty() && self.trailers.is_none() && self.kept.is_whole()
    }

    /// Whether all that was passed on can be passed on again.
    pub(super) fn can_be_sent_again(&self) -> bool {
        self.kept.is_whole()
    }

    /// The same, for whoever asks while the body is passed on.
    pub(super) fn keeps(&self) -> Rc<Cell<bool>> {
        self.kept.whole()
    }

    /// The whole of it, if that has come and was kept.
    pub(super) fn whole(self) -> Option<(Vec<Bytes>, Option<HeaderMap>)> {
        (self.over && self.kept.is_whole()).then(|| (self.kept.into_chunks(), self.trailers))
    }

    /// Passes it on from its beginning, with its trailers.
    pub(super) async fn pass(&mut self, to: &mut SendStream<Bytes>, moved: &Moved) -> Result<(), PumpError> {
        let mut ended = false;
        let kept = self.kept.chunks();
        for (place, chunk) in kept.iter().enumerate() {
            ended = self.over && self.trailers.is_none() && place + 1 == kept.len();
            send(to, chunk.clone(), ended).await.map_err(PumpError::To)?;
        }
        self.release()?;
        while !self.over {
            let Some(chunk) = self.next(to).await? else { break };
            moved.add_up(chunk.len());
            if self.over {
                moved.request_over();
            }
            ended = self.over;
            send(to, chunk, ended).await.map_err(PumpError::To)?;
            self.release()?;
        }
        if !self.over {
            self.trailers = self.from.trailers().await.map_err(PumpError::From)?;
            self.over = true;
            moved.request_over();
        }
        if ended {
            return Ok(());
        }
        let ended = match &self.trailers {
            Some(trailers) => to.send_trailers(trailers.clone()),
            None => to.send_data(Bytes::new(), true),
        };
        ended.map_err(PumpError::To)
    }

    /// The next piece, unless whoever is to get it takes no more.
    async fn next(&mut self, to: &mut SendStream<Bytes>) -> Result<Option<Bytes>, PumpError> {
        let from = &mut self.from;
        let chunk = poll_fn(|cx| match from.poll_data(cx) {
            Poll::Ready(chunk) => Poll::Ready(chunk.transpose().map_err(PumpError::From)),
            // Nothing may come for long: whoever waits for it may leave meanwhile.
            Poll::Pending => {
                to.poll_reset(cx).map(|reset| Err(PumpError::To(reset.map_or_else(|error| error, Into::into))))
            }
        });
        let Some(chunk) = chunk.await? else { return Ok(None) };
        self.unreleased += chunk.len();
        self.over = self.from.is_end_stream();
        self.kept.keep(&chunk);
        Ok(Some(chunk))
    }

    /// Lets the client send as much more.
    fn release(&mut self) -> Result<(), PumpError> {
        let bytes = std::mem::take(&mut self.unreleased);
        if bytes == 0 {
            return Ok(());
        }
        self.from.flow_control().release_capacity(bytes).map_err(PumpError::From)
    }
}
