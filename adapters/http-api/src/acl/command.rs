//! Whether a command may be carried out: judged on all that it touches, before it is committed.

use starling_catalog::{
    AclCommand, CheckWrite, Command, CoordinationCommand, IntentionById, KvOperation, Operation, RecordOperation,
    Snapshot, StoredQuery,
};
use starling_model::{
    Access, Check, CheckId, ConfigEntry, ConfigKind, InstanceKey, IntentionSubject, KeptKind, Node, NodeName,
    PreparedQuery, Resource, ServiceInstance, ServiceRegistration, Uuid,
};

use super::{Bearer, Denied};

impl Bearer {
    /// Refuses a command that touches what may not be touched.
    ///
    /// # Errors
    /// [`Denied`] with the first right that is lacking.
    pub fn may(&self, command: &Command, snapshot: &Snapshot) -> Result<(), Denied> {
        match command {
            Command::Register { name, node, instances, checks } => {
                let stays = |node: &Node| snapshot.node(name).is_some_and(|before| before.value == *node);
                if !node.as_ref().is_none_or(stays) || (instances.is_empty() && checks.is_empty()) {
                    self.write(Resource::Node, name.as_str())?;
                }
                instances.iter().try_for_each(|instance| self.may_put_instance(instance, snapshot))?;
                checks.iter().try_for_each(|check| self.may_put_check(check, snapshot))
            }
            Command::DeregisterInstance(key) => self.may_remove_instance(key, snapshot),
            Command::DeregisterCheck(node, id) => self.may_touch_check(node, id, snapshot),
            Command::DeregisterNode(name) => self.write(Resource::Node, name.as_str()),
            Command::PutConfig { entry, .. } => {
                let key = entry.key();
                if let Some(query) = StoredQuery::of_entry(entry) {
                    self.may_query(&query, Access::Write)?;
                }
                self.may_write_config(key.kind, &key.name, snapshot)
            }
            Command::DeleteConfig { key, .. } => self.may_write_config(key.kind, &key.name, snapshot),
            Command::PutIntention { destination, .. } | Command::DeleteIntention { destination, .. } => {
                self.may_write_intentions(destination)
            }
            Command::IntentionById(command) => self.may_change_intention(command, snapshot),
            Command::Authority(_) | Command::JoinToken(_) | Command::Enrolment(_) => self.write(Resource::Operator, ""),
            Command::Coordination(command) => self.may_coordinate(command, snapshot),
            Command::Transaction(operations) => {
                operations.iter().try_for_each(|operation| self.may_do(operation, operations, snapshot))
            }
            Command::Acl(AclCommand::Put { .. } | AclCommand::Delete(_)) => self.write(Resource::Acl, ""),
            // Nobody outside asks for these; the first token is made by who is first, and others by who has logged in.
            Command::Acl(AclCommand::Bootstrap(_) | AclCommand::Login { .. } | AclCommand::Sweep { .. })
            | Command::Node { .. }
            | Command::Liveness(_) => self.require_everything(),
        }
    }

    /// Refuses a query that may not be read, or written: it is known by its name, a template by what its names begin with. One without a name
    /// needs the right to all.
    pub(crate) fn may_query(&self, query: &PreparedQuery, access: Access) -> Result<(), Denied> {
        if query.template.is_some() || query.name.is_empty() {
            self.require_under(Resource::Query, &query.name, access)
        } else {
            self.require(Resource::Query, &query.name, access)
        }
    }

    fn write(&self, resource: Resource, name: &str) -> Result<(), Denied> {
        self.require(resource, name, Access::Write)
    }

    /// A sidecar speaks for its service.
    fn may_write_service(&self, instance: &ServiceInstance) -> Result<(), Denied> {
        self.write(Resource::Service, instance.name.as_str())?;
        self.write(Resource::Service, instance.identity().as_str())
    }

    /// One operation of a transaction; `all` are those of it.
    fn may_do(&self, operation: &Operation, all: &[Operation], snapshot: &Snapshot) -> Result<(), Denied> {
        use RecordOperation as O;
        match operation {
            Operation::Kv(operation) => self.may_operate(operation),
            Operation::Node(O::Get(name)) => self.require(Resource::Node, name.as_str(), Access::Read),
            Operation::Node(O::Set(Node { name, .. }) | O::Cas(Node { name, .. }, _)) => {
                self.write(Resource::Node, name.as_str())
            }
            Operation::Node(O::Delete(name) | O::DeleteCas(name, _)) => self.write(Resource::Node, name.as_str()),
            Operation::Instance(O::Get(key)) => {
                let names = names_of(key, all, snapshot);
                names.iter().try_for_each(|name| self.require(Resource::Service, name, Access::Read))?;
                self.require(Resource::Node, key.node.as_str(), Access::Read)
            }
            Operation::Instance(O::Set(instance) | O::Cas(instance, _)) => self.may_put_instance(instance, snapshot),
            Operation::Instance(O::Delete(key) | O::DeleteCas(key, _)) => self.may_remove_instance(key, snapshot),
            Operation::Check(O::Get((node, id))) => {
                let of = snapshot.check(node, id).and_then(|check| check.value.service.as_ref());
                let service = of.map_or(Ok(()), |of| self.require(Resource::Service, of.name.as_str(), Access::Read));
                service.and_then(|()| self.require(Resource::Node, node.as_str(), Access::Read))
            }
            Operation::Check(O::Set(write) | O::Cas(write, _)) => self.may_write_check(write, all, snapshot),
            Operation::Check(O::Delete((node, id)) | O::DeleteCas((node, id), _)) => {
                self.may_touch_check(node, id, snapshot)
            }
        }
    }

    /// A check of a transaction, which may be of an instance that the same transaction writes.
    fn may_write_check(&self, write: &CheckWrite, all: &[Operation], snapshot: &Snapshot) -> Result<(), Denied> {
        let Check { node, id, .. } = &write.check;
        if snapshot.check(node, id).is_some() {
            self.may_touch_check(node, id, snapshot)?;
        }
        let Some(of) = &write.of else { return self.write(Resource::Node, node.as_str()) };
        let names = names_of(&InstanceKey { node: node.clone(), id: of.clone() }, all, snapshot);
        if names.is_empty() {
            // Whose it is shows only when it is there.
            return self.require_under(Resource::Service, "", Access::Write);
        }
        names.iter().try_for_each(|name| self.write(Resource::Service, name))
    }

    fn may_put_instance(&self, instance: &ServiceInstance, snapshot: &Snapshot) -> Result<(), Denied> {
        // What stood there before, perhaps under another name, is gone then.
        let before = snapshot.instance(&instance.key);
        before.map_or(Ok(()), |before| self.may_write_service(&before.value))?;
        self.may_write_service(instance)
    }

    fn may_remove_instance(&self, key: &InstanceKey, snapshot: &Snapshot) -> Result<(), Denied> {
        match snapshot.instance(key) {
            Some(instance) if self.may_write_service(&instance.value).is_ok() => Ok(()),
            Some(_) | None => self.write(Resource::Node, key.node.as_str()),
        }
    }

    fn may_put_check(&self, check: &Check, snapshot: &Snapshot) -> Result<(), Denied> {
        if snapshot.check(&check.node, &check.id).is_some() {
            self.may_touch_check(&check.node, &check.id, snapshot)?;
        }
        let of_service = check.service.as_ref().map(|service| {
            let key = InstanceKey { node: check.node.clone(), id: service.id.clone() };
            // Its name is that of the instance, whatever the check says.
            snapshot.instance(&key).map_or(service.name.clone(), |instance| instance.value.name.clone())
        });
        match of_service {
            Some(service) => self.write(Resource::Service, service.as_str()),
            None => self.write(Resource::Node, check.node.as_str()),
        }
    }

    fn may_touch_check(&self, node: &NodeName, id: &CheckId, snapshot: &Snapshot) -> Result<(), Denied> {
        let check = snapshot.check(node, id);
        match check.and_then(|check| check.value.service.as_ref()) {
            Some(service) => self.write(Resource::Service, service.name.as_str()),
            None => self.write(Resource::Node, node.as_str()),
        }
    }

    /// The same for a check of an agent.
    pub(crate) fn may_touch_own_check(&self, check: &Check) -> Result<(), Denied> {
        match &check.service {
            Some(service) => self.write(Resource::Service, service.name.as_str()),
            None => self.write(Resource::Node, check.node.as_str()),
        }
    }

    /// Refuses a registration at an agent, with its sidecar; `before` are instances whose places it takes.
    pub(crate) fn may_register(
        &self,
        registration: &ServiceRegistration,
        before: &[ServiceInstance],
    ) -> Result<(), Denied> {
        let taken = before.iter().filter(|instance| instance.key.id == registration.instance.key.id);
        taken.chain([&registration.instance]).try_for_each(|instance| self.may_write_service(instance))?;
        registration.sidecar.as_ref().map_or(Ok(()), |sidecar| self.may_register(sidecar, before))
    }

    /// Refuses to change an instance of an agent.
    pub(crate) fn may_change_own(&self, instance: &ServiceInstance) -> Result<(), Denied> {
        self.may_write_service(instance)
    }

    fn may_write_config(&self, kind: ConfigKind, name: &str, snapshot: &Snapshot) -> Result<(), Denied> {
        match kind {
            ConfigKind::ServiceDefaults
            | ConfigKind::ServiceResolver
            | ConfigKind::ServiceRouter
            | ConfigKind::ServiceSplitter => self.write(Resource::Service, name),
            ConfigKind::ServiceIntentions if name == "*" => self.require_under(Resource::Intentions, "", Access::Write),
            ConfigKind::ServiceIntentions => self.write(Resource::Intentions, name),
            // What comes in from outside or goes out, and what holds for all, is the mesh's.
            ConfigKind::IngressGateway
            | ConfigKind::TerminatingGateway
            | ConfigKind::ProxyDefaults
            | ConfigKind::Mesh => self.write(Resource::Mesh, ""),
            // What it was before counts as what it gets; one that is not there is nobody's.
            ConfigKind::Kept(KeptKind::PreparedQuery) => {
                let before = snapshot.prepared_queries().find(|query| query.id.to_string() == name);
                before.map_or(Ok(()), |before| self.may_query(&before.query, Access::Write))
            }
            ConfigKind::Kept(_) => self.write(Resource::Mesh, ""),
        }
    }

    /// Both destinations count: that which it leaves, and that which it gets.
    fn may_change_intention(&self, command: &IntentionById, snapshot: &Snapshot) -> Result<(), Denied> {
        let id = match command {
            IntentionById::Put { id, destination, .. } => {
                self.may_write_intentions(destination)?;
                *id
            }
            IntentionById::Delete(id) => *id,
        };
        let before = snapshot.configs(ConfigKind::ServiceIntentions).filter_map(|entry| {
            if let ConfigEntry::ServiceIntentions(entry) = &entry.value { Some(entry) } else { None }
        });
        let mut before = before.filter(|entry| entry.sources.iter().any(|source| source.id == Some(id)));
        before.try_for_each(|entry| self.may_write_intentions(&entry.destination))
    }

    fn may_write_intentions(&self, destination: &IntentionSubject) -> Result<(), Denied> {
        match destination {
            IntentionSubject::Any => self.require_under(Resource::Intentions, "", Access::Write),
            IntentionSubject::Service(service) => self.write(Resource::Intentions, service.as_str()),
        }
    }

    fn may_coordinate(&self, command: &CoordinationCommand, snapshot: &Snapshot) -> Result<(), Denied> {
        match command {
            CoordinationCommand::Kv(operations) => {
                operations.iter().try_for_each(|operation| self.may_operate(operation))
            }
            CoordinationCommand::CreateSession { session, .. } => self.write(Resource::Session, session.node.as_str()),
            CoordinationCommand::RenewSession { id, .. } | CoordinationCommand::EndSession(id) => {
                self.may_touch_session(*id, snapshot)
            }
            CoordinationCommand::Sweep { .. } => self.require_everything(),
        }
    }

    /// One that is not there is nobody's, and nothing comes of it.
    fn may_touch_session(&self, id: Uuid, snapshot: &Snapshot) -> Result<(), Denied> {
        snapshot.session(id).map_or(Ok(()), |session| self.write(Resource::Session, session.value.node.as_str()))
    }

    fn may_operate(&self, operation: &KvOperation) -> Result<(), Denied> {
        let key = |key: &starling_model::KvKey, access| self.require(Resource::Key, key.as_str(), access);
        match operation {
            KvOperation::Set(write)
            | KvOperation::Cas(write, _)
            | KvOperation::Lock { write, .. }
            | KvOperation::Unlock(write, _) => key(&write.key, Access::Write),
            KvOperation::Delete(name) | KvOperation::DeleteCas(name, _) => key(name, Access::Write),
            KvOperation::DeleteTree(prefix) => self.require_under(Resource::Key, prefix, Access::Write),
            KvOperation::GetTree(prefix) => self.require_under(Resource::Key, prefix, Access::Read),
            KvOperation::Get(name)
            | KvOperation::GetOrEmpty(name)
            | KvOperation::CheckIndex(name, _)
            | KvOperation::CheckSession(name, _)
            | KvOperation::CheckNotExists(name) => key(name, Access::Read),
        }
    }
}

/// The services by whose names an instance goes, before a transaction and in it.
fn names_of(key: &InstanceKey, all: &[Operation], snapshot: &Snapshot) -> Vec<String> {
    let stored = snapshot.instance(key).map(|instance| &instance.value);
    let written = all.iter().filter_map(|operation| match operation {
        Operation::Instance(RecordOperation::Set(instance) | RecordOperation::Cas(instance, _)) => Some(instance),
        Operation::Instance(_) | Operation::Kv(_) | Operation::Node(_) | Operation::Check(_) => None,
    });
    let named = stored.into_iter().chain(written.filter(|instance| instance.key == *key));
    named.map(|instance| instance.name.to_string()).collect()
}
