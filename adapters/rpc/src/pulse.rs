//! Signs of life: when the other end of a connection was last heard, and when this end last spoke.
//!
//! Any bytes are a sign of life, whichever stream they belong to and however slowly they come: a peer that is slow is not
//! dead, nor is one that is kept waiting by its own flow control. Where nothing else is said, the client pings by HTTP/2,
//! which flow control does not hold up and which costs the server's connection one look, and none of its streams any.

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

/// When bytes last came and went over one connection; and the way to end it.
#[derive(Debug)]
pub(crate) struct Pulse {
    began: Instant,
    /// Milliseconds from `began` to the last bytes, either way.
    heard_ms: AtomicU64,
    spoke_ms: AtomicU64,
    over: AtomicBool,
    reader: AtomicWaker,
}

impl Pulse {
    /// Of a connection that begins now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            spoke_ms: AtomicU64::new(0),
            over: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })
    }

    /// When bytes last came.
    pub(crate) fn heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// When bytes last went.
    pub(crate) fn spoke(&self) -> Instant {
        self.began + Duration::from_millis(self.spoke_ms.load(Ordering::Relaxed))
    }

    /// Ends the connection once nothing was heard for [`SILENCE_MAX`]. Nobody reads a reason there, and what is under way to
    /// it would stay for long.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut vigil = Vigil::new();
        std::future::poll_fn(|cx| vigil.poll(cx, || self.heard())).await;
        self.hang_up();
    }

    /// Ends the connection, whatever is still to be sent.
    pub(crate) fn hang_up(&self) {
        self.over.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn set_now(&self, what: &AtomicU64) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        what.store(ms, Ordering::Relaxed);
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

    fn spoke(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.pulse.set_now(&self.pulse.spoke_ms);
        }
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
            self.pulse.set_now(&self.pulse.heard_ms);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pulsed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.spoke(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.spoke(&written);
        written
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

/// Who is silent for so long is gone: dead, cut off, or stopped.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The last part of a silence: time for this process to read what may have come already.
const DOUBT: Duration = Duration::from_millis(250);

/// A timer that goes off when nothing was heard for [`SILENCE_MAX`].
///
/// A process that is late itself, with more to do than it has time for, hears late: it waits for as much longer, so that
/// no fleet is given up because of a server that is busy.
#[derive(Debug)]
pub(crate) struct Vigil {
    timer: Pin<Box<Sleep>>,
    doubting: bool,
}

impl Vigil {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep(SILENCE_MAX - DOUBT)), doubting: false }
    }

    /// Ready once nothing was heard for too long, with `heard` the time when something last was.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, heard: impl Fn() -> Instant) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let (now, due) = (Instant::now(), heard() + SILENCE_MAX - DOUBT);
            if due > now {
                self.doubting = false;
                self.timer.as_mut().reset(due);
            } else if self.doubting {
                return Poll::Ready(());
            } else {
                let late = now - self.timer.deadline();
                self.doubting = true;
                self.timer.as_mut().reset(now + DOUBT + late);
            }
        }
        Poll::Pending
    }
}

/// A timer that goes off when nothing was said for a while. Saying something moves no timer.
#[derive(Debug)]
pub(crate) struct Lull {
    after: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Lull {
    /// Goes off `after` now, if nothing is said until then.
    pub(crate) fn new(after: Duration) -> Self {
        Self { after, timer: Box::pin(tokio::time::sleep(after)) }
    }

    /// Ready when `spoke`, the time when something was last said, is too long ago; again after as long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, spoke: impl Fn() -> Instant) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let (now, due) = (Instant::now(), spoke() + self.after);
            if due <= now {
                self.timer.as_mut().reset(now + self.after);
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}
