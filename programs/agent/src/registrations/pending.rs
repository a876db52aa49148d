//! What is still to be written: groups of records that go together, the newest state of each record winning.
//!
//! Bounded by the number of records of this node: a record that is touched twice before it is written is written once.

use std::collections::{BTreeMap, BTreeSet};

use starling_model::{RecordKey, Revision};
use tokio::sync::oneshot;

use super::{Before, Kept, Touched};
use crate::agent::WriteError;

/// Changes of one commit; etcd takes 128 operations. A group larger than this goes alone.
pub(crate) const CHANGES_PER_COMMIT_MAX: usize = 128;

/// Bytes of keys and values of one commit, half of what a transaction of the store may hold: groups share a transaction
/// because that is cheap, and large ones gain nothing by it. A group larger than this goes alone, so that if it is too
/// large for the server as well, nobody else is held up by it.
const BYTES_PER_COMMIT_MAX: usize = 512 * 1024;

/// Lines of one journal write that accompany a commit; statuses without records come in any number.
const KEPT_PER_COMMIT_MAX: usize = 1024;

/// Somebody who waits for a group to be written.
#[derive(Debug)]
pub(crate) struct Waiter {
    sender: oneshot::Sender<Result<Revision, WriteError>>,
    /// What they are told once it is written, if they wait for the undoing of what was refused.
    verdict: Option<WriteError>,
}

impl Waiter {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Result<Revision, WriteError>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, verdict: None }, receiver)
    }

    /// Settles what they are told in the end.
    pub(crate) fn refused(self, verdict: WriteError) -> Self {
        Self { sender: self.sender, verdict: Some(self.verdict.unwrap_or(verdict)) }
    }

    pub(crate) fn written(self, revision: Revision) {
        // They may have gone away; what was asked is done all the same.
        let _ = self.sender.send(self.verdict.map_or(Ok(revision), Err));
    }

    pub(crate) fn failed(self, error: &WriteError) {
        let _ = self.sender.send(Err(self.verdict.unwrap_or_else(|| error.clone())));
    }
}

/// Records that go together, and those who wait for them.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) keys: BTreeSet<RecordKey>,
    pub(crate) kept: BTreeSet<Kept>,
    pub(crate) before: Before,
    pub(crate) waiters: Vec<Waiter>,
}

impl Group {
    /// Joins a later group to this one.
    fn absorb(&mut self, later: Self) {
        self.keys.extend(later.keys);
        self.kept.extend(later.kept);
        for (id, old) in later.before.services {
            self.before.services.entry(id).or_insert(old);
        }
        for (id, old) in later.before.checks {
            self.before.checks.entry(id).or_insert(old);
        }
        self.waiters.extend(later.waiters);
    }
}

impl From<Touched> for Group {
    fn from(touched: Touched) -> Self {
        Self { keys: touched.keys, kept: touched.kept, before: touched.before, waiters: Vec::new() }
    }
}

/// The groups in order of their first touch.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    groups: BTreeMap<u64, Group>,
    holder: BTreeMap<RecordKey, u64>,
    next: u64,
    in_flight: BTreeSet<RecordKey>,
}

impl Pending {
    /// Adds a group; it joins those that hold any of its records.
    pub(crate) fn add(&mut self, group: Group) {
        let joined = self.holders(&group.keys);
        self.merge(group, &joined, Order::Last);
    }

    /// Puts a failed group back before everything else that holds its records.
    pub(crate) fn put_back(&mut self, failed: Group) {
        let joined = self.holders(&failed.keys);
        self.merge(failed, &joined, Order::First);
    }

    /// Whether any of these records is queued or being written.
    pub(crate) fn holds(&self, mut keys: impl Iterator<Item = RecordKey>) -> bool {
        keys.any(|key| self.holder.contains_key(&key) || self.in_flight.contains(&key))
    }

    /// Whether any of these records is queued.
    pub(crate) fn queued(&self, keys: &BTreeSet<RecordKey>) -> bool {
        !self.holders(keys).is_empty()
    }

    /// Takes the oldest groups for one commit; `bytes_of` says what the change of a record weighs.
    pub(crate) fn take(&mut self, bytes_of: impl Fn(&RecordKey) -> usize) -> Vec<Group> {
        let (mut taken, mut keys, mut kept, mut bytes) = (Vec::new(), 0, 0, 0);
        while let Some(entry) = self.groups.first_entry() {
            keys += entry.get().keys.len();
            kept += entry.get().kept.len();
            bytes += entry.get().keys.iter().map(&bytes_of).sum::<usize>();
            let over = keys > CHANGES_PER_COMMIT_MAX || kept > KEPT_PER_COMMIT_MAX || bytes > BYTES_PER_COMMIT_MAX;
            if over && !taken.is_empty() {
                break;
            }
            taken.push(entry.remove());
        }
        for key in taken.iter().flat_map(|group: &Group| &group.keys) {
            self.holder.remove(key);
            self.in_flight.insert(key.clone());
        }
        taken
    }

    /// Says that what was taken has been dealt with.
    pub(crate) fn landed(&mut self) {
        self.in_flight.clear();
    }

    /// Everybody who waits, for telling them of an outage.
    pub(crate) fn take_waiters(&mut self) -> Vec<Waiter> {
        self.groups.values_mut().flat_map(|group| std::mem::take(&mut group.waiters)).collect()
    }

    fn holders(&self, keys: &BTreeSet<RecordKey>) -> BTreeSet<u64> {
        keys.iter().filter_map(|key| self.holder.get(key).copied()).collect()
    }

    fn merge(&mut self, group: Group, joined: &BTreeSet<u64>, order: Order) {
        let earlier: Vec<Group> = joined.iter().filter_map(|number| self.groups.remove(number)).collect();
        let mut merged = Group::default();
        match order {
            Order::First => {
                merged.absorb(group);
                earlier.into_iter().for_each(|other| merged.absorb(other));
            }
            Order::Last => {
                earlier.into_iter().for_each(|other| merged.absorb(other));
                merged.absorb(group);
            }
        }
        let number = joined.first().copied().unwrap_or(self.next);
        self.next += 1;
        for key in &merged.keys {
            self.holder.insert(key.clone(), number);
        }
        self.groups.insert(number, merged);
    }
}

/// Whose memory of what was there before counts.
#[derive(Clone, Copy)]
enum Order {
    First,
    Last,
}
