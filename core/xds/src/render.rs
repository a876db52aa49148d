//! Plans as Envoy resources.
//!
//! What every proxy has in common is written so that its bytes are common, too: clusters name their secrets `leaf` and
//! `roots` in every proxy, and what differs between proxies stands only in what is theirs alone. A part of a plan is
//! rendered when it is first seen and again only when it is replaced. What may change from one request to the next,
//! the policy, stands in a route or an extension and never in a listener: replacing a listener drains connections.

mod access_log;
mod cache;
mod cluster;
mod edge;
mod endpoint;
mod exit;
mod fault;
mod grpc;
mod listener;
mod native;
mod proto;
mod rate_limit;
mod rbac;
mod route;
mod secret;
mod telemetry;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use starling_identity::{Layout, SpiffeId};
use starling_model::{Datacenter, Namespace, Protocol, ServiceName, TrustDomain};
use starling_plan::{Cluster, Edge, EdgeHost, Endpoints, Exit, Inbound, Origins, Outbound, Plan, Routes, Trust};
use starling_traffic::Policy;

use crate::resource::{Resource, ResourceSet, Version};
use cache::PartCache;
use native::NativeParts;
use telemetry::Telemetry;

pub use grpc::CERTIFICATE_PROVIDER;
pub use native::{NativePart, NativePartError};
pub use route::{REQUEST_HEADERS_TIMEOUT, STREAM_IDLE_TIMEOUT};
pub use starling_plan::OUTBOUND_TIMEOUT;

/// What the names in a policy need to become identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshNames {
    /// How identities are written.
    pub layout: Layout,
    /// The mesh.
    pub trust_domain: TrustDomain,
    /// Every service's namespace.
    pub namespace: Namespace,
    /// Every service's datacentre.
    pub datacenter: Datacenter,
}

impl MeshNames {
    /// The URI in a service's certificate.
    #[must_use]
    pub fn identity_of(&self, service: &ServiceName) -> String {
        let (trust_domain, namespace) = (self.trust_domain.clone(), self.namespace.clone());
        SpiffeId::new(self.layout, trust_domain, namespace, self.datacenter.clone(), service.clone()).to_uri()
    }
}

/// A workload's certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The leaf, then intermediates, in PEM.
    pub certificate_chain_pem: String,
    /// The key in PEM.
    pub private_key_pem: String,
}

/// The key is left out.
impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf").field("certificate_chain_pem", &self.certificate_chain_pem).finish_non_exhaustive()
    }
}

/// Certificates of services for which a gateway stands.
pub type ServiceLeaves = BTreeMap<ServiceName, Arc<Leaf>>;

/// What the routes of a public listener say beside the policy: protocol, timeout, and requests per second and at once.
type InboundRouteKey = (Protocol, Option<Duration>, Option<(u32, u32)>);

/// Renders plans, and remembers what it has rendered for as long as the part of the plan lives.
///
/// The memory holds parts weakly: it never keeps one alive, and forgets those that nobody has any more.
#[derive(Debug)]
pub struct Renderer {
    names: MeshNames,
    clusters: PartCache<Cluster, ()>,
    outbound_routes: PartCache<Routes, ()>,
    endpoints: PartCache<Endpoints, Version>,
    /// Keyed by the version of the routes, too, for a TCP listener names their clusters; `None` for others.
    outbound_listeners: PartCache<Outbound, (Option<Version>, Telemetry)>,
    /// Keyed by the versions of what the routes say, as far as it is read.
    edge_listeners: PartCache<Edge, (Vec<Version>, Telemetry)>,
    edge_routes: PartCache<Edge, Vec<Version>>,
    /// Keyed by the place of the certificate.
    edge_certificates: PartCache<Edge, usize>,
    /// For their versions alone; all chains of a gateway are in one listener, which is kept by its first exit.
    exit_chains: PartCache<Exit, Telemetry>,
    exit_listeners: PartCache<Exit, (Vec<Version>, Telemetry)>,
    /// Keyed by the host that requests are told to be for.
    exit_routes: PartCache<Exit, Option<String>>,
    /// For their versions alone.
    exit_places: PartCache<Origins, ()>,
    /// Keyed by the version of its endpoints where they stand in it.
    exit_clusters: PartCache<Exit, Option<Version>>,
    exit_endpoints: PartCache<Origins, Version>,
    exit_leaves: PartCache<Leaf, ()>,
    exit_files: PartCache<Exit, bool>,
    local_apps: PartCache<Inbound, ()>,
    inbound_listeners: PartCache<Inbound, Telemetry>,
    inbound_routes: PartCache<Policy, InboundRouteKey>,
    inbound_extensions: PartCache<Policy, ()>,
    roots: PartCache<Trust, ()>,
    leaves: PartCache<Leaf, ()>,
    grpc_clusters: PartCache<Cluster, ()>,
    grpc_listeners: PartCache<Routes, ()>,
    native: NativeParts,
}

impl Renderer {
    /// A renderer for the proxies of one mesh.
    #[must_use]
    pub fn new(names: MeshNames) -> Self {
        Self {
            names,
            clusters: PartCache::default(),
            outbound_routes: PartCache::default(),
            endpoints: PartCache::default(),
            outbound_listeners: PartCache::default(),
            edge_listeners: PartCache::default(),
            edge_routes: PartCache::default(),
            edge_certificates: PartCache::default(),
            exit_chains: PartCache::default(),
            exit_listeners: PartCache::default(),
            exit_routes: PartCache::default(),
            exit_places: PartCache::default(),
            exit_clusters: PartCache::default(),
            exit_endpoints: PartCache::default(),
            exit_leaves: PartCache::default(),
            exit_files: PartCache::default(),
            local_apps: PartCache::default(),
            inbound_listeners: PartCache::default(),
            inbound_routes: PartCache::default(),
            inbound_extensions: PartCache::default(),
            roots: PartCache::default(),
            leaves: PartCache::default(),
            grpc_clusters: PartCache::default(),
            grpc_listeners: PartCache::default(),
            native: NativeParts::default(),
        }
    }

    /// Everything that the proxy of this plan may ask for.
    ///
    /// Without a leaf the set has no leaf secret, and the proxy waits for one: its TLS listeners refuse connections
    /// meanwhile. An outbound listener without routes of its service in the plan is left out.
    #[must_use]
    pub fn render(&mut self, plan: &Plan, leaf: Option<&Arc<Leaf>>) -> ResourceSet {
        self.render_gateway(plan, leaf, &BTreeMap::new())
    }

    /// The same for a gateway that stands for services: `leaves` are their certificates. A service without one is left out,
    /// and its callers are refused.
    #[must_use]
    pub fn render_gateway(&mut self, plan: &Plan, leaf: Option<&Arc<Leaf>>, leaves: &ServiceLeaves) -> ResourceSet {
        let (mut resources, telemetry) = (Vec::new(), Telemetry::of(plan));
        for cluster in &plan.clusters {
            let rendered = self.clusters.get(cluster, (), || cluster::upstream(cluster));
            resources.push(self.render_endpoints(plan, cluster, rendered.version));
            resources.push(rendered);
        }
        for outbound in &plan.outbounds {
            let found = plan.routes.binary_search_by(|routes| routes.service.cmp(&outbound.service));
            let Ok(routes) = found.map(|index| &plan.routes[index]) else { continue };
            let l7 = outbound.protocol.is_l7();
            let rendered = self.outbound_routes.get(routes, (), || route::outbound(routes));
            let key = ((!l7).then_some(rendered.version), telemetry.clone());
            resources
                .push(self.outbound_listeners.get(outbound, key, || listener::outbound(outbound, routes, &telemetry)));
            resources.extend(l7.then_some(rendered));
        }
        for edge in &plan.edges {
            self.render_edge(plan, edge, &telemetry, &mut resources);
        }
        self.render_exits(plan, leaves, &telemetry, &mut resources);
        if let Some(inbound) = &plan.inbound {
            self.render_inbound(inbound, telemetry, &mut resources);
        }
        resources.push(self.roots.get(&plan.trust, (), || secret::roots(&plan.trust)));
        if let Some(leaf) = leaf {
            resources.push(self.leaves.get(leaf, (), || secret::leaf(secret::LEAF, leaf)));
        }
        ResourceSet::new(plan.revision, resources)
    }

    /// Everything that a gRPC library in the place of this plan's proxy may ask for: the services that it calls, each as
    /// a listener of the service's name. Services of TCP have none. It gets no secrets: its bootstrap says where its
    /// certificates are.
    #[must_use]
    pub fn render_for_grpc(&mut self, plan: &Plan) -> ResourceSet {
        let mut resources = Vec::new();
        for cluster in plan.clusters.iter().filter(|cluster| called_by_request(plan, cluster)) {
            let rendered = self.grpc_clusters.get(cluster, (), || grpc::cluster(cluster));
            resources.push(self.render_endpoints(plan, cluster, rendered.version));
            resources.push(rendered);
        }
        for routes in plan.routes.iter().filter(|routes| routes.protocol.is_l7()) {
            resources.push(self.grpc_listeners.get(routes, (), || grpc::listener(routes)));
            resources.push(self.outbound_routes.get(routes, (), || route::outbound(routes)));
        }
        ResourceSet::new(plan.revision, resources)
    }

    /// The plan as it is, in parts, and the leaf: what a native proxy in a process of its own may ask for.
    #[must_use]
    pub fn render_for_native(&mut self, plan: &Plan, leaf: &Arc<Leaf>, leaves: &ServiceLeaves) -> ResourceSet {
        ResourceSet::new(plan.revision, self.native.render(plan, leaf, leaves))
    }

    /// A cluster without endpoints in the plan gets an empty assignment: a client waits for one that is missing, and
    /// answers 503 at once to one that is empty.
    fn render_endpoints(&mut self, plan: &Plan, cluster: &Cluster, version: Version) -> Arc<Resource> {
        let target = (&cluster.service, &cluster.subset);
        let found = plan.endpoints.binary_search_by(|endpoints| (&endpoints.service, &endpoints.subset).cmp(&target));
        match found.map(|index| &plan.endpoints[index]) {
            Ok(endpoints) => self.endpoints.get(endpoints, version, || endpoint::assignment(endpoints, version)),
            Err(_) => Arc::new(endpoint::empty(&cluster.sni, version)),
        }
    }

    fn render_edge(
        &mut self,
        plan: &Plan,
        edge: &Arc<Edge>,
        telemetry: &Telemetry,
        resources: &mut Vec<Arc<Resource>>,
    ) {
        let of_host = |host: &EdgeHost| {
            let found = plan.routes.binary_search_by(|routes| routes.service.cmp(&host.service)).ok()?;
            Some(&plan.routes[found])
        };
        let parts: Vec<_> = edge.hosts().iter().filter_map(of_host).collect();
        let versions: Vec<_> = parts
            .iter()
            .map(|routes| self.outbound_routes.get(routes, (), || route::outbound(routes)).version)
            .collect();
        let routes: Vec<&Routes> = parts.iter().map(|part| &***part).collect();
        let l7 = edge.protocol.is_l7();
        let key = (if l7 { Vec::new() } else { versions.clone() }, telemetry.clone());
        resources.push(self.edge_listeners.get(edge, key, || edge::listener(edge, &routes, telemetry)));
        if l7 {
            resources.push(self.edge_routes.get(edge, versions, || edge::routes(edge, &routes)));
        }
        let certificates = edge.tls.iter().flat_map(|tls| &tls.certificates).enumerate();
        for (place, files) in certificates {
            resources.push(self.edge_certificates.get(edge, place, || secret::files(files)));
        }
    }

    fn render_exits(
        &mut self,
        plan: &Plan,
        leaves: &ServiceLeaves,
        telemetry: &Telemetry,
        resources: &mut Vec<Arc<Resource>>,
    ) {
        if plan.exits.is_empty() {
            return;
        }
        let both = plan.exits.iter().zip(&plan.origins);
        let open: Vec<_> = both.filter(|(exit, _)| leaves.contains_key(&exit.service)).collect();
        let mut chains = Vec::new();
        for (exit, origins) in &open {
            let (exit, origins) = (*exit, *origins);
            let chain = |exit: &Exit| exit::version(exit, telemetry);
            chains.push(self.exit_chains.get(exit, telemetry.clone(), || chain(exit)).version);
            let by_name = origins.has_names();
            let place = by_name.then(|| self.exit_places.get(origins, (), || exit::place(origins)).version);
            let cluster = self.exit_clusters.get(exit, place, || exit::cluster(exit, origins));
            if !by_name {
                let version = cluster.version;
                let endpoints = self.exit_endpoints.get(origins, version, || exit::assignment(exit, origins, version));
                resources.push(endpoints);
            }
            resources.push(cluster);
            let names = &self.names;
            if exit.protocol.is_l7() {
                let host = origins.host.clone();
                let routes = || exit::routes(exit, origins.host.as_deref(), names);
                resources.push(self.exit_routes.get(exit, host, routes));
            } else {
                let policy = &exit.policy;
                resources.push(self.inbound_extensions.get(policy, (), || rbac::network_filter(policy, names)));
            }
            if let Some(tls) = &exit.tls {
                resources.push(self.exit_files.get(exit, false, || secret::authorities(&tls.authorities)));
                if let Some(files) = &tls.certificate {
                    resources.push(self.exit_files.get(exit, true, || secret::files(files)));
                }
            }
        }
        for (service, leaf) in leaves {
            let name = secret::leaf_name(service);
            resources.push(self.exit_leaves.get(leaf, (), || secret::leaf(&name, leaf)));
        }
        if let Some((first, _)) = open.first() {
            let exits: Vec<&Exit> = open.iter().map(|(exit, _)| &***exit).collect();
            let key = (chains, telemetry.clone());
            resources.push(self.exit_listeners.get(first, key, || exit::listener(&exits, telemetry)));
        }
        // Subsets of a service share its policy, services their files.
        resources.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        resources.dedup_by(|a, b| a.kind == b.kind && a.name == b.name);
    }

    fn render_inbound(&mut self, inbound: &Arc<Inbound>, telemetry: Telemetry, resources: &mut Vec<Arc<Resource>>) {
        let (names, policy) = (&self.names, &inbound.policy);
        resources.push(self.local_apps.get(inbound, (), || cluster::local_app(inbound)));
        resources
            .push(self.inbound_listeners.get(inbound, telemetry.clone(), || listener::inbound(inbound, &telemetry)));
        if inbound.protocol.is_l7() {
            let timeout = inbound.local_app.request_timeout;
            let limit = inbound.rate_limit.map(|limit| (limit.per_second, limit.burst));
            let key = (inbound.protocol, timeout, limit);
            resources.push(self.inbound_routes.get(policy, key, || route::to_app(inbound, names)));
        } else {
            resources.push(self.inbound_extensions.get(policy, (), || rbac::network_filter(policy, names)));
        }
    }
}

/// Whether the routes of a service that is called by request name it, whatever it speaks itself.
fn called_by_request(plan: &Plan, cluster: &Cluster) -> bool {
    let names = |routes: &&Arc<Routes>| routes.targets.binary_search(&cluster.target()).is_ok();
    plan.routes.iter().filter(|routes| routes.protocol.is_l7()).any(|routes| names(&routes))
}
