//! Where connections come in: accepted, known by their certificate, and served by what they speak.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures::FutureExt;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};
use starling_http1::is_http2_preface;
use starling_sockets::notice_dead_peers;
use starling_tls::peer_identity;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::{Accept, StartHandshake, TlsAcceptor, TlsStream};

use crate::connections::{Connection, Connections};
use crate::contain;
use crate::edge::{Outside, proxy_header};
use crate::keys::Keys;
use crate::metrics::SideMetrics;
use crate::rights::{Changed, Rights};
use crate::room::{Room, SHED_REST, Seat};
use crate::served::{Peer, Side, source_of};
use crate::snapshot::{CONNECTIONS_SHOWN_MAX, ConnectionSnapshot, ListenerSnapshot};
use crate::stream::{Conn, Stream};
use crate::timeouts::Timeouts;
use crate::{http1, http2, tcp};

/// Connections that the kernel holds ready.
pub(crate) const BACKLOG: i32 = 4_096;

/// After an accept that failed for want of descriptors or memory.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A listener's present meaning. Connections hold it, and ask it at every request.
pub(crate) struct Listening {
    side: RefCell<Rc<Side>>,
    keys: RefCell<Arc<Keys>>,
    is_draining: Cell<bool>,
    drains: Notify,
    /// Connections of peers to the workload, to all workers.
    connections: Arc<AtomicU32>,
    /// The places of this worker, and the listener's number there.
    pub(crate) room: Rc<Room>,
    number: u32,
    pub(crate) timeouts: Timeouts,
    rights: Rights,
    pub(crate) standing: Connections,
    pub(crate) metrics: Rc<SideMetrics>,
}

impl Listening {
    pub(crate) fn new(
        side: &Rc<Side>,
        keys: &Arc<Keys>,
        connections: Arc<AtomicU32>,
        (room, timeouts): (&Rc<Room>, Timeouts),
    ) -> Rc<Self> {
        let metrics = Rc::clone(side.metrics());
        let (side, keys) = (RefCell::new(Rc::clone(side)), RefCell::new(Arc::clone(keys)));
        let (is_draining, drains) = (Cell::new(false), Notify::new());
        let standing = Connections::default();
        let (room, number, rights) = (Rc::clone(room), room.listener(), Rights::default());
        Rc::new(Self {
            side,
            keys,
            is_draining,
            drains,
            connections,
            room,
            number,
            timeouts,
            rights,
            standing,
            metrics,
        })
    }

    pub(crate) fn side(&self) -> Rc<Side> {
        Rc::clone(&self.side.borrow())
    }

    /// Whether it counts for the same direction: what was counted stays true.
    pub(crate) fn is_like(&self, side: &Side) -> bool {
        match (&**self.side.borrow(), side) {
            (Side::Inbound(old), Side::Inbound(new)) => old.part.service == new.part.service,
            (Side::Outbound(old), Side::Outbound(new)) => old.part.service == new.part.service,
            (Side::Edge(_), Side::Edge(_)) => true,
            (Side::Inbound(_) | Side::Outbound(_) | Side::Edge(_), _) => false,
        }
    }

    pub(crate) fn replace(&self, side: Rc<Side>, keys: Arc<Keys>) {
        let is_judged_alike = side.judges_as(&self.side.borrow());
        *self.side.borrow_mut() = side;
        let before = self.keys.replace(keys);
        if !Arc::ptr_eq(&before, &self.keys.borrow()) {
            self.rights.change(Changed::Trust);
        } else if !is_judged_alike {
            self.rights.change(Changed::Intentions);
        }
    }

    /// Completes when what is under way must end: an intention denies it by now, as `allows` says of the listener's present
    /// meaning, or a certificate of `chain` leads to no root that is trusted.
    pub(crate) async fn until_denied(&self, chain: &[CertificateDer<'static>], allows: impl Fn(&Side) -> bool) {
        let judge = |changed| {
            let is_trusted = changed == Changed::Intentions || chain.is_empty() || self.trusts(chain);
            is_trusted && allows(&self.side())
        };
        self.rights.until_denied(self.timeouts.revoked, judge).await;
    }

    fn trusts(&self, chain: &[CertificateDer<'static>]) -> bool {
        self.keys.borrow().roots().vouch_for(chain)
    }

    /// Waits until a connection takes no further request.
    pub(crate) async fn retired(&self, connection: &Connection) {
        match connection.retires() {
            None => self.drained().await,
            // In a box, or every connection would hold a second timer.
            Some(at) => {
                let either = Box::pin(async {
                    tokio::select! {
                        () = self.drained() => {}
                        () = sleep_until(at.into()) => {}
                    }
                });
                either.await;
            }
        }
    }

    /// Whether a connection is to end with the request that it carries.
    pub(crate) fn is_last(&self, connection: &Connection) -> bool {
        self.is_draining() || connection.retires().is_some_and(|at| Instant::now() >= at)
    }

    pub(crate) fn snapshot(&self, address: SocketAddr) -> ListenerSnapshot {
        let side = self.side();
        let upstream = match &*side {
            Side::Inbound(_) | Side::Edge(_) => None,
            Side::Outbound(outbound) => Some(outbound.part.service.clone()),
        };
        let (standing, connections) = self.standing.first(CONNECTIONS_SHOWN_MAX, ConnectionSnapshot::of);
        let tls = match &*side {
            Side::Edge(edge) => edge.tls.as_ref(),
            Side::Inbound(_) | Side::Outbound(_) => None,
        };
        let certificates = tls.map(|tls| tls.snapshot()).unwrap_or_default();
        let files_refused = tls.and_then(|tls| tls.refused());
        let protocol = side.protocol();
        ListenerSnapshot { address, upstream, protocol, standing, connections, certificates, files_refused }
    }

    /// Connections are to end with the request that they carry.
    pub(crate) fn drain(&self) {
        self.is_draining.set(true);
        self.drains.notify_waiters();
    }

    /// Connections that stand.
    pub(crate) fn standing(&self) -> usize {
        self.standing.count()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Waits until connections are to end.
    pub(crate) async fn drained(&self) {
        let drains = self.drains.notified();
        // Whoever drains is on the same thread: nothing happens between the look and the wait.
        if !self.is_draining() {
            drains.await;
        }
    }

    /// How long a connection may rest; not so long before its first request where it comes from another machine.
    pub(crate) fn patience(&self, is_first: bool) -> Duration {
        match &**self.side.borrow() {
            Side::Inbound(_) | Side::Edge(_) if is_first => self.timeouts.first.min(self.timeouts.idle),
            Side::Inbound(_) | Side::Edge(_) | Side::Outbound(_) => self.timeouts.idle,
        }
    }

    fn tls(&self) -> Option<Arc<ServerConfig>> {
        match &**self.side.borrow() {
            Side::Inbound(inbound) => Some(self.keys.borrow().server(inbound.part.protocol.is_l7())),
            Side::Outbound(_) => None,
            Side::Edge(edge) => edge.tls.as_ref().map(|tls| Arc::clone(&tls.config)),
        }
    }

    /// Whether connections begin with the PROXY protocol.
    fn wants_proxy_header(&self) -> bool {
        matches!(&**self.side.borrow(), Side::Edge(edge) if edge.part.proxy_protocol)
    }

    /// Who is connected: an application behind its own sidecar, or somebody outside.
    fn stranger(&self, connection: Rc<Connection>, https: bool) -> Peer {
        match &**self.side.borrow() {
            Side::Edge(edge) => {
                let outside = Outside::new(connection.remote().ip(), https, &edge.part.trusted_proxies);
                Peer::outside(connection, outside)
            }
            Side::Inbound(_) | Side::Outbound(_) => Peer::local(connection),
        }
    }

    /// How many peers may be connected; an application is not counted.
    fn max_connections(&self) -> Option<u32> {
        match &**self.side.borrow() {
            Side::Inbound(inbound) => Some(inbound.part.max_connections.unwrap_or(u32::MAX)),
            Side::Edge(edge) => Some(edge.part.max_connections.unwrap_or(u32::MAX)),
            Side::Outbound(_) => None,
        }
    }
}

/// Counts a connection for as long as it lives.
pub(crate) struct Counted {
    listening: Rc<Listening>,
    is_peer: bool,
    connection: Rc<Connection>,
    number: u64,
    _seat: Seat,
}

impl Counted {
    /// `None` if there are as many as there may be.
    fn new(listening: Rc<Listening>, connection: Rc<Connection>, seat: Option<Seat>) -> Option<Self> {
        let (max, seat) = (listening.max_connections(), seat?);
        if let Some(max) = max {
            let more = |count: u32| (count < max).then_some(count + 1);
            listening.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        }
        listening.metrics.opened();
        let number = listening.standing.add(Rc::clone(&connection));
        Some(Self { listening, is_peer: max.is_some(), connection, number, _seat: seat })
    }

    /// One that comes in at `listening`.
    fn entering(tcp: &TcpStream, (remote, local): (SocketAddr, SocketAddr), listening: &Rc<Listening>) -> Option<Self> {
        let connection = Rc::new(Connection::new(remote, local));
        let seat = listening.room.enter(listening.number, tcp, &connection);
        Self::new(Rc::clone(listening), connection, seat)
    }

    /// Serves it in a task of its own.
    fn spawn<F: Future<Output = ()> + 'static>(self, serve: impl FnOnce(Self) -> F) {
        let connection = Rc::clone(&self.connection);
        connection.runs_as(contain::spawn("a connection", serve(self)));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.is_peer {
            self.listening.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.listening.standing.remove(self.number);
        self.listening.metrics.closed();
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
pub(crate) async fn accept(listener: Rc<TcpListener>, listening: Rc<Listening>) {
    loop {
        let (tcp, remote) = accepted(&listener, &listening.room).await;
        admit(tcp, remote, &listening);
    }
}

/// The next connection. Where newcomers take each other's places as fast as they come, they wait in the kernel's queue.
pub(crate) async fn accepted(listener: &TcpListener, room: &Room) -> (TcpStream, SocketAddr) {
    loop {
        if room.is_overrun() {
            sleep(SHED_REST).await;
        }
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                room.accept_failed(&error);
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

/// Takes the connections that wait already, and no more.
pub(crate) fn accept_waiting(listener: &TcpListener, take: impl Fn(TcpStream, SocketAddr)) {
    while let Some(Ok((tcp, remote))) = listener.accept().now_or_never() {
        take(tcp, remote);
    }
}

/// Serves a connection, unless there are as many as there may be.
pub(crate) fn admit(tcp: TcpStream, remote: SocketAddr, listening: &Rc<Listening>) {
    let local = tcp.local_addr().unwrap_or_else(|_| listening.side().bind());
    admit_to(tcp, (remote, local), listening);
}

/// The same for one that was made to `local`, wherever it arrived.
pub(crate) fn admit_to(tcp: TcpStream, ends: (SocketAddr, SocketAddr), listening: &Rc<Listening>) {
    match Counted::entering(&tcp, ends, listening) {
        Some(counted) => counted.spawn(|counted| serve(tcp, counted)),
        None => listening.metrics.overflowed(),
    }
}

/// Serves a connection whose TLS hello was read, and which has its place.
pub(crate) async fn admit_hello(
    hello: StartHandshake<TcpStream>,
    (connection, seat): (Rc<Connection>, Seat),
    listening: &Rc<Listening>,
) {
    let Some(counted) = Counted::new(Rc::clone(listening), connection, Some(seat)) else {
        return listening.metrics.overflowed();
    };
    let (listening, connection) = (Rc::clone(&counted.listening), Rc::clone(&counted.connection));
    let Some(config) = listening.tls() else { return };
    match Box::pin(shaken(hello.into_stream(config), &listening, connection)).await {
        Some((stream, peer, is_http2)) => Box::pin(speak_in_time(stream, listening, peer, is_http2)).await,
        None => listening.metrics.handshake_failed(),
    }
}

/// The same for one that goes to the application as it is.
pub(crate) fn admit_plain(tcp: TcpStream, ends: (SocketAddr, SocketAddr), listening: &Rc<Listening>) {
    match Counted::entering(&tcp, ends, listening) {
        Some(counted) => counted.spawn(|counted| serve_plain(tcp, counted)),
        None => listening.metrics.overflowed(),
    }
}

/// What holds for every connection of a client: small messages leave at once, and a peer that has vanished is noticed.
///
/// # Errors
/// When the connection is lost already.
pub(crate) fn prepare(tcp: &TcpStream, remote: SocketAddr) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    // Whoever is on this machine does not vanish without a word.
    if remote.ip().is_loopback() { Ok(()) } else { notice_dead_peers(tcp) }
}

async fn serve_plain(tcp: TcpStream, counted: Counted) {
    let (listening, connection) = (Rc::clone(&counted.listening), Rc::clone(&counted.connection));
    if prepare(&tcp, connection.remote()).is_ok() {
        tcp::pass(Stream::Plain(tcp), listening, Peer::local(connection)).await;
    }
}

pub(crate) async fn serve(mut tcp: TcpStream, counted: Counted) {
    let (listening, connection) = (Rc::clone(&counted.listening), Rc::clone(&counted.connection));
    if prepare(&tcp, connection.remote()).is_err() {
        return;
    }
    if listening.wants_proxy_header() {
        let taken = Box::pin(timeout(listening.timeouts.handshake, proxy_header::take(&mut tcp))).await;
        match taken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(source) => source.into_iter().for_each(|source| connection.comes_from(source)),
            Err(error) => {
                tracing::debug!(remote = %connection.remote(), %error, "a connection without a PROXY header was refused");
                return listening.metrics.refused(400);
            }
        }
    }
    let Some(config) = listening.tls() else {
        let peer = listening.stranger(connection, false);
        return Box::pin(speak(Stream::Plain(tcp), listening, peer, None)).await;
    };
    // In boxes of their own, so that a connection holds the one that it is at, and not room for the largest.
    let Some((stream, peer, is_http2)) = Box::pin(shake(config, tcp, &listening, connection)).await else {
        listening.metrics.handshake_failed();
        return;
    };
    Box::pin(speak_in_time(stream, listening, peer, is_http2)).await;
}

/// Serves a connection until it ends, and not longer than the certificate of the other end.
async fn speak_in_time(stream: Stream, listening: Rc<Listening>, peer: Peer, is_http2: Option<bool>) {
    let connection = Rc::clone(&peer.connection);
    let speaking = Box::pin(speak(stream, listening, peer, is_http2));
    match connection.ends() {
        None => speaking.await,
        Some(end) => {
            if timeout_at(end.into(), speaking).await.is_err() {
                tracing::debug!(remote = %connection.remote(), "the peer's certificate has ended, and its connection with it");
            }
        }
    }
}

/// The TLS handshake: who calls, and whether HTTP/2 was agreed on; `None` if it failed.
async fn shake(
    config: Arc<ServerConfig>,
    tcp: TcpStream,
    listening: &Listening,
    connection: Rc<Connection>,
) -> Option<(Stream, Peer, Option<bool>)> {
    shaken(TlsAcceptor::from(config).accept(tcp), listening, connection).await
}

/// The same for one that has begun.
async fn shaken(
    accepting: Accept<TcpStream>,
    listening: &Listening,
    connection: Rc<Connection>,
) -> Option<(Stream, Peer, Option<bool>)> {
    let tls = timeout(listening.timeouts.handshake, accepting).await.ok()?.ok()?;
    let is_edge = matches!(&*listening.side(), Side::Edge(_));
    let peer = if is_edge {
        connection.know(None, tls.get_ref().1.server_name(), None);
        listening.stranger(connection, true)
    } else {
        peer_of(listening, connection, tls.get_ref().1)?
    };
    let is_http2 = tls.get_ref().1.alpn_protocol().map(|chosen| chosen == b"h2");
    Some((Stream::Tls(Box::new(TlsStream::Server(tls))), peer, is_http2))
}

/// Who is at the other end, as its certificate says.
fn peer_of(listening: &Listening, connection: Rc<Connection>, tls: &rustls::ServerConnection) -> Option<Peer> {
    let chain = tls.peer_certificates()?;
    let identity = peer_identity(chain).ok()?;
    let mut hash = String::with_capacity(64);
    for byte in Sha256::digest(chain.first()?) {
        use std::fmt::Write as _;
        write!(hash, "{byte:02x}").ok()?;
    }
    let own = listening.keys.borrow().identity().to_uri();
    let uri = identity.to_uri();
    let certificate = format!("By={own};Hash={hash};URI={uri}");
    connection.know(Some(uri), tls.server_name(), Some(chain));
    Some(Peer { source: source_of(&identity), certificate, ..Peer::local(connection) })
}

/// Serves the version of HTTP that is spoken, which the first bytes tell where nobody has said it; or bare bytes.
async fn speak(stream: Stream, listening: Rc<Listening>, peer: Peer, is_http2: Option<bool>) {
    let protocol = listening.side().protocol();
    if !protocol.is_l7() {
        return Box::pin(tcp::serve(stream, listening, peer)).await;
    }
    let mut conn = Conn::new(stream);
    let is_http2 = match is_http2 {
        Some(known) => known,
        // What is neither version is refused by the reader of HTTP/1, with a status.
        None => match begins_http2(&mut conn, &listening).await {
            Some(told) => told,
            None => return,
        },
    };
    let read = std::mem::replace(&mut conn.read, BytesMut::new());
    if is_http2 {
        Box::pin(http2::serve(conn.stream, read, listening, peer)).await;
    } else {
        Box::pin(http1::serve(conn.stream, read, listening, peer)).await;
    }
}

/// Whether the first bytes of a connection say that it is HTTP/2; `None` if they do not come.
async fn begins_http2(conn: &mut Conn, listening: &Listening) -> Option<bool> {
    let mut leaves = false;
    loop {
        if let Some(told) = is_http2_preface(&conn.read) {
            return Some(told);
        }
        // A client that is connected and silent is idle, one that has begun is to go on.
        let is_idle = conn.read.is_empty();
        let patience = match is_idle {
            // Its first request may be on its way.
            true if leaves => listening.timeouts.leave,
            true => listening.patience(true),
            false => listening.timeouts.handshake,
        };
        tokio::select! {
            biased;
            read = conn.fill() => if !matches!(read, Ok(1..)) {
                return None;
            },
            () = sleep(patience) => return None,
            () = listening.drained(), if is_idle && !leaves => leaves = true,
        }
    }
}
