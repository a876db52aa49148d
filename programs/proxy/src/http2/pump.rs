//! Bodies from stream to stream, no faster than they are taken.

use std::future::poll_fn;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};

/// What a call has moved so far.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// Bytes of the request's body.
    pub(crate) up: u64,
    /// Bytes of the response's body.
    pub(crate) down: u64,
    /// The client has been told the response's status.
    pub(crate) answered: bool,
}

/// Passes a body on, with its trailers.
pub(crate) async fn pass(mut from: RecvStream, mut to: SendStream<Bytes>, moved: &mut u64) -> Result<(), h2::Error> {
    while let Some(chunk) = from.data().await {
        let chunk = chunk?;
        let length = chunk.len();
        *moved += length as u64;
        let over = from.is_end_stream();
        send(&mut to, chunk, over).await?;
        from.flow_control().release_capacity(length)?;
        if over {
            return Ok(());
        }
    }
    match from.trailers().await? {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    }
}

/// Sends as much at a time as the other end will take.
pub(crate) async fn send(to: &mut SendStream<Bytes>, mut chunk: Bytes, over: bool) -> Result<(), h2::Error> {
    if chunk.is_empty() {
        return if over { to.send_data(chunk, true) } else { Ok(()) };
    }
    while !chunk.is_empty() {
        to.reserve_capacity(chunk.len());
        if to.capacity() == 0 {
            match poll_fn(|cx| to.poll_capacity(cx)).await {
                Some(granted) => {
                    granted?;
                }
                None => return Err(Reason::CANCEL.into()),
            }
        }
        let part = chunk.split_to(to.capacity().min(chunk.len()));
        let last = over && chunk.is_empty();
        to.send_data(part, last)?;
    }
    Ok(())
}
