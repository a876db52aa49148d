//! What is written at random: registrations, checks, intentions, config entries and roots of a few nodes and services, few of
//! each, so that they meet. No two writes are alike, so that what is old cannot pass for what is new.

use fastrand::Rng;
use starling_model::{
    Action, CaRootRecord, Change, CheckStatus, ConfigEntry, ConfigEntryKey, ConfigKind, InstanceKind, Protocol,
    ProxyDefaults, Record, RecordKey, ServiceInstance, UnixSeconds,
};

#[path = "../../../core/catalog/tests/support/records.rs"]
pub(crate) mod records;

use records::{check, connection, defaults, instance, intentions, key, node, resolver, sidecar, splitter};

/// The nodes with agents, and one without.
pub(crate) const NODES: [&str; 4] = ["n1", "n2", "n3", "n9"];
const APPLICATIONS: [&str; 2] = ["i1", "i2"];
/// Proxies, on every node.
pub(crate) const SIDECARS: [&str; 2] = ["s1", "s2"];
const IDS: [&str; 4] = ["i1", "i2", "s1", "s2"];
const SERVICES: [&str; 2] = ["web", "api"];
const STATUSES: [CheckStatus; 3] = [CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical];
/// Ports, addresses and texts that are handed out one after the other.
const DISTINCT_MAX: u32 = 60_000;

/// Makes changes.
pub(crate) struct Writer {
    written: u32,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self { written: 0 }
    }

    /// The changes of one commit.
    pub(crate) fn commit(&mut self, random: &mut Rng) -> Vec<Change> {
        (0..random.usize(1..4)).map(|_| self.change(random)).collect()
    }

    fn change(&mut self, random: &mut Rng) -> Change {
        self.written = self.written % DISTINCT_MAX + 1;
        let number = self.written;
        let mut pick = |of: &[&'static str]| of[random.usize(..of.len())];
        let (on, service, id) = (pick(&NODES), pick(&SERVICES), pick(&IDS));
        let (application, side) = (pick(&APPLICATIONS), pick(&SIDECARS));
        let put = Change::Put;
        let status = STATUSES[random.usize(..STATUSES.len())];
        match random.u32(..32) {
            0..4 => put(node(on, &format!("10.0.{}.{}", number / 250, number % 250))),
            4 => Change::Delete(RecordKey::Node(name(on))),
            5..8 => {
                let native = random.bool();
                let instance = instance(on, application, service, i64::from(number));
                put(Record::Instance(ServiceInstance { native, ..instance }))
            }
            8..14 => {
                let mut sidecar = sidecar(on, side, "proxy", service, i64::from(number));
                if let InstanceKind::Sidecar(proxy) = &mut sidecar.kind {
                    proxy.destination_id = random.bool().then(|| key(on, application).id);
                }
                sidecar.tags = if random.bool() { vec!["blue".to_owned()] } else { Vec::new() };
                put(Record::Instance(sidecar))
            }
            14..18 => Change::Delete(RecordKey::Instance(key(on, id))),
            18..21 => put(check(on, id, random.bool().then_some((id, service)), status)),
            21..23 => {
                Change::Delete(RecordKey::Check(name(on), key(on, id).id.as_str().parse().expect("an identifier")))
            }
            23 => put(Record::Config(match random.u32(..4) {
                0 => numbered(defaults(service, Protocol::Http), number),
                1 => numbered(resolver(service, random.bool()), number),
                2 => numbered(splitter(service, SERVICES[random.usize(..SERVICES.len())]), number),
                _ => {
                    let protocol = Some(Protocol::Http);
                    numbered(ConfigEntry::ProxyDefaults(ProxyDefaults { protocol, ..ProxyDefaults::default() }), number)
                }
            })),
            24 => delete(ConfigKind::ROUTING[random.usize(..ConfigKind::ROUTING.len())], service),
            25 => delete(ConfigKind::ProxyDefaults, "global"),
            26..29 => {
                let destination = if random.bool() { service } else { "*" };
                let action = if random.bool() { Action::Allow } else { Action::Deny };
                put(Record::Config(intentions(destination, vec![connection(&format!("from-{number}"), action)])))
            }
            29 => delete(ConfigKind::ServiceIntentions, if random.bool() { service } else { "*" }),
            30 => put(root(if random.bool() { "r1" } else { "r2" }, number)),
            _ => Change::Delete(RecordKey::CaRoot(if random.bool() { "r1" } else { "r2" }.to_owned())),
        }
    }
}

/// The registration of a proxy as its own node has it.
pub(crate) fn proxy(on: &str, id: &str) -> ServiceInstance {
    sidecar(on, id, "proxy", "web", 1)
}

fn name(text: &str) -> starling_model::NodeName {
    text.parse().expect("a name")
}

fn delete(kind: ConfigKind, name: &str) -> Change {
    Change::Delete(RecordKey::Config(ConfigEntryKey { kind, name: name.to_owned() }))
}

/// The same entry, unlike any other.
fn numbered(mut entry: ConfigEntry, number: u32) -> ConfigEntry {
    match &mut entry {
        ConfigEntry::ServiceDefaults(entry) => entry.max_inbound_connections = Some(number),
        ConfigEntry::ProxyDefaults(entry) => {
            entry.config.insert("number".to_owned(), serde_json::Value::from(number));
        }
        ConfigEntry::ServiceResolver(entry) => {
            entry.connect_timeout = Some(std::time::Duration::from_millis(number.into()));
        }
        ConfigEntry::ServiceSplitter(entry) => {
            entry.meta.insert("number".to_owned(), number.to_string());
        }
        ConfigEntry::ServiceIntentions(_)
        | ConfigEntry::ServiceRouter(_)
        | ConfigEntry::IngressGateway(_)
        | ConfigEntry::TerminatingGateway(_)
        | ConfigEntry::Mesh(_)
        | ConfigEntry::Kept(_) => {}
    }
    entry
}

fn root(id: &str, number: u32) -> Record {
    Record::CaRoot(CaRootRecord {
        id: id.to_owned(),
        name: String::new(),
        certificate_pem: format!("certificate {number}"),
        serial: 1,
        signing_key_id: String::new(),
        trust_domain: "mesh.test".parse().expect("a name"),
        not_before: UnixSeconds(0),
        not_after: UnixSeconds(1),
        active: id == "r1",
        overlap: None,
        renew_within_s: 0,
    })
}
