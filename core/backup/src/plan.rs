//! What a restore onto a running mesh changes, in which order.
//!
//! What was *decided* is set back: config entries, intentions, and the nodes, services and checks that no living agent
//! answers for. What *runs* is left: an agent that is attached is the authority for its node, and would put its records back
//! at once. Left are also what the mesh's identity hangs on (roots and keys of the CA), who may join (a used or revoked
//! token must not be good again), and virtual addresses that are taken, which are for ever.
//!
//! # No call is ever allowed that is denied before and after
//!
//! Between two transactions of a restore the catalog is neither what it was nor what it will be. The order of the [stages]
//! sees to it that what decides about a call is at any moment either the old state's rule or the new one's:
//!
//! 1. Services that the snapshot does not know go first, while the rules that were made for them are still there.
//! 2. The rules are exchanged. As many as fit go in one transaction. More go in three stages: entries of single destinations
//!    get their new sources while they keep their old ones, then the entry for every destination (`*`) is exchanged, and
//!    then the old sources go. So a call falls back to the rule of `*` only when that is the new one.
//! 3. Only then services come, and get their routes; what else the snapshot does not know goes last.
//!
//! [stages]: Stage

mod policy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use starling_model::{
    Change, CheckStatus, ConfigKind, CoordinationKey, CoordinationRecord, InstanceKey, LIVENESS_CHECK, LIVENESS_LOST,
    NodeName, OnNode, Record, RecordKey, ServiceInstance, ServiceName, Uuid,
};

/// Records by key.
pub type Records = BTreeMap<RecordKey, Record>;

/// Changes that are all made before the next stage begins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stage {
    /// What it is for, in a few words.
    pub name: &'static str,
    /// In the order in which they are to be made.
    pub changes: Vec<Change>,
}

/// What is left as it is, though the snapshot has it otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Left {
    /// Nodes whose agent is attached, and that differ.
    pub attached_nodes: BTreeSet<NodeName>,
    /// Roots and keys of the CA.
    pub authority: u64,
    /// Join tokens.
    pub join_tokens: u64,
    /// Virtual addresses that are another service's by now, or of a service that has another.
    pub virtual_addresses: u64,
}

/// The way from one state to another.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// In this order; none is empty.
    pub stages: Vec<Stage>,
    /// What is not changed.
    pub left: Left,
}

/// How a record fares in a restore.
enum Fate {
    /// It becomes as the snapshot has it.
    SetBack,
    /// Of a node, which it is set back with unless its agent is attached.
    OfNode(NodeName),
    Authority,
    JoinToken,
    /// It is put if it is free, and never removed.
    VirtualAddress,
    /// It means nothing in another state.
    Ignored,
}

/// Plans the way from `now` to `then`, where `is_attached` says of which nodes the agent is there.
#[must_use]
pub fn plan(now: &Records, then: &Records, is_attached: impl Fn(&NodeName) -> bool) -> Plan {
    let mut left = Left::default();
    let (puts, deletes) = difference(now, then, &is_attached, &mut left);
    let known_services: BTreeSet<&ServiceName> =
        then.values().filter_map(instance).map(ServiceInstance::identity).collect();
    let is_unknown = |key: &RecordKey| {
        now.get(key).and_then(instance).is_some_and(|instance| !known_services.contains(instance.identity()))
    };
    let (unknown, other_deletes): (Vec<_>, Vec<_>) = deletes.into_iter().partition(is_unknown);
    let mut stages = vec![Stage::deleting("services that the snapshot does not know", unknown)];
    let mut routes = routing_of(&other_deletes);
    routes.reverse();
    stages.push(Stage::deleting("routes that it does not know", routes));
    stages.extend(policy::stages(now, &puts, &other_deletes));
    stages.push(Stage::putting("nodes, services and checks", runtime_puts(&puts)));
    let routes = routing_of(puts.keys()).into_iter().filter_map(|key| puts.get(&key).cloned());
    stages.push(Stage::putting("routes", routes.collect()));
    // On these nothing hangs.
    let is_entry = |key: &&RecordKey| {
        matches!(key, RecordKey::Coordination(_)) || matches!(config_kind(key), Some(ConfigKind::Kept(_)))
    };
    let entries = puts.iter().filter(|(key, _)| is_entry(key)).map(|(_, record)| record.clone());
    stages.push(Stage::putting("entries on which nothing acts, and those of the key-value store", entries.collect()));
    let gone = other_deletes.iter().filter(is_entry).cloned();
    stages.push(Stage::deleting("entries that it does not know", gone.collect()));
    stages.push(Stage::deleting("what else it does not know", runtime_deletes(&other_deletes)));
    stages.retain(|stage| !stage.changes.is_empty());
    Plan { stages, left }
}

/// The kinds that say where calls go, each after those that it speaks of.
const ROUTING: [ConfigKind; 5] = [
    ConfigKind::ServiceResolver,
    ConfigKind::ServiceSplitter,
    ConfigKind::ServiceRouter,
    ConfigKind::IngressGateway,
    ConfigKind::TerminatingGateway,
];

/// Those of the keys that are of such a kind, in the order of the kinds.
fn routing_of<'a>(keys: impl IntoIterator<Item = &'a RecordKey>) -> Vec<RecordKey> {
    let place = |key: &RecordKey| ROUTING.iter().position(|kind| config_kind(key) == Some(*kind));
    let mut found: Vec<_> = keys.into_iter().filter_map(|key| Some((place(key)?, key.clone()))).collect();
    found.sort();
    found.into_iter().map(|(_, key)| key).collect()
}

impl Stage {
    fn deleting(name: &'static str, keys: Vec<RecordKey>) -> Self {
        Self { name, changes: keys.into_iter().map(Change::Delete).collect() }
    }

    fn putting(name: &'static str, records: Vec<Record>) -> Self {
        Self { name, changes: records.into_iter().map(Change::Put).collect() }
    }
}

/// What is to be put and to be deleted, in the order of keys.
fn difference(
    now: &Records,
    then: &Records,
    is_attached: &impl Fn(&NodeName) -> bool,
    left: &mut Left,
) -> (Records, Vec<RecordKey>) {
    let mut puts = Records::new();
    let mut deletes = Vec::new();
    let may_change = |key: &RecordKey, left: &mut Left| match fate(key) {
        Fate::SetBack => true,
        Fate::OfNode(node) if is_attached(&node) => {
            left.attached_nodes.insert(node);
            false
        }
        Fate::OfNode(_) => true,
        Fate::Authority => {
            left.authority += 1;
            false
        }
        Fate::JoinToken => {
            left.join_tokens += 1;
            false
        }
        Fate::VirtualAddress | Fate::Ignored => false,
    };
    let addressed = addressed(now);
    for (key, record) in then {
        if let Record::VirtualAddress(address) = record {
            if addressed.contains(&address.service) || now.contains_key(key) {
                left.virtual_addresses += u64::from(now.get(key) != Some(record));
            } else {
                puts.insert(key.clone(), record.clone());
            }
            continue;
        }
        let is_of_attached = matches!(fate(key), Fate::OfNode(node) if is_attached(&node));
        let record = if is_of_attached { record.clone() } else { without_agent(&with_locks_of(now, record)) };
        if now.get(key) != Some(&record) && may_change(key, left) && is_grounded(&record, now, then) {
            puts.insert(key.clone(), record);
        }
    }
    for key in now.keys() {
        if !then.contains_key(key) && may_change(key, left) {
            deletes.push(key.clone());
        }
    }
    (puts, deletes)
}

fn fate(key: &RecordKey) -> Fate {
    match key {
        RecordKey::Node(node) | RecordKey::Check(node, _) => Fate::OfNode(node.clone()),
        RecordKey::Instance(key) => Fate::OfNode(key.node.clone()),
        RecordKey::Config(_) => Fate::SetBack,
        RecordKey::CaRoot(_) | RecordKey::CaKey(_) => Fate::Authority,
        RecordKey::JoinToken(_) => Fate::JoinToken,
        RecordKey::VirtualAddress(_) => Fate::VirtualAddress,
        RecordKey::Coordination(CoordinationKey::Kv(_)) => Fate::SetBack,
        // Sessions live now: those of then have ended.
        RecordKey::Coordination(
            CoordinationKey::Session(_) | CoordinationKey::Renewal(_) | CoordinationKey::LockDelay(_),
        ) => Fate::Ignored,
        // Who has lost a right since does not get it back by a restore.
        RecordKey::Acl(_) => Fate::Ignored,
        // A node that was evicted since does not come back by a restore.
        RecordKey::Enrolment(_) => Fate::Ignored,
        RecordKey::Fence(_) | RecordKey::Server(_) | RecordKey::Leader | RecordKey::Attachment(_) => Fate::Ignored,
    }
}

/// The services that have a virtual address.
fn addressed(records: &Records) -> BTreeSet<&ServiceName> {
    fn service(record: &Record) -> Option<&ServiceName> {
        if let Record::VirtualAddress(address) = record { Some(&address.service) } else { None }
    }
    records.values().filter_map(service).collect()
}

/// The record with the lock of the session that has it now, if one does, and none of a session that has ended since.
fn with_locks_of(now: &Records, record: &Record) -> Record {
    let mut record = record.clone();
    if let Record::Coordination(CoordinationRecord::Kv(entry)) = &mut record {
        entry.session = None;
        let held = now.get(&RecordKey::Coordination(CoordinationKey::Kv(entry.key.clone())));
        if let Some(Record::Coordination(CoordinationRecord::Kv(held))) = held {
            entry.lock_index = entry.lock_index.max(held.lock_index);
            let lives = |id: &Uuid| now.contains_key(&RecordKey::Coordination(CoordinationKey::Session(*id)));
            entry.session = held.session.filter(lives);
        }
    }
    record
}

/// The record as it is to be put: a node that comes back without its agent is lost until that is there.
fn without_agent(record: &Record) -> Record {
    let mut record = record.clone();
    if let Record::Check(check) = &mut record
        && (check.service.is_none() && check.id.as_str() == LIVENESS_CHECK)
    {
        check.status = CheckStatus::Critical;
        check.output = LIVENESS_LOST.to_owned();
    }
    record
}

/// Whether what a record relies on is there in one of the states. Half of what was being removed when the snapshot was saved
/// may be in it.
fn is_grounded(record: &Record, now: &Records, then: &Records) -> bool {
    ground(record).is_none_or(|ground| now.contains_key(&ground) || then.contains_key(&ground))
}

/// What must be there for a record to be there: a check's instance or node, an instance's node.
#[must_use]
pub fn ground(record: &Record) -> Option<RecordKey> {
    if let Record::Instance(instance) = record {
        return Some(RecordKey::Node(instance.key.node.clone()));
    }
    let Record::Check(check) = record else { return None };
    let node = check.node.clone();
    Some(match &check.service {
        Some(service) => RecordKey::Instance(InstanceKey { node, id: service.id.clone() }),
        None => RecordKey::Node(node),
    })
}

fn instance(record: &Record) -> Option<&ServiceInstance> {
    if let Record::Instance(instance) = record { Some(instance) } else { None }
}

fn config_kind(key: &RecordKey) -> Option<ConfigKind> {
    if let RecordKey::Config(key) = key { Some(key.kind) } else { None }
}

/// Addresses, then node by node what is on it: checks before what they speak of, so that nothing is served without them.
fn runtime_puts(puts: &Records) -> Vec<Record> {
    let order = |key: &RecordKey| match key.on_node() {
        Some(OnNode::Node(node)) => Some((Some(node.clone()), 0)),
        Some(OnNode::Check(node, _)) => Some((Some(node.clone()), 1)),
        Some(OnNode::Instance(key)) => Some((Some(key.node.clone()), 2)),
        None => matches!(key, RecordKey::VirtualAddress(_)).then_some((None, 0)),
    };
    let mut ordered: Vec<_> = puts.iter().filter_map(|(key, record)| Some((order(key)?, record.clone()))).collect();
    ordered.sort_by(|one, other| one.0.cmp(&other.0));
    ordered.into_iter().map(|(_, record)| record).collect()
}

/// Node by node: what others rely on first, so that nothing more can come to rely on it.
fn runtime_deletes(deletes: &[RecordKey]) -> Vec<RecordKey> {
    let order = |key: &RecordKey| match key.on_node()? {
        OnNode::Node(node) => Some((node.clone(), 0)),
        OnNode::Instance(key) => Some((key.node.clone(), 1)),
        OnNode::Check(node, _) => Some((node.clone(), 2)),
    };
    let mut ordered: Vec<_> = deletes.iter().filter_map(|key| Some((order(key)?, key.clone()))).collect();
    ordered.sort_by(|one, other| one.0.cmp(&other.0));
    ordered.into_iter().map(|(_, key)| key).collect()
}
