//! The mesh, read by somebody who notes what is read, so that subscriptions and memos follow from reading and are never
//! declared.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use starling_catalog::{Front, MeshRead, Subject};
use starling_model::{
    IngressGateway, InstanceKey, IntentionSubject, Protocol, ProxyDefaults, Revision, ServiceDefaults, ServiceInstance,
    ServiceIntentions, ServiceName, ServiceResolver, ServiceRouter, ServiceSplitter, TerminatingGateway,
};

/// The mesh and the subjects read from it so far.
pub(crate) struct View<'a> {
    mesh: &'a dyn MeshRead,
    read: BTreeSet<Subject>,
}

impl<'a> View<'a> {
    pub(crate) fn new(mesh: &'a dyn MeshRead) -> Self {
        Self { mesh, read: BTreeSet::new() }
    }

    /// The subjects read, each with the revision at which it was read.
    pub(crate) fn into_read(self) -> Vec<(Subject, Revision)> {
        let mesh = self.mesh;
        self.read.into_iter().map(|subject| (subject.clone(), mesh.subject_revision(&subject))).collect()
    }

    /// An instance and its node's address.
    pub(crate) fn instance(&mut self, key: &InstanceKey) -> Option<(&'a ServiceInstance, Option<&'a str>)> {
        self.read.insert(Subject::Instance(key.clone()));
        let instance = self.mesh.instance(key)?;
        Some((instance, self.mesh.node_address(&key.node)))
    }

    /// Shows each sidecar and native instance of a service, in no order.
    pub(crate) fn visit_fronts(&mut self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        self.read.insert(Subject::Endpoints(service.clone()));
        self.mesh.visit_fronts(service, visit);
    }

    /// Shows each instance of a service outside the mesh, in no order.
    pub(crate) fn visit_origins(&mut self, service: &ServiceName, visit: &mut dyn FnMut(&Front)) {
        self.read.insert(Subject::Origins(service.clone()));
        self.mesh.visit_origins(service, visit);
    }

    /// The services that have nobody in the mesh, in order.
    pub(crate) fn services_outside(&mut self) -> Vec<ServiceName> {
        self.read.insert(Subject::ServicesOutside);
        let mut services = Vec::new();
        self.mesh.visit_services_outside(&mut |service| services.push(service.clone()));
        services
    }

    /// Whether any instance bears this name.
    pub(crate) fn has_instances(&mut self, service: &ServiceName) -> bool {
        self.read.insert(Subject::Service(service.clone()));
        self.mesh.has_instances(service)
    }

    pub(crate) fn service_defaults(&mut self, service: &ServiceName) -> Option<&'a ServiceDefaults> {
        self.read.insert(Subject::Routing(service.clone()));
        self.mesh.service_defaults(service)
    }

    pub(crate) fn service_router(&mut self, service: &ServiceName) -> Option<&'a ServiceRouter> {
        self.read.insert(Subject::Routing(service.clone()));
        self.mesh.service_router(service)
    }

    pub(crate) fn service_splitter(&mut self, service: &ServiceName) -> Option<&'a ServiceSplitter> {
        self.read.insert(Subject::Routing(service.clone()));
        self.mesh.service_splitter(service)
    }

    pub(crate) fn service_resolver(&mut self, service: &ServiceName) -> Option<&'a ServiceResolver> {
        self.read.insert(Subject::Routing(service.clone()));
        self.mesh.service_resolver(service)
    }

    /// Whether those near the caller are called before the others.
    pub(crate) fn prefers_near(&mut self, service: &ServiceName) -> bool {
        self.read.extend([Subject::Routing(service.clone()), Subject::ProxyDefaults]);
        self.mesh.prefers_near(service)
    }

    /// What the gateways of one name let in.
    pub(crate) fn ingress_gateway(&mut self, gateway: &ServiceName) -> Option<&'a IngressGateway> {
        self.read.insert(Subject::Routing(gateway.clone()));
        self.mesh.ingress_gateway(gateway)
    }

    /// What the gateways of one name stand for.
    pub(crate) fn terminating_gateway(&mut self, gateway: &ServiceName) -> Option<&'a TerminatingGateway> {
        self.read.insert(Subject::Routing(gateway.clone()));
        self.mesh.terminating_gateway(gateway)
    }

    /// Whether captured calls to what is no service of the mesh are refused.
    pub(crate) fn mesh_destinations_only(&mut self) -> bool {
        self.read.insert(Subject::ProxyDefaults);
        self.mesh.mesh_entry().is_some_and(|entry| entry.mesh_destinations_only)
    }

    pub(crate) fn proxy_defaults(&mut self) -> Option<&'a ProxyDefaults> {
        self.read.insert(Subject::ProxyDefaults);
        self.mesh.proxy_defaults()
    }

    /// What a service speaks: service-defaults, else proxy-defaults, else TCP.
    pub(crate) fn protocol(&mut self, service: &ServiceName) -> Protocol {
        self.read.extend([Subject::Routing(service.clone()), Subject::ProxyDefaults]);
        self.mesh.protocol(service)
    }

    /// The intentions that apply to calls of `service`: those written for it, then those written for `*`.
    pub(crate) fn intentions_covering(&mut self, service: &ServiceName) -> Vec<&'a ServiceIntentions> {
        let written_for = [IntentionSubject::Service(service.clone()), IntentionSubject::Any];
        let entries = written_for.iter().filter_map(|destination| self.mesh.intentions(destination)).collect();
        self.read.extend(written_for.map(Subject::Intentions));
        entries
    }

    /// The services whose own intentions allow `source` by name, in order.
    pub(crate) fn destinations(&mut self, source: &ServiceName) -> Vec<ServiceName> {
        self.read.insert(Subject::Destinations(source.clone()));
        let mut destinations = Vec::new();
        self.mesh.visit_destinations(source, &mut |service| destinations.push(service.clone()));
        destinations
    }

    /// The virtual address of a service.
    pub(crate) fn virtual_address(&mut self, service: &ServiceName) -> Option<Ipv4Addr> {
        self.read.insert(Subject::Routing(service.clone()));
        self.mesh.virtual_address(service)
    }

    /// Trusted roots in PEM, the active one first.
    pub(crate) fn roots_pem(&mut self) -> Vec<String> {
        self.read.insert(Subject::Roots);
        self.mesh.roots_pem().into_iter().map(str::to_owned).collect()
    }
}
