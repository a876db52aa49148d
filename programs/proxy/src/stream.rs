//! A connection with what was read from it and not yet used, and what is to be written to it.
//!
//! Cost model: an idle connection holds no buffers. What is read goes through one scratch buffer of the worker, so that
//! buffers are as large as what is in them.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::quota::Opened;

/// Bytes read at a time: four full TLS records.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// Capacity that an idle connection may keep for what it writes next.
const KEPT_BYTES: usize = 2 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Plain or TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// A connection and its buffers.
pub(crate) struct Conn {
    pub(crate) stream: Stream,
    /// Read and not yet used.
    pub(crate) read: BytesMut,
    /// To be written.
    pub(crate) write: BytesMut,
    /// The stream itself still holds something to be sent.
    unflushed: bool,
    /// Counts it, where connections are limited.
    _opened: Option<Box<Opened>>,
}

impl Conn {
    /// One that counts.
    pub(crate) fn counted(stream: Stream, opened: Opened) -> Self {
        Self { _opened: Some(Box::new(opened)), ..Self::new(stream) }
    }

    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, read: BytesMut::new(), write: BytesMut::new(), unflushed: false, _opened: None }
    }

    /// The certificates that a server has shown.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        match &self.stream {
            Stream::Tls(tls) if matches!(**tls, TlsStream::Client(_)) => {
                tls.get_ref().1.peer_certificates().unwrap_or_default().to_vec()
            }
            Stream::Tls(_) | Stream::Plain(_) => Vec::new(),
        }
    }

    /// Reads more; 0 at the end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(&mut scratch[..]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            self.read.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// Reads more and writes it to `to` at once, as far as that takes it; 0 at the end. Nothing may wait to be used here, or
    /// to be written there. What is taken at once is copied nowhere.
    pub(crate) fn poll_relay(&mut self, cx: &mut Context<'_>, to: &mut Self) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(&mut scratch[..]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let (read, mut rest) = (buffer.filled().len(), buffer.filled());
            while !rest.is_empty() {
                match Pin::new(&mut to.stream).poll_write(cx, rest)? {
                    Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(written) => {
                        rest = &rest[written..];
                        to.unflushed = true;
                    }
                    Poll::Pending => {
                        to.write.extend_from_slice(rest);
                        break;
                    }
                }
            }
            Poll::Ready(Ok(read))
        })
    }

    /// Writes everything that is to be written.
    pub(crate) fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.write.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.write))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.write.advance(written);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether everything has left.
    pub(crate) fn is_written_out(&self) -> bool {
        self.write.is_empty() && !self.unflushed
    }

    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx)).await
    }

    pub(crate) async fn write_out(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_out(cx)).await
    }

    /// Gives back what an idle connection does not need.
    pub(crate) fn rest(&mut self) {
        if self.read.is_empty() {
            self.read = BytesMut::new();
        }
        if self.write.is_empty() && self.write.capacity() > KEPT_BYTES {
            self.write = BytesMut::new();
        }
    }

    /// Whether an idle connection has been closed, or has something to say unasked: either way it is of no more use.
    pub(crate) fn is_stale(&mut self, cx: &mut Context<'_>) -> bool {
        !self.read.is_empty() || self.poll_fill(cx).is_ready()
    }

    /// Says that nothing more will be written.
    pub(crate) fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    pub(crate) async fn shut(&mut self) {
        // Whoever does not take the end of the connection has lost it already.
        let _ = std::future::poll_fn(|cx| self.poll_shut(cx)).await;
    }
}

/// What was read already comes first.
impl AsyncRead for Conn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let count = this.read.len().min(buf.remaining());
        buf.put_slice(&this.read[..count]);
        this.read.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
