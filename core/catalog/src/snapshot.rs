//! The catalog at one revision, with the indexes that readers need.
//!
//! Cost model: persistent B-trees (`imbl`), and short lists where few records are (`sorted`); a clone is a handful of
//! reference counts, a write copies one path of O(log n) small nodes. Readers never block the writer, nor it them. Indexes
//! hold the records, not their names.

use std::cmp::Ordering;
use std::net::Ipv4Addr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use starling_model::{
    AttachmentRecord, CaKeyRecord, CaRootRecord, Change, Check, CheckId, CheckStatus, ConfigEntry, ConfigEntryKey,
    ConfigKind, Enrolment, Fence, IngressGateway, InstanceId, InstanceKey, IntentionSubject, JoinTokenId,
    JoinTokenRecord, LeaderRecord, Member, MeshEntry, Node, NodeName, Port, Protocol, ProxyDefaults, Record, RecordKey,
    Revision, ServerId, ServerRecord, ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, Versioned, VirtualAddress,
};

use crate::acl::AccessControl;
use crate::coordination::Coordination;
use crate::members::Members;
use crate::outside::Links;
use crate::quarantine::Quarantine;
use crate::sorted::{Order, Sorted};
use crate::subject::Subject;

/// The catalog at one revision. Cloning is cheap; a clone never changes.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub(crate) revision: Revision,
    pub(crate) nodes: OrdMap<NodeName, Arc<NodeEntry>>,
    pub(crate) configs: OrdMap<ConfigEntryKey, Arc<Versioned<ConfigEntry>>>,
    pub(crate) roots: OrdMap<String, Arc<Versioned<CaRootRecord>>>,
    pub(crate) ca_keys: OrdMap<String, Arc<Versioned<CaKeyRecord>>>,
    pub(crate) join_tokens: OrdMap<JoinTokenId, Arc<Versioned<JoinTokenRecord>>>,
    pub(crate) enrolments: OrdMap<Member, Arc<Versioned<Enrolment>>>,
    pub(crate) fences: OrdMap<Fence, Arc<Versioned<Fence>>>,
    pub(crate) virtual_addresses: OrdMap<Ipv4Addr, Arc<Versioned<VirtualAddress>>>,
    /// The same by service.
    pub(crate) virtual_by_service: OrdMap<ServiceName, Ipv4Addr>,
    /// By source, the destinations whose own intentions allow it by name.
    pub(crate) destinations: OrdMap<ServiceName, OrdSet<ServiceName>>,
    /// Which services gateways out of the mesh link.
    pub(crate) links: Links,
    pub(crate) members: Members,
    pub(crate) coordination: Coordination,
    pub(crate) access: AccessControl,
    /// Stored records that cannot be used.
    pub(crate) quarantine: Quarantine,
    /// Instances by the name they bear.
    pub(crate) by_name: OrdMap<ServiceName, Arc<Sorted<ByKey>>>,
    /// Sidecars by the service they stand in front of.
    pub(crate) by_destination: OrdMap<ServiceName, Arc<Sorted<ByKey>>>,
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
    pub(crate) instances: Sorted<ById>,
    /// The sidecars among them that have a port.
    pub(crate) by_port: Sorted<ByPort>,
    pub(crate) checks: Sorted<ByCheckId>,
    pub(crate) by_owner: Sorted<ByOwner>,
}

/// Instances of one node, by identifier.
#[derive(Debug)]
pub(crate) struct ById;

impl Order for ById {
    type Record = ServiceInstance;
    fn order(one: &ServiceInstance, other: &ServiceInstance) -> Ordering {
        one.key.id.cmp(&other.key.id)
    }
}

/// Instances by node and identifier.
#[derive(Debug)]
pub(crate) struct ByKey;

impl Order for ByKey {
    type Record = ServiceInstance;
    fn order(one: &ServiceInstance, other: &ServiceInstance) -> Ordering {
        one.key.cmp(&other.key)
    }
}

/// Instances of one node by the port that they are reached at, then by identifier.
#[derive(Debug)]
pub(crate) struct ByPort;

impl Order for ByPort {
    type Record = ServiceInstance;
    fn order(one: &ServiceInstance, other: &ServiceInstance) -> Ordering {
        (one.port, &one.key.id).cmp(&(other.port, &other.key.id))
    }
}

/// Checks of one node, by identifier.
#[derive(Debug)]
pub(crate) struct ByCheckId;

impl Order for ByCheckId {
    type Record = Check;
    fn order(one: &Check, other: &Check) -> Ordering {
        one.id.cmp(&other.id)
    }
}

/// Checks of one node by the instance they speak of, the node's own first, then by identifier.
#[derive(Debug)]
pub(crate) struct ByOwner;

impl Order for ByOwner {
    type Record = Check;
    fn order(one: &Check, other: &Check) -> Ordering {
        (owner(one), &one.id).cmp(&(owner(other), &other.id))
    }
}

/// The instance that a check speaks of; `None` is the node.
fn owner(check: &Check) -> Option<&InstanceId> {
    check.service.as_ref().map(|service| &service.id)
}

impl NodeEntry {
    pub(crate) fn instance(&self, id: &InstanceId) -> Option<&Arc<Versioned<ServiceInstance>>> {
        self.instances.get(|it| it.key.id.cmp(id))
    }

    pub(crate) fn check(&self, id: &CheckId) -> Option<&Arc<Versioned<Check>>> {
        self.checks.get(|it| it.id.cmp(id))
    }

    /// The sidecars that are reached at `port`, by identifier.
    fn sidecars_at(&self, port: Port) -> impl Iterator<Item = &Arc<Versioned<ServiceInstance>>> {
        let placed = self.by_port.from(move |it| at_or_after(it.port.cmp(&Some(port))));
        placed.take_while(move |it| it.value.port == Some(port))
    }

    /// The checks that speak of one instance, or of the node, by identifier.
    fn owned_by(&self, instance: Option<InstanceId>) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        let first = instance.clone();
        let owned = self.by_owner.from(move |it| at_or_after(owner(it).cmp(&first.as_ref())));
        owned.take_while(move |it| owner(&it.value) == instance.as_ref())
    }
}

/// How a record lies to the place before all records that are equal to it by the leading part of an order.
fn at_or_after(leading: Ordering) -> Ordering {
    leading.then(Ordering::Greater)
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
            None => self.kv_revision(subject).or_else(|| self.touched.get(subject).copied()),
        };
        known.unwrap_or(self.floor).max(self.loaded)
    }

    /// When an entry that is there last changed: there may be as many as a store holds.
    fn kv_revision(&self, subject: &Subject) -> Option<Revision> {
        self.kv(subject.kv()?).map(|entry| entry.modified)
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
        self.nodes.get(node).into_iter().flat_map(|entry| entry.instances.iter())
    }

    /// The sidecars on a node that are reached at `port`, by identifier.
    pub fn sidecars_at(&self, node: &NodeName, port: Port) -> impl Iterator<Item = &Arc<Versioned<ServiceInstance>>> {
        self.nodes.get(node).into_iter().flat_map(move |entry| entry.sidecars_at(port))
    }

    /// The checks on a node, by identifier; those of its instances included.
    pub fn checks_on(&self, node: &NodeName) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        self.nodes.get(node).into_iter().flat_map(|entry| entry.checks.iter())
    }

    /// One instance.
    #[must_use]
    pub fn instance(&self, key: &InstanceKey) -> Option<&Arc<Versioned<ServiceInstance>>> {
        self.nodes.get(&key.node)?.instance(&key.id)
    }

    /// One check.
    #[must_use]
    pub fn check(&self, node: &NodeName, id: &CheckId) -> Option<&Arc<Versioned<Check>>> {
        self.nodes.get(node)?.check(id)
    }

    /// Every check of the mesh, by node and identifier.
    pub fn checks(&self) -> impl Iterator<Item = &Arc<Versioned<Check>>> {
        self.nodes.values().flat_map(|entry| entry.checks.iter())
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
        self.by_name.get(name).into_iter().flat_map(|sorted| sorted.iter())
    }

    /// The sidecars that stand in front of `destination`, by node and identifier.
    pub fn sidecars_of<'a>(
        &'a self,
        destination: &ServiceName,
    ) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        self.by_destination.get(destination).into_iter().flat_map(|sorted| sorted.iter())
    }

    /// Those of them that are on `node`.
    pub fn sidecars_on<'a>(
        &'a self,
        node: &NodeName,
        destination: &ServiceName,
    ) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        let first = |it: &ServiceInstance| at_or_after(it.key.node.cmp(node));
        let sidecars = self.by_destination.get(destination).map(|sidecars| sidecars.from(first));
        let node = node.clone();
        sidecars.into_iter().flatten().take_while(move |it| it.value.key.node == node)
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

    /// The settings of the whole mesh.
    #[must_use]
    pub fn mesh_entry(&self) -> Option<&MeshEntry> {
        let key = ConfigEntryKey { kind: ConfigKind::Mesh, name: "mesh".to_owned() };
        if let ConfigEntry::Mesh(entry) = &self.config(&key)?.value { Some(entry) } else { None }
    }

    /// The settings of every proxy.
    #[must_use]
    pub fn proxy_defaults(&self) -> Option<&ProxyDefaults> {
        let key = ConfigEntryKey { kind: ConfigKind::ProxyDefaults, name: "global".to_owned() };
        if let ConfigEntry::ProxyDefaults(entry) = &self.config(&key)?.value { Some(entry) } else { None }
    }

    /// The settings of one service.
    #[must_use]
    pub fn service_defaults(&self, service: &ServiceName) -> Option<&ServiceDefaults> {
        let entry = self.of_service(ConfigKind::ServiceDefaults, service)?;
        if let ConfigEntry::ServiceDefaults(entry) = entry { Some(entry) } else { None }
    }

    /// Where the requests to one service go.
    #[must_use]
    pub fn service_router(&self, service: &ServiceName) -> Option<&ServiceRouter> {
        let entry = self.of_service(ConfigKind::ServiceRouter, service)?;
        if let ConfigEntry::ServiceRouter(entry) = entry { Some(entry) } else { None }
    }

    /// How the calls of one service are divided.
    #[must_use]
    pub fn service_splitter(&self, service: &ServiceName) -> Option<&ServiceSplitter> {
        let entry = self.of_service(ConfigKind::ServiceSplitter, service)?;
        if let ConfigEntry::ServiceSplitter(entry) = entry { Some(entry) } else { None }
    }

    /// Which instances of one service are called.
    #[must_use]
    pub fn service_resolver(&self, service: &ServiceName) -> Option<&ServiceResolver> {
        let entry = self.of_service(ConfigKind::ServiceResolver, service)?;
        if let ConfigEntry::ServiceResolver(entry) = entry { Some(&**entry) } else { None }
    }

    /// What the gateways of one name let in.
    #[must_use]
    pub fn ingress_gateway(&self, gateway: &ServiceName) -> Option<&IngressGateway> {
        let entry = self.of_service(ConfigKind::IngressGateway, gateway)?;
        if let ConfigEntry::IngressGateway(entry) = entry { Some(&**entry) } else { None }
    }

    /// The entries that together say how one service is called.
    pub fn routing<'a>(&'a self, service: &'a ServiceName) -> impl Iterator<Item = &'a ConfigEntry> {
        ConfigKind::ROUTING.into_iter().filter_map(move |kind| self.of_service(kind, service))
    }

    fn of_service(&self, kind: ConfigKind, service: &ServiceName) -> Option<&ConfigEntry> {
        Some(&self.config(&ConfigEntryKey { kind, name: service.to_string() })?.value)
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
        own.into_iter().chain(any).filter_map(|entry| {
            if let ConfigEntry::ServiceIntentions(entry) = &entry.value { Some(entry) } else { None }
        })
    }

    /// The services whose own intentions name `source` as one that they allow, in order.
    pub fn destinations(&self, source: &ServiceName) -> impl Iterator<Item = &ServiceName> {
        self.destinations.get(source).into_iter().flatten()
    }

    /// The virtual address of a service.
    #[must_use]
    pub fn virtual_address(&self, service: &ServiceName) -> Option<Ipv4Addr> {
        self.virtual_by_service.get(service).copied()
    }

    /// Whose a virtual address is.
    #[must_use]
    pub fn virtual_address_of(&self, address: Ipv4Addr) -> Option<&ServiceName> {
        self.virtual_addresses.get(&address).map(|entry| &entry.value.service)
    }

    /// Virtual addresses given out so far.
    #[must_use]
    pub fn virtual_addresses(&self) -> usize {
        self.virtual_addresses.len()
    }

    /// Every trusted root, the active one first.
    #[must_use]
    pub fn roots(&self) -> Vec<&Arc<Versioned<CaRootRecord>>> {
        let mut roots: Vec<_> = self.roots.values().collect();
        roots.sort_by_key(|root| !root.value.active);
        roots
    }

    /// The root under which leaves are signed.
    #[must_use]
    pub fn active_root(&self) -> Option<&Arc<Versioned<CaRootRecord>>> {
        self.roots.values().find(|root| root.value.active)
    }

    /// What signs under a root.
    #[must_use]
    pub fn ca_key(&self, root: &str) -> Option<&Arc<Versioned<CaKeyRecord>>> {
        self.ca_keys.get(root)
    }

    /// What signs under each root, by the root's identifier.
    pub fn ca_keys(&self) -> impl Iterator<Item = &Arc<Versioned<CaKeyRecord>>> {
        self.ca_keys.values()
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

    /// The enrolment of a node or relay; `None` if it never joined, or joined before enrolments were kept.
    #[must_use]
    pub fn enrolment(&self, member: &Member) -> Option<&Arc<Versioned<Enrolment>>> {
        self.enrolments.get(member)
    }

    /// Every enrolment, evicted and released names included; nodes first, then relays.
    pub fn enrolments(&self) -> impl Iterator<Item = &Arc<Versioned<Enrolment>>> {
        self.enrolments.values()
    }

    /// Every server that runs, by identifier; none where the store has one server.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Versioned<ServerRecord>>> {
        self.members.servers()
    }

    /// One server.
    #[must_use]
    pub fn server(&self, id: ServerId) -> Option<&Arc<Versioned<ServerRecord>>> {
        self.members.server(id)
    }

    /// The server that has the duties of which there is only one.
    #[must_use]
    pub fn leader(&self) -> Option<&Versioned<LeaderRecord>> {
        self.members.leader()
    }

    /// The server that a node is attached to, or was when it was last heard of.
    #[must_use]
    pub fn attachment(&self, node: &NodeName) -> Option<&Arc<Versioned<AttachmentRecord>>> {
        self.members.attachment(node)
    }

    /// The server of every node that is attached to one, by node.
    pub fn attachments(&self) -> impl Iterator<Item = &Arc<Versioned<AttachmentRecord>>> {
        self.members.attachments()
    }

    /// The revision at which a record last changed, also of a quarantined one; `None` if there is none.
    #[must_use]
    pub fn modified(&self, key: &RecordKey) -> Option<Revision> {
        self.quarantined_at(key).map(|record| record.modified).or_else(|| self.modified_readable(key))
    }

    /// The revision at which a readable record last changed.
    fn modified_readable(&self, key: &RecordKey) -> Option<Revision> {
        match key {
            RecordKey::Node(name) => self.node(name).map(|r| r.modified),
            RecordKey::Instance(key) => self.instance(key).map(|r| r.modified),
            RecordKey::Check(node, id) => self.check(node, id).map(|r| r.modified),
            RecordKey::Config(key) => self.config(key).map(|r| r.modified),
            RecordKey::CaRoot(id) => self.roots.get(id).map(|r| r.modified),
            RecordKey::CaKey(id) => self.ca_keys.get(id).map(|r| r.modified),
            RecordKey::JoinToken(id) => self.join_token(id).map(|r| r.modified),
            RecordKey::Enrolment(member) => self.enrolment(member).map(|r| r.modified),
            RecordKey::Fence(fence) => self.fences.get(fence).map(|r| r.modified),
            RecordKey::VirtualAddress(address) => self.virtual_addresses.get(address).map(|r| r.modified),
            RecordKey::Server(id) => self.server(*id).map(|r| r.modified),
            RecordKey::Leader => self.leader().map(|r| r.modified),
            RecordKey::Attachment(node) => self.attachment(node).map(|r| r.modified),
            RecordKey::Coordination(key) => self.coordination.revisions(key).map(|(_, modified)| modified),
            RecordKey::Acl(key) => self.access.revisions(key).map(|(_, modified)| modified),
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
            Record::CaKey(value) => self.ca_keys.get(&value.root).is_some_and(|r| r.value == *value),
            Record::JoinToken(value) => self.join_token(&value.id).is_some_and(|r| r.value == *value),
            Record::Enrolment(value) => self.enrolment(&value.member).is_some_and(|r| r.value == *value),
            Record::Fence(fence) => self.fences.contains_key(fence),
            Record::VirtualAddress(value) => {
                self.virtual_addresses.get(&value.address).is_some_and(|r| r.value == *value)
            }
            Record::Server(value) => self.server(value.id).is_some_and(|r| r.value == *value),
            Record::Leader(value) => self.leader().is_some_and(|r| r.value == *value),
            Record::Attachment(value) => self.attachment(&value.node).is_some_and(|r| r.value == *value),
            Record::Coordination(value) => self.coordination.holds(value),
            Record::Acl(value) => self.access.holds(value),
        }
    }

    /// Every record, by kind; fences included.
    pub fn records(&self) -> impl Iterator<Item = Versioned<Record>> {
        fn wrap<T: Clone>(record: &Arc<Versioned<T>>, kind: fn(T) -> Record) -> Versioned<Record> {
            Versioned { value: kind(record.value.clone()), created: record.created, modified: record.modified }
        }
        let nodes = self.nodes().map(|r| wrap(r, Record::Node));
        let instances = self.nodes.values().flat_map(|e| e.instances.iter()).map(|r| wrap(r, Record::Instance));
        let checks = self.checks().map(|r| wrap(r, Record::Check));
        let configs = self.configs.values().map(|r| wrap(r, Record::Config));
        let roots = self.roots.values().map(|r| wrap(r, Record::CaRoot));
        let roots = roots.chain(self.ca_keys.values().map(|r| wrap(r, Record::CaKey)));
        let join_tokens = self.join_tokens().map(|r| wrap(r, Record::JoinToken));
        let enrolments = self.enrolments().map(|r| wrap(r, Record::Enrolment));
        let join_tokens = join_tokens.chain(enrolments);
        let fences = self.fences.values().map(|r| wrap(r, Record::Fence));
        let addresses = self.virtual_addresses.values().map(|r| wrap(r, Record::VirtualAddress));
        let of_mesh = roots.chain(join_tokens).chain(fences).chain(addresses).chain(self.members.records());
        let others = self.coordination.records().chain(self.access.records());
        nodes.chain(instances).chain(checks).chain(configs).chain(of_mesh).chain(others)
    }

    /// The changes that turn this state into `newer`. Costs a pass over both; for a reader that has lost its place.
    #[must_use]
    pub(crate) fn difference(&self, newer: &Self) -> Vec<Change> {
        let gone = self.records().map(|record| record.value.key());
        let gone = gone.filter(|key| newer.modified_readable(key).is_none() && !newer.keeps_last_readable(key));
        let mut changes: Vec<_> = gone.map(Change::Delete).collect();
        let is_new = |record: &Versioned<Record>| self.modified_readable(&record.value.key()) != Some(record.modified);
        let written = newer.records().filter(is_new);
        changes.extend(written.map(|record| Change::Put(record.value)));
        changes
    }
}
