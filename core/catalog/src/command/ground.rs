//! What records rely on.

use starling_model::{Change, InstanceKey, Record, RecordKey};

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
