//! What the engine is given to serve: one workload's plan, and slots for what changes most.
//!
//! A request loads what it needs from the slots when it needs it, so a swap is in force for the next request of every
//! connection, and costs the workloads that share the slot nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use arc_swap::{ArcSwap, Guard};
use starling_model::{Action, ServiceName};
use starling_plan::{Cluster, Endpoints, Exit, Limits, Origins, Plan};
use starling_traffic::PolicyTable;

use crate::bucket::Bucket;
use crate::keys::Keys;
use crate::quota::Usage;

/// A part that is swapped in place; whoever holds the slot sees the newest.
#[derive(Debug)]
pub struct Slot<T>(ArcSwap<T>);

impl<T> Slot<T> {
    /// Holds `part`.
    #[must_use]
    pub fn new(part: Arc<T>) -> Self {
        Self(ArcSwap::new(part))
    }

    /// What is in force, to be kept.
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// What is in force, to be looked at; cheaper than [`Slot::load`].
    #[must_use]
    pub fn peek(&self) -> Guard<Arc<T>> {
        self.0.load()
    }

    /// Puts `part` in force.
    pub fn store(&self, part: Arc<T>) {
        self.0.store(part);
    }
}

/// One workload's snapshot.
#[derive(Debug)]
pub struct Workload {
    /// Its plan, as of its last making; endpoints and policies may be newer in the slots.
    pub plan: Plan,
    /// Where each service that it calls is; by position as in [`Plan::endpoints`].
    pub endpoints: Vec<Arc<Slot<Endpoints>>>,
    /// Who may call it: look up the service of the plan's inbound part. What stands in the plan may be older.
    pub policies: Arc<Slot<PolicyTable>>,
    /// What is under way towards each, where that is limited; by position as in [`Plan::clusters`].
    pub(crate) usage: Vec<Option<Arc<Usage>>>,
    /// What it has let through, where the plan limits that.
    pub(crate) bucket: Arc<Bucket>,
    /// What there is for each service for which it stands, by position as in [`Plan::exits`]; `None` without a certificate.
    pub(crate) exits: Vec<Option<ExitState>>,
}

/// What a gateway has for one service for which it stands.
#[derive(Debug, Clone)]
pub(crate) struct ExitState {
    pub(crate) keys: Arc<Keys>,
    pub(crate) origins: Arc<Slot<Origins>>,
    pub(crate) policies: Arc<Slot<PolicyTable>>,
    /// Connections of callers, to all workers.
    pub(crate) connections: Arc<AtomicU32>,
    pub(crate) bucket: Arc<Bucket>,
}

impl Workload {
    /// A workload of parts that others share.
    #[must_use]
    pub fn new(plan: Plan, endpoints: Vec<Arc<Slot<Endpoints>>>, policies: Arc<Slot<PolicyTable>>) -> Self {
        let usage = usage(None, &plan);
        Self { plan, endpoints, policies, usage, bucket: Arc::default(), exits: Vec::new() }
    }

    /// A workload by itself, every part as its plan has it. Slots are those of `before`, so that its connections to
    /// services that it still calls are kept.
    #[must_use]
    pub fn following(before: Option<&Self>, plan: Plan) -> Self {
        let slot = |part: &Arc<Endpoints>| {
            let old = before.and_then(|before| {
                let (old, target) = (&before.plan.endpoints, (&part.service, &part.subset));
                let place = old.binary_search_by(|old| (&old.service, &old.subset).cmp(&target)).ok()?;
                before.endpoints.get(place).filter(|_| old[place].cluster == part.cluster)
            });
            match old {
                Some(slot) => {
                    slot.store(Arc::clone(part));
                    Arc::clone(slot)
                }
                None => Arc::new(Slot::new(Arc::clone(part))),
            }
        };
        let endpoints = plan.endpoints.iter().map(slot).collect();
        let refuse = || PolicyTable::new(Action::Deny);
        let table = plan.inbound.as_ref().map_or_else(refuse, |inbound| PolicyTable::of_policy(&inbound.policy));
        let bucket = before.map(|before| Arc::clone(&before.bucket)).unwrap_or_default();
        let usage = usage(before, &plan);
        Self { plan, endpoints, policies: Arc::new(Slot::new(Arc::new(table))), usage, bucket, exits: Vec::new() }
    }

    /// The same with the certificates of the services for which it stands. What is counted and kept of `before` stays.
    #[must_use]
    pub fn standing_for(mut self, before: Option<&Self>, keys: &BTreeMap<ServiceName, Arc<Keys>>) -> Self {
        let state = |(exit, origins): (&Arc<Exit>, &Arc<Origins>)| {
            let keys = Arc::clone(keys.get(&exit.service)?);
            let table = Arc::new(PolicyTable::of_policy(&exit.policy));
            let old = before.and_then(|before| {
                let place = before.plan.exits.binary_search_by(|old| old.target().cmp(&exit.target())).ok()?;
                before.exits.get(place)?.clone()
            });
            let Some(old) = old else {
                let (origins, policies) = (Arc::new(Slot::new(Arc::clone(origins))), Arc::new(Slot::new(table)));
                return Some(ExitState {
                    keys,
                    origins,
                    policies,
                    connections: Arc::default(),
                    bucket: Arc::default(),
                });
            };
            old.origins.store(Arc::clone(origins));
            old.policies.store(table);
            Some(ExitState { keys, ..old })
        };
        self.exits = self.plan.exits.iter().zip(&self.plan.origins).map(state).collect();
        self
    }
}

/// Counts for the clusters that have limits; what is under way stays counted.
fn usage(before: Option<&Workload>, plan: &Plan) -> Vec<Option<Arc<Usage>>> {
    let count = |cluster: &Arc<Cluster>| {
        let is_limited = cluster.limits != Limits::default();
        let old = before.and_then(|before| {
            let place = before
                .plan
                .clusters
                .binary_search_by(|old| (&old.service, &old.subset).cmp(&(&cluster.service, &cluster.subset)))
                .ok()?;
            before.usage[place].clone()
        });
        is_limited.then(|| old.unwrap_or_default())
    };
    plan.clusters.iter().map(count).collect()
}
