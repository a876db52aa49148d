//! Listeners, and the limits of what comes over them.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use starling_model::UnixSeconds;
use starling_tls::{Caller, PeerError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::agents::PIECE_BYTES;
use crate::connection::{Connection, Origin, Peer, STRANGER_TIMEOUT, stopped};
use crate::http2::{Doors, serve_connection};
use crate::pulse::{Pulse, Pulsed};
use crate::socket;
use crate::source::ProxySource;

/// Bytes in one request: names and versions of some 20,000 resources.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Connections at once, where file descriptors allow as many: one server's share of a fleet.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Time for a TLS handshake: bounds what strangers can hold open.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a TLS handshake counts as under way; one that takes longer waits for its client, not for this machine.
const TURN_MAX: Duration = Duration::from_millis(250);

/// TLS handshakes under way at once; the others wait their turn, first come first served, so that a fleet that comes back
/// at once is let in one after the other rather than all together and late.
pub const HANDSHAKES_MAX: usize = 64;

/// Bytes that TLS holds until the socket takes them.
const TLS_BUFFER_BYTES: usize = PIECE_BYTES;

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

/// Serves xDS in plaintext until `shutdown` completes and every stream has been told to go elsewhere. At
/// `connections_max` no further connection is accepted until one ends; [`CONNECTIONS_MAX`] if there are file descriptors
/// for it.
///
/// Ends no later than [`DRAIN_TIMEOUT`](crate::DRAIN_TIMEOUT) after `shutdown`, whatever the clients do.
///
/// # Errors
/// [`ServeError`] if the listener fails as a whole.
pub async fn serve(
    listener: LoopbackListener,
    source: Arc<dyn ProxySource>,
    connections_max: usize,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let listener = listener.0;
    tracing::info!(address = %listener.local_addr().map_err(ServeError::Address)?, "serving xDS in plaintext");
    let doors = Doors { proxies: Some(source), ..Doors::default() };
    let (stop, stopping) = watch::channel(false);
    let serve = move |stream: TcpStream, address, permit| {
        let (doors, stopping) = (doors.clone(), stopping.clone());
        async move {
            // Small messages must leave at once. A connection that is lost already is found out soon enough.
            let _ = stream.set_nodelay(true);
            let pulse = Pulse::new();
            let stream = Pulsed::new(stream, Arc::clone(&pulse));
            let origin = Origin { peer: Some(Peer::Loopback(address)), pulse };
            let connection = Connection::new(stream, None, permit, stopping.clone());
            serve_connection(connection, origin, doors, stopping).await;
        }
    };
    accept(listener, connections_max, shutdown, stop, serve).await;
    Ok(())
}

/// Serves members of the mesh over TLS until `shutdown` completes and every stream has been told to go elsewhere.
///
/// Who calls is known by its certificate. If `tls` allows clients without one, they may ask `doors.agents` to let them
/// join, and nothing else.
///
/// Limits connections and ends as [`serve`] does. A listener made by [`listen`](crate::listen) holds a fleet that comes back
/// at once.
///
/// # Errors
/// [`ServeError`] if the listener fails as a whole.
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    doors: Doors,
    connections_max: usize,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    tracing::info!(address = %listener.local_addr().map_err(ServeError::Address)?, "serving the mesh over TLS");
    let mut tls = ServerConfig::clone(&tls);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let entrance =
        Arc::new(Entrance { acceptor: TlsAcceptor::from(Arc::new(tls)), turns: Semaphore::new(HANDSHAKES_MAX) });
    let (stop, stopping) = watch::channel(false);
    let serve = move |stream, address, permit| {
        let (entrance, doors, mut stopping) = (Arc::clone(&entrance), doors.clone(), stopping.clone());
        async move {
            let admitted = tokio::select! {
                // In a box, which goes when the handshake is over.
                admitted = Box::pin(entrance.admit(stream, address)) => admitted,
                () = stopped(&mut stopping) => return,
            };
            let (stream, origin) = match admitted {
                Ok(admitted) => admitted,
                Err(error) => return tracing::info!(%address, %error, "client refused"),
            };
            let lifetime = origin.peer.is_none().then_some(STRANGER_TIMEOUT);
            let connection = Connection::new(stream, lifetime, permit, stopping.clone());
            serve_connection(connection, origin, doors, stopping).await;
        }
    };
    accept(listener, connections_max, shutdown, stop, serve).await;
    Ok(())
}

type Secured = TlsStream<Pulsed<TcpStream>>;

/// Why a client did not come through.
#[derive(Debug, thiserror::Error)]
enum AdmitError {
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    #[error("the client did not begin to speak TLS")]
    Silent,
    #[error("TLS handshake failed: {0}")]
    Handshake(io::Error),
    #[error("TLS handshake took too long")]
    Slow,
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Where connections become known callers.
struct Entrance {
    acceptor: TlsAcceptor,
    turns: Semaphore,
}

impl Entrance {
    async fn admit(&self, stream: TcpStream, address: SocketAddr) -> Result<(Secured, Origin), AdmitError> {
        socket::prepare(&stream).map_err(AdmitError::Lost)?;
        // Who says nothing takes no turn.
        let begun = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.readable()).await;
        begun.map_err(|_| AdmitError::Silent)?.map_err(AdmitError::Lost)?;
        let pulse = Pulse::new();
        let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(Pulsed::new(stream, Arc::clone(&pulse))));
        let mut stream = shaken.await.map_err(|_| AdmitError::Slow)?.map_err(AdmitError::Handshake)?;
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let peer = peer(&stream, address)?;
        Ok((stream, Origin { peer, pulse }))
    }

    async fn handshake(&self, stream: Pulsed<TcpStream>) -> io::Result<Secured> {
        let turn = self.turns.acquire().await.expect("invariant: the semaphore is never closed");
        let mut handshake = std::pin::pin!(self.acceptor.accept(stream));
        if let Ok(done) = tokio::time::timeout(TURN_MAX, &mut handshake).await {
            return done;
        }
        drop(turn);
        handshake.await
    }
}

/// Who is at the other end; `None` for a stranger.
fn peer(stream: &Secured, address: SocketAddr) -> Result<Option<Peer>, PeerError> {
    let (stream, session) = stream.get_ref();
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    match Caller::of(session.peer_certificates(), UnixSeconds(now))? {
        Caller::Stranger => Ok(None),
        Caller::Member(identity) => {
            let is_local = stream.local_addr().is_ok_and(|called| is_local(address.ip(), called.ip()));
            Ok(Some(Peer::Member { identity: Arc::new(identity), address, is_local }))
        }
    }
}

/// Whether the caller is on this machine. Calling one of its own addresses, a machine calls from that address, and
/// nobody else gets the answers to what comes from there.
fn is_local(caller: IpAddr, called: IpAddr) -> bool {
    let caller = caller.to_canonical();
    caller.is_loopback() || caller == called.to_canonical()
}

/// Accepts connections until `shutdown` completes, and serves each in its own task; returns when the last has ended.
async fn accept<F>(
    listener: TcpListener,
    connections_max: usize,
    shutdown: impl Future<Output = ()> + Send,
    stop: watch::Sender<bool>,
    serve: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(connections_max));
    let mut serving = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    let next = || async {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("invariant: the semaphore is never closed");
        (listener.accept().await, permit)
    };
    loop {
        let (accepted, permit) = tokio::select! {
            next = next() => next,
            () = &mut shutdown => break,
        };
        while serving.try_join_next().is_some() {}
        match accepted {
            Ok((stream, address)) => drop(serving.spawn(serve(stream, address, permit))),
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    // Nobody is let in any more; streams have no end of their own, and silent connections neither.
    drop(listener);
    stop.send_replace(true);
    while serving.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_calls_from_the_address_that_it_calls() {
        for (caller, called, local) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.2", "10.0.0.1", false),
            ("2001:db8::2", "2001:db8::1", false),
        ] {
            let address = |text: &str| text.parse().expect("an address");
            assert_eq!(is_local(address(caller), address(called)), local, "{caller} to {called}");
        }
    }
}
