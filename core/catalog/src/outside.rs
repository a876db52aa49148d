//! Services outside the mesh: where they are, and which gateways stand for them.
//!
//! An instance is outside if no sidecar stands in front of it and it does not speak for itself. A gateway stands for a service that its
//! entry names and that has such an instance; one whose entry says `*`, for every service that has nobody in the mesh.
//! Cost model: what is asked of one service costs its instances at most, and nothing where no gateway links it; a change of
//! a gateway, or of its entry, the services that it links.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use starling_model::{
    CONSUL_SERVICE, Change, ConfigEntry, ConfigEntryKey, ConfigKind, InstanceKey, InstanceKind, NodeName, Record,
    RecordKey, ServiceInstance, ServiceName, TerminatingGateway, Versioned,
};

use crate::mesh::Front;
use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// Which services the entries of gateways link.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    /// By service, the gateways that name it.
    by_service: OrdMap<ServiceName, OrdSet<ServiceName>>,
    /// The gateways that link every service that is outside.
    of_any: OrdSet<ServiceName>,
}

impl Links {
    pub(crate) fn put(&mut self, entry: &ConfigEntry) {
        let ConfigEntry::TerminatingGateway(entry) = entry else { return };
        for service in entry.named() {
            self.by_service.entry(service.clone()).or_default().insert(entry.gateway.clone());
        }
        if entry.link_of_any().is_some() {
            self.of_any.insert(entry.gateway.clone());
        }
    }

    pub(crate) fn remove(&mut self, entry: &ConfigEntry) {
        let ConfigEntry::TerminatingGateway(entry) = entry else { return };
        for service in entry.named() {
            let Some(gateways) = self.by_service.get_mut(service) else { continue };
            gateways.remove(&entry.gateway);
            if gateways.is_empty() {
                self.by_service.remove(service);
            }
        }
        self.of_any.remove(&entry.gateway);
    }

    fn has_any(&self) -> bool {
        !self.of_any.is_empty()
    }
}

/// What a change may have to do with services outside, as it was before it was made.
pub(crate) struct Around {
    /// Those that it is of.
    services: BTreeSet<ServiceName>,
    /// Those of them that were outside.
    outside: BTreeSet<ServiceName>,
    /// Whether some gateway linked all that are.
    has_any: bool,
}

impl Snapshot {
    /// What the gateways of one name stand for.
    #[must_use]
    pub fn terminating_gateway(&self, gateway: &ServiceName) -> Option<&TerminatingGateway> {
        let key = ConfigEntryKey { kind: ConfigKind::TerminatingGateway, name: gateway.to_string() };
        if let ConfigEntry::TerminatingGateway(entry) = &self.config(&key)?.value { Some(entry) } else { None }
    }

    /// The instances of a service outside the mesh, by node and identifier, whether or not a gateway stands for it.
    pub fn instances_outside<'a>(
        &'a self,
        service: &ServiceName,
    ) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        self.instances_of(service).filter(|instance| self.is_outside_itself(&instance.value))
    }

    fn is_outside_itself(&self, instance: &ServiceInstance) -> bool {
        let InstanceKey { node, id } = &instance.key;
        matches!(instance.kind, InstanceKind::Typical)
            && !instance.native
            && self.sidecars_on(node, &instance.name).all(|sidecar| {
                let of = sidecar.value.sidecar().and_then(|sidecar| sidecar.destination_id.as_ref());
                of.is_some_and(|of| of != id)
            })
    }

    /// Whether a service is outside the mesh, and nobody of it within.
    fn is_outside(&self, service: &ServiceName) -> bool {
        let instances = || self.instances_of(service).map(|instance| &instance.value);
        service.as_str() != CONSUL_SERVICE
            && self.sidecars_of(service).next().is_none()
            && instances().any(|instance| matches!(instance.kind, InstanceKind::Typical))
            && instances().all(|instance| !instance.native)
    }

    /// Whether a service has nobody in the mesh, and some gateway links all that have not.
    #[must_use]
    pub fn is_all_outside(&self, service: &ServiceName) -> bool {
        self.links.has_any() && self.is_outside(service)
    }

    /// Every service of which nobody is in the mesh, by name; none where no gateway links them all.
    pub fn services_outside(&self) -> impl Iterator<Item = &ServiceName> {
        let wanted = self.links.has_any();
        let all = wanted.then(|| self.service_names().filter(|service| self.is_outside(service)));
        all.into_iter().flatten()
    }

    /// Whether some gateway links a service.
    pub(crate) fn is_linked(&self, service: &ServiceName) -> bool {
        self.links.by_service.contains_key(service) || (self.links.has_any() && self.is_outside(service))
    }

    /// The names of the gateways that link a service, in order.
    fn linking(&self, service: &ServiceName) -> BTreeSet<&ServiceName> {
        let mut gateways: BTreeSet<_> = self.links.by_service.get(service).into_iter().flatten().collect();
        if self.links.has_any() && self.is_outside(service) {
            gateways.extend(&self.links.of_any);
        }
        gateways
    }

    /// The gateways that stand for a service, by name, node and identifier.
    pub fn stand_ins_of<'a>(
        &'a self,
        service: &ServiceName,
    ) -> impl Iterator<Item = &'a Arc<Versioned<ServiceInstance>>> {
        let mut gateways = self.linking(service);
        if !gateways.is_empty() && self.instances_outside(service).next().is_none() {
            gateways.clear();
        }
        let instances = gateways.into_iter().flat_map(|gateway| self.instances_of(gateway));
        instances.filter(|instance| matches!(instance.value.kind, InstanceKind::TerminatingGateway(_)))
    }

    /// A gateway as those see it who call a service; `None` if it does not stand for it.
    #[must_use]
    pub fn stand_in(&self, service: &ServiceName, key: &InstanceKey) -> Option<Front> {
        let instance = &self.instance(key)?.value;
        let stands = matches!(instance.kind, InstanceKind::TerminatingGateway(_))
            && self.linking(service).contains(&instance.name)
            && self.instances_outside(service).next().is_some();
        stands.then(|| self.as_stand_in(instance))
    }

    pub(crate) fn as_stand_in(&self, instance: &ServiceInstance) -> Front {
        // It has every subset behind it, whatever it is registered with itself.
        Front { marks: None, stands_in: true, ..self.as_front(instance) }
    }

    /// An instance as the gateways that stand for its service see it; `None` if none links it, or it is in the mesh.
    #[must_use]
    pub fn origin(&self, service: &ServiceName, key: &InstanceKey) -> Option<Front> {
        let instance = &self.instance(key)?.value;
        let outside = instance.name == *service && self.is_linked(service) && self.is_outside_itself(instance);
        outside.then(|| self.as_front(instance))
    }

    /// Every service that a gateway of this name links.
    #[must_use]
    pub fn linked_by(&self, gateway: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(entry) = self.terminating_gateway(gateway) else { return BTreeSet::new() };
        let mut services: BTreeSet<_> = entry.named().cloned().collect();
        if entry.link_of_any().is_some() {
            services.extend(self.services_outside().cloned());
        }
        services
    }

    /// Whether a gateway on `node` stands for `service`, and so bears its identity.
    #[must_use]
    pub fn is_stood_for_on(&self, node: &NodeName, service: &ServiceName) -> bool {
        let gateways = self.linking(service);
        !gateways.is_empty()
            && self.instances_on(node).any(|instance| {
                matches!(instance.value.kind, InstanceKind::TerminatingGateway(_))
                    && gateways.contains(&instance.value.name)
            })
    }

    /// What a change may have to do with services outside, as it is before it is made.
    pub(crate) fn around(&self, key: &RecordKey, change: &Change) -> Around {
        let mut services = BTreeSet::new();
        if let RecordKey::Instance(key) = key {
            if self.links.has_any() {
                services.extend(self.instance(key).map(|instance| instance.value.identity().clone()));
                if let Change::Put(Record::Instance(instance)) = change {
                    services.insert(instance.identity().clone());
                }
            }
        } else {
            services = self.linked_with(key);
        }
        let outside = services.iter().filter(|service| self.is_outside(service)).cloned().collect();
        Around { services, outside, has_any: self.links.has_any() }
    }

    /// The subjects of what has moved between outside and within, or was linked or let go, by the change of `key` that has been made.
    pub(crate) fn touch_moved(&self, before: Around, key: &RecordKey, subjects: &mut BTreeSet<Subject>) {
        let Around { services, outside, has_any } = before;
        let mut moved: BTreeSet<ServiceName> = BTreeSet::new();
        if let RecordKey::Config(_) = key {
            moved.extend(services.symmetric_difference(&self.linked_with(key)).cloned());
        } else {
            moved.extend(services.into_iter().filter(|service| self.is_outside(service) != outside.contains(service)));
        }
        let list_moved = has_any != self.links.has_any() || (!matches!(key, RecordKey::Config(_)) && !moved.is_empty());
        subjects.extend(list_moved.then_some(Subject::ServicesOutside));
        for service in moved {
            subjects.extend([Subject::Endpoints(service.clone()), Subject::Origins(service)]);
        }
    }

    /// Every service that the entry of a gateway links; none if the key is of anything else.
    fn linked_with(&self, key: &RecordKey) -> BTreeSet<ServiceName> {
        let RecordKey::Config(ConfigEntryKey { kind: ConfigKind::TerminatingGateway, name }) = key else {
            return BTreeSet::new();
        };
        name.parse().map(|gateway| self.linked_by(&gateway)).unwrap_or_default()
    }

    /// The subjects of those who call, or stand for, what an instance has to do with.
    pub(crate) fn touch_outside(&self, instance: &ServiceInstance, subjects: &mut BTreeSet<Subject>) {
        match &instance.kind {
            InstanceKind::Typical if self.is_linked(&instance.name) => {
                subjects.insert(Subject::Origins(instance.name.clone()));
            }
            InstanceKind::TerminatingGateway(_) => {
                subjects.extend(self.linked_by(&instance.name).into_iter().map(Subject::Endpoints));
            }
            InstanceKind::Typical
            | InstanceKind::Sidecar(_)
            | InstanceKind::IngressGateway(_)
            | InstanceKind::OtherGateway(_) => {}
        }
    }
}
