//! A snapshot that notes what is read from it, so that subscriptions and memos follow from reading and are never declared.

use std::cmp::max;
use std::collections::{BTreeMap, BTreeSet};

use starling_catalog::{Snapshot, Subject};
use starling_model::{
    CheckStatus, InstanceId, InstanceKey, IntentionSubject, NodeName, Protocol, ProxyDefaults, Revision,
    ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceName,
};

/// A snapshot and the subjects read from it so far.
pub(crate) struct View<'a> {
    snapshot: &'a Snapshot,
    read: BTreeSet<Subject>,
    health: BTreeMap<NodeName, NodeHealth>,
}

/// Health on one node: the worst of its own checks, and of each instance's.
struct NodeHealth {
    own: CheckStatus,
    instances: BTreeMap<InstanceId, CheckStatus>,
}

/// An instance through which a service is reached, with the health of all that it depends on.
pub(crate) struct Front<'a> {
    pub instance: &'a ServiceInstance,
    pub node_address: Option<&'a str>,
    pub health: CheckStatus,
}

impl<'a> View<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, read: BTreeSet::new(), health: BTreeMap::new() }
    }

    /// The subjects read, each with the revision at which it was read.
    pub(crate) fn into_read(self) -> Vec<(Subject, Revision)> {
        let revision = |subject: &Subject| self.snapshot.subject_revision(subject);
        self.read.iter().map(|subject| (subject.clone(), revision(subject))).collect()
    }

    /// An instance and its node's address.
    pub(crate) fn instance(&mut self, key: &InstanceKey) -> Option<(&'a ServiceInstance, Option<&'a str>)> {
        self.read.insert(Subject::Instance(key.clone()));
        let instance = self.snapshot.instance(key)?;
        Some((&instance.value, self.node_address(&key.node)))
    }

    /// The sidecars and native instances of a service, by node and identifier.
    pub(crate) fn fronts(&mut self, service: &ServiceName) -> Vec<Front<'a>> {
        self.read.insert(Subject::Endpoints(service.clone()));
        let snapshot = self.snapshot;
        let natives = snapshot.instances_of(service).filter(|instance| instance.value.native);
        let natives = natives.filter(|instance| instance.value.sidecar().is_none());
        let fronts = snapshot.sidecars_of(service).chain(natives);
        fronts.map(|instance| self.front(&instance.value)).collect()
    }

    fn front(&mut self, instance: &'a ServiceInstance) -> Front<'a> {
        let key = &instance.key;
        let health = self.health(&key.node);
        let own = max(health.own, health.of(&key.id));
        let behind = instance.sidecar().and_then(|proxy| Some((proxy, proxy.destination_id.as_ref()?)));
        let behind = behind.map_or(CheckStatus::Passing, |(proxy, id)| {
            let behind = self.snapshot.instance(&InstanceKey { node: key.node.clone(), id: id.clone() });
            // An instance of another service has a subject of its own; its health is not this service's.
            let same = behind.is_some_and(|behind| behind.value.name == proxy.destination);
            if same { self.health(&key.node).of(id) } else { CheckStatus::Passing }
        });
        Front { instance, node_address: self.node_address(&key.node), health: max(own, behind) }
    }

    fn health(&mut self, node: &NodeName) -> &NodeHealth {
        let snapshot = self.snapshot;
        self.health.entry(node.clone()).or_insert_with(|| {
            let mut health = NodeHealth { own: CheckStatus::Passing, instances: BTreeMap::new() };
            for check in snapshot.checks_on(node) {
                let worst = match &check.value.service {
                    // Passing is what stands for no check at all; it needs no entry.
                    Some(_) if check.value.status == CheckStatus::Passing => continue,
                    Some(service) => health.instances.entry(service.id.clone()).or_insert(CheckStatus::Passing),
                    None => &mut health.own,
                };
                *worst = max(*worst, check.value.status);
            }
            health
        })
    }

    fn node_address(&self, node: &NodeName) -> Option<&'a str> {
        self.snapshot.node(node).map(|node| node.value.address.as_str())
    }

    /// Whether any instance bears this name.
    pub(crate) fn has_instances(&mut self, service: &ServiceName) -> bool {
        self.read.insert(Subject::Service(service.clone()));
        self.snapshot.instances_of(service).next().is_some()
    }

    pub(crate) fn service_defaults(&mut self, service: &ServiceName) -> Option<&'a ServiceDefaults> {
        self.read.insert(Subject::Routing(service.clone()));
        self.snapshot.service_defaults(service)
    }

    pub(crate) fn proxy_defaults(&mut self) -> Option<&'a ProxyDefaults> {
        self.read.insert(Subject::ProxyDefaults);
        self.snapshot.proxy_defaults()
    }

    /// What a service speaks: service-defaults, else proxy-defaults, else TCP.
    pub(crate) fn protocol(&mut self, service: &ServiceName) -> Protocol {
        let own = self.service_defaults(service).and_then(|entry| entry.protocol);
        own.or_else(|| self.proxy_defaults().and_then(|entry| entry.protocol)).unwrap_or_default()
    }

    pub(crate) fn intentions_covering(&mut self, service: &ServiceName) -> Vec<&'a ServiceIntentions> {
        self.read.insert(Subject::Intentions(IntentionSubject::Service(service.clone())));
        self.read.insert(Subject::Intentions(IntentionSubject::Any));
        self.snapshot.intentions_covering(service).collect()
    }

    /// Trusted roots in PEM, the active one first.
    pub(crate) fn roots_pem(&mut self) -> Vec<String> {
        self.read.insert(Subject::Roots);
        self.snapshot.roots().iter().map(|root| root.value.certificate_pem.clone()).collect()
    }
}

impl NodeHealth {
    fn of(&self, id: &InstanceId) -> CheckStatus {
        self.instances.get(id).copied().unwrap_or(CheckStatus::Passing)
    }
}
