//! What a stream knows about one kind of resource: what is asked for, had, on its way and refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use starling_model::Revision;

use super::order::Push;
use crate::resource::{Resource, ResourceSet, ResourceType, Version};

/// A resource that the client has.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// `None` if the client names a version that no server of ours gives.
    pub version: Option<Version>,
    /// The resource itself; `None` if it came over an earlier stream.
    pub resource: Option<Arc<Resource>>,
}

/// A response that is not answered yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub nonce: u64,
    pub revision: Revision,
    pub resources: Vec<Arc<Resource>>,
    pub removed: Vec<Arc<str>>,
    /// What is not in it is gone.
    pub replaces_all: bool,
    /// With it the client has everything of the kind at that revision.
    pub completes: bool,
    /// If it is refused, all of it is; and the client has it all the same, to try again.
    pub refused_whole: bool,
}

impl InFlight {
    /// Whether the resource is gone once this is taken.
    pub fn withdraws(&self, name: &str) -> bool {
        self.removed.iter().any(|removed| **removed == *name)
            || (self.replaces_all && !self.resources.iter().any(|resource| *resource.name == *name))
    }
}

/// Part of a refused response, to be sent by itself.
#[derive(Debug, Clone)]
pub(super) enum Suspect {
    Resource(Arc<Resource>),
    Removed(Vec<Arc<str>>),
}

/// What has become of an answer.
#[derive(Debug)]
pub(super) enum Settled {
    /// It answers nothing that is on its way.
    Unknown,
    /// Nothing to tell: taken, or refused and now sent in parts.
    Done,
    /// These are refused.
    Refused(Vec<Arc<str>>),
}

#[derive(Debug, Default)]
pub(super) struct KindState {
    /// Asked for at least once.
    pub seen: bool,
    /// The client came with resources from an earlier stream.
    pub resumed: bool,
    /// Every resource is asked for.
    pub wildcard: bool,
    /// Resources asked for by name.
    pub names: BTreeSet<Arc<str>>,
    pub held: BTreeMap<Arc<str>, Held>,
    pub in_flight: Option<InFlight>,
    /// Of the last response; 0 before the first.
    pub last_nonce: u64,
    /// To be sent whether or not the client has it.
    pub resend: BTreeSet<Arc<str>>,
    /// Asked for by name, and told that there is none.
    pub absent: BTreeSet<Arc<str>>,
    /// Not sent again in this version.
    pub rejected: BTreeMap<Arc<str>, Version>,
    /// The whole kind, where the protocol knows nothing smaller; not sent again in this version.
    pub rejected_set: Option<Version>,
    pub suspects: VecDeque<Suspect>,
    /// The client waits for an answer, even one without resources.
    pub owes_reply: bool,
    pub applied: Option<Revision>,
}

impl KindState {
    /// Whether the client asks for this resource.
    pub fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Whether the client has this resource in this version.
    pub fn has(&self, resource: &Resource) -> bool {
        self.held.get(&resource.name).is_some_and(|held| held.version == Some(resource.version))
    }

    /// Whether the client has refused this resource in this version.
    pub fn has_rejected(&self, resource: &Resource) -> bool {
        self.rejected.get(&resource.name) == Some(&resource.version)
    }

    /// Whether anything is refused still.
    pub fn refuses(&self) -> bool {
        !self.rejected.is_empty() || self.rejected_set.is_some()
    }

    /// The version of all that the client has once it has taken these.
    pub fn version_after(&self, resources: &[Arc<Resource>], replaces_all: bool) -> Version {
        if replaces_all {
            return set_version(resources);
        }
        let mut versions: BTreeMap<&str, Version> = BTreeMap::new();
        for (name, held) in &self.held {
            if let Some(version) = held.version {
                versions.insert(name, version);
            }
        }
        versions.extend(resources.iter().map(|resource| (&*resource.name, resource.version)));
        Version::of_set(versions)
    }

    /// Notes that a push is on its way.
    pub fn sent(&mut self, push: &Push) {
        self.owes_reply = false;
        for resource in &push.resources {
            self.resend.remove(&resource.name);
            self.absent.remove(&resource.name);
        }
        if push.is_suspect {
            self.suspects.pop_front();
        }
    }

    /// Takes back that the client has everything of this revision: it has asked for more since.
    pub fn reopen(&mut self, revision: Revision) {
        if self.applied >= Some(revision) {
            self.applied = None;
        }
    }

    /// Drops notes that a newer target has made void.
    pub fn forget_outdated(&mut self, kind: ResourceType, target: &ResourceSet) {
        self.rejected.retain(|name, version| target.get(kind, name).is_some_and(|now| now.version == *version));
        self.resend.retain(|name| target.get(kind, name).is_some());
    }

    /// The client asks for these by name, in addition.
    pub fn add_names(&mut self, names: impl IntoIterator<Item = String>, again: bool) {
        for name in names {
            let name: Arc<str> = name.into();
            // A client that asks again for what it has may have lost it.
            if again && self.held.contains_key(&name) {
                self.resend.insert(Arc::clone(&name));
            }
            self.absent.remove(&name);
            self.rejected.remove(&name);
            self.names.insert(name);
        }
    }

    /// The client no longer wants this name.
    pub fn drop_name(&mut self, name: &str) {
        self.names.remove(name);
        self.absent.remove(name);
        if !self.wildcard {
            self.drop_held(name);
        }
    }

    /// The client no longer wants everything.
    pub fn drop_wildcard(&mut self) {
        self.wildcard = false;
        let unnamed: Vec<_> = self.held.keys().filter(|name| !self.names.contains(*name)).cloned().collect();
        for name in unnamed {
            self.drop_held(&name);
        }
    }

    fn drop_held(&mut self, name: &str) {
        self.held.remove(name);
        self.resend.remove(name);
        self.rejected.remove(name);
    }

    /// Takes the answer to what is on its way.
    pub fn settle(&mut self, nonce: &str, refused: bool) -> Settled {
        let Some(sent) = self.in_flight.take_if(|sent| sent.nonce.to_string() == nonce) else {
            return Settled::Unknown;
        };
        if refused {
            return self.refuse(sent);
        }
        if sent.replaces_all {
            self.held.clear();
            self.rejected_set = None;
        }
        if sent.completes {
            self.applied = Some(sent.revision);
        }
        for resource in sent.resources {
            if self.covers(&resource.name) {
                let held = Held { version: Some(resource.version), resource: Some(Arc::clone(&resource)) };
                self.rejected.remove(&resource.name);
                self.held.insert(Arc::clone(&resource.name), held);
            }
        }
        self.note_removed(sent.removed);
        Settled::Done
    }

    fn note_removed(&mut self, removed: Vec<Arc<str>>) {
        for name in removed {
            self.held.remove(&name);
            if self.names.contains(&name) {
                self.absent.insert(name);
            }
        }
    }

    /// A refused response with several parts is sent again part by part: those without fault must not suffer.
    fn refuse(&mut self, sent: InFlight) -> Settled {
        if sent.replaces_all {
            let changed = sent.resources.iter().filter(|resource| !self.has(resource));
            let names = changed.map(|resource| Arc::clone(&resource.name)).collect();
            self.rejected_set = Some(set_version(&sent.resources));
            return Settled::Refused(names);
        }
        let parts = sent.resources.len() + usize::from(!sent.removed.is_empty());
        if parts > 1 && !sent.refused_whole {
            self.suspects.extend(sent.resources.into_iter().map(Suspect::Resource));
            if !sent.removed.is_empty() {
                self.suspects.push_back(Suspect::Removed(sent.removed));
            }
            return Settled::Done;
        }
        let names = sent.resources.iter().map(|resource| &resource.name).chain(&sent.removed).cloned().collect();
        for resource in sent.resources {
            self.rejected.insert(Arc::clone(&resource.name), resource.version);
            if sent.refused_whole {
                let held = Held { version: Some(resource.version), resource: Some(Arc::clone(&resource)) };
                self.held.insert(Arc::clone(&resource.name), held);
            }
        }
        // There is no second way to say that something is gone.
        self.note_removed(sent.removed);
        Settled::Refused(names)
    }
}

pub(super) fn set_version(resources: &[Arc<Resource>]) -> Version {
    Version::of_set(resources.iter().map(|resource| (&*resource.name, resource.version)))
}
