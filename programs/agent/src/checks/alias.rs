//! Alias checks: what is said of a check that follows others, and following those of another node.

use std::time::Duration;

use futures::StreamExt;
use starling_model::{Check, CheckStatus, InstanceId, NodeName};

use crate::link::{AliasView, ServerLink};
use crate::registrations::Health;

/// Said where nothing is there to fail; Consul's words.
pub(crate) const NO_CHECKS: &str = "No checks found.";

/// Said where nothing fails; Consul's words.
pub(crate) const ALL_PASSING: &str = "All checks passing.";

/// Wait before following again after the server was lost; DESIGN's ceiling for reconnecting.
const FOLLOW_AGAIN_AFTER: Duration = Duration::from_secs(2);

pub(crate) fn failing(status: CheckStatus, worst: &Check) -> Health {
    Health { status, output: format!("Aliased check {:?} failing: {}", worst.name, worst.output) }
}

pub(crate) fn not_found(service: &InstanceId, node: &NodeName) -> Health {
    let output = format!("Service {service} could not be found on node {node}");
    Health { status: CheckStatus::Critical, output }
}

/// Follows checks of another node for as long as it is polled. While the server is away the last view stands.
pub(crate) async fn follow(
    link: &dyn ServerLink,
    node: &NodeName,
    service: Option<&InstanceId>,
    report: impl Fn(Health),
) {
    loop {
        let mut views = link.follow_checks(node, service);
        while let Some(view) = views.next().await {
            report(judge(&view, node, service));
        }
        tokio::time::sleep(FOLLOW_AGAIN_AFTER).await;
    }
}

fn judge(view: &AliasView, node: &NodeName, service: Option<&InstanceId>) -> Health {
    if !view.exists {
        return match service {
            Some(service) => not_found(service, node),
            None => Health { status: CheckStatus::Critical, output: format!("Node {node} could not be found") },
        };
    }
    let speaks = |check: &&Check| check.service.as_ref().is_none_or(|of| Some(&of.id) == service);
    match view.checks.iter().filter(speaks).max_by_key(|check| check.status) {
        None => Health { status: CheckStatus::Passing, output: NO_CHECKS.to_owned() },
        Some(worst) if worst.status == CheckStatus::Passing => {
            Health { status: CheckStatus::Passing, output: ALL_PASSING.to_owned() }
        }
        Some(worst) => failing(worst.status, worst),
    }
}
