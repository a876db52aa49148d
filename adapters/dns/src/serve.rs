//! The sockets: one loop over datagrams, one over connections, limits on both.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use starling_admission::{Limits, Share};
use starling_sockets::{Complaint, Entrance, Place};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::CatalogReader;
use crate::responder::{QUERY_BYTES_MAX, Responder, Transport};

/// Connections at a time at one listener; past this, a new one takes the place of the one that has been idle the longest.
/// A resolver needs one, and each costs a file descriptor.
pub const TCP_CONNECTIONS_MAX: usize = starling_admission::shares::DNS_CONNECTIONS;

/// Connections of one address at a time: others always find a place.
pub const TCP_CONNECTIONS_PER_ADDRESS_MAX: usize = 64;

/// Time for a client to send its next whole query, and to take an answer; RFC 7766 section 6.2.3 asks for seconds.
pub const TCP_IDLE_MAX: Duration = Duration::from_secs(10);

/// Queries on one connection; past this it is closed, so that none holds its place for ever.
pub const TCP_QUERIES_MAX: usize = 1_000;

/// Time to breathe after a socket failed, which means that descriptors or memory have run out.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of the length before each message over TCP (RFC 1035 section 4.2.2).
const LENGTH_BYTES: usize = 2;

/// Answers queries on both sockets until `shutdown` ends; connections end with it.
///
/// `share` is for connections. Bind both to one address and port. A failing socket is logged and tried again, so this never ends by itself.
pub async fn serve<R: CatalogReader>(
    udp: UdpSocket,
    tcp: TcpListener,
    responder: impl Into<Arc<Responder<R>>>,
    share: Share,
    shutdown: impl Future<Output = ()>,
) {
    let responder = responder.into();
    tokio::select! {
        () = shutdown => {}
        never = datagrams(&udp, &responder) => match never {},
        never = connections(&tcp, share, |stream, place| connection(stream, place, Arc::clone(&responder))) => match never {},
    }
}

/// Waits for the next query, and who sends it; a socket that fails is asked again after a pause.
pub(crate) async fn next_datagram(socket: &UdpSocket, buffer: &mut [u8]) -> (usize, SocketAddr) {
    loop {
        match socket.recv_from(buffer).await {
            Ok(received) => return received,
            Err(error) => {
                tracing::warn!(%error, "cannot receive DNS queries");
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

async fn datagrams<R: CatalogReader>(socket: &UdpSocket, responder: &Responder<R>) -> Infallible {
    // One byte more than allowed, so that a longer query is seen as longer.
    let mut buffer = [0; QUERY_BYTES_MAX + 1];
    loop {
        let (len, peer) = next_datagram(socket, &mut buffer).await;
        let Some(answer) = responder.respond(&buffer[..len], Transport::Udp) else { continue };
        if let Err(error) = socket.send_to(&answer, peer).await {
            tracing::debug!(%error, %peer, "cannot send a DNS answer");
        }
    }
}

/// Accepts connections, and runs each as `connection` says.
pub(crate) async fn connections<F>(
    listener: &TcpListener,
    share: Share,
    connection: impl Fn(TcpStream, Arc<Place>) -> F,
) -> Infallible
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let limits = Limits { per_address: TCP_CONNECTIONS_PER_ADDRESS_MAX, ..Limits::of(share.connections) };
    let entrance = Entrance::limited("DNS over TCP", share, Share::of(0), limits);
    let failed = Complaint::default();
    let mut open = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        while open.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = entrance.enter(peer.ip(), stream.as_raw_fd()) else { continue };
                let place = Arc::new(place);
                let connection = connection(stream, Arc::clone(&place));
                open.spawn(async move {
                    tokio::select! {
                        ended = connection => if let Err(error) = ended {
                            tracing::debug!(%error, %peer, "DNS connection ended");
                        },
                        () = place.shed() => tracing::debug!(%peer, "an idle DNS connection makes room for another one"),
                    }
                });
            }
            Err(error) => {
                if let Some(count) = failed.due() {
                    tracing::warn!(%error, count, "cannot accept a DNS connection");
                }
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

/// Answers one query after the other until the client goes, is silent, or sends what gets no answer.
async fn connection<R: CatalogReader>(
    mut stream: TcpStream,
    place: Arc<Place>,
    responder: Arc<Responder<R>>,
) -> io::Result<()> {
    // Answers are written whole; waiting for more would only delay them.
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    for _ in 0..TCP_QUERIES_MAX {
        if !timeout(TCP_IDLE_MAX, receive(&mut stream, &mut buffer)).await?? {
            return Ok(());
        }
        let _busy = place.busy();
        let Some(answer) = responder.respond(&buffer, Transport::Tcp) else { return Ok(()) };
        let framed = frame(&answer)?;
        timeout(TCP_IDLE_MAX, stream.write_all(&framed)).await??;
    }
    Ok(())
}

/// Reads one whole query into `buffer`; false if the client has gone or the query is longer than [`QUERY_BYTES_MAX`].
pub(crate) async fn receive(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let len = match stream.read_u16().await {
        Ok(len) => usize::from(len),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    };
    if len > QUERY_BYTES_MAX {
        return Ok(false);
    }
    buffer.resize(len, 0);
    stream.read_exact(buffer).await?;
    Ok(true)
}

pub(crate) fn frame(answer: &[u8]) -> io::Result<Vec<u8>> {
    let len = u16::try_from(answer.len()).map_err(io::Error::other)?;
    let mut framed = Vec::with_capacity(LENGTH_BYTES + answer.len());
    framed.extend_from_slice(&len.to_be_bytes());
    framed.extend_from_slice(answer);
    Ok(framed)
}
