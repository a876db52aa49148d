//! Anti-entropy: what must be written so that the catalog's records of this node are the agent's.
//!
//! The agent is the authority for its own node. An instance or check under this node's name that the agent does not
//! know is removed, also one that was registered through the catalog API; whoever wants such records registers them
//! under a node name that has no agent.

use std::collections::BTreeMap;

use starling_model::{CONSUL_SERVICE, CheckId, InstanceId, LIVENESS_CHECK, Record, RecordKey, ServiceInstance};

use crate::registrations::Registrations;

/// The keys that differ between `local` and the catalog, grouped so that an instance goes together with its checks.
pub(crate) fn difference(local: &Registrations, catalog: &[Record]) -> Vec<Vec<RecordKey>> {
    let node = &local.node().name;
    let theirs: BTreeMap<RecordKey, &Record> = catalog.iter().map(|record| (record.key(), record)).collect();
    let mut groups = Vec::new();
    let node_key = RecordKey::Node(node.clone());
    let node_differs =
        theirs.get(&node_key).is_none_or(|record| !matches!(record, Record::Node(n) if n == local.node()));
    let mut of_node: Vec<RecordKey> = node_differs.then_some(node_key).into_iter().collect();
    let check_differs = |id: &CheckId| {
        let key = RecordKey::Check(node.clone(), id.clone());
        let same = theirs.get(&key).is_some_and(|record| same_check(record, local, id));
        (!same).then_some(key)
    };
    of_node.extend(local.checks_of(None).filter_map(check_differs));
    groups.push(of_node);
    for service in local.services().values() {
        let key = RecordKey::Instance(service.instance.key.clone());
        let same = theirs.get(&key).is_some_and(|record| same_instance(record, &service.instance));
        let mut group: Vec<RecordKey> = (!same).then_some(key).into_iter().collect();
        group.extend(local.checks_of(Some(&service.instance.key.id)).filter_map(check_differs));
        groups.push(group);
    }
    let mut unknown: BTreeMap<Option<InstanceId>, Vec<RecordKey>> = BTreeMap::new();
    for (key, record) in &theirs {
        match record {
            Record::Check(check) => {
                let ours = check.node != *node || local.checks().contains_key(&check.id);
                // The server keeps the one that says whether the agent itself is alive.
                if !ours && check.id.as_str() != LIVENESS_CHECK {
                    let owner = check.service.as_ref().map(|service| service.id.clone());
                    unknown.entry(owner).or_default().push(key.clone());
                }
            }
            Record::Instance(instance) => {
                // A server under Consul's name enters itself.
                let is_server = instance.name.as_str() == CONSUL_SERVICE && instance.key.id.as_str() == CONSUL_SERVICE;
                if instance.key.node == *node && !is_server && !local.services().contains_key(&instance.key.id) {
                    unknown.entry(Some(instance.key.id.clone())).or_default().push(key.clone());
                }
            }
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
            | Record::Acl(_) => {}
        }
    }
    groups.extend(unknown.into_values());
    groups.retain(|group| !group.is_empty());
    groups
}

/// Output is left out of the comparison: it is written at its own, slower pace.
fn same_check(record: &Record, local: &Registrations, id: &CheckId) -> bool {
    let (Record::Check(theirs), Some(ours)) = (record, local.checks().get(id)) else { return false };
    let mut theirs = theirs.clone();
    theirs.output.clone_from(&ours.record.output);
    theirs == ours.record
}

/// With `EnableTagOverride` the catalog's tags are left as they are.
fn same_instance(record: &Record, ours: &ServiceInstance) -> bool {
    let Record::Instance(theirs) = record else { return false };
    if ours.enable_tag_override && theirs.tags != ours.tags {
        let mut theirs = theirs.clone();
        theirs.tags.clone_from(&ours.tags);
        return theirs == *ours;
    }
    theirs == ours
}
