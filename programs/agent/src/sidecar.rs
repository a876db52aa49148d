//! Expansion of a registration: the sidecar that `Connect.SidecarService` asks for, its port and its checks, and the
//! refusal of sockets that two listeners of this node cannot share.
//!
//! Pure: what the node has is passed in, what it would have is returned.
//! Source: Consul's "sidecar service registration" page (developer.hashicorp.com/consul/docs/connect/proxies).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use starling_model::{
    CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, InstanceId, InstanceKind, Locality, Node,
    OpaqueSettings, Port, ServiceInstance, ServiceName, ServiceRegistration, SidecarProxy,
};

use crate::registrations::Service;

/// Ports from which sidecars get their public listener, unless configured otherwise; Consul's range.
pub const DEFAULT_SIDECAR_PORTS: RangeInclusive<u16> = 21000..=21255;

/// Time between two looks at a sidecar's public listener; Consul's figure.
const LISTENER_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// What is wrong with a registration, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct FieldError {
    /// Path of the field in the registration's JSON form.
    pub field: String,
    /// The reason, and where there is one the way out.
    pub reason: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// A registration with everything filled in.
#[derive(Debug)]
pub(crate) struct Expanded {
    /// The registration with the sidecar's port fixed: what is kept on disk, and what makes the same again.
    pub(crate) given: ServiceRegistration,
    /// The service itself.
    pub(crate) main: Part,
    /// Its sidecar.
    pub(crate) sidecar: Option<Part>,
}

impl Expanded {
    /// Puts the instances that do not say where they are where the node is, a sidecar where its service is. What was given
    /// stays as it is, so that the same instances follow when the node has moved.
    pub(crate) fn place(&mut self, node: Option<&Arc<Locality>>) {
        let main = &mut self.main.instance.locality;
        *main = main.take().or_else(|| node.cloned());
        if let Some(part) = &mut self.sidecar {
            let sidecar = &mut part.instance.locality;
            *sidecar = sidecar.take().or_else(|| main.clone());
        }
    }
}

/// One instance with its checks, each named.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) instance: ServiceInstance,
    pub(crate) checks: Vec<(CheckId, CheckSpec)>,
    /// Whether the first check is the agent's own probe of the public listener.
    pub(crate) own_probe: bool,
}

/// The id of the sidecar of `parent`.
fn sidecar_id(parent: &InstanceId) -> Result<InstanceId, FieldError> {
    InstanceId::new(&format!("{parent}-sidecar-proxy")).map_err(|e| FieldError::new("ID", e.to_string()))
}

/// Fills in `given` for a node that has `services`.
pub(crate) fn expand(
    mut given: ServiceRegistration,
    node: &Node,
    services: &BTreeMap<InstanceId, Service>,
    ports: &RangeInclusive<u16>,
) -> Result<Expanded, FieldError> {
    given.instance.key.node = node.name.clone();
    let id = given.instance.key.id.clone();
    if let Some(parent) = services.get(&id).and_then(Service::parent) {
        return Err(FieldError::new("ID", format!("{id:?} is the sidecar of {parent:?}; choose another id")));
    }
    if given.instance.sidecar().is_some() {
        if given.sidecar.is_some() {
            return Err(FieldError::new("Connect.SidecarService", "a proxy cannot have a sidecar of its own"));
        }
        if given.instance.port.is_none() {
            return Err(FieldError::new("Port", "a proxy needs the port of its public listener"));
        }
    }
    let main = Part {
        instance: given.instance.clone(),
        checks: name_checks(&given.instance, &given.checks, "")?,
        own_probe: false,
    };
    let sidecar = match given.sidecar.take() {
        None => None,
        Some(nested) => {
            let part = expand_sidecar(&given.instance, *nested, node, services, ports)?;
            // The default checks are made anew at every expansion; what was given is what is kept.
            given.sidecar = Some(Box::new(part.0));
            Some(part.1)
        }
    };
    let others = services.iter().filter(|(other, service)| **other != id && service.parent() != Some(&id));
    let others: Vec<&ServiceInstance> = others.map(|(_, service)| &service.instance).collect();
    refuse_shared_sockets(&main.instance, "", node, &others)?;
    if let Some(part) = &sidecar {
        let mut others = others;
        others.push(&main.instance);
        refuse_shared_sockets(&part.instance, SIDECAR_FIELD, node, &others)?;
    }
    Ok(Expanded { given, main, sidecar })
}

const SIDECAR_FIELD: &str = "Connect.SidecarService.";

fn expand_sidecar(
    parent: &ServiceInstance,
    mut nested: ServiceRegistration,
    node: &Node,
    services: &BTreeMap<InstanceId, Service>,
    ports: &RangeInclusive<u16>,
) -> Result<(ServiceRegistration, Part), FieldError> {
    let field = |name: &str| format!("{SIDECAR_FIELD}{name}");
    if nested.sidecar.is_some() {
        return Err(FieldError::new(field("Connect.SidecarService"), "a sidecar cannot have a sidecar of its own"));
    }
    let id = sidecar_id(&parent.key.id)?;
    if nested.instance.key.id != id {
        let reason = format!("the id of a nested sidecar is always {id:?}; leave it out");
        return Err(FieldError::new(field("ID"), reason));
    }
    if services.get(&id).is_some_and(|other| other.parent() != Some(&parent.key.id)) {
        let reason = format!("the sidecar would be {id:?}, which is registered as a service of its own");
        return Err(FieldError::new(field("ID"), reason));
    }
    nested.instance.key.node = node.name.clone();
    if nested.instance.port.is_none() {
        let kept = services.get(&id).and_then(|old| old.instance.port);
        let port = kept.map_or_else(|| free_port(parent, &nested.instance, services, ports), Ok)?;
        nested.instance.port = Some(port);
    }
    let mut instance = nested.instance.clone();
    let mut proxy = match std::mem::replace(&mut instance.kind, InstanceKind::Typical) {
        InstanceKind::Sidecar(proxy) => proxy,
        InstanceKind::Typical
        | InstanceKind::IngressGateway(_)
        | InstanceKind::TerminatingGateway(_)
        | InstanceKind::OtherGateway(_) => Box::new(plain_proxy(&parent.name)),
    };
    proxy.destination_id = proxy.destination_id.or_else(|| Some(parent.key.id.clone()));
    proxy.local_port = proxy.local_port.or(parent.port);
    if instance.tags.is_empty() {
        instance.tags.clone_from(&parent.tags);
    }
    if instance.meta.is_empty() {
        instance.meta.clone_from(&parent.meta);
    }
    let own_probe = nested.checks.is_empty();
    let checks = if own_probe {
        let listener = listener_check(&instance, &proxy);
        vec![listener, alias_check(&parent.key.id)]
    } else {
        nested.checks.clone()
    };
    instance.kind = InstanceKind::Sidecar(proxy);
    let checks = name_checks(&instance, &checks, SIDECAR_FIELD)?;
    Ok((nested, Part { instance, checks, own_probe }))
}

fn plain_proxy(destination: &ServiceName) -> SidecarProxy {
    SidecarProxy {
        destination: destination.clone(),
        destination_id: None,
        local_address: "127.0.0.1".to_owned(),
        local_port: None,
        upstreams: Vec::new(),
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    }
}

fn free_port(
    parent: &ServiceInstance,
    nested: &ServiceInstance,
    services: &BTreeMap<InstanceId, Service>,
    ports: &RangeInclusive<u16>,
) -> Result<Port, FieldError> {
    let mut taken = BTreeSet::new();
    for instance in services.values().map(|service| &service.instance).chain([parent, nested]) {
        taken.extend(instance.port.map(Port::get));
        taken.extend(instance.sidecar().into_iter().flat_map(|p| &p.upstreams).map(|u| u.bind_port.get()));
    }
    let free = ports.clone().find(|port| !taken.contains(port));
    free.and_then(|port| Port::try_from(i64::from(port)).ok()).ok_or_else(|| {
        let (first, last) = (ports.start(), ports.end());
        FieldError::new(format!("{SIDECAR_FIELD}Port"), format!("no port is free in {first} to {last}; give one"))
    })
}

/// A look at the public listener; Consul's name for it.
fn listener_check(instance: &ServiceInstance, proxy: &SidecarProxy) -> CheckSpec {
    let bound = bind_address(proxy).filter(|address| !matches!(Reach::of(address), Reach::Any));
    let host = instance.address.as_deref().or(bound).unwrap_or(&proxy.local_address);
    let port = instance.port.map_or(0, Port::get);
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut spec = agent_check("Connect Sidecar Listening".to_owned(), CheckKind::tcp(address));
    spec.definition.interval = LISTENER_CHECK_INTERVAL;
    spec.definition.timeout = LISTENER_CHECK_INTERVAL;
    spec.interval_text = "10s".to_owned();
    spec
}

fn alias_check(parent: &InstanceId) -> CheckSpec {
    let kind = CheckKind::Alias { node: None, service: Some(parent.clone()) };
    agent_check(format!("Connect Sidecar Aliasing {parent}"), kind)
}

fn agent_check(name: String, kind: CheckKind) -> CheckSpec {
    CheckSpec {
        id: None,
        name,
        notes: String::new(),
        initial_status: CheckStatus::Critical,
        definition: CheckDefinition {
            kind,
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            success_before_passing: 1,
            failures_before_warning: 1,
            failures_before_critical: 1,
            deregister_after: None,
        },
        // What Consul shows for a check that sets neither.
        interval_text: "0s".to_owned(),
        timeout_text: "0s".to_owned(),
    }
}

/// Gives each check its id (`service:ID`, or `service:ID:N` where there are several) and name.
fn name_checks(
    instance: &ServiceInstance,
    checks: &[CheckSpec],
    prefix: &str,
) -> Result<Vec<(CheckId, CheckSpec)>, FieldError> {
    let mut seen = BTreeSet::new();
    let mut named = Vec::with_capacity(checks.len());
    for (index, spec) in checks.iter().enumerate() {
        let made = match checks.len() {
            1 => format!("service:{}", instance.key.id),
            _ => format!("service:{}:{}", instance.key.id, index + 1),
        };
        let field = format!("{prefix}Checks[{index}].CheckID");
        let id = spec.id.clone().map_or_else(|| CheckId::new(&made), Ok);
        let id = id.map_err(|error| FieldError::new(field.clone(), error.to_string()))?;
        if !seen.insert(id.clone()) {
            return Err(FieldError::new(field, format!("two checks of this registration are called {id:?}")));
        }
        let mut spec = spec.clone();
        if spec.name.is_empty() {
            spec.name = format!("Service '{}' check", instance.name);
        }
        named.push((id, spec));
    }
    Ok(named)
}

/// Where a listener is, as far as sharing a port matters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    Any,
    Ip(IpAddr),
    Name(String),
}

impl Reach {
    fn of(address: &str) -> Self {
        match address.parse::<IpAddr>() {
            Ok(ip) => Self::of_ip(ip),
            Err(_) if address.is_empty() => Self::Any,
            Err(_) => Self::Name(address.to_ascii_lowercase()),
        }
    }

    fn of_ip(ip: IpAddr) -> Self {
        if ip.is_unspecified() { Self::Any } else { Self::Ip(ip) }
    }

    fn overlaps(&self, other: &Self) -> bool {
        *self == Self::Any || *other == Self::Any || self == other
    }
}

/// A socket that a proxy listens on, and the field that says so.
struct Listener {
    reach: Reach,
    port: u16,
    field: String,
}

fn bind_address(proxy: &SidecarProxy) -> Option<&str> {
    proxy.config.get("bind_address").and_then(serde_json::Value::as_str)
}

/// Whether the proxy listens on a port of its own choosing (`bind_port`), which is how schedulers run it inside a network
/// namespace and map the advertised port to it. Its sockets then collide with nobody else's.
fn namespaced(proxy: &SidecarProxy) -> bool {
    proxy.config.contains_key("bind_port")
}

fn listeners(instance: &ServiceInstance, proxy: &SidecarProxy) -> Vec<Listener> {
    let mut all = Vec::with_capacity(1 + proxy.upstreams.len());
    let bound = bind_address(proxy).or(instance.address.as_deref()).unwrap_or("");
    let own_port = proxy.config.get("bind_port").and_then(serde_json::Value::as_u64);
    let port = own_port.and_then(|port| u16::try_from(port).ok()).or(instance.port.map(Port::get));
    all.extend(port.map(|port| Listener { reach: Reach::of(bound), port, field: "Port".to_owned() }));
    all.extend(proxy.upstreams.iter().enumerate().map(|(index, upstream)| Listener {
        reach: Reach::of_ip(upstream.bind_address),
        port: upstream.bind_port.get(),
        field: format!("Proxy.Upstreams[{index}].LocalBindPort"),
    }));
    all
}

fn refuse_shared_sockets(
    instance: &ServiceInstance,
    prefix: &str,
    node: &Node,
    others: &[&ServiceInstance],
) -> Result<(), FieldError> {
    refuse_shared_advertisement(instance, prefix, node, others)?;
    let Some(proxy) = instance.sidecar() else { return Ok(()) };
    for (index, upstream) in proxy.upstreams.iter().enumerate() {
        if upstream.destination == proxy.destination {
            let field = format!("{prefix}Proxy.Upstreams[{index}].DestinationName");
            return Err(FieldError::new(field, format!("{:?} cannot be its own upstream", proxy.destination)));
        }
    }
    let mine = listeners(instance, proxy);
    let application = proxy.local_port.map(|port| (Reach::of(&proxy.local_address), port.get()));
    for (index, listener) in mine.iter().enumerate() {
        let clash = |reach: &Reach, port: u16| port == listener.port && reach.overlaps(&listener.reach);
        let fail = |whom: String| {
            let reason = format!("port {} is already taken by {whom}", listener.port);
            Err(FieldError::new(format!("{prefix}{}", listener.field), reason))
        };
        if let Some(earlier) = mine[..index].iter().find(|other| clash(&other.reach, other.port)) {
            return fail(format!("{prefix}{}", earlier.field));
        }
        if application.as_ref().is_some_and(|(reach, port)| clash(reach, *port)) {
            return fail("the application that this proxy stands in front of".to_owned());
        }
        if namespaced(proxy) {
            continue;
        }
        for other in others {
            let Some(theirs) = other.sidecar().filter(|theirs| !namespaced(theirs)) else { continue };
            if let Some(found) = listeners(other, theirs).iter().find(|other| clash(&other.reach, other.port)) {
                return fail(format!("{} of service {:?}", found.field, other.key.id));
            }
        }
    }
    Ok(())
}

/// Two plain services may share a port (one may be down while the other runs); a proxy shares its port with nobody.
fn refuse_shared_advertisement(
    instance: &ServiceInstance,
    prefix: &str,
    node: &Node,
    others: &[&ServiceInstance],
) -> Result<(), FieldError> {
    let Some(port) = instance.port else { return Ok(()) };
    let reach = |instance: &ServiceInstance| Reach::of(instance.reachable_address(&node.address));
    let mine = reach(instance);
    let rivals = others.iter().filter(|other| instance.sidecar().is_some() || other.sidecar().is_some());
    match rivals.into_iter().find(|other| other.port == Some(port) && reach(other) == mine) {
        None => Ok(()),
        Some(other) => {
            let reason = format!("port {port} is already taken by service {:?} of this node", other.key.id);
            Err(FieldError::new(format!("{prefix}Port"), reason))
        }
    }
}

#[cfg(test)]
mod tests;
