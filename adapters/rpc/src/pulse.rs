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

use futures::FutureExt;
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// When bytes last came and went over one connection; and the way to end it.
#[derive(Debug)]
pub(crate) struct Pulse {
    began: Instant,
    /// Milliseconds from `began` to the last bytes, either way.
    heard_ms: AtomicU64,
    spoke_ms: AtomicU64,
    /// Milliseconds from `began` to the end of the handshake; 0 before it.
    came_through_ms: AtomicU64,
    over: AtomicBool,
    /// Of the task that reads and writes.
    task: AtomicWaker,
}

impl Pulse {
    /// Of a connection that begins now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            spoke_ms: AtomicU64::new(0),
            came_through_ms: AtomicU64::new(0),
            over: AtomicBool::new(false),
            task: AtomicWaker::new(),
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

    /// The handshake is over.
    pub(crate) fn came_through(&self) {
        self.set_now(&self.came_through_ms);
    }

    /// How long the other end may be silent. Where the handshake took long there is more to do than there is time for, at one end
    /// or the other, and to begin anew would be more to do still: a young connection is given twice as long as it took to make.
    pub(crate) fn patience(&self) -> Duration {
        if self.began.elapsed() > YOUNG {
            return SILENCE_MAX;
        }
        let took = Duration::from_millis(self.came_through_ms.load(Ordering::Relaxed));
        (2 * took).clamp(SILENCE_MAX, PATIENCE_MAX)
    }

    /// Ends the connection once nothing was heard for as long as there is [patience](Self::patience). Nobody reads a reason
    /// there, and what is under way to it would stay for long.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut vigil = Vigil::new();
        std::future::poll_fn(|cx| vigil.poll(cx, &self, self.heard())).await;
        self.hang_up();
    }

    /// Ends the connection, whatever is still to be sent.
    pub(crate) fn hang_up(&self) {
        self.over.store(true, Ordering::Release);
        self.task.wake();
    }

    fn set_now(&self, what: &AtomicU64) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        what.store(ms, Ordering::Relaxed);
    }
}

/// Bytes that are read while nothing can be written. HTTP/2 reads nothing before it has answered the last ping, for which
/// there may be no room for long: whoever is slow to read would be silent, however often it says that it is there. So much
/// is said in some minutes.
const AHEAD_BYTES_MAX: usize = 4 * 1024;

/// A connection whose pulse is taken.
#[derive(Debug)]
pub(crate) struct Pulsed<S> {
    stream: S,
    pulse: Arc<Pulse>,
    /// Read already, and not yet asked for.
    ahead: Vec<u8>,
}

impl<S> Pulsed<S> {
    pub(crate) fn new(stream: S, pulse: Arc<Pulse>) -> Self {
        Self { stream, pulse, ahead: Vec::new() }
    }

    /// Fails once the connection is over; otherwise the task is woken when it is.
    fn still_on(&self, cx: &mut Context<'_>) -> io::Result<()> {
        self.pulse.task.register(cx.waker());
        // Asked after registering: whoever hangs up in between wakes this task.
        if self.pulse.over.load(Ordering::Acquire) { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl<S: AsyncRead + Unpin> Pulsed<S> {
    fn spoke(&mut self, cx: &mut Context<'_>, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(1..)) => self.pulse.set_now(&self.pulse.spoke_ms),
            Poll::Ready(_) => {}
            Poll::Pending => self.read_ahead(cx),
        }
    }

    /// Takes what has come, as far as there is room for it. What ends the stream is found by whoever reads.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        let mut piece = [0; 512];
        while self.ahead.len() + piece.len() <= AHEAD_BYTES_MAX {
            let mut buf = ReadBuf::new(&mut piece);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
            if !matches!(read, Poll::Ready(Ok(()))) || buf.filled().is_empty() {
                return;
            }
            self.ahead.extend_from_slice(buf.filled());
            self.pulse.set_now(&self.pulse.heard_ms);
        }
    }
}

impl Pulsed<TcpStream> {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Whether the other end has closed its side, be there something to read or not. Known soon after it was closed.
    pub(crate) fn has_left(&self) -> bool {
        let ready = self.stream.ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pulsed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.still_on(cx)?;
        if !self.ahead.is_empty() {
            let taken = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..taken]);
            self.ahead.drain(..taken);
            if self.ahead.is_empty() {
                self.ahead = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pulse.set_now(&self.pulse.heard_ms);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Pulsed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.still_on(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.spoke(cx, &written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.still_on(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.spoke(cx, &written);
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

/// The same for a connection that took its time to be made, at most.
const PATIENCE_MAX: Duration = Duration::from_secs(20);

/// For how long it matters what a connection took to be made: until a fleet that came back at once is there.
const YOUNG: Duration = Duration::from_secs(60);

/// The last part of a silence: time for this process to read what may have come already.
const DOUBT: Duration = Duration::from_millis(250);

/// A timer that goes off when nothing was heard for as long as there is patience: [`SILENCE_MAX`] as a rule.
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

    /// Ready once nothing was heard for too long on a connection, with `heard` the time from which that counts.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, pulse: &Pulse, heard: Instant) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let (now, due) = (Instant::now(), heard + pulse.patience() - DOUBT);
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Bytes under way in a pipe, either way.
    const ROOM: usize = 64;

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_to_read_is_heard_nevertheless() {
        let (near, mut far) = tokio::io::duplex(ROOM);
        let pulse = Pulse::new();
        let mut near = Pulsed::new(near, Arc::clone(&pulse));
        let watching = tokio::spawn(Arc::clone(&pulse).watch());
        // Writes more than there is room for, and so does not come to read.
        let writing = tokio::spawn(async move { (near.write_all(&[1; 2 * ROOM]).await, near) });
        for _ in 0..100 {
            tokio::time::sleep(SILENCE_MAX / 2).await;
            let said = tokio::time::timeout(SILENCE_MAX, far.write_all(b"I am here")).await;
            said.expect("nobody reads").unwrap();
        }
        assert!(!watching.is_finished() && !writing.is_finished());
        far.read_exact(&mut [0; 2 * ROOM]).await.unwrap();
        let (written, mut near) = writing.await.unwrap();
        written.unwrap();
        // Nothing of it is lost, nor out of order.
        let mut said = vec![0; 100 * b"I am here".len()];
        near.read_exact(&mut said).await.unwrap();
        assert_eq!(said, b"I am here".repeat(100));
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_took_long_to_come_through_is_given_longer_while_that_is_news() {
        let silence = async |took: Duration, age: Duration| {
            let pulse = Pulse::new();
            tokio::time::sleep(took).await;
            pulse.came_through();
            tokio::time::sleep(age - took).await;
            pulse.set_now(&pulse.heard_ms);
            let before = Instant::now();
            pulse.watch().await;
            before.elapsed().as_secs()
        };
        let (young, old) = (Duration::from_secs(12), 2 * YOUNG);
        assert_eq!(silence(Duration::ZERO, young).await, SILENCE_MAX.as_secs());
        assert_eq!(silence(Duration::from_secs(5), young).await, 10);
        assert_eq!(silence(Duration::from_secs(12), young).await, PATIENCE_MAX.as_secs());
        assert_eq!(silence(Duration::from_secs(5), old).await, SILENCE_MAX.as_secs());
    }

    #[tokio::test]
    async fn who_left_is_known_to_have_left_also_where_much_was_said() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let near = Pulsed::new(listener.accept().await.unwrap().0, Pulse::new());
        far.write_all(b"I am here").await.unwrap();
        near.stream.readable().await.unwrap();
        assert!(!near.has_left());
        drop(far);
        let left = async {
            while !near.has_left() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), left).await.expect("it has left");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_is_given_up_even_while_there_is_much_to_say_to_it() {
        let (near, _far) = tokio::io::duplex(ROOM);
        let pulse = Pulse::new();
        let mut near = Pulsed::new(near, Arc::clone(&pulse));
        tokio::spawn(pulse.watch());
        let before = Instant::now();
        let written = tokio::time::timeout(2 * SILENCE_MAX, near.write_all(&[1; 2 * ROOM])).await;
        let error = written.expect("it is not given up").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(before.elapsed() <= SILENCE_MAX + DOUBT, "{:?}", before.elapsed());
    }
}
