//! Makes plans, and remembers the parts that plans share.

mod gateway;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use starling_catalog::{MeshRead, Subject};
use starling_identity::Layout;
use starling_model::{
    AccessLog, Action, Datacenter, InstanceKey, InstanceKind, Locality, Namespace, ServiceInstance, ServiceName,
    SidecarProxy, Tracing, TrustDomain,
};
use starling_traffic::Policy;

use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::parts::cluster::CallSettings;
use crate::parts::edge::entry_of;
use crate::parts::exit::OriginsKey;
use crate::parts::{capture, cluster, endpoints, inbound, opaque, outbound, policy, routes};
use crate::plan::{
    Capture, Cluster, Edge, Endpoints, EndpointsKey, Exit, Inbound, Origins, Outbound, Plan, Routes, Target, Trust,
    Virtual,
};
use crate::shelf::{Origin, Shelf};
use crate::view::View;

/// What holds for the whole mesh and is no part of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSettings {
    /// The authority of every identity.
    pub trust_domain: TrustDomain,
    /// The datacentre.
    pub datacenter: Datacenter,
    /// The namespace of every service.
    pub namespace: Namespace,
    /// What happens where no intention decides.
    pub default_intention_action: Action,
    /// The form of SPIFFE IDs.
    pub layout: Layout,
}

/// A plan, what is wrong with it, and what it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// What the proxy must do.
    pub plan: Plan,
    /// What users should mend, ordered by object, each once.
    pub diagnostics: Vec<Diagnostic>,
    /// Everything read. The plan is the same for as long as none of these changes: they are the proxy's subscriptions.
    pub subjects: BTreeSet<Subject>,
}

/// Why there is no plan at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No instance is registered under this key.
    #[error("no proxy is registered as {0}")]
    UnknownProxy(InstanceKey),
    /// The instance is the application itself.
    #[error("{0} is neither a sidecar nor a gateway")]
    NotAProxy(InstanceKey),
}

/// Makes plans from snapshots, one mesh's.
///
/// Parts are shared between the plans that it made and that are still held: keep a proxy's plan until the next one is made.
pub struct Planner {
    settings: MeshSettings,
    trusts: Shelf<(), Trust>,
    policies: Shelf<ServiceName, Policy>,
    inbounds: Shelf<InstanceKey, Inbound>,
    edges: Shelf<(InstanceKey, SocketAddr), Edge>,
    exits: Shelf<(InstanceKey, Target), Exit>,
    origins: Shelf<OriginsKey, Origins>,
    captures: Shelf<InstanceKey, Capture>,
    outbounds: Shelf<(ServiceName, SocketAddr), Outbound>,
    routes: Shelf<ServiceName, Routes>,
    clusters: Shelf<(Target, CallSettings), Cluster>,
    endpoints: Shelf<EndpointsKey, Endpoints>,
    access_log: Arc<AccessLog>,
    tracing: Arc<Tracing>,
}

/// A plan in the making: what was read and found so far.
struct Draft<'a> {
    mesh: &'a dyn MeshRead,
    /// Where the proxy runs.
    from: Option<Arc<Locality>>,
    subjects: BTreeSet<Subject>,
    diagnostics: BTreeSet<Diagnostic>,
}

/// The calling side of a plan.
#[derive(Default)]
struct Calls {
    outbounds: Vec<Arc<Outbound>>,
    routes: Vec<Arc<Routes>>,
    targets: BTreeMap<Target, Called>,
    capture: Option<Arc<Capture>>,
}

/// Where it is written that a service is called.
#[derive(Clone, Copy)]
enum Written<'a> {
    /// In the registration of a sidecar.
    Upstream { proxy: &'a InstanceKey, service: &'a ServiceName },
    /// In the entry of a gateway.
    Gateway { entry: &'a ServiceName, service: &'a ServiceName },
}

/// A target that is called.
struct Called {
    /// The service that was first to lead to it, and its settings.
    upstream: ServiceName,
    settings: CallSettings,
    cluster: Arc<Cluster>,
    endpoints: Arc<Endpoints>,
}

/// What is said of all proxies, as one part for as long as it stays the same.
fn kept<T: PartialEq + Clone + Default>(part: &mut Arc<T>, said: Option<&T>) -> Arc<T> {
    match said {
        Some(said) if *said != **part => *part = Arc::new(said.clone()),
        None if **part != T::default() => *part = Arc::default(),
        Some(_) | None => {}
    }
    Arc::clone(part)
}

impl Planner {
    /// A planner that remembers nothing yet.
    #[must_use]
    pub fn new(settings: MeshSettings) -> Self {
        Self {
            settings,
            trusts: Shelf::new(),
            policies: Shelf::new(),
            access_log: Arc::default(),
            tracing: Arc::default(),
            inbounds: Shelf::new(),
            edges: Shelf::new(),
            exits: Shelf::new(),
            origins: Shelf::new(),
            captures: Shelf::new(),
            outbounds: Shelf::new(),
            routes: Shelf::new(),
            clusters: Shelf::new(),
            endpoints: Shelf::new(),
        }
    }

    /// The settings that it plans with.
    #[must_use]
    pub fn settings(&self) -> &MeshSettings {
        &self.settings
    }

    /// Parts remembered, those included that no plan holds any more and the next sweep forgets.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.trusts.len()
            + self.policies.len()
            + self.inbounds.len()
            + self.edges.len()
            + self.exits.len()
            + self.origins.len()
            + self.captures.len()
            + self.outbounds.len()
            + self.routes.len()
            + self.clusters.len()
            + self.endpoints.len()
    }

    /// What `proxy` must do as of `mesh`.
    ///
    /// States must be of one catalog and must not go back, or memos of a later one are taken for current.
    ///
    /// # Errors
    /// [`PlanError`] if there is no such proxy; everything else that can be wrong is a diagnostic.
    pub fn plan(&mut self, mesh: &dyn MeshRead, proxy: &InstanceKey) -> Result<Planned, PlanError> {
        let mut view = View::new(mesh);
        let (instance, node_address) = view.instance(proxy).ok_or_else(|| PlanError::UnknownProxy(proxy.clone()))?;
        let from = instance.locality.clone();
        let mut draft = Draft { mesh, from, subjects: BTreeSet::new(), diagnostics: BTreeSet::new() };
        let defaults = view.proxy_defaults();
        let access_log = kept(&mut self.access_log, defaults.map(|entry| &entry.access_logs));
        let tracing = kept(&mut self.tracing, defaults.map(|entry| &*entry.tracing));
        let trust = draft.take(self.trusts.fetch(&(), mesh, build_trust));
        // A proxy that trusts nobody must not listen: it could verify no peer.
        let (mut inbound, mut edges, mut exits) = (None, Vec::new(), Vec::new());
        let calls = match &instance.kind {
            InstanceKind::Typical | InstanceKind::OtherGateway(_) => {
                return Err(PlanError::NotAProxy(proxy.clone()));
            }
            InstanceKind::Sidecar(_) | InstanceKind::IngressGateway(_) | InstanceKind::TerminatingGateway(_)
                if trust.roots_pem.is_empty() =>
            {
                Calls::default()
            }
            InstanceKind::Sidecar(sidecar) => {
                inbound = self.inbound(&mut draft, &mut view, instance, sidecar, node_address);
                self.calls(&mut draft, &mut view, proxy, sidecar, inbound.as_ref().map(|inbound| inbound.bind))
            }
            InstanceKind::IngressGateway(config) => {
                let (listening, calls) = self.edges(&mut draft, &mut view, instance, (config, node_address));
                edges = listening;
                calls
            }
            InstanceKind::TerminatingGateway(config) => {
                exits = self.exits(&mut draft, &mut view, instance, (config, node_address));
                Calls::default()
            }
        };
        draft.subjects.extend(view.into_read().into_iter().map(|(subject, _)| subject));
        let (clusters, endpoints) =
            calls.targets.into_values().map(|called| (called.cluster, called.endpoints)).unzip();
        let (exits, origins) = exits.into_iter().unzip();
        let plan = Plan {
            revision: mesh.revision(),
            proxy: proxy.clone(),
            service: instance.identity().clone(),
            trust,
            inbound,
            edges,
            outbounds: calls.outbounds,
            routes: calls.routes,
            clusters,
            endpoints,
            exits,
            origins,
            capture: calls.capture,
            access_log,
            tracing,
        };
        Ok(Planned { plan, diagnostics: draft.diagnostics.into_iter().collect(), subjects: draft.subjects })
    }

    /// Where `target` is as of `mesh`: the part that a plan of one of its callers at `from` would hold.
    pub fn endpoints(
        &mut self,
        mesh: &dyn MeshRead,
        target: &Target,
        from: Option<&Arc<Locality>>,
    ) -> (Arc<Endpoints>, Arc<Origin>) {
        // Building asks the same, so the part's origin says that it depends on the answer.
        let near = mesh.prefers_near(&target.service);
        let key = (target.clone(), from.filter(|_| near).cloned());
        let settings = &self.settings;
        self.endpoints.fetch(&key, mesh, |view| endpoints::build(view, settings, &key))
    }

    /// Who may call `service` as of `mesh`: the part that a plan of one of its sidecars would hold.
    fn policy(&mut self, mesh: &dyn MeshRead, service: &ServiceName) -> (Arc<Policy>, Arc<Origin>) {
        let settings = &self.settings;
        self.policies.fetch(service, mesh, |view| policy::build(view, settings, service))
    }

    fn inbound(
        &mut self,
        draft: &mut Draft<'_>,
        view: &mut View<'_>,
        instance: &ServiceInstance,
        sidecar: &SidecarProxy,
        node_address: Option<&str>,
    ) -> Option<Arc<Inbound>> {
        draft.diagnostics.extend(opaque::kept_only(&instance.key, sidecar));
        // Without a port behind it a sidecar only calls out, and no policy is read for it.
        sidecar.local_port?;
        let service = &sidecar.destination;
        let policy = draft.take(self.policy(draft.mesh, service));
        let (built, diagnostics) = inbound::build(view, instance, sidecar, node_address, policy);
        draft.diagnostics.extend(diagnostics);
        let built = built?;
        let config = &sidecar.config;
        draft.diagnostics.extend(opaque::misplaced_protocol(
            &instance.key,
            "Proxy.Config",
            config,
            service,
            built.protocol,
        ));
        Some(self.inbounds.keep(&instance.key, built, inbound::same))
    }

    fn calls(
        &mut self,
        draft: &mut Draft<'_>,
        view: &mut View<'_>,
        proxy: &InstanceKey,
        sidecar: &SidecarProxy,
        public: Option<SocketAddr>,
    ) -> Calls {
        let (admitted, diagnostics) = outbound::admit(proxy, &sidecar.upstreams, public);
        draft.diagnostics.extend(diagnostics);
        let mut calls = Calls::default();
        let caller = view.service_defaults(&sidecar.destination);
        for (bind, upstream) in admitted {
            let service = &upstream.destination;
            let (settings, diagnostics) = CallSettings::of(proxy, caller, upstream);
            draft.diagnostics.extend(diagnostics);
            let outbound = self.outbounds.fetch(&(service.clone(), bind), draft.mesh, |view| {
                (Outbound { service: service.clone(), bind, protocol: view.protocol(service) }, Vec::new())
            });
            let outbound = draft.take(outbound);
            let path = format!("Proxy.Upstreams[{service}].Config");
            let spoken = outbound.protocol;
            draft.diagnostics.extend(opaque::misplaced_protocol(proxy, &path, &upstream.config, service, spoken));
            calls.outbounds.push(outbound);
            self.call_service(draft, &mut calls, Written::Upstream { proxy, service }, settings);
        }
        if let Some(transparent) = sidecar.transparent {
            let virtuals = capture::called(view, sidecar, &self.settings.trust_domain);
            for Virtual { service, .. } in &virtuals {
                if calls.routes.iter().all(|routes| routes.service != *service) {
                    let by = Written::Upstream { proxy, service };
                    self.call_service(draft, &mut calls, by, CallSettings::written(caller, service));
                }
            }
            let built = capture::build(view, transparent, virtuals);
            calls.capture = Some(self.captures.keep(proxy, built, PartialEq::eq));
        }
        calls.routes.sort_by(|a, b| a.service.cmp(&b.service));
        calls
    }

    /// Has a service called, by its routes.
    fn call_service(&mut self, draft: &mut Draft<'_>, calls: &mut Calls, by: Written<'_>, settings: CallSettings) {
        let (own, service) = (&self.settings, by.service());
        let routes = draft.take(self.routes.fetch(service, draft.mesh, |view| routes::build(view, own, service)));
        let settings = settings.by(&routes);
        for target in &routes.targets {
            self.call(draft, calls, by, target, &settings);
        }
        if calls.routes.iter().all(|other| other.service != *service) {
            calls.routes.push(routes);
        }
    }

    /// Has `target` called, unless it is already.
    fn call(
        &mut self,
        draft: &mut Draft<'_>,
        calls: &mut Calls,
        by: Written<'_>,
        target: &Target,
        settings: &CallSettings,
    ) {
        if let Some(called) = calls.targets.get(target) {
            if called.settings != *settings {
                draft.diagnostics.insert(second_settings(by, target, &called.upstream));
            }
            return;
        }
        let own = &self.settings;
        let key = (target.clone(), *settings);
        let cluster = self.clusters.fetch(&key, draft.mesh, |view| cluster::build(view, own, target, settings));
        let endpoints = self.endpoints(draft.mesh, target, draft.from.as_ref());
        let called = Called {
            upstream: by.service().clone(),
            settings: *settings,
            cluster: draft.take(cluster),
            endpoints: draft.take(endpoints),
        };
        calls.targets.insert(target.clone(), called);
    }
}

impl Draft<'_> {
    /// Adds where a part came from to the plan's own origin.
    fn take<T>(&mut self, (part, origin): (Arc<T>, Arc<Origin>)) -> Arc<T> {
        for (subject, _) in &origin.read {
            if !self.subjects.contains(subject) {
                self.subjects.insert(subject.clone());
            }
        }
        self.diagnostics.extend(origin.diagnostics.iter().cloned());
        part
    }
}

fn build_trust(view: &mut View<'_>) -> (Trust, Vec<Diagnostic>) {
    let roots_pem = view.roots_pem();
    let mut diagnostics = Vec::new();
    if roots_pem.is_empty() {
        diagnostics.push(Diagnostic {
            object: Object::Mesh,
            field: String::new(),
            reason: "no root certificate is trusted, so no proxy listens".to_owned(),
            fix: "wait for the server to make its root, or see its log for why it could not".to_owned(),
            severity: Severity::Error,
        });
    }
    (Trust { roots_pem }, diagnostics)
}

impl<'a> Written<'a> {
    /// The service.
    fn service(self) -> &'a ServiceName {
        match self {
            Self::Upstream { service, .. } | Self::Gateway { service, .. } => service,
        }
    }
}

/// `first` is the service that was first to lead to the target.
fn second_settings(by: Written<'_>, target: &Target, first: &ServiceName) -> Diagnostic {
    let service = by.service();
    let (object, field, what) = match by {
        Written::Upstream { proxy, service } => {
            (Object::Instance(proxy.clone()), format!("Proxy.Upstreams[{service}].Config"), "upstream")
        }
        Written::Gateway { entry, .. } => (entry_of(entry), format!("Listeners[].Services[{service}]"), "service"),
    };
    let (reason, fix) = if service == first {
        (
            format!(
                "{service} is called through several listeners; the settings of the one with the lowest address and port hold for all"
            ),
            format!("give every {what} to {service} the same settings"),
        )
    } else {
        (
            format!("{target} is called through {first} as well, whose settings, retry budget included, hold for both"),
            format!("give the {what}s to {first} and {service} the same settings"),
        )
    };
    Diagnostic { object, field, reason, fix, severity: Severity::Warning }
}
