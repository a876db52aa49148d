//! What came in force at which node when, for all nodes of a process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use starling_agent::remote::InForce;
use starling_model::{InstanceId, Revision};

use super::Moment;
use super::node::is_sidecar;

/// Everything that was noted, in the order of time.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// While a fleet comes up, far more comes in force than anybody asks about.
    watching: bool,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    node: usize,
    through: Revision,
    workloads: u32,
    at: Moment,
}

/// Writes down for one node.
pub(super) struct Scribe {
    pub(super) ledger: Arc<Ledger>,
    /// The node's place among those of the process.
    pub(super) node: usize,
}

impl InForce for Scribe {
    fn in_force(&self, through: Revision, concerned: &BTreeSet<InstanceId>) {
        // First of all: what follows is not the node's work.
        let Ok(at) = Moment::now() else { return };
        let workloads = concerned.iter().filter(|id| is_sidecar(id)).count();
        let workloads = u32::try_from(workloads).unwrap_or(u32::MAX);
        self.ledger.note(Entry { node: self.node, through, workloads, at });
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves a plain list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything, and begins to note.
    pub(super) fn watch(&self) {
        *self.lock() = State { watching: true, entries: Vec::new() };
    }

    /// Forgets everything, and notes nothing until told to.
    pub(super) fn rest(&self) {
        *self.lock() = State::default();
    }

    fn note(&self, entry: Entry) {
        let mut state = self.lock();
        if state.watching && entry.workloads > 0 {
            state.entries.push(entry);
        }
    }

    /// When the change of `revision` came in force at how many workloads of each node. What comes in force at a node
    /// again counts only as far as it had not there before; `sizes` is how many workloads each node has.
    pub(super) fn reached(&self, revision: Revision, sizes: &[u32]) -> Vec<Vec<(Moment, u32)>> {
        let mut left = sizes.to_vec();
        let mut reached = vec![Vec::new(); sizes.len()];
        for entry in self.lock().entries.iter().filter(|entry| entry.through >= revision) {
            let counted = entry.workloads.min(left[entry.node]);
            if counted > 0 {
                left[entry.node] -= counted;
                reached[entry.node].push((entry.at, counted));
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<InstanceId> {
        names.iter().map(|name| InstanceId::new(name).unwrap()).collect()
    }

    #[test]
    fn only_workloads_at_or_behind_the_revision_count_and_each_once() {
        let ledger = Arc::new(Ledger::default());
        let scribe = |node| Scribe { ledger: Arc::clone(&ledger), node };
        let both = ids(&["a-1", "a-1-sidecar-proxy", "b-1-sidecar-proxy"]);
        scribe(0).in_force(Revision(9), &both);
        ledger.watch();
        scribe(0).in_force(Revision(8), &both);
        scribe(0).in_force(Revision(9), &ids(&["a-1-sidecar-proxy"]));
        scribe(0).in_force(Revision(10), &both);
        scribe(1).in_force(Revision(9), &ids(&["a-1"]));
        let reached = ledger.reached(Revision(9), &[2, 1]);
        let counts: Vec<u32> = reached[0].iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 1]);
        assert!(reached[0][0].0 <= reached[0][1].0);
        assert!(reached[1].is_empty(), "an application is no workload's proxy");
        ledger.rest();
        scribe(0).in_force(Revision(11), &both);
        assert!(ledger.reached(Revision(9), &[2, 1]).iter().all(Vec::is_empty));
    }
}
