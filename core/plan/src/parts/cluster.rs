//! How a service is called.

use std::time::Duration;

use starling_identity::{SpiffeId, service_sni};
use starling_model::{InstanceKey, ServiceName, Upstream};

use crate::diagnostic::{Diagnostic, Object};
use crate::parts::opaque::Opaque;
use crate::plan::{Cluster, Limits};
use crate::planner::MeshSettings;
use crate::view::View;

/// Time to connect to a peer where the upstream names none; Consul's default.
pub(crate) const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// What a caller sets of its own; callers that set the same share a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallSettings {
    pub connect_timeout: Duration,
    pub limits: Limits,
}

impl CallSettings {
    /// Reads the settings of an upstream of `proxy`.
    pub(crate) fn of(proxy: &InstanceKey, upstream: &Upstream) -> (Self, Vec<Diagnostic>) {
        let path = format!("Proxy.Upstreams[{}].Config", upstream.destination);
        let mut config = Opaque::new(&upstream.config, Object::Instance(proxy.clone()), path);
        let timeout = config.milliseconds("connect_timeout_ms").filter(|timeout| !timeout.is_zero());
        let mut settings =
            Self { connect_timeout: timeout.unwrap_or(CONNECT_TIMEOUT_DEFAULT), limits: Limits::default() };
        if let Some(mut limits) = config.nested("limits") {
            settings.limits = Limits {
                connections: limits.count("max_connections"),
                pending_requests: limits.count("max_pending_requests"),
                concurrent_requests: limits.count("max_concurrent_requests"),
            };
            config.diagnostics.append(&mut limits.diagnostics);
        }
        (settings, config.diagnostics)
    }
}

/// Builds the cluster of `service` for callers with `settings`.
pub(crate) fn build(
    view: &mut View<'_>,
    mesh: &MeshSettings,
    service: &ServiceName,
    settings: &CallSettings,
) -> Cluster {
    Cluster {
        service: service.clone(),
        sni: sni(mesh, service),
        identity: identity(mesh, service),
        protocol: view.protocol(service),
        connect_timeout: settings.connect_timeout,
        limits: settings.limits,
    }
}

/// The cluster name of `service`.
pub(crate) fn sni(mesh: &MeshSettings, service: &ServiceName) -> String {
    service_sni(service, &mesh.namespace, &mesh.datacenter, &mesh.trust_domain)
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

impl From<&Cluster> for CallSettings {
    fn from(cluster: &Cluster) -> Self {
        Self { connect_timeout: cluster.connect_timeout, limits: cluster.limits }
    }
}
