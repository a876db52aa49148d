//! The agent's side: what concerns its node, as a planner reads it.
//!
//! It changes at a `Through` only, when everything that belongs together is there ([`intake`](crate::intake)). What was never heard of is *unknown*, which is not the same as empty: no plan may be made
//! from it, or a missing denial would let calls through.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use starling_catalog::{Front, MeshRead, Subject};
use starling_model::{
    CaRootRecord, ConfigEntry, ConfigKind, IngressGateway, InstanceKey, IntentionSubject, MeshEntry, Node, NodeName,
    ProxyDefaults, Revision, ServerId, ServerRecord, ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, TerminatingGateway,
};

use crate::intake::{HandedOver, Hearer, Intake, Staged, What};
use crate::message::{FromServer, MessageError, Reached, ServerSays, Update, Whole, decode_subject, encode_subject};
use crate::projection::{Item, ItemKey, ReadItem, encode_item, read_item};

/// Why a frame cannot be applied; the stream has to end. The replica keeps what it has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// It cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It is of an earlier revision than what was said on the same stream. Whoever comes back has to begin anew.
    #[error("{subject} goes back from revision {have} to {sent}")]
    Back {
        /// The subject; the list of services for all of them.
        subject: Subject,
        /// What is there.
        have: Revision,
        /// What was sent.
        sent: Revision,
    },
    /// The server is of another store, or of another past of it, than the one that is heard beside it.
    #[error("the server's epoch is {epoch:#x}, and what is known here is of {heard:#x}")]
    Elsewhere {
        /// Of what is there.
        heard: u64,
        /// The server's.
        epoch: u64,
    },
    /// The replica has begun anew since the stream began.
    #[error("everything has begun anew since")]
    BegunAnew,
}

/// The part of the catalog that concerns one node. Cloning costs a reference count per subject.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    topics: BTreeMap<Subject, Arc<Topic>>,
    /// Everything known is complete up to here, but for what is doubtful.
    through: Revision,
    /// The furthest that was heard of; epoch 0 if there is no telling of which store all of it is.
    reached: Reached,
    /// Known subjects that changed since anybody was told.
    touched: BTreeSet<Subject>,
    /// Counts how often everything was begun anew.
    life: u64,
    local: Local,
    /// Counts changes. Servers' revisions would not do: one that was set back uses them again.
    clock: u64,
}

/// A subject as far as it is known.
#[derive(Debug, Clone, Default)]
struct Topic {
    /// Whether the whole of it was ever heard of.
    known: bool,
    doubt: Doubt,
    /// When it last changed here, by the replica's clock.
    changed: u64,
    content: Content,
}

/// What is there of a subject.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Content {
    fronts: BTreeMap<InstanceKey, Front>,
    entry: Option<ConfigEntry>,
    /// Of `Routing` and `ProxyDefaults`, the entries beside the first.
    others: BTreeMap<ConfigKind, ConfigEntry>,
    virtual_address: Option<Ipv4Addr>,
    roots: BTreeMap<String, CaRootRecord>,
    services: Vec<ServiceName>,
    servers: BTreeMap<ServerId, ServerRecord>,
    mark: bool,
    /// By their keys on the wire, the items that cannot be read, and why.
    unreadable: BTreeMap<String, String>,
}

/// Whether what is there of a subject may be relied on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Doubt {
    /// It is complete up to the last `Through`.
    #[default]
    None,
    /// Not until the whole was sent: it is of another past, or may be a part.
    UntilWhole,
}

/// What the node's own agent knows better than any server: its registrations.
#[derive(Debug, Clone, Default)]
struct Local {
    node: Option<Node>,
    /// Each with when it last changed, by the replica's clock.
    instances: BTreeMap<InstanceKey, (u64, ServiceInstance)>,
    /// When any of it was last set.
    set: u64,
}

impl Replica {
    /// Begins to hold a subject; whether it is new here, and so to be subscribed to with nothing.
    pub fn want(&mut self, subject: &Subject) -> bool {
        if self.topics.contains_key(subject) {
            return false;
        }
        self.topics.insert(subject.clone(), Arc::default());
        true
    }

    /// Forgets a subject.
    pub fn forget(&mut self, subject: &Subject) {
        self.touched.remove(subject);
        self.topics.remove(subject);
    }

    /// Asks for everything anew, as when servers have not what was heard. What is there serves until the answer replaces it:
    /// a plan made meanwhile must not lack a denial. The next `Through` speaks of all of it, by another count of revisions. Every
    /// stream has to end.
    pub fn begin_anew(&mut self) {
        for (subject, topic) in &mut self.topics {
            Arc::make_mut(topic).doubt = Doubt::UntilWhole;
            if topic.known {
                self.touched.insert(subject.clone());
            }
        }
        self.through = Revision(0);
        self.reached = Reached::default();
        self.life += 1;
    }

    /// Whether a subject has been heard of. Those that are not sent to agents are this node's own, and known.
    #[must_use]
    pub fn knows(&self, subject: &Subject) -> bool {
        matches!(subject, Subject::Instance(_)) || self.topics.get(subject).is_some_and(|topic| topic.known)
    }

    /// What is wanted.
    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.topics.keys()
    }

    /// How far was heard, for a server to hold against its store; `None` if there is no telling of which store that is.
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        (self.reached.epoch != 0).then_some(self.reached)
    }

    /// Everything known is complete up to here.
    #[must_use]
    pub fn through(&self) -> Revision {
        self.through
    }

    /// Counts changes of what is known, also those within one revision.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// The node's own registrations are now these. Answers with the subjects that this changes.
    pub fn set_local(&mut self, node: &Node, instances: Vec<ServiceInstance>) -> BTreeSet<Subject> {
        self.clock += 1;
        self.local.set = self.clock;
        let moved = self.local.node.as_ref() != Some(node);
        let mut touched = BTreeSet::new();
        let mut old = std::mem::take(&mut self.local.instances);
        for instance in instances {
            let key = instance.key.clone();
            let same = old.remove(&key).filter(|(_, old)| !moved && *old == instance);
            if same.is_none() {
                touched.insert(Subject::Instance(key.clone()));
            }
            let changed = same.map_or(self.clock, |(changed, _)| changed);
            self.local.instances.insert(key, (changed, instance));
        }
        touched.extend(old.into_keys().map(Subject::Instance));
        self.local.node = Some(node.clone());
        touched
    }

    /// What is known, in the form in which a server would send it after a welcome of the epoch of [`Replica::reached`]: to
    /// be kept on disk.
    #[must_use]
    pub fn to_frames(&self) -> Vec<Bytes> {
        let known = self.topics.iter().filter(|(_, topic)| topic.known);
        let whole = |(subject, topic): (&Subject, &Arc<Topic>)| {
            let subject = encode_subject(subject)?;
            let complete = topic.complete_through(self.through) != Revision(0);
            let revision = if complete { self.reached.revision.max(self.through.0) } else { 0 };
            let items = topic.content.items().iter().map(|(key, item)| encode_item(key, Some(item))).collect();
            Some(FromServer::from(ServerSays::Whole(Whole { subject: Some(subject), revision, items })).to_bytes())
        };
        let mut frames: Vec<_> = known.filter_map(whole).collect();
        frames.push(crate::message::through(self.through, 0));
        frames
    }

    /// Reads what [`Replica::to_frames`] made, after the welcome; every subject in it is wanted.
    ///
    /// # Errors
    /// [`ReplicaError`] if it is damaged.
    pub fn from_frames(frames: impl IntoIterator<Item = Bytes>) -> Result<Self, ReplicaError> {
        let mut replica = Self::default();
        let (mut intake, _) = Intake::begin(&mut replica, false);
        let (mut doubtful, mut reached) = (Vec::new(), 0);
        for frame in frames {
            let says = FromServer::from_bytes(frame)?;
            if let ServerSays::Whole(whole) = &says {
                let subject = decode_subject(whole.subject.as_ref().ok_or(MessageError::Unknown)?)?;
                replica.want(&subject);
                intake.want(&subject);
                reached = reached.max(whole.revision);
                // 0 stands for what was doubtful.
                if whole.revision == 0 {
                    doubtful.push(subject);
                }
            }
            if intake.hear(&replica, &says)? {
                intake.hand_over(&mut replica);
            }
        }
        replica.reached.revision = replica.reached.revision.max(reached);
        for subject in doubtful {
            if let Some(topic) = replica.topics.get_mut(&subject) {
                Arc::make_mut(topic).doubt = Doubt::UntilWhole;
            }
        }
        Ok(replica)
    }

    /// The roots that the mesh trusts, the active one first.
    #[must_use]
    pub fn roots(&self) -> Vec<&CaRootRecord> {
        let roots = self.topics.get(&Subject::Roots).into_iter().flat_map(|topic| topic.content.roots.values());
        let mut roots: Vec<_> = roots.collect();
        roots.sort_by_key(|root| !root.active);
        roots
    }

    /// Why items cannot be read by this release: each names its subject. Stand-ins that allow nothing are in their place.
    pub fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.topics.values().flat_map(|topic| topic.content.unreadable.values()).map(String::as_str)
    }

    /// The servers of the mesh, by identifier; none where the store has one server.
    pub fn servers(&self) -> impl Iterator<Item = &ServerRecord> {
        self.topics.get(&Subject::Servers).into_iter().flat_map(|topic| topic.content.servers.values())
    }

    fn entry(&self, subject: &Subject) -> Option<&ConfigEntry> {
        self.topics.get(subject)?.content.entry.as_ref()
    }

    fn routing(&self, service: &ServiceName, kind: ConfigKind) -> Option<&ConfigEntry> {
        self.topics.get(&Subject::Routing(service.clone()))?.content.others.get(&kind)
    }
}

impl Hearer for Replica {
    type Item = ReadItem;
    type Whole = Content;
    type HandedOver = HandedOver;

    fn wants(&self, subject: &Subject) -> bool {
        self.topics.contains_key(subject)
    }

    fn knows(&self, subject: &Subject) -> bool {
        Self::knows(self, subject)
    }

    fn through(&self) -> Revision {
        self.through
    }

    fn life(&self) -> u64 {
        self.life
    }

    fn is_to_be_told(&self, epoch: u64) -> bool {
        !self.touched.is_empty() || self.reached.epoch != epoch
    }

    fn resumes(&self) -> Vec<(Subject, Revision)> {
        let resume =
            |(subject, topic): (&Subject, &Arc<Topic>)| (subject.clone(), topic.complete_through(self.through));
        self.topics.iter().map(resume).collect()
    }

    fn reached(&self) -> Option<Reached> {
        Self::reached(self)
    }

    fn has_nothing(&mut self) {
        self.through = Revision(0);
        self.reached = Reached::default();
    }

    fn read_item(subject: &Subject, update: &Update, _: &Bytes) -> Result<Self::Item, MessageError> {
        read_item(subject, update.item.as_ref().ok_or(MessageError::Unknown)?)
    }

    fn read_whole(subject: &Subject, whole: &Whole, _: &Bytes) -> Result<Content, MessageError> {
        let mut content = Content::default();
        for wire in &whole.items {
            let read = read_item(subject, wire)?;
            if read.item.is_none() && read.unreadable.is_none() {
                return Err(not_whole(subject));
            }
            content.take(read);
        }
        Ok(content)
    }

    fn apply(&mut self, staged: Vec<Staged<Self::Item, Content>>, through: Revision, epoch: u64) -> HandedOver {
        let (mut node_written, mut unreadable) = (BTreeSet::new(), Vec::new());
        // Of these there was nothing to rely on, so that all that is staged of them counts.
        let mut begun = BTreeSet::new();
        for Staged { subject, revision, what } in staged {
            let Some(topic) = self.topics.get_mut(&subject) else { continue };
            let is_complete = topic.known && topic.doubt == Doubt::None && !begun.contains(&subject);
            if is_complete && revision <= self.through {
                continue;
            }
            if matches!(subject, Subject::Node(_)) {
                node_written.insert(if matches!(what, What::Whole(_)) { Revision(0) } else { revision });
            }
            self.clock += 1;
            let changed = match what {
                What::Item(read) => {
                    unreadable.extend(read.unreadable.clone());
                    let topic = Arc::make_mut(topic);
                    topic.content.take(read);
                    topic.changed = self.clock;
                    true
                }
                What::Whole(content) => {
                    unreadable.extend(content.unreadable.values().cloned());
                    let changed = topic.replace(&subject, content, self.clock);
                    if !is_complete {
                        begun.insert(subject.clone());
                    }
                    changed
                }
            };
            if changed {
                self.touched.insert(subject);
            }
        }
        self.through = through;
        self.reached = Reached { epoch, revision: self.reached.revision.max(through.0) };
        HandedOver { touched: std::mem::take(&mut self.touched), node_written, unreadable }
    }
}

/// Why what says that it is the whole of a subject is not.
pub(crate) fn not_whole(subject: &Subject) -> MessageError {
    let reason = "a whole holds what is there only".to_owned();
    MessageError::Item { subject: subject.to_string(), reason }
}

impl Topic {
    /// Replaces what is there; whether anybody has to be told. A server that has forgotten what was sent sends the whole, and
    /// what turns out as it was wakes nobody. Only of a node nothing is shown but that something may have been written there.
    fn replace(self: &mut Arc<Self>, subject: &Subject, content: Content, now: u64) -> bool {
        let same = self.known && self.content == content && !matches!(subject, Subject::Node(_));
        if same && self.doubt == Doubt::None {
            return false;
        }
        let topic = Arc::make_mut(self);
        (topic.known, topic.doubt) = (true, Doubt::None);
        if !same {
            topic.changed = now;
            topic.content = content;
        }
        !same
    }

    /// Up to where it is complete, given the last `Through`; 0 if it has to be sent whole, as after an upgrade of this agent
    /// that may read what it could not. What came after the `Through` may
    /// be a part of what belongs together.
    fn complete_through(&self, through: Revision) -> Revision {
        let complete = self.known && self.doubt == Doubt::None && self.content.unreadable.is_empty();
        if complete { through } else { Revision(0) }
    }
}

impl Content {
    fn take(&mut self, read: ReadItem) {
        let ReadItem { wire_key, key, item, unreadable } = read;
        match unreadable {
            Some(reason) => drop(self.unreadable.insert(wire_key, reason)),
            None => drop(self.unreadable.remove(&wire_key)),
        }
        if let Some(key) = key {
            self.put(key, item);
        }
    }

    pub(crate) fn put(&mut self, key: ItemKey, item: Option<Item>) {
        match (key, item) {
            (ItemKey::Front(key), Some(Item::Front(front))) => {
                self.fronts.insert(key, front);
            }
            (ItemKey::Front(key), _) => {
                self.fronts.remove(&key);
            }
            (ItemKey::Root(id), Some(Item::Root(root))) => {
                self.roots.insert(id, root);
            }
            (ItemKey::Root(id), _) => {
                self.roots.remove(&id);
            }
            (ItemKey::Server(id), Some(Item::Server(server))) => {
                self.servers.insert(id, server);
            }
            (ItemKey::Server(id), _) => {
                self.servers.remove(&id);
            }
            (ItemKey::Entry(kind), Some(Item::Entry(entry))) => {
                self.others.insert(kind, entry);
            }
            (ItemKey::Entry(kind), _) => {
                self.others.remove(&kind);
            }
            (ItemKey::VirtualAddress, Some(Item::VirtualAddress(address))) => self.virtual_address = Some(address),
            (ItemKey::VirtualAddress, _) => self.virtual_address = None,
            (ItemKey::Sole, Some(Item::Entry(entry))) => self.entry = Some(entry),
            (ItemKey::Sole, Some(Item::Services(services))) => self.services = services,
            (ItemKey::Sole, Some(_)) => self.mark = true,
            (ItemKey::Sole, None) => (self.entry, self.services, self.mark) = (None, Vec::new(), false),
        }
    }

    fn items(&self) -> Vec<(ItemKey, Item)> {
        let fronts = self.fronts.iter().map(|(key, front)| (ItemKey::Front(key.clone()), Item::Front(front.clone())));
        let roots = self.roots.iter().map(|(id, root)| (ItemKey::Root(id.clone()), Item::Root(root.clone())));
        let entry = self.entry.iter().map(|entry| (ItemKey::Sole, Item::Entry(entry.clone())));
        let others = self.others.iter().map(|(kind, entry)| (ItemKey::Entry(*kind), Item::Entry(entry.clone())));
        let mark = self.mark.then_some((ItemKey::Sole, Item::Mark));
        let address = self.virtual_address.map(|address| (ItemKey::VirtualAddress, Item::VirtualAddress(address)));
        let servers = self.servers.iter().map(|(id, server)| (ItemKey::Server(*id), Item::Server(server.clone())));
        let services = Some(&self.services).filter(|services| !services.is_empty());
        let services = services.map(|services| (ItemKey::Sole, Item::Services(services.clone())));
        fronts
            .chain(roots)
            .chain(entry)
            .chain(others)
            .chain(mark)
            .chain(address)
            .chain(services)
            .chain(servers)
            .collect()
    }
}

impl MeshRead for Replica {
    fn revision(&self) -> Revision {
        self.through
    }

    /// By the replica's own clock: to be compared with what it answered before, and with nothing else.
    fn subject_revision(&self, subject: &Subject) -> Revision {
        if let Subject::Instance(key) = subject {
            return Revision(self.local.instances.get(key).map_or(self.local.set, |(changed, _)| *changed));
        }
        // Where nothing is known nothing is there, whenever that is.
        Revision(self.topics.get(subject).map_or(0, |topic| topic.changed))
    }

    fn instance(&self, key: &InstanceKey) -> Option<&ServiceInstance> {
        self.local.instances.get(key).map(|(_, instance)| instance)
    }

    fn node_address(&self, node: &NodeName) -> Option<&str> {
        self.local.node.as_ref().filter(|own| own.name == *node).map(|own| own.address.as_str())
    }

    fn visit_fronts(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        let topic = self.topics.get(&Subject::Endpoints(service.clone()));
        topic.into_iter().flat_map(|topic| topic.content.fronts.values()).for_each(visit);
    }

    fn visit_origins(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        let topic = self.topics.get(&Subject::Origins(service.clone()));
        topic.into_iter().flat_map(|topic| topic.content.fronts.values()).for_each(visit);
    }

    fn visit_services_outside(&self, visit: &mut dyn FnMut(&ServiceName)) {
        let topic = self.topics.get(&Subject::ServicesOutside);
        topic.into_iter().flat_map(|topic| &topic.content.services).for_each(visit);
    }

    fn has_instances(&self, service: &ServiceName) -> bool {
        self.topics.get(&Subject::Service(service.clone())).is_some_and(|topic| topic.content.mark)
    }

    fn service_defaults(&self, service: &ServiceName) -> Option<&ServiceDefaults> {
        let entry = self.entry(&Subject::Routing(service.clone()))?;
        if let ConfigEntry::ServiceDefaults(entry) = entry { Some(entry) } else { None }
    }

    fn service_router(&self, service: &ServiceName) -> Option<&ServiceRouter> {
        let entry = self.routing(service, ConfigKind::ServiceRouter)?;
        if let ConfigEntry::ServiceRouter(entry) = entry { Some(entry) } else { None }
    }

    fn service_splitter(&self, service: &ServiceName) -> Option<&ServiceSplitter> {
        let entry = self.routing(service, ConfigKind::ServiceSplitter)?;
        if let ConfigEntry::ServiceSplitter(entry) = entry { Some(entry) } else { None }
    }

    fn ingress_gateway(&self, gateway: &ServiceName) -> Option<&IngressGateway> {
        let entry = self.routing(gateway, ConfigKind::IngressGateway)?;
        if let ConfigEntry::IngressGateway(entry) = entry { Some(&**entry) } else { None }
    }

    fn terminating_gateway(&self, gateway: &ServiceName) -> Option<&TerminatingGateway> {
        let entry = self.routing(gateway, ConfigKind::TerminatingGateway)?;
        if let ConfigEntry::TerminatingGateway(entry) = entry { Some(&**entry) } else { None }
    }

    fn service_resolver(&self, service: &ServiceName) -> Option<&ServiceResolver> {
        let entry = self.routing(service, ConfigKind::ServiceResolver)?;
        if let ConfigEntry::ServiceResolver(entry) = entry { Some(&**entry) } else { None }
    }

    fn mesh_entry(&self) -> Option<&MeshEntry> {
        let entry = self.topics.get(&Subject::ProxyDefaults)?.content.others.get(&ConfigKind::Mesh)?;
        if let ConfigEntry::Mesh(entry) = entry { Some(entry) } else { None }
    }

    fn proxy_defaults(&self) -> Option<&ProxyDefaults> {
        let entry = self.entry(&Subject::ProxyDefaults)?;
        if let ConfigEntry::ProxyDefaults(entry) = entry { Some(entry) } else { None }
    }

    fn intentions(&self, destination: &IntentionSubject) -> Option<&ServiceIntentions> {
        let entry = self.entry(&Subject::Intentions(destination.clone()))?;
        if let ConfigEntry::ServiceIntentions(entry) = entry { Some(entry) } else { None }
    }

    fn visit_destinations(&self, source: &ServiceName, visit: &mut dyn FnMut(&ServiceName)) {
        let topic = self.topics.get(&Subject::Destinations(source.clone()));
        topic.into_iter().flat_map(|topic| &topic.content.services).for_each(visit);
    }

    fn virtual_address(&self, service: &ServiceName) -> Option<Ipv4Addr> {
        self.topics.get(&Subject::Routing(service.clone()))?.content.virtual_address
    }

    fn roots_pem(&self) -> Vec<&str> {
        self.roots().into_iter().map(|root| root.certificate_pem.as_str()).collect()
    }

    fn signing_root(&self) -> Option<&CaRootRecord> {
        self.roots().into_iter().find(|root| root.active)
    }
}
