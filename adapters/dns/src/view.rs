//! The catalog as DNS reads it: names without regard to case.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use starling_catalog::Snapshot;
use starling_model::{Node, NodeName, Revision, ServiceInstance, ServiceName};

/// A snapshot, and which of its names are spelled with upper case.
///
/// Nearly all names are in lower case and are found in the snapshot's own indexes, so only the others are kept here.
/// Making one costs a pass over the names of services and nodes; it holds for every question at the same revision.
#[derive(Debug, Clone)]
pub struct View {
    snapshot: Arc<Snapshot>,
    services: BTreeMap<String, Vec<ServiceName>>,
    nodes: BTreeMap<String, Vec<NodeName>>,
}

impl View {
    /// The view of `snapshot`.
    #[must_use]
    pub fn of(snapshot: Arc<Snapshot>) -> Self {
        let services = fold(snapshot.service_names());
        let nodes = fold(snapshot.nodes().map(|node| &node.value.name));
        Self { snapshot, services, nodes }
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
        names.filter_map(|name| self.snapshot.node(name)).map(|node| &node.value).collect()
    }

    /// The instances that bear `name`, which is in lower case.
    pub(crate) fn instances(&self, name: &ServiceName) -> Vec<&ServiceInstance> {
        let names = self.spellings(name);
        names.flat_map(|name| self.snapshot.instances_of(name)).map(|instance| &instance.value).collect()
    }

    /// What accepts mesh connections for `name`, which is in lower case: its sidecars, and instances that speak mesh
    /// mTLS themselves. A destination spelled with upper case is found if instances bear it so.
    pub(crate) fn mesh_instances(&self, name: &ServiceName) -> Vec<&ServiceInstance> {
        let sidecars = self.spellings(name).flat_map(|name| self.snapshot.sidecars_of(name));
        let native = self.spellings(name).flat_map(|name| self.snapshot.instances_of(name));
        sidecars.chain(native.filter(|instance| instance.value.native)).map(|instance| &instance.value).collect()
    }

    /// The virtual address of `name`, which is in lower case.
    pub(crate) fn virtual_address(&self, name: &ServiceName) -> Option<Ipv4Addr> {
        self.spellings(name).find_map(|name| self.snapshot.virtual_address(name))
    }

    fn spellings<'a>(&'a self, name: &'a ServiceName) -> impl Iterator<Item = &'a ServiceName> {
        std::iter::once(name).chain(self.services.get(name.as_str()).into_iter().flatten())
    }
}

/// The names with upper case, by their lower case.
fn fold<'a, N: AsRef<str> + Clone + 'a>(names: impl Iterator<Item = &'a N>) -> BTreeMap<String, Vec<N>> {
    let mut folded: BTreeMap<String, Vec<N>> = BTreeMap::new();
    for name in names.filter(|name| name.as_ref().bytes().any(|byte| byte.is_ascii_uppercase())) {
        folded.entry(name.as_ref().to_ascii_lowercase()).or_default().push(name.clone());
    }
    folded
}
