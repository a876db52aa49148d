//! Where a service is: the sidecars in front of it and its native instances, as far as they are in health.

use std::net::IpAddr;

use starling_catalog::Front;
use starling_model::{CheckStatus, ServiceName};

use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::plan::{Endpoint, Endpoints};
use crate::view::View;

/// Share of load of one endpoint at most: RFC 2782 weights have 16 bits, and 65,536 such endpoints stay within the 32 bits
/// that Envoy allows a locality.
const WEIGHT_MAX: u32 = 65_535;

/// Endpoints of one service that are named as unusable; the rest is counted, so that a service of thousands of host names
/// does not fill every caller's list.
const UNUSABLE_NAMED_MAX: usize = 10;

/// Builds the endpoints of `service`, under the cluster name `cluster`.
pub(crate) fn build(view: &mut View<'_>, service: &ServiceName, cluster: String) -> (Endpoints, Vec<Diagnostic>) {
    let (mut endpoints, mut diagnostics, mut fronts) = (Vec::new(), Vec::new(), 0_usize);
    // Read always, so that a plan depends on the same whether anybody is there or not: where it would only then, the last
    // endpoint's leaving would have every caller ask for one subject more, and its return for one less.
    let exists = view.has_instances(service);
    view.visit_fronts(service, &mut |front| {
        fronts += 1;
        if front.health == CheckStatus::Critical {
            return;
        }
        match endpoint(front) {
            Ok(endpoint) => endpoints.extend(endpoint),
            Err(diagnostic) => diagnostics.push(*diagnostic),
        }
    });
    bound(&mut diagnostics, service);
    // The heavier comes first, so that it stays where two share an address.
    endpoints.sort_by_key(|endpoint: &Endpoint| (endpoint.address, endpoint.port, u32::MAX - endpoint.weight));
    endpoints.dedup_by_key(|endpoint| (endpoint.address, endpoint.port));
    if fronts == 0 {
        diagnostics.push(unreachable(service, exists));
    } else if endpoints.is_empty() && diagnostics.is_empty() {
        diagnostics.push(Diagnostic {
            object: Object::Service(service.clone()),
            field: String::new(),
            reason: format!("none of its {fronts} sidecars and native instances is in health"),
            fix: "see its checks".to_owned(),
            severity: Severity::Warning,
        });
    }
    (Endpoints { service: service.clone(), cluster, endpoints }, diagnostics)
}

/// The endpoint of a front in health; `None` if its weight asks for no load.
fn endpoint(front: &Front) -> Result<Option<Endpoint>, Box<Diagnostic>> {
    let unusable = |field: &str, reason: String, fix: &str| {
        Box::new(Diagnostic {
            object: Object::Instance(front.key.clone()),
            field: field.to_owned(),
            reason: format!("{reason}, so nobody calls it"),
            fix: fix.to_owned(),
            severity: Severity::Error,
        })
    };
    let Some(port) = front.port else {
        return Err(unusable("Port", "it has no port".to_owned(), "register it with the port it listens on"));
    };
    let Some(address) = front.address.as_deref() else {
        return Err(unusable("Address", "neither it nor its node has an address".to_owned(), "register its node"));
    };
    let fix = "register it, or its node, with the IP at which peers reach it";
    let ip: IpAddr =
        address.parse().map_err(|_| unusable("Address", format!("{address:?} is a host name, not an IP"), fix))?;
    if ip.is_unspecified() {
        return Err(unusable("Address", format!("{ip} is where to listen, not where to call"), fix));
    }
    let weight = match front.health {
        CheckStatus::Passing => front.weights.passing,
        CheckStatus::Warning => front.weights.warning,
        CheckStatus::Critical => 0,
    };
    let weight = weight.min(WEIGHT_MAX);
    Ok((weight > 0).then_some(Endpoint { address: ip, port: port.get(), weight }))
}

fn bound(diagnostics: &mut Vec<Diagnostic>, service: &ServiceName) {
    let more = diagnostics.len().saturating_sub(UNUSABLE_NAMED_MAX);
    if more > 0 {
        // The same are named wherever the plan is made: fronts come in no order.
        diagnostics.sort();
        diagnostics.truncate(UNUSABLE_NAMED_MAX);
        diagnostics.push(Diagnostic {
            object: Object::Service(service.clone()),
            field: String::new(),
            reason: format!("{more} more of its sidecars and native instances cannot be called"),
            fix: "mend them as those named".to_owned(),
            severity: Severity::Error,
        });
    }
}

fn unreachable(service: &ServiceName, exists: bool) -> Diagnostic {
    let (reason, fix) = if exists {
        (
            "it has instances, but none with a sidecar".to_owned(),
            "register its instances with a sidecar (Connect.SidecarService)".to_owned(),
        )
    } else {
        (format!("no service named \"{service}\""), format!("register {service}, or remove the upstream"))
    };
    Diagnostic {
        object: Object::Service(service.clone()),
        field: String::new(),
        reason,
        fix,
        severity: Severity::Error,
    }
}
