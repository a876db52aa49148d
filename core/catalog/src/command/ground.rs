//! What records rely on.

use std::collections::BTreeSet;

use starling_model::{Change, InstanceKey, Record, RecordKey};

use super::{Decision, GUARDED_CHANGES_MAX};
use crate::snapshot::Snapshot;

/// What must be there for a record to be there: a check's instance or node, an instance's node.
#[must_use]
pub fn ground(change: &Change) -> Option<RecordKey> {
    match change {
        Change::Put(Record::Instance(instance)) => Some(RecordKey::Node(instance.key.node.clone())),
        Change::Put(Record::Check(check)) => Some(match &check.service {
            Some(service) => RecordKey::Instance(InstanceKey { node: check.node.clone(), id: service.id.clone() }),
            None => RecordKey::Node(check.node.clone()),
        }),
        Change::Put(
            Record::Node(_)
            | Record::Config(_)
            | Record::CaRoot(_)
            | Record::CaKey(_)
            | Record::JoinToken(_)
            | Record::Enrolment(_)
            | Record::Fence(_)
            | Record::VirtualAddress(_)
            | Record::Server(_)
            | Record::Leader(_)
            | Record::Attachment(_)
            | Record::Coordination(_)
            | Record::Acl(_),
        )
        | Change::Delete(_) => None,
    }
}

impl Decision {
    /// Sees what the records that are written rely on, but for what is written along with them.
    pub(super) fn see_grounds(&mut self, snapshot: &Snapshot) {
        let mut known: BTreeSet<RecordKey> = self.changes.iter().map(Change::key).collect();
        let guarded = self.changes.iter().take(GUARDED_CHANGES_MAX);
        let grounds: Vec<_> = guarded.filter_map(ground).filter(|key| known.insert(key.clone())).collect();
        for key in grounds {
            self.see(snapshot, key);
        }
    }
}
