//! Signs of life: when the other end of a connection was last heard, and when this end last spoke.
//!
//! Any bytes are a sign of life, whichever stream they belong to and however slowly they come: a peer that is slow is not
//! dead, nor is one that is kept waiting by its own flow control.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// When bytes last came over one connection; and the way to end it.
#[derive(Debug)]
pub(crate) struct Pulse {
    began: Instant,
    /// Milliseconds from `began` to the last bytes.
    heard_ms: AtomicU64,
    over: AtomicBool,
    reader: AtomicWaker,
}

impl Pulse {
    /// Of a connection that begins now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            over: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })
    }

    /// When bytes last came.
    pub(crate) fn heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// Returns when nothing has come for `limit`.
    pub(crate) async fn silent_for(&self, limit: Duration) {
        loop {
            let due = self.heard() + limit;
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }

    /// Ends the connection, whatever is still to be sent.
    pub(crate) fn hang_up(&self) {
        self.over.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn beat(&self) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(ms, Ordering::Relaxed);
    }
}

/// A connection whose pulse is taken.
#[derive(Debug)]
pub(crate) struct Pulsed<S> {
    stream: S,
    pulse: Arc<Pulse>,
}

impl<S> Pulsed<S> {
    pub(crate) fn new(stream: S, pulse: Arc<Pulse>) -> Self {
        Self { stream, pulse }
    }
}

impl Pulsed<TcpStream> {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pulsed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.pulse.reader.register(cx.waker());
        // Asked after registering: whoever hangs up in between wakes this task.
        if self.pulse.over.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pulse.beat();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pulsed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A timer that goes off when nothing was done for a while. Doing something costs a look at the clock, and no timer is
/// moved for it.
#[derive(Debug)]
pub(crate) struct Lull {
    after: Duration,
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Lull {
    /// Goes off `after` now, if nothing is done until then.
    pub(crate) fn new(after: Duration) -> Self {
        let since = Instant::now();
        Self { after, since, timer: Box::pin(tokio::time::sleep_until(since + after)) }
    }

    /// Something was done.
    pub(crate) fn end(&mut self) {
        self.since = Instant::now();
    }

    /// Ready each time that a lull has lasted long enough; another begins then.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let (due, now) = (self.since + self.after, Instant::now());
            let over = due <= now;
            if over {
                self.since = now;
            }
            self.timer.as_mut().reset(self.since + self.after);
            if over {
                // Polled again before it is waited for, so the timer that was just set is not lost.
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}
