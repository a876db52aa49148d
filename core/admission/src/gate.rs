//! Places of one kind of connection: which newcomers are admitted, and which connection makes room when all are taken.
//!
//! A newcomer is let in as long as somebody idle can give up a place, so that a flood of idle connections never locks
//! anybody out. The origin that holds the most places pays first, and within an origin the connection that has been idle
//! the longest. A connection that carries a request is never taken.
//!
//! Cost model: a connection that comes or goes costs three look-ups in ordered maps. A victim costs a scan of the
//! connections in question, which then yields up to [`BATCH_MAX`] victims. A request costs nothing: the gate asks whether a
//! connection is idle only when it needs a victim.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Victims found by one scan at most. More would forget that an origin has paid already.
pub const BATCH_MAX: usize = 64;

/// The part of all idle connections that one scan yields, below [`BATCH_MAX`].
const BATCH_PART: usize = 16;

/// An origin with less than this part of all places is light: among light origins only the age of a connection counts.
const LIGHT_PART: usize = 64;

/// Bits of an IPv6 address that tell hosts apart: a host is given a whole network of 64 bits.
const IPV6_HOST_MASK: u128 = !0 << 64;

/// The address of a client, as far as it tells one client from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(IpAddr);

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & IPV6_HOST_MASK).into(),
        })
    }
}

/// Where a connection comes from, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The listener, where several share the places.
    pub listener: u32,
    /// The client.
    pub address: Address,
}

/// A place, by a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub places: usize,
    /// At one listener.
    pub per_listener: usize,
    /// Of one address at one listener.
    pub per_address: usize,
    /// Beyond `places`, for short requests that must always be answered.
    pub reserve: usize,
}

impl Limits {
    /// So many places at one listener, without a reserve; one address may hold all but a sixteenth of them.
    #[must_use]
    pub const fn of(places: usize) -> Self {
        Self { places, per_listener: places, per_address: all_but_a_sixteenth(places), reserve: 0 }
    }

    /// With so many places for what must always be answered.
    #[must_use]
    pub const fn with_reserve(self, reserve: usize) -> Self {
        Self { reserve, ..self }
    }

    /// Of so many places that several listeners share; one of them may hold three quarters.
    #[must_use]
    pub const fn shared(places: usize) -> Self {
        let per_listener = places - places / 4;
        Self { places, per_listener, per_address: all_but_a_sixteenth(per_listener), reserve: 0 }
    }
}

const fn all_but_a_sixteenth(places: usize) -> usize {
    places - places / 16
}

/// What becomes of a newcomer. The caller closes the connection `shed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It is let in.
    Admitted {
        /// Its place.
        ticket: Ticket,
        /// Whose place it takes.
        shed: Option<Ticket>,
    },
    /// It is let in for a short request that must always be answered, and for nothing else.
    Reserved {
        /// Its place.
        ticket: Ticket,
        /// Whose place it takes.
        shed: Option<Ticket>,
    },
    /// It is closed.
    Refused(Refusal),
}

/// Which limit keeps a newcomer out. Nobody within it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// That of all places, or of descriptors.
    Places,
    /// That of the listener.
    Listener,
    /// That of the address.
    Address,
}

impl Refusal {
    /// The limit, in words for a log line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Places => "connections of this process",
            Self::Listener => "connections of this listener",
            Self::Address => "connections of one address",
        }
    }
}

/// Whose places are in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Listener(u32),
    Origin(Origin),
}

/// A connection to be closed if it is still idle, and since when it was when that was found.
type Candidate = (Ticket, Duration);

/// The places of one kind of connection.
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    next: u64,
    holders: BTreeMap<Ticket, Origin>,
    origins: BTreeMap<Origin, BTreeSet<Ticket>>,
    listeners: BTreeMap<u32, usize>,
    reserved: BTreeSet<Ticket>,
    candidates: Option<(Scope, VecDeque<Candidate>)>,
}

impl Gate {
    /// Nobody is in.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            holders: BTreeMap::new(),
            origins: BTreeMap::new(),
            listeners: BTreeMap::new(),
            reserved: BTreeSet::new(),
            candidates: None,
        }
    }

    /// How many hold a place, those in the reserve included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.holders.len() + self.reserved.len()
    }

    /// Decides about a newcomer. `is_crowded` if it has taken a descriptor that is reserved for others; `idle_since` tells
    /// since when a connection is idle, from any fixed instant, and `None` for one that must not be closed.
    pub fn enter(
        &mut self,
        origin: Origin,
        is_crowded: bool,
        idle_since: impl Fn(Ticket) -> Option<Duration>,
    ) -> Entry {
        let Some((scope, refusal)) = self.reached(origin, is_crowded) else {
            return Entry::Admitted { ticket: self.admit(origin), shed: None };
        };
        if let Some(victim) = self.victim(scope, idle_since) {
            self.leave(victim);
            return Entry::Admitted { ticket: self.admit(origin), shed: Some(victim) };
        }
        self.reserve().unwrap_or(Entry::Refused(refusal))
    }

    /// Gives a place back; nothing happens if it was taken away already.
    pub fn leave(&mut self, ticket: Ticket) {
        if self.reserved.remove(&ticket) {
            return;
        }
        let Some(origin) = self.holders.remove(&ticket) else { return };
        if let Some(tickets) = self.origins.get_mut(&origin) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.origins.remove(&origin);
            }
        }
        if let Some(count) = self.listeners.get_mut(&origin.listener) {
            *count -= 1;
            if *count == 0 {
                self.listeners.remove(&origin.listener);
            }
        }
    }

    /// The limit that a newcomer would pass, and whose places are in question.
    fn reached(&self, origin: Origin, is_crowded: bool) -> Option<(Scope, Refusal)> {
        if self.origins.get(&origin).map_or(0, BTreeSet::len) >= self.limits.per_address {
            return Some((Scope::Origin(origin), Refusal::Address));
        }
        if self.listeners.get(&origin.listener).copied().unwrap_or(0) >= self.limits.per_listener {
            return Some((Scope::Listener(origin.listener), Refusal::Listener));
        }
        (is_crowded || self.holders.len() >= self.limits.places).then_some((Scope::All, Refusal::Places))
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    fn admit(&mut self, origin: Origin) -> Ticket {
        let ticket = self.ticket();
        self.holders.insert(ticket, origin);
        self.origins.entry(origin).or_default().insert(ticket);
        *self.listeners.entry(origin.listener).or_default() += 1;
        ticket
    }

    /// A place of the reserve; the oldest there gives it up, for what is asked there takes no time.
    fn reserve(&mut self) -> Option<Entry> {
        if self.limits.reserve == 0 {
            return None;
        }
        let shed = if self.reserved.len() >= self.limits.reserve { self.reserved.pop_first() } else { None };
        let ticket = self.ticket();
        self.reserved.insert(ticket);
        Some(Entry::Reserved { ticket, shed })
    }

    fn victim(&mut self, scope: Scope, idle_since: impl Fn(Ticket) -> Option<Duration>) -> Option<Ticket> {
        for _ in 0..2 {
            if let Some((of, candidates)) = &mut self.candidates
                && *of == scope
            {
                while let Some((ticket, since)) = candidates.pop_front() {
                    if self.holders.contains_key(&ticket) && idle_since(ticket) == Some(since) {
                        return Some(ticket);
                    }
                }
            }
            self.candidates = Some((scope, self.scan(scope, &idle_since)));
        }
        None
    }

    /// The first to be closed among those in question.
    fn scan(&self, scope: Scope, idle_since: &impl Fn(Ticket) -> Option<Duration>) -> VecDeque<Candidate> {
        let in_scope = self.origins.iter().filter(|(origin, _)| match scope {
            Scope::All => true,
            Scope::Listener(listener) => origin.listener == listener,
            Scope::Origin(only) => **origin == only,
        });
        let mut idle = Vec::new();
        for (_, tickets) in in_scope {
            let weight = tickets.len() * LIGHT_PART / self.limits.places.max(1);
            idle.extend(tickets.iter().filter_map(|it| Some((Reverse(weight), idle_since(*it)?, *it))));
        }
        let batch = BATCH_MAX.min(idle.len().div_ceil(BATCH_PART));
        idle.sort_unstable();
        idle.into_iter().take(batch).map(|(_, since, ticket)| (ticket, since)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn origin(listener: u32, host: u8) -> Origin {
        Origin { listener, address: IpAddr::from([10, 0, 0, host]).into() }
    }

    /// Connections with what a caller knows of them.
    struct World {
        gate: Gate,
        idle: BTreeMap<Ticket, Option<Duration>>,
        clock: u64,
    }

    impl World {
        fn of(limits: Limits) -> Self {
            Self { gate: Gate::new(limits), idle: BTreeMap::new(), clock: 0 }
        }

        /// Somebody comes, and is idle from then on.
        fn come(&mut self, origin: Origin) -> Entry {
            self.clock += 1;
            let idle = &self.idle;
            let entry = self.gate.enter(origin, false, |ticket| idle.get(&ticket).copied().flatten());
            if let Entry::Admitted { ticket, shed } | Entry::Reserved { ticket, shed } = entry {
                shed.map(|shed| self.idle.remove(&shed));
                self.idle.insert(ticket, Some(Duration::from_secs(self.clock)));
            }
            entry
        }

        fn admitted(&mut self, origin: Origin) -> (Ticket, Option<Ticket>) {
            match self.come(origin) {
                Entry::Admitted { ticket, shed } => (ticket, shed),
                other @ (Entry::Reserved { .. } | Entry::Refused(_)) => panic!("{other:?}"),
            }
        }

        fn works(&mut self, ticket: Ticket) {
            self.idle.insert(ticket, None);
        }
    }

    #[test]
    fn the_origin_with_the_most_places_pays_and_there_the_oldest() {
        let mut world = World::of(Limits { places: 8, per_listener: 8, per_address: 8, reserve: 0 });
        let (quiet, _) = world.admitted(origin(0, 1));
        let flood: Vec<_> = (0..7).map(|_| world.admitted(origin(0, 2)).0).collect();
        world.works(flood[0]);
        assert_eq!(world.admitted(origin(0, 3)).1, Some(flood[1]), "not the one that works");
        assert_eq!(world.admitted(origin(0, 3)).1, Some(flood[2]));
        assert!(world.idle.contains_key(&quiet), "who holds one place is older, and keeps it");
    }

    #[test]
    fn a_flood_at_one_listener_leaves_places_to_the_others() {
        let mut world = World::of(Limits::shared(64));
        let flood: Vec<_> = (0..200).filter_map(|_| world.admitted(origin(1, 1)).1).collect();
        assert_eq!(
            world.gate.count(),
            45,
            "three quarters for a listener, and of those an address has all but a sixteenth"
        );
        assert_eq!(flood.len(), 155);
        for host in 1..=19 {
            assert_eq!(world.admitted(origin(2, host)).1, None);
        }
    }

    #[test]
    fn who_works_is_never_closed_and_newcomers_go_to_the_reserve() {
        let mut world = World::of(Limits::of(8).with_reserve(2));
        let working: Vec<_> = (0..8).map(|host| world.admitted(origin(0, host)).0).collect();
        working.iter().for_each(|ticket| world.works(*ticket));
        let Entry::Reserved { ticket: first, shed: None } = world.come(origin(0, 9)) else { panic!("a place") };
        let Entry::Reserved { shed: None, .. } = world.come(origin(0, 9)) else { panic!("a place") };
        let Entry::Reserved { shed: Some(shed), .. } = world.come(origin(0, 9)) else { panic!("a place") };
        assert_eq!(shed, first);
        world.gate.leave(working[3]);
        assert_eq!(world.admitted(origin(0, 9)).1, None);
        let mut none = World::of(Limits::of(1));
        let (ticket, _) = none.admitted(origin(0, 1));
        none.works(ticket);
        assert_eq!(none.come(origin(0, 1)), Entry::Refused(Refusal::Address));
        assert_eq!(none.come(origin(0, 2)), Entry::Refused(Refusal::Listener));
    }

    #[test]
    fn a_place_that_was_given_back_twice_was_given_back_once() {
        let mut world = World::of(Limits::of(8));
        let (ticket, _) = world.admitted(origin(0, 1));
        world.gate.leave(ticket);
        world.gate.leave(ticket);
        assert_eq!(world.gate.count(), 0);
        assert!(world.gate.origins.is_empty() && world.gate.listeners.is_empty());
    }

    #[test]
    fn a_newcomer_with_a_reserved_descriptor_takes_the_place_of_one_that_is_idle() {
        let mut gate = Gate::new(Limits::of(100));
        let Entry::Admitted { ticket, .. } = gate.enter(origin(0, 1), false, |_| None) else { panic!("room") };
        let Entry::Refused(Refusal::Places) = gate.enter(origin(0, 1), true, |_| None) else { panic!("no room") };
        let entry = gate.enter(origin(0, 1), true, |_| Some(Duration::ZERO));
        assert!(matches!(entry, Entry::Admitted { shed: Some(shed), .. } if shed == ticket), "{entry:?}");
    }

    #[test]
    fn a_host_is_a_network_of_ipv6_and_an_address_of_ipv4() {
        let address = |text: &str| Address::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8:0:1::1"), address("2001:db8::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
        assert_ne!(address("10.0.0.2"), address("10.0.0.1"));
    }

    proptest! {
        #[test]
        fn limits_hold_and_the_idle_never_keep_anybody_out(
            steps in prop::collection::vec((0u32..3, 0u8..4, 0u8..4), 1..400)
        ) {
            let limits = Limits { places: 24, per_listener: 16, per_address: 9, reserve: 0 };
            let mut world = World::of(limits);
            for (listener, host, action) in steps {
                let entry = world.come(origin(listener, host));
                match (entry, action) {
                    (Entry::Admitted { ticket, .. }, 0) => world.works(ticket),
                    (Entry::Admitted { ticket, .. }, 1) => {
                        world.gate.leave(ticket);
                        world.idle.remove(&ticket);
                    }
                    _ => {}
                }
                let idle = world.idle.values().flatten().count();
                prop_assert_eq!(world.gate.count(), world.idle.len());
                prop_assert!(world.gate.count() <= limits.places);
                prop_assert!(world.gate.listeners.values().all(|count| *count <= limits.per_listener));
                prop_assert!(world.gate.origins.values().all(|tickets| tickets.len() <= limits.per_address));
                prop_assert!(!matches!(entry, Entry::Refused(Refusal::Places)) || idle == 0);
            }
        }
    }
}
