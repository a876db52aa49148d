//! Connections of clients that stand: what is known of each, for the log and for whoever looks.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::CertificateDer;
use starling_tls::valid_until;
use tokio::task::AbortHandle;

/// Time without bytes after which a connection whose meaning is not known can be closed to make room for another one.
const RELAY_RESTS_AFTER: Duration = Duration::from_secs(60);

/// Time before the end of its peer's certificate at which a connection takes no further request. Certificates are renewed
/// long before; a peer connects again with the new one.
const RETIRES_BEFORE: Duration = Duration::from_secs(30);

/// When the first certificate of a chain ends.
fn end_of(chain: &[CertificateDer<'_>]) -> Option<Instant> {
    let last = valid_until(Some(chain))?;
    let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(last.0.checked_add(1)?))?;
    Instant::now().checked_add(end.duration_since(SystemTime::now()).unwrap_or_default())
}

/// One connection.
pub(crate) struct Connection {
    remote: Cell<SocketAddr>,
    pub(crate) local: SocketAddr,
    pub(crate) since: Instant,
    /// Requests begun, where it is known what a request is.
    pub(crate) requests: Cell<u64>,
    peer: OnceCell<Known>,
    /// Requests under way.
    active: Cell<u32>,
    /// When it last carried anything.
    moved: Cell<Instant>,
    /// Bytes are passed on, and what they mean is not known.
    relays: Cell<bool>,
    task: OnceCell<AbortHandle>,
}

/// A request under way, until this is dropped.
pub(crate) struct Carrying(Rc<Connection>);

impl Drop for Carrying {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
        self.0.moved.set(Instant::now());
    }
}

struct Known {
    identity: Option<Box<str>>,
    server_name: Option<Box<str>>,
    /// The certificate of the other end and what is between it and its root, where it is of the mesh.
    chain: Box<[CertificateDer<'static>]>,
    ends: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(remote: SocketAddr, local: SocketAddr) -> Self {
        let now = Instant::now();
        Self {
            remote: Cell::new(remote),
            local,
            since: now,
            requests: Cell::new(0),
            peer: OnceCell::new(),
            active: Cell::new(0),
            moved: Cell::new(now),
            relays: Cell::new(false),
            task: OnceCell::new(),
        }
    }

    /// Notes the task that serves it.
    pub(crate) fn runs_as(&self, task: AbortHandle) {
        // There is one.
        let _ = self.task.set(task);
    }

    /// Ends it with whatever it carries.
    pub(crate) fn cut(&self) {
        self.task.get().iter().for_each(|task| task.abort());
    }

    /// It carries a request until the result is dropped.
    pub(crate) fn carries(self: &Rc<Self>) -> Carrying {
        self.active.set(self.active.get() + 1);
        Carrying(Rc::clone(self))
    }

    /// From now on bytes are passed on whose meaning is not known.
    pub(crate) fn relays(&self) {
        self.relays.set(true);
    }

    /// Some of them have moved at this time.
    pub(crate) fn moved_at(&self, now: Instant) {
        self.moved.set(now);
    }

    /// When it last carried anything, if it is idle now. One whose bytes are passed on is idle after a while without any.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.active.get() == 0 && (!self.relays.get() || self.moved.get().elapsed() >= RELAY_RESTS_AFTER);
        is_idle.then(|| self.moved.get())
    }

    /// Notes what the handshake told.
    pub(crate) fn know(
        &self,
        identity: Option<String>,
        server_name: Option<&str>,
        chain: Option<&[CertificateDer<'static>]>,
    ) {
        let known = Known {
            identity: identity.map(Into::into),
            server_name: server_name.map(Box::from),
            ends: chain.and_then(end_of),
            chain: chain.unwrap_or_default().into(),
        };
        // There is one handshake.
        let _ = self.peer.set(known);
    }

    /// Where it comes from.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote.get()
    }

    /// Notes where it comes from, as whoever passes it on says.
    pub(crate) fn comes_from(&self, remote: SocketAddr) {
        self.remote.set(remote);
    }

    /// The identity of the other end.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.peer.get()?.identity.as_deref()
    }

    /// The name that it asked for in the handshake.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.peer.get()?.server_name.as_deref()
    }

    /// The certificate that the other end has shown, with its chain.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        self.peer.get().map_or(&[], |known| &known.chain)
    }

    /// When that certificate ends, and with it the connection.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.peer.get()?.ends
    }

    /// From when on it takes no further request, so that none is cut off by its end.
    pub(crate) fn retires(&self) -> Option<Instant> {
        let ends = self.ends()?;
        Some(ends.checked_sub(RETIRES_BEFORE).unwrap_or(ends))
    }

    /// Another request begins.
    pub(crate) fn asked(&self) {
        self.requests.set(self.requests.get() + 1);
    }
}

/// The connections of one listener.
#[derive(Default)]
pub(crate) struct Connections {
    next: Cell<u64>,
    standing: RefCell<BTreeMap<u64, Rc<Connection>>>,
}

impl Connections {
    /// Notes one; the number lets go of it.
    pub(crate) fn add(&self, connection: Rc<Connection>) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.standing.borrow_mut().insert(number, connection);
        number
    }

    pub(crate) fn remove(&self, number: u64) {
        self.standing.borrow_mut().remove(&number);
    }

    /// How many stand.
    pub(crate) fn count(&self) -> usize {
        self.standing.borrow().len()
    }

    /// How many stand, and the first so many of them.
    pub(crate) fn first<T>(&self, most: usize, show: impl Fn(&Connection) -> T) -> (usize, Vec<T>) {
        let standing = self.standing.borrow();
        (standing.len(), standing.values().take(most).map(|connection| show(connection)).collect())
    }
}
