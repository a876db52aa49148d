//! What a change costs the planner: 3,000 services, 20 sidecars that call many of them, and one service of 1,000 endpoints.
//!
//! `cargo run --release -p starling-plan --example plan-cost`

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use starling_catalog::Snapshot;
use starling_identity::Layout;
use starling_model::{
    Action, CaRootRecord, Change, Check, CheckStatus, ConfigEntry, InstanceKey, InstanceKind, IntentionSubject, Node,
    OpaqueSettings, Port, Record, Revision, ServiceInstance, ServiceIntentions, SidecarProxy, SourceDecision,
    SourceIntention, UnixSeconds, Upstream, Weights,
};
use starling_plan::{MeshSettings, Planned, Planner, replaced};

const SERVICES: usize = 3_000;
const BIG_SERVICE_ENDPOINTS: usize = 1_000;
const CALLERS: usize = 20;
const UPSTREAMS_OF_A_CALLER: usize = 50;
const CHANGES: usize = 200;

struct Run {
    snapshot: Snapshot,
    planner: Planner,
    held: BTreeMap<InstanceKey, Planned>,
}

fn main() {
    let mut run = Run { snapshot: Snapshot::default(), planner: Planner::new(settings()), held: BTreeMap::new() };
    let started = Instant::now();
    run.commit(&fleet());
    println!("catalog of {SERVICES} services built in {:?}", started.elapsed());
    let started = Instant::now();
    for caller in 0..CALLERS {
        let key = key("callers", &format!("caller-{caller}"));
        let planned = run.planner.plan(&run.snapshot, &key).expect("invariant: the fleet has it");
        run.held.insert(key, planned);
    }
    let plans = started.elapsed() / u32::try_from(CALLERS).unwrap_or(u32::MAX);
    println!(
        "first plan of {UPSTREAMS_OF_A_CALLER} upstreams: {plans:?} each, {} parts remembered",
        run.planner.remembered()
    );
    println!(
        "{:<58} {:>9} {:>9} {:>9} {:>8} {:>6}",
        "change, mean over plans it touches", "catalog", "first", "others", "proxies", "parts"
    );
    run.measure("a check of one endpoint of 1,000 flips", |n| vec![flip("big", n % BIG_SERVICE_ENDPOINTS, n)]);
    run.measure("a check of one endpoint of 3 flips", |n| vec![flip("s1", n % 3, n)]);
    run.measure("an intention towards a caller", |n| vec![intention(n)]);
    run.measure("a check of a service nobody calls flips", |n| vec![flip("s2999", n % 3, n)]);
    run.measure("a node-wide check where the callers run", |n| vec![node_check(n)]);
}

impl Run {
    fn commit(&mut self, changes: &[Change]) -> Vec<starling_catalog::Subject> {
        let applied = self.snapshot.apply(Revision(self.snapshot.revision().0 + 1), changes);
        self.snapshot = applied.snapshot;
        applied.events.into_iter().map(|event| event.subject).collect()
    }

    fn measure(&mut self, what: &str, change: impl Fn(usize) -> Vec<Change>) {
        let (mut catalog, mut first, mut others) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (mut firsts, mut proxies, mut parts) = (0_u32, 0_usize, 0_usize);
        for number in 0..CHANGES {
            let started = Instant::now();
            let touched = self.commit(&change(number));
            catalog += started.elapsed();
            let affected = |held: &Planned| touched.iter().any(|subject| held.subjects.contains(subject));
            let keys: Vec<_> =
                self.held.iter().filter(|(_, held)| affected(held)).map(|(key, _)| key.clone()).collect();
            for (index, key) in keys.iter().enumerate() {
                let started = Instant::now();
                let planned = self.planner.plan(&self.snapshot, key).expect("invariant: callers stay");
                let elapsed = started.elapsed();
                if index == 0 {
                    first += elapsed;
                    firsts += 1;
                } else {
                    others += elapsed;
                }
                proxies += 1;
                if let Some(before) = self.held.insert(key.clone(), planned) {
                    parts += replaced(&before.plan, &self.held[key].plan).len();
                }
            }
        }
        let changes = u32::try_from(CHANGES).unwrap_or(u32::MAX);
        let rest = u32::try_from(proxies).unwrap_or(u32::MAX).saturating_sub(firsts);
        let mean =
            |total: Duration, count: u32| format!("{:.0} µs", total.as_secs_f64() * 1e6 / f64::from(count.max(1)));
        let per_change = |count: usize| count as f64 / f64::from(changes);
        println!(
            "{what:<58} {:>9} {:>9} {:>9} {:>8.1} {:>6.1}",
            mean(catalog, changes),
            mean(first, firsts),
            mean(others, rest),
            per_change(proxies),
            per_change(parts),
        );
    }
}

fn settings() -> MeshSettings {
    MeshSettings {
        trust_domain: "mesh.test".parse().expect("invariant: in the grammar"),
        datacenter: "dc1".parse().expect("invariant: in the grammar"),
        namespace: "default".parse().expect("invariant: in the grammar"),
        default_intention_action: Action::Allow,
        layout: Layout::Consul,
    }
}

fn fleet() -> Vec<Change> {
    let mut records = vec![Record::CaRoot(root()), Record::Node(node("callers", "10.255.0.1"))];
    records.extend((0..BIG_SERVICE_ENDPOINTS).map(|number| {
        let address = format!("10.{}.{}.1", number / 250, number % 250);
        Record::Node(node(&format!("node-{number}"), &address))
    }));
    let sizes =
        (0..SERVICES).map(|service| (format!("s{service}"), 3)).chain([("big".to_owned(), BIG_SERVICE_ENDPOINTS)]);
    for (service, size) in sizes {
        for number in 0..size {
            let host = format!("node-{number}");
            records.push(Record::Instance(instance(
                &host,
                &format!("{service}-{number}"),
                &service,
                InstanceKind::Typical,
            )));
            records.push(Record::Check(check(&service, number, CheckStatus::Passing)));
            records.push(Record::Instance(sidecar(&host, &service, number, Vec::new())));
        }
    }
    for caller in 0..CALLERS {
        let called = (0..UPSTREAMS_OF_A_CALLER - 1).map(|n| format!("s{}", n + 1)).chain(["big".to_owned()]);
        let upstreams = called.enumerate().map(|(index, name)| Upstream {
            destination: name.parse().expect("invariant: in the grammar"),
            bind_address: std::net::Ipv4Addr::LOCALHOST.into(),
            bind_port: port(9_000 + index),
            config: OpaqueSettings::default(),
            kind_unsaid: false,
        });
        let mut instance = sidecar("callers", "caller", caller, upstreams.collect());
        instance.key = key("callers", &format!("caller-{caller}"));
        records.push(Record::Instance(instance));
    }
    records.into_iter().map(Change::Put).collect()
}

fn key(node: &str, id: &str) -> InstanceKey {
    InstanceKey {
        node: node.parse().expect("invariant: in the grammar"),
        id: id.parse().expect("invariant: in the grammar"),
    }
}

fn port(number: usize) -> Port {
    i64::try_from(number).ok().and_then(|number| Port::try_from(number).ok()).expect("invariant: a port")
}

fn node(name: &str, address: &str) -> Node {
    Node {
        name: name.parse().expect("invariant: in the grammar"),
        id: String::new(),
        address: address.to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    }
}

fn instance(node: &str, id: &str, name: &str, kind: InstanceKind) -> ServiceInstance {
    ServiceInstance {
        key: key(node, id),
        name: name.parse().expect("invariant: in the grammar"),
        kind,
        address: None,
        port: Some(port(8_080)),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    }
}

fn sidecar(node: &str, service: &str, number: usize, upstreams: Vec<Upstream>) -> ServiceInstance {
    let id = format!("{service}-{number}");
    let proxy = SidecarProxy {
        destination: service.parse().expect("invariant: in the grammar"),
        destination_id: Some(key(node, &id).id),
        local_address: "127.0.0.1".to_owned(),
        local_port: Some(port(8_080)),
        upstreams,
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    let name = format!("{service}-sidecar-proxy");
    let mut instance = instance(node, &format!("{id}-sidecar-proxy"), &name, InstanceKind::Sidecar(Box::new(proxy)));
    instance.port = Some(port(21_000));
    instance
}

fn check(service: &str, number: usize, status: CheckStatus) -> Check {
    let id = key("any", &format!("{service}-{number}")).id;
    Check {
        node: node(&format!("node-{number}"), "").name,
        id: format!("service:{id}").parse().expect("invariant: in the grammar"),
        name: String::new(),
        status,
        notes: String::new(),
        output: String::new(),
        service: Some(starling_model::check::CheckedService {
            id,
            name: service.parse().expect("invariant: in the grammar"),
            tags: Vec::new(),
        }),
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        definition: starling_model::OpaqueSettings::default(),
    }
}

/// A check that is critical in one round and passing in the next.
fn flip(service: &str, number: usize, round: usize) -> Change {
    let status = if round.is_multiple_of(2) { CheckStatus::Critical } else { CheckStatus::Passing };
    // The same endpoint in both rounds of a pair, so that each change is one.
    Change::Put(Record::Check(check(service, number - number % 2, status)))
}

fn node_check(round: usize) -> Change {
    let mut check =
        check("caller", 0, if round.is_multiple_of(2) { CheckStatus::Warning } else { CheckStatus::Passing });
    check.node = node("callers", "").name;
    check.service = None;
    Change::Put(Record::Check(check))
}

fn intention(round: usize) -> Change {
    let decision = if round.is_multiple_of(2) { Action::Deny } else { Action::Allow };
    Change::Put(Record::Config(ConfigEntry::ServiceIntentions(ServiceIntentions {
        destination: IntentionSubject::Service("caller".parse().expect("invariant: in the grammar")),
        sources: vec![SourceIntention {
            source: IntentionSubject::Any,
            decision: SourceDecision::Connection(decision),
            description: String::new(),
            id: None,
        }],
        meta: BTreeMap::new(),
    })))
}

fn root() -> CaRootRecord {
    CaRootRecord {
        id: "one".to_owned(),
        name: String::new(),
        certificate_pem: "one".to_owned(),
        serial: 1,
        signing_key_id: String::new(),
        trust_domain: "mesh.test".parse().expect("invariant: in the grammar"),
        not_before: UnixSeconds(0),
        not_after: UnixSeconds(1),
        active: true,
        overlap: None,
        renew_within_s: 0,
    }
}
