//! Places of a listener whose connections are tasks of a runtime with several threads.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starling_admission::{Entry, Gate, Limits, Origin, Share, Ticket};
use tokio::sync::Notify;

use crate::complaint::Complaint;

/// The places of one kind of connection; its listeners share it.
#[derive(Debug)]
pub struct Entrance {
    /// What is served here, for the log.
    name: &'static str,
    began: Instant,
    share: Share,
    /// Places beyond the share, for requests that must always be answered.
    reserve: Share,
    inner: Mutex<Inner>,
    refused: Complaint,
    shed: Complaint,
}

#[derive(Debug)]
struct Inner {
    gate: Gate,
    seats: BTreeMap<Ticket, Arc<Seat>>,
}

/// What is known of one connection.
#[derive(Debug)]
struct Seat {
    /// Requests under way.
    busy: AtomicU32,
    /// Milliseconds from the beginning of the entrance to when the last of them ended.
    idle_since_ms: AtomicU64,
    shed: Notify,
}

impl Seat {
    fn idle_since(&self) -> Option<Duration> {
        let idle = self.busy.load(Ordering::Relaxed) == 0;
        idle.then(|| Duration::from_millis(self.idle_since_ms.load(Ordering::Relaxed)))
    }
}

impl Entrance {
    /// An entrance called `name` in the log, with the places of `share`.
    #[must_use]
    pub fn new(name: &'static str, share: Share) -> Arc<Self> {
        Self::limited(name, share, Share::of(0), Limits::of(share.connections))
    }

    /// An entrance with further places for what must always be answered while those of `share` are taken.
    #[must_use]
    pub fn with_reserve(name: &'static str, share: Share, reserve: Share) -> Arc<Self> {
        let limits = Limits::of(share.connections).with_reserve(reserve.connections);
        Self::limited(name, share, reserve, limits)
    }

    /// An entrance with other limits than those that follow from `share`.
    #[must_use]
    pub fn limited(name: &'static str, share: Share, reserve: Share, limits: Limits) -> Arc<Self> {
        let inner = Mutex::new(Inner { gate: Gate::new(limits), seats: BTreeMap::new() });
        let (refused, shed) = (Complaint::default(), Complaint::default());
        Arc::new(Self { name, began: Instant::now(), share, reserve, inner, refused, shed })
    }

    /// Decides about a connection of `address` with this descriptor; `None` if it is to be closed. The connection counts
    /// as idle until [`Place::busy`].
    pub fn enter(self: &Arc<Self>, address: IpAddr, descriptor: RawFd) -> Option<Place> {
        let origin = Origin { listener: 0, address: address.into() };
        let seat = Arc::new(Seat {
            busy: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(self.now_ms()),
            shed: Notify::new(),
        });
        let mut inner = self.lock();
        let Inner { gate, seats } = &mut *inner;
        let is_crowded = self.share.is_reserved(descriptor);
        let entry = gate.enter(origin, is_crowded, |ticket| seats.get(&ticket).and_then(|seat| seat.idle_since()));
        let (ticket, shed, is_reserved) = match entry {
            Entry::Admitted { ticket, shed } => (ticket, shed, false),
            Entry::Reserved { ticket, shed } => (ticket, shed, true),
            Entry::Refused(refusal) => {
                drop(inner);
                self.report_refusal(address, refusal.as_str());
                return None;
            }
        };
        if let Some(victim) = shed.and_then(|shed| seats.remove(&shed)) {
            victim.shed.notify_one();
        }
        if is_reserved && self.reserve.is_reserved(descriptor) {
            gate.leave(ticket);
            drop(inner);
            self.report_refusal(address, "descriptors of this process");
            return None;
        }
        seats.insert(ticket, Arc::clone(&seat));
        drop(inner);
        if shed.is_some() && !is_reserved {
            self.report_shedding(address);
        }
        Some(Place { entrance: Arc::clone(self), ticket, seat, is_reserved })
    }

    fn report_refusal(&self, address: IpAddr, limit: &'static str) {
        if let Some(count) = self.refused.due() {
            tracing::warn!(listener = self.name, %address, limit, count, "connections refused: a limit is reached");
        }
    }

    fn report_shedding(&self, address: IpAddr) {
        if let Some(count) = self.shed.due() {
            tracing::warn!(listener = self.name, %address, count, "idle connections closed to make room for new ones");
        }
    }

    /// How many connections hold a place.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().gate.count()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection, held until this is dropped.
#[derive(Debug)]
pub struct Place {
    entrance: Arc<Entrance>,
    ticket: Ticket,
    seat: Arc<Seat>,
    is_reserved: bool,
}

impl Place {
    /// Whether the connection was let in for a request that must always be answered, and for nothing else.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// The connection carries a request until the result is dropped, and is not closed for others meanwhile.
    #[must_use]
    pub fn busy(&self) -> Busy {
        self.seat.busy.fetch_add(1, Ordering::Relaxed);
        Busy { entrance: Arc::clone(&self.entrance), seat: Arc::clone(&self.seat) }
    }

    /// Completes when the connection has lost its place to another one and must be closed. For one waiter.
    pub async fn shed(&self) {
        self.seat.shed.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.entrance.lock();
        inner.gate.leave(self.ticket);
        inner.seats.remove(&self.ticket);
    }
}

/// A request under way.
#[derive(Debug)]
pub struct Busy {
    entrance: Arc<Entrance>,
    seat: Arc<Seat>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Before it counts as idle, so that it is never taken for one that has been idle for long.
        self.seat.idle_since_ms.store(self.entrance.now_ms(), Ordering::Relaxed);
        self.seat.busy.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::timeout;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const DEADLINE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_oldest_idle_connection_is_told_to_go() {
        let entrance = Entrance::new("test", Share::of(16));
        let places: Vec<_> = (0..15).filter_map(|_| entrance.enter(HERE, 3)).collect();
        let busy = places[0].busy();
        let newcomer = entrance.enter(HERE, 3).expect("let in");
        timeout(DEADLINE, places[1].shed()).await.expect("it is told");
        assert!(timeout(Duration::ZERO, places[0].shed()).await.is_err(), "not the one with a request");
        drop((busy, newcomer, places));
        assert_eq!(entrance.count(), 0);
    }

    #[tokio::test]
    async fn what_must_be_answered_finds_a_place_while_all_others_are_busy() {
        let (share, reserve) =
            (Share { connections: 16, descriptors: 100 }, Share { connections: 1, descriptors: 110 });
        let entrance = Entrance::with_reserve("test", share, reserve);
        let places: Vec<_> = (0..15).filter_map(|_| entrance.enter(HERE, 3)).collect();
        let _busy: Vec<_> = places.iter().map(Place::busy).collect();
        let first = entrance.enter(HERE, 99).expect("a place of the reserve");
        assert!(first.is_reserved());
        let second = entrance.enter(HERE, 105).expect("a place of the reserve");
        timeout(DEADLINE, first.shed()).await.expect("the older one makes room");
        assert!(entrance.enter(HERE, 110).is_none(), "the descriptor is another part's");
        drop(second);
        let entered = entrance.enter(IpAddr::from([10, 0, 0, 1]), 3).expect("let in");
        assert!(!entered.is_reserved(), "another address has places of its own");
    }
}
