//! The agent's side: what concerns its node, as a planner reads it.
//!
//! Frames are applied as they come; the subjects that they touched are handed out at `Through`, when everything that
//! belongs together is there. What was never heard of is *unknown*, which is not the same as empty: no plan may be made
//! from it, or a missing denial would let calls through.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use starling_catalog::{Front, MeshRead, Subject};
use starling_model::{
    CaRootRecord, ConfigEntry, ConfigKind, IngressGateway, InstanceKey, IntentionSubject, MeshEntry, Node, NodeName,
    ProxyDefaults, Revision, ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceName, ServiceResolver,
    ServiceRouter, ServiceSplitter,
};

use crate::message::{
    FromServer, MessageError, Reached, SUBJECTS_MAX, ServerSays, Whole, decode_subject, encode_subject,
};
use crate::projection::{Item, ItemKey, decode_item, encode_item};

/// Subjects forgotten in one connection that are told apart; past this every subject counts as one of them.
const FORGOTTEN_MAX: usize = SUBJECTS_MAX;

/// Why a frame cannot be applied; the stream has to end. The replica keeps what it has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// It cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It is of an earlier revision than what is there: the server is behind the one before it, or was set back. Whoever
    /// comes back has to begin anew.
    #[error("{subject} goes back from revision {have} to {sent}")]
    Back {
        /// The subject; the list of services for all of them.
        subject: Subject,
        /// What is there.
        have: Revision,
        /// What was sent.
        sent: Revision,
    },
}

/// The part of the catalog that concerns one node. Cloning costs a reference count per subject.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    topics: BTreeMap<Subject, Arc<Topic>>,
    /// Everything known is complete up to here, but for what is doubtful.
    through: Revision,
    /// The furthest that was heard of, what came after the last `Through` included; epoch 0 if there is no telling of which
    /// store all of it is.
    reached: Reached,
    /// The epoch of the server at the other end.
    epoch: u64,
    /// Known subjects that changed since the last `Through`.
    touched: BTreeSet<Subject>,
    forgotten: Forgotten,
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

#[derive(Debug, Clone, Default, PartialEq)]
struct Content {
    fronts: BTreeMap<InstanceKey, Front>,
    entry: Option<ConfigEntry>,
    /// Of `Routing` and `ProxyDefaults`, the entries beside the first.
    others: BTreeMap<ConfigKind, ConfigEntry>,
    virtual_address: Option<Ipv4Addr>,
    roots: BTreeMap<String, CaRootRecord>,
    services: Vec<ServiceName>,
    mark: bool,
}

/// Whether a `Through` speaks for a subject.
///
/// One that is forgotten and wanted again in the same connection may be sent frames of the ended subscription, then
/// nothing for a while, then frames of the new one; nothing in them tells which is which. Its content is put right by the
/// answer to the new one, but where the connection ends before, there is no knowing what was missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Doubt {
    /// It does.
    #[default]
    None,
    /// It may not: wanted again in this connection.
    Again,
    /// Not until the whole was sent, which this connection began with asking for.
    UntilWhole,
}

/// Subjects that were forgotten since the connection began.
#[derive(Debug, Clone, Default)]
struct Forgotten {
    subjects: BTreeSet<Subject>,
    /// Too many to name.
    any: bool,
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
        let again = self.forgotten.any || self.forgotten.subjects.contains(subject);
        let doubt = if again { Doubt::Again } else { Doubt::None };
        self.topics.insert(subject.clone(), Arc::new(Topic { doubt, ..Topic::default() }));
        true
    }

    /// Forgets a subject.
    pub fn forget(&mut self, subject: &Subject) {
        self.touched.remove(subject);
        if self.topics.remove(subject).is_none() {
            return;
        }
        if self.forgotten.subjects.len() == FORGOTTEN_MAX {
            self.forgotten = Forgotten { subjects: BTreeSet::new(), any: true };
        }
        self.forgotten.subjects.insert(subject.clone());
    }

    /// Asks for everything anew, as when servers have not what was heard. What is there serves until the answer replaces it:
    /// a plan made meanwhile must not lack a denial. The next `Through` speaks of all of it, by another count of revisions.
    pub fn begin_anew(&mut self) {
        for (subject, topic) in &mut self.topics {
            Arc::make_mut(topic).doubt = Doubt::UntilWhole;
            if topic.known {
                self.touched.insert(subject.clone());
            }
        }
        self.through = Revision(0);
        self.reached = Reached::default();
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

    /// Begins a connection: what is wanted, each with what is there of it, 0 for nothing. All of it is subscribed to at
    /// once, before anything that is wanted later: a `Through` must not come in between.
    #[must_use]
    pub fn resumes(&mut self) -> Vec<(Subject, Revision)> {
        self.forgotten = Forgotten::default();
        let through = self.through;
        let resume = |(subject, topic): (&Subject, &mut Arc<Topic>)| {
            if topic.doubt == Doubt::Again {
                Arc::make_mut(topic).doubt = Doubt::UntilWhole;
            }
            (subject.clone(), topic.complete_through(through))
        };
        self.topics.iter_mut().map(resume).collect()
    }

    /// How far was heard, for a server to hold against its store; `None` if there is no telling of which store that is.
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        (self.reached.epoch != 0).then_some(self.reached)
    }

    /// Something was heard. What is there is of the server's past: it was admitted, or else is all replaced by the next
    /// `Through`, `whole` being whether that is now.
    fn reach(&mut self, revision: u64, whole: bool) {
        self.reached.revision = self.reached.revision.max(revision);
        if whole || self.reached.epoch != 0 {
            self.reached.epoch = self.epoch;
        }
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

    /// Applies what a server said. At a `Through`, answers with the subjects that have changed since the last one.
    ///
    /// # Errors
    /// [`ReplicaError`]; the stream has to end then.
    pub fn handle(&mut self, says: &ServerSays) -> Result<Option<BTreeSet<Subject>>, ReplicaError> {
        match says {
            ServerSays::Update(update) => {
                let wire = update.subject.as_ref().ok_or(MessageError::Unknown)?;
                let subject = decode_subject(wire)?;
                let item = update.item.as_ref().ok_or(MessageError::Unknown)?;
                let (key, item) = decode_item(&subject, item)?;
                self.update(subject, Revision(update.revision), key, item)?;
                self.reach(update.revision, false);
                Ok(None)
            }
            ServerSays::Whole(whole) => {
                self.replace(whole)?;
                self.reach(whole.revision, false);
                Ok(None)
            }
            ServerSays::Through(through) => {
                let touched = self.complete(Revision(through.revision))?;
                self.reach(through.revision, true);
                Ok(Some(touched))
            }
            ServerSays::Welcome(welcome) => {
                self.epoch = welcome.epoch;
                Ok(None)
            }
        }
    }

    fn update(
        &mut self,
        subject: Subject,
        revision: Revision,
        key: ItemKey,
        item: Option<Item>,
    ) -> Result<(), ReplicaError> {
        // Said before the server heard that it is no longer wanted.
        let Some(topic) = self.topics.get_mut(&subject) else { return Ok(()) };
        // Of an ended subscription: a part would look like the whole, which is still to come.
        if !topic.known {
            return Ok(());
        }
        // Within one take, frames of an earlier revision may follow more urgent ones of a later; an item's own
        // revisions never go back, since each item is taken once.
        if revision <= self.through {
            return Err(ReplicaError::Back { subject, have: self.through, sent: revision });
        }
        self.clock += 1;
        let topic = Arc::make_mut(topic);
        topic.changed = self.clock;
        topic.content.put(key, item);
        self.touched.insert(subject);
        Ok(())
    }

    fn replace(&mut self, whole: &Whole) -> Result<(), ReplicaError> {
        let wire = whole.subject.as_ref().ok_or(MessageError::Unknown)?;
        let subject = decode_subject(wire)?;
        let mut fresh = Content::default();
        for wire in &whole.items {
            let (key, item) = decode_item(&subject, wire)?;
            if item.is_none() {
                let reason = "a whole holds what is there only".to_owned();
                return Err(MessageError::Item { subject: subject.to_string(), reason }.into());
            }
            fresh.put(key, item);
        }
        let Some(topic) = self.topics.get_mut(&subject) else { return Ok(()) };
        // A server that has forgotten what was sent sends the whole; what turns out as it was wakes nobody. Only of a node
        // nothing is shown but that something may have been written there.
        let same = topic.known && topic.content == fresh && !matches!(subject, Subject::Node(_));
        if same && topic.doubt != Doubt::UntilWhole {
            return Ok(());
        }
        let topic = Arc::make_mut(topic);
        topic.known = true;
        if topic.doubt == Doubt::UntilWhole {
            topic.doubt = Doubt::None;
        }
        if !same {
            self.clock += 1;
            topic.changed = self.clock;
            topic.content = fresh;
            self.touched.insert(subject);
        }
        Ok(())
    }

    fn complete(&mut self, through: Revision) -> Result<BTreeSet<Subject>, ReplicaError> {
        if through < self.through {
            // What came with it may be older than what was there.
            for topic in self.topics.values_mut() {
                Arc::make_mut(topic).doubt = Doubt::Again;
            }
            return Err(ReplicaError::Back { subject: Subject::ServiceList, have: self.through, sent: through });
        }
        self.through = through;
        Ok(std::mem::take(&mut self.touched))
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
            // What came after the `Through` is in it, too.
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
        for frame in frames {
            let says = FromServer::from_bytes(frame)?;
            if let ServerSays::Whole(whole) = &says {
                let subject = decode_subject(whole.subject.as_ref().ok_or(MessageError::Unknown)?)?;
                // 0 stands for what was doubtful.
                replica.forgotten.any = whole.revision == 0;
                replica.want(&subject);
            }
            replica.handle(&says)?;
        }
        replica.forgotten = Forgotten::default();
        replica.touched.clear();
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

    fn entry(&self, subject: &Subject) -> Option<&ConfigEntry> {
        self.topics.get(subject)?.content.entry.as_ref()
    }

    fn routing(&self, service: &ServiceName, kind: ConfigKind) -> Option<&ConfigEntry> {
        self.topics.get(&Subject::Routing(service.clone()))?.content.others.get(&kind)
    }
}

impl Topic {
    /// Up to where it is complete, given the last `Through`; 0 if it has to be sent whole. What came after the `Through` may
    /// be a part of what belongs together.
    fn complete_through(&self, through: Revision) -> Revision {
        if self.known && self.doubt == Doubt::None { through } else { Revision(0) }
    }
}

impl Content {
    fn put(&mut self, key: ItemKey, item: Option<Item>) {
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
        let services = Some(&self.services).filter(|services| !services.is_empty());
        let services = services.map(|services| (ItemKey::Sole, Item::Services(services.clone())));
        fronts.chain(roots).chain(entry).chain(others).chain(mark).chain(address).chain(services).collect()
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
