//! HTTP/1.1: one request after the other on a connection, written and read by the task that waits for the answer.

use bytes::{Buf, BytesMut};
use starling_http1::{BodyReader, Limits, Piece, ResponseHead};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::Failure;
use super::wire::{Peer, Wire};

/// Room for an answer that is read at once.
const BUFFER_BYTES: usize = 16 * 1024;

/// A connection.
pub(super) struct Connection {
    wire: Wire,
    buffer: BytesMut,
}

impl Connection {
    pub(super) async fn open(peer: &Peer) -> Result<Self, Failure> {
        Ok(Self { wire: Wire::open(peer).await?, buffer: BytesMut::with_capacity(BUFFER_BYTES) })
    }

    /// Sends a request that is written out, and reads the whole answer; with its status, and whether another request may follow.
    pub(super) async fn exchange(&mut self, request: &[u8], method: &str) -> Result<(u16, bool), Failure> {
        let broken = |error: std::io::Error| Failure::Broken(error.kind());
        self.wire.write_all(request).await.map_err(broken)?;
        self.wire.flush().await.map_err(broken)?;
        let head = loop {
            let taken = ResponseHead::take(&mut self.buffer, method, &Limits::default());
            match taken.map_err(|error| Failure::Malformed(error.to_string()))? {
                Some(head) if head.is_interim() => {}
                Some(head) => break head,
                None => {
                    self.fill().await?;
                }
            }
        };
        let mut body = BodyReader::new(head.body);
        loop {
            match body.next(&self.buffer).map_err(|error| Failure::Malformed(error.to_string()))? {
                Piece::Data(length) | Piece::Framing(length) => self.buffer.advance(length),
                Piece::End => return Ok((head.status, head.keep_alive)),
                Piece::More => match self.fill().await {
                    Ok(()) => {}
                    Err(Failure::Closed) if body.close().is_ok() => return Ok((head.status, false)),
                    Err(failure) => return Err(failure),
                },
            }
        }
    }

    /// Gives back the room for answers.
    pub(super) fn shrink(&mut self) {
        self.buffer = BytesMut::new();
    }

    pub(super) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        self.buffer.reserve(BUFFER_BYTES / 2);
        match self.wire.read_buf(&mut self.buffer).await {
            Ok(0) => Err(Failure::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::Broken(error.kind())),
        }
    }
}
