//! What all clients know together: the keys in use, which servers run, and when to end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::COUNT;
use crate::history::{Key, Kind, Recorder};

/// Keys in use at a time: few, so that clients meet on each.
const SLOTS: usize = 8;

/// Writes to a key before another one takes its place: a check of one key takes long when its history is.
const WRITES_PER_KEY_MAX: u32 = 150;

/// Shared by clients and whoever starts and ends them.
pub(crate) struct Board {
    pub(crate) recorder: Recorder,
    pub(crate) addresses: [String; COUNT],
    slots: Mutex<[Slot; SLOTS]>,
    /// Every key ever used.
    keys: Mutex<Vec<Arc<Key>>>,
    standing: Mutex<[Standing; COUNT]>,
    ledger: Mutex<BTreeMap<String, Entered>>,
    ended: AtomicBool,
}

/// A registration that was acknowledged and is never written again.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// Its index.
    pub index: u64,
    /// When it was begun, in microseconds since the run began.
    pub called: u64,
    /// When it was acknowledged.
    pub returned: u64,
}

#[derive(Clone)]
struct Slot {
    key: Arc<Key>,
    writes: u32,
    generation: u32,
    /// The newest index that anybody knows of.
    known: u64,
}

/// Whether a server is to answer reads.
#[derive(Clone, Copy, Default)]
struct Standing {
    is_up: bool,
    /// Counts how often it was killed or stopped.
    falls: u32,
}

impl Board {
    pub(crate) fn new(addresses: [String; COUNT]) -> Self {
        let slots: [Slot; SLOTS] =
            std::array::from_fn(|number| Slot { key: key_of(number, 0), writes: 0, generation: 0, known: 0 });
        let keys = slots.iter().map(|slot| Arc::clone(&slot.key)).collect();
        Self {
            recorder: Recorder::default(),
            addresses,
            slots: Mutex::new(slots),
            keys: Mutex::new(keys),
            standing: Mutex::default(),
            ledger: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// A key in use, and the newest index that anybody has of it.
    pub(crate) fn draw(&self, random: &mut fastrand::Rng) -> (Arc<Key>, u64) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &slots[random.usize(0..SLOTS)];
        (Arc::clone(&slot.key), slot.known)
    }

    /// Notes a write of a key; after so many there is another one in its place.
    pub(crate) fn count_write(&self, key: &Key) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, slot)) = slots.iter_mut().enumerate().find(|(_, slot)| *slot.key == *key) else { return };
        slot.writes += 1;
        if slot.writes >= WRITES_PER_KEY_MAX {
            let generation = slot.generation + 1;
            *slot = Slot { key: key_of(number, generation), writes: 0, generation, known: 0 };
            self.keys.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&slot.key));
        }
    }

    /// Notes an index that somebody learned.
    pub(crate) fn learn(&self, key: &Key, index: u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter_mut().filter(|slot| *slot.key == *key) {
            slot.known = slot.known.max(index);
        }
    }

    /// Every key that was ever used.
    pub(crate) fn keys(&self) -> Vec<Arc<Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a registration that was acknowledged.
    pub(crate) fn enter(&self, name: String, entered: Entered) {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).insert(name, entered);
    }

    /// The registrations that were acknowledged.
    pub(crate) fn ledger(&self) -> BTreeMap<String, Entered> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that a server is killed or stopped.
    pub(crate) fn falls(&self, server: usize) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing[server] = Standing { is_up: false, falls: standing[server].falls + 1 };
    }

    /// Notes that a server has answered what was asked after so many falls.
    pub(crate) fn answered(&self, server: usize, falls: u32) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing[server].is_up |= standing[server].falls == falls;
    }

    /// How often a server has fallen, and whether it has answered since.
    pub(crate) fn standing(&self, server: usize) -> (u32, bool) {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner)[server];
        (standing.falls, standing.is_up)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

fn key_of(slot: usize, generation: u32) -> Arc<Key> {
    let kind = [Kind::ServiceDefaults, Kind::ServiceResolver, Kind::Node, Kind::Kv][slot % 4];
    Arc::new(Key { kind, name: format!("chaos-{slot}-{generation}") })
}
