//! Which servers there are, which of them leads, and to which each node is attached. Empty where the store has one server.

use std::sync::Arc;

use imbl::OrdMap;
use starling_model::{AttachmentRecord, LeaderRecord, NodeName, Record, ServerId, ServerRecord, Versioned};

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

    pub(crate) fn remove_server(&mut self, id: ServerId) {
        self.servers.remove(&id);
    }

    pub(crate) fn remove_leader(&mut self) {
        self.leader = None;
    }

    pub(crate) fn remove_attachment(&mut self, node: &NodeName) {
        self.attachments.remove(node);
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
