//! What a process keeps in memory and nowhere else: user events and network coordinates.
//!
//! Consul gossips them; here they are at the server that was given them, and gone with it. Both are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use starling_model::{NodeName, Uuid};
use tokio::sync::watch;

/// Events that are remembered; Consul's agents remember as many.
pub(crate) const EVENTS_MAX: usize = 256;

/// Nodes whose coordinates are remembered: some 200 bytes each.
pub(crate) const COORDINATES_MAX: usize = 65_536;

/// Dimensions of a coordinate; Serf's.
pub(crate) const DIMENSIONS: usize = 8;

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that somebody has told all who listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) payload: Vec<u8>,
    /// Expressions by which listeners tell whether it is for them.
    pub(crate) node: String,
    pub(crate) service: String,
    pub(crate) tag: String,
    /// Rises from one to the next; milliseconds since 1970 unless they come faster.
    pub(crate) time: u64,
}

/// The last events.
#[derive(Debug)]
pub(crate) struct Events {
    kept: Mutex<VecDeque<Event>>,
    /// How many there were.
    count: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Self {
        Self { kept: Mutex::default(), count: watch::Sender::new(0) }
    }
}

impl Events {
    /// Adds one, whose time is not before `now_ms` and after that of the last.
    pub(crate) fn add(&self, mut event: Event, now_ms: u64) -> Event {
        let mut kept = held(&self.kept);
        event.time = kept.back().map_or(now_ms, |last| now_ms.max(last.time + 1));
        if kept.len() == EVENTS_MAX {
            kept.pop_front();
        }
        kept.push_back(event.clone());
        drop(kept);
        self.count.send_modify(|count| *count += 1);
        event
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        held(&self.kept).iter().cloned().collect()
    }

    /// Sees the next one.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }
}

/// Where a node is in a space whose distances are round-trip times (<https://developer.hashicorp.com/consul/docs/architecture/coordinates>).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Coordinate {
    pub(crate) vector: [f64; DIMENSIONS],
    pub(crate) error: f64,
    pub(crate) adjustment: f64,
    pub(crate) height: f64,
}

impl Coordinate {
    /// Seconds from one node to the other and back, by the formula of that page.
    pub(crate) fn distance_to(&self, other: &Self) -> f64 {
        let squares = self.vector.iter().zip(&other.vector).map(|(a, b)| (a - b) * (a - b));
        let bare = squares.sum::<f64>().sqrt() + self.height + other.height;
        let adjusted = bare + self.adjustment + other.adjustment;
        if adjusted > 0.0 { adjusted } else { bare }
    }
}

/// Coordinates by node.
#[derive(Debug, Default)]
pub(crate) struct Coordinates(Mutex<BTreeMap<NodeName, (String, Coordinate)>>);

impl Coordinates {
    /// Puts one; `false` if there are as many as may be.
    pub(crate) fn put(&self, node: NodeName, segment: String, coordinate: Coordinate) -> bool {
        let mut kept = held(&self.0);
        let has_room = kept.len() < COORDINATES_MAX || kept.contains_key(&node);
        if has_room {
            kept.insert(node, (segment, coordinate));
        }
        has_room
    }

    pub(crate) fn of(&self, node: &NodeName) -> Option<(String, Coordinate)> {
        held(&self.0).get(node).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(NodeName, String, Coordinate)> {
        held(&self.0).iter().map(|(node, (segment, at))| (node.clone(), segment.clone(), at.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u128) -> Event {
        let none = String::new;
        let id = Uuid::from_random(number);
        Event {
            id,
            name: "deploy".to_owned(),
            payload: Vec::new(),
            node: none(),
            service: none(),
            tag: none(),
            time: 0,
        }
    }

    #[test]
    fn the_last_events_are_kept_and_their_times_rise() {
        let events = Events::default();
        for number in 0..=EVENTS_MAX as u128 {
            events.add(event(number), 7);
        }
        let all = events.all();
        assert_eq!((all.len(), all[0].id), (EVENTS_MAX, Uuid::from_random(1)));
        assert!(all.is_sorted_by(|one, next| one.time < next.time));
    }

    #[test]
    fn a_distance_is_that_of_the_vectors_with_heights_and_adjustments() {
        let at = |x: f64, height: f64, adjustment: f64| {
            let mut vector = [0.0; DIMENSIONS];
            vector[0] = x;
            Coordinate { vector, error: 0.0, adjustment, height }
        };
        assert!((at(0.0, 0.1, 0.0).distance_to(&at(3.0, 0.2, 0.0)) - 3.3).abs() < 1e-9);
        assert!((at(0.0, 0.1, 0.5).distance_to(&at(3.0, 0.2, 0.0)) - 3.8).abs() < 1e-9);
        let bare = at(0.0, 0.1, -9.0).distance_to(&at(3.0, 0.2, 0.0));
        assert!((bare - 3.3).abs() < 1e-9, "an adjustment never makes it less than nothing");
    }
}
