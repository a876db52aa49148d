//! The agent's side: what concerns its node, as a planner reads it.
//!
//! Frames are applied as they come; the subjects that they touched are handed out at `Through`, when everything that
//! belongs together is there. What was never heard of is *unknown*, which is not the same as empty: no plan may be made
//! from it, or a missing denial would let calls through.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use starling_catalog::{Front, MeshRead, Subject};
use starling_model::{
    CaRootRecord, ConfigEntry, InstanceKey, IntentionSubject, Node, NodeName, ProxyDefaults, Revision, ServiceDefaults,
    ServiceInstance, ServiceIntentions, ServiceName,
};

use crate::message::{FromServer, MessageError, ServerSays, Whole, decode_subject};
use crate::projection::{Item, ItemKey, decode_item, encode_item};

/// Why a frame cannot be applied; the stream has to end, and the replica keeps what it has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// It cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It is of an earlier revision than what is there.
    #[error("{subject} goes back from revision {have} to {sent}")]
    Back {
        /// The subject.
        subject: Subject,
        /// What is there.
        have: Revision,
        /// What was sent.
        sent: Revision,
    },
}

/// The part of the catalog that concerns one node.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    topics: BTreeMap<Subject, Topic>,
    /// Everything known is complete up to here.
    through: Revision,
    /// Known subjects that changed since the last `Through`.
    touched: BTreeSet<Subject>,
    local: Local,
}

/// A subject as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
struct Topic {
    /// When it last changed here; `None` if it was never heard of. Whatever is known is complete up to the last `Through`.
    revision: Option<Revision>,
    fronts: BTreeMap<InstanceKey, Front>,
    entry: Option<ConfigEntry>,
    roots: BTreeMap<String, CaRootRecord>,
    mark: bool,
}

/// What the node's own agent knows better than any server: its registrations.
#[derive(Debug, Clone, Default)]
struct Local {
    node: Option<Node>,
    instances: BTreeMap<InstanceKey, (Revision, ServiceInstance)>,
    /// Counts changes of this part; compared only with itself.
    clock: u64,
}

impl Replica {
    /// Begins to hold a subject; whether it is new here.
    pub fn want(&mut self, subject: &Subject) -> bool {
        if self.topics.contains_key(subject) {
            return false;
        }
        self.topics.insert(subject.clone(), Topic::default());
        true
    }

    /// Forgets a subject.
    pub fn forget(&mut self, subject: &Subject) {
        self.topics.remove(subject);
        self.touched.remove(subject);
    }

    /// Forgets everything heard from servers, as when they have begun anew; what is wanted stays wanted.
    pub fn begin_anew(&mut self) {
        for topic in self.topics.values_mut() {
            topic.revision = None;
        }
        self.through = Revision(0);
        self.touched.clear();
    }

    /// Whether a subject has been heard of. Those that are not sent to agents are this node's own, and known.
    #[must_use]
    pub fn knows(&self, subject: &Subject) -> bool {
        matches!(subject, Subject::Instance(_)) || self.topics.get(subject).is_some_and(|t| t.revision.is_some())
    }

    /// What is wanted.
    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.topics.keys()
    }

    /// What is wanted, each with what is there of it; 0 for nothing. The way to resume.
    #[must_use]
    pub fn resumes(&self) -> Vec<(Subject, Revision)> {
        let have = |topic: &Topic| topic.revision.map_or(Revision(0), |revision| revision.max(self.through));
        self.topics.iter().map(|(subject, topic)| (subject.clone(), have(topic))).collect()
    }

    /// Everything known is complete up to here.
    #[must_use]
    pub fn through(&self) -> Revision {
        self.through
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
                self.update(&subject, Revision(update.revision), key, item)?;
                Ok(None)
            }
            ServerSays::Whole(whole) => {
                self.replace(whole)?;
                Ok(None)
            }
            ServerSays::Through(through) => {
                if Revision(through.revision) < self.through {
                    let (have, sent) = (self.through, Revision(through.revision));
                    return Err(ReplicaError::Back { subject: Subject::ServiceList, have, sent });
                }
                self.through = Revision(through.revision);
                Ok(Some(std::mem::take(&mut self.touched)))
            }
            ServerSays::Welcome(_) | ServerSays::Ping(_) => Ok(None),
        }
    }

    fn update(
        &mut self,
        subject: &Subject,
        revision: Revision,
        key: ItemKey,
        item: Option<Item>,
    ) -> Result<(), ReplicaError> {
        // Said before the server heard that it is no longer wanted.
        let Some(topic) = self.topics.get_mut(subject) else { return Ok(()) };
        let have = topic.revision.unwrap_or_default();
        // Within one take, frames of an earlier revision may follow more urgent ones of a later; an item's own
        // revisions never go back, since each item is taken once.
        if revision <= self.through {
            return Err(ReplicaError::Back { subject: subject.clone(), have: self.through, sent: revision });
        }
        topic.revision = Some(have.max(revision));
        topic.put(key, item);
        self.touched.insert(subject.clone());
        Ok(())
    }

    fn replace(&mut self, whole: &Whole) -> Result<(), ReplicaError> {
        let wire = whole.subject.as_ref().ok_or(MessageError::Unknown)?;
        let subject = decode_subject(wire)?;
        let items: Result<Vec<_>, _> = whole.items.iter().map(|item| decode_item(&subject, item)).collect();
        let items = items?;
        let Some(topic) = self.topics.get_mut(&subject) else { return Ok(()) };
        let sent = Revision(whole.revision);
        if topic.revision.is_some_and(|have| sent < have) {
            let have = topic.revision.unwrap_or_default();
            return Err(ReplicaError::Back { subject, have, sent });
        }
        let mut fresh = Topic { revision: topic.revision, ..Topic::default() };
        for (key, item) in items {
            fresh.put(key, item);
        }
        // A server that has forgotten what was sent sends the whole; what turns out as it was wakes nobody.
        if topic.revision.is_none() || fresh != *topic {
            fresh.revision = Some(sent);
            *topic = fresh;
            self.touched.insert(subject);
        }
        Ok(())
    }

    /// The node's own registrations are now these. Answers with the subjects that this changes.
    pub fn set_local(&mut self, node: &Node, instances: Vec<ServiceInstance>) -> BTreeSet<Subject> {
        self.local.clock += 1;
        let now = Revision(self.local.clock);
        let moved = self.local.node.as_ref() != Some(node);
        let mut touched = BTreeSet::new();
        let mut old = std::mem::take(&mut self.local.instances);
        for instance in instances {
            let key = instance.key.clone();
            let same = old.remove(&key).filter(|(_, old)| !moved && *old == instance);
            if same.is_none() {
                touched.insert(Subject::Instance(key.clone()));
            }
            let revision = same.map_or(now, |(revision, _)| revision);
            self.local.instances.insert(key, (revision, instance));
        }
        touched.extend(old.into_keys().map(Subject::Instance));
        self.local.node = Some(node.clone());
        touched
    }

    /// What is known, in the form in which a server would send it: to be kept on disk.
    #[must_use]
    pub fn to_frames(&self) -> Vec<Bytes> {
        let known = self.topics.iter().filter(|(_, topic)| topic.revision.is_some());
        let whole = |(subject, topic): (&Subject, &Topic)| {
            let subject = crate::message::encode_subject(subject)?;
            let revision = topic.revision.unwrap_or_default().max(self.through).0;
            let items = topic.items().iter().map(|(key, item)| encode_item(key, Some(item))).collect();
            Some(FromServer::from(ServerSays::Whole(Whole { subject: Some(subject), revision, items })).to_bytes())
        };
        let mut frames: Vec<_> = known.filter_map(whole).collect();
        frames.push(crate::message::through(self.through));
        frames
    }

    /// Reads what [`Replica::to_frames`] made; every subject in it is wanted.
    ///
    /// # Errors
    /// [`ReplicaError`] if it is damaged; the replica is then as empty as before.
    pub fn from_frames(frames: impl IntoIterator<Item = Bytes>) -> Result<Self, ReplicaError> {
        let mut replica = Self::default();
        for frame in frames {
            let says = FromServer::from_bytes(frame)?;
            if let ServerSays::Whole(whole) = &says {
                replica.want(&decode_subject(whole.subject.as_ref().ok_or(MessageError::Unknown)?)?);
            }
            replica.handle(&says)?;
        }
        Ok(replica)
    }

    fn entry(&self, subject: &Subject) -> Option<&ConfigEntry> {
        self.topics.get(subject)?.entry.as_ref()
    }
}

impl Topic {
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
            (ItemKey::Sole, Some(Item::Entry(entry))) => self.entry = Some(entry),
            (ItemKey::Sole, Some(_)) => self.mark = true,
            (ItemKey::Sole, None) => (self.entry, self.mark) = (None, false),
        }
    }

    fn items(&self) -> Vec<(ItemKey, Item)> {
        let fronts = self.fronts.iter().map(|(key, front)| (ItemKey::Front(key.clone()), Item::Front(front.clone())));
        let roots = self.roots.iter().map(|(id, root)| (ItemKey::Root(id.clone()), Item::Root(root.clone())));
        let entry = self.entry.iter().map(|entry| (ItemKey::Sole, Item::Entry(entry.clone())));
        let mark = self.mark.then_some((ItemKey::Sole, Item::Mark));
        fronts.chain(roots).chain(entry).chain(mark).collect()
    }
}

impl MeshRead for Replica {
    fn revision(&self) -> Revision {
        self.through
    }

    fn subject_revision(&self, subject: &Subject) -> Revision {
        if let Subject::Instance(key) = subject {
            let gone = Revision(self.local.clock);
            return self.local.instances.get(key).map_or(gone, |(revision, _)| *revision);
        }
        self.topics.get(subject).and_then(|topic| topic.revision).unwrap_or_default()
    }

    fn instance(&self, key: &InstanceKey) -> Option<&ServiceInstance> {
        self.local.instances.get(key).map(|(_, instance)| instance)
    }

    fn node_address(&self, node: &NodeName) -> Option<&str> {
        self.local.node.as_ref().filter(|own| own.name == *node).map(|own| own.address.as_str())
    }

    fn visit_fronts(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        let topic = self.topics.get(&Subject::Endpoints(service.clone()));
        topic.into_iter().flat_map(|topic| topic.fronts.values()).for_each(visit);
    }

    fn has_instances(&self, service: &ServiceName) -> bool {
        self.topics.get(&Subject::Service(service.clone())).is_some_and(|topic| topic.mark)
    }

    fn service_defaults(&self, service: &ServiceName) -> Option<&ServiceDefaults> {
        match self.entry(&Subject::Routing(service.clone()))? {
            ConfigEntry::ServiceDefaults(entry) => Some(entry),
            ConfigEntry::ProxyDefaults(_) | ConfigEntry::ServiceIntentions(_) => None,
        }
    }

    fn proxy_defaults(&self) -> Option<&ProxyDefaults> {
        match self.entry(&Subject::ProxyDefaults)? {
            ConfigEntry::ProxyDefaults(entry) => Some(entry),
            ConfigEntry::ServiceDefaults(_) | ConfigEntry::ServiceIntentions(_) => None,
        }
    }

    fn intentions(&self, destination: &IntentionSubject) -> Option<&ServiceIntentions> {
        match self.entry(&Subject::Intentions(destination.clone()))? {
            ConfigEntry::ServiceIntentions(entry) => Some(entry),
            ConfigEntry::ProxyDefaults(_) | ConfigEntry::ServiceDefaults(_) => None,
        }
    }

    fn roots_pem(&self) -> Vec<&str> {
        let roots = self.topics.get(&Subject::Roots).into_iter().flat_map(|topic| topic.roots.values());
        let mut roots: Vec<_> = roots.collect();
        roots.sort_by_key(|root| !root.active);
        roots.into_iter().map(|root| root.certificate_pem.as_str()).collect()
    }
}
