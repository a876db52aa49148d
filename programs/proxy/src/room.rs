//! Places of one worker: which connections are admitted, and which idle one makes room.
//!
//! A worker has its part of the process's share, so nothing is shared on the way. The rules are those of
//! `core/admission`. Cost model: a request costs nothing here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use starling_admission::{Entry, Gate, Limits, Origin, Share, Tally, Ticket};
use tokio::net::TcpStream;

use crate::connections::Connection;

/// Connections of one worker, however small the share of the process is.
const PLACES_MIN: usize = 32;

/// Newcomers that take the place of others before the listener rests.
const SHED_AT_ONCE: u32 = 8;

/// How long it rests then: who opens connections as fast as they are closed costs other listeners little.
pub(crate) const SHED_REST: Duration = Duration::from_millis(10);

thread_local! {
    /// Descriptors from this one on are for other parts of the process.
    static CEILING: Cell<i32> = const { Cell::new(i32::MAX) };
}

/// The places of one worker.
pub(crate) struct Room {
    began: Instant,
    share: Share,
    gate: RefCell<Gate>,
    seats: RefCell<BTreeMap<Ticket, Rc<Connection>>>,
    listeners: Cell<u32>,
    refused: RefCell<Tally>,
    shed: RefCell<Tally>,
    failed: RefCell<Tally>,
    /// Since when, and how many newcomers have taken the places of others.
    shedding: Cell<(Instant, u32)>,
}

/// A place of one connection, until this is dropped.
pub(crate) struct Seat {
    room: Rc<Room>,
    ticket: Ticket,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.gate.borrow_mut().leave(self.ticket);
        self.room.seats.borrow_mut().remove(&self.ticket);
    }
}

impl Room {
    /// The places of one of so many workers.
    pub(crate) fn new(share: Share, workers: usize) -> Rc<Self> {
        CEILING.set(share.descriptors);
        let places = (share.connections / workers.max(1)).max(PLACES_MIN);
        let now = Instant::now();
        Rc::new(Self {
            began: now,
            share,
            gate: RefCell::new(Gate::new(Limits::shared(places))),
            seats: RefCell::default(),
            listeners: Cell::new(0),
            refused: RefCell::default(),
            shed: RefCell::default(),
            failed: RefCell::default(),
            shedding: Cell::new((now, 0)),
        })
    }

    /// A number for another listener.
    pub(crate) fn listener(&self) -> u32 {
        self.listeners.set(self.listeners.get().wrapping_add(1));
        self.listeners.get()
    }

    /// Lets a connection in at a listener, in the place of an idle one if need be; `None` if it is to be closed.
    pub(crate) fn enter(self: &Rc<Self>, listener: u32, tcp: &TcpStream, connection: &Rc<Connection>) -> Option<Seat> {
        let remote = connection.remote();
        let origin = Origin { listener, address: remote.ip().into() };
        let is_crowded = self.share.is_reserved(tcp.as_raw_fd());
        let entry = {
            let seats = self.seats.borrow();
            let idle = |ticket| {
                let since = seats.get(&ticket)?.idle_since()?;
                Some(since.saturating_duration_since(self.began))
            };
            self.gate.borrow_mut().enter(origin, is_crowded, idle)
        };
        let ticket = match entry {
            Entry::Admitted { ticket, shed } | Entry::Reserved { ticket, shed } => {
                if let Some(shed) = shed {
                    self.close(shed, connection);
                }
                ticket
            }
            Entry::Refused(refusal) => {
                if let Some(count) = self.refused.borrow_mut().note(self.began.elapsed()) {
                    let limit = refusal.as_str();
                    tracing::warn!(local = %connection.local, %remote, limit, count, "connections refused: a limit is reached");
                }
                return None;
            }
        };
        self.seats.borrow_mut().insert(ticket, Rc::clone(connection));
        Some(Seat { room: Rc::clone(self), ticket })
    }

    /// Closes a connection in whose place another one comes.
    fn close(&self, victim: Ticket, newcomer: &Connection) {
        let victim = self.seats.borrow_mut().remove(&victim);
        victim.iter().for_each(|victim| victim.cut());
        let now = Instant::now();
        let (since, count) = self.shedding.get();
        let is_over = now.duration_since(since) > SHED_REST;
        self.shedding.set(if is_over { (now, 1) } else { (since, count + 1) });
        if let Some(count) = self.shed.borrow_mut().note(self.began.elapsed()) {
            let (local, remote) = (newcomer.local, newcomer.remote());
            tracing::warn!(%local, %remote, count, "idle connections closed to make room for new ones");
        }
    }

    /// Whether the accept loop should rest.
    pub(crate) fn is_overrun(&self) -> bool {
        let (since, count) = self.shedding.get();
        count >= SHED_AT_ONCE && since.elapsed() <= SHED_REST
    }

    /// Logs that a connection cannot be accepted.
    pub(crate) fn accept_failed(&self, error: &io::Error) {
        if let Some(count) = self.failed.borrow_mut().note(self.began.elapsed()) {
            tracing::warn!(%error, count, "cannot accept a connection");
        }
    }
}

/// Whether this worker may keep a connection that it has made.
///
/// # Errors
/// If its descriptor is reserved for other parts of the process.
pub(crate) fn may_keep(tcp: &TcpStream) -> io::Result<()> {
    if tcp.as_raw_fd() >= CEILING.get() {
        return Err(io::Error::other("the data plane has used up its share of file descriptors"));
    }
    Ok(())
}
