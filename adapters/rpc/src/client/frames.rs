//! What a server says on a stream, and whether it is still there.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures::Stream;
use prost::Message;
use starling_attach::message::{AgentSays, ServerSays};
use starling_attach::{FromAgent, FromServer};
use tokio::time::Instant;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};

use super::Line;
use crate::agents::PIECE_BYTES;
use crate::call::CallError;
use crate::pulse::Vigil;

/// Bytes set aside for frames in either direction; they grow as needed, and shrink again.
const BUFFER_BYTES: usize = 256;

/// What a server says, with the bytes in which it came.
pub type Framed = (Bytes, ServerSays);

/// What a server says. Ends after the first error.
pub struct ServerFrames<T = ServerSays> {
    frames: Streaming<T>,
    line: Arc<Line>,
    /// Since when nothing was there to be taken.
    waiting: Option<Instant>,
    vigil: Vigil,
    over: bool,
}

impl<T> fmt::Debug for ServerFrames<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerFrames").field("over", &self.over).finish_non_exhaustive()
    }
}

impl<T> ServerFrames<T> {
    pub(super) fn new(frames: Streaming<T>, line: Arc<Line>) -> Self {
        Self { frames, line, waiting: None, vigil: Vigil::new(), over: false }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, CallError>> {
        let frame = Pin::new(&mut self.frames).poll_next(cx);
        if frame.is_ready() {
            self.waiting = None;
        }
        match frame {
            Poll::Ready(Some(Ok(says))) => Poll::Ready(Ok(says)),
            Poll::Ready(Some(Err(status))) => Poll::Ready(Err(status.into())),
            Poll::Ready(None) => Poll::Ready(Err(CallError::unavailable("the server ended the stream"))),
            Poll::Pending => self.poll_silence(cx).map(Err),
        }
    }

    /// Ready once the server has been waited for too long. Who is slow to take frames has not been waiting.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        let waiting = *self.waiting.get_or_insert_with(Instant::now);
        let heard = self.line.pulse.heard().max(waiting);
        let silence = self.vigil.poll(cx, &self.line.pulse, heard);
        silence.map(|()| {
            // Calls on the same connection wait in vain, too.
            self.line.pulse.hang_up();
            CallError::unavailable("nothing was heard from the server")
        })
    }
}

impl<T> Stream for ServerFrames<T> {
    type Item = Result<T, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let frame = self.poll_frame(cx);
        self.over = matches!(frame, Poll::Ready(Err(_)));
        frame.map(Some)
    }
}

/// The forms of both directions.
pub(super) struct AgentCodec;

impl Codec for AgentCodec {
    type Encode = AgentSays;
    type Decode = ServerSays;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for AgentCodec {
    type Item = AgentSays;
    type Error = Status;

    fn encode(&mut self, says: AgentSays, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        FromAgent::from(says).encode(dst).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, PIECE_BYTES)
    }
}

impl Decoder for AgentCodec {
    type Item = ServerSays;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<ServerSays>, Status> {
        let frame = src.copy_to_bytes(src.remaining());
        let says = FromServer::from_bytes(frame).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some(says))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, PIECE_BYTES)
    }
}

/// The same for a relay, which passes on the bytes that came.
pub(super) struct RelayCodec;

impl Codec for RelayCodec {
    type Encode = AgentSays;
    type Decode = Framed;
    type Encoder = AgentCodec;
    type Decoder = Self;

    fn encoder(&mut self) -> AgentCodec {
        AgentCodec
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for RelayCodec {
    type Item = Framed;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Framed>, Status> {
        let frame = src.copy_to_bytes(src.remaining());
        let says = FromServer::from_bytes(frame.clone()).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some((frame, says)))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, PIECE_BYTES)
    }
}
