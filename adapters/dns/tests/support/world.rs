//! A catalog from lines of text, shared by this crate's tests.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use starling_catalog::Snapshot;
use starling_dns::{CatalogReader, Sight};
use starling_model::*;

/// The parts of a line: words in their order, and `key=value` pairs.
struct Line<'a> {
    words: Vec<&'a str>,
    pairs: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let (pairs, words): (Vec<_>, Vec<_>) = line.split_whitespace().partition(|part| part.contains('='));
        Self { words, pairs: pairs.into_iter().filter_map(|pair| pair.split_once('=')).collect() }
    }

    fn owned(&self) -> BTreeMap<String, String> {
        self.pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }
}

/// The record that a line describes: `node NAME ADDRESS key=value…`, `service NODE ID NAME port= address= tags=a,b
/// weights=PASSING/WARNING native=true`, `sidecar …` (as service, with `of=SERVICE`), `check NODE ID STATUS service=ID`,
/// `virtual SERVICE ADDRESS`, `ingress GATEWAY SERVICE`, `query NAME SERVICE tags= ttl=SECONDS ignore=CHECK passing=true connect=true near=NODE`, and
/// `template BEGINNING SERVICE regexp=`.
pub fn record(line: &str) -> Record {
    let line = Line::parse(line);
    match line.words.as_slice() {
        ["node", name, address] => Record::Node(Node {
            name: name.parse().unwrap(),
            id: String::new(),
            address: (*address).to_owned(),
            tagged_addresses: BTreeMap::new(),
            meta: line.owned(),
        }),
        [kind @ ("service" | "sidecar"), node, id, name] => {
            let (passing, warning) = line.pairs.get("weights").map_or(("1", "1"), |w| w.split_once('/').unwrap());
            Record::Instance(ServiceInstance {
                key: InstanceKey { node: node.parse().unwrap(), id: id.parse().unwrap() },
                name: name.parse().unwrap(),
                kind: if *kind == "sidecar" { proxy(line.pairs["of"]) } else { InstanceKind::Typical },
                address: line.pairs.get("address").map(|address| (*address).to_owned()),
                port: line.pairs.get("port").map(|port| Port::try_from(port.parse::<i64>().unwrap()).unwrap()),
                tags: line.pairs.get("tags").map_or_else(Vec::new, |t| t.split(',').map(str::to_owned).collect()),
                meta: BTreeMap::new(),
                tagged_addresses: BTreeMap::new(),
                weights: Weights { passing: passing.parse().unwrap(), warning: warning.parse().unwrap() },
                enable_tag_override: false,
                native: line.pairs.contains_key("native"),
                locality: None,
                kept: starling_model::OpaqueSettings::default(),
            })
        }
        ["check", node, id, status] => Record::Check(Check {
            node: node.parse().unwrap(),
            id: id.parse().unwrap(),
            name: (*id).to_owned(),
            status: status.parse().unwrap(),
            notes: String::new(),
            output: String::new(),
            service: line.pairs.get("service").map(|id| CheckedService {
                id: id.parse().unwrap(),
                name: "any".parse().unwrap(),
                tags: Vec::new(),
            }),
            kind: String::new(),
            interval: String::new(),
            timeout: String::new(),
            definition: starling_model::OpaqueSettings::default(),
        }),
        ["virtual", service, address] => Record::VirtualAddress(VirtualAddress {
            address: address.parse().unwrap(),
            service: service.parse().unwrap(),
        }),
        ["ingress", gateway, service] => ingress(gateway, service),
        [kind @ ("query" | "template"), name, service] => query(&line, *kind == "template", name, service),
        other => panic!("no such line: {other:?}"),
    }
}

fn ingress(gateway: &str, service: &str) -> Record {
    Record::Config(ConfigEntry::IngressGateway(Box::new(IngressGateway {
        gateway: gateway.parse().unwrap(),
        tls: None,
        defaults: UpstreamSettings::default(),
        trusted_proxies: Vec::new(),
        listeners: vec![IngressListener {
            port: Port::try_from(8080).unwrap(),
            protocol: Protocol::Tcp,
            tls: ListenerTls::default(),
            proxy_protocol: false,
            route: IngressRoute::Services(vec![IngressService {
                service: service.parse().unwrap(),
                hosts: Vec::new(),
                request_headers: HeaderEdits::default(),
                response_headers: HeaderEdits::default(),
                settings: UpstreamSettings::default(),
                secret: None,
            }]),
        }],
        meta: BTreeMap::new(),
    })))
}

fn query(line: &Line<'_>, is_template: bool, name: &str, service: &str) -> Record {
    let given = |key: &str| line.pairs.get(key).map(|value| (*value).to_owned());
    let list = |key: &str| given(key).map_or_else(Vec::new, |all| all.split(',').map(str::to_owned).collect());
    let query = PreparedQuery {
        name: name.to_owned(),
        template: is_template.then(|| given("regexp").unwrap_or_default()),
        remove_empty_tags: true,
        service: ServiceQuery {
            service: service.to_owned(),
            tags: list("tags"),
            ignore_check_ids: list("ignore"),
            only_passing: given("passing").is_some(),
            connect: given("connect").is_some(),
            near: given("near").unwrap_or_default(),
            ..ServiceQuery::default()
        },
        dns_ttl: String::new(),
        dns_ttl_s: given("ttl").map_or(0, |ttl| ttl.parse().unwrap()),
    };
    let id = Uuid::from_random(name.bytes().fold(7, |sum, byte| sum * 31 + u128::from(byte)));
    let (kind, name) = (KeptKind::PreparedQuery, id.to_string().parse().unwrap());
    Record::Config(ConfigEntry::Kept(Box::new(KeptEntry { kind, name, settings: query.into_settings().into() })))
}

fn proxy(destination: &str) -> InstanceKind {
    InstanceKind::Sidecar(Box::new(SidecarProxy {
        destination: destination.parse().unwrap(),
        destination_id: None,
        local_address: "127.0.0.1".to_owned(),
        local_port: None,
        upstreams: Vec::new(),
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    }))
}

/// The state after one more line.
pub fn after(snapshot: &Snapshot, line: &str) -> Snapshot {
    let revision = Revision(snapshot.revision().0 + 1);
    snapshot.apply(revision, &[Change::Put(record(line))]).snapshot
}

/// The state after these lines.
pub fn catalog<L: AsRef<str>>(lines: impl IntoIterator<Item = L>) -> Snapshot {
    lines.into_iter().fold(Snapshot::default(), |snapshot, line| after(&snapshot, line.as_ref()))
}

/// A reader whose catalog a test can replace.
#[derive(Debug)]
pub struct Shelf {
    snapshot: Mutex<Arc<Snapshot>>,
    sight: Mutex<Sight>,
    sight_version: AtomicU64,
    datacenter: Datacenter,
    trust_domain: TrustDomain,
}

impl Shelf {
    pub fn new(snapshot: Snapshot) -> Arc<Self> {
        Arc::new(Self {
            snapshot: Mutex::new(Arc::new(snapshot)),
            sight: Mutex::default(),
            sight_version: AtomicU64::default(),
            datacenter: "dc1".parse().unwrap(),
            trust_domain: "mesh.test".parse().unwrap(),
        })
    }

    pub fn allow_only(&self, rights: AclRights) {
        self.show(Sight::Only(rights));
    }

    pub fn show(&self, sight: Sight) {
        *self.sight.lock().unwrap() = sight;
        self.sight_version.fetch_add(1, Ordering::Relaxed);
    }

    pub fn add(&self, line: &str) {
        let mut snapshot = self.snapshot.lock().unwrap();
        *snapshot = Arc::new(after(&snapshot, line));
    }
}

impl CatalogReader for Shelf {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().unwrap())
    }

    fn sight(&self, _: &Snapshot) -> Sight {
        self.sight.lock().unwrap().clone()
    }

    fn sight_version(&self) -> u64 {
        self.sight_version.load(Ordering::Relaxed)
    }

    fn datacenter(&self) -> &Datacenter {
        &self.datacenter
    }

    fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }
}
