//! Where a target is: the sidecars in front of it and its native instances, as far as they are in health.

use std::collections::BTreeMap;
use std::net::IpAddr;

use starling_catalog::Front;
use starling_model::{CheckStatus, ConfigEntryKey, ConfigKind, Locality, Nearness, ServiceName, Subset};

use super::chain::Chain;
use super::cluster;
use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::plan::{Endpoint, Endpoints, EndpointsKey, FailoverGroup, Target};
use crate::planner::MeshSettings;
use crate::view::View;

/// Share of load of one endpoint at most: RFC 2782 weights have 16 bits, and 65,536 such endpoints stay within the 32 bits
/// that Envoy allows a locality.
pub(crate) const WEIGHT_MAX: u32 = 65_535;

/// Endpoints of one service that are named as unusable; the rest is counted, so that a service of thousands of host names
/// does not fill every caller's list.
const UNUSABLE_NAMED_MAX: usize = 10;

/// Those who are called in the mesh.
const FRONTS: &str = "sidecars and native instances";

/// Builds the endpoints of a target, under the name of its cluster, with those that are called where all of them are gone.
pub(crate) fn build(
    view: &mut View<'_>,
    mesh: &MeshSettings,
    (target, from): &EndpointsKey,
) -> (Endpoints, Vec<Diagnostic>) {
    // Read also where the key names no locality: as soon as the answer is another one, so is the key.
    let near = view.prefers_near(&target.service);
    let from = from.as_ref().filter(|_| near);
    let (groups, mut diagnostics) = by_nearness(view, target, from.map(|from| &**from));
    let mut groups = groups.into_values();
    let endpoints = groups.next().unwrap_or_default();
    let farther = groups.map(|endpoints| FailoverGroup { target: target.clone(), endpoints });
    let mut chain = Chain { view, diagnostics: Vec::new() };
    let targets = chain.failover(target);
    diagnostics.append(&mut chain.diagnostics);
    let mut failover: Vec<_> = farther.collect();
    for target in targets {
        let (groups, told) = by_nearness(view, &target, None);
        diagnostics.extend(told);
        let endpoints = groups.into_values().next().unwrap_or_default();
        failover.push(FailoverGroup { target, endpoints });
    }
    let cluster = cluster::name(mesh, target);
    let (service, subset) = (target.service.clone(), target.subset.clone());
    (Endpoints { service, subset, cluster, from: from.cloned(), endpoints, failover }, diagnostics)
}

/// The endpoints of `target` alone, by how near they are to `from`; without that all alike. No group is empty.
fn by_nearness(
    view: &mut View<'_>,
    target: &Target,
    from: Option<&Locality>,
) -> (BTreeMap<Nearness, Vec<Endpoint>>, Vec<Diagnostic>) {
    let (endpoints, diagnostics) = located(view, target, from);
    let mut groups: BTreeMap<Nearness, Vec<Endpoint>> = BTreeMap::new();
    for (endpoint, nearness) in endpoints {
        groups.entry(nearness).or_default().push(endpoint);
    }
    (groups, diagnostics)
}

/// The endpoints of `target`, ordered by address and port, each once, and how near each is.
fn located(
    view: &mut View<'_>,
    target: &Target,
    from: Option<&Locality>,
) -> (Vec<(Endpoint, Nearness)>, Vec<Diagnostic>) {
    let service = &target.service;
    let (mut endpoints, mut diagnostics, mut fronts) = (Vec::new(), Vec::new(), 0_usize);
    // Read always, so that a plan depends on the same whether anybody is there or not: where it would only then, the last
    // endpoint's leaving would have every caller ask for one subject more, and its return for one less.
    let exists = view.has_instances(service);
    let subset = match subset_of(view, target) {
        Ok(subset) => subset,
        Err(diagnostic) => return (Vec::new(), vec![*diagnostic]),
    };
    let mut others = 0_usize;
    view.visit_fronts(service, &mut |front| {
        if subset.filter.as_ref().is_some_and(|filter| !front.passes(filter)) {
            others += 1;
            return;
        }
        fronts += 1;
        let serves = match front.health {
            CheckStatus::Passing => true,
            CheckStatus::Warning => !subset.only_passing,
            CheckStatus::Critical => false,
        };
        if !serves {
            return;
        }
        match endpoint(front) {
            Ok(endpoint) => {
                let nearness = from.map_or(Nearness::Elsewhere, |from| from.nearness(front.locality.as_deref()));
                endpoints.extend(endpoint.map(|endpoint| (endpoint, nearness)));
            }
            Err(diagnostic) => diagnostics.push(*diagnostic),
        }
    });
    bound(&mut diagnostics, service, FRONTS);
    // The heavier comes first, and then the nearer, so that it stays where two share an address.
    endpoints.sort_by_key(|(it, nearness): &(Endpoint, _)| (it.address, it.port, u32::MAX - it.weight, *nearness));
    endpoints.dedup_by_key(|(endpoint, _)| (endpoint.address, endpoint.port));
    let of = target.subset.as_ref().map(|subset| format!(" of subset {subset}")).unwrap_or_default();
    if fronts == 0 && others == 0 {
        diagnostics.push(unreachable(service, exists));
    } else if fronts == 0 {
        let reason = format!("none of its {others} sidecars and native instances is{of}");
        diagnostics.push(nobody(service, reason, "compare the subset's filter with what they are registered with"));
    } else if endpoints.is_empty() && diagnostics.is_empty() {
        let reason = format!("none of its {fronts} sidecars and native instances{of} is in health");
        diagnostics.push(nobody(service, reason, "see its checks"));
    }
    (endpoints, diagnostics)
}

/// What tells the instances of `target` from others of its service. A subset that nobody wrote has none: its calls fail, and
/// do not go to a version that was not asked for.
fn subset_of(view: &mut View<'_>, target: &Target) -> Result<Subset, Box<Diagnostic>> {
    let Some(name) = &target.subset else { return Ok(Subset::default()) };
    let resolver = view.service_resolver(&target.service);
    let subset = resolver.and_then(|resolver| resolver.subsets.get(name)).cloned();
    let key = ConfigEntryKey { kind: ConfigKind::ServiceResolver, name: target.service.to_string() };
    subset.ok_or_else(|| {
        Box::new(Diagnostic {
            object: Object::Config(key),
            field: "Subsets".to_owned(),
            reason: format!("there is no subset {name} of {}, so calls of it reach nobody", target.service),
            fix: format!("write the subset {name}, or name another where it is called"),
            severity: Severity::Error,
        })
    })
}

fn nobody(service: &ServiceName, reason: String, fix: &str) -> Diagnostic {
    Diagnostic {
        object: Object::Service(service.clone()),
        field: String::new(),
        reason,
        fix: fix.to_owned(),
        severity: Severity::Warning,
    }
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

/// Names no more than [`UNUSABLE_NAMED_MAX`] of what cannot be called, and counts the rest; `what` they are.
pub(crate) fn bound(diagnostics: &mut Vec<Diagnostic>, service: &ServiceName, what: &str) {
    let more = diagnostics.len().saturating_sub(UNUSABLE_NAMED_MAX);
    if more > 0 {
        // The same are named wherever the plan is made: fronts come in no order.
        diagnostics.sort();
        diagnostics.truncate(UNUSABLE_NAMED_MAX);
        diagnostics.push(Diagnostic {
            object: Object::Service(service.clone()),
            field: String::new(),
            reason: format!("{more} more of its {what} cannot be called"),
            fix: "mend them as those named".to_owned(),
            severity: Severity::Error,
        });
    }
}

fn unreachable(service: &ServiceName, exists: bool) -> Diagnostic {
    let (reason, fix) = if exists {
        (
            "it has instances, but none with a sidecar".to_owned(),
            "register its instances with a sidecar (Connect.SidecarService), or link it in a terminating-gateway entry"
                .to_owned(),
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
