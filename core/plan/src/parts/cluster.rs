//! How a target is called.

use std::time::Duration;

use starling_identity::{SpiffeId, service_sni, subset_sni};
use starling_model::{
    InstanceKey, PassiveHealthCheck, Percent, RetryBudget, ServiceDefaults, ServiceName, Upstream, UpstreamSettings,
};

use super::chain::Chain;
use crate::diagnostic::{Diagnostic, Object};
use crate::parts::opaque::Opaque;
use crate::plan::{Cluster, Limits, Routes, Target};
use crate::planner::MeshSettings;
use crate::view::View;

/// Time to connect to a peer where nobody names one; Consul's default.
pub(crate) const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// What a caller sets of its own; callers that set the same share a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallSettings {
    settings: UpstreamSettings,
    /// From the rules by which the caller comes.
    retry_budget: Option<RetryBudget>,
}

impl CallSettings {
    /// The settings of an upstream of `proxy`: its own, and where they say nothing, those of the service-defaults of the
    /// service that calls.
    pub(crate) fn of(
        proxy: &InstanceKey,
        caller: Option<&ServiceDefaults>,
        upstream: &Upstream,
    ) -> (Self, Vec<Diagnostic>) {
        let path = format!("Proxy.Upstreams[{}].Config", upstream.destination);
        let mut config = Opaque::new(&upstream.config, Object::Instance(proxy.clone()), path);
        let mut own = UpstreamSettings {
            connect_timeout: config.milliseconds("connect_timeout_ms").filter(|timeout| !timeout.is_zero()),
            ..UpstreamSettings::default()
        };
        if let Some(mut limits) = config.nested("limits") {
            own.max_connections = limits.count("max_connections");
            own.max_pending_requests = limits.count("max_pending_requests");
            own.max_concurrent_requests = limits.count("max_concurrent_requests");
            config.diagnostics.append(&mut limits.diagnostics);
        }
        if let Some(mut check) = config.nested("passive_health_check") {
            let mut share = |key| check.count(key).and_then(|number| Percent::parse(f64::from(number)));
            let (enforcing, max_ejected) = (share("enforcing_consecutive_5xx"), share("max_ejection_percent"));
            own.passive_health_check = Some(PassiveHealthCheck {
                interval: check.nanoseconds("interval"),
                max_failures: check.count("max_failures"),
                enforcing,
                max_ejected,
                base_ejection_time: check.nanoseconds("base_ejection_time"),
            });
            config.diagnostics.append(&mut check.diagnostics);
        }
        let Self { settings: written, .. } = Self::written(caller, &upstream.destination);
        (Self { settings: own.or(written), retry_budget: None }, config.diagnostics)
    }

    /// The settings that the service-defaults of the service that calls have for calls of `service`.
    pub(crate) fn written(caller: Option<&ServiceDefaults>, service: &ServiceName) -> Self {
        let written = caller.map(|defaults| defaults.upstream_config.of(service));
        Self { settings: written.unwrap_or_default(), retry_budget: None }
    }

    /// The settings of a caller that says nothing but these.
    pub(crate) fn plain(settings: UpstreamSettings) -> Self {
        Self { settings, retry_budget: None }
    }

    /// The same for a caller that comes by these routes.
    pub(crate) fn by(self, routes: &Routes) -> Self {
        Self { retry_budget: routes.retry_budget, ..self }
    }
}

/// Builds the cluster of `target` for callers with `settings`.
pub(crate) fn build(
    view: &mut View<'_>,
    mesh: &MeshSettings,
    target: &Target,
    settings: &CallSettings,
) -> (Cluster, Vec<Diagnostic>) {
    let CallSettings { settings, retry_budget } = settings;
    let resolver = view.service_resolver(&target.service);
    let connect_timeout = settings.connect_timeout.or_else(|| resolver?.connect_timeout);
    let balance = resolver.and_then(|resolver| resolver.load_balancer.as_ref()).map(|balancer| balancer.policy);
    let protocol = view.protocol(&target.service);
    let own = identity(mesh, &target.service);
    // What is wrong on the way to them is told where their endpoints are.
    let failover = Chain { view, diagnostics: Vec::new() }.failover(target);
    let mut failover_identities: Vec<_> = failover.iter().map(|group| identity(mesh, &group.service)).collect();
    failover_identities.retain(|identity| *identity != own);
    failover_identities.sort_by_key(SpiffeId::to_uri);
    failover_identities.dedup();
    let cluster = Cluster {
        service: target.service.clone(),
        subset: target.subset.clone(),
        sni: name(mesh, target),
        identity: own,
        failover_identities,
        protocol,
        connect_timeout: connect_timeout.unwrap_or(CONNECT_TIMEOUT_DEFAULT),
        limits: Limits {
            connections: settings.max_connections,
            pending_requests: settings.max_pending_requests,
            concurrent_requests: settings.max_concurrent_requests,
        },
        balance: balance.unwrap_or_default(),
        outlier: settings.passive_health_check,
        retry_budget: *retry_budget,
    };
    (cluster, Vec::new())
}

/// The cluster name of `target`.
pub(crate) fn name(mesh: &MeshSettings, target: &Target) -> String {
    let (namespace, datacenter, trust_domain) = (&mesh.namespace, &mesh.datacenter, &mesh.trust_domain);
    match &target.subset {
        Some(subset) => subset_sni(subset.as_str(), &target.service, namespace, datacenter, trust_domain),
        None => service_sni(&target.service, namespace, datacenter, trust_domain),
    }
}

fn identity(mesh: &MeshSettings, service: &ServiceName) -> SpiffeId {
    SpiffeId::new(
        mesh.layout,
        mesh.trust_domain.clone(),
        mesh.namespace.clone(),
        mesh.datacenter.clone(),
        service.clone(),
    )
}
