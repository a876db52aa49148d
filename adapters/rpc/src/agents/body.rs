//! The bytes of a server's side of a stream, taken from its pending set when the connection has room, and not before.
//!
//! What is under way is bounded: a piece in hand, and what HTTP/2, TLS and the socket hold, each a few pieces. Everything
//! else is only named, and coalesces.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::Status;

use super::attach::{Attached, Reader};

/// Bytes handed on at once: many small frames together, a part of a large one.
pub const PIECE_BYTES: usize = 16 * 1024;

/// Bytes before each message: not compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The body of the answer to `Attach`.
pub(crate) struct AttachBody {
    stream: Arc<Attached>,
    pieces: Pieces,
    over: bool,
    _reader: Reader,
}

impl AttachBody {
    pub(crate) fn new(stream: Arc<Attached>, reader: Reader) -> Self {
        Self { stream, pieces: Pieces::default(), over: false, _reader: reader }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        self.stream.poll_ended(cx)?;
        loop {
            if let Some(piece) = self.pieces.next() {
                return Poll::Ready(Ok(piece));
            }
            self.pieces.frames = ready!(self.stream.poll_take(cx))?.into();
        }
    }
}

impl Body for AttachBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.poll_piece(cx).map(|piece| match piece {
            Ok(piece) => Some(Ok(Frame::data(piece))),
            Err(status) => {
                self.over = true;
                let mut trailers = HeaderMap::new();
                Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }
}

/// Frames on their way into pieces.
#[derive(Default)]
struct Pieces {
    frames: VecDeque<Bytes>,
    /// Of a large frame.
    rest: Bytes,
}

impl Pieces {
    /// What is sent next: small frames are copied together, large ones cut without a copy.
    fn next(&mut self) -> Option<Bytes> {
        if !self.rest.is_empty() {
            return Some(self.rest.split_to(self.rest.len().min(PIECE_BYTES)));
        }
        let (mut together, mut bytes) = (0, 0);
        for frame in &self.frames {
            let more = PREFIX_BYTES + frame.len();
            if bytes + more > PIECE_BYTES {
                break;
            }
            (together, bytes) = (together + 1, bytes + more);
        }
        let mut piece = BytesMut::with_capacity(bytes.max(PREFIX_BYTES));
        for frame in self.frames.drain(..together) {
            put_prefix(&mut piece, &frame);
            piece.extend_from_slice(&frame);
        }
        if piece.is_empty() {
            self.rest = self.frames.pop_front()?;
            put_prefix(&mut piece, &self.rest);
        }
        Some(piece.freeze())
    }
}

fn put_prefix(piece: &mut BytesMut, frame: &Bytes) {
    let length = u32::try_from(frame.len()).expect("invariant: frames are far smaller than 4 GB");
    piece.put_u8(0);
    piece.put_u32(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(sizes: &[usize]) -> Vec<Bytes> {
        let frames = sizes.iter().map(|size| Bytes::from(vec![7; *size])).collect();
        let mut pieces = Pieces { frames, rest: Bytes::new() };
        std::iter::from_fn(|| pieces.next()).collect()
    }

    #[test]
    fn small_frames_go_together_and_large_ones_in_parts() {
        for (sizes, expected) in [
            (vec![], vec![]),
            (vec![0], vec![5]),
            (vec![100, 200], vec![310]),
            (vec![10_000, 6_000, 500], vec![16_010, 505]),
            (vec![PIECE_BYTES - 5], vec![PIECE_BYTES]),
            (vec![PIECE_BYTES], vec![5, PIECE_BYTES]),
            (vec![1, 2 * PIECE_BYTES + 1, 1], vec![6, 5, PIECE_BYTES, PIECE_BYTES, 1, 6]),
        ] {
            let made = pieces(&sizes);
            assert_eq!(made.iter().map(Bytes::len).collect::<Vec<_>>(), expected, "{sizes:?}");
            // Taken together they are what gRPC says they are.
            let mut all = made.concat();
            for size in sizes {
                let rest = all.split_off(5 + size);
                assert_eq!((all[0], &all[1..5]), (0, &u32::try_from(size).unwrap().to_be_bytes()[..]));
                all = rest;
            }
            assert!(all.is_empty());
        }
    }
}
