//! Applying a committed transaction: the next snapshot, and which subjects it touched.
//!
//! Cost model: proportional to the records written, plus, for a node's address or a node-wide check, to the instances on
//! that node. Never to the size of the fleet.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use starling_model::{
    Change, Check, CheckId, CheckedService, ConfigEntry, ConfigEntryKey, ConfigKind, InstanceKey, InstanceKind,
    IntentionSubject, NodeName, Record, RecordKey, Revision, ServiceInstance, ServiceName, Versioned,
};

use crate::snapshot::{ById, ByKey, ByOwner, ByPort, NodeEntry, Snapshot};
use crate::sorted::{Order, Sorted};
use crate::subject::Subject;

/// Subjects without content whose last revision is remembered. Past this a watcher of the oldest is woken once for
/// nothing.
const GONE_SUBJECTS_MAX: usize = 50_000;

/// One subject touched at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What changed.
    pub subject: Subject,
    /// When.
    pub revision: Revision,
}

/// What applying a transaction gave.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The next state.
    pub snapshot: Snapshot,
    /// One event per touched subject, in the order of subjects.
    pub events: Vec<Event>,
}

impl Snapshot {
    /// The state after `changes`, committed as `revision`.
    ///
    /// Revisions must rise; a transaction that is not later than this snapshot is an invariant broken by the caller and
    /// is applied all the same, since the store's order is the truth.
    #[must_use]
    pub fn apply(&self, revision: Revision, changes: &[Change]) -> Applied {
        self.step(revision, changes, |next, key| (next.created(key).unwrap_or(revision), revision))
    }

    /// The state that `fresh` is, read anew by a reader that lost its place, and the changes that lead there.
    ///
    /// Every record keeps the revisions at which it was made and last changed: it is by these that conditions are judged and
    /// that clients compare. Subjects are touched at the revision of `fresh`, since nothing tells when between.
    #[must_use]
    pub fn catch_up(&self, fresh: &Self) -> (Applied, Vec<Change>) {
        let changes = self.difference(fresh);
        let revision = fresh.revision;
        let stamps =
            |_: &Self, key: &RecordKey| fresh.created(key).zip(fresh.modified(key)).unwrap_or((revision, revision));
        let mut applied = self.step(revision, &changes, stamps);
        applied.snapshot.quarantine = fresh.quarantine.clone();
        (applied, changes)
    }

    /// The state after `changes`, of which each record is made and changed when `stamps` says.
    fn step(
        &self,
        revision: Revision,
        changes: &[Change],
        stamps: impl Fn(&Self, &RecordKey) -> (Revision, Revision),
    ) -> Applied {
        let mut next = self.clone();
        let mut subjects = BTreeSet::new();
        for change in changes {
            let key = change.key();
            next.touch(&key, &mut subjects);
            let (allowed, around) = (next.allowed_sources(&key), next.around(&key, change));
            match change {
                Change::Put(record) => {
                    let (created, modified) = stamps(&next, &key);
                    next.insert(record.clone(), created, modified);
                }
                Change::Delete(key) => next.remove(key),
            }
            // Again, for what the record speaks of now: a sidecar may have changed its destination.
            next.touch(&key, &mut subjects);
            let allows = next.allowed_sources(&key);
            subjects.extend(allowed.symmetric_difference(&allows).cloned().map(Subject::Destinations));
            next.touch_moved(around, &key, &mut subjects);
        }
        next.revision = revision;
        for subject in &subjects {
            next.mark(subject, revision);
        }
        next.forget_oldest();
        let events = subjects.into_iter().map(|subject| Event { subject, revision }).collect();
        Applied { snapshot: next, events }
    }

    /// Adds a record and what indexes need.
    pub(crate) fn insert(&mut self, record: Record, created: Revision, modified: Revision) {
        match record {
            Record::Node(value) => {
                let name = value.name.clone();
                self.entry(&name).node = Some(Arc::new(Versioned { value, created, modified }));
            }
            Record::Instance(mut value) => {
                self.share_names(&mut value);
                self.take_instance(&value.key);
                self.put_instance(&Arc::new(Versioned { value, created, modified }));
            }
            Record::Check(value) => {
                let node = value.node.clone();
                let entry = self.entry(&node);
                entry.take_check(&value.id);
                entry.put_check(Arc::new(Versioned { value, created, modified }));
            }
            Record::Config(value) => {
                self.leave_indexes(&value.key());
                self.enter_destinations(&value);
                self.links.put(&value);
                self.configs.insert(value.key(), Arc::new(Versioned { value, created, modified }));
            }
            Record::CaRoot(value) => {
                self.roots.insert(value.id.clone(), Arc::new(Versioned { value, created, modified }));
            }
            Record::CaKey(value) => {
                self.ca_keys.insert(value.root.clone(), Arc::new(Versioned { value, created, modified }));
            }
            Record::Enrolment(value) => {
                self.enrolments.insert(value.member.clone(), Arc::new(Versioned { value, created, modified }));
            }
            Record::JoinToken(value) => {
                self.join_tokens.insert(value.id, Arc::new(Versioned { value, created, modified }));
            }
            Record::Fence(value) => {
                self.fences.insert(value, Arc::new(Versioned { value, created, modified }));
            }
            Record::VirtualAddress(value) => {
                self.remove(&RecordKey::VirtualAddress(value.address));
                self.virtual_by_service.insert(value.service.clone(), value.address);
                self.virtual_addresses.insert(value.address, Arc::new(Versioned { value, created, modified }));
            }
            Record::Server(value) => self.members.put_server(Versioned { value, created, modified }),
            Record::Leader(value) => self.members.put_leader(Versioned { value, created, modified }),
            Record::Attachment(value) => self.members.put_attachment(Versioned { value, created, modified }),
            Record::Coordination(value) => self.coordination.insert(value, created, modified),
            Record::Acl(value) => self.access.insert(value, created, modified),
        }
    }

    /// Puts the names that are known already in place of those read with the record: a service's is borne by hundreds of
    /// instances, a node's by all that are on it.
    fn share_names(&self, instance: &mut ServiceInstance) {
        let known = |name: &mut ServiceName| {
            let borne = self.by_name.get_key_value(name).map(|(known, _)| known);
            let known = borne.or_else(|| self.by_destination.get_key_value(name).map(|(known, _)| known));
            if let Some(known) = known {
                *name = known.clone();
            }
        };
        known(&mut instance.name);
        let on_node = self.nodes.get_key_value(&instance.key.node);
        if let Some((name, _)) = on_node {
            instance.key.node = name.clone();
        }
        let InstanceKind::Sidecar(proxy) = &mut instance.kind else { return };
        known(&mut proxy.destination);
        proxy.upstreams.iter_mut().for_each(|upstream| known(&mut upstream.destination));
        let behind = proxy.destination_id.as_ref().zip(on_node);
        if let Some(behind) = behind.and_then(|(id, (_, entry))| entry.instance(id)) {
            proxy.destination_id = Some(behind.value.key.id.clone());
        }
    }

    fn remove(&mut self, key: &RecordKey) {
        match key {
            RecordKey::Node(name) => {
                if let Some(entry) = self.nodes.get_mut(name) {
                    Arc::make_mut(entry).node = None;
                }
                self.drop_empty(name);
            }
            RecordKey::Instance(instance) => {
                self.take_instance(instance);
                self.drop_empty(&instance.node);
            }
            RecordKey::Check(node, id) => {
                if let Some(entry) = self.nodes.get_mut(node) {
                    Arc::make_mut(entry).take_check(id);
                }
                self.drop_empty(node);
            }
            RecordKey::Config(key) => {
                self.leave_indexes(key);
                self.configs.remove(key);
            }
            RecordKey::CaRoot(id) => {
                self.roots.remove(id);
            }
            RecordKey::CaKey(id) => {
                self.ca_keys.remove(id);
            }
            RecordKey::Enrolment(member) => {
                self.enrolments.remove(member);
            }
            RecordKey::JoinToken(id) => {
                self.join_tokens.remove(id);
            }
            RecordKey::Fence(fence) => {
                self.fences.remove(fence);
            }
            RecordKey::VirtualAddress(address) => {
                // The service may have another by now, if what lay between was missed.
                if let Some(old) = self.virtual_addresses.remove(address)
                    && self.virtual_by_service.get(&old.value.service) == Some(address)
                {
                    self.virtual_by_service.remove(&old.value.service);
                }
            }
            RecordKey::Server(id) => self.members.remove_server(*id),
            RecordKey::Leader => self.members.remove_leader(),
            RecordKey::Attachment(node) => self.members.remove_attachment(node),
            RecordKey::Coordination(key) => self.coordination.remove(key),
            RecordKey::Acl(key) => self.access.remove(key),
        }
    }

    /// The sources that an entry of intentions, as it stands now, allows by name; none if the key is of anything else.
    fn allowed_sources(&self, key: &RecordKey) -> BTreeSet<ServiceName> {
        let RecordKey::Config(key) = key else { return BTreeSet::new() };
        let entry = self.config(key).and_then(|entry| explicit(&entry.value));
        entry.map(|(_, sources)| sources.cloned().collect()).unwrap_or_default()
    }

    fn enter_destinations(&mut self, entry: &ConfigEntry) {
        let Some((destination, sources)) = explicit(entry) else { return };
        for source in sources {
            self.destinations.entry(source.clone()).or_default().insert(destination.clone());
        }
    }

    /// Takes what an entry that is there says out of the index.
    fn leave_indexes(&mut self, key: &ConfigEntryKey) {
        let Some(old) = self.configs.get(key).cloned() else { return };
        self.links.remove(&old.value);
        let Some((destination, sources)) = explicit(&old.value) else { return };
        for source in sources {
            let Some(destinations) = self.destinations.get_mut(source) else { continue };
            destinations.remove(destination);
            if destinations.is_empty() {
                self.destinations.remove(source);
            }
        }
    }

    fn entry(&mut self, node: &NodeName) -> &mut NodeEntry {
        Arc::make_mut(self.nodes.entry(node.clone()).or_default())
    }

    fn drop_empty(&mut self, node: &NodeName) {
        let empty = |e: &Arc<NodeEntry>| e.node.is_none() && e.instances.is_empty() && e.checks.is_empty();
        if self.nodes.get(node).is_some_and(empty) {
            self.nodes.remove(node);
        }
    }

    /// Puts an instance in every order that it is found by; there is none of its key.
    fn put_instance(&mut self, instance: &Arc<Versioned<ServiceInstance>>) {
        let value = &instance.value;
        insert_into(&mut self.by_name, &value.name, instance);
        if let Some(proxy) = value.sidecar() {
            insert_into(&mut self.by_destination, &proxy.destination, instance);
        }
        let entry = self.entry(&value.key.node);
        entry.instances.insert(Arc::clone(instance));
        if has_place(value) {
            entry.by_port.insert(Arc::clone(instance));
        }
    }

    /// Takes an instance, if it is there, out of all of them.
    fn take_instance(&mut self, key: &InstanceKey) {
        let Some(old) = self.instance(key).cloned() else { return };
        let old = &old.value;
        remove_from(&mut self.by_name, &old.name, old);
        if let Some(proxy) = old.sidecar() {
            remove_from(&mut self.by_destination, &proxy.destination, old);
        }
        let entry = self.entry(&key.node);
        entry.instances.remove(|it| ById::order(it, old));
        if has_place(old) {
            entry.by_port.remove(|it| ByPort::order(it, old));
        }
    }

    /// The revision at which a record was made; `None` if there is none.
    pub(crate) fn created(&self, key: &RecordKey) -> Option<Revision> {
        if let Some(record) = self.quarantined_at(key) {
            return Some(record.created);
        }
        match key {
            RecordKey::Node(name) => self.node(name).map(|r| r.created),
            RecordKey::Instance(key) => self.instance(key).map(|r| r.created),
            RecordKey::Check(node, id) => self.check(node, id).map(|r| r.created),
            RecordKey::Config(key) => self.config(key).map(|r| r.created),
            RecordKey::CaRoot(id) => self.roots.get(id).map(|r| r.created),
            RecordKey::CaKey(id) => self.ca_keys.get(id).map(|r| r.created),
            RecordKey::JoinToken(id) => self.join_token(id).map(|r| r.created),
            RecordKey::Enrolment(member) => self.enrolment(member).map(|r| r.created),
            RecordKey::Fence(fence) => self.fences.get(fence).map(|r| r.created),
            RecordKey::VirtualAddress(address) => self.virtual_addresses.get(address).map(|r| r.created),
            RecordKey::Server(id) => self.server(*id).map(|r| r.created),
            RecordKey::Leader => self.leader().map(|r| r.created),
            RecordKey::Attachment(node) => self.attachment(node).map(|r| r.created),
            RecordKey::Coordination(key) => self.coordination.revisions(key).map(|(created, _)| created),
            RecordKey::Acl(key) => self.access.revisions(key).map(|(created, _)| created),
        }
    }

    /// The subjects that a record under `key`, as it stands now, belongs to.
    fn touch(&self, key: &RecordKey, subjects: &mut BTreeSet<Subject>) {
        match key {
            RecordKey::Node(name) => {
                subjects.insert(Subject::NodeList);
                self.touch_all_on(name, subjects);
                let instances = self.instances_on(name).map(|instance| instance.value.key.clone());
                subjects.extend(instances.map(Subject::Instance));
            }
            RecordKey::Instance(key) => {
                subjects.insert(Subject::Node(key.node.clone()));
                subjects.insert(Subject::Instance(key.clone()));
                subjects.insert(Subject::ServiceList);
                if let Some(instance) = self.instance(key) {
                    self.touch_instance(&instance.value, subjects);
                    // With its sidecar an instance comes in, and without it goes out.
                    let before = instance.value.sidecar().map(|sidecar| &sidecar.destination);
                    let linked = before.filter(|service| self.is_linked(service));
                    subjects.extend(linked.cloned().map(Subject::Origins));
                }
            }
            RecordKey::Check(node, id) => {
                subjects.insert(Subject::CheckList);
                let Some(check) = self.check(node, id) else { return };
                match &check.value.service {
                    Some(service) => self.touch_checked(node, service, subjects),
                    None => self.touch_all_on(node, subjects),
                }
            }
            RecordKey::Config(key) => {
                subjects.insert(Subject::ConfigList(key.kind));
                if let Some(entry) = self.config(key) {
                    subjects.insert(config_subject(&entry.value));
                    // What is shown of a front depends on whether anybody asks for it.
                    if let ConfigEntry::ServiceResolver(resolver) = &entry.value
                        && resolver.has_filters()
                    {
                        subjects.insert(Subject::Endpoints(resolver.service.clone()));
                        if self.is_linked(&resolver.service) {
                            subjects.insert(Subject::Origins(resolver.service.clone()));
                        }
                    }
                }
            }
            RecordKey::CaRoot(_) => {
                subjects.insert(Subject::Roots);
            }
            RecordKey::Server(_) | RecordKey::Leader => {
                subjects.insert(Subject::Servers);
            }
            // Nothing that a proxy does depends on any of them.
            RecordKey::CaKey(_)
            | RecordKey::JoinToken(_)
            | RecordKey::Enrolment(_)
            | RecordKey::Fence(_)
            | RecordKey::Attachment(_) => {}
            RecordKey::Coordination(key) => self.coordination.touch(key, subjects),
            RecordKey::Acl(_) => {
                subjects.insert(Subject::Access);
            }
            RecordKey::VirtualAddress(address) => {
                let entry = self.virtual_addresses.get(address);
                subjects.extend(entry.map(|entry| Subject::Routing(entry.value.service.clone())));
            }
        }
    }

    fn touch_checked(&self, node: &NodeName, service: &CheckedService, subjects: &mut BTreeSet<Subject>) {
        subjects.insert(Subject::Node(node.clone()));
        subjects.insert(Subject::Service(service.name.clone()));
        let instance = self.nodes.get(node).and_then(|entry| entry.instance(&service.id));
        if let Some(instance) = instance {
            self.touch_instance(&instance.value, subjects);
        }
    }

    fn touch_instance(&self, instance: &ServiceInstance, subjects: &mut BTreeSet<Subject>) {
        subjects.insert(Subject::Service(instance.name.clone()));
        subjects.insert(Subject::Endpoints(instance.identity().clone()));
        self.touch_outside(instance, subjects);
    }

    fn touch_all_on(&self, node: &NodeName, subjects: &mut BTreeSet<Subject>) {
        subjects.insert(Subject::Node(node.clone()));
        for instance in self.instances_on(node) {
            self.touch_instance(&instance.value, subjects);
        }
    }

    fn mark(&mut self, subject: &Subject, revision: Revision) {
        if subject.instance().is_some() {
            return;
        }
        if subject.kv().is_some_and(|key| self.kv(key).is_some()) {
            // Read off the entry from now on.
            if let Some(gone) = self.touched.remove(subject) {
                self.gone.remove(&(gone, subject.clone()));
            }
            return;
        }
        let last = self.touched.entry(subject.clone()).or_insert(revision);
        let before = *last;
        *last = before.max(revision);
        if !self.gone.is_empty() {
            self.gone.remove(&(before, subject.clone()));
        }
        if !self.has_content(subject) {
            self.gone.insert((before.max(revision), subject.clone()));
        }
    }

    fn has_content(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Node(name) => self.nodes.contains_key(name),
            Subject::Instance(key) => self.instance(key).is_some(),
            Subject::Service(name) => self.by_name.contains_key(name),
            Subject::Endpoints(name) => self.by_name.contains_key(name) || self.by_destination.contains_key(name),
            Subject::Origins(name) => self.by_name.contains_key(name),
            Subject::Routing(name) => self.routing(name).next().is_some() || self.virtual_address(name).is_some(),
            Subject::Destinations(name) => self.destinations.contains_key(name),
            Subject::Intentions(name) => self.intentions(name).is_some(),
            Subject::ProxyDefaults
            | Subject::Roots
            | Subject::Servers
            | Subject::ServiceList
            | Subject::ServicesOutside
            | Subject::NodeList
            | Subject::CheckList
            | Subject::ConfigList(_)
            | Subject::SessionList
            | Subject::Access => true,
            Subject::Kv(key) => self.kv(key).is_some(),
            Subject::KvFolder(folder) => self.kv_under(folder).next().is_some(),
            Subject::Session(id) => self.session(*id).is_some(),
            Subject::NodeSessions(node) => self.sessions_on(node).next().is_some(),
        }
    }

    fn forget_oldest(&mut self) {
        while self.gone.len() > GONE_SUBJECTS_MAX {
            let Some((revision, subject)) = self.gone.get_min().cloned() else { return };
            self.gone.remove(&(revision, subject.clone()));
            self.touched.remove(&subject);
            self.floor = self.floor.max(revision);
        }
    }
}

impl NodeEntry {
    /// Puts a check in both orders that it is found by; there is none of its identifier.
    fn put_check(&mut self, check: Arc<Versioned<Check>>) {
        self.by_owner.insert(Arc::clone(&check));
        self.checks.insert(check);
    }

    /// Takes a check, if it is there, out of both.
    fn take_check(&mut self, id: &CheckId) {
        let Some(old) = self.check(id).cloned() else { return };
        self.by_owner.remove(|it| ByOwner::order(it, &old.value));
        self.checks.remove(|it| it.id.cmp(id));
    }
}

/// Whether an instance is found by its port.
fn has_place(instance: &ServiceInstance) -> bool {
    instance.port.is_some() && instance.sidecar().is_some()
}

type ByService = OrdMap<ServiceName, Arc<Sorted<ByKey>>>;

fn insert_into(map: &mut ByService, name: &ServiceName, instance: &Arc<Versioned<ServiceInstance>>) {
    Arc::make_mut(map.entry(name.clone()).or_default()).insert(Arc::clone(instance));
}

fn remove_from(map: &mut ByService, name: &ServiceName, instance: &ServiceInstance) {
    let Some(sorted) = map.get_mut(name) else { return };
    Arc::make_mut(sorted).remove(|it| ByKey::order(it, instance));
    if sorted.is_empty() {
        map.remove(name);
    }
}

/// The service that an entry of intentions is written for, and the services that it allows something by name. One for `*`,
/// or of `*`, names nobody: every service would then be everybody's.
fn explicit(entry: &ConfigEntry) -> Option<(&ServiceName, impl Iterator<Item = &ServiceName>)> {
    let ConfigEntry::ServiceIntentions(entry) = entry else { return None };
    let IntentionSubject::Service(destination) = &entry.destination else { return None };
    let sources = entry.sources.iter().filter(|source| source.decision.may_allow());
    Some((destination, sources.filter_map(|source| source.source.service())))
}

fn config_subject(entry: &ConfigEntry) -> Subject {
    match entry {
        ConfigEntry::ProxyDefaults(_) | ConfigEntry::Mesh(_) => Subject::ProxyDefaults,
        ConfigEntry::ServiceDefaults(entry) => Subject::Routing(entry.service.clone()),
        ConfigEntry::ServiceResolver(entry) => Subject::Routing(entry.service.clone()),
        ConfigEntry::ServiceRouter(entry) => Subject::Routing(entry.service.clone()),
        ConfigEntry::ServiceSplitter(entry) => Subject::Routing(entry.service.clone()),
        ConfigEntry::IngressGateway(entry) => Subject::Routing(entry.gateway.clone()),
        ConfigEntry::TerminatingGateway(entry) => Subject::Routing(entry.gateway.clone()),
        ConfigEntry::ServiceIntentions(entry) => Subject::Intentions(entry.destination.clone()),
        ConfigEntry::Kept(entry) => Subject::ConfigList(ConfigKind::Kept(entry.kind)),
    }
}
