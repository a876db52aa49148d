//! The catalog as planners read it, whether the whole of it is at hand or a replica of what concerns one node.
//!
//! Owns what a planner may ask, and what an instance looks like to those who call it. Whoever implements [`MeshRead`]
//! answers alike for equal catalogs, so plans do not depend on where they are made.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use starling_model::{
    CaRootRecord, CheckStatus, Filter, IngressGateway, IntentionSubject, Locality, LocalityMode, MeshEntry, NodeName,
    Port, Protocol, ProxyDefaults, Revision, ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, TerminatingGateway, Weights,
};
use starling_model::{ConfigEntry, InstanceKey};

use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// An instance through which a service is reached in the mesh, as its callers see it: a sidecar, a native instance, or a gateway that
/// stands for it. To such a gateway, an instance of the service outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Front {
    /// Which instance.
    pub key: InstanceKey,
    /// Its own address, or else its node's; `None` if neither is known. An IP or a host name, as registered.
    pub address: Option<String>,
    /// Where it listens; `None` where it was registered without a port.
    pub port: Option<Port>,
    /// Share of load while passing and while warning.
    pub weights: Weights,
    /// The worst of its own checks, its node's, and those of the instance behind it.
    pub health: CheckStatus,
    /// What it belongs to subsets by; `None` where nothing was registered, or its service's resolver tells none apart.
    pub marks: Option<Arc<Marks>>,
    /// Where it runs; `None` where nobody said so.
    pub locality: Option<Arc<Locality>>,
    /// Whether it is a gateway that stands for the service: it has every subset behind it.
    pub stands_in: bool,
}

/// What an instance belongs to the subsets of its service by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Marks {
    /// Its tags.
    pub tags: Vec<String>,
    /// Its metadata.
    pub meta: BTreeMap<String, String>,
}

impl Front {
    /// Whether it passes a subset's filter.
    #[must_use]
    pub fn passes(&self, filter: &Filter) -> bool {
        match &self.marks {
            _ if self.stands_in => true,
            Some(marks) => filter.admits(&marks.tags, &marks.meta),
            None => filter.admits(&[], &BTreeMap::new()),
        }
    }
}

/// What a planner reads.
pub trait MeshRead {
    /// The revision of which this is the state.
    fn revision(&self) -> Revision;

    /// When `subject` last changed; it moves whenever an answer that depends on the subject does.
    fn subject_revision(&self, subject: &Subject) -> Revision;

    /// An instance of this node; [`Subject::Instance`].
    fn instance(&self, key: &InstanceKey) -> Option<&ServiceInstance>;

    /// The address of a node; [`Subject::Instance`] of what is on it.
    fn node_address(&self, node: &NodeName) -> Option<&str>;

    /// Shows each front of a service to `visit`, once and in no order; [`Subject::Endpoints`].
    fn visit_fronts(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front));

    /// Shows each instance of a service outside the mesh to `visit`, once and in no order, if a gateway links it;
    /// [`Subject::Origins`].
    fn visit_origins(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front));

    /// Shows each service that has nobody in the mesh, in order; [`Subject::ServicesOutside`].
    fn visit_services_outside(&self, visit: &mut dyn FnMut(&ServiceName));

    /// Whether any instance bears this name; [`Subject::Service`].
    fn has_instances(&self, service: &ServiceName) -> bool;

    /// The settings of one service; [`Subject::Routing`].
    fn service_defaults(&self, service: &ServiceName) -> Option<&ServiceDefaults>;

    /// Where the requests to one service go; [`Subject::Routing`].
    fn service_router(&self, service: &ServiceName) -> Option<&ServiceRouter>;

    /// How the calls of one service are divided; [`Subject::Routing`].
    fn service_splitter(&self, service: &ServiceName) -> Option<&ServiceSplitter>;

    /// Which instances of one service are called; [`Subject::Routing`].
    fn service_resolver(&self, service: &ServiceName) -> Option<&ServiceResolver>;

    /// What the gateways of one name let in; [`Subject::Routing`].
    fn ingress_gateway(&self, gateway: &ServiceName) -> Option<&IngressGateway>;

    /// What the gateways of one name stand for; [`Subject::Routing`].
    fn terminating_gateway(&self, gateway: &ServiceName) -> Option<&TerminatingGateway>;

    /// The settings of the whole mesh; [`Subject::ProxyDefaults`].
    fn mesh_entry(&self) -> Option<&MeshEntry>;

    /// The settings of every proxy; [`Subject::ProxyDefaults`].
    fn proxy_defaults(&self) -> Option<&ProxyDefaults>;

    /// The intentions written for exactly this destination; [`Subject::Intentions`].
    fn intentions(&self, destination: &IntentionSubject) -> Option<&ServiceIntentions>;

    /// Shows each service whose own intentions allow `source` by name, in order; [`Subject::Destinations`].
    fn visit_destinations(&self, source: &ServiceName, visit: &mut dyn FnMut(&ServiceName));

    /// The virtual address of a service; [`Subject::Routing`].
    fn virtual_address(&self, service: &ServiceName) -> Option<Ipv4Addr>;

    /// Trusted roots in PEM, the active one first; [`Subject::Roots`].
    fn roots_pem(&self) -> Vec<&str>;

    /// The root under which leaves are signed; [`Subject::Roots`].
    fn signing_root(&self) -> Option<&CaRootRecord>;

    /// What a service speaks: its service-defaults, else proxy-defaults, else TCP.
    fn protocol(&self, service: &ServiceName) -> Protocol {
        let own = self.service_defaults(service).and_then(|entry| entry.protocol);
        own.or_else(|| self.proxy_defaults().and_then(|entry| entry.protocol)).unwrap_or_default()
    }

    /// Whether those near the caller are called before the others: as its resolver says, else proxy-defaults, else not;
    /// [`Subject::Routing`] and [`Subject::ProxyDefaults`].
    fn prefers_near(&self, service: &ServiceName) -> bool {
        let own = self.service_resolver(service).and_then(|entry| entry.prioritize_by_locality);
        let mode = own.or_else(|| self.proxy_defaults().and_then(|entry| entry.prioritize_by_locality));
        mode == Some(LocalityMode::Failover)
    }
}

impl MeshRead for Snapshot {
    fn revision(&self) -> Revision {
        self.revision
    }

    fn subject_revision(&self, subject: &Subject) -> Revision {
        Self::subject_revision(self, subject)
    }

    fn instance(&self, key: &InstanceKey) -> Option<&ServiceInstance> {
        Self::instance(self, key).map(|instance| &instance.value)
    }

    fn node_address(&self, node: &NodeName) -> Option<&str> {
        self.node(node).map(|node| node.value.address.as_str())
    }

    fn visit_fronts(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        let natives = self.instances_of(service).filter(|instance| is_native_front(&instance.value));
        for instance in self.sidecars_of(service).chain(natives) {
            visit(&self.as_front(&instance.value));
        }
        for instance in self.stand_ins_of(service) {
            visit(&self.as_stand_in(&instance.value));
        }
    }

    fn visit_origins(&self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        if self.is_linked(service) {
            self.instances_outside(service).for_each(|instance| visit(&self.as_front(&instance.value)));
        }
    }

    fn visit_services_outside(&self, visit: &mut dyn FnMut(&ServiceName)) {
        self.services_outside().for_each(visit);
    }

    fn has_instances(&self, service: &ServiceName) -> bool {
        self.instances_of(service).next().is_some()
    }

    fn service_defaults(&self, service: &ServiceName) -> Option<&ServiceDefaults> {
        Self::service_defaults(self, service)
    }

    fn service_router(&self, service: &ServiceName) -> Option<&ServiceRouter> {
        Self::service_router(self, service)
    }

    fn service_splitter(&self, service: &ServiceName) -> Option<&ServiceSplitter> {
        Self::service_splitter(self, service)
    }

    fn ingress_gateway(&self, gateway: &ServiceName) -> Option<&IngressGateway> {
        Self::ingress_gateway(self, gateway)
    }

    fn terminating_gateway(&self, gateway: &ServiceName) -> Option<&TerminatingGateway> {
        Self::terminating_gateway(self, gateway)
    }

    fn service_resolver(&self, service: &ServiceName) -> Option<&ServiceResolver> {
        Self::service_resolver(self, service)
    }

    fn mesh_entry(&self) -> Option<&MeshEntry> {
        Self::mesh_entry(self)
    }

    fn proxy_defaults(&self) -> Option<&ProxyDefaults> {
        Self::proxy_defaults(self)
    }

    fn intentions(&self, destination: &IntentionSubject) -> Option<&ServiceIntentions> {
        let entry = &Self::intentions(self, destination)?.value;
        if let ConfigEntry::ServiceIntentions(entry) = entry { Some(entry) } else { None }
    }

    fn visit_destinations(&self, source: &ServiceName, visit: &mut dyn FnMut(&ServiceName)) {
        self.destinations(source).for_each(visit);
    }

    fn virtual_address(&self, service: &ServiceName) -> Option<Ipv4Addr> {
        Self::virtual_address(self, service)
    }

    fn roots_pem(&self) -> Vec<&str> {
        self.roots().into_iter().map(|root| root.value.certificate_pem.as_str()).collect()
    }

    fn signing_root(&self) -> Option<&CaRootRecord> {
        self.active_root().map(|root| &root.value)
    }
}

impl Snapshot {
    /// An instance as those see it who call the service that it fronts, with that service; `None` if it is not there or
    /// fronts nothing.
    #[must_use]
    pub fn front(&self, key: &InstanceKey) -> Option<(&ServiceName, Front)> {
        let instance = &Self::instance(self, key)?.value;
        let fronts = instance.sidecar().is_some() || is_native_front(instance);
        fronts.then(|| (instance.identity(), self.as_front(instance)))
    }

    pub(crate) fn as_front(&self, instance: &ServiceInstance) -> Front {
        let key = &instance.key;
        let behind = instance.sidecar().and_then(|proxy| {
            let behind = InstanceKey { node: key.node.clone(), id: proxy.destination_id.clone()? };
            // An instance of another service has a subject of its own; its health is not this service's.
            let same = Self::instance(self, &behind).is_some_and(|behind| behind.value.name == proxy.destination);
            same.then(|| self.health(&behind).0)
        });
        let node_address = || self.node_address(&key.node).map(str::to_owned);
        let resolver = Self::service_resolver(self, instance.identity());
        Front {
            key: key.clone(),
            address: instance.address.clone().or_else(node_address),
            port: instance.port,
            weights: instance.weights,
            health: self.health(key).0.max(behind.unwrap_or(CheckStatus::Passing)),
            marks: resolver.filter(|resolver| resolver.has_filters()).and_then(|_| marks(instance)),
            locality: instance.locality.clone(),
            stands_in: false,
        }
    }
}

fn marks(instance: &ServiceInstance) -> Option<Arc<Marks>> {
    let ServiceInstance { tags, meta, .. } = instance;
    let none = tags.is_empty() && meta.is_empty();
    (!none).then(|| Arc::new(Marks { tags: tags.clone(), meta: meta.clone() }))
}

fn is_native_front(instance: &ServiceInstance) -> bool {
    instance.native && instance.sidecar().is_none()
}
