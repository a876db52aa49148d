//! Where calls go: the endpoints of one service as one worker sees them, their load, and connections kept for the next call.
//!
//! Cost model: a call costs a look at the slot, two loads compared, and a kept connection taken; other endpoints cost one
//! rebuilding of the list at the first call after their swap.

mod outside;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use starling_identity::{Identity, SpiffeId};
use starling_model::{BalancePolicy, PassiveHealthCheck, Protocol, RetryBudget};
use starling_plan::plan::LocalApp;
use starling_plan::{Cluster, Endpoints, Origins, is_local};
use starling_tls::Alpn;
use starling_traffic::balance::{Balancer, Question};
use starling_traffic::eject::Others;
use starling_traffic::limit::may_retry;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::exits::origin_tls::OriginTlsConfig;
use crate::host::Host;
use crate::http2::client::Shared;
use crate::keys::Keys;
use crate::listener::prepare;
use crate::metrics::SideMetrics;
use crate::quota::{Counted, Quota, Usage};
use crate::room::may_keep;
use crate::snapshot::{HostSnapshot, UpstreamSnapshot};
use crate::stream::{Conn, Stream};
use crate::workload::Slot;

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
    Connect {
        address: String,
        /// `None` for an application that is known by name.
        host: Option<SocketAddr>,
        source: io::Error,
    },
}

impl CallError {
    /// The endpoint that could not be connected to.
    pub(crate) fn host(&self) -> Option<SocketAddr> {
        match self {
            Self::Connect { host, .. } => *host,
            Self::NoEndpoint(_) | Self::Overloaded(_) => None,
        }
    }
}

/// What is said of the endpoint of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    /// What stays with one endpoint has one hash.
    pub(crate) hash: Option<u64>,
    /// The one that has just failed, which is taken only if there is no other.
    pub(crate) not: Option<SocketAddr>,
}

/// What calls of one service go to.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    place: Place,
    /// By whose endpoints are called: the service's own first, then those of its failover.
    tls: Vec<Tls>,
    check: Option<PassiveHealthCheck>,
    balance: BalancePolicy,
    retry_budget: Option<RetryBudget>,
    connect_timeout: Duration,
    /// What of it is limited; `None` for nothing.
    quota: Option<Quota>,
    active: Cell<u32>,
    retries: Cell<u32>,
    hosts: RefCell<Hosts>,
    began: Instant,
    pub(crate) metrics: Rc<SideMetrics>,
}

/// Where its endpoints are.
enum Place {
    Slot(Arc<Slot<Endpoints>>),
    App(LocalApp),
    /// Outside the mesh; and how it is called where it wants TLS.
    Outside(Arc<Slot<Origins>>, Option<Arc<OriginTlsConfig>>),
}

/// How endpoints of one identity are called. The configuration is made at the first call: most of what a large plan names is
/// never called.
struct Tls {
    identity: SpiffeId,
    alpn: Alpn,
    keys: Arc<Keys>,
    config: OnceCell<Arc<ClientConfig>>,
    name: ServerName<'static>,
}

impl Tls {
    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let made = self.keys.client(Identity::Workload(self.identity.clone()), self.alpn).map_err(io::Error::other)?;
        Ok(Arc::clone(self.config.get_or_init(|| Arc::new(made))))
    }
}

#[derive(Default)]
struct Hosts {
    /// What the list was made from.
    seen: Option<Arc<Endpoints>>,
    /// The same of a service outside.
    seen_outside: Option<Arc<Origins>>,
    list: Vec<Rc<Host>>,
    balancer: Option<Balancer>,
    /// Whether any of them may be left out now.
    any_out: bool,
}

/// A call, counted as load of its endpoint until it is dropped.
pub(crate) struct Load {
    host: Rc<Host>,
    upstream: Rc<Upstream>,
    /// When it began, where that is of use.
    began: Option<Instant>,
    _counted: Option<Counted>,
}

/// A connection for one call.
pub(crate) struct Lease {
    pub(crate) conn: Option<Conn>,
    /// Whether it was used before: the other end may have closed it meanwhile.
    pub(crate) reused: bool,
    load: Load,
}

impl Load {
    /// The endpoint; `None` for an application that is known by name.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.host.address
    }

    /// How the call ended, as far as its endpoint is concerned.
    pub(crate) fn ended(&self, well: bool) {
        self.upstream.settle(&self.host, well);
    }
}

impl Lease {
    /// The endpoint; `None` for an application that is known by name.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.load.address()
    }

    /// How the call ended, as far as its endpoint is concerned.
    pub(crate) fn ended(&self, well: bool) {
        self.load.ended(well);
    }

    /// Keeps the connection for the next call.
    pub(crate) fn keep(mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        conn.rest();
        let host = &self.load.host;
        let mut idle = host.idle.borrow_mut();
        if host.current.get() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push((conn, Instant::now()));
            if let Some(quota) = &self.load.upstream.quota {
                quota.free();
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(began) = self.began {
            let now = Instant::now();
            self.host.measure(now - began, now);
        }
        self.host.active.set(self.host.active.get() - 1);
        self.upstream.active.set(self.upstream.active.get() - 1);
    }
}

/// A retry under way.
pub(crate) struct Retry(Rc<Upstream>);

impl Drop for Retry {
    fn drop(&mut self) {
        self.0.retries.set(self.0.retries.get() - 1);
    }
}

impl Upstream {
    /// Whether its endpoints are workloads of the mesh, and show certificates of it.
    pub(crate) fn is_in_mesh(&self) -> bool {
        matches!(self.place, Place::Slot(_))
    }

    /// A service of the mesh.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn service(
        cluster: &Cluster,
        (endpoints, usage): (Arc<Slot<Endpoints>>, Option<Arc<Usage>>),
        keys: &Arc<Keys>,
        metrics: Rc<SideMetrics>,
    ) -> anyhow::Result<Rc<Self>> {
        let alpn = match cluster.protocol {
            Protocol::Tcp => Alpn::Opaque,
            Protocol::Http => Alpn::Http1,
            Protocol::Http2 | Protocol::Grpc => Alpn::Http2,
        };
        let name = ServerName::try_from(cluster.sni.clone())?;
        let tls = std::iter::once(&cluster.identity).chain(&cluster.failover_identities).map(|identity| {
            let (identity, keys) = (identity.clone(), Arc::clone(keys));
            Tls { identity, alpn, keys, config: OnceCell::new(), name: name.clone() }
        });
        let tls = tls.collect();
        Ok(Rc::new(Self {
            name: cluster.sni.clone(),
            protocol: cluster.protocol,
            place: Place::Slot(endpoints),
            tls,
            check: cluster.outlier,
            balance: cluster.balance,
            retry_budget: cluster.retry_budget,
            connect_timeout: cluster.connect_timeout,
            quota: usage.map(|usage| Quota::new(cluster.limits, usage)),
            active: Cell::new(0),
            retries: Cell::new(0),
            hosts: RefCell::default(),
            began: Instant::now(),
            metrics,
        }))
    }

    /// The application itself.
    pub(crate) fn app(app: &LocalApp, protocol: Protocol, metrics: Rc<SideMetrics>) -> Rc<Self> {
        let address = app.address.parse().ok().map(|ip| SocketAddr::new(ip, app.port));
        let hosts = Hosts { list: vec![Host::new(address, 1, 0)], ..Hosts::default() };
        Rc::new(Self {
            name: "local_app".to_owned(),
            protocol,
            place: Place::App(app.clone()),
            tls: Vec::new(),
            check: None,
            balance: BalancePolicy::default(),
            retry_budget: None,
            connect_timeout: app.connect_timeout,
            quota: None,
            active: Cell::new(0),
            retries: Cell::new(0),
            hosts: RefCell::new(hosts),
            began: Instant::now(),
            metrics,
        })
    }

    /// Takes a connection for one call: one that is kept, or a new one. Waits where there may be no more of them.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) async fn lease(self: &Rc<Self>, fresh: bool, wish: Wish) -> Result<Lease, CallError> {
        let mut load = self.admit(wish)?;
        if !fresh && let Some(conn) = load.host.take_idle() {
            return Ok(Lease { conn: Some(conn), reused: true, load });
        }
        let Some(quota) = &self.quota else {
            let conn = Conn::new(self.connect(&load.host).await?);
            return Ok(Lease { conn: Some(conn), reused: false, load });
        };
        let _pending = quota.wait().ok_or_else(|| self.overloaded())?;
        let until = tokio::time::Instant::now() + self.connect_timeout;
        loop {
            if !load.host.current.get() {
                // It was an endpoint when it was chosen.
                drop(load);
                load = self.admit(wish)?;
            }
            let mut freed = pin!(quota.freed());
            freed.as_mut().enable();
            let idle = load.host.take_idle();
            if !fresh && let Some(conn) = idle {
                return Ok(Lease { conn: Some(conn), reused: true, load });
            }
            // Whoever wants a new one has it in a kept one's place.
            if let Some(opened) = quota.open(&load.host.connections) {
                let conn = Conn::counted(self.connect(&load.host).await?, opened);
                return Ok(Lease { conn: Some(conn), reused: false, load });
            }
            tokio::time::timeout_at(until, freed).await.map_err(|_| self.overloaded())?;
        }
    }

    /// Takes a share in an HTTP/2 connection: one that has room, or a new one. Where there may be no more of them, calls wait
    /// in those that there are.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) async fn share(self: &Rc<Self>, wish: Wish) -> Result<(Shared, Load), CallError> {
        let load = self.admit(wish)?;
        if let Some(shared) = load.host.shared() {
            return Ok((shared, load));
        }
        let _pending = match &self.quota {
            Some(quota) => Some(quota.wait().ok_or_else(|| self.overloaded())?),
            None => None,
        };
        // Those who come meanwhile wait for the same connection instead of opening one each.
        let (host, since) = (Rc::clone(&load.host), Instant::now());
        let _turn = host.opening.acquire().await;
        if let Some(shared) = load.host.shared() {
            return Ok((shared, load));
        }
        // What was just found out is not found out once more by each of them.
        if host.unreachable.get().is_some_and(|found| found > since) {
            let source = io::Error::other("another call has just failed to connect");
            return Err(self.unreachable(&host, source));
        }
        let mut opened = None;
        while let Some(quota) = &self.quota {
            let mut freed = pin!(quota.freed());
            freed.as_mut().enable();
            opened = quota.open(&host.connections);
            if opened.is_some() {
                break;
            }
            if let Some(shared) = host.any_shared() {
                return Ok((shared, load));
            }
            timeout(self.connect_timeout, freed).await.map_err(|_| self.overloaded())?;
        }
        let stream = self.connect(&load.host).await?;
        let shared = Shared::open(stream, opened, !matches!(self.place, Place::App(_))).await;
        let shared = shared.map_err(|error| {
            self.settle(&host, false);
            self.unreachable(&host, io::Error::other(error))
        })?;
        if load.host.current.get() {
            load.host.shared.borrow_mut().push((shared.clone(), Instant::now()));
        }
        Ok((shared, load))
    }

    fn overloaded(&self) -> CallError {
        CallError::Overloaded(self.name.clone())
    }

    /// Chooses an endpoint, within the limits.
    fn admit(self: &Rc<Self>, wish: Wish) -> Result<Load, CallError> {
        if self.active.get() >= CALLS_MAX {
            return Err(self.overloaded());
        }
        let counted = match &self.quota {
            Some(quota) => Some(quota.call().ok_or_else(|| self.overloaded())?),
            None => None,
        };
        let host = self.pick(wish).ok_or_else(|| CallError::NoEndpoint(self.name.clone()))?;
        host.active.set(host.active.get() + 1);
        self.active.set(self.active.get() + 1);
        let began = (self.balance == BalancePolicy::PeakEwma).then(Instant::now);
        Ok(Load { host, upstream: Rc::clone(self), began, _counted: counted })
    }

    fn pick(&self, Wish { hash, not }: Wish) -> Option<Rc<Host>> {
        match &self.place {
            Place::Slot(slot) => self.follow(slot),
            Place::Outside(slot, _) => self.follow_outside(slot),
            Place::App(_) => {}
        }
        let mut hosts = self.hosts.borrow_mut();
        let Hosts { list, balancer, any_out, .. } = &mut *hosts;
        if let [only] = &list[..] {
            return Some(Rc::clone(only));
        }
        let now = if *any_out { self.millis() } else { 0 };
        let question = Question {
            hash,
            random: &|| fastrand::u64(..),
            load: &|place| list[place].load(),
            left_out: &|place| {
                let host = &list[place];
                (*any_out && host.record.get().is_out(now)) || (not.is_some() && host.address == not)
            },
        };
        let place = balancer.as_mut()?.pick(&question)?;
        Some(Rc::clone(&list[place]))
    }

    /// Brings the list into line with the slot, if that is another one. Endpoints that stay keep their connections.
    fn follow(&self, slot: &Slot<Endpoints>) {
        let current = slot.peek();
        let mut hosts = self.hosts.borrow_mut();
        if hosts.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &current)) {
            return;
        }
        let own = (&current.service, &current.endpoints);
        let others = current.failover.iter().map(|group| (&group.target.service, &group.endpoints));
        let mut groups = std::iter::once(own).chain(others);
        let (service, endpoints) = groups.find(|(_, endpoints)| !endpoints.is_empty()).unwrap_or(own);
        let tls = self.tls.iter().position(|tls| tls.identity.service == *service).unwrap_or(0);
        let mut old: BTreeMap<_, _> =
            hosts.list.drain(..).map(|host| ((host.address, host.weight, host.tls), host)).collect();
        for endpoint in endpoints {
            let address = Some(SocketAddr::new(endpoint.address, endpoint.port));
            let kept = old.remove(&(address, endpoint.weight, tls));
            hosts.list.push(kept.unwrap_or_else(|| Host::new(address, endpoint.weight, tls)));
        }
        old.values().for_each(|gone| gone.leave());
        let named: Vec<_> = endpoints.iter().map(|it| (format!("{}:{}", it.address, it.port), it.weight)).collect();
        hosts.balancer = Some(Balancer::new(self.balance, &named));
        hosts.seen = Some(Arc::clone(&current));
    }

    /// Notes how a call ended at an endpoint, and leaves the endpoint out for a while if it fails again and again.
    fn settle(&self, host: &Host, well: bool) {
        let Some(check) = &self.check else { return };
        let mut record = host.record.get();
        if well {
            record.succeeded();
        } else {
            let now = self.millis();
            let mut hosts = self.hosts.borrow_mut();
            let ejected = hosts.list.iter().filter(|host| host.record.get().is_out(now)).count();
            let others = Others { total: hosts.list.len(), ejected };
            if record.failed(check, others, now, fastrand::u64(..)) {
                hosts.any_out = true;
                self.metrics.ejected();
            }
        }
        host.record.set(record);
    }

    /// Notes that an endpoint did not answer in time.
    pub(crate) fn given_up(&self, address: Option<SocketAddr>) {
        let host = self.hosts.borrow().list.iter().find(|host| host.address == address).map(Rc::clone);
        host.iter().for_each(|host| self.settle(host, false));
    }

    /// Milliseconds since this began.
    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether another retry may begin when `ending` of those under way are over.
    pub(crate) fn may_retry(&self, budget: Option<RetryBudget>, ending: u32) -> bool {
        may_retry(budget.or(self.retry_budget), self.active.get(), self.retries.get() - ending)
    }

    /// Begins a retry.
    pub(crate) fn retry(self: &Rc<Self>) -> Retry {
        self.retries.set(self.retries.get() + 1);
        self.metrics.retried();
        Retry(Rc::clone(self))
    }

    async fn connect(&self, host: &Host) -> Result<Stream, CallError> {
        let shaking = Cell::new(false);
        let _dialling = host.dial();
        let connected = timeout(self.connect_timeout, self.dial(host, &shaking)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|source| {
            self.metrics.connect_failed();
            self.settle(host, false);
            host.unreachable.set(Some(Instant::now()));
            if shaking.get() {
                self.metrics.upstream_handshake_failed();
            }
            self.unreachable(host, source)
        })
    }

    /// That an endpoint cannot be connected to.
    fn unreachable(&self, host: &Host, source: io::Error) -> CallError {
        let address = match (&self.place, host.address) {
            (_, Some(address)) => address.to_string(),
            (Place::App(app), None) => format!("{}:{}", app.address, app.port),
            (Place::Slot(_) | Place::Outside(..), None) => {
                host.name.as_ref().map(|(name, port)| format!("{name}:{port}")).unwrap_or_default()
            }
        };
        CallError::Connect { address, host: host.address, source }
    }

    /// Connects to what a name turns out to be, but not to this machine where that is shunned.
    async fn dial_named(&self, (name, port): &(String, u16)) -> io::Result<TcpStream> {
        let shuns_local = matches!(&self.place, Place::Outside(slot, _) if slot.peek().shuns_local);
        if !shuns_local {
            return TcpStream::connect((name.as_str(), *port)).await;
        }
        let found = tokio::net::lookup_host((name.as_str(), *port)).await?;
        let addresses: Vec<_> = found.filter(|address| !is_local(address.ip())).collect();
        if addresses.is_empty() {
            let reason = "it is an address of the gateway's own machine or link, and its service is linked by *";
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, reason));
        }
        TcpStream::connect(addresses.as_slice()).await
    }

    /// Connects; `shaking` says whether the TLS handshake has begun.
    async fn dial(&self, host: &Host, shaking: &Cell<bool>) -> io::Result<Stream> {
        let tcp = match (host.address, &self.place) {
            (Some(address), _) => TcpStream::connect(address).await?,
            (None, Place::App(app)) => TcpStream::connect((app.address.as_str(), app.port)).await?,
            (None, Place::Slot(_) | Place::Outside(..)) => match &host.name {
                Some(name) => self.dial_named(name).await?,
                None => return Err(io::ErrorKind::AddrNotAvailable.into()),
            },
        };
        may_keep(&tcp)?;
        prepare(&tcp, tcp.peer_addr()?)?;
        if let Place::Outside(_, Some(tls)) = &self.place {
            shaking.set(true);
            // Without a name nothing is asked for, and none is looked for in the certificate.
            let nameless = ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into());
            let name = tls.name().cloned().unwrap_or(nameless);
            let stream = TlsConnector::from(tls.config()).connect(name, tcp).await?;
            return Ok(Stream::Tls(Box::new(TlsStream::Client(stream))));
        }
        let Some(tls) = self.tls.get(host.tls) else { return Ok(Stream::Plain(tcp)) };
        let connector = TlsConnector::from(tls.config()?);
        shaking.set(true);
        let stream = connector.connect(tls.name.clone(), tcp).await?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }

    pub(crate) fn snapshot(&self) -> UpstreamSnapshot {
        let now = self.millis();
        let host = |host: &Rc<Host>| HostSnapshot {
            address: host.address,
            weight: host.weight,
            calls: host.active.get(),
            ejected: host.record.get().is_out(now),
            idle_connections: host.idle.borrow().len(),
            shared_connections: host.shared.borrow().len(),
        };
        let hosts = self.hosts.borrow().list.iter().map(host).collect();
        UpstreamSnapshot { name: self.name.clone(), protocol: self.protocol, calls: self.active.get(), hosts }
    }

    /// Lets go of kept connections that are of no more use.
    pub(crate) fn sweep(&self) {
        for host in &self.hosts.borrow().list {
            host.sweep();
        }
    }
}
