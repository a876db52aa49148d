//! A transaction as etcd takes it, and what its answer means.
//!
//! The first thing that every transaction demands is that the store's description is the one that was there when the store
//! was opened: nothing is ever written into data that were removed, replaced or taken over by a later release meanwhile. It is
//! known by etcd's revision of it and not by its bytes, which every member would write to its log with every transaction.

use bytes::Bytes;

use super::numbering::Numbering;
use super::space::Space;
use super::trouble::EtcdTrouble;
use super::wire::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, Request,
    RequestOp, Response, ResponseOp, TargetUnion, TxnRequest, TxnResponse,
};
use crate::store::CommitError;
use crate::transaction::{Condition, Expected, Revision, Transaction, Write};

/// What became of a transaction that etcd has judged.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Carried out, as this revision.
    Done(Revision),
    /// Carried out, and there was nothing to do at this revision.
    Nothing(Revision),
    /// A condition does not hold.
    Conflict(CommitError),
}

/// The request: conditions as comparisons; on failure, what was found in place of what was expected.
pub(super) fn request(space: &Space, numbering: Numbering, described: i64, transaction: &Transaction) -> TxnRequest {
    let conditions = transaction.conditions.iter();
    let compare = std::iter::once(is_modified_at(space.meta.clone(), described))
        .chain(conditions.clone().map(|condition| compare(space, numbering, condition)))
        .collect();
    let seen = conditions.map(|condition| range(space.key(&condition.key)));
    // Without conditions there is but one reason to fail, and nothing to look at.
    let found = (!transaction.conditions.is_empty()).then(|| range(space.meta.clone()));
    let failure = found.into_iter().chain(seen).collect();
    TxnRequest { compare, success: transaction.writes.iter().map(|write| operation(space, write)).collect(), failure }
}

/// That what is at a key was written by this revision of etcd's.
pub(super) fn is_modified_at(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        operand: Some(TargetUnion::ModRevision(revision)),
    }
}

/// That nothing is at a key.
pub(super) fn is_absent(key: Bytes) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key,
        operand: Some(TargetUnion::CreateRevision(0)),
    }
}

/// To etcd a key that is absent was last modified at 0, as it is here.
fn compare(space: &Space, numbering: Numbering, condition: &Condition) -> Compare {
    let (result, revision) = match condition.expected {
        Expected::Absent => (CompareResult::Equal, 0),
        Expected::Present => (CompareResult::Greater, 0),
        Expected::ModifiedAt(revision) => (CompareResult::Equal, numbering.equal_to(revision)),
        Expected::NotModifiedSince(revision) => (CompareResult::Less, numbering.after(revision)),
    };
    Compare {
        result: result.into(),
        target: CompareTarget::Mod.into(),
        key: space.key(&condition.key),
        operand: Some(TargetUnion::ModRevision(revision)),
    }
}

fn operation(space: &Space, write: &Write) -> RequestOp {
    let key = space.key(write.key());
    let request = match write {
        Write::Put { value, lease, .. } => {
            Request::Put(PutRequest { key, value: value.clone(), lease: lease.map_or(0, |lease| lease.0) })
        }
        Write::Delete { .. } => Request::DeleteRange(DeleteRangeRequest { key, range_end: Bytes::new() }),
    };
    RequestOp { request: Some(request) }
}

pub(super) fn put(key: Bytes, value: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::Put(PutRequest { key, value, lease: 0 })) }
}

/// When what is at a key was written; not what it is.
fn range(key: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::Range(RangeRequest { key, keys_only: true, ..RangeRequest::default() })) }
}

/// Reads etcd's answer to [`request`].
pub(super) fn verdict(
    numbering: Numbering,
    described: i64,
    transaction: &Transaction,
    answer: &TxnResponse,
) -> Result<Verdict, EtcdTrouble> {
    let revision = numbering.ours(answer.header.unwrap_or_default().revision);
    if answer.succeeded {
        let has_effect = |op: &ResponseOp| match &op.response {
            Some(Response::DeleteRange(deleted)) => deleted.deleted > 0,
            Some(Response::Put(_)) => true,
            Some(Response::Range(_)) | None => false,
        };
        let changed = answer.responses.iter().any(has_effect);
        return Ok(if changed { Verdict::Done(revision) } else { Verdict::Nothing(revision) });
    }
    let mut found = answer.responses.iter().map(range_of);
    let present = found.next().flatten().and_then(|range| range.kvs.first());
    if present.is_none_or(|kv| kv.mod_revision != described) {
        return Err(EtcdTrouble::Replaced);
    }
    for (condition, range) in transaction.conditions.iter().zip(found) {
        let range = range.ok_or_else(|| EtcdTrouble::Malformed("a transaction without what it found".to_owned()))?;
        let found = range.kvs.first().map_or(Revision::ZERO, |kv| numbering.ours(kv.mod_revision));
        if !condition.expected.holds(found) {
            let (key, expected) = (condition.key.clone(), condition.expected);
            return Ok(Verdict::Conflict(CommitError::Conflict { key, expected, found }));
        }
    }
    Err(EtcdTrouble::Malformed("a transaction that failed while all of its conditions hold".to_owned()))
}

fn range_of(op: &ResponseOp) -> Option<&RangeResponse> {
    match &op.response {
        Some(Response::Range(range)) => Some(range),
        Some(Response::Put(_) | Response::DeleteRange(_)) | None => None,
    }
}
