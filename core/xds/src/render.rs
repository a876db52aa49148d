//! Plans as Envoy resources.
//!
//! What every proxy has in common is written so that its bytes are common, too: clusters name their secrets `leaf` and
//! `roots` in every proxy, and what differs between proxies stands only in what is theirs alone. A part of a plan is
//! rendered when it is first seen and again only when it is replaced. What may change from one request to the next,
//! the policy, stands in a route or an extension and never in a listener: replacing a listener drains connections.

mod access_log;
mod cache;
mod cluster;
mod endpoint;
mod grpc;
mod listener;
mod proto;
mod rbac;
mod route;
mod secret;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use starling_identity::{Layout, SpiffeId};
use starling_model::{Datacenter, Namespace, Protocol, ServiceName, TrustDomain};
use starling_plan::{Cluster, Endpoints, Inbound, Outbound, Plan, Trust};
use starling_traffic::Policy;

use crate::resource::{Resource, ResourceSet, Version};
use cache::{PartCache, address_of};

pub use grpc::CERTIFICATE_PROVIDER;
pub use route::{OUTBOUND_TIMEOUT, REQUEST_HEADERS_TIMEOUT, STREAM_IDLE_TIMEOUT};

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

/// Renders plans, and remembers what it has rendered for as long as the part of the plan lives.
///
/// The memory holds parts weakly: it never keeps one alive, and forgets those that nobody has any more.
#[derive(Debug)]
pub struct Renderer {
    names: MeshNames,
    clusters: PartCache<Cluster, ()>,
    outbound_routes: PartCache<Cluster, ()>,
    endpoints: PartCache<Endpoints, Version>,
    /// Keyed by the cluster's address, too: a TCP listener names it.
    outbound_listeners: PartCache<Outbound, (usize, bool)>,
    local_apps: PartCache<Inbound, ()>,
    inbound_listeners: PartCache<Inbound, bool>,
    inbound_routes: PartCache<Policy, (Protocol, Option<Duration>)>,
    inbound_extensions: PartCache<Policy, ()>,
    roots: PartCache<Trust, ()>,
    leaves: PartCache<Leaf, ()>,
    grpc_clusters: PartCache<Cluster, ()>,
    grpc_listeners: PartCache<Cluster, ()>,
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
            local_apps: PartCache::default(),
            inbound_listeners: PartCache::default(),
            inbound_routes: PartCache::default(),
            inbound_extensions: PartCache::default(),
            roots: PartCache::default(),
            leaves: PartCache::default(),
            grpc_clusters: PartCache::default(),
            grpc_listeners: PartCache::default(),
        }
    }

    /// Everything that the proxy of this plan may ask for.
    ///
    /// Without a leaf the set has no leaf secret, and the proxy waits for one: its TLS listeners refuse connections
    /// meanwhile. An outbound listener without a cluster of its service in the plan is left out.
    #[must_use]
    pub fn render(&mut self, plan: &Plan, leaf: Option<&Arc<Leaf>>) -> ResourceSet {
        let mut resources = Vec::new();
        for cluster in &plan.clusters {
            let rendered = self.clusters.get(cluster, (), || cluster::upstream(cluster));
            resources.push(self.render_endpoints(plan, cluster, rendered.version));
            resources.push(rendered);
        }
        for outbound in &plan.outbounds {
            let found = plan.clusters.binary_search_by(|cluster| cluster.service.cmp(&outbound.service));
            let Ok(cluster) = found.map(|index| &plan.clusters[index]) else { continue };
            let key = (address_of(cluster), plan.access_log);
            resources.push(
                self.outbound_listeners
                    .get(outbound, key, || listener::outbound(outbound, &cluster.sni, plan.access_log)),
            );
            if outbound.protocol.is_l7() {
                resources.push(self.outbound_routes.get(cluster, (), || route::outbound(cluster)));
            }
        }
        if let Some(inbound) = &plan.inbound {
            self.render_inbound(inbound, plan.access_log, &mut resources);
        }
        resources.push(self.roots.get(&plan.trust, (), || secret::roots(&plan.trust)));
        if let Some(leaf) = leaf {
            resources.push(self.leaves.get(leaf, (), || secret::leaf(leaf)));
        }
        ResourceSet::new(plan.revision, resources)
    }

    /// Everything that a gRPC library in the place of this plan's proxy may ask for: the services that it calls, each as
    /// a listener of the service's name. Services of TCP have none. It gets no secrets: its bootstrap says where its
    /// certificates are.
    #[must_use]
    pub fn render_for_grpc(&mut self, plan: &Plan) -> ResourceSet {
        let mut resources = Vec::new();
        for cluster in plan.clusters.iter().filter(|cluster| cluster.protocol.is_l7()) {
            let rendered = self.grpc_clusters.get(cluster, (), || grpc::cluster(cluster));
            resources.push(self.render_endpoints(plan, cluster, rendered.version));
            resources.push(rendered);
            resources.push(self.grpc_listeners.get(cluster, (), || grpc::listener(cluster)));
            resources.push(self.outbound_routes.get(cluster, (), || route::outbound(cluster)));
        }
        ResourceSet::new(plan.revision, resources)
    }

    /// A cluster without endpoints in the plan gets an empty assignment: a client waits for one that is missing, and
    /// answers 503 at once to one that is empty.
    fn render_endpoints(&mut self, plan: &Plan, cluster: &Cluster, version: Version) -> Arc<Resource> {
        let found = plan.endpoints.binary_search_by(|endpoints| endpoints.service.cmp(&cluster.service));
        match found.map(|index| &plan.endpoints[index]) {
            Ok(endpoints) => self.endpoints.get(endpoints, version, || endpoint::assignment(endpoints, version)),
            Err(_) => Arc::new(endpoint::empty(&cluster.sni, version)),
        }
    }

    fn render_inbound(&mut self, inbound: &Arc<Inbound>, access_log: bool, resources: &mut Vec<Arc<Resource>>) {
        let (names, policy) = (&self.names, &inbound.policy);
        resources.push(self.local_apps.get(inbound, (), || cluster::local_app(inbound)));
        resources.push(self.inbound_listeners.get(inbound, access_log, || listener::inbound(inbound, access_log)));
        if inbound.protocol.is_l7() {
            let timeout = inbound.local_app.request_timeout;
            resources.push(
                self.inbound_routes
                    .get(policy, (inbound.protocol, timeout), || route::inbound(inbound, timeout, names)),
            );
        } else {
            resources.push(self.inbound_extensions.get(policy, (), || rbac::network_filter(policy, names)));
        }
    }
}
