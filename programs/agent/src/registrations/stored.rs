//! Registrations in the forms in which others hold them: the catalog's records and the journal's entries.

use starling_model::{Change, OnNode, Record, RecordKey, UnixSeconds};

use super::{Kept, Origin, Registrations, Role, Source};
use crate::journal::Entry;

impl Registrations {
    /// The change that makes the catalog's record under `key` what it is here.
    pub(crate) fn change(&self, key: &RecordKey) -> Change {
        let record = match key.on_node() {
            Some(OnNode::Node(_)) => Some(Record::Node(self.node.clone())),
            Some(OnNode::Instance(key)) => self.services.get(&key.id).map(|s| Record::Instance(s.instance.clone())),
            Some(OnNode::Check(_, id)) => self.checks.get(id).map(|check| Record::Check(check.record.clone())),
            None => None,
        };
        record.map_or_else(|| Change::Delete(key.clone()), Change::Put)
    }

    /// What that change weighs in a transaction, in bytes of key and value.
    pub(crate) fn change_bytes(&self, key: &RecordKey) -> usize {
        let value = match self.change(key) {
            Change::Put(record) => record.encode().len(),
            Change::Delete(_) => 0,
        };
        key.encode().len() + value
    }

    /// The line that makes the journal's idea of `kept` what it is here.
    pub(crate) fn entry(&self, kept: &Kept, at: UnixSeconds) -> Option<Entry> {
        match kept {
            Kept::Service(id) => Some(match self.services.get(id).map(|service| &service.role) {
                Some(Role::Given(given, Source::Caller)) => Entry::Service(given.clone()),
                Some(Role::Given(given, Source::File)) => Entry::ServiceOfFile(given.clone()),
                Some(Role::SidecarOf(_)) | None => Entry::ServiceGone(id.clone()),
            }),
            Kept::Check(id) => Some(match self.checks.get(id) {
                Some(check) => {
                    let (id, service, spec) = (id.clone(), check.owner().cloned(), Box::new(check.spec.clone()));
                    match check.origin {
                        Origin::Apart(Source::Caller) => Entry::Check { id, service, spec },
                        Origin::Apart(Source::File) => Entry::CheckOfFile { id, service, spec },
                        Origin::Service { .. } => Entry::CheckGone(id),
                    }
                }
                None => Entry::CheckGone(id.clone()),
            }),
            Kept::Status(id) => self.checks.get(id).filter(|c| !self.is_derived(c)).map(|check| Entry::Status {
                id: id.clone(),
                status: check.record.status,
                output: check.record.output.clone(),
                at,
            }),
        }
    }

    /// Everything that is kept on disk.
    pub(crate) fn entries(&self, at: UnixSeconds) -> Vec<Entry> {
        let services = self.services.iter().filter(|(_, service)| service.parent().is_none());
        let services = services.map(|(id, _)| Kept::Service(id.clone()));
        let apart = self.checks.values().filter(|check| check.origin.is_apart());
        let apart = apart.map(|check| Kept::Check(check.record.id.clone()));
        let statuses = self.checks.keys().cloned().map(Kept::Status);
        services.chain(apart).chain(statuses).filter_map(|kept| self.entry(&kept, at)).collect()
    }
}
