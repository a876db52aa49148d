//! Nodes with agents that have left the mesh, or were taken out of it, as far as this server was there.
//!
//! Nothing is decided by it: it is what members are listed from. It is kept in memory, and gone with the server.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use starling_catalog::Snapshot;
use starling_model::{Change, Node, NodeName, Record, RecordKey};

use crate::liveness::liveness_check;

/// Nodes that are remembered; of more, the last ones.
const REMEMBERED_MAX: usize = 1_024;

/// Those who have left and are not back.
#[derive(Default)]
pub(crate) struct Departed(Mutex<VecDeque<Node>>);

impl Departed {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Node>> {
        // A panic while holding the lock leaves a plain list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The catalog was `before`, and has changed so.
    pub(crate) fn note(&self, before: &Snapshot, changes: &[Change]) {
        for change in changes {
            match change {
                // Only what an agent was on is a member.
                Change::Delete(RecordKey::Node(name)) if before.check(name, &liveness_check()).is_some() => {
                    let Some(node) = before.node(name) else { continue };
                    let mut departed = self.lock();
                    departed.retain(|departed| departed.name != *name);
                    departed.push_back(node.value.clone());
                    let surplus = departed.len().saturating_sub(REMEMBERED_MAX);
                    departed.drain(..surplus);
                }
                Change::Put(Record::Node(node)) => self.lock().retain(|departed| departed.name != node.name),
                Change::Put(_) | Change::Delete(_) => {}
            }
        }
    }

    /// Forgets one; whether it was remembered.
    pub(crate) fn forget(&self, name: &NodeName) -> bool {
        let mut departed = self.lock();
        let before = departed.len();
        departed.retain(|departed| departed.name != *name);
        departed.len() < before
    }

    /// Those who have left, in the order in which they did.
    pub(crate) fn all(&self) -> Vec<Node> {
        self.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use starling_model::{Check, CheckStatus, OpaqueSettings, Revision};

    use super::*;

    fn node(name: &str) -> Node {
        let (name, id) = (name.parse().expect("a name"), String::new());
        let (tagged_addresses, meta) = (BTreeMap::new(), BTreeMap::new());
        Node { name, id, address: "10.0.0.1".to_owned(), tagged_addresses, meta }
    }

    fn liveness(node: &NodeName) -> Check {
        let (name, output, kind) = (String::new(), String::new(), String::new());
        let (notes, interval, timeout) = (String::new(), String::new(), String::new());
        let (id, status, definition) = (liveness_check(), CheckStatus::Passing, OpaqueSettings::default());
        Check {
            node: node.clone(),
            id,
            name,
            status,
            notes,
            output,
            service: None,
            kind,
            interval,
            timeout,
            definition,
        }
    }

    #[test]
    fn who_left_is_told_until_it_is_back_and_what_had_no_agent_is_not() {
        let (agents, bare) = (node("n1"), node("external"));
        let there = [
            Change::Put(Record::Node(agents.clone())),
            Change::Put(Record::Check(liveness(&agents.name))),
            Change::Put(Record::Node(bare.clone())),
        ];
        let before = Snapshot::default().apply(Revision(1), &there).snapshot;
        let departed = Departed::default();
        let gone = [&agents, &bare].map(|node| Change::Delete(RecordKey::Node(node.name.clone())));
        departed.note(&before, &gone);
        assert_eq!(departed.all(), std::slice::from_ref(&agents));
        departed.note(&before, &gone);
        assert_eq!(departed.all().len(), 1, "once");
        assert!(departed.forget(&agents.name) && !departed.forget(&agents.name) && departed.all().is_empty());
        departed.note(&before, &gone);
        departed.note(&before, &there[..1]);
        assert!(departed.all().is_empty());
    }
}
