//! What a gateway does for services outside the mesh: where their callers find them, and where they are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use starling_catalog::Front;
use starling_model::{
    CheckStatus, ConfigEntryKey, ConfigKind, HostPattern, LinkedService, OpaqueSettings, Port, ServiceInstance,
    ServiceName, Subset, TerminatingGateway,
};
use starling_traffic::Policy;

use super::cluster::{self, CONNECT_TIMEOUT_DEFAULT};
use super::endpoints::{WEIGHT_MAX, bound};
use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::parts::opaque::Opaque;
use crate::plan::{Exit, Origins, OutsideEndpoint, Target, is_local, is_local_name};
use crate::planner::MeshSettings;
use crate::view::View;

/// Where a service is, as a link wants it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OriginsKey {
    /// What is called.
    pub(crate) target: Target,
    /// Whether it is told the host by which it is registered.
    pub(crate) rewrites: bool,
    /// Whether addresses of the gateway's own machine and link are left out.
    pub(crate) shuns_local: bool,
}

/// Where a gateway listens: `bind_address` and `bind_port`, else its own address and port, else its node's.
pub(crate) fn bind(
    instance: &ServiceInstance,
    config: &OpaqueSettings,
    node_address: Option<&str>,
) -> (Option<SocketAddr>, Vec<Diagnostic>) {
    let object = Object::Instance(instance.key.clone());
    let mut own = Opaque::new(config, object.clone(), "Proxy.Config");
    let port = own.port("bind_port").or(instance.port.map(Port::get));
    let written = own.text("bind_address");
    let mut diagnostics = own.diagnostics;
    let mut refuse = |field: &str, reason: String, fix: &str| {
        diagnostics.push(Diagnostic {
            object: object.clone(),
            field: field.to_owned(),
            reason: format!("{reason}, so it listens nowhere"),
            fix: fix.to_owned(),
            severity: Severity::Error,
        });
    };
    let (field, text) = match (&written, &instance.address) {
        (Some(text), _) => ("Proxy.Config.bind_address", text.as_str()),
        (None, Some(text)) => ("Address", text.as_str()),
        (None, None) => ("Address", node_address.unwrap_or_default()),
    };
    let address = text.parse::<IpAddr>();
    if address.is_err() {
        refuse(
            field,
            format!("{text:?} is no IP to listen on"),
            "set Proxy.Config.bind_address to the IP to listen on",
        );
    }
    if port.is_none() {
        refuse("Port", "it has no port".to_owned(), "register it with the port at which callers reach it");
    }
    (address.ok().zip(port).map(SocketAddr::from), diagnostics)
}

/// The services that an entry links, each with how: those that it names, then all others that are outside.
pub(crate) fn linked<'e>(view: &mut View<'_>, entry: &'e TerminatingGateway) -> Vec<(ServiceName, &'e LinkedService)> {
    let named = entry.named().filter_map(|service| Some((service.clone(), entry.link(service)?)));
    let mut all: Vec<_> = named.collect();
    if let Some(link) = entry.link_of_any() {
        let others = view.services_outside().into_iter().filter(|service| entry.link(service).is_none());
        all.extend(others.map(|service| (service, link)));
    }
    all
}

/// A service, and each subset of it.
pub(crate) fn targets(view: &mut View<'_>, service: &ServiceName) -> Vec<Target> {
    let resolver = view.service_resolver(service);
    let subsets = resolver.into_iter().flat_map(|resolver| resolver.subsets.keys().cloned().map(Some));
    std::iter::once(None).chain(subsets).map(|subset| Target { service: service.clone(), subset }).collect()
}

/// Builds what callers of a target find.
pub(crate) fn build(
    view: &mut View<'_>,
    mesh: &MeshSettings,
    target: &Target,
    bind: SocketAddr,
    (link, policy): (&LinkedService, Arc<Policy>),
) -> Exit {
    let service = &target.service;
    let defaults = view.service_defaults(service);
    let connect = view.service_resolver(service).and_then(|resolver| resolver.connect_timeout);
    let connect = connect.or_else(|| defaults?.local_connect_timeout).filter(|timeout| !timeout.is_zero());
    Exit {
        service: service.clone(),
        subset: target.subset.clone(),
        bind,
        sni: cluster::name(mesh, target),
        protocol: view.protocol(service),
        tls: link.tls.as_deref().cloned(),
        connect_timeout: connect.unwrap_or(CONNECT_TIMEOUT_DEFAULT),
        request_timeout: defaults.and_then(|defaults| defaults.local_request_timeout).filter(|time| !time.is_zero()),
        max_connections: defaults.and_then(|defaults| defaults.max_inbound_connections).filter(|max| *max > 0),
        rate_limit: defaults.and_then(|defaults| defaults.rate_limit),
        policy,
    }
}

/// Whether two are the same; their policies by identity, since equal policies are one part.
pub(crate) fn same(a: &Exit, b: &Exit) -> bool {
    Arc::ptr_eq(&a.policy, &b.policy) && a == b
}

/// Builds where a target is.
pub(crate) fn origins(view: &mut View<'_>, key: &OriginsKey) -> (Origins, Vec<Diagnostic>) {
    let OriginsKey { target, rewrites, shuns_local } = key;
    let service = &target.service;
    let exists = view.has_instances(service);
    let is_l7 = view.protocol(service).is_l7();
    let resolver = view.service_resolver(service);
    let subset = target.subset.as_ref().and_then(|name| resolver?.subsets.get(name)).cloned();
    let subset = subset.unwrap_or_else(Subset::default);
    let (mut origins, mut diagnostics, mut outside) = (Vec::new(), Vec::new(), 0_usize);
    view.visit_origins(service, &mut |front| {
        outside += 1;
        if subset.filter.as_ref().is_some_and(|filter| !front.passes(filter)) {
            return;
        }
        let serves = match front.health {
            CheckStatus::Passing => true,
            CheckStatus::Warning => !subset.only_passing,
            CheckStatus::Critical => false,
        };
        match origin(front, *shuns_local) {
            Ok(origin) => origins.extend(origin.filter(|_| serves)),
            Err(diagnostic) => diagnostics.push(*diagnostic),
        }
    });
    bound(&mut diagnostics, service, "instances");
    // The heavier comes first, so that it stays where two share an address.
    origins.sort_by(|a: &OutsideEndpoint, b| (&a.address, a.port, b.weight).cmp(&(&b.address, b.port, a.weight)));
    origins.dedup_by(|a, b| (&a.address, a.port) == (&b.address, b.port));
    // Told once, where the whole service is.
    if target.subset.is_none() && outside == 0 {
        diagnostics.push(nobody_outside(service, exists));
    }
    let host = if is_l7 && *rewrites { one_host(service, &mut origins, &mut diagnostics) } else { None };
    (
        Origins {
            service: service.clone(),
            subset: target.subset.clone(),
            keeps_host: !rewrites,
            host,
            shuns_local: *shuns_local,
            origins,
        },
        diagnostics,
    )
}

/// The host by which those are registered who are called: a request names one, so of several the others are left out.
fn one_host(
    service: &ServiceName,
    origins: &mut Vec<OutsideEndpoint>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<String> {
    let host = origins.iter().find(|origin| origin.ip().is_none())?.address.clone();
    let before = origins.len();
    origins.retain(|origin| origin.address == host);
    if origins.len() < before {
        diagnostics.push(Diagnostic {
            object: Object::Service(service.clone()),
            field: String::new(),
            reason: format!(
                "its instances outside have several addresses, and a request is told the host of one; only those at {host} are called"
            ),
            fix: format!(
                "register its instances by one host name, or by IPs, or set DisableAutoHostRewrite where {service} is linked"
            ),
            severity: Severity::Warning,
        });
    }
    Some(host)
}

/// Somebody outside who is called; `None` if its weight asks for no load.
fn origin(front: &Front, shuns_local: bool) -> Result<Option<OutsideEndpoint>, Box<Diagnostic>> {
    let unusable = |field: &str, reason: String, fix: &str| {
        Box::new(Diagnostic {
            object: Object::Instance(front.key.clone()),
            field: field.to_owned(),
            reason: format!("{reason}, so no gateway calls it"),
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
    let fix = "register it with the IP or the host name at which the gateway reaches it";
    let address = match address.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => {
            return Err(unusable("Address", format!("{ip} is where to listen, not where to call"), fix));
        }
        Ok(ip) => ip.to_string(),
        Err(_) => match HostPattern::parse(address) {
            Ok(HostPattern::Exact(host)) => host,
            Ok(_) | Err(_) => {
                return Err(unusable("Address", format!("{address:?} is neither an IP nor a host name"), fix));
            }
        },
    };
    let is_own = address.parse().map_or_else(|_| is_local_name(&address), is_local);
    if shuns_local && is_own {
        let reason =
            format!("{address} is an address of the gateway's own machine or link, and its service is linked by *");
        return Err(unusable(
            "Address",
            reason,
            "link the service by its name, or set AllowLocalAddresses where * is linked",
        ));
    }
    let weight = match front.health {
        CheckStatus::Passing => front.weights.passing,
        CheckStatus::Warning => front.weights.warning,
        CheckStatus::Critical => 0,
    };
    let weight = weight.min(WEIGHT_MAX);
    Ok((weight > 0).then(|| OutsideEndpoint { address, port: port.get(), weight }))
}

/// What is told of two services that callers cannot tell apart.
pub(crate) fn asked_alike(entry: &TerminatingGateway, service: &ServiceName, other: &ServiceName) -> Diagnostic {
    Diagnostic {
        object: entry_of(&entry.gateway),
        field: format!("Services[{service}]"),
        reason: format!(
            "{service} and {other} are the same name in a handshake, so the gateway does not stand for {service}"
        ),
        fix: "rename one of them, or link them at gateways of their own".to_owned(),
        severity: Severity::Error,
    }
}

/// The entry of a gateway, as the object of what is wrong with it.
fn entry_of(gateway: &ServiceName) -> Object {
    Object::Config(ConfigEntryKey { kind: ConfigKind::TerminatingGateway, name: gateway.to_string() })
}

/// What a gateway is told of which nobody has written what it stands for.
pub(crate) fn without_entry(instance: &ServiceInstance) -> Diagnostic {
    Diagnostic {
        object: Object::Instance(instance.key.clone()),
        field: String::new(),
        reason: format!("there is no terminating-gateway entry named {}, so it stands for no service", instance.name),
        fix: format!("write a terminating-gateway entry named {}", instance.name),
        severity: Severity::Error,
    }
}

fn nobody_outside(service: &ServiceName, exists: bool) -> Diagnostic {
    let (reason, fix) = if exists {
        (
            "a gateway is to stand for it, but all its instances are in the mesh".to_owned(),
            format!("remove {service} from the terminating-gateway entries that name it"),
        )
    } else {
        (
            format!("a gateway is to stand for it, and there is no service named \"{service}\""),
            format!(
                "register {service} with its address outside the mesh, or remove it from the terminating-gateway entry"
            ),
        )
    };
    Diagnostic {
        object: Object::Service(service.clone()),
        field: String::new(),
        reason,
        fix,
        severity: Severity::Warning,
    }
}
