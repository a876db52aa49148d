//! One endpoint as one worker sees it: its load, what it was last like, and connections kept for the next call.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use starling_traffic::balance;
use starling_traffic::eject::Record;
use tokio::sync::Semaphore;

use crate::http2::client::Shared;
use crate::stream::Conn;

/// How long a connection is kept without use. Shorter than the hour for which Envoy keeps its side open, so that it is
/// this side that closes.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(60);

/// Seconds after which an old peak of latency counts a third.
const LATENCY_DECAY_S: f64 = 10.0;

/// As how many calls under way a connection that is being made counts: calls go where connections are kept, and an endpoint
/// that has just come takes its share as it becomes ready, instead of half of all calls waiting for handshakes at once.
const CALLS_OF_DIALLING: u32 = 64;

/// One endpoint.
pub(crate) struct Host {
    /// `None` for what is known by name.
    pub(crate) address: Option<SocketAddr>,
    /// Host and port, where it is known by name and has no address.
    pub(crate) name: Option<(String, u16)>,
    pub(crate) weight: u32,
    /// Which of its upstream's identities it has to show, by place.
    pub(crate) tls: usize,
    pub(crate) active: Cell<u32>,
    /// Connections that are being made.
    dialling: Cell<u32>,
    pub(crate) record: Cell<Record>,
    /// What calls take, microseconds: an average that heeds peaks; and when it was last brought up to date.
    latency_us: Cell<f64>,
    measured: Cell<Option<Instant>>,
    /// Whether it is still an endpoint: connections of one that is not are not kept.
    pub(crate) current: Cell<bool>,
    pub(crate) idle: RefCell<Vec<(Conn, Instant)>>,
    /// Connections of HTTP/2, and when each was last found in use.
    pub(crate) shared: RefCell<Vec<(Shared, Instant)>>,
    /// One opens a shared connection at a time.
    pub(crate) opening: Semaphore,
    /// When it could last not be connected to.
    pub(crate) unreachable: Cell<Option<Instant>>,
    /// Connections to it that stand, where they are limited.
    pub(crate) connections: Rc<Cell<u32>>,
}

/// A connection that is being made.
pub(crate) struct Dialling<'a>(&'a Host);

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.dialling.set(self.0.dialling.get() - 1);
    }
}

impl Host {
    pub(crate) fn new(address: Option<SocketAddr>, weight: u32, tls: usize) -> Rc<Self> {
        Rc::new(Self::of(address, None, weight, tls))
    }

    /// One that is known by name: host and port.
    pub(crate) fn named(name: (String, u16), weight: u32) -> Rc<Self> {
        Rc::new(Self::of(None, Some(name), weight, 0))
    }

    fn of(address: Option<SocketAddr>, name: Option<(String, u16)>, weight: u32, tls: usize) -> Self {
        let (active, current, record) = (Cell::new(0), Cell::new(true), Cell::default());
        let (idle, shared, opening) = (RefCell::default(), RefCell::default(), Semaphore::new(1));
        let (latency_us, measured, unreachable) = (Cell::new(0.0), Cell::new(None), Cell::new(None));
        let connections = Rc::default();
        Self {
            address,
            name,
            weight,
            tls,
            active,
            dialling: Cell::new(0),
            record,
            latency_us,
            measured,
            current,
            idle,
            shared,
            opening,
            unreachable,
            connections,
        }
    }

    pub(crate) fn load(&self) -> balance::Load {
        let waiting = self.dialling.get().saturating_mul(CALLS_OF_DIALLING);
        balance::Load { active: self.active.get().saturating_add(waiting), latency_us: self.latency_us.get() }
    }

    /// A connection is being made until what this gives is dropped.
    pub(crate) fn dial(&self) -> Dialling<'_> {
        self.dialling.set(self.dialling.get() + 1);
        Dialling(self)
    }

    /// A slower call counts at once, a faster one by how long ago the last one was.
    pub(crate) fn measure(&self, took: Duration, now: Instant) {
        let (old, new) = (self.latency_us.get(), took.as_secs_f64() * 1e6);
        let since = self.measured.replace(Some(now)).map_or(f64::INFINITY, |last| (now - last).as_secs_f64());
        let kept = (-since / LATENCY_DECAY_S).exp();
        self.latency_us.set(if new >= old { new } else { old * kept + new * (1.0 - kept) });
    }

    /// A shared connection with room for another call.
    pub(crate) fn shared(&self) -> Option<Shared> {
        let mut shared = self.shared.borrow_mut();
        shared.retain(|(shared, _)| !shared.is_closed());
        shared.iter().find(|(shared, _)| shared.has_room()).map(|(shared, _)| shared.clone())
    }

    /// A shared connection, whether or not it has room.
    pub(crate) fn any_shared(&self) -> Option<Shared> {
        let shared = self.shared.borrow();
        let mut open = shared.iter().filter(|(shared, _)| !shared.is_closed());
        open.next().map(|(shared, _)| shared.clone())
    }

    /// Lets go of every connection; calls under way end theirs.
    pub(crate) fn leave(&self) {
        self.current.set(false);
        self.idle.borrow_mut().clear();
        self.shared.borrow_mut().clear();
    }

    /// A kept connection that is still good.
    pub(crate) fn take_idle(&self) -> Option<Conn> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let (mut conn, since) = self.idle.borrow_mut().pop()?;
            if since.elapsed() < IDLE_MAX && !conn.is_stale(&mut cx) {
                return Some(conn);
            }
        }
    }

    pub(crate) fn sweep(&self) {
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
