//! Listeners, and the limits of what comes over them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use starling_admission::Share;
use starling_sockets::{Complaint, Entrance, Place};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::{Connection, Held, Origin, PREFACE_TIMEOUT, Peer, stopped};
use crate::handshake::{Admitted, Handshakes};
use crate::http2::{Doors, serve_connection};
use crate::pulse::{Pulse, Pulsed};
use crate::source::ProxySource;

/// Bytes in one request: names and versions of some 20,000 resources.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Connections at once, where file descriptors allow as many: one server's share of a fleet.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Pause after the operating system refuses to accept, as when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener has no address.
    #[error("the listener's address cannot be read")]
    Address(#[source] io::Error),
}

/// A plaintext listener was to be opened to the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plaintext xDS carries private keys, so it listens on loopback only; {0} is not")]
pub struct NotLoopback(pub SocketAddr);

/// A listener that only this machine reaches.
#[derive(Debug)]
pub struct LoopbackListener(TcpListener);

impl LoopbackListener {
    /// Binds to `address`.
    ///
    /// # Errors
    /// [`io::Error`] of the operating system; of kind `PermissionDenied` with [`NotLoopback`] inside if the address is
    /// not a loopback address.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        // Refused before it is bound: not even for a moment is the port open.
        if !address.ip().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, NotLoopback(address)));
        }
        Ok(Self(TcpListener::bind(address).await?))
    }

    /// Takes a listener that is bound already.
    ///
    /// # Errors
    /// As [`LoopbackListener::bind`].
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, NotLoopback(address)));
        }
        Ok(Self(listener))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`io::Error`] of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Serves xDS in plaintext until `shutdown` completes and every stream has been told to go elsewhere. While all places of
/// `share` are taken, a new connection takes the place of one that has not begun to speak, or is closed.
///
/// Ends no later than [`DRAIN_TIMEOUT`](crate::DRAIN_TIMEOUT) after `shutdown`, whatever the clients do.
///
/// # Errors
/// [`ServeError`] if the listener fails as a whole.
pub async fn serve(
    listener: LoopbackListener,
    source: Arc<dyn ProxySource>,
    share: impl Into<Share>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let listener = listener.0;
    tracing::info!(address = %listener.local_addr().map_err(ServeError::Address)?, "serving xDS in plaintext");
    let doors = Doors { proxies: Some(source), ..Doors::default() };
    let (stop, stopping) = watch::channel(false);
    let serve = move |stream: TcpStream, address, place: Place| {
        let (doors, mut stopping) = (doors.clone(), stopping.clone());
        async move {
            // Small messages must leave at once. A connection that is lost already is found out soon enough.
            let _ = stream.set_nodelay(true);
            tokio::select! {
                // Once its first bytes are there it is read, and found out if they are none of HTTP/2.
                begun = timeout(PREFACE_TIMEOUT, stream.readable()) => if begun.is_err() {
                    return;
                },
                () = place.shed() => return,
                () = stopped(&mut stopping) => return,
            }
            let held = Held::of(place);
            let pulse = Pulse::new();
            let stream = Pulsed::new(stream, Arc::clone(&pulse));
            let origin = Origin { peer: Some(Peer::Loopback(address)), pulse };
            let connection = Connection::new(stream, None, held, stopping.clone());
            serve_connection(connection, origin, doors, stopping).await;
        }
    };
    accept(listener, Entrance::new("xDS", share.into()), shutdown, stop, serve).await;
    Ok(())
}

/// Serves members of the mesh over TLS until `shutdown` completes and every stream has been told to go elsewhere.
///
/// Who calls is known by its certificate. If `tls` allows clients without one, they may ask `doors.agents` to let them
/// join, and nothing else.
///
/// Limits connections and ends as [`serve`] does: until its whole ClientHello has come a client can lose its place, and
/// takes no handshake from others. A listener made by [`listen`](crate::listen) holds a fleet that comes back at once.
///
/// # Errors
/// [`ServeError`] if the listener fails as a whole.
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    doors: Doors,
    share: impl Into<Share>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    tracing::info!(address = %listener.local_addr().map_err(ServeError::Address)?, "serving the mesh over TLS");
    let share = share.into();
    let handshakes = Arc::new(Handshakes::new(&tls, share.connections));
    let (stop, stopping) = watch::channel(false);
    let serve = move |stream, address: SocketAddr, place: Place| {
        let (handshakes, doors, mut stopping) = (Arc::clone(&handshakes), doors.clone(), stopping.clone());
        async move {
            let admitted = tokio::select! {
                // In a box, which goes when the handshake is over.
                admitted = Box::pin(handshakes.admit(stream, address, place)) => admitted,
                () = stopped(&mut stopping) => return,
            };
            let Admitted { stream, origin, until, held, of_stranger: _place, of_identity: _counted } = match admitted {
                Ok(admitted) => admitted,
                Err(error) => return handshakes.report(&error, address),
            };
            let connection = Connection::new(stream, until, held, stopping.clone());
            serve_connection(connection, origin, doors, stopping).await;
        }
    };
    accept(listener, Entrance::new("gRPC over TLS", share), shutdown, stop, serve).await;
    Ok(())
}

/// Accepts connections until `shutdown` completes, and serves each in its own task; returns when the last has ended.
async fn accept<F>(
    listener: TcpListener,
    entrance: Arc<Entrance>,
    shutdown: impl Future<Output = ()> + Send,
    stop: watch::Sender<bool>,
    serve: impl Fn(TcpStream, SocketAddr, Place) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let failed = Complaint::default();
    let mut serving = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        while serving.try_join_next().is_some() {}
        match accepted {
            Ok((stream, address)) => {
                if let Some(place) = entrance.enter(address.ip(), stream.as_raw_fd()) {
                    serving.spawn(serve(stream, address, place));
                }
            }
            Err(error) => {
                if let Some(count) = failed.due() {
                    tracing::warn!(%error, count, "no connection can be accepted");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    // Nobody is let in any more; streams have no end of their own, and silent connections neither.
    drop(listener);
    stop.send_replace(true);
    while serving.join_next().await.is_some() {}
}
