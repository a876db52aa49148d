//! Which items a commit may have changed, by the records that it wrote.

use std::collections::BTreeSet;

use starling_catalog::{MeshRead, Snapshot, Subject};
use starling_model::{ConfigEntry, InstanceKey, InstanceKind, NodeName, RecordKey, ServiceInstance, ServiceName};

use super::{ItemKey, place_of};

/// What records have to do with which items.
#[derive(Default)]
pub(super) struct Touched {
    pub(super) fronts: BTreeSet<InstanceKey>,
    pub(super) named: BTreeSet<(Subject, ItemKey)>,
    pub(super) roots: bool,
    /// Gateways and instances of services, each with a service that it may stand for, or be outside of.
    pub(super) outside: BTreeSet<(ServiceName, InstanceKey)>,
    /// Services that may have moved between outside and within, or been linked.
    pub(super) services: BTreeSet<ServiceName>,
}

impl Touched {
    pub(super) fn add(&mut self, snapshot: &Snapshot, key: &RecordKey) {
        match key {
            RecordKey::Node(name) => self.add_node(snapshot, name),
            RecordKey::Instance(key) => self.add_instance(snapshot, key),
            RecordKey::Check(node, id) => {
                let Some(check) = snapshot.check(node, id) else { return };
                match &check.value.service {
                    Some(service) => {
                        self.add_instance(snapshot, &InstanceKey { node: node.clone(), id: service.id.clone() });
                    }
                    None => self.add_node(snapshot, node),
                }
            }
            RecordKey::Config(key) => {
                let Some(entry) = snapshot.config(key) else { return };
                self.named.extend(place_of(&entry.value));
                if let ConfigEntry::ServiceIntentions(entry) = &entry.value {
                    // Those that look as before are left out.
                    let sources = entry.sources.iter().filter_map(|source| source.source.service());
                    let destinations = sources.map(|source| (Subject::Destinations(source.clone()), ItemKey::Sole));
                    self.named.extend(destinations);
                }
                if let ConfigEntry::TerminatingGateway(entry) = &entry.value {
                    self.named.insert((Subject::ServicesOutside, ItemKey::Sole));
                    self.add_linked(snapshot, &entry.gateway);
                }
                // What is shown of a front depends on whether anybody asks for it.
                if let ConfigEntry::ServiceResolver(resolver) = &entry.value
                    && resolver.has_filters()
                {
                    let (service, fronts) = (&resolver.service, &mut self.fronts);
                    snapshot.visit_fronts(service, &mut |front| {
                        fronts.insert(front.key.clone());
                    });
                    let outside = &mut self.outside;
                    snapshot.visit_origins(service, &mut |front| {
                        outside.insert((service.clone(), front.key.clone()));
                    });
                }
            }
            RecordKey::CaRoot(_) => self.roots = true,
            RecordKey::VirtualAddress(address) => {
                let service = snapshot.virtual_address_of(*address).cloned();
                self.named.extend(service.map(|service| (Subject::Routing(service), ItemKey::VirtualAddress)));
            }
            RecordKey::Server(id) => {
                self.named.insert((Subject::Servers, ItemKey::Server(*id)));
            }
            RecordKey::CaKey(_)
            | RecordKey::Fence(_)
            | RecordKey::JoinToken(_)
            | RecordKey::Enrolment(_)
            | RecordKey::Leader
            | RecordKey::Attachment(_)
            | RecordKey::Coordination(_)
            | RecordKey::Acl(_) => {}
        }
    }

    fn add_node(&mut self, snapshot: &Snapshot, name: &NodeName) {
        self.named.insert((Subject::Node(name.clone()), ItemKey::Sole));
        for instance in snapshot.instances_on(name) {
            self.fronts.insert(instance.value.key.clone());
            self.add_around(snapshot, &instance.value);
        }
    }

    /// Every service that the gateways of one name link, with those gateways and the instances of the service.
    fn add_linked(&mut self, snapshot: &Snapshot, gateway: &ServiceName) {
        for service in snapshot.linked_by(gateway) {
            let instances = snapshot.instances_of(gateway).chain(snapshot.instances_of(&service));
            self.outside.extend(instances.map(|instance| (service.clone(), instance.value.key.clone())));
        }
    }

    /// Adds what hangs on whether a service is outside, where that is another answer than before.
    pub(super) fn add_moved(&mut self, before: &Snapshot, after: &Snapshot) {
        for service in std::mem::take(&mut self.services) {
            let look = |snapshot: &Snapshot| {
                let gateways: Vec<_> = snapshot.stand_ins_of(&service).map(|it| it.value.key.clone()).collect();
                let mut origins = 0_usize;
                snapshot.visit_origins(&service, &mut |_| origins += 1);
                (gateways, origins == 0, snapshot.is_all_outside(&service))
            };
            let (old, new) = (look(before), look(after));
            if old == new {
                continue;
            }
            self.named.insert((Subject::ServicesOutside, ItemKey::Sole));
            self.outside.extend(old.0.into_iter().chain(new.0).map(|key| (service.clone(), key)));
            let instances = before.instances_of(&service).chain(after.instances_of(&service));
            self.outside.extend(instances.map(|instance| (service.clone(), instance.value.key.clone())));
        }
    }

    /// What an instance has to do with services outside.
    fn add_around(&mut self, snapshot: &Snapshot, instance: &ServiceInstance) {
        let key = &instance.key;
        let service = instance.identity();
        match &instance.kind {
            InstanceKind::TerminatingGateway(_) => {
                let linked = snapshot.linked_by(service);
                self.outside.extend(linked.into_iter().map(|service| (service, key.clone())));
            }
            InstanceKind::Typical | InstanceKind::Sidecar(_) => {
                self.services.insert(service.clone());
                self.outside.insert((service.clone(), key.clone()));
                if let Some(sidecar) = instance.sidecar() {
                    let behind = |it: &InstanceKey| sidecar.destination_id.as_ref().is_none_or(|id| *id == it.id);
                    let instances = snapshot.instances_on(&key.node).map(|it| &it.value);
                    let instances = instances.filter(|it| it.name == *service && behind(&it.key));
                    self.outside.extend(instances.map(|it| (service.clone(), it.key.clone())));
                }
            }
            InstanceKind::IngressGateway(_) | InstanceKind::OtherGateway(_) => {}
        }
    }

    /// An instance, and the sidecars that stand in front of it: its health is theirs.
    fn add_instance(&mut self, snapshot: &Snapshot, key: &InstanceKey) {
        self.named.insert((Subject::Node(key.node.clone()), ItemKey::Sole));
        let Some(instance) = snapshot.instance(key) else { return };
        self.named.insert((Subject::Service(instance.value.name.clone()), ItemKey::Sole));
        self.fronts.insert(key.clone());
        self.add_around(snapshot, &instance.value);
        let sidecars = snapshot.sidecars_on(&key.node, &instance.value.name);
        let fronting = sidecars.filter(|sidecar| {
            sidecar.value.sidecar().is_some_and(|proxy| proxy.destination_id.as_ref() == Some(&key.id))
        });
        self.fronts.extend(fronting.map(|sidecar| sidecar.value.key.clone()));
    }
}
