//! Listeners, and the limits of what comes over them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use crate::connection::{Connection, Peer};
use crate::service::AdsService;
use crate::source::ProxySource;

/// Bytes in one request: names and versions of some 20,000 resources.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Connections at once: one server's share of a fleet, within the file descriptors that a process may have.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Time for a TLS handshake: bounds what strangers can hold open.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Streams on one connection; a proxy needs one, and a second while it changes over.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;

/// Bytes in the headers of one request.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;

/// Streams that a client has reset and that are not yet cleared away; past this the connection is closed.
const PENDING_RESETS_MAX: usize = 32;

/// Bytes under way to us on one stream, and on one connection; requests are small.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// How often a silent connection is asked for a sign of life, and how long that may take: a proxy whose machine has
/// vanished is given up within seconds, so that nobody waits for its receipts.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after the operating system refuses to accept, as when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Connections between handshake and HTTP/2.
const ACCEPTED_QUEUED_MAX: usize = 64;

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// HTTP/2 or the listener failed as a whole.
    #[error("xDS cannot be served")]
    Transport(#[from] tonic::transport::Error),
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

/// Serves xDS in plaintext until `shutdown` completes and every stream has been told to go elsewhere.
///
/// Ends no later than [`DRAIN_TIMEOUT`](crate::DRAIN_TIMEOUT) after `shutdown`, whatever the clients do.
///
/// # Errors
/// [`ServeError`] if the listener fails as a whole.
pub async fn serve(
    listener: LoopbackListener,
    source: Arc<dyn ProxySource>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let listener = listener.0;
    tracing::info!(address = %listener.local_addr().map_err(ServeError::Address)?, "serving xDS in plaintext");
    let (sender, receiver) = mpsc::channel(ACCEPTED_QUEUED_MAX);
    let (stop, stopping) = watch::channel(false);
    let accepting = accept(listener, move |stream, address, permit| {
        let sender = sender.clone();
        let connection = Connection::new(stream, Peer::Loopback(address), permit, stopping.clone());
        // The receiver is gone when the server stops.
        async move { drop(sender.send(Ok(connection)).await) }
    });
    run(accepting, ReceiverStream::new(receiver), source, shutdown, stop).await
}

/// Serves xDS to members of the mesh, over mutual TLS, until `shutdown` completes and every stream has been told to go
/// elsewhere. `tls` must demand a client certificate; one without an identity of the mesh is refused.
///
/// Ends as [`serve`] does.
///
/// # Errors
/// [`ServeError`] if the listener fails as a whole.
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    source: Arc<dyn ProxySource>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    tracing::info!(address = %listener.local_addr().map_err(ServeError::Address)?, "serving xDS over mutual TLS");
    let mut tls = ServerConfig::clone(&tls);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let (sender, receiver) = mpsc::channel(ACCEPTED_QUEUED_MAX);
    let (stop, stopping) = watch::channel(false);
    let accepting = accept(listener, move |stream, address, permit| {
        let (sender, acceptor, stopping) = (sender.clone(), acceptor.clone(), stopping.clone());
        async move {
            if let Some((stream, peer)) = handshake(&acceptor, stream, address).await {
                // The receiver is gone when the server stops.
                drop(sender.send(Ok(Connection::new(stream, peer, permit, stopping))).await);
            }
        }
    });
    run(accepting, ReceiverStream::new(receiver), source, shutdown, stop).await
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<(TlsStream<TcpStream>, Peer)> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => match member(&stream, address) {
            Ok(peer) => return Some((stream, peer)),
            Err(error) => tracing::info!(%address, %error, "client refused"),
        },
        Ok(Err(error)) => tracing::info!(%address, %error, "TLS handshake failed"),
        Err(_) => tracing::info!(%address, "TLS handshake took too long"),
    }
    None
}

fn member(stream: &TlsStream<TcpStream>, address: SocketAddr) -> Result<Peer, starling_tls::PeerError> {
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(Peer::Member { identity: Arc::new(starling_tls::peer_identity(chain)?), address })
}

/// Accepts connections until dropped, and prepares each in its own task, which ends then as well.
async fn accept<F>(listener: TcpListener, prepare: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut preparing = JoinSet::new();
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("invariant: the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, address)) => {
                // Small messages must leave at once.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%address, %error, "connection lost while it was accepted");
                    continue;
                }
                while preparing.try_join_next().is_some() {}
                preparing.spawn(prepare(stream, address, permit));
            }
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn run<S>(
    accepting: impl Future<Output = ()> + Send,
    incoming: impl Stream<Item = Result<Connection<S>, io::Error>> + Send,
    source: Arc<dyn ProxySource>,
    shutdown: impl Future<Output = ()> + Send,
    stop: watch::Sender<bool>,
) -> Result<(), ServeError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let stopping = stop.subscribe();
    let serving = Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(AdsService { source, stopping })
        .serve_with_incoming_shutdown(incoming, async {
            tokio::select! {
                () = shutdown => {}
                () = accepting => {}
            }
            // Streams have no end of their own, and silent connections neither.
            stop.send_replace(true);
        });
    Ok(serving.await?)
}
