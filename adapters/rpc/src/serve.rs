//! Listeners, and the limits of what comes over them.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use starling_model::UnixSeconds;
use starling_tls::{Caller, PeerError, valid_until};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
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

/// Connections of strangers at once, who have no certificate and ask to join; never more than a quarter of all connections,
/// so that members find room whoever else knocks. Beyond it a stranger is turned away, and asks again.
pub const STRANGERS_MAX: usize = 1024;

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
    let entrance = Arc::new(Entrance {
        acceptor: TlsAcceptor::from(Arc::new(tls)),
        turns: Semaphore::new(HANDSHAKES_MAX),
        strangers: Arc::new(Semaphore::new((connections_max / 4).clamp(1, STRANGERS_MAX))),
    });
    let (stop, stopping) = watch::channel(false);
    let serve = move |stream, address, permit| {
        let (entrance, doors, mut stopping) = (Arc::clone(&entrance), doors.clone(), stopping.clone());
        async move {
            let admitted = tokio::select! {
                // In a box, which goes when the handshake is over.
                admitted = Box::pin(entrance.admit(stream, address)) => admitted,
                () = stopped(&mut stopping) => return,
            };
            let Admitted { stream, origin, until, place: _place } = match admitted {
                Ok(admitted) => admitted,
                // There may be as many of them as there are agents.
                Err(error @ AdmitError::Left) => return tracing::debug!(%address, %error, "client refused"),
                Err(error) => return tracing::info!(%address, %error, "client refused"),
            };
            let connection = Connection::new(stream, until, permit, stopping.clone());
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
    #[error("the client left before its turn")]
    Left,
    #[error("TLS handshake failed: {0}")]
    Handshake(io::Error),
    #[error("TLS handshake took too long")]
    Slow,
    #[error("too many clients without a certificate are connected")]
    Crowded,
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Where connections become known callers.
struct Entrance {
    acceptor: TlsAcceptor,
    turns: Semaphore,
    /// The places of strangers.
    strangers: Arc<Semaphore>,
}

/// A known caller.
struct Admitted {
    stream: Secured,
    origin: Origin,
    /// Until when it is let in; its certificate proves nothing after that, and it must come back with a newer one.
    until: Option<Instant>,
    /// Held by a stranger while it is connected.
    place: Option<OwnedSemaphorePermit>,
}

impl Entrance {
    async fn admit(&self, stream: TcpStream, address: SocketAddr) -> Result<Admitted, AdmitError> {
        socket::prepare(&stream).map_err(AdmitError::Lost)?;
        // Who says nothing takes no turn.
        let begun = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.readable()).await;
        begun.map_err(|_| AdmitError::Silent)?.map_err(AdmitError::Lost)?;
        let pulse = Pulse::new();
        let mut stream = self.handshake(Pulsed::new(stream, Arc::clone(&pulse))).await?;
        pulse.came_through();
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let peer = peer(&stream, address)?;
        let (until, place) = if peer.is_some() {
            (valid_until(stream.get_ref().1.peer_certificates()).and_then(end_of), None)
        } else {
            let place = Arc::clone(&self.strangers).try_acquire_owned().map_err(|_| AdmitError::Crowded)?;
            (Some(Instant::now() + STRANGER_TIMEOUT), Some(place))
        };
        Ok(Admitted { stream, origin: Origin { peer, pulse }, until, place })
    }

    async fn handshake(&self, stream: Pulsed<TcpStream>) -> Result<Secured, AdmitError> {
        let turn = self.turns.acquire().await.expect("invariant: the semaphore is never closed");
        // A fleet that waits longer than it has patience for would have all of this machine's time go to those who left.
        if stream.has_left() {
            return Err(AdmitError::Left);
        }
        // Its own time begins with its turn: who waited behind others is not to blame for them.
        let late = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut handshake = std::pin::pin!(self.acceptor.accept(stream));
        if let Ok(done) = tokio::time::timeout(TURN_MAX, &mut handshake).await {
            return done.map_err(AdmitError::Handshake);
        }
        drop(turn);
        let done = tokio::time::timeout_at(late, handshake).await;
        done.map_err(|_| AdmitError::Slow)?.map_err(AdmitError::Handshake)
    }
}

/// When the second ends that is a certificate's last; `None` if that is further away than clocks reach.
fn end_of(last: UnixSeconds) -> Option<Instant> {
    let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(last.0.checked_add(1)?))?;
    // A certificate that has just ended is over now.
    Instant::now().checked_add(end.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Who is at the other end; `None` for a stranger.
fn peer(stream: &Secured, address: SocketAddr) -> Result<Option<Peer>, PeerError> {
    let (stream, session) = stream.get_ref();
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    match Caller::of(session.peer_certificates(), UnixSeconds(now))? {
        Caller::Stranger => Ok(None),
        Caller::Member { identity, key } => {
            let is_local = stream.local_addr().is_ok_and(|called| is_local(address.ip(), called.ip()));
            Ok(Some(Peer::Member { identity: Arc::new(identity), key, address, is_local }))
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
    use std::net::Ipv4Addr;

    use starling_identity::{ClusterId, IssuanceRules};
    use starling_tls::{CertificateAuthority, CredentialSlot, Credentials, LeafKey, TrustRoots, agent_server_config};
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn entrance(turns: usize) -> Entrance {
        let (folder, now) = (tempfile::tempdir().expect("a folder"), SystemTime::UNIX_EPOCH.elapsed());
        let now = UnixSeconds(now.expect("a clock that is set").as_secs());
        let authority = CertificateAuthority::create(folder.path(), &ClusterId::from_random(7).trust_domain(), now);
        let (authority, key) = (authority.expect("a CA"), LeafKey::generate().expect("a key"));
        let (csr, dc) = (key.csr_der().expect("a request"), "dc1".parse().expect("a name"));
        let own = authority.issue_server(&csr, &dc, &[], &IssuanceRules::default(), now).expect("a certificate");
        let own = CredentialSlot::new(Credentials::new(&own.chain_pem, &key).expect("it fits"));
        let tls = agent_server_config(own, &TrustRoots::new([authority.root()]).expect("a root"));
        Entrance {
            acceptor: TlsAcceptor::from(Arc::new(tls.expect("a configuration"))),
            turns: Semaphore::new(turns),
            strangers: Arc::new(Semaphore::new(1)),
        }
    }

    /// A client that has sent something that is no TLS, as the server sees it.
    async fn babbler() -> (TcpStream, TcpStream, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("its address")).await.expect("a connection");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
        let (served, address) = listener.accept().await.expect("accepted");
        (client, served, address)
    }

    #[tokio::test]
    async fn who_waits_behind_others_has_its_whole_time_still() {
        let entrance = Arc::new(entrance(0));
        let (_client, served, address) = babbler().await;
        served.readable().await.expect("it has spoken");
        tokio::time::pause();
        let waiting = Arc::clone(&entrance);
        let admitted = tokio::spawn(async move { waiting.admit(served, address).await.map(drop) });
        // The clock goes on only when there is nothing else to do.
        tokio::time::sleep(10 * HANDSHAKE_TIMEOUT).await;
        assert!(!admitted.is_finished(), "it is given up for the time of others");
        entrance.turns.add_permits(1);
        let refused = admitted.await.expect("no panic").expect_err("that was no TLS");
        assert!(matches!(refused, AdmitError::Handshake(_)), "{refused}");
    }

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
