//! What the native data plane of this node serves from: one snapshot per workload, and slots for what they share.
//!
//! A request finds its workload's [`Workload`], and in it the slot of the service that it calls; what it loads from the slot
//! is in force from that moment. Endpoints and intentions change most and are shared by the workloads of a node, so a change
//! of one is one swap, whatever the number of workloads; everything else is a plan made anew for those that it concerns.
//! Intentions have one slot for the whole node: those that change together are in force together.
//! Cost model: endpoints cost their rebuilding and a swap, an intention entry its compilation and a swap, and workloads that
//! share them nothing each; any other change a plan per workload concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_catalog::{MeshRead, Subject};
use starling_model::{InstanceId, InstanceKey, ServiceName};
use starling_plan::{Endpoints, EndpointsKey, MeshSettings, Planner};
pub use starling_proxy::{Slot, Workload};
use starling_traffic::PolicyTable;

/// Every workload of the node that has no proxy of its own.
pub struct NativePlane {
    planner: Planner,
    entries: BTreeMap<InstanceId, Entry>,
    endpoints: BTreeMap<EndpointsKey, Arc<Slot<Endpoints>>>,
    /// Whose endpoints have instances of a service in them, failover included.
    targets: BTreeMap<ServiceName, BTreeSet<EndpointsKey>>,
    policies: Arc<Slot<PolicyTable>>,
    /// Which workloads depend on it. Shared with those who are told of a change.
    by_subject: BTreeMap<Subject, Arc<BTreeSet<InstanceId>>>,
    /// Workloads that wait for something.
    waiting: usize,
    /// Whether the subjects are others than when last asked.
    moved: bool,
}

/// Whom a change concerns; if those are the same as for one subject, nothing is copied.
#[derive(Default)]
struct Concerned(Arc<BTreeSet<InstanceId>>);

impl Concerned {
    fn add(&mut self, ids: &Arc<BTreeSet<InstanceId>>) {
        if self.0.is_empty() {
            self.0 = Arc::clone(ids);
        } else if !Arc::ptr_eq(&self.0, ids) && !ids.is_subset(&self.0) {
            Arc::make_mut(&mut self.0).extend(ids.iter().cloned());
        }
    }
}

struct Entry {
    key: InstanceKey,
    /// What its plan was read from.
    subjects: BTreeSet<Subject>,
    /// Something that its newest plan depends on has not been heard of.
    waits: bool,
    /// What it serves; of an earlier plan while it waits, `None` if there was none.
    workload: Option<Arc<Workload>>,
}

impl NativePlane {
    /// No workloads yet.
    #[must_use]
    pub fn new(settings: MeshSettings) -> Self {
        let policies = PolicyTable::new(settings.default_intention_action);
        Self {
            planner: Planner::new(settings),
            entries: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            targets: BTreeMap::new(),
            policies: Arc::new(Slot::new(Arc::new(policies))),
            by_subject: BTreeMap::new(),
            waiting: 0,
            moved: false,
        }
    }

    /// The workloads that are served, by identifier.
    pub fn workloads(&self) -> impl Iterator<Item = (&InstanceId, &Arc<Workload>)> {
        self.entries.iter().filter_map(|(id, entry)| Some((id, entry.workload.as_ref()?)))
    }

    /// Every subject that the workloads depend on.
    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.by_subject.keys()
    }

    /// Whether [`NativePlane::subjects`] has changed since this was last asked.
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Puts in force what `touched` changed, and answers with the workloads concerned. One that depends on something
    /// that `known` says was never heard of keeps what it has.
    pub fn apply(
        &mut self,
        mesh: &dyn MeshRead,
        touched: &BTreeSet<Subject>,
        known: &dyn Fn(&Subject) -> bool,
    ) -> Arc<BTreeSet<InstanceId>> {
        let mut concerned = Concerned::default();
        let mut anew = BTreeSet::new();
        self.set_intentions(mesh, touched.iter());
        for subject in touched {
            if let Subject::Instance(key) = subject {
                concerned.add(&Arc::new(BTreeSet::from([key.id.clone()])));
                anew.insert(key.clone());
            }
            let Some(ids) = self.by_subject.get(subject).cloned() else { continue };
            let swapped = self.swap(mesh, subject);
            if !swapped || self.waiting > 0 {
                let waits = |entry: &&Entry| !swapped || entry.waits;
                let entries = ids.iter().filter_map(|id| self.entries.get(id));
                anew.extend(entries.filter(waits).map(|entry| entry.key.clone()));
            }
            concerned.add(&ids);
        }
        for key in anew {
            self.replan(mesh, key, known);
        }
        concerned.0
    }

    /// Puts in force every intention among `subjects` that a workload depends on, in one swap.
    fn set_intentions<'a>(&self, mesh: &dyn MeshRead, subjects: impl Iterator<Item = &'a Subject>) {
        let mut table = None;
        for subject in subjects.filter(|subject| self.by_subject.contains_key(subject)) {
            if let Subject::Intentions(destination) = subject {
                let table = table.get_or_insert_with(|| PolicyTable::clone(&self.policies.peek()));
                table.set(destination, mesh.intentions(destination));
            }
        }
        if let Some(table) = table {
            self.policies.store(Arc::new(table));
        }
    }

    /// Swaps the shared parts that a subject is read by; whether that is all there is to do.
    fn swap(&mut self, mesh: &dyn MeshRead, subject: &Subject) -> bool {
        match subject {
            // Whether a service exists at all decides nothing but what is said of it.
            Subject::Endpoints(service) | Subject::Service(service) => {
                let mut known = true;
                for key in self.targets.get(service).into_iter().flatten() {
                    let Some(slot) = self.endpoints.get(key) else { continue };
                    let (target, from) = key;
                    let (part, origin) = self.planner.endpoints(mesh, target, from.as_ref());
                    slot.store(part);
                    known &= origin.subjects().all(|subject| self.by_subject.contains_key(subject));
                }
                known
            }
            // All of them were set at once.
            Subject::Intentions(_) => true,
            Subject::Routing(_)
            | Subject::Origins(_)
            | Subject::ServicesOutside
            | Subject::Destinations(_)
            | Subject::ProxyDefaults
            | Subject::Roots
            | Subject::Node(_)
            | Subject::Instance(_)
            | Subject::Servers
            | Subject::ServiceList
            | Subject::NodeList
            | Subject::CheckList
            | Subject::ConfigList(_)
            | Subject::Kv(_)
            | Subject::KvFolder(_)
            | Subject::Session(_)
            | Subject::NodeSessions(_)
            | Subject::SessionList
            | Subject::Access => false,
        }
    }

    fn replan(&mut self, mesh: &dyn MeshRead, key: InstanceKey, known: &dyn Fn(&Subject) -> bool) {
        let before = self.entries.remove(&key.id);
        self.waiting -= usize::from(before.as_ref().is_some_and(|entry| entry.waits));
        let left = before.as_ref().map(|entry| entry.subjects.clone()).unwrap_or_default();
        let planned = self.planner.plan(mesh, &key);
        let mut subjects = planned.as_ref().map(|planned| planned.subjects.clone()).unwrap_or_default();
        let waits = planned.is_ok() && !subjects.iter().all(known);
        if waits && before.as_ref().is_some_and(|entry| entry.workload.is_some()) {
            // It serves what it has until then, denials included.
            subjects.extend(left.iter().cloned());
        }
        for subject in left.difference(&subjects) {
            self.leave(subject, &key.id);
        }
        let mut fresh = Vec::new();
        for subject in subjects.difference(&left) {
            let ids = self.by_subject.entry(subject.clone()).or_default();
            if ids.is_empty() {
                fresh.push(subject);
            }
            Arc::make_mut(ids).insert(key.id.clone());
        }
        self.moved |= !fresh.is_empty();
        self.set_intentions(mesh, fresh.into_iter());
        // An application, or one that is gone.
        let Ok(planned) = planned else { return };
        let workload = if waits {
            before.and_then(|entry| entry.workload)
        } else {
            let plan = planned.plan;
            let endpoints = plan.endpoints.iter().map(|part| self.slot(part)).collect();
            Some(Arc::new(Workload::new(plan, endpoints, Arc::clone(&self.policies))))
        };
        self.waiting += usize::from(waits);
        self.entries.insert(key.id.clone(), Entry { key, subjects, waits, workload });
    }

    /// The slot of a part, with the part in it.
    fn slot(&mut self, part: &Arc<Endpoints>) -> Arc<Slot<Endpoints>> {
        let key = part.key();
        for service in part.services() {
            let targets = self.targets.entry(service.clone()).or_default();
            // What no workload calls any more is held here alone.
            let endpoints = &mut self.endpoints;
            targets.retain(|it| {
                let called = endpoints.get(it).is_some_and(|slot| Arc::strong_count(slot) > 1);
                if !called {
                    endpoints.remove(it);
                }
                called
            });
            targets.insert(key.clone());
        }
        let slot = self.endpoints.entry(key).or_insert_with(|| Arc::new(Slot::new(Arc::clone(part))));
        slot.store(Arc::clone(part));
        Arc::clone(slot)
    }

    fn leave(&mut self, subject: &Subject, id: &InstanceId) {
        let Some(ids) = self.by_subject.get_mut(subject) else { return };
        Arc::make_mut(ids).remove(id);
        if !ids.is_empty() {
            return;
        }
        self.by_subject.remove(subject);
        self.moved = true;
        if let Subject::Endpoints(service) = subject {
            // Those that have it for their failover alone are planned anew: what they fail over to was written anew.
            let keys = self.targets.remove(service).into_iter().flatten();
            for key in keys.filter(|(target, _)| target.service == *service) {
                self.endpoints.remove(&key);
            }
        } else if let Subject::Intentions(destination) = subject {
            let mut table = PolicyTable::clone(&self.policies.peek());
            table.set(destination, None);
            self.policies.store(Arc::new(table));
        }
    }
}

#[cfg(test)]
mod tests;
