//! A connection that has carried one request, and is then left alone.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context as TaskContext, Waker};

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, ReadBuf};

use super::http1::Connection;
use super::wire::Peer;

/// An open connection.
pub(crate) struct IdleConnection(Connection);

impl IdleConnection {
    /// Opens one, and has one request answered on it.
    ///
    /// # Errors
    /// When that fails.
    pub(crate) async fn open(peer: &Peer) -> anyhow::Result<Self> {
        let mut connection = Connection::open(peer).await?;
        let request = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", peer.address);
        let (status, kept) = connection.exchange(request.as_bytes(), "GET").await.context("an idle connection")?;
        if status != 200 || !kept {
            bail!("an idle connection was answered {status}, and is {}", if kept { "kept" } else { "not kept" });
        }
        connection.shrink();
        Ok(Self(connection))
    }

    /// Fails if the peer has closed it meanwhile.
    ///
    /// # Errors
    /// If so.
    pub(crate) fn check_open(&mut self) -> anyhow::Result<()> {
        let mut room = [0; 1];
        let mut room = ReadBuf::new(&mut room);
        let mut nobody = TaskContext::from_waker(Waker::noop());
        match Pin::new(self.0.wire()).poll_read(&mut nobody, &mut room) {
            std::task::Poll::Pending => Ok(()),
            std::task::Poll::Ready(read) => {
                let kind = read.err().map_or(ErrorKind::UnexpectedEof, |error| error.kind());
                bail!("an idle connection was closed by the proxy: {kind}")
            }
        }
    }
}
