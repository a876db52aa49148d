//! What this node has: services, sidecars, checks and their health, as plain data with the rules that change it.
//!
//! Pure: every operation is given the time and returns what it touched; writing that to the catalog and to disk is the
//! committer's business. An operation that fails has changed nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use starling_model::check::CheckedService;
use starling_model::service::InstanceKey;
use starling_model::{
    Check, CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, InstanceId, Locality, Node, RecordKey,
    ServiceInstance, ServiceRegistration,
};

use crate::checks::definition;
use crate::checks::threshold::Threshold;
use crate::checks::timetable::Plan;
use crate::sidecar::{Expanded, FieldError, Part, expand};

mod alias;
mod health;
pub(crate) mod pending;
mod stored;

/// What a re-registration does with checks that were registered apart from the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExistingChecks {
    /// They stay; checks that came with the earlier registration and are not in the new one go.
    #[default]
    Keep,
    /// They go as well: Consul's `replace-existing-checks`.
    Replace,
}

/// Who registered a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Somebody who called; it stays until somebody takes it away.
    Caller,
    /// A definition file that is read at every start; it goes when no file names it any more.
    File,
}

/// A registered instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Service {
    pub(crate) instance: ServiceInstance,
    pub(crate) role: Role,
}

/// How an instance came to be here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Role {
    /// It was registered; this is the registration, and by whom.
    Given(Box<ServiceRegistration>, Source),
    /// It is the nested sidecar of that instance.
    SidecarOf(InstanceId),
}

impl Service {
    pub(crate) fn parent(&self) -> Option<&InstanceId> {
        match &self.role {
            Role::Given(..) => None,
            Role::SidecarOf(parent) => Some(parent),
        }
    }
}

/// A registered check and how it fares.
#[derive(Debug, Clone)]
pub(crate) struct CheckState {
    pub(crate) record: Check,
    pub(crate) spec: CheckSpec,
    pub(crate) origin: Origin,
    threshold: Threshold,
    critical_since: Option<Instant>,
    written_output: String,
    written_at: Instant,
    kept_at: Instant,
}

/// How a check came to be here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// With its service.
    Service {
        /// Who registered the service.
        source: Source,
        /// Whether it is the agent's own look at a sidecar's listener.
        own_probe: bool,
    },
    /// By a registration of its own, of this source.
    Apart(Source),
}

impl Origin {
    pub(crate) fn is_apart(self) -> bool {
        matches!(self, Self::Apart(_))
    }

    /// Who registered it, or its service.
    pub(crate) fn source(self) -> Source {
        match self {
            Self::Service { source, .. } | Self::Apart(source) => source,
        }
    }
}

impl CheckState {
    pub(crate) fn definition(&self) -> &CheckDefinition {
        &self.spec.definition
    }

    pub(crate) fn owner(&self) -> Option<&InstanceId> {
        self.record.service.as_ref().map(|service| &service.id)
    }
}

/// A status kept across a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) status: CheckStatus,
    pub(crate) output: String,
}

/// Something that is kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    Service(InstanceId),
    Check(CheckId),
    Status(CheckId),
}

/// What an operation changed, and what was there before.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Records that differ from what the catalog was last told.
    pub(crate) keys: BTreeSet<RecordKey>,
    /// Things that differ from what is on disk.
    pub(crate) kept: BTreeSet<Kept>,
    /// Checks to be started, stopped or started anew.
    pub(crate) checks: BTreeSet<CheckId>,
    /// The way back.
    pub(crate) before: Before,
}

impl Touched {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.kept.is_empty()
    }
}

/// Entries as they were before an operation.
#[derive(Debug, Default)]
pub(crate) struct Before {
    pub(crate) services: BTreeMap<InstanceId, Option<Service>>,
    pub(crate) checks: BTreeMap<CheckId, Option<CheckState>>,
}

/// Everything that is registered on this node.
#[derive(Debug)]
pub(crate) struct Registrations {
    node: Node,
    /// Where an instance is that does not say so.
    locality: Option<Arc<Locality>>,
    ports: RangeInclusive<u16>,
    services: BTreeMap<InstanceId, Service>,
    checks: BTreeMap<CheckId, CheckState>,
    /// Checks by the instance they speak of; `None` is the node.
    owned: BTreeMap<Option<InstanceId>, BTreeSet<CheckId>>,
    /// Alias checks by the local instance they look at; `None` is the node.
    aliases: BTreeMap<Option<InstanceId>, BTreeSet<CheckId>>,
}

impl Registrations {
    pub(crate) fn new(node: Node, ports: RangeInclusive<u16>) -> Self {
        Self {
            node,
            locality: None,
            ports,
            services: BTreeMap::new(),
            checks: BTreeMap::new(),
            owned: BTreeMap::new(),
            aliases: BTreeMap::new(),
        }
    }

    /// Says where the node is; it counts for what is registered from now on.
    pub(crate) fn run_at(&mut self, locality: Option<Arc<Locality>>) {
        self.locality = locality;
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn services(&self) -> &BTreeMap<InstanceId, Service> {
        &self.services
    }

    pub(crate) fn checks(&self) -> &BTreeMap<CheckId, CheckState> {
        &self.checks
    }

    pub(crate) fn checks_of(&self, owner: Option<&InstanceId>) -> impl Iterator<Item = &CheckId> {
        self.owned.get(&owner.cloned()).into_iter().flatten()
    }

    /// An instance and its nested sidecar.
    pub(crate) fn family(&self, id: &InstanceId) -> impl Iterator<Item = &Service> {
        [Some(id.clone()), self.sidecars_of(id).next()].into_iter().flatten().filter_map(|id| self.services.get(&id))
    }

    /// Registers a service with its checks and sidecar, in place of what its id had before.
    pub(crate) fn register(
        &mut self,
        given: ServiceRegistration,
        source: Source,
        existing: ExistingChecks,
        now: Instant,
    ) -> Result<Touched, FieldError> {
        let mut expanded = expand(given, &self.node, &self.services, &self.ports)?;
        expanded.place(self.locality.as_ref());
        self.refuse_foreign_checks(&expanded.main)?;
        if let Some(sidecar) = &expanded.sidecar {
            self.refuse_foreign_checks(sidecar)?;
        }
        let mut touched = Touched::default();
        let Expanded { given, main, sidecar } = expanded;
        let id = main.instance.key.id.clone();
        let former: Vec<InstanceId> = self.sidecars_of(&id).collect();
        for old in former {
            if sidecar.as_ref().is_none_or(|part| part.instance.key.id != old) {
                self.drop_service(&old, &mut touched);
            }
        }
        self.put_part(main, Role::Given(Box::new(given), source), existing, now, &mut touched);
        if let Some(part) = sidecar {
            self.put_part(part, Role::SidecarOf(id), existing, now, &mut touched);
        }
        self.settle_aliases(&mut touched, now);
        Ok(touched)
    }

    /// Ports for sidecars that name none.
    pub(crate) fn sidecar_ports(&self) -> &RangeInclusive<u16> {
        &self.ports
    }

    /// Removes a service, its sidecar and all their checks; `None` if it is not here.
    pub(crate) fn deregister(&mut self, id: &InstanceId, now: Instant) -> Option<Touched> {
        let service = self.services.get(id)?;
        let mut touched = Touched::default();
        if let Some(parent) = service.parent().cloned() {
            // What is kept of the parent must not bring the sidecar back at the next start.
            self.remember_service(&parent, &mut touched);
            if let Some(Service { role: Role::Given(given, _), .. }) = self.services.get_mut(&parent) {
                given.sidecar = None;
            }
            touched.kept.insert(Kept::Service(parent));
        }
        let sidecars: Vec<InstanceId> = self.sidecars_of(id).collect();
        for gone in sidecars.iter().chain([id]) {
            self.drop_service(gone, &mut touched);
        }
        self.settle_aliases(&mut touched, now);
        Some(touched)
    }

    /// Registers a check of the node or of an instance, in place of what its id had before.
    pub(crate) fn register_check(
        &mut self,
        id: CheckId,
        owner: Option<&InstanceId>,
        spec: CheckSpec,
        source: Source,
        now: Instant,
    ) -> Result<Touched, FieldError> {
        let mut touched = Touched::default();
        if let Some(other) = self.checks.get(&id).filter(|other| other.owner() != owner) {
            // What files say holds, whatever they said before, or anybody else.
            if source != Source::File || !other.origin.is_apart() {
                return Err(FieldError::new("CheckID", format!("{id:?} is a check of another service")));
            }
            self.drop_check(&id, &mut touched);
        }
        self.put_check(id, spec, owner, Origin::Apart(source), now, &mut touched);
        self.settle_aliases(&mut touched, now);
        Ok(touched)
    }

    /// Removes a check; `None` if it is not here.
    pub(crate) fn deregister_check(&mut self, id: &CheckId, now: Instant) -> Option<Touched> {
        let check = self.checks.get(id)?;
        let mut touched = Touched::default();
        let owner = check.owner().cloned();
        if let (Origin::Service { .. }, Some(owner)) = (check.origin, owner) {
            self.forget_given_check(&owner, id, &mut touched);
        }
        self.drop_check(id, &mut touched);
        self.settle_aliases(&mut touched, now);
        Some(touched)
    }

    /// How a check is run; `None` for one that is not here, follows from others or is put there by hand.
    pub(crate) fn plan(&self, id: &CheckId) -> Option<Plan> {
        let is_run = |check: &&CheckState| !self.is_derived(check) && check.definition().kind != CheckKind::Maintenance;
        let check = self.checks.get(id).filter(is_run)?;
        Some(Plan {
            kind: check.definition().kind.clone(),
            interval: check.definition().interval,
            timeout: definition::timeout(&check.spec),
            source: check.origin.source(),
            impatient: matches!(check.origin, Origin::Service { own_probe: true, .. }),
        })
    }

    /// Puts entries back as they were.
    pub(crate) fn undo(&mut self, before: Before, now: Instant) -> Touched {
        let mut touched = Touched::default();
        for (id, old) in before.checks {
            touched.checks.insert(id.clone());
            touched.kept.insert(Kept::Check(id.clone()));
            self.unlink_check(&id);
            if let Some(check) = old {
                self.link_check(id, check);
            }
        }
        for (id, old) in before.services {
            touched.kept.insert(Kept::Service(id.clone()));
            match old {
                Some(service) => self.services.insert(id, service),
                None => self.services.remove(&id),
            };
        }
        // Written again together with the aliases that looked at what has gone; the catalog has the rest already.
        let node = &self.node.name;
        touched.keys.extend(touched.checks.iter().map(|id| RecordKey::Check(node.clone(), id.clone())));
        let services = touched.kept.iter().filter_map(|kept| match kept {
            Kept::Service(id) => Some(InstanceKey { node: node.clone(), id: id.clone() }),
            Kept::Check(_) | Kept::Status(_) => None,
        });
        touched.keys.extend(services.map(RecordKey::Instance));
        self.settle_aliases(&mut touched, now);
        touched
    }

    /// Who registered an instance, or the one whose sidecar it is.
    fn source_of(&self, role: &Role) -> Source {
        match role {
            Role::Given(_, source) => *source,
            Role::SidecarOf(parent) => {
                self.services.get(parent).map_or(Source::Caller, |service| self.source_of(&service.role))
            }
        }
    }

    fn sidecars_of(&self, id: &InstanceId) -> impl Iterator<Item = InstanceId> {
        // At most one, and always under the name made from its parent's.
        let own = InstanceId::new(&format!("{id}-sidecar-proxy")).ok();
        own.filter(|own| self.services.get(own).and_then(Service::parent) == Some(id)).into_iter()
    }

    fn refuse_foreign_checks(&self, part: &Part) -> Result<(), FieldError> {
        for (id, _) in &part.checks {
            let other = self.checks.get(id).map(CheckState::owner);
            if other.is_some_and(|owner| owner != Some(&part.instance.key.id)) {
                return Err(FieldError::new(
                    "Checks",
                    format!("check id {id:?} is taken by another service or the node"),
                ));
            }
        }
        Ok(())
    }

    fn put_part(&mut self, part: Part, role: Role, existing: ExistingChecks, now: Instant, touched: &mut Touched) {
        let id = part.instance.key.id.clone();
        // What files say of a service beside it is taken back by whoever reads the files.
        let source = self.source_of(&role);
        let of_file = source == Source::File;
        let old = self.services.get(&id);
        let same_instance = old.is_some_and(|old| old.instance == part.instance);
        let same_role = old.is_some_and(|old| old.role == role);
        if !(same_instance && same_role) {
            self.remember_service(&id, touched);
            if !same_instance {
                touched.keys.insert(RecordKey::Instance(part.instance.key.clone()));
            }
            if matches!(role, Role::Given(..)) {
                touched.kept.insert(Kept::Service(id.clone()));
            }
            self.services.insert(id.clone(), Service { instance: part.instance, role });
        }
        let named: BTreeSet<&CheckId> = part.checks.iter().map(|(check, _)| check).collect();
        let (mut gone, mut apart) = (Vec::new(), Vec::new());
        for check in self.checks_of(Some(&id)).filter(|check| !named.contains(check)) {
            match self.checks[check].origin {
                Origin::Apart(of) if existing == ExistingChecks::Keep || (of_file && of == Source::File) => {
                    apart.push((check.clone(), of));
                }
                Origin::Apart(_) | Origin::Service { .. } => gone.push(check.clone()),
            }
        }
        for check in &gone {
            self.drop_check(check, touched);
        }
        for (check, of) in apart {
            let spec = self.checks[&check].spec.clone();
            // The record carries the service's name and tags, which may have changed.
            self.put_check(check, spec, Some(&id), Origin::Apart(of), now, touched);
        }
        for (index, (check, spec)) in part.checks.into_iter().enumerate() {
            let origin = Origin::Service { source, own_probe: part.own_probe && index == 0 };
            self.put_check(check, spec, Some(&id), origin, now, touched);
        }
    }

    fn put_check(
        &mut self,
        id: CheckId,
        spec: CheckSpec,
        owner: Option<&InstanceId>,
        origin: Origin,
        now: Instant,
        touched: &mut Touched,
    ) {
        let service = owner.and_then(|owner| self.services.get(owner)).map(|service| &service.instance);
        let old = self.checks.get(&id);
        let record = Check {
            node: self.node.name.clone(),
            id: id.clone(),
            name: spec.name.clone(),
            status: old.map_or(spec.initial_status, |old| old.record.status),
            notes: spec.notes.clone(),
            output: old.map_or_else(String::new, |old| old.record.output.clone()),
            service: service.map(|instance| CheckedService {
                id: instance.key.id.clone(),
                name: instance.name.clone(),
                tags: instance.tags.clone(),
            }),
            kind: spec.definition.kind.as_str().to_owned(),
            interval: spec.interval_text.clone(),
            timeout: spec.timeout_text.clone(),
            definition: starling_model::OpaqueSettings::default(),
        };
        let same_record = old.is_some_and(|old| old.record == record);
        let same_definition = old.is_some_and(|old| old.spec.definition == spec.definition);
        if same_record && old.is_some_and(|old| old.spec == spec && old.origin == origin) {
            return;
        }
        if !same_record {
            touched.keys.insert(RecordKey::Check(self.node.name.clone(), id.clone()));
        }
        if origin.is_apart() || old.is_some_and(|old| old.origin.is_apart()) {
            touched.kept.insert(Kept::Check(id.clone()));
        }
        // Who registered it is part of how it runs: it decides whether programs are permitted.
        if !same_definition || old.is_some_and(|old| old.origin.source() != origin.source()) {
            touched.checks.insert(id.clone());
        }
        let kept = old.filter(|_| same_definition);
        let critical = record.status == CheckStatus::Critical;
        let check = CheckState {
            threshold: kept.map_or_else(|| Threshold::new(&spec.definition), |old| old.threshold.clone()),
            critical_since: old.map_or(critical.then_some(now), |old| old.critical_since),
            written_output: record.output.clone(),
            written_at: now,
            kept_at: now,
            record,
            spec,
            origin,
        };
        self.remember_check(&id, touched);
        self.unlink_check(&id);
        self.link_check(id, check);
    }

    fn forget_given_check(&mut self, owner: &InstanceId, id: &CheckId, touched: &mut Touched) {
        let top = self.services.get(owner).and_then(Service::parent).unwrap_or(owner).clone();
        self.remember_service(&top, touched);
        let remaining: Vec<CheckSpec> = self
            .checks_of(Some(owner))
            .filter(|other| *other != id && matches!(self.checks[*other].origin, Origin::Service { .. }))
            .map(|other| CheckSpec { id: Some(other.clone()), ..self.checks[other].spec.clone() })
            .collect();
        if let Some(Service { role: Role::Given(given, _), .. }) = self.services.get_mut(&top) {
            match given.sidecar.as_mut().filter(|_| top != *owner) {
                Some(sidecar) => sidecar.checks = remaining,
                None => given.checks = remaining,
            }
        }
        touched.kept.insert(Kept::Service(top));
    }

    fn drop_service(&mut self, id: &InstanceId, touched: &mut Touched) {
        self.remember_service(id, touched);
        let checks: Vec<CheckId> = self.checks_of(Some(id)).cloned().collect();
        for check in &checks {
            self.drop_check(check, touched);
        }
        self.services.remove(id);
        touched.keys.insert(RecordKey::Instance(InstanceKey { node: self.node.name.clone(), id: id.clone() }));
        touched.kept.insert(Kept::Service(id.clone()));
    }

    fn drop_check(&mut self, id: &CheckId, touched: &mut Touched) {
        self.remember_check(id, touched);
        if self.checks[id].origin.is_apart() {
            touched.kept.insert(Kept::Check(id.clone()));
        }
        self.unlink_check(id);
        touched.keys.insert(RecordKey::Check(self.node.name.clone(), id.clone()));
        touched.checks.insert(id.clone());
    }

    fn remember_service(&self, id: &InstanceId, touched: &mut Touched) {
        touched.before.services.entry(id.clone()).or_insert_with(|| self.services.get(id).cloned());
    }

    fn remember_check(&self, id: &CheckId, touched: &mut Touched) {
        touched.before.checks.entry(id.clone()).or_insert_with(|| self.checks.get(id).cloned());
    }

    fn link_check(&mut self, id: CheckId, check: CheckState) {
        self.owned.entry(check.owner().cloned()).or_default().insert(id.clone());
        if let Some(target) = self.alias_target(check.definition()) {
            self.aliases.entry(target).or_default().insert(id.clone());
        }
        self.checks.insert(id, check);
    }

    fn unlink_check(&mut self, id: &CheckId) {
        let Some(check) = self.checks.remove(id) else { return };
        let target = self.alias_target(check.definition());
        for (index, key) in [(&mut self.owned, Some(check.owner().cloned())), (&mut self.aliases, target)] {
            let Some(key) = key else { continue };
            if let Some(set) = index.get_mut(&key) {
                set.remove(id);
                if set.is_empty() {
                    index.remove(&key);
                }
            }
        }
    }

    fn is_derived(&self, check: &CheckState) -> bool {
        self.alias_target(check.definition()).is_some()
    }

    /// The local instance (or node, as `None`) that an alias check looks at; `None` if it is no alias or looks elsewhere.
    fn alias_target(&self, definition: &CheckDefinition) -> Option<Option<InstanceId>> {
        match &definition.kind {
            CheckKind::Alias { node, service } if node.as_ref().is_none_or(|node| *node == self.node.name) => {
                Some(service.clone())
            }
            CheckKind::Alias { .. }
            | CheckKind::Http { .. }
            | CheckKind::Tcp { .. }
            | CheckKind::Udp { .. }
            | CheckKind::H2Ping { .. }
            | CheckKind::Grpc { .. }
            | CheckKind::Docker { .. }
            | CheckKind::Ttl { .. }
            | CheckKind::Script { .. }
            | CheckKind::Maintenance => None,
        }
    }
}

#[cfg(test)]
mod tests;
