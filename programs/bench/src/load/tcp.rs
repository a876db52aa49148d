//! TCP: bytes that an echo server sends back.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::Failure;
use super::wire::{Peer, Wire};

/// A connection.
pub(super) struct Connection {
    wire: Wire,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(peer: &Peer, payload: usize) -> Result<Self, Failure> {
        Ok(Self { wire: Wire::open(peer).await?, buffer: vec![0; payload] })
    }

    /// Sends bytes and reads as many.
    pub(super) async fn exchange(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let broken = |error: std::io::Error| {
            let early = error.kind() == std::io::ErrorKind::UnexpectedEof;
            if early { Failure::Closed } else { Failure::Broken(error.kind()) }
        };
        self.wire.write_all(bytes).await.map_err(broken)?;
        self.wire.flush().await.map_err(broken)?;
        self.wire.read_exact(&mut self.buffer).await.map_err(broken)?;
        if self.buffer != bytes {
            return Err(Failure::Malformed("other bytes came back".to_owned()));
        }
        Ok(())
    }
}
