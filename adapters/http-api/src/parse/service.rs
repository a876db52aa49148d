//! Service registrations as Consul's clients and files write them.
//!
//! Ports: everything outside 1 to 65535 is refused. Only in tagged addresses, and in the catalog's registrations, is 0 taken
//! for "none", since Consul's own types write it there; everywhere else they leave the field out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde_json::Value;
use starling_model::{
    CheckSpec, InstanceId, InstanceKey, InstanceKind, Locality, OpaqueSettings, OtherGateway, OtherGatewayKind, Port,
    ServiceInstance, ServiceName, ServiceRegistration, SidecarProxy, TaggedAddress, TransparentProxy, Upstream,
    Weights,
};

use super::check::parse_service_check;
use super::field::{Field, FieldError, Fields, is_zero};
use super::kept::keep;
use super::opaque::{Place, parse_config};

pub(super) mod ports;

/// What Consul calls a sidecar unless told otherwise: the service's name, or its identifier, with this behind it.
const SIDECAR_SUFFIX: &str = "-sidecar-proxy";

/// The largest weight that Consul takes.
const WEIGHT_MAX: u32 = 65_535;

/// Reads a registration for an agent, its nested sidecar included.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_service(mut fields: Fields<'_>) -> Result<ServiceRegistration, FieldError> {
    let name = required_name(&mut fields, "Name")?;
    let id = parse_id(&mut fields, &name)?;
    let kind = fields.text("Kind")?;
    let port = match kind.as_deref() {
        Some("connect-proxy") => Some(fields.required_port("Port", "must be given for a proxy")?),
        Some(_) | None => fields.port("Port", "for none")?,
    };
    // Zero values are what Consul's own types write where there is no proxy.
    let proxy = fields.take("Proxy").filter(|field| !is_zero(&field.value)).map(Field::fields).transpose()?;
    let connect = parse_connect(&mut fields)?;
    let checks = parse_checks(&mut fields)?;
    let rest = parse_plain(&mut fields)?;
    ports::refuse_both(&fields, port, rest.main_port)?;
    fields.ignored(&["CreateIndex", "ModifyIndex", "ContentHash", "Datacenter", "PeerName"]);
    let (own_path, context) = (|name: &str| fields.path(name), fields.context);
    let kind = match (kind.as_deref(), proxy) {
        (None, None) => InstanceKind::Typical,
        (None, Some(_)) => {
            return Err(FieldError::new(own_path("Proxy"), "is for Kind \"connect-proxy\" and gateways only"));
        }
        (Some("ingress-gateway"), proxy) => InstanceKind::IngressGateway(parse_gateway(proxy, Place::Gateway)?),
        (Some("terminating-gateway"), proxy) => {
            InstanceKind::TerminatingGateway(parse_gateway(proxy, Place::ExitGateway)?)
        }
        (Some("connect-proxy"), Some(proxy)) => {
            InstanceKind::Sidecar(Box::new(as_agents_tell(parse_proxy(proxy, None)?)))
        }
        (Some("connect-proxy"), None) => return Err(fields.missing("Proxy", "must be given")),
        (Some(other), proxy) => match other_gateway(other, proxy, &own_path("Kind"))? {
            Some(kind) => kind,
            None => return Err(unknown_kind(own_path("Kind"), other)),
        },
    };
    if !matches!(kind, InstanceKind::Typical) && (connect.native || connect.sidecar.is_some()) {
        return Err(FieldError::new(own_path("Connect"), "a proxy has no Connect block of its own"));
    }
    let key = InstanceKey { node: context.node.clone(), id };
    let mut instance = instance_of(key, name, kind, port, rest);
    instance.native = connect.native;
    check_ports(&instance, &own_path("Proxy"))?;
    fill_tagged_addresses(&mut instance);
    let sidecar = match connect.sidecar {
        Some(sidecar) => Some(Box::new(parse_sidecar(sidecar, &instance)?)),
        None => None,
    };
    fields.finish()?;
    Ok(ServiceRegistration { instance, checks, sidecar })
}

fn unknown_kind(path: String, kind: &str) -> FieldError {
    let known = "leave it out or write \"connect-proxy\", \"ingress-gateway\" or \"terminating-gateway\"";
    FieldError::new(path, format!("{kind:?} is no service kind; {known}"))
}

/// An agent tells the catalog of every upstream what it is.
fn as_agents_tell(mut proxy: SidecarProxy) -> SidecarProxy {
    for upstream in &mut proxy.upstreams {
        upstream.kind_unsaid = false;
    }
    proxy
}

/// A gateway of a kind for which nothing is planned (ADR 0021): no port of it is opened, so none of its rules is missed.
pub(super) fn other_gateway(
    kind: &str,
    proxy: Option<Fields<'_>>,
    path: &str,
) -> Result<Option<InstanceKind>, FieldError> {
    let Some(kind) = OtherGatewayKind::ALL.into_iter().find(|other| other.as_str() == kind) else { return Ok(None) };
    let mut config = OpaqueSettings::default();
    if let Some(mut proxy) = proxy {
        config = proxy.opaque("Config")?.into();
        let context = proxy.context;
        context.notice(path, "nothing is planned for gateways of this kind in this release");
        refuse_beside_config(&mut proxy)?;
    }
    Ok(Some(InstanceKind::OtherGateway(Box::new(OtherGateway { kind, config }))))
}

fn required_name(fields: &mut Fields<'_>, field: &str) -> Result<ServiceName, FieldError> {
    let text = fields.required_text(field)?;
    ServiceName::new(&text).map_err(|error| fields.error(field, error))
}

fn parse_id(fields: &mut Fields<'_>, name: &ServiceName) -> Result<InstanceId, FieldError> {
    match fields.text("ID")? {
        Some(id) => InstanceId::new(&id).map_err(|error| fields.error("ID", error)),
        None => InstanceId::new(name.as_str()).map_err(|error| fields.error("Name", error)),
    }
}

/// The fields that plain services, proxies and catalog registrations share.
pub(super) struct Plain {
    address: Option<String>,
    tags: Vec<String>,
    meta: BTreeMap<String, String>,
    tagged_addresses: BTreeMap<String, TaggedAddress>,
    weights: Weights,
    enable_tag_override: bool,
    locality: Option<Arc<Locality>>,
    /// Of several ports, the one that counts.
    main_port: Option<Port>,
    kept: OpaqueSettings,
}

pub(super) fn parse_plain(fields: &mut Fields<'_>) -> Result<Plain, FieldError> {
    let address = fields.address("Address")?;
    let tags = fields.texts("Tags")?;
    let meta = fields.meta("Meta")?;
    let tagged_addresses = parse_tagged_addresses(fields)?;
    let weights = match fields.object("Weights")? {
        Some(weights) => parse_weights(weights)?,
        None => Weights::default(),
    };
    let enable_tag_override = fields.flag("EnableTagOverride")?;
    let locality = fields.object("Locality")?.map(parse_locality).transpose()?.flatten();
    fields.tenancy()?;
    fields.without_effect("Token");
    let mut kept = keep(fields, &["SocketPath"]);
    let main_port = ports::parse(fields, &mut kept)?;
    Ok(Plain { address, tags, meta, tagged_addresses, weights, enable_tag_override, locality, main_port, kept })
}

pub(super) fn instance_of(
    key: InstanceKey,
    name: ServiceName,
    kind: InstanceKind,
    port: Option<Port>,
    plain: Plain,
) -> ServiceInstance {
    let Plain { address, tags, meta, tagged_addresses, weights, enable_tag_override, locality, main_port, kept } =
        plain;
    ServiceInstance {
        key,
        name,
        kind,
        address,
        port: port.or(main_port),
        tags,
        meta,
        tagged_addresses,
        weights,
        enable_tag_override,
        native: false,
        locality,
        kept,
    }
}

/// Where an instance runs; what Consul's own types write for nowhere is `None`.
pub(super) fn parse_locality(mut fields: Fields<'_>) -> Result<Option<Arc<Locality>>, FieldError> {
    let (region, zone) = (fields.text("Region")?, fields.text("Zone")?);
    fields.finish()?;
    let Some(region) = region else {
        let nowhere = zone.is_none().then_some(None);
        return nowhere.ok_or_else(|| fields.missing("Region", "must be given with a Zone"));
    };
    let region = region.parse().map_err(|error| fields.error("Region", error))?;
    let zone = zone.map(|zone| zone.parse()).transpose().map_err(|error| fields.error("Zone", error))?;
    Ok(Some(Arc::new(Locality { region, zone })))
}

fn parse_weights(mut fields: Fields<'_>) -> Result<Weights, FieldError> {
    let (passing, warning) = (fields.count("Passing")?, fields.count("Warning")?);
    fields.finish()?;
    // Go's clients write zeros where nobody has said anything.
    if (passing, warning) == (Some(0), Some(0)) {
        return Ok(Weights::default());
    }
    let (passing, warning) = (passing.unwrap_or(1), warning.unwrap_or(1));
    if passing == 0 {
        return Err(fields.error("Passing", "must be at least 1"));
    }
    for (name, weight) in [("Passing", passing), ("Warning", warning)] {
        if weight > WEIGHT_MAX {
            return Err(fields.error(name, format!("{weight} is more than {WEIGHT_MAX}")));
        }
    }
    Ok(Weights { passing, warning })
}

fn parse_tagged_addresses(fields: &mut Fields<'_>) -> Result<BTreeMap<String, TaggedAddress>, FieldError> {
    let Some(field) = fields.take("TaggedAddresses") else { return Ok(BTreeMap::new()) };
    let (context, path) = (field.context, field.path.clone());
    let mut addresses = BTreeMap::new();
    for (tag, value) in field.opaque()? {
        let mut entry = Field { context, path: format!("{path}.{tag}"), value }.fields()?;
        let address = entry.address("Address")?.ok_or_else(|| entry.missing("Address", "must be given"))?;
        let port = entry.port_or_zero("Port")?;
        entry.finish()?;
        addresses.insert(tag, TaggedAddress { address, port });
    }
    Ok(addresses)
}

/// Names the instance's own address as `lan_ipv4` and `wan_ipv4` (or `_ipv6`), as Consul's agent does.
fn fill_tagged_addresses(instance: &mut ServiceInstance) {
    let Some(address) = &instance.address else { return };
    let tags = match address.parse() {
        Ok(IpAddr::V4(_)) => ["lan_ipv4", "wan_ipv4"],
        Ok(IpAddr::V6(_)) => ["lan_ipv6", "wan_ipv6"],
        Err(_) => return,
    };
    for tag in tags {
        let own = || TaggedAddress { address: address.clone(), port: instance.port };
        instance.tagged_addresses.entry(tag.to_owned()).or_insert_with(own);
    }
}

#[derive(Default)]
struct Connect<'c> {
    native: bool,
    sidecar: Option<Fields<'c>>,
}

fn parse_connect<'c>(fields: &mut Fields<'c>) -> Result<Connect<'c>, FieldError> {
    let Some(mut connect) = fields.object("Connect")? else { return Ok(Connect::default()) };
    let native = connect.flag("Native")?;
    let sidecar = connect.object("SidecarService")?;
    connect.unsupported("Proxy")?;
    connect.without_effect("PeerMeta");
    if native && sidecar.is_some() {
        return Err(connect.error("SidecarService", "contradicts Native: the service is its own proxy"));
    }
    connect.finish()?;
    Ok(Connect { native, sidecar })
}

fn parse_checks(fields: &mut Fields<'_>) -> Result<Vec<CheckSpec>, FieldError> {
    let mut items = Vec::new();
    if let Some(field) = fields.take("Check") {
        // A list is two check blocks in a file.
        if field.value.is_array() { items = field.list()? } else { items.push(field) }
    }
    items.extend(fields.list("Checks")?);
    let mut checks: Vec<CheckSpec> = Vec::new();
    // Zero values are what Consul's own types write where there is no check.
    for item in items.into_iter().filter(|item| !is_zero(&item.value)) {
        let path = item.path.clone();
        let check = parse_service_check(item.fields()?)?;
        if check.id.is_some() && checks.iter().any(|other| other.id == check.id) {
            return Err(FieldError::new(format!("{path}.CheckID"), "two checks have this identifier"));
        }
        checks.push(check);
    }
    Ok(checks)
}

/// Reads `Connect.SidecarService`, with what it inherits from `parent` filled in.
fn parse_sidecar(mut fields: Fields<'_>, parent: &ServiceInstance) -> Result<ServiceRegistration, FieldError> {
    if fields.take("ID").is_some_and(|field| field.value != Value::String(String::new())) {
        return Err(fields.error("ID", "must not be given: a nested sidecar is named after its service"));
    }
    let id = format!("{}{SIDECAR_SUFFIX}", parent.key.id);
    let id = InstanceId::new(&id).map_err(|error| fields.error("ID", error))?;
    let name = match fields.text("Name")? {
        Some(name) => ServiceName::new(&name),
        None => ServiceName::new(&format!("{}{SIDECAR_SUFFIX}", parent.name)),
    };
    let name = name.map_err(|error| fields.error("Name", error))?;
    if let Some(kind) = fields.text("Kind")?
        && kind != "connect-proxy"
    {
        return Err(fields.error("Kind", format!("{kind:?} is no kind of sidecar; leave it out")));
    }
    if fields.take("Connect").is_some_and(|field| !is_zero(&field.value)) {
        return Err(fields.error("Connect", "a sidecar has no sidecar of its own"));
    }
    let port = fields.port("Port", "to be given one")?;
    let checks = parse_checks(&mut fields)?;
    let mut plain = parse_plain(&mut fields)?;
    if plain.tags.is_empty() {
        plain.tags = parent.tags.clone();
    }
    if plain.meta.is_empty() {
        plain.meta = parent.meta.clone();
    }
    plain.locality = plain.locality.or_else(|| parent.locality.clone());
    let proxy_path = fields.path("Proxy");
    let proxy = match fields.object("Proxy")? {
        Some(proxy) => proxy,
        None => Fields::of(fields.context, &proxy_path, Value::Null)?,
    };
    let proxy = as_agents_tell(parse_proxy(proxy, Some(parent))?);
    let key = InstanceKey { node: fields.context.node.clone(), id };
    fields.finish()?;
    let mut instance = instance_of(key, name, InstanceKind::Sidecar(Box::new(proxy)), port, plain);
    check_ports(&instance, &proxy_path)?;
    fill_tagged_addresses(&mut instance);
    Ok(ServiceRegistration { instance, checks, sidecar: None })
}

/// Reads a `Proxy` block; `parent` is the service of a nested sidecar.
pub(super) fn parse_proxy(
    mut fields: Fields<'_>,
    parent: Option<&ServiceInstance>,
) -> Result<SidecarProxy, FieldError> {
    let destination = match (fields.text("DestinationServiceName")?, parent) {
        (Some(text), _) => ServiceName::new(&text).map_err(|error| fields.error("DestinationServiceName", error))?,
        (None, Some(parent)) => parent.name.clone(),
        (None, None) => return Err(fields.missing("DestinationServiceName", "must be given")),
    };
    let destination_id = match (fields.text("DestinationServiceID")?, parent) {
        (Some(text), _) => Some(InstanceId::new(&text).map_err(|error| fields.error("DestinationServiceID", error))?),
        (None, parent) => parent.map(|parent| parent.key.id.clone()),
    };
    let local_address = fields.address("LocalServiceAddress")?.unwrap_or_else(|| Ipv4Addr::LOCALHOST.to_string());
    let local_port = match (fields.port("LocalServicePort", "for none")?, parent) {
        (None, Some(parent)) => parent.port,
        (port, _) => port,
    };
    let config = parse_config(&mut fields, Place::Sidecar)?.into();
    let mut kept = keep(&mut fields, &["Expose"]);
    let upstreams = parse_upstreams(&mut fields, &destination, &mut kept)?;
    let transparent = parse_transparent(&mut fields)?;
    parse_mesh_gateway(&mut fields)?;
    for name in ["LocalServiceSocketPath", "LocalServicePorts", "EnvoyExtensions", "AccessLogs"] {
        fields.unsupported(name)?;
    }
    fields.finish()?;
    Ok(SidecarProxy { destination, destination_id, local_address, local_port, upstreams, config, transparent, kept })
}

/// Whether the kernel leads connections to the proxy, and how it takes them.
fn parse_transparent(fields: &mut Fields<'_>) -> Result<Option<TransparentProxy>, FieldError> {
    let mode = fields.text("Mode")?;
    let is_transparent = match mode.as_deref() {
        None | Some("direct") => false,
        Some("transparent") => true,
        Some(other) => {
            return Err(fields.error("Mode", format!("{other:?} is no mode; it is \"direct\" or \"transparent\"")));
        }
    };
    let permissive = match fields.text("MutualTLSMode")?.as_deref() {
        None | Some("strict") => false,
        Some("permissive") if is_transparent => true,
        Some("permissive") => {
            return Err(fields.error("MutualTLSMode", "\"permissive\" needs Mode \"transparent\""));
        }
        Some(other) => {
            let reason = format!("{other:?} is no mode; it is \"strict\" or \"permissive\"");
            return Err(fields.error("MutualTLSMode", reason));
        }
    };
    let port_or = |port: Option<Port>, default: u16| {
        port.or_else(|| Port::try_from(i64::from(default)).ok()).expect("invariant: no default port is 0")
    };
    let (mut outbound_port, mut inbound_port) = (None, None);
    if let Some(field) = fields.take("TransparentProxy").filter(|field| !is_zero(&field.value)) {
        if !is_transparent {
            return Err(FieldError::new(field.path, "needs Mode \"transparent\""));
        }
        let mut settings = field.fields()?;
        outbound_port = settings.port_or_zero("OutboundListenerPort")?;
        inbound_port = settings.port_or_zero("InboundListenerPort")?;
        settings.unsupported("DialedDirectly")?;
        settings.finish()?;
    }
    let outbound_port = port_or(outbound_port, TransparentProxy::OUTBOUND_PORT);
    let inbound_port = port_or(inbound_port, TransparentProxy::INBOUND_PORT);
    Ok(is_transparent.then_some(TransparentProxy { outbound_port, inbound_port, permissive }))
}

/// Reads the `Proxy` block of a gateway: settings, and nothing that only sidecars have.
pub(super) fn parse_gateway(fields: Option<Fields<'_>>, place: Place) -> Result<OpaqueSettings, FieldError> {
    let Some(mut fields) = fields else { return Ok(OpaqueSettings::default()) };
    let config = parse_config(&mut fields, place)?.into();
    refuse_beside_config(&mut fields)?;
    Ok(config)
}

fn refuse_beside_config(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.only("Mode", &["direct"])?;
    parse_mesh_gateway(fields)?;
    for name in [
        "DestinationServiceName",
        "DestinationServiceID",
        "LocalServiceAddress",
        "LocalServicePort",
        "LocalServiceSocketPath",
        "Upstreams",
        "MutualTLSMode",
        "TransparentProxy",
        "Expose",
        "EnvoyExtensions",
        "AccessLogs",
    ] {
        fields.unsupported(name)?;
    }
    fields.finish()
}

/// `MeshGateway.Mode` may say that there is none.
pub(super) fn parse_mesh_gateway(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let Some(mut gateway) = fields.object("MeshGateway")? else { return Ok(()) };
    gateway.only("Mode", &["none"])?;
    gateway.finish()
}

fn parse_upstreams(
    fields: &mut Fields<'_>,
    own: &ServiceName,
    kept: &mut OpaqueSettings,
) -> Result<Vec<Upstream>, FieldError> {
    let (mut upstreams, mut queries) = (Vec::<Upstream>::new(), Vec::new());
    for item in fields.list("Upstreams")? {
        let path = item.path.clone();
        let mut item = item.fields()?;
        if let Some(query) = take_query(&mut item)? {
            queries.push(query);
            continue;
        }
        let upstream = parse_upstream(item)?;
        if upstream.destination == *own {
            return Err(FieldError::new(format!("{path}.DestinationName"), format!("{own} is an upstream to itself")));
        }
        for other in &upstreams {
            if other.destination == upstream.destination {
                let reason = format!("there is already an upstream to {}", other.destination);
                return Err(FieldError::new(format!("{path}.DestinationName"), reason));
            }
            if other.bind_port == upstream.bind_port && overlaps(other.bind_address, upstream.bind_address) {
                let reason =
                    format!("port {} is already that of the upstream to {}", other.bind_port, other.destination);
                return Err(FieldError::new(format!("{path}.LocalBindPort"), reason));
            }
        }
        upstreams.push(upstream);
    }
    if !queries.is_empty() {
        kept.insert("Upstreams".to_owned(), queries.into());
    }
    Ok(upstreams)
}

/// An upstream that is a prepared query: nothing listens for it, and it is kept.
fn take_query(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    if fields.may_only("DestinationType", &["service"]).is_ok() {
        return Ok(None);
    }
    fields.only("DestinationType", &["prepared_query"])?;
    fields.context.notice(fields.path("DestinationType"), "has no listener in this release");
    let mut query = serde_json::Map::from_iter([("DestinationType".to_owned(), "prepared_query".into())]);
    query.insert("DestinationName".to_owned(), fields.required_text("DestinationName")?.into());
    query.insert("LocalBindPort".to_owned(), fields.required_port("LocalBindPort", "must be given")?.get().into());
    for name in ["Datacenter", "LocalBindAddress"] {
        query.extend(fields.text(name)?.map(|text| (name.to_owned(), text.into())));
    }
    let config = fields.opaque("Config")?;
    if !config.is_empty() {
        query.insert("Config".to_owned(), config.into());
    }
    parse_mesh_gateway(fields)?;
    fields.tenancy()?;
    fields.ignored(&["CentrallyConfigured"]);
    fields.finish()?;
    Ok(Some(query.into()))
}

fn overlaps(a: IpAddr, b: IpAddr) -> bool {
    a == b || a.is_unspecified() || b.is_unspecified()
}

fn parse_upstream(mut fields: Fields<'_>) -> Result<Upstream, FieldError> {
    let kind_unsaid = fields.text("DestinationType")?.is_none();
    fields.only("DestinationNamespace", &["default"])?;
    fields.only("DestinationPartition", &["default"])?;
    fields.unsupported("DestinationPeer")?;
    let destination = required_name(&mut fields, "DestinationName")?;
    if let Some(datacenter) = fields.text("Datacenter")?
        && datacenter != fields.context.datacenter.as_str()
    {
        return Err(fields.error("Datacenter", format!("no path to datacenter {datacenter:?}")));
    }
    let bind_address = match fields.text("LocalBindAddress")? {
        Some(text) => {
            let wrong = |_| fields.error("LocalBindAddress", format!("{text:?} is no IP address"));
            text.parse().map_err(wrong)?
        }
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let bind_port = fields.required_port("LocalBindPort", "must be given")?;
    fields.unsupported("LocalBindSocketPath")?;
    fields.unsupported("LocalBindSocketMode")?;
    let config = parse_config(&mut fields, Place::Upstream)?.into();
    parse_mesh_gateway(&mut fields)?;
    fields.unsupported("IngressHosts")?;
    fields.ignored(&["CentrallyConfigured"]);
    fields.finish()?;
    Ok(Upstream { destination, bind_address, bind_port, config, kind_unsaid })
}

/// What is captured arrives at ports where nothing else does.
fn check_capture_ports(instance: &ServiceInstance, proxy: &SidecarProxy, proxy_path: &str) -> Result<(), FieldError> {
    let Some(TransparentProxy { outbound_port, inbound_port, .. }) = proxy.transparent else { return Ok(()) };
    let path = |name: &str| format!("{proxy_path}.TransparentProxy.{name}");
    if outbound_port == inbound_port {
        let reason = format!("port {outbound_port} is already the InboundListenerPort");
        return Err(FieldError::new(path("OutboundListenerPort"), reason));
    }
    for (name, port) in [("OutboundListenerPort", outbound_port), ("InboundListenerPort", inbound_port)] {
        let upstream = proxy.upstreams.iter().find(|upstream| upstream.bind_port == port);
        let holder = match upstream {
            _ if instance.port == Some(port) => "the sidecar's own".to_owned(),
            Some(upstream) => format!("that of the upstream to {}", upstream.destination),
            None => continue,
        };
        return Err(FieldError::new(path(name), format!("port {port} is already {holder}")));
    }
    Ok(())
}

/// No two listeners of a proxy on one port.
fn check_ports(instance: &ServiceInstance, proxy_path: &str) -> Result<(), FieldError> {
    let Some(proxy) = instance.sidecar() else { return Ok(()) };
    check_capture_ports(instance, proxy, proxy_path)?;
    let Some(port) = instance.port else { return Ok(()) };
    for (index, upstream) in proxy.upstreams.iter().enumerate() {
        if upstream.bind_port == port {
            let path = format!("{proxy_path}.Upstreams[{index}].LocalBindPort");
            return Err(FieldError::new(path, format!("port {port} is already the sidecar's own")));
        }
    }
    let is_local = proxy.local_address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if is_local && proxy.local_port == Some(port) {
        let path = format!("{proxy_path}.LocalServicePort");
        return Err(FieldError::new(path, format!("port {port} is already the sidecar's own")));
    }
    Ok(())
}
