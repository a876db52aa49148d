//! A mesh told in commands: each command is one transaction, each `plan` shows a proxy's plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_catalog::{Snapshot, Subject};
use starling_identity::Layout;
use starling_model::{
    AccessLog, Action, CaRootRecord, Change, Check, ConfigEntry, ConfigEntryKey, ConfigKind, InstanceKey, InstanceKind,
    Locality, MeshEntry, Node, NodeName, Port, ProxyDefaults, Record, RecordKey, Revision, ServiceDefaults,
    ServiceInstance, ServiceIntentions, ServiceName, ServiceRouter, ServiceSplitter, SidecarProxy, SourceDecision,
    SourceIntention, TransparentProxy, UnixSeconds, Upstream, VirtualAddress, Weights,
};
use starling_plan::{MeshSettings, Planned, Planner, describe, diff, replaced};

/// Ports that sidecars get where none is given, as in Consul.
const SIDECAR_PORT: &str = "21000";

/// A catalog, a planner over it, and the plans that proxies hold.
pub struct Mesh {
    pub snapshot: Snapshot,
    pub planner: Planner,
    pub held: BTreeMap<InstanceKey, Planned>,
    /// Subjects touched since somebody last took them.
    pub touched: BTreeSet<Subject>,
    /// What was committed since somebody last took it.
    pub changes: Vec<Change>,
}

/// The settings that stories play under.
pub fn settings(default: Action) -> MeshSettings {
    MeshSettings {
        trust_domain: "mesh.test".parse().unwrap(),
        datacenter: "dc1".parse().unwrap(),
        namespace: "default".parse().unwrap(),
        default_intention_action: default,
        layout: Layout::Consul,
    }
}

impl Mesh {
    /// One node and one trusted root.
    pub fn new(default: Action) -> Self {
        let mut mesh = Self {
            snapshot: Snapshot::default(),
            planner: Planner::new(settings(default)),
            held: BTreeMap::new(),
            touched: BTreeSet::new(),
            changes: Vec::new(),
        };
        mesh.run("root one");
        mesh.run("node n1 10.0.0.1");
        mesh
    }

    /// Commits one transaction.
    pub fn commit(&mut self, changes: &[Change]) {
        let revision = Revision(self.snapshot.revision().0 + 1);
        let applied = self.snapshot.apply(revision, changes);
        self.snapshot = applied.snapshot;
        self.changes.extend_from_slice(changes);
        self.touched.extend(applied.events.into_iter().map(|event| event.subject));
    }

    /// Runs one command; answers what it prints.
    pub fn run(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        let [verb, args @ ..] = words.as_slice() else { return String::new() };
        match *verb {
            "plan" => return self.plan(args[0]),
            "replan" => return self.replan(),
            "default" => self.planner = Planner::new(settings(action(args[0]))),
            "node" => self.put(Record::Node(node(args))),
            "service" => self.put(Record::Instance(service(args))),
            "sidecar" => self.sidecar(args),
            "gateway" => self.put(Record::Instance(gateway(args))),
            "exit-gateway" => self.put(Record::Instance(exit_gateway(args))),
            "ingress" => {
                let mut entry: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(json(command)).expect(command);
                entry.insert("gateway".to_owned(), args[0].into());
                let entry = serde_json::from_value(entry.into()).expect(command);
                self.put(Record::Config(ConfigEntry::IngressGateway(entry)));
            }
            "terminating" => self.put(Record::Config(ConfigEntry::TerminatingGateway(named(command, "gateway")))),
            "check" => self.put(Record::Check(self.check(args))),
            "defaults" => self.put(Record::Config(ConfigEntry::ServiceDefaults(defaults(args)))),
            "router" => {
                let routes = serde_json::from_str(json(command)).expect(command);
                let service = args[0].parse().unwrap();
                let entry = ServiceRouter { service, routes, meta: BTreeMap::new() };
                self.put(Record::Config(ConfigEntry::ServiceRouter(entry)));
            }
            "splitter" => {
                let splits = serde_json::from_str(json(command)).expect(command);
                let service = args[0].parse().unwrap();
                let entry = ServiceSplitter { service, splits, meta: BTreeMap::new() };
                self.put(Record::Config(ConfigEntry::ServiceSplitter(entry)));
            }
            "resolver" => {
                let mut entry: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(json(command)).expect(command);
                entry.insert("service".to_owned(), args[0].into());
                let entry = serde_json::from_value(entry.into()).expect(command);
                self.put(Record::Config(ConfigEntry::ServiceResolver(entry)));
            }
            "upstream-config" => {
                let service: ServiceName = args[0].parse().unwrap();
                let old = self.snapshot.service_defaults(&service).cloned();
                let mut entry = old.unwrap_or_else(|| ServiceDefaults::bare(service));
                entry.upstream_config = serde_json::from_str(json(command)).expect(command);
                self.put(Record::Config(ConfigEntry::ServiceDefaults(entry)));
            }
            "proxy-defaults" => self.put(Record::Config(ConfigEntry::ProxyDefaults(proxy_defaults(command)))),
            "intention" => self.intention(command),
            "root" => self.put(Record::CaRoot(root(args[0]))),
            "mesh" => {
                let entry = MeshEntry { mesh_destinations_only: args[0] == "only", ..MeshEntry::default() };
                self.put(Record::Config(ConfigEntry::Mesh(entry)));
            }
            "address" => {
                let first = VirtualAddress::candidates(&args[0].parse().unwrap()).next().unwrap();
                self.put(Record::VirtualAddress(first));
            }
            "delete" => self.delete(args),
            other => panic!("no command {other:?}"),
        }
        String::new()
    }

    fn put(&mut self, record: Record) {
        self.commit(&[Change::Put(record)]);
    }

    fn plan(&mut self, id: &str) -> String {
        match self.planner.plan(&self.snapshot, &key(id)) {
            Err(error) => format!("error: {error}\n"),
            Ok(planned) => {
                let text = describe(&planned.plan) + &diagnostics(&planned);
                self.held.insert(key(id), planned);
                text
            }
        }
    }

    /// Plans every proxy again that has a plan, and prints what came of it.
    fn replan(&mut self) -> String {
        let mut text = String::new();
        for (key, held) in &mut self.held {
            match self.planner.plan(&self.snapshot, key) {
                Err(error) => text.push_str(&format!("{key}: error: {error}\n")),
                Ok(planned) => {
                    let parts: Vec<_> = replaced(&held.plan, &planned.plan).iter().map(ToString::to_string).collect();
                    let parts = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
                    text.push_str(&format!("{key}: {parts}\n"));
                    for line in diff(&held.plan, &planned.plan).to_string().lines() {
                        text.push_str(&format!("  {line}\n"));
                    }
                    if held.diagnostics != planned.diagnostics {
                        text.push_str(&diagnostics(&planned));
                    }
                    *held = planned;
                }
            }
        }
        text
    }

    fn sidecar(&mut self, args: &[&str]) {
        let behind = self.snapshot.instance(&key(args[0])).map(|instance| instance.value.clone());
        let options = options(&args[1..]);
        let behind_name = || behind.as_ref().map(|behind| behind.name.clone()).expect("no such instance; say of=");
        let destination = options.get("of").map_or_else(behind_name, |name| name.parse().unwrap());
        let (_, id) = args[0].split_once('/').unwrap_or(("n1", args[0]));
        let local_port = match options.get("local_port") {
            Some(&"none") => None,
            Some(text) => Some(port(text)),
            None => behind.as_ref().and_then(|behind| behind.port).or_else(|| Some(port("8080"))),
        };
        let proxy = SidecarProxy {
            destination: destination.clone(),
            destination_id: behind.as_ref().map(|behind| behind.key.id.clone()),
            local_address: "127.0.0.1".to_owned(),
            local_port,
            upstreams: options.get("upstreams").map(|text| upstreams(text)).unwrap_or_default(),
            config: options.get("config").map(|text| serde_json::from_str(text).expect(text)).unwrap_or_default(),
            transparent: options.get("transparent").map(|text| transparent(text)),
            kept: starling_model::OpaqueSettings::default(),
        };
        let mut instance = instance(&format!("{}-sidecar-proxy", args[0]), &options);
        instance.name = format!("{destination}-sidecar-proxy").parse().unwrap();
        instance.key.id = format!("{id}-sidecar-proxy").parse().unwrap();
        let given = *options.get("port").unwrap_or(&SIDECAR_PORT);
        instance.port = (given != "none").then(|| port(given));
        instance.kind = InstanceKind::Sidecar(Box::new(proxy));
        self.put(Record::Instance(instance));
    }

    fn check(&self, args: &[&str]) -> Check {
        let (node, of) = args[0].split_once('/').unwrap_or(("n1", args[0]));
        let (node, service) = match of {
            "node" => (node, None),
            id => {
                let name = self.snapshot.instance(&key(args[0])).expect("no such instance").value.name.clone();
                (node, Some(starling_model::check::CheckedService { id: id.parse().unwrap(), name, tags: Vec::new() }))
            }
        };
        Check {
            node: node.parse().unwrap(),
            id: format!("check:{of}").parse().unwrap(),
            name: String::new(),
            status: args[1].parse().unwrap(),
            notes: String::new(),
            output: String::new(),
            service,
            kind: String::new(),
            interval: String::new(),
            timeout: String::new(),
            definition: starling_model::OpaqueSettings::default(),
        }
    }

    /// `intention web -> api allow` or `intention web -> api [PERMISSIONS]`; sources gather in the destination's entry.
    fn intention(&mut self, command: &str) {
        let words: Vec<&str> = command.splitn(5, ' ').collect();
        let [_, source, "->", destination, decision] = words.as_slice() else { panic!("not an intention: {command}") };
        let destination: starling_model::IntentionSubject = destination.parse().unwrap();
        let old = self.snapshot.intentions(&destination).map(|entry| entry.value.clone());
        let mut entry = match old {
            Some(ConfigEntry::ServiceIntentions(entry)) => entry,
            _ => ServiceIntentions { destination, sources: Vec::new(), meta: BTreeMap::new() },
        };
        let source: starling_model::IntentionSubject = source.parse().unwrap();
        let decision = if decision.starts_with('[') {
            SourceDecision::Requests(serde_json::from_str(decision).expect(decision))
        } else {
            SourceDecision::Connection(action(decision))
        };
        entry.sources.retain(|intention| intention.source != source);
        entry.sources.push(SourceIntention { source, decision, description: String::new(), id: None });
        self.put(Record::Config(ConfigEntry::ServiceIntentions(entry)));
    }

    fn delete(&mut self, args: &[&str]) {
        let config = |kind, name: &str| RecordKey::Config(ConfigEntryKey { kind, name: name.to_owned() });
        let key = match *args {
            ["instance", id] => RecordKey::Instance(key(id)),
            ["node", name] => RecordKey::Node(name.parse().unwrap()),
            ["check", id] => {
                let (node, of) = id.split_once('/').unwrap_or(("n1", id));
                RecordKey::Check(node.parse().unwrap(), format!("check:{of}").parse().unwrap())
            }
            ["defaults", name] => config(ConfigKind::ServiceDefaults, name),
            ["proxy-defaults"] => config(ConfigKind::ProxyDefaults, "global"),
            ["router", name] => config(ConfigKind::ServiceRouter, name),
            ["splitter", name] => config(ConfigKind::ServiceSplitter, name),
            ["resolver", name] => config(ConfigKind::ServiceResolver, name),
            ["intentions", name] => config(ConfigKind::ServiceIntentions, name),
            ["ingress", name] => config(ConfigKind::IngressGateway, name),
            ["terminating", name] => config(ConfigKind::TerminatingGateway, name),
            ["root", id] => RecordKey::CaRoot(id.to_owned()),
            _ => panic!("nothing to delete: {args:?}"),
        };
        self.commit(&[Change::Delete(key)]);
    }
}

/// What follows verb and name, in the form in which it is stored, with the name in this field.
fn named<T: serde::de::DeserializeOwned>(command: &str, field: &str) -> T {
    let mut entry: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json(command)).expect(command);
    entry.insert(field.to_owned(), command.split_whitespace().nth(1).expect(command).into());
    serde_json::from_value(entry.into()).expect(command)
}

/// What follows verb and name, in the form in which it is stored.
fn json(command: &str) -> &str {
    command.splitn(3, ' ').nth(2).expect(command)
}

fn diagnostics(planned: &Planned) -> String {
    planned.diagnostics.iter().map(|diagnostic| format!("{diagnostic}\n")).collect()
}

/// `id` on node n1, or `node/id`.
pub fn key(text: &str) -> InstanceKey {
    let (node, id) = text.split_once('/').unwrap_or(("n1", text));
    InstanceKey { node: node.parse().unwrap(), id: id.parse().unwrap() }
}

fn port(text: &str) -> Port {
    Port::try_from(text.parse::<i64>().unwrap()).unwrap()
}

fn action(text: &str) -> Action {
    match text {
        "allow" => Action::Allow,
        "deny" => Action::Deny,
        other => panic!("{other:?} is no action"),
    }
}

fn options<'a>(args: &[&'a str]) -> BTreeMap<&'a str, &'a str> {
    args.iter().map(|arg| arg.split_once('=').unwrap_or((arg, ""))).collect()
}

fn node(args: &[&str]) -> Node {
    let name: NodeName = args[0].parse().unwrap();
    let address = args[1].to_owned();
    Node { name, id: String::new(), address, tagged_addresses: BTreeMap::new(), meta: BTreeMap::new() }
}

fn service(args: &[&str]) -> ServiceInstance {
    let options = options(&args[1..]);
    let mut instance = instance(args[0], &options);
    if let Some(name) = options.get("name") {
        instance.name = name.parse().unwrap();
    }
    let given = *options.get("port").unwrap_or(&"8080");
    instance.port = (given != "none").then(|| port(given));
    instance.native = options.contains_key("native");
    instance
}

fn gateway(args: &[&str]) -> ServiceInstance {
    let options = options(&args[1..]);
    let mut instance = instance(args[0], &options);
    let config = options.get("config").map(|text| serde_json::from_str(text).expect(text)).unwrap_or_default();
    instance.kind = InstanceKind::IngressGateway(config);
    instance
}

fn exit_gateway(args: &[&str]) -> ServiceInstance {
    let kind = InstanceKind::TerminatingGateway(starling_model::OpaqueSettings::default());
    ServiceInstance { kind, ..service(args) }
}

/// An instance whose service is its identifier without a trailing number.
fn instance(id: &str, options: &BTreeMap<&str, &str>) -> ServiceInstance {
    let key = key(id);
    let name = key.id.as_str().trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    let weights = options.get("weights").map(|text| {
        let (passing, warning) = text.split_once('/').unwrap();
        Weights { passing: passing.parse().unwrap(), warning: warning.parse().unwrap() }
    });
    let name: ServiceName = name.parse().unwrap();
    ServiceInstance {
        key,
        name,
        kind: InstanceKind::Typical,
        address: options.get("address").map(|address| (*address).to_owned()),
        port: None,
        tags: options.get("tags").map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default(),
        meta: options.get("version").map(|v| ("version".to_owned(), (*v).to_owned())).into_iter().collect(),
        tagged_addresses: BTreeMap::new(),
        weights: weights.unwrap_or_default(),
        enable_tag_override: false,
        native: false,
        locality: options.get("at").map(|text| locality(text)),
        kept: starling_model::OpaqueSettings::default(),
    }
}

/// `REGION` or `REGION/ZONE`.
fn locality(text: &str) -> Arc<Locality> {
    let (region, zone) = text.split_once('/').map_or((text, None), |(region, zone)| (region, Some(zone)));
    Arc::new(Locality { region: region.parse().unwrap(), zone: zone.map(|zone| zone.parse().unwrap()) })
}

/// `hey:9191,db:127.0.0.2:9192{"connect_timeout_ms":100}`; a config goes on to the next `}`-closed comma.
fn upstreams(text: &str) -> Vec<Upstream> {
    let mut upstreams = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (address, config, tail) = match (rest.find('{'), rest.find(',')) {
            (Some(brace), comma) if comma.is_none_or(|comma| brace < comma) => {
                let end = rest.find(";").unwrap_or(rest.len());
                (&rest[..brace], Some(&rest[brace..end]), rest.get(end + 1..).unwrap_or_default())
            }
            (_, Some(comma)) => (&rest[..comma], None, &rest[comma + 1..]),
            (_, None) => (rest, None, ""),
        };
        let parts: Vec<&str> = address.split(':').collect();
        let (name, bind, number) = match parts.as_slice() {
            [name, number] => (*name, "127.0.0.1", *number),
            [name, bind, number] => (*name, *bind, *number),
            _ => panic!("no upstream: {address:?}"),
        };
        upstreams.push(Upstream {
            destination: name.parse().unwrap(),
            bind_address: bind.parse().unwrap(),
            bind_port: port(number),
            config: config.map(|text| serde_json::from_str(text).expect(text)).unwrap_or_default(),
            kind_unsaid: false,
        });
        rest = tail;
    }
    upstreams
}

fn defaults(args: &[&str]) -> ServiceDefaults {
    let options = options(&args[1..]);
    let milliseconds = |key: &str| options.get(key).map(|text| std::time::Duration::from_millis(text.parse().unwrap()));
    ServiceDefaults {
        protocol: options.get("protocol").map(|text| text.parse().unwrap()),
        local_connect_timeout: milliseconds("local_connect_timeout_ms"),
        local_request_timeout: milliseconds("local_request_timeout_ms"),
        max_inbound_connections: options.get("max_inbound_connections").map(|text| text.parse().unwrap()),
        ..ServiceDefaults::bare(args[0].parse().unwrap())
    }
}

/// `proxy-defaults {"protocol":"http"} [access-logs=off] [near=failover]`, the map being its `Config`.
fn proxy_defaults(command: &str) -> ProxyDefaults {
    let json = command.split_whitespace().nth(1).unwrap_or("{}");
    let config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).expect(json);
    let protocol = config.get("protocol").and_then(|value| value.as_str()).map(|text| text.parse().unwrap());
    let enabled = command.contains("access-logs=off").then_some(false);
    let access_logs = AccessLog { enabled, ..AccessLog::default() };
    let near = |mode: &str| serde_json::from_value(mode.into()).expect(command);
    let prioritize_by_locality = command.split_once("near=").map(|(_, mode)| near(mode));
    ProxyDefaults { config, protocol, access_logs, prioritize_by_locality, ..ProxyDefaults::default() }
}

fn root(id: &str) -> CaRootRecord {
    CaRootRecord {
        id: id.to_owned(),
        name: String::new(),
        certificate_pem: format!("-----BEGIN CERTIFICATE-----\n{id}\n-----END CERTIFICATE-----\n"),
        serial: 1,
        signing_key_id: String::new(),
        trust_domain: "mesh.test".parse().unwrap(),
        not_before: UnixSeconds(0),
        not_after: UnixSeconds(1),
        active: id == "one",
        overlap: None,
        renew_within_s: 0,
    }
}

/// `strict` or `permissive`.
fn transparent(mode: &str) -> TransparentProxy {
    let port = |number: u16| Port::try_from(i64::from(number)).unwrap();
    TransparentProxy {
        outbound_port: port(TransparentProxy::OUTBOUND_PORT),
        inbound_port: port(TransparentProxy::INBOUND_PORT),
        permissive: mode == "permissive",
    }
}
