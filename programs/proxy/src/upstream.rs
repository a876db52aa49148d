//! Where calls go: the endpoints of one service as one worker sees them, their load, and connections kept for the next call.
//!
//! Cost model: a call costs a look at the slot, two loads compared, and a kept connection taken; other endpoints cost one
//! rebuilding of the list at the first call after their swap.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use starling_identity::Identity;
use starling_model::Protocol;
use starling_plan::plan::{Limits, LocalApp};
use starling_plan::{Cluster, Endpoints};
use starling_tls::Alpn;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::http2::client::Shared;
use crate::keys::Keys;
use crate::random::Random;
use crate::stream::{Conn, Stream};
use crate::workload::Slot;

/// How long a connection is kept without use. Shorter than the hour for which Envoy keeps its side open, so that it is
/// this side that closes.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(60);

/// Connections kept to one endpoint by one worker.
const IDLE_CONNECTIONS_MAX: usize = 1_024;

/// Concurrent calls to one service by one worker, where nothing is said; as with the Envoy that Starling configures.
const CALLS_MAX: u32 = 16_384;

/// Why a call cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("no endpoint of {0} is in order")]
    NoEndpoint(String),
    #[error("too many calls to {0} are under way")]
    Overloaded(String),
    #[error("cannot connect to {address}")]
    Connect { address: String, source: io::Error },
}

/// What calls of one service go to.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    place: Place,
    tls: Option<Tls>,
    connect_timeout: Duration,
    limits: Limits,
    active: Cell<u32>,
    hosts: RefCell<Hosts>,
    random: Rc<Random>,
}

/// Where its endpoints are.
enum Place {
    Slot(Arc<Slot<Endpoints>>),
    App(LocalApp),
}

struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

#[derive(Default)]
struct Hosts {
    /// What the list was made from.
    seen: Option<Arc<Endpoints>>,
    list: Vec<Rc<Host>>,
}

/// One endpoint.
pub(crate) struct Host {
    /// `None` for an application that is known by name.
    address: Option<SocketAddr>,
    weight: u32,
    active: Cell<u32>,
    /// Whether it is still an endpoint: connections of one that is not are not kept.
    current: Cell<bool>,
    idle: RefCell<Vec<(Conn, Instant)>>,
    /// Connections of HTTP/2, and when each was last found in use.
    shared: RefCell<Vec<(Shared, Instant)>>,
    /// One opens a shared connection at a time.
    opening: Semaphore,
}

impl Host {
    fn new(address: Option<SocketAddr>, weight: u32) -> Rc<Self> {
        let (active, current) = (Cell::new(0), Cell::new(true));
        let (idle, shared, opening) = (RefCell::default(), RefCell::default(), Semaphore::new(1));
        Rc::new(Self { address, weight, active, current, idle, shared, opening })
    }

    /// A shared connection with room for another call.
    fn shared(&self) -> Option<Shared> {
        let mut shared = self.shared.borrow_mut();
        shared.retain(|(shared, _)| !shared.is_closed());
        shared.iter().find(|(shared, _)| shared.has_room()).map(|(shared, _)| shared.clone())
    }

    /// Lets go of every connection; calls under way end theirs.
    fn leave(&self) {
        self.current.set(false);
        self.idle.borrow_mut().clear();
        self.shared.borrow_mut().clear();
    }

    /// A kept connection that is still good.
    fn take_idle(&self) -> Option<Conn> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let (mut conn, since) = self.idle.borrow_mut().pop()?;
            if since.elapsed() < IDLE_MAX && !conn.is_stale(&mut cx) {
                return Some(conn);
            }
        }
    }

    fn sweep(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        self.idle.borrow_mut().retain_mut(|(conn, since)| since.elapsed() < IDLE_MAX && !conn.is_stale(&mut cx));
        self.shared.borrow_mut().retain_mut(|(shared, used)| {
            if !shared.is_idle() {
                *used = Instant::now();
            }
            !shared.is_closed() && used.elapsed() < IDLE_MAX
        });
    }
}

/// A call, counted as load of its endpoint until it is dropped.
pub(crate) struct Load {
    host: Rc<Host>,
    upstream: Rc<Upstream>,
}

/// A connection for one call.
pub(crate) struct Lease {
    pub(crate) conn: Option<Conn>,
    /// Whether it was used before: the other end may have closed it meanwhile.
    pub(crate) reused: bool,
    load: Load,
}

impl Lease {
    /// Keeps the connection for the next call.
    pub(crate) fn keep(mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        conn.rest();
        let host = &self.load.host;
        let mut idle = host.idle.borrow_mut();
        if host.current.get() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push((conn, Instant::now()));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.host.active.set(self.host.active.get() - 1);
        self.upstream.active.set(self.upstream.active.get() - 1);
    }
}

impl Upstream {
    /// A service of the mesh.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn service(
        cluster: &Cluster,
        endpoints: Arc<Slot<Endpoints>>,
        keys: &Keys,
        random: Rc<Random>,
    ) -> anyhow::Result<Rc<Self>> {
        let alpn = match cluster.protocol {
            Protocol::Tcp => Alpn::Opaque,
            Protocol::Http => Alpn::Http1,
            Protocol::Http2 | Protocol::Grpc => Alpn::Http2,
        };
        let config = Arc::new(keys.client(Identity::Workload(cluster.identity.clone()), alpn)?);
        let tls = Tls { config, name: ServerName::try_from(cluster.sni.clone())? };
        Ok(Rc::new(Self {
            name: cluster.sni.clone(),
            protocol: cluster.protocol,
            place: Place::Slot(endpoints),
            tls: Some(tls),
            connect_timeout: cluster.connect_timeout,
            limits: cluster.limits,
            active: Cell::new(0),
            hosts: RefCell::default(),
            random,
        }))
    }

    /// The application itself.
    pub(crate) fn app(app: &LocalApp, protocol: Protocol, random: Rc<Random>) -> Rc<Self> {
        let address = app.address.parse().ok().map(|ip| SocketAddr::new(ip, app.port));
        let hosts = Hosts { seen: None, list: vec![Host::new(address, 1)] };
        Rc::new(Self {
            name: "local_app".to_owned(),
            protocol,
            place: Place::App(app.clone()),
            tls: None,
            connect_timeout: app.connect_timeout,
            limits: Limits::default(),
            active: Cell::new(0),
            hosts: RefCell::new(hosts),
            random,
        })
    }

    /// Takes a connection for one call: one that is kept, or a new one.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) async fn lease(self: &Rc<Self>, fresh: bool) -> Result<Lease, CallError> {
        let load = self.admit()?;
        if !fresh && let Some(conn) = load.host.take_idle() {
            return Ok(Lease { conn: Some(conn), reused: true, load });
        }
        let conn = Conn::new(self.connect(load.host.address).await?);
        Ok(Lease { conn: Some(conn), reused: false, load })
    }

    /// Takes a share in an HTTP/2 connection: one that has room, or a new one.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) async fn share(self: &Rc<Self>) -> Result<(Shared, Load), CallError> {
        let load = self.admit()?;
        if let Some(shared) = load.host.shared() {
            return Ok((shared, load));
        }
        // Those who come meanwhile wait for the same connection instead of opening one each.
        let host = Rc::clone(&load.host);
        let _turn = host.opening.acquire().await;
        if let Some(shared) = load.host.shared() {
            return Ok((shared, load));
        }
        let stream = self.connect(load.host.address).await?;
        let opened = Shared::open(stream).await;
        let shared = opened.map_err(|error| CallError::Connect {
            address: load.host.address.map(|it| it.to_string()).unwrap_or_default(),
            source: io::Error::other(error),
        })?;
        if load.host.current.get() {
            load.host.shared.borrow_mut().push((shared.clone(), Instant::now()));
        }
        Ok((shared, load))
    }

    /// Chooses an endpoint, within the limits.
    fn admit(self: &Rc<Self>) -> Result<Load, CallError> {
        if self.active.get() >= self.limits.concurrent_requests.unwrap_or(CALLS_MAX) {
            return Err(CallError::Overloaded(self.name.clone()));
        }
        let host = self.pick().ok_or_else(|| CallError::NoEndpoint(self.name.clone()))?;
        host.active.set(host.active.get() + 1);
        self.active.set(self.active.get() + 1);
        Ok(Load { host, upstream: Rc::clone(self) })
    }

    /// The less loaded of two.
    fn pick(&self) -> Option<Rc<Host>> {
        if let Place::Slot(slot) = &self.place {
            self.follow(slot);
        }
        let hosts = self.hosts.borrow();
        match &hosts.list[..] {
            [] => None,
            [only] => Some(Rc::clone(only)),
            list => {
                let (one, other) = self.random.two_of(list.len());
                let load = |host: &Host| u64::from(host.active.get() + 1);
                let (one, other) = (&list[one], &list[other]);
                let one_is_lighter = load(one) * u64::from(other.weight) <= load(other) * u64::from(one.weight);
                Some(Rc::clone(if one_is_lighter { one } else { other }))
            }
        }
    }

    /// Brings the list into line with the slot, if that is another one. Endpoints that stay keep their connections.
    fn follow(&self, slot: &Slot<Endpoints>) {
        let current = slot.peek();
        let mut hosts = self.hosts.borrow_mut();
        if hosts.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &current)) {
            return;
        }
        let old = std::mem::take(&mut hosts.list);
        for endpoint in &current.endpoints {
            let address = SocketAddr::new(endpoint.address, endpoint.port);
            let same = |host: &&Rc<Host>| host.address == Some(address) && host.weight == endpoint.weight;
            let host = old.iter().find(same).cloned();
            hosts.list.push(host.unwrap_or_else(|| Host::new(Some(address), endpoint.weight)));
        }
        for gone in old.iter().filter(|host| !hosts.list.iter().any(|kept| Rc::ptr_eq(kept, host))) {
            gone.leave();
        }
        hosts.seen = Some(Arc::clone(&current));
    }

    async fn connect(&self, address: Option<SocketAddr>) -> Result<Stream, CallError> {
        let told = || match (&self.place, address) {
            (Place::App(app), None) => format!("{}:{}", app.address, app.port),
            (Place::App(_) | Place::Slot(_), address) => address.map(|it| it.to_string()).unwrap_or_default(),
        };
        let connected = timeout(self.connect_timeout, self.dial(address)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|source| CallError::Connect { address: told(), source })
    }

    async fn dial(&self, address: Option<SocketAddr>) -> io::Result<Stream> {
        let tcp = match (address, &self.place) {
            (Some(address), _) => TcpStream::connect(address).await?,
            (None, Place::App(app)) => TcpStream::connect((app.address.as_str(), app.port)).await?,
            (None, Place::Slot(_)) => return Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(tcp)) };
        let connector = TlsConnector::from(Arc::clone(&tls.config));
        let stream = connector.connect(tls.name.clone(), tcp).await?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }

    /// Lets go of kept connections that are of no more use.
    pub(crate) fn sweep(&self) {
        for host in &self.hosts.borrow().list {
            host.sweep();
        }
    }
}
