//! The catalog at one revision, with the indexes that readers need.
//!
//! Cost model: persistent B-trees (`imbl`); a clone is a handful of reference counts, a write copies one path of
//! O(log n) small nodes. Readers never block the writer, nor it them.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use starling_model::{
    CaRootRecord, Change, Check, CheckId, CheckStatus, ConfigEntry, ConfigEntryKey, ConfigKind, Fence, InstanceId,
    InstanceKey, IntentionSubject, JoinTokenId, JoinTokenRecord, Node, NodeName, Port, Protocol, ProxyDefaults, Record,
    RecordKey, Revision, ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceName, Versioned,
};

use crate::subject::Subject;

/// The catalog at one revision. Cloning is cheap; a clone never changes.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub(crate) revision: Revision,
    pub(crate) nodes: OrdMap<NodeName, NodeEntry>,
    pub(crate) configs: OrdMap<ConfigEntryKey, Arc<Versioned<ConfigEntry>>>,
    pub(crate) roots: OrdMap<String, Arc<Versioned<CaRootRecord>>>,
    pub(crate) join_tokens: OrdMap<JoinTokenId, Arc<Versioned<JoinTokenRecord>>>,
    pub(crate) fences: OrdMap<Fence, Arc<Versioned<Fence>>>,
    /// Instances by the name they bear.
    pub(crate) by_name: OrdMap<ServiceName, OrdSet<InstanceKey>>,
    /// Sidecars by the service they stand in front of.
    pub(crate) by_destination: OrdMap<ServiceName, OrdSet<InstanceKey>>,
    pub(crate) touched: OrdMap<Subject, Revision>,
    /// Subjects without content, by the revision at which they lost it; the oldest are forgotten first.
    pub(crate) gone: OrdSet<(Revision, Subject)>,
    /// The revision answered for subjects that were never seen or were forgotten.
    pub(crate) floor: Revision,
    /// The revision at which it was loaded. What was removed before is not known, so no subject answers an earlier one:
    /// whoever waits since then looks once more.
    pub(crate) loaded: Revision,
}

/// A node with everything on it. Its record may be missing while its instances are still being removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeEntry {
    pub(crate) node: Option<Arc<Versioned<Node>>>,
    pub(crate) instances: OrdMap<InstanceId, Arc<Versioned<ServiceInstance>>>,
    pub(crate) checks: OrdMap<CheckId, Arc<Versioned<Check>>>,
    pub(crate) by_owner: OrdSet<OwnedCheck>,
    pub(crate) by_port: OrdSet<PlacedSidecar>,
}

/// A check by the instance it speaks of; `None` is the node. No identifier comes before all others.
pub(crate) type OwnedCheck = (Option<InstanceId>, Option<CheckId>);

/// A sidecar by the port that it is reached at. No identifier comes before all others.
pub(crate) type PlacedSidecar = (Port, Option<InstanceId>);

impl NodeEntry {
    /// The sidecars that are reached at `port`, by identifier.
    fn sidecars_at(&self, port: Port) -> impl Iterator<Item = &Arc<Versioned<ServiceInstance>>> {
        let from: PlacedSidecar = (port, None);
        let placed = self.by_port.range(from..).take_while(move |(other, _)| *other == port);
        placed.filter_map(|(_, id)| self.instances.get(id.as_ref()?))
    }

    /// The checks that speak of one instance, or of the node, by identifier.
    fn owned_by(&self, owner: Option<InstanceId>) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        let from: OwnedCheck = (owner.clone(), None);
        let owned = self.by_owner.range(from..).take_while(move |(other, _)| *other == owner);
        owned.filter_map(|(_, id)| self.checks.get(id.as_ref()?))
    }
}

/// The health of an instance: its worst check, its node's included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Health(pub CheckStatus);

impl Health {
    /// Whether it stays in endpoint sets.
    #[must_use]
    pub fn serves(self) -> bool {
        self.0 != CheckStatus::Critical
    }
}

impl Snapshot {
    /// Builds the catalog from stored records, each with the revisions of its making and last change.
    #[must_use]
    pub fn load(revision: Revision, records: impl IntoIterator<Item = Versioned<Record>>) -> Self {
        let mut snapshot = Self { floor: revision, loaded: revision, ..Self::default() };
        for record in records {
            snapshot.insert(record.value, record.created, record.modified);
        }
        snapshot.revision = revision;
        snapshot
    }

    /// The revision of which this is the state.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// When `subject` last changed, or the catalog was loaded if that was later; for a subject that was never seen or is
    /// long gone, a revision not before its end.
    #[must_use]
    pub fn subject_revision(&self, subject: &Subject) -> Revision {
        let known = match subject.instance() {
            // Read off the records: there are as many instances as everything else together.
            Some(key) => match self.instance(key) {
                Some(instance) => Some(instance.modified.max(self.node_revision(&key.node))),
                // Its end touched its node.
                None => self.touched.get(&Subject::Node(key.node.clone())).map(|touched| *touched.max(&self.floor)),
            },
            None => self.touched.get(subject).copied(),
        };
        known.unwrap_or(self.floor).max(self.loaded)
    }

    /// When a node's record last changed. While it is gone and its instances are not yet, anything there counts.
    fn node_revision(&self, name: &NodeName) -> Revision {
        let gone = || self.touched.get(&Subject::Node(name.clone())).copied();
        self.node(name).map(|node| node.modified).or_else(gone).unwrap_or_default()
    }

    /// Every node, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Versioned<Node>>> {
        self.nodes.values().filter_map(|entry| entry.node.as_ref())
    }

    /// One node.
    #[must_use]
    pub fn node(&self, name: &NodeName) -> Option<&Arc<Versioned<Node>>> {
        self.nodes.get(name)?.node.as_ref()
    }

    /// The instances on a node, by identifier.
    pub fn instances_on(&self, node: &NodeName) -> impl Iterator<Item = &Arc<Versioned<ServiceInstance>>> {
        self.nodes.get(node).into_iter().flat_map(|entry| entry.instances.values())
    }

    /// The sidecars on a node that are reached at `port`, by identifier.
    pub fn sidecars_at(&self, node: &NodeName, port: Port) -> impl Iterator<Item = &Arc<Versioned<ServiceInstance>>> {
        self.nodes.get(node).into_iter().flat_map(move |entry| entry.sidecars_at(port))
    }

    /// The checks on a node, by identifier; those of its instances included.
    pub fn checks_on(&self, node: &NodeName) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        self.nodes.get(node).into_iter().flat_map(|entry| entry.checks.values())
    }

    /// One instance.
    #[must_use]
    pub fn instance(&self, key: &InstanceKey) -> Option<&Arc<Versioned<ServiceInstance>>> {
        self.nodes.get(&key.node)?.instances.get(&key.id)
    }

    /// One check.
    #[must_use]
    pub fn check(&self, node: &NodeName, id: &CheckId) -> Option<&Arc<Versioned<Check>>> {
        self.nodes.get(node)?.checks.get(id)
    }

    /// Every check of the mesh, by node and identifier.
    pub fn checks(&self) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        self.nodes.values().flat_map(|entry| entry.checks.values())
    }

    /// The checks that speak of an instance itself, by identifier.
    pub fn own_checks_of(&self, key: &InstanceKey) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        let id = key.id.clone();
        self.nodes.get(&key.node).into_iter().flat_map(move |entry| entry.owned_by(Some(id.clone())))
    }

    /// The checks that decide about an instance: its own, then its node's.
    pub fn checks_of(&self, key: &InstanceKey) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        let of_node = self.nodes.get(&key.node).into_iter().flat_map(|entry| entry.owned_by(None));
        self.own_checks_of(key).chain(of_node)
    }

    /// The health of an instance by its own checks and its node's.
    #[must_use]
    pub fn health(&self, key: &InstanceKey) -> Health {
        let worst = self.checks_of(key).map(|check| check.value.status).max();
        Health(worst.unwrap_or(CheckStatus::Passing))
    }

    /// The names of all services, sidecars' names included.
    pub fn service_names(&self) -> impl Iterator<Item = &ServiceName> {
        self.by_name.keys()
    }

    /// The instances that bear `name`, by node and identifier.
    pub fn instances_of<'a>(&'a self, name: &ServiceName) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        self.by_name.get(name).into_iter().flatten().filter_map(|key| self.instance(key))
    }

    /// The sidecars that stand in front of `destination`, by node and identifier.
    pub fn sidecars_of<'a>(
        &'a self,
        destination: &ServiceName,
    ) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        self.by_destination.get(destination).into_iter().flatten().filter_map(|key| self.instance(key))
    }

    /// Those of them that are on `node`.
    pub fn sidecars_on<'a>(
        &'a self,
        node: &NodeName,
        destination: &ServiceName,
    ) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        // No identifier sorts before this one.
        let first = InstanceId::new("!").expect("invariant: an identifier");
        let from = InstanceKey { node: node.clone(), id: first };
        let node = node.clone();
        let keys = self.by_destination.get(destination).into_iter().flat_map(move |keys| keys.range(from.clone()..));
        keys.take_while(move |key| key.node == node).filter_map(|key| self.instance(key))
    }

    /// One config entry.
    #[must_use]
    pub fn config(&self, key: &ConfigEntryKey) -> Option<&Arc<Versioned<ConfigEntry>>> {
        self.configs.get(key)
    }

    /// Every config entry of a kind, by name.
    pub fn configs(&self, kind: ConfigKind) -> impl Iterator<Item = &Arc<Versioned<ConfigEntry>>> {
        let first = ConfigEntryKey { kind, name: String::new() };
        self.configs.range(first..).take_while(move |(key, _)| key.kind == kind).map(|(_, entry)| entry)
    }

    /// The settings of every proxy.
    #[must_use]
    pub fn proxy_defaults(&self) -> Option<&ProxyDefaults> {
        let key = ConfigEntryKey { kind: ConfigKind::ProxyDefaults, name: "global".to_owned() };
        match &self.config(&key)?.value {
            ConfigEntry::ProxyDefaults(entry) => Some(entry),
            ConfigEntry::ServiceDefaults(_) | ConfigEntry::ServiceIntentions(_) => None,
        }
    }

    /// The settings of one service.
    #[must_use]
    pub fn service_defaults(&self, service: &ServiceName) -> Option<&ServiceDefaults> {
        let key = ConfigEntryKey { kind: ConfigKind::ServiceDefaults, name: service.to_string() };
        match &self.config(&key)?.value {
            ConfigEntry::ServiceDefaults(entry) => Some(entry),
            ConfigEntry::ProxyDefaults(_) | ConfigEntry::ServiceIntentions(_) => None,
        }
    }

    /// What a service speaks: its service-defaults, else proxy-defaults, else TCP.
    #[must_use]
    pub fn protocol(&self, service: &ServiceName) -> Protocol {
        let own = self.service_defaults(service).and_then(|entry| entry.protocol);
        own.or_else(|| self.proxy_defaults().and_then(|entry| entry.protocol)).unwrap_or_default()
    }

    /// The intentions written for exactly this destination.
    #[must_use]
    pub fn intentions(&self, destination: &IntentionSubject) -> Option<&Versioned<ConfigEntry>> {
        let key = ConfigEntryKey { kind: ConfigKind::ServiceIntentions, name: destination.to_string() };
        self.config(&key).map(Arc::as_ref)
    }

    /// The intentions that apply to calls of `service`: those written for it, then those written for `*`.
    pub fn intentions_covering(&self, service: &ServiceName) -> impl Iterator<Item = &ServiceIntentions> {
        let own = self.intentions(&IntentionSubject::Service(service.clone()));
        let any = self.intentions(&IntentionSubject::Any);
        own.into_iter().chain(any).filter_map(|entry| match &entry.value {
            ConfigEntry::ServiceIntentions(entry) => Some(entry),
            ConfigEntry::ProxyDefaults(_) | ConfigEntry::ServiceDefaults(_) => None,
        })
    }

    /// Every trusted root, the active one first.
    #[must_use]
    pub fn roots(&self) -> Vec<&Arc<Versioned<CaRootRecord>>> {
        let mut roots: Vec<_> = self.roots.values().collect();
        roots.sort_by_key(|root| !root.value.active);
        roots
    }

    /// One join token.
    #[must_use]
    pub fn join_token(&self, id: &JoinTokenId) -> Option<&Arc<Versioned<JoinTokenRecord>>> {
        self.join_tokens.get(id)
    }

    /// Every join token, by identifier; used and expired ones included.
    pub fn join_tokens(&self) -> impl Iterator<Item = &Arc<Versioned<JoinTokenRecord>>> {
        self.join_tokens.values()
    }

    /// The revision at which a record last changed; `None` if there is none.
    #[must_use]
    pub fn modified(&self, key: &RecordKey) -> Option<Revision> {
        match key {
            RecordKey::Node(name) => self.node(name).map(|r| r.modified),
            RecordKey::Instance(key) => self.instance(key).map(|r| r.modified),
            RecordKey::Check(node, id) => self.check(node, id).map(|r| r.modified),
            RecordKey::Config(key) => self.config(key).map(|r| r.modified),
            RecordKey::CaRoot(id) => self.roots.get(id).map(|r| r.modified),
            RecordKey::JoinToken(id) => self.join_token(id).map(|r| r.modified),
            RecordKey::Fence(fence) => self.fences.get(fence).map(|r| r.modified),
        }
    }

    /// Whether a record stands here just so.
    #[must_use]
    pub fn holds(&self, record: &Record) -> bool {
        match record {
            Record::Node(value) => self.node(&value.name).is_some_and(|r| r.value == *value),
            Record::Instance(value) => self.instance(&value.key).is_some_and(|r| r.value == *value),
            Record::Check(value) => self.check(&value.node, &value.id).is_some_and(|r| r.value == *value),
            Record::Config(value) => self.config(&value.key()).is_some_and(|r| r.value == *value),
            Record::CaRoot(value) => self.roots.get(&value.id).is_some_and(|r| r.value == *value),
            Record::JoinToken(value) => self.join_token(&value.id).is_some_and(|r| r.value == *value),
            Record::Fence(fence) => self.fences.contains_key(fence),
        }
    }

    /// Every record, by kind; fences included.
    pub fn records(&self) -> impl Iterator<Item = Versioned<Record>> {
        fn wrap<T: Clone>(record: &Arc<Versioned<T>>, kind: fn(T) -> Record) -> Versioned<Record> {
            Versioned { value: kind(record.value.clone()), created: record.created, modified: record.modified }
        }
        let nodes = self.nodes().map(|r| wrap(r, Record::Node));
        let instances = self.nodes.values().flat_map(|e| e.instances.values()).map(|r| wrap(r, Record::Instance));
        let checks = self.checks().map(|r| wrap(r, Record::Check));
        let configs = self.configs.values().map(|r| wrap(r, Record::Config));
        let roots = self.roots.values().map(|r| wrap(r, Record::CaRoot));
        let join_tokens = self.join_tokens().map(|r| wrap(r, Record::JoinToken));
        let fences = self.fences.values().map(|r| wrap(r, Record::Fence));
        nodes.chain(instances).chain(checks).chain(configs).chain(roots).chain(join_tokens).chain(fences)
    }

    /// The changes that turn this state into `newer`. Costs a pass over both; for a reader that has lost its place.
    #[must_use]
    pub fn difference(&self, newer: &Self) -> Vec<Change> {
        let gone = self.records().map(|record| record.value.key()).filter(|key| newer.modified(key).is_none());
        let mut changes: Vec<_> = gone.map(Change::Delete).collect();
        let written = newer.records().filter(|record| self.modified(&record.value.key()) != Some(record.modified));
        changes.extend(written.map(|record| Change::Put(record.value)));
        changes
    }
}
