//! A connection that knows who is at its other end, and how long it may last.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use starling_identity::Identity;
use starling_model::{KeyFingerprint, Member};
use starling_sockets::{Busy, Place};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::agents::Credential;
use crate::pulse::Pulse;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process on this machine, over plaintext.
    Loopback(SocketAddr),
    /// A member of the mesh, by its certificate.
    Member {
        /// Who it is.
        identity: Arc<Identity>,
        /// The key of its certificate.
        key: KeyFingerprint,
        /// Where it calls from.
        address: SocketAddr,
        /// Whether that is this machine: loopback, or the address that it called.
        is_local: bool,
    },
}

/// Where a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Who it is; `None` for a stranger, who has no certificate.
    pub peer: Option<Peer>,
    /// The connection's.
    pub pulse: Arc<Pulse>,
}

impl Origin {
    /// The agent or relay that it is, by its certificate. They give signs of life by themselves.
    pub(crate) fn member(&self) -> Option<Credential> {
        let Some(Peer::Member { identity, key, .. }) = &self.peer else { return None };
        let member = match &**identity {
            Identity::Agent { node, .. } => Member::Node(node.clone()),
            Identity::Relay { relay, .. } => Member::Relay(relay.clone()),
            Identity::Workload(_) | Identity::Server { .. } | Identity::Authority(_) => return None,
        };
        Some(Credential { member, key: Some(*key) })
    }
}

/// Time for a new connection's first bytes: bounds what strangers can hold open by saying nothing. Once they have come,
/// HTTP/2's own signs of life are asked for.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that open connections have to end when the server stops, after their streams have been told to go elsewhere.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Time that a stranger has to join, from its handshake to its answer.
pub const STRANGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes with which a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// The place of a connection that has begun to speak: from then on it is not closed for others.
pub(crate) struct Held {
    _busy: Busy,
    _place: Place,
}

impl Held {
    pub(crate) fn of(place: Place) -> Self {
        Self { _busy: place.busy(), _place: place }
    }
}

/// A byte stream, counted while it lives, and given up when its time is over.
pub(crate) struct Connection<S> {
    stream: S,
    /// Until when it may last once its client has begun to speak; without end if `None`.
    until: Option<Instant>,
    preface_left: usize,
    /// Completes when the connection is given up.
    limit: Limit,
    stopping: watch::Receiver<bool>,
    _held: Held,
}

type Limit = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<S> Connection<S> {
    /// A connection that ends when the server stops: at once while its client has not begun to speak, else in time.
    pub(crate) fn new(stream: S, until: Option<Instant>, held: Held, stopping: watch::Receiver<bool>) -> Self {
        let mut begun = stopping.clone();
        // Either end is one: too late, or no longer wanted.
        let limit = Box::pin(async move { drop(tokio::time::timeout(PREFACE_TIMEOUT, stopped(&mut begun)).await) });
        Self { stream, until, preface_left: PREFACE_BYTES, limit, stopping, _held: held }
    }

    /// Fails once the time is over; otherwise the task is woken when it is.
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.limit.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                // A future that has completed must not be polled again.
                self.limit = Box::pin(std::future::ready(()));
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }

    fn received(&mut self, bytes: usize) {
        if self.preface_left == 0 {
            return;
        }
        self.preface_left = self.preface_left.saturating_sub(bytes);
        if self.preface_left == 0 {
            let (mut stopping, until) = (self.stopping.clone(), self.until);
            let drained = async move {
                stopped(&mut stopping).await;
                tokio::time::sleep(DRAIN_TIMEOUT).await;
            };
            self.limit = match until {
                Some(until) => Box::pin(async move { drop(tokio::time::timeout_at(until, drained).await) }),
                None => Box::pin(drained),
            };
        }
    }
}

/// Returns when the server stops, be it by dropping the sender.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the server.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.received(buf.filled().len() - before);
        // After the limit may have changed, so that the new one wakes the task.
        self.in_time(cx)?;
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
