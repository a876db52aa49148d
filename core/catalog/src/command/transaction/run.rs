//! Operations of a transaction, carried out one after the other on a copy of what they touch.

use std::collections::{BTreeMap, BTreeSet};

use starling_model::{
    CheckedService, InstanceKey, NodeName, OnNode, Record, RecordKey, Revision, ServiceInstance, Versioned,
};

use super::super::coordination::Run as KvRun;
use super::super::{Refusal, TXN_OPERATIONS_MAX};
use super::{CheckWrite, Operation, OperationAnswer, OperationFailure, RecordOperation};
use crate::snapshot::Snapshot;

/// Operations that are carried out.
pub(super) struct Run<'s> {
    snapshot: &'s Snapshot,
    at: Revision,
    pub(super) kv: KvRun<'s>,
    /// Records that were written, or, without one, removed.
    pub(super) records: BTreeMap<RecordKey, Option<Versioned<Record>>>,
    /// Records on which it depends.
    pub(super) depends: BTreeSet<RecordKey>,
    pub(super) answers: Vec<OperationAnswer>,
}

impl<'s> Run<'s> {
    pub(super) fn new(
        snapshot: &'s Snapshot,
        operations: &[Operation],
        at: Revision,
    ) -> Result<Self, Vec<(usize, OperationFailure)>> {
        let (records, depends, answers) = Default::default();
        let mut run = Self { snapshot, at, kv: KvRun::begin(snapshot, at), records, depends, answers };
        let done = operations.iter().map(|operation| run.one(operation)).enumerate();
        let failed: Vec<_> = done.filter_map(|(place, done)| Some((place, done.err()?))).collect();
        if failed.is_empty() { Ok(run) } else { Err(failed) }
    }

    fn one(&mut self, operation: &Operation) -> Result<(), OperationFailure> {
        match operation {
            Operation::Kv(operation) => {
                self.kv.one(operation, false)?;
                self.answers.extend(self.kv.answers.drain(..).map(OperationAnswer::Kv));
                Ok(())
            }
            Operation::Node(operation) => self.on_record(
                operation,
                |_, node| Ok(Record::Node(node.clone())),
                |name| RecordKey::Node(name.clone()),
            ),
            Operation::Instance(operation) => {
                self.on_record(operation, Self::grounded_instance, |key| RecordKey::Instance(key.clone()))
            }
            Operation::Check(operation) => {
                let key = |(node, id): &(NodeName, _)| RecordKey::Check(node.clone(), Clone::clone(id));
                self.on_record(operation, Self::grounded_check, key)
            }
        }
    }

    fn on_record<R, K>(
        &mut self,
        operation: &RecordOperation<R, K>,
        record: impl Fn(&mut Self, &R) -> Result<Record, Refusal>,
        key: impl Fn(&K) -> RecordKey,
    ) -> Result<(), OperationFailure> {
        let rule = |refusal| OperationFailure::Rule(Box::new(refusal));
        match operation {
            RecordOperation::Set(value) => {
                let record = record(self, value).map_err(rule)?;
                self.put(record);
            }
            RecordOperation::Cas(value, expected) => {
                let record = record(self, value).map_err(rule)?;
                self.check_index("set", &record.key(), *expected)?;
                self.put(record);
            }
            RecordOperation::Get(name) => {
                let key = key(name);
                let found = self.find(&key).ok_or_else(|| OperationFailure::Missing(described(&key)))?;
                self.answers.push(OperationAnswer::Record(Box::new(found)));
            }
            RecordOperation::Delete(name) => self.remove(&key(name))?,
            RecordOperation::DeleteCas(name, expected) => {
                let key = key(name);
                self.check_index("delete", &key, *expected)?;
                self.remove(&key)?;
            }
        }
        Ok(())
    }

    /// An instance whose node is there.
    fn grounded_instance(&mut self, instance: &ServiceInstance) -> Result<Record, Refusal> {
        self.require_node(&instance.key.node)?;
        Ok(Record::Instance(instance.clone()))
    }

    /// A check whose node and instance are there, which says of the instance what holds.
    fn grounded_check(&mut self, CheckWrite { check, of }: &CheckWrite) -> Result<Record, Refusal> {
        self.require_node(&check.node)?;
        let mut check = check.clone();
        check.service = match of {
            None => None,
            Some(id) => {
                let key = InstanceKey { node: check.node.clone(), id: id.clone() };
                let found = self.find(&RecordKey::Instance(key)).map(|found| found.value);
                let Some(Record::Instance(instance)) = found else {
                    return Err(Refusal::UnknownService { check: check.id, service: id.clone(), node: check.node });
                };
                Some(CheckedService { id: id.clone(), name: instance.name, tags: instance.tags })
            }
        };
        Ok(Record::Check(check))
    }

    fn require_node(&mut self, name: &NodeName) -> Result<(), Refusal> {
        let found = self.find(&RecordKey::Node(name.clone()));
        found.map(|_| ()).ok_or_else(|| Refusal::UnknownNode(name.clone()))
    }

    /// A record as those before have left it; the transaction depends on it.
    fn find(&mut self, key: &RecordKey) -> Option<Versioned<Record>> {
        self.depends.insert(key.clone());
        match self.records.get(key) {
            Some(record) => record.clone(),
            None => self.stored(key),
        }
    }

    fn stored(&self, key: &RecordKey) -> Option<Versioned<Record>> {
        let (created, modified) = (self.snapshot.created(key)?, self.snapshot.modified(key)?);
        let value = match key.on_node()? {
            OnNode::Node(name) => Record::Node(self.snapshot.node(name)?.value.clone()),
            OnNode::Instance(key) => Record::Instance(self.snapshot.instance(key)?.value.clone()),
            OnNode::Check(node, id) => Record::Check(self.snapshot.check(node, id)?.value.clone()),
        };
        Some(Versioned { value, created, modified })
    }

    fn check_index(&mut self, verb: &'static str, key: &RecordKey, expected: Revision) -> Result<(), OperationFailure> {
        let actual = self.find(key).map_or(Revision(0), |found| found.modified);
        let is_there = actual != Revision(0);
        if actual == expected && (is_there || verb == "set") {
            return Ok(());
        }
        Err(OperationFailure::Stale { verb, what: described(key) })
    }

    fn put(&mut self, value: Record) {
        let key = value.key();
        let record = match self.find(&key) {
            // What is as it was keeps its index.
            Some(before) if before.value == value => before,
            before => {
                let created = before.map_or(self.at, |before| before.created);
                Versioned { value, created, modified: self.at }
            }
        };
        self.answers.push(OperationAnswer::Record(Box::new(record.clone())));
        self.records.insert(key, Some(record));
    }

    /// Everything on a node, but for itself.
    fn on_node(&self, name: &NodeName) -> Vec<RecordKey> {
        let instances = self.snapshot.instances_on(name).map(|i| RecordKey::Instance(i.value.key.clone()));
        let checks = self.snapshot.checks_on(name).map(|c| RecordKey::Check(name.clone(), c.value.id.clone()));
        let written = self.records.keys().filter(|other| other.on_node().is_some_and(|on| on.node() == name));
        instances.chain(checks).chain(written.cloned()).collect()
    }

    /// The checks of an instance; one that was written anew, perhaps for another, counts as it is now.
    fn checks_of(&self, instance: &InstanceKey) -> Vec<RecordKey> {
        let is_of_it = |record: &Record| {
            let Record::Check(check) = record else { return false };
            check.node == instance.node && check.service.as_ref().is_some_and(|service| service.id == instance.id)
        };
        let stored = self.snapshot.own_checks_of(instance);
        let stored = stored.map(|c| RecordKey::Check(instance.node.clone(), c.value.id.clone()));
        let stored = stored.filter(|key| !self.records.contains_key(key));
        let written = self.records.values().flatten().filter(|record| is_of_it(&record.value));
        stored.chain(written.map(|record| record.value.key())).collect()
    }

    /// Removes a record and what relies on it.
    fn remove(&mut self, key: &RecordKey) -> Result<(), OperationFailure> {
        let on_it = match key.on_node() {
            Some(OnNode::Node(name)) => self.on_node(name),
            Some(OnNode::Instance(instance)) => self.checks_of(instance),
            Some(OnNode::Check(..)) | None => Vec::new(),
        };
        if on_it.len() > TXN_OPERATIONS_MAX {
            return Err(OperationFailure::TooLarge);
        }
        self.depends.insert(key.clone());
        self.records.insert(key.clone(), None);
        for key in on_it {
            self.records.insert(key, None);
        }
        Ok(())
    }
}

/// A record, as people know it.
fn described(key: &RecordKey) -> String {
    match key.on_node() {
        Some(OnNode::Node(name)) => format!("node {:?}", name.as_str()),
        Some(OnNode::Instance(key)) => format!("service {:?} on node {:?}", key.id.as_str(), key.node.as_str()),
        Some(OnNode::Check(node, id)) => format!("check {:?} on node {:?}", id.as_str(), node.as_str()),
        None => key.encode(),
    }
}
