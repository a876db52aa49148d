//! What is due, and what must wait for something else to be there or to be gone first.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind_state::{Held, KindState, Suspect, set_version};
use super::{AdsSession, Flavour, RESPONSE_BYTES_MAX};
use crate::resource::{Resource, ResourceType};

/// What could be sent of one kind now.
#[derive(Debug, Default)]
pub(super) struct Push {
    pub resources: Vec<Arc<Resource>>,
    pub removed: Vec<Arc<str>>,
    /// It is to be sent.
    pub is_due: bool,
    /// There is more than this, to follow later.
    pub waits: bool,
    /// It is the first of the suspects.
    pub is_suspect: bool,
}

/// Whether something may be withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Withdrawal {
    /// Nothing leads to it.
    Free,
    /// What leads to it is about to be replaced.
    Waits,
    /// What leads to it stays, because its replacement was refused.
    Kept,
}

impl AdsSession {
    pub(super) fn push(&mut self, kind: ResourceType) -> Push {
        if let Some(push) = self.suspect_push(kind) {
            return push;
        }
        match self.flavour {
            Flavour::Sotw if kind.is_full_state() => self.full_push(kind),
            Flavour::Delta | Flavour::Sotw => self.incremental_push(kind),
        }
    }

    /// State of the world has no way to say that a route or an assignment is gone: it ends with what led to it.
    pub(super) fn forget_unsayable(&mut self) {
        for kind in ResourceType::ALL.into_iter().filter(|kind| !kind.is_full_state()) {
            let held = self.kinds[kind.index()].held.keys();
            let gone: Vec<_> = held.filter(|name| self.target.get(kind, name).is_none()).cloned().collect();
            for name in gone {
                if self.withdrawal(kind, &name) == Withdrawal::Free {
                    self.kinds[kind.index()].held.remove(&name);
                }
            }
        }
    }

    /// The first part of a refused response that is still wanted, by itself.
    fn suspect_push(&mut self, kind: ResourceType) -> Option<Push> {
        let target = Arc::clone(&self.target);
        let state = &mut self.kinds[kind.index()];
        while let Some(suspect) = state.suspects.front().cloned() {
            let mut push = Push { is_due: true, waits: true, is_suspect: true, ..Push::default() };
            match suspect {
                Suspect::Resource(resource) => {
                    let current = target.get(kind, &resource.name).is_some_and(|now| now.version == resource.version);
                    if current && state.covers(&resource.name) {
                        push.resources.push(resource);
                    }
                }
                Suspect::Removed(names) => {
                    let gone = names.into_iter().filter(|name| target.get(kind, name).is_none());
                    push.removed.extend(gone.filter(|name| state.held.contains_key(name) || state.covers(name)));
                }
            }
            if !push.resources.is_empty() || !push.removed.is_empty() {
                return Some(push);
            }
            state.suspects.pop_front();
        }
        None
    }

    /// What the client lacks.
    fn incremental_push(&self, kind: ResourceType) -> Push {
        let state = &self.kinds[kind.index()];
        let mut push = Push::default();
        let mut bytes = 0;
        for resource in self.target.of_kind(kind) {
            let has = state.has(resource);
            let due = !has || state.resend.contains(&resource.name);
            if !due || !state.covers(&resource.name) || state.has_rejected(resource) {
                continue;
            }
            if !has && !self.may_come(resource) {
                push.waits = true;
                continue;
            }
            bytes += resource.encoded_len();
            if bytes > RESPONSE_BYTES_MAX && !push.resources.is_empty() {
                push.waits = true;
                break;
            }
            push.resources.push(Arc::clone(resource));
        }
        if self.flavour == Flavour::Delta {
            self.add_removed(kind, &mut push);
        }
        let empty = push.resources.is_empty() && push.removed.is_empty();
        push.is_due = !empty || (state.owes_reply && !push.waits);
        push
    }

    fn add_removed(&self, kind: ResourceType, push: &mut Push) {
        let state = &self.kinds[kind.index()];
        for name in state.held.keys().filter(|name| self.target.get(kind, name).is_none()) {
            match self.withdrawal(kind, name) {
                Withdrawal::Free => push.removed.push(Arc::clone(name)),
                Withdrawal::Waits => push.waits = true,
                Withdrawal::Kept => {}
            }
        }
        for name in &state.names {
            let known = state.absent.contains(name) || state.held.contains_key(name);
            if !known && self.target.get(kind, name).is_none() {
                push.removed.push(Arc::clone(name));
            }
        }
    }

    /// The whole kind, as far as it may be there now.
    fn full_push(&self, kind: ResourceType) -> Push {
        let state = &self.kinds[kind.index()];
        let mut push = Push::default();
        let mut list: BTreeMap<&Arc<str>, &Arc<Resource>> = BTreeMap::new();
        for resource in self.target.of_kind(kind).iter().filter(|resource| state.covers(&resource.name)) {
            if state.has(resource) || self.may_come(resource) {
                list.insert(&resource.name, resource);
                continue;
            }
            match state.held.get(&resource.name) {
                None => push.waits = true,
                Some(Held { resource: Some(old), .. }) => {
                    push.waits = true;
                    list.insert(&old.name, old);
                }
                // Its old form is not known any more, and leaving it out would withdraw it.
                Some(Held { resource: None, .. }) => {
                    list.insert(&resource.name, resource);
                }
            }
        }
        for (name, held) in state.held.iter().filter(|(name, _)| self.target.get(kind, name).is_none()) {
            let Some(old) = &held.resource else { continue };
            match self.withdrawal(kind, name) {
                Withdrawal::Free => continue,
                Withdrawal::Waits => push.waits = true,
                Withdrawal::Kept => {}
            }
            list.insert(name, old);
        }
        push.resources = list.into_values().cloned().collect();
        // Of a whole that it refused the client may have taken parts, so what it had before is news to it, too.
        let undone = state.rejected_set.is_some() && !push.waits;
        let differs =
            push.resources.len() != state.held.len() || push.resources.iter().any(|resource| !state.has(resource));
        let changed = differs || undone;
        let refused = state.rejected_set == Some(set_version(&push.resources));
        let first = state.owes_reply && !(push.resources.is_empty() && push.waits);
        push.is_due = (changed || first) && !refused;
        push
    }

    /// Whether the client has everything to which this resource leads, and the newest form of what leads to it.
    fn may_come(&self, resource: &Resource) -> bool {
        if resource.kind == ResourceType::Endpoints && self.awaits_cluster(&resource.name) {
            return false;
        }
        resource.clusters.iter().all(|name| self.has_cluster(name))
    }

    /// Whether a newer form of the cluster is still to be sent. Endpoints that came before it would not count for it.
    fn awaits_cluster(&self, name: &str) -> bool {
        let clusters = &self.kinds[ResourceType::Cluster.index()];
        let Some(cluster) = self.target.get(ResourceType::Cluster, name) else { return false };
        let is_known = clusters.has(cluster) || clusters.has_rejected(cluster) || clusters.rejected_set.is_some();
        let mut sent = clusters.in_flight.iter().flat_map(|sent| &sent.resources);
        clusters.covers(name)
            && !is_known
            && !sent.any(|sent| sent.name == cluster.name && sent.version == cluster.version)
    }

    /// Whether the client has the cluster and its endpoints, or never will.
    fn has_cluster(&self, name: &str) -> bool {
        let clusters = &self.kinds[ResourceType::Cluster.index()];
        if !clusters.covers(name) {
            return true;
        }
        let Some(cluster) = self.target.get(ResourceType::Cluster, name) else { return true };
        if clusters.in_flight.as_ref().is_some_and(|sent| sent.withdraws(name)) {
            return false;
        }
        if !clusters.held.contains_key(name) {
            return clusters.has_rejected(cluster) || clusters.rejected_set.is_some();
        }
        cluster.children.iter().all(|child| {
            let state = &self.kinds[child.kind.index()];
            let Some(resource) = self.target.get(child.kind, &child.name) else { return true };
            !state.seen || state.held.contains_key(&child.name) || state.has_rejected(resource)
        })
    }

    fn withdrawal(&self, kind: ResourceType, name: &str) -> Withdrawal {
        match kind {
            ResourceType::Cluster if self.has_unknown_uses() => Withdrawal::Waits,
            ResourceType::Cluster => {
                let leads = |resource: &Resource| resource.clusters.iter().any(|cluster| **cluster == *name);
                self.in_use(ResourceType::Listener, &leads).max_with(self.in_use(ResourceType::Route, &leads))
            }
            ResourceType::Endpoints => self.in_use(ResourceType::Cluster, &|parent| is_child(parent, kind, name)),
            ResourceType::Route | ResourceType::Extension => {
                self.in_use(ResourceType::Listener, &|parent| is_child(parent, kind, name))
            }
            ResourceType::Listener | ResourceType::Secret | ResourceType::PlanPart => Withdrawal::Free,
        }
    }

    /// Whether the client comes from an earlier stream and has not yet said which listeners and routes it has.
    fn has_unknown_uses(&self) -> bool {
        if !self.kinds[ResourceType::Cluster.index()].resumed {
            return false;
        }
        let listeners = &self.kinds[ResourceType::Listener.index()];
        if !listeners.seen {
            return true;
        }
        let held = listeners.held.values().filter_map(|held| held.resource.as_deref());
        let mut children = held.flat_map(|listener| listener.children.iter());
        children.any(|child| !self.kinds[child.kind.index()].covers(&child.name))
    }

    /// Whether something of `kind` that the client has leads to what is to be withdrawn.
    fn in_use(&self, kind: ResourceType, leads: &dyn Fn(&Resource) -> bool) -> Withdrawal {
        let state = &self.kinds[kind.index()];
        let on_its_way = state.in_flight.iter().flat_map(|sent| &sent.resources).any(|resource| leads(resource));
        let mut verdict = if on_its_way { Withdrawal::Waits } else { Withdrawal::Free };
        for (name, held) in &state.held {
            let next = self.target.get(kind, name);
            if next.is_some_and(|next| held.version == Some(next.version)) {
                // It stays as it is; where it leads is its own affair.
                continue;
            }
            // Of what came over an earlier stream, and is to be replaced, nobody knows where it leads.
            if held.resource.as_deref().is_none_or(leads) {
                // What is itself kept keeps what it leads to.
                let stays =
                    is_refused(state, next) || (next.is_none() && self.withdrawal(kind, name) == Withdrawal::Kept);
                verdict = verdict.max_with(if stays { Withdrawal::Kept } else { Withdrawal::Waits });
            }
        }
        verdict
    }
}

impl Withdrawal {
    /// Waiting outweighs keeping: what is kept is looked at again when the wait is over.
    fn max_with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Waits, _) | (_, Self::Waits) => Self::Waits,
            (Self::Kept, _) | (_, Self::Kept) => Self::Kept,
            (Self::Free, Self::Free) => Self::Free,
        }
    }
}

fn is_refused(state: &KindState, next: Option<&Arc<Resource>>) -> bool {
    state.rejected_set.is_some() || next.is_some_and(|next| state.has_rejected(next))
}

fn is_child(parent: &Resource, kind: ResourceType, name: &str) -> bool {
    parent.children.iter().any(|child| child.kind == kind && *child.name == *name)
}
