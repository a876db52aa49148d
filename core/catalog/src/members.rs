//! Which servers there are, which of them leads, and to which each node is attached. Empty where the store has one server.

use std::sync::Arc;

use imbl::OrdMap;
use starling_model::{
    AttachmentRecord, LeaderRecord, NodeName, Record, RecordKey, Revision, ServerId, ServerRecord, Versioned,
};

/// The members of a mesh whose store is shared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    servers: OrdMap<ServerId, Arc<Versioned<ServerRecord>>>,
    leader: Option<Versioned<LeaderRecord>>,
    attachments: OrdMap<NodeName, Arc<Versioned<AttachmentRecord>>>,
}

impl Members {
    pub(crate) fn put_server(&mut self, server: Versioned<ServerRecord>) {
        self.servers.insert(server.value.id, Arc::new(server));
    }

    pub(crate) fn put_leader(&mut self, leader: Versioned<LeaderRecord>) {
        self.leader = Some(leader);
    }

    pub(crate) fn put_attachment(&mut self, attachment: Versioned<AttachmentRecord>) {
        self.attachments.insert(attachment.value.node.clone(), Arc::new(attachment));
    }

    /// Removes a record, if it is there; `key` is of a member.
    pub(crate) fn remove(&mut self, key: &RecordKey) {
        match key {
            RecordKey::Server(id) => {
                self.servers.remove(id);
            }
            RecordKey::Leader => self.leader = None,
            RecordKey::Attachment(node) => {
                self.attachments.remove(node);
            }
            RecordKey::Node(_)
            | RecordKey::Instance(_)
            | RecordKey::Check(..)
            | RecordKey::Config(_)
            | RecordKey::CaRoot(_)
            | RecordKey::CaKey(_)
            | RecordKey::JoinToken(_)
            | RecordKey::Fence(_)
            | RecordKey::VirtualAddress(_) => {}
        }
    }

    /// When a record was made and last changed; `None` if it is not there, or `key` is not of a member.
    pub(crate) fn revisions(&self, key: &RecordKey) -> Option<(Revision, Revision)> {
        fn of<T>(record: &Versioned<T>) -> (Revision, Revision) {
            (record.created, record.modified)
        }
        match key {
            RecordKey::Server(id) => self.servers.get(id).map(|record| of(record)),
            RecordKey::Leader => self.leader.as_ref().map(of),
            RecordKey::Attachment(node) => self.attachments.get(node).map(|record| of(record)),
            RecordKey::Node(_)
            | RecordKey::Instance(_)
            | RecordKey::Check(..)
            | RecordKey::Config(_)
            | RecordKey::CaRoot(_)
            | RecordKey::CaKey(_)
            | RecordKey::JoinToken(_)
            | RecordKey::Fence(_)
            | RecordKey::VirtualAddress(_) => None,
        }
    }

    /// Every server, by identifier.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Versioned<ServerRecord>>> {
        self.servers.values()
    }

    pub(crate) fn server(&self, id: ServerId) -> Option<&Arc<Versioned<ServerRecord>>> {
        self.servers.get(&id)
    }

    pub(crate) fn leader(&self) -> Option<&Versioned<LeaderRecord>> {
        self.leader.as_ref()
    }

    pub(crate) fn attachment(&self, node: &NodeName) -> Option<&Arc<Versioned<AttachmentRecord>>> {
        self.attachments.get(node)
    }

    /// Every attachment, by node.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = &Arc<Versioned<AttachmentRecord>>> {
        self.attachments.values()
    }

    /// All of them as records.
    pub(crate) fn records(&self) -> impl Iterator<Item = Versioned<Record>> {
        fn wrap<T: Clone>(record: &Versioned<T>, kind: fn(T) -> Record) -> Versioned<Record> {
            Versioned { value: kind(record.value.clone()), created: record.created, modified: record.modified }
        }
        let servers = self.servers.values().map(|record| wrap(record, Record::Server));
        let leader = self.leader.iter().map(|record| wrap(record, Record::Leader));
        let attachments = self.attachments.values().map(|record| wrap(record, Record::Attachment));
        servers.chain(leader).chain(attachments)
    }
}
