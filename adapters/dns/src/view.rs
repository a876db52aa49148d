//! The catalog as DNS reads it: names without regard to case.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use starling_catalog::Snapshot;
use starling_model::{
    Access, CheckStatus, ConfigEntry, ConfigKind, IngressGateway, IngressRoute, Node, NodeName, Resource, Revision,
    ServiceInstance, ServiceName,
};

use crate::Sight;

/// A snapshot, and which of its names are spelled with upper case.
///
/// Nearly all names are in lower case and are found in the snapshot's own indexes, so only the others are kept here.
/// Making one costs a pass over the names of services and nodes; it holds for every question at the same revision.
#[derive(Debug, Clone)]
pub struct View {
    snapshot: Arc<Snapshot>,
    services: BTreeMap<String, Vec<ServiceName>>,
    nodes: BTreeMap<String, Vec<NodeName>>,
    /// Made when the first reverse name is asked for: a pass over all addresses.
    by_address: OnceLock<BTreeMap<IpAddr, Vec<Named>>>,
    /// What may be seen.
    sight: Sight,
}

/// Whom an address belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// A node.
    Node(NodeName),
    /// An instance of a service, which has the address for itself.
    Service(ServiceName),
}

/// What a prepared query finds.
pub(crate) struct Meant<'v> {
    /// With the health that counts for the query.
    pub(crate) instances: Vec<(&'v ServiceInstance, CheckStatus)>,
    /// The service, in lower case.
    pub(crate) service: ServiceName,
    /// The node next to which they are to be; empty for none.
    pub(crate) near: String,
    /// Seconds that the query lets this be cached, if it says so.
    pub(crate) ttl_s: Option<u32>,
}

impl View {
    /// The view of `snapshot`.
    #[must_use]
    pub fn of(snapshot: Arc<Snapshot>) -> Self {
        let services = fold(snapshot.service_names());
        let nodes = fold(snapshot.nodes().map(|node| &node.value.name));
        Self { snapshot, services, nodes, by_address: OnceLock::new(), sight: Sight::Everything }
    }

    /// The same for who sees no more than that.
    #[must_use]
    pub fn seen_by(self, sight: Sight) -> Self {
        Self { sight, ..self }
    }

    /// Whether nobody is answered.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.sight, Sight::Nothing)
    }

    fn is_seen(&self, resource: Resource, name: &str) -> bool {
        match &self.sight {
            Sight::Everything => true,
            Sight::Only(rights) => rights.allows(resource, name, Access::Read),
            Sight::Nothing => false,
        }
    }

    fn is_instance_seen(&self, instance: &ServiceInstance) -> bool {
        self.is_seen(Resource::Service, instance.identity().as_str())
            && self.is_seen(Resource::Node, instance.key.node.as_str())
    }

    /// The revision of which this is the view.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.snapshot.revision()
    }

    /// The snapshot that is viewed.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The nodes called `name`, which is in lower case.
    pub(crate) fn nodes(&self, name: &NodeName) -> Vec<&Node> {
        let others = self.nodes.get(name.as_str()).into_iter().flatten();
        let names = std::iter::once(name).chain(others);
        let names = names.filter(|name| self.is_seen(Resource::Node, name.as_str()));
        names.filter_map(|name| self.snapshot.node(name)).map(|node| &node.value).collect()
    }

    /// The instances that bear `name`, which is in lower case.
    pub(crate) fn instances(&self, name: &ServiceName) -> Vec<&ServiceInstance> {
        let names = self.spellings(name);
        let instances = names.flat_map(|name| self.snapshot.instances_of(name)).map(|instance| &instance.value);
        instances.filter(|instance| self.is_instance_seen(instance)).collect()
    }

    /// What accepts mesh connections for `name`, which is in lower case: its sidecars, instances that speak mesh
    /// mTLS themselves, and gateways that stand for it. A destination spelled with upper case is found if instances bear it so.
    pub(crate) fn mesh_instances(&self, name: &ServiceName) -> Vec<&ServiceInstance> {
        let sidecars = self.spellings(name).flat_map(|name| self.snapshot.sidecars_of(name));
        let native = self.spellings(name).flat_map(|name| self.snapshot.instances_of(name));
        let gateways = self.spellings(name).flat_map(|name| self.snapshot.stand_ins_of(name));
        let instances = sidecars.chain(native.filter(|instance| instance.value.native)).chain(gateways);
        let instances = instances.map(|instance| &instance.value);
        instances.filter(|instance| self.is_instance_seen(instance)).collect()
    }

    /// What the query called `name`, which is in lower case, finds; `None` if there is no such query. Who may see what it finds may ask by it.
    pub(crate) fn query(&self, name: &str) -> Option<Meant<'_>> {
        let found = self.snapshot.prepared_query(name, true)?;
        let is_template = found.query.template.is_some();
        let query = found.query.rendered(name).ok()?;
        let service: ServiceName = query.service.service.parse().ok()?;
        // A template makes names of the question, of which case is not kept.
        let folded: ServiceName = service.as_str().to_ascii_lowercase().parse().ok()?;
        let others = self.services.get(folded.as_str()).filter(|_| is_template).into_iter().flatten();
        let spellings = std::iter::once(&service).chain(others.filter(|other| **other != service));
        let meant = spellings.flat_map(|service| self.snapshot.instances_meant(&query, service, query.service.connect));
        let meant = meant.map(|(entry, health)| (&entry.value, health));
        let instances = meant.filter(|(instance, _)| self.is_instance_seen(instance)).collect();
        let near = query.service.near;
        let says_ttl = query.dns_ttl_s > 0 || !query.dns_ttl.is_empty();
        Some(Meant { instances, service: folded, near, ttl_s: says_ttl.then_some(query.dns_ttl_s) })
    }

    /// Whom an address belongs to: nodes first, each service once.
    pub(crate) fn named(&self, ip: IpAddr) -> &[Named] {
        self.by_address.get_or_init(|| self.seen_by_address()).get(&ip).map_or(&[], Vec::as_slice)
    }

    fn seen_by_address(&self) -> BTreeMap<IpAddr, Vec<Named>> {
        let mut all = by_address(&self.snapshot);
        for named in all.values_mut() {
            named.retain(|named| match named {
                Named::Node(name) => self.is_seen(Resource::Node, name.as_str()),
                Named::Service(name) => self.is_seen(Resource::Service, name.as_str()),
            });
        }
        all
    }

    /// The instances of the gateways that let callers from outside in to `name`, which is in lower case.
    pub(crate) fn ingress_instances(&self, name: &ServiceName) -> Vec<&ServiceInstance> {
        let entries = self.snapshot.configs(ConfigKind::IngressGateway).filter_map(|entry| {
            let ConfigEntry::IngressGateway(gateway) = &entry.value else { return None };
            lets_in(gateway, name).then_some(&gateway.gateway)
        });
        let instances = entries.flat_map(|gateway| self.snapshot.instances_of(gateway));
        let instances = instances.map(|instance| &instance.value);
        instances.filter(|instance| self.is_instance_seen(instance)).collect()
    }

    /// The virtual address of `name`, which is in lower case.
    pub(crate) fn virtual_address(&self, name: &ServiceName) -> Option<Ipv4Addr> {
        let mut seen = self.spellings(name).filter(|name| self.is_seen(Resource::Service, name.as_str()));
        seen.find_map(|name| self.snapshot.virtual_address(name))
    }

    fn spellings<'a>(&'a self, name: &'a ServiceName) -> impl Iterator<Item = &'a ServiceName> {
        std::iter::once(name).chain(self.services.get(name.as_str()).into_iter().flatten())
    }
}

/// Whether a gateway lets callers in to `name`, which is in lower case.
fn lets_in(gateway: &IngressGateway, name: &ServiceName) -> bool {
    gateway.listeners.iter().any(|listener| match &listener.route {
        IngressRoute::Services(services) => {
            services.iter().any(|own| own.service.as_str().eq_ignore_ascii_case(name.as_str()))
        }
        IngressRoute::Redirect(_) => false,
    })
}

fn by_address(snapshot: &Snapshot) -> BTreeMap<IpAddr, Vec<Named>> {
    let mut found: BTreeMap<IpAddr, Vec<Named>> = BTreeMap::new();
    for node in snapshot.nodes() {
        if let Ok(ip) = node.value.address.parse() {
            found.entry(ip).or_default().push(Named::Node(node.value.name.clone()));
        }
    }
    for name in snapshot.service_names() {
        for instance in snapshot.instances_of(name) {
            let Some(Ok(ip)) = instance.value.address.as_deref().map(str::parse) else { continue };
            let owners = found.entry(ip).or_default();
            let named = Named::Service(name.clone());
            if !owners.contains(&named) {
                owners.push(named);
            }
        }
    }
    found
}

/// The names with upper case, by their lower case.
fn fold<'a, N: AsRef<str> + Clone + 'a>(names: impl Iterator<Item = &'a N>) -> BTreeMap<String, Vec<N>> {
    let mut folded: BTreeMap<String, Vec<N>> = BTreeMap::new();
    for name in names.filter(|name| name.as_ref().bytes().any(|byte| byte.is_ascii_uppercase())) {
        folded.entry(name.as_ref().to_ascii_lowercase()).or_default().push(name.clone());
    }
    folded
}
