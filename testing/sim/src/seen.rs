//! What of a subject shows to a planner, as a value.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use starling_catalog::{Front, MeshRead, Subject};
use starling_model::{
    IngressGateway, InstanceKey, MeshEntry, ProxyDefaults, ServiceDefaults, ServiceIntentions, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, TerminatingGateway,
};

/// What shows of one subject.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    Fronts(BTreeMap<InstanceKey, Front>),
    Services(Vec<ServiceName>),
    HasInstances(bool),
    Routing(Box<Routing>),
    Intentions(Option<ServiceIntentions>),
    Destinations(Vec<ServiceName>),
    ProxyDefaults(Option<ProxyDefaults>, Option<MeshEntry>),
    Roots(Vec<String>),
    /// Of these only that they changed is told.
    Nothing,
}

/// How a service is called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Routing {
    defaults: Option<ServiceDefaults>,
    router: Option<ServiceRouter>,
    splitter: Option<ServiceSplitter>,
    resolver: Option<ServiceResolver>,
    gateway: Option<IngressGateway>,
    terminating: Option<TerminatingGateway>,
    virtual_address: Option<Ipv4Addr>,
}

impl Seen {
    /// What `mesh` shows of `subject`.
    pub(crate) fn of(mesh: &dyn MeshRead, subject: &Subject) -> Self {
        match subject {
            Subject::Endpoints(service) => {
                let mut fronts = BTreeMap::new();
                mesh.visit_fronts(service, &mut |front| {
                    fronts.insert(front.key.clone(), front.clone());
                });
                Self::Fronts(fronts)
            }
            Subject::Origins(service) => {
                let mut origins = BTreeMap::new();
                mesh.visit_origins(service, &mut |front| {
                    origins.insert(front.key.clone(), front.clone());
                });
                Self::Fronts(origins)
            }
            Subject::ServicesOutside => {
                let mut services = Vec::new();
                mesh.visit_services_outside(&mut |service| services.push(service.clone()));
                Self::Services(services)
            }
            Subject::Service(service) => Self::HasInstances(mesh.has_instances(service)),
            Subject::Routing(service) => Self::Routing(Box::new(Routing {
                defaults: mesh.service_defaults(service).cloned(),
                router: mesh.service_router(service).cloned(),
                splitter: mesh.service_splitter(service).cloned(),
                resolver: mesh.service_resolver(service).cloned(),
                gateway: mesh.ingress_gateway(service).cloned(),
                terminating: mesh.terminating_gateway(service).cloned(),
                virtual_address: mesh.virtual_address(service),
            })),
            Subject::Destinations(source) => {
                let mut destinations = Vec::new();
                mesh.visit_destinations(source, &mut |service| destinations.push(service.clone()));
                Self::Destinations(destinations)
            }
            Subject::Intentions(destination) => Self::Intentions(mesh.intentions(destination).cloned()),
            Subject::ProxyDefaults => Self::ProxyDefaults(mesh.proxy_defaults().cloned(), mesh.mesh_entry().cloned()),
            Subject::Roots => Self::Roots(mesh.roots_pem().into_iter().map(str::to_owned).collect()),
            Subject::Node(_)
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
            | Subject::Access => Self::Nothing,
        }
    }

    /// The fronts, if it is of such a subject.
    pub(crate) fn fronts(self) -> Option<BTreeMap<InstanceKey, Front>> {
        if let Self::Fronts(fronts) = self { Some(fronts) } else { None }
    }
}
