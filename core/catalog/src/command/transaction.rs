//! Transactions over entries, nodes, instances and checks: all of the operations or none.
//!
//! Operations are carried out one after the other on what there is and on what those before them have left; what differs at the end is
//! written. An operation that cannot be done refuses the whole, and every one that cannot is named.

mod run;

use starling_model::{
    Change, Check, CheckId, InstanceId, InstanceKey, Node, NodeName, Record, RecordKey, Revision, ServiceInstance,
    Versioned,
};

use super::coordination::{CONDITIONS_MAX, KvAnswer, KvFailure, KvOperation, decide_run};
use super::{Decision, GUARDED_CHANGES_MAX, Refusal, refuse_taken_port, virtual_address};
use crate::snapshot::Snapshot;
use run::Run;

/// An operation on a record. Words as in Consul's transactions.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordOperation<R, K> {
    /// Writes it.
    Set(R),
    /// The same if it was last modified at this revision; 0 means only if it is not there.
    Cas(R, Revision),
    /// Reads it; it has to be there.
    Get(K),
    /// Removes it, with what relies on it; nothing happens if it is not there.
    Delete(K),
    /// The same if it was last modified at this revision.
    DeleteCas(K, Revision),
}

/// A check as it is to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckWrite {
    /// The check; the instance that it is of comes from `of`.
    pub check: Check,
    /// Of which instance on its node; `None` for the node itself.
    pub of: Option<InstanceId>,
}

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// On entries of the key-value store.
    Kv(KvOperation),
    /// On a node.
    Node(RecordOperation<Node, NodeName>),
    /// On an instance, whose node has to be there.
    Instance(RecordOperation<ServiceInstance, InstanceKey>),
    /// On a check, whose node and instance have to be there.
    Check(RecordOperation<CheckWrite, (NodeName, CheckId)>),
}

/// What an operation answers.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationAnswer {
    /// An entry.
    Kv(KvAnswer),
    /// A node, an instance or a check.
    Record(Box<Versioned<Record>>),
}

/// Why an operation cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationFailure {
    /// One on entries.
    #[error(transparent)]
    Kv(#[from] KvFailure),
    /// The record was modified at another revision, or is or is not there.
    #[error("failed to {verb} {what}, index is stale")]
    Stale {
        /// What was to be done.
        verb: &'static str,
        /// Which record.
        what: String,
    },
    /// It is not there.
    #[error("{0} doesn't exist")]
    Missing(String),
    /// It breaks a rule of registrations.
    #[error(transparent)]
    Rule(Box<Refusal>),
    /// It touches more than one transaction may.
    #[error(
        "the transaction changes more than {GUARDED_CHANGES_MAX} records, or depends on more than {CONDITIONS_MAX}; remove \
         a node with much on it by /v1/catalog/deregister"
    )]
    TooLarge,
}

pub(super) fn decide(snapshot: &Snapshot, operations: &[Operation], decision: &mut Decision) -> Result<(), Refusal> {
    let next = Revision(snapshot.revision().0 + 1);
    let run = Run::new(snapshot, operations, next).map_err(Refusal::Transaction)?;
    let last = operations.len().saturating_sub(1);
    let too_large = || Refusal::Transaction(vec![(last, OperationFailure::TooLarge)]);
    let Run { kv, records, depends, .. } = run;
    let written = || records.values().flatten().filter_map(|record| instance_of(&record.value));
    virtual_address::assign(snapshot, written(), decision);
    if decision.again {
        return Err(too_large());
    }
    let along: Vec<_> = written().cloned().collect();
    let is_gone = |key: &InstanceKey| matches!(records.get(&RecordKey::Instance(key.clone())), Some(None));
    for instance in &along {
        let node = records.get(&RecordKey::Node(instance.key.node.clone())).and_then(Option::as_ref);
        let node = node.and_then(|record| if let Record::Node(node) = &record.value { Some(node) } else { None });
        refuse_taken_port(snapshot, node, instance, &along, is_gone)
            .map_err(|refusal| Refusal::Transaction(vec![(last, OperationFailure::Rule(Box::new(refusal)))]))?;
    }
    decide_run(snapshot, kv, false, decision);
    for key in depends {
        decision.see(snapshot, key);
    }
    let removes = records.values().any(Option::is_none);
    for (key, record) in records {
        match record {
            Some(record) => decision.put(snapshot, record.value),
            None => decision.delete(snapshot, key),
        }
    }
    if decision.changes.len() > GUARDED_CHANGES_MAX || decision.seen.len() > CONDITIONS_MAX {
        return Err(too_large());
    }
    decision.again = removes && !decision.changes.is_empty();
    Ok(())
}

/// What others have put on what was removed, without having seen that it was.
pub(super) fn decide_rest(snapshot: &Snapshot, operations: &[Operation], decision: &mut Decision) {
    for operation in operations {
        match operation {
            Operation::Node(RecordOperation::Delete(name) | RecordOperation::DeleteCas(name, _)) => {
                if snapshot.node(name).is_none() {
                    super::decide_deregister_node(snapshot, name, decision);
                }
            }
            Operation::Instance(RecordOperation::Delete(key) | RecordOperation::DeleteCas(key, _)) => {
                if snapshot.instance(key).is_none() {
                    super::decide_deregister_instance(snapshot, key, decision);
                }
            }
            Operation::Kv(_) | Operation::Node(_) | Operation::Instance(_) | Operation::Check(_) => {}
        }
    }
    let mut known = std::collections::BTreeSet::new();
    decision.changes.retain(|change: &Change| known.insert(change.key()));
    decision.seen.truncate(CONDITIONS_MAX);
}

fn instance_of(record: &Record) -> Option<&ServiceInstance> {
    if let Record::Instance(instance) = record { Some(instance) } else { None }
}

/// What the operations answer, in order, when they are done at `at` on what `snapshot` has; `None` if they cannot be.
#[must_use]
pub fn transaction_answers(
    snapshot: &Snapshot,
    operations: &[Operation],
    at: Revision,
) -> Option<Vec<OperationAnswer>> {
    Run::new(snapshot, operations, at).ok().map(|run| run.answers)
}
