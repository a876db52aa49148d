//! Where connections come in: accepted, known by their certificate, and served by what they speak.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::ServerConfig;
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};
use starling_http1::is_http2_preface;
use starling_tls::peer_identity;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::keys::Keys;
use crate::metrics::SideMetrics;
use crate::served::{Peer, Side, source_of};
use crate::stream::{Conn, Stream};
use crate::{http1, http2, tcp};

/// Connections that the kernel holds ready.
const BACKLOG: i32 = 4_096;

/// Time for a TLS handshake, and for the first byte after it to tell what is spoken.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// After an accept that failed for want of descriptors or memory.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A listener's present meaning. Connections hold it, and ask it at every request.
pub(crate) struct Listening {
    side: RefCell<Rc<Side>>,
    keys: RefCell<Arc<Keys>>,
    draining: watch::Sender<bool>,
    pub(crate) connections: Cell<u32>,
    pub(crate) metrics: Rc<SideMetrics>,
}

impl Listening {
    pub(crate) fn new(side: Rc<Side>, keys: Arc<Keys>, metrics: Rc<SideMetrics>) -> Rc<Self> {
        let (side, keys) = (RefCell::new(side), RefCell::new(keys));
        Rc::new(Self { side, keys, draining: watch::Sender::new(false), connections: Cell::new(0), metrics })
    }

    pub(crate) fn side(&self) -> Rc<Side> {
        Rc::clone(&self.side.borrow())
    }

    /// Whether it counts for the same direction: what was counted stays true.
    pub(crate) fn is_like(&self, side: &Side) -> bool {
        match (&**self.side.borrow(), side) {
            (Side::Inbound(_), Side::Inbound(_)) => true,
            (Side::Outbound(old), Side::Outbound(new)) => old.part.service == new.part.service,
            (Side::Inbound(_), Side::Outbound(_)) | (Side::Outbound(_), Side::Inbound(_)) => false,
        }
    }

    pub(crate) fn replace(&self, side: Rc<Side>, keys: Arc<Keys>) {
        *self.side.borrow_mut() = side;
        *self.keys.borrow_mut() = keys;
    }

    /// Connections are to end with the request that they carry.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until connections are to end.
    pub(crate) async fn drained(&self) {
        // The sender lives as long as this.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    fn tls(&self) -> Option<Arc<ServerConfig>> {
        match &**self.side.borrow() {
            Side::Inbound(inbound) => Some(self.keys.borrow().server(inbound.part.protocol.is_l7())),
            Side::Outbound(_) => None,
        }
    }

    fn is_full(&self) -> bool {
        match &**self.side.borrow() {
            Side::Inbound(inbound) => inbound.part.max_connections.is_some_and(|max| self.connections.get() >= max),
            Side::Outbound(_) => false,
        }
    }
}

/// Counts a connection for as long as it lives.
struct Counted(Rc<Listening>);

impl Counted {
    fn new(listening: Rc<Listening>) -> Self {
        listening.connections.set(listening.connections.get() + 1);
        listening.metrics.opened();
        Self(listening)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
        self.0.metrics.closed();
    }
}

/// A socket that listens beside those of other workers on the same address.
///
/// # Errors
/// When the address is taken by somebody else, or is none of this machine's.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(SocketProtocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Takes connections for as long as it is not dropped.
pub(crate) async fn accept(listener: TcpListener, listening: Rc<Listening>) {
    loop {
        match listener.accept().await {
            Ok((tcp, _)) if !listening.is_full() => {
                tokio::task::spawn_local(serve(tcp, Rc::clone(&listening)));
            }
            Ok((tcp, _)) => {
                listening.metrics.overflowed();
                drop(tcp);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

async fn serve(tcp: TcpStream, listening: Rc<Listening>) {
    let _counted = Counted::new(Rc::clone(&listening));
    if tcp.set_nodelay(true).is_err() {
        return;
    }
    let Some(config) = listening.tls() else {
        return speak(Stream::Plain(tcp), listening, Peer::local(), None).await;
    };
    let accepted = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(tcp)).await;
    let Ok(Ok(tls)) = accepted else {
        listening.metrics.handshake_failed();
        return;
    };
    let Some(peer) = peer_of(&listening, tls.get_ref().1.peer_certificates()) else {
        listening.metrics.handshake_failed();
        return;
    };
    let is_http2 = tls.get_ref().1.alpn_protocol().map(|chosen| chosen == b"h2");
    speak(Stream::Tls(Box::new(TlsStream::Server(tls))), listening, peer, is_http2).await;
}

/// Who is at the other end, as its certificate says.
fn peer_of(listening: &Listening, chain: Option<&[rustls::pki_types::CertificateDer<'_>]>) -> Option<Peer> {
    let chain = chain?;
    let identity = peer_identity(chain).ok()?;
    let mut hash = String::with_capacity(64);
    for byte in Sha256::digest(chain.first()?) {
        use std::fmt::Write as _;
        write!(hash, "{byte:02x}").ok()?;
    }
    let own = listening.keys.borrow().identity().to_uri();
    let certificate = format!("By={own};Hash={hash};URI={}", identity.to_uri());
    Some(Peer { source: source_of(&identity), certificate })
}

/// Serves what is spoken, which the first bytes tell where nobody has said it.
async fn speak(stream: Stream, listening: Rc<Listening>, peer: Peer, is_http2: Option<bool>) {
    let protocol = listening.side().protocol();
    if !protocol.is_l7() {
        return tcp::serve(stream, listening, peer).await;
    }
    let mut conn = Conn::new(stream);
    let is_http2 = match is_http2 {
        Some(known) => known,
        None => loop {
            match is_http2_preface(&conn.read) {
                Some(known) => break known,
                // A client that is connected and silent is idle, not stuck.
                None => match conn.fill().await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return,
                },
            }
        },
    };
    let read = std::mem::replace(&mut conn.read, BytesMut::new());
    if is_http2 {
        http2::serve(conn.stream, read, listening, peer).await;
    } else {
        http1::serve(conn.stream, read, listening, peer).await;
    }
}
