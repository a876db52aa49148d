//! Model values in Consul's JSON forms: field names, their order, and where Consul writes null, nothing or a zero.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use starling_catalog::Snapshot;
use starling_model::{
    AccessLog, CaRootRecord, Check, ConfigEntry, ConfigKind, HeaderMatch, HeaderTest, InstanceKind,
    IntentionPermission, IntentionSubject, LocalityMode, LogFilter, LogForm, LogTarget, MeshEntry, Node,
    OpaqueSettings, PathMatch, ProxyDefaults, Revision, ServiceDefaults, ServiceInstance, ServiceIntentions,
    SidecarProxy, SourceDecision, SourceIntention, TaggedAddress, Tracing, TransparentProxy, UnixSeconds, Upstream,
    Versioned,
};

use crate::ports::{Leaf, MeshFacts};

pub(crate) mod acl;
mod chain;
mod ingress;
mod routing;
pub(crate) mod terminating;

pub(crate) use chain::{ChainOf, Overrides, chain};

/// An object that is built field by field, with Go's `omitempty` beside plain fields.
struct Form(Map<String, Value>);

impl Form {
    fn new() -> Self {
        Self(Map::new())
    }

    fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// The field, unless it holds Go's zero value.
    fn nonempty(self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let empty = match &value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) => false,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
        };
        if empty { self } else { self.field(name, value) }
    }

    /// Fields as they were given, over those of the same names.
    fn all(mut self, given: &Map<String, Value>) -> Self {
        self.0.extend(given.clone());
        self
    }

    fn indexes(self, created: Revision, modified: Revision) -> Self {
        self.field("CreateIndex", created.0).field("ModifyIndex", modified.0)
    }

    fn end(self) -> Value {
        Value::Object(self.0)
    }
}

fn texts(map: &BTreeMap<String, String>) -> Value {
    map.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect::<Map<_, _>>().into()
}

/// Consul writes null for a map that nobody gave.
fn texts_or_null(map: &BTreeMap<String, String>) -> Value {
    if map.is_empty() { Value::Null } else { texts(map) }
}

fn strings(list: &[String]) -> Value {
    list.iter().map(String::as_str).collect::<Vec<_>>().into()
}

fn port_number(port: Option<starling_model::Port>) -> u16 {
    port.map_or(0, starling_model::Port::get)
}

/// A moment in RFC 3339.
pub(crate) fn time(seconds: UnixSeconds) -> String {
    let seconds = i64::try_from(seconds.0).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    time.to_string()
}

/// A node, as in `/v1/catalog/nodes`.
pub(crate) fn node(node: &Versioned<Node>, facts: &MeshFacts) -> Value {
    let Node { name, id, address, tagged_addresses, meta } = &node.value;
    Form::new()
        .field("ID", id.as_str())
        .field("Node", name.as_str())
        .field("Address", address.as_str())
        .field("Datacenter", facts.datacenter.as_str())
        .field("TaggedAddresses", texts_or_null(tagged_addresses))
        .field("Meta", texts_or_null(meta))
        .indexes(node.created, node.modified)
        .end()
}

pub(crate) fn kind_text(instance: &ServiceInstance) -> &'static str {
    match &instance.kind {
        InstanceKind::Typical => "",
        InstanceKind::Sidecar(_) => "connect-proxy",
        InstanceKind::IngressGateway(_) => "ingress-gateway",
        InstanceKind::TerminatingGateway(_) => "terminating-gateway",
        InstanceKind::OtherGateway(gateway) => gateway.kind.as_str(),
    }
}

/// Consul's tag for the virtual address of the service that an instance fronts.
const VIRTUAL: &str = "consul-virtual";

/// The addresses of an instance in the catalog, the virtual one of its service included.
fn tagged_in_catalog(instance: &ServiceInstance, snapshot: &Snapshot) -> Value {
    let mut addresses = instance.tagged_addresses.clone();
    let fronts = instance.native || instance.sidecar().is_some();
    if let Some(address) = snapshot.virtual_address(instance.identity()).filter(|_| fronts) {
        addresses.insert(VIRTUAL.to_owned(), TaggedAddress { address: address.to_string(), port: instance.port });
    }
    tagged(&addresses)
}

fn tagged(addresses: &BTreeMap<String, TaggedAddress>) -> Value {
    let form = |entry: &TaggedAddress| json!({"Address": entry.address, "Port": port_number(entry.port)});
    addresses.iter().map(|(tag, entry)| (tag.clone(), form(entry))).collect::<Map<_, _>>().into()
}

fn weights(instance: &ServiceInstance) -> Value {
    json!({"Passing": instance.weights.passing, "Warning": instance.weights.warning})
}

fn connect(instance: &ServiceInstance) -> Value {
    Form::new().nonempty("Native", instance.native).end()
}

fn locality(instance: &ServiceInstance) -> Value {
    instance.locality.as_ref().map_or(Value::Null, |locality| {
        let zone = locality.zone.as_ref().map_or("", |zone| zone.as_str());
        Form::new().field("Region", locality.region.as_str()).nonempty("Zone", zone).end()
    })
}

/// A service on a node, as in `/v1/health/service` and `/v1/catalog/node`.
pub(crate) fn node_service(entry: &Versioned<ServiceInstance>, snapshot: &Snapshot) -> Value {
    let instance = &entry.value;
    Form::new()
        .nonempty("Kind", kind_text(instance))
        .field("ID", instance.key.id.as_str())
        .field("Service", instance.name.as_str())
        .field("Tags", strings(&instance.tags))
        .field("Address", instance.address.as_deref().unwrap_or_default())
        .nonempty("TaggedAddresses", tagged_in_catalog(instance, snapshot))
        .field("Meta", texts(&instance.meta))
        .field("Port", port_number(instance.port))
        .all(&instance.kept)
        .field("Weights", weights(instance))
        .field("EnableTagOverride", instance.enable_tag_override)
        .field("Proxy", catalog_proxy(instance))
        .field("Connect", connect(instance))
        .field("PeerName", "")
        .nonempty("Locality", locality(instance))
        .indexes(entry.created, entry.modified)
        .end()
}

fn catalog_proxy(instance: &ServiceInstance) -> Value {
    let Some(proxy) = instance.sidecar() else {
        let config = gateway_config(instance).map_or(Value::Null, |config| config.clone().into());
        return Form::new()
            .field("Mode", "")
            .nonempty("Config", config)
            .field("MeshGateway", json!({}))
            .field("Expose", json!({}))
            .end();
    };
    let upstreams = proxy.upstreams.iter().map(|upstream| {
        let form = Form::new()
            .nonempty("DestinationType", if upstream.kind_unsaid { "" } else { "service" })
            .field("DestinationName", upstream.destination.as_str())
            .field("Datacenter", "");
        upstream_rest(form, upstream)
    });
    mode(proxy_destination(proxy).field("Mode", ""), proxy)
        .nonempty("Config", proxy.config.clone())
        .nonempty("Upstreams", with_kept(proxy, upstreams.collect()))
        .field("MeshGateway", json!({}))
        .field("Expose", expose(proxy))
        .end()
}

/// How it is reached, where that is not through its listeners.
fn mode(form: Form, proxy: &SidecarProxy) -> Form {
    let Some(TransparentProxy { outbound_port, inbound_port, permissive }) = proxy.transparent else { return form };
    let ports = Form::new()
        .nonempty("OutboundListenerPort", outbound_port.get())
        .nonempty("InboundListenerPort", inbound_port.get());
    let form = form.field("Mode", "transparent").field("TransparentProxy", ports.end());
    form.nonempty("MutualTLSMode", if permissive { "permissive" } else { "" })
}

fn proxy_destination(proxy: &SidecarProxy) -> Form {
    Form::new()
        .field("DestinationServiceName", proxy.destination.as_str())
        .nonempty("DestinationServiceID", proxy.destination_id.as_ref().map_or("", |id| id.as_str()))
        .nonempty("LocalServiceAddress", proxy.local_address.as_str())
        .nonempty("LocalServicePort", port_number(proxy.local_port))
}

fn upstream_rest(form: Form, upstream: &Upstream) -> Value {
    // Consul shows no address where none was given.
    let is_default = upstream.bind_address == IpAddr::V4(Ipv4Addr::LOCALHOST);
    let address = if is_default { String::new() } else { upstream.bind_address.to_string() };
    form.nonempty("LocalBindAddress", address)
        .field("LocalBindPort", upstream.bind_port.get())
        .nonempty("Config", upstream.config.clone())
        .field("MeshGateway", json!({}))
        .end()
}

/// A service as the agent tells it, in `/v1/agent/services`.
pub(crate) fn agent_service(instance: &ServiceInstance, facts: &MeshFacts) -> Value {
    agent_service_form(instance, facts).end()
}

/// The same with its content hash, in `/v1/agent/service/:id`; the hash comes back too.
pub(crate) fn agent_service_hashed(instance: &ServiceInstance, facts: &MeshFacts) -> (Value, String) {
    let form = agent_service_form(instance, facts);
    let bytes = serde_json::to_vec(&form.0).unwrap_or_default();
    let digest = Sha256::digest(&bytes);
    // 64 bits, as Consul's: it tells contents apart, it protects nothing.
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    (form.field("ContentHash", hash.as_str()).end(), hash)
}

fn agent_service_form(instance: &ServiceInstance, facts: &MeshFacts) -> Form {
    let proxy = match &instance.kind {
        InstanceKind::Typical => Value::Null,
        InstanceKind::Sidecar(proxy) => agent_proxy(proxy),
        InstanceKind::IngressGateway(config) | InstanceKind::TerminatingGateway(config) => agent_gateway(config),
        InstanceKind::OtherGateway(gateway) => agent_gateway(&gateway.config),
    };
    Form::new()
        .nonempty("Kind", kind_text(instance))
        .field("ID", instance.key.id.as_str())
        .field("Service", instance.name.as_str())
        .field("Tags", strings(&instance.tags))
        .field("Meta", texts(&instance.meta))
        .field("Port", port_number(instance.port))
        .field("Address", instance.address.as_deref().unwrap_or_default())
        .all(&instance.kept)
        .nonempty("TaggedAddresses", tagged(&instance.tagged_addresses))
        .field("Weights", weights(instance))
        .field("EnableTagOverride", instance.enable_tag_override)
        .nonempty("Proxy", proxy)
        .nonempty("Connect", connect(instance))
        .nonempty("Locality", locality(instance))
        .field("Datacenter", facts.datacenter.as_str())
}

fn agent_gateway(config: &OpaqueSettings) -> Value {
    let form = Form::new().nonempty("Config", config.clone());
    form.field("MeshGateway", json!({})).field("Expose", json!({})).end()
}

fn gateway_config(instance: &ServiceInstance) -> Option<&OpaqueSettings> {
    match &instance.kind {
        InstanceKind::OtherGateway(gateway) => Some(&gateway.config),
        InstanceKind::Typical
        | InstanceKind::Sidecar(_)
        | InstanceKind::IngressGateway(_)
        | InstanceKind::TerminatingGateway(_) => instance.gateway(),
    }
}

/// With the upstreams for which nothing listens behind those for which something does.
fn with_kept(proxy: &SidecarProxy, mut upstreams: Vec<Value>) -> Vec<Value> {
    upstreams.extend(proxy.kept.get("Upstreams").and_then(Value::as_array).into_iter().flatten().cloned());
    upstreams
}

fn expose(proxy: &SidecarProxy) -> Value {
    proxy.kept.get("Expose").cloned().unwrap_or_else(|| json!({}))
}

fn agent_proxy(proxy: &SidecarProxy) -> Value {
    let upstreams = proxy.upstreams.iter().map(|upstream| {
        let form =
            Form::new().field("DestinationType", "service").field("DestinationName", upstream.destination.as_str());
        upstream_rest(form, upstream)
    });
    mode(proxy_destination(proxy), proxy)
        .nonempty("Config", proxy.config.clone())
        .nonempty("Upstreams", with_kept(proxy, upstreams.collect()))
        .field("MeshGateway", json!({}))
        .field("Expose", expose(proxy))
        .end()
}

/// A row of `/v1/catalog/service/:name`: a service with its node. The node's record may be missing for a moment.
pub(crate) fn catalog_row(entry: &Versioned<ServiceInstance>, snapshot: &Snapshot, facts: &MeshFacts) -> Value {
    let instance = &entry.value;
    let none = BTreeMap::new();
    let node = snapshot.node(&instance.key.node).map(|node| &node.value);
    Form::new()
        .field("ID", node.map_or("", |node| node.id.as_str()))
        .field("Node", instance.key.node.as_str())
        .field("Address", node.map_or("", |node| node.address.as_str()))
        .field("Datacenter", facts.datacenter.as_str())
        .field("TaggedAddresses", texts_or_null(node.map_or(&none, |node| &node.tagged_addresses)))
        .field("NodeMeta", texts_or_null(node.map_or(&none, |node| &node.meta)))
        .field("ServiceKind", kind_text(instance))
        .field("ServiceID", instance.key.id.as_str())
        .field("ServiceName", instance.name.as_str())
        .field("ServiceTags", strings(&instance.tags))
        .field("ServiceAddress", instance.address.as_deref().unwrap_or_default())
        .nonempty("ServiceTaggedAddresses", tagged_in_catalog(instance, snapshot))
        .field("ServiceWeights", weights(instance))
        .field("ServiceMeta", texts(&instance.meta))
        .field("ServicePort", port_number(instance.port))
        .field("ServiceSocketPath", instance.kept.get("SocketPath").cloned().unwrap_or_else(|| "".into()))
        .nonempty("ServicePorts", instance.kept.get("Ports").cloned().unwrap_or_default())
        .field("ServiceEnableTagOverride", instance.enable_tag_override)
        .field("ServiceProxy", catalog_proxy(instance))
        .field("ServiceConnect", connect(instance))
        .nonempty("ServiceLocality", locality(instance))
        .indexes(entry.created, entry.modified)
        .end()
}

/// A check. The agent's own have no indexes yet and show 0, as in Consul.
pub(crate) fn check(check: &Check, created: Revision, modified: Revision) -> Value {
    let service = check.service.as_ref();
    Form::new()
        .field("Node", check.node.as_str())
        .field("CheckID", check.id.as_str())
        .field("Name", check.name.as_str())
        .field("Status", check.status.as_str())
        .field("Notes", check.notes.as_str())
        .field("Output", check.output.as_str())
        .field("ServiceID", service.map_or("", |service| service.id.as_str()))
        .field("ServiceName", service.map_or("", |service| service.name.as_str()))
        .field("ServiceTags", strings(service.map_or(&[], |service| service.tags.as_slice())))
        .field("Type", check.kind.as_str())
        .field("Interval", check.interval.as_str())
        .field("Timeout", check.timeout.as_str())
        .field("ExposedPort", 0)
        .field("Definition", Value::Object((*check.definition).clone()))
        .indexes(created, modified)
        .end()
}

/// A check from the catalog.
pub(crate) fn catalog_check(entry: &Versioned<Check>) -> Value {
    check(&entry.value, entry.created, entry.modified)
}

/// A config entry.
pub(crate) fn config_entry(entry: &Versioned<ConfigEntry>) -> Value {
    let key = entry.value.key();
    let form = Form::new().field("Kind", key.kind.as_str());
    // Of this kind there is one, without a name in Consul's form.
    let form = if key.kind == ConfigKind::Mesh { form } else { form.field("Name", key.name) };
    let form = match &entry.value {
        ConfigEntry::ProxyDefaults(entry) => proxy_defaults(form, entry),
        ConfigEntry::ServiceDefaults(entry) => service_defaults(form, entry),
        ConfigEntry::ServiceIntentions(entry) => service_intentions(form, entry),
        ConfigEntry::ServiceResolver(entry) => routing::service_resolver(form, entry),
        ConfigEntry::ServiceRouter(entry) => routing::service_router(form, entry),
        ConfigEntry::ServiceSplitter(entry) => routing::service_splitter(form, entry),
        ConfigEntry::Mesh(entry) => mesh(form, entry),
        ConfigEntry::IngressGateway(entry) => ingress::ingress_gateway(form, entry),
        ConfigEntry::TerminatingGateway(entry) => terminating::terminating_gateway(form, entry),
        ConfigEntry::Kept(entry) => form.all(&entry.settings),
    };
    form.indexes(entry.created, entry.modified).end()
}

fn mesh(form: Form, entry: &MeshEntry) -> Form {
    let MeshEntry { mesh_destinations_only, kept, meta } = entry;
    let transparent = json!({"MeshDestinationsOnly": mesh_destinations_only});
    form.field("TransparentProxy", transparent).all(kept).nonempty("Meta", texts(meta))
}

fn proxy_defaults(form: Form, entry: &ProxyDefaults) -> Form {
    let ProxyDefaults { config, protocol: _, access_logs, tracing, prioritize_by_locality, kept, meta } = entry;
    let config = if config.is_empty() { Value::Null } else { Value::Object(config.clone()) };
    form.field("TransparentProxy", json!({}))
        .field("MeshGateway", json!({}))
        .field("Expose", json!({}))
        .field("AccessLogs", self::access_log(access_logs))
        .nonempty("Tracing", self::tracing(tracing))
        .field("Config", config)
        .nonempty("PrioritizeByLocality", locality_mode(*prioritize_by_locality))
        .all(kept)
        .nonempty("Meta", texts(meta))
}

fn locality_mode(mode: Option<LocalityMode>) -> Value {
    mode.map_or(Value::Null, |mode| json!({"Mode": mode.as_str()}))
}

fn tracing(tracing: &Tracing) -> Map<String, Value> {
    let Tracing { collector, sampled } = tracing;
    let mut said = Map::new();
    if let Some(collector) = collector {
        said.insert("Endpoint".to_owned(), json!(collector.to_string()));
        said.insert("Percent".to_owned(), json!(sampled.as_number()));
    }
    said
}

fn access_log(log: &AccessLog) -> Value {
    let AccessLog { enabled, filter, target, form, without_listeners } = log;
    let mut said = serde_json::Map::new();
    let mut say = |name: &str, value: Value| said.insert(name.to_owned(), value);
    if let Some(enabled) = enabled {
        say("Enabled", json!(enabled));
    }
    if *without_listeners {
        say("DisableListenerLogs", json!(true));
    }
    if *filter != LogFilter::All {
        say("Filter", json!(filter.to_string()));
    }
    match target {
        LogTarget::Stdout => {}
        LogTarget::Stderr => drop(say("Type", json!("stderr"))),
        LogTarget::File(path) => {
            say("Type", json!("file"));
            say("Path", json!(path.to_string_lossy()));
        }
    }
    match form {
        None => {}
        Some(LogForm::Text(template)) => drop(say("TextFormat", json!(template.as_str()))),
        Some(LogForm::Json(fields)) => drop(say("JSONFormat", json!(json!(fields).to_string()))),
    }
    Value::Object(said)
}

fn service_defaults(form: Form, entry: &ServiceDefaults) -> Form {
    let ServiceDefaults {
        service: _,
        protocol,
        local_connect_timeout,
        local_request_timeout,
        max_inbound_connections,
        rate_limit,
        upstream_config,
        kept,
        meta,
    } = entry;
    form.field("Protocol", protocol.map_or("", starling_model::Protocol::as_str))
        .field("TransparentProxy", json!({}))
        .field("MeshGateway", json!({}))
        .field("Expose", json!({}))
        .nonempty("MaxInboundConnections", max_inbound_connections.unwrap_or(0))
        .nonempty("LocalConnectTimeoutMs", milliseconds(*local_connect_timeout))
        .nonempty("LocalRequestTimeoutMs", milliseconds(*local_request_timeout))
        .nonempty("UpstreamConfig", routing::upstream_config(upstream_config))
        .nonempty("RateLimits", rate_limit.map_or(Value::Null, routing::rate_limits))
        .all(kept)
        .nonempty("Meta", texts(meta))
}

fn milliseconds(timeout: Option<std::time::Duration>) -> u64 {
    timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
}

fn service_intentions(form: Form, entry: &ServiceIntentions) -> Form {
    let source = |source: &SourceIntention| {
        decision(Form::new().field("Name", source.source.as_str()), &source.decision)
            .field("Precedence", source.precedence(&entry.destination))
            .field("Type", "consul")
            .nonempty("Description", source.description.as_str())
            .nonempty("LegacyID", source.id.map_or_else(String::new, |id| id.to_string()))
            .end()
    };
    form.field("Sources", entry.sources.iter().map(source).collect::<Vec<_>>()).nonempty("Meta", texts(&entry.meta))
}

fn decision(form: Form, decision: &SourceDecision) -> Form {
    match decision {
        SourceDecision::Connection(action) => form.field("Action", action.as_str()),
        SourceDecision::Requests(permissions) => {
            form.field("Permissions", permissions.iter().map(permission).collect::<Vec<_>>())
        }
    }
}

fn permission(permission: &IntentionPermission) -> Value {
    let http = match &permission.path {
        None => Form::new(),
        Some(PathMatch::Exact(path)) => Form::new().field("PathExact", path.as_str()),
        Some(PathMatch::Prefix(path)) => Form::new().field("PathPrefix", path.as_str()),
        Some(PathMatch::Regex(path)) => Form::new().field("PathRegex", path.as_str()),
    };
    let http = http
        .nonempty("Header", permission.headers.iter().map(header).collect::<Vec<_>>())
        .nonempty("Methods", strings(&permission.methods));
    json!({"Action": permission.action.as_str(), "HTTP": http.end()})
}

fn header(header: &HeaderMatch) -> Value {
    let form = Form::new().field("Name", header.name.as_str());
    let form = match &header.test {
        HeaderTest::Present => form.field("Present", true),
        HeaderTest::Exact(text) => form.field("Exact", text.as_str()),
        HeaderTest::Prefix(text) => form.field("Prefix", text.as_str()),
        HeaderTest::Suffix(text) => form.field("Suffix", text.as_str()),
        HeaderTest::Contains(text) => form.field("Contains", text.as_str()),
        HeaderTest::Regex(text) => form.field("Regex", text.as_str()),
    };
    form.nonempty("Invert", header.invert).nonempty("IgnoreCase", header.ignore_case).end()
}

/// A single intention of an entry.
pub(crate) fn intention(
    destination: &IntentionSubject,
    source: &SourceIntention,
    meta: &BTreeMap<String, String>,
    created: Revision,
    modified: Revision,
) -> Value {
    let form = Form::new()
        .nonempty("ID", source.id.map_or_else(String::new, |id| id.to_string()))
        .nonempty("Description", source.description.as_str())
        .field("SourceNS", "default")
        .field("SourceName", source.source.as_str())
        .field("DestinationNS", "default")
        .field("DestinationName", destination.as_str())
        .field("SourceType", "consul");
    decision(form, &source.decision)
        .nonempty("Meta", texts(meta))
        .field("Precedence", source.precedence(destination))
        .indexes(created, modified)
        .end()
}

/// A root certificate.
pub(crate) fn root(entry: &Versioned<CaRootRecord>) -> Value {
    let root = &entry.value;
    let domain = root.trust_domain.as_str();
    json!({
        "ID": root.id,
        "Name": root.name,
        "SerialNumber": root.serial,
        "SigningKeyID": root.signing_key_id,
        "ExternalTrustDomain": domain.strip_suffix(".consul").unwrap_or(domain),
        "NotBefore": time(root.not_before),
        "NotAfter": time(root.not_after),
        "RootCert": root.certificate_pem,
        "IntermediateCerts": null,
        "Active": root.active,
        "PrivateKeyType": "ec",
        "PrivateKeyBits": 256,
        "CreateIndex": entry.created.0,
        "ModifyIndex": entry.modified.0,
    })
}

/// A leaf with its private key.
pub(crate) fn leaf(leaf: &Leaf) -> Value {
    json!({
        "SerialNumber": leaf.serial_number,
        "CertPEM": leaf.certificate_pem,
        "PrivateKeyPEM": leaf.private_key_pem.reveal(),
        "Service": leaf.service.as_str(),
        "ServiceURI": leaf.uri,
        "ValidAfter": time(leaf.valid_after),
        "ValidBefore": time(leaf.valid_before),
        "CreateIndex": leaf.created.0,
        "ModifyIndex": leaf.modified.0,
    })
}
