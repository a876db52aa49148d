//! What feeds make of plans: resources for Envoys, gRPC libraries and native proxies, or the plan itself for this process.

use std::sync::Arc;

use starling_plan::{Diagnostic, Object, Plan, Severity};
use starling_xds::{ResourceSet, ServiceLeaves};

use super::certificates::ByService;
use super::{Client, Inner};
use crate::leaves::Leaf;

/// What a feed makes of a plan.
pub(super) trait Rendering: Send + Sync + 'static {
    /// What whoever it feeds is given.
    type Form: Send + Sync + 'static;

    /// `others` are the certificates of services for which the proxy stands.
    fn render(&self, proxies: &Inner, plan: &Plan, leaf: &Arc<Leaf>, others: &ByService) -> Arc<Self::Form>;

    /// What of a plan whoever it feeds cannot do.
    fn cannot(&self, _plan: &Plan) -> Option<Diagnostic> {
        None
    }

    /// What it is given while it is not registered, if it is told so. Nobody else may have its ports before it gives them up.
    fn withdrawn(&self, _last: &Plan) -> Option<Arc<Self::Form>> {
        None
    }
}

impl Rendering for Client {
    type Form = ResourceSet;

    fn render(&self, proxies: &Inner, plan: &Plan, leaf: &Arc<Leaf>, others: &ByService) -> Arc<ResourceSet> {
        let mut shared = proxies.lock();
        let others: ServiceLeaves =
            others.iter().map(|(service, leaf)| (service.clone(), shared.rendered_leaf(leaf))).collect();
        Arc::new(match self {
            Self::Envoy => {
                let leaf = shared.rendered_leaf(leaf);
                shared.renderer.render_gateway(plan, Some(&leaf), &others)
            }
            Self::Grpc => shared.renderer.render_for_grpc(plan),
            Self::Native => {
                let leaf = shared.rendered_leaf(leaf);
                shared.renderer.render_for_native(plan, &leaf, &others)
            }
        })
    }

    fn cannot(&self, plan: &Plan) -> Option<Diagnostic> {
        let who = match self {
            Self::Native => return None,
            Self::Envoy => "an Envoy serves it, and Envoys",
            Self::Grpc => "a gRPC library serves it, and they",
        };
        plan.capture.as_ref().map(|_| Diagnostic {
            object: Object::Instance(plan.proxy.clone()),
            field: "Proxy.Mode".to_owned(),
            reason: format!(
                "it is transparent, but {who} do not capture, so connections that are led to it are refused"
            ),
            fix: "leave it to the native data plane, or register it as direct and its upstreams with ports".to_owned(),
            severity: Severity::Error,
        })
    }

    fn withdrawn(&self, last: &Plan) -> Option<Arc<ResourceSet>> {
        match self {
            // It has no way to listen no more and to stay.
            Self::Envoy | Self::Grpc => None,
            Self::Native => Some(Arc::new(ResourceSet::new(last.revision, Vec::new()))),
        }
    }
}

/// The native data plane in the agent's own process.
pub(super) struct Native;

/// What the native data plane serves a workload from.
pub(crate) struct NativeForm {
    pub(crate) plan: Plan,
    pub(crate) leaf: Arc<Leaf>,
}

impl Rendering for Native {
    type Form = NativeForm;

    fn render(&self, _proxies: &Inner, plan: &Plan, leaf: &Arc<Leaf>, _others: &ByService) -> Arc<NativeForm> {
        Arc::new(NativeForm { plan: plan.clone(), leaf: Arc::clone(leaf) })
    }
}
