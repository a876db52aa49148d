//! A naive catalog, a plain map searched from end to end, beside the real one.
#![expect(clippy::wildcard_enum_match_arm, reason = "the naive model looks at one kind of record at a time")]

#[path = "support/records.rs"]
mod records;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use records::*;
use starling_catalog::{MeshRead, Snapshot, Subject};
use starling_model::*;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const IDS: [&str; 4] = ["i1", "i2", "i3", "i4"];
const SERVICES: [&str; 3] = ["web", "api", "db"];
const KEYS: [&str; 5] = ["a", "a/b", "a/b/c", "d", "d/"];
const FOLDERS: [&str; 4] = ["", "a/", "a/b/", "d/"];

fn session_id(number: u128) -> Uuid {
    Uuid::from_random(number)
}

fn kv(key: &str, flags: u64, session: Option<u128>) -> Record {
    Record::Coordination(CoordinationRecord::Kv(KvEntry {
        key: key.parse().expect("a key"),
        value: KvValue::default(),
        flags,
        lock_index: 0,
        session: session.map(session_id),
    }))
}

fn kv_key(key: &str) -> RecordKey {
    RecordKey::Coordination(CoordinationKey::Kv(key.parse().expect("a key")))
}

fn pick(of: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(of)
}

fn change() -> impl Strategy<Value = Change> {
    let status = prop::sample::select(&[CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical][..]);
    let protocol = prop::sample::select(&[Protocol::Tcp, Protocol::Http][..]);
    let action = || prop::sample::select(&[Action::Allow, Action::Deny][..]);
    prop_oneof![
        (pick(&NODES), pick(&["10.0.0.1", "10.0.0.2"])).prop_map(|(n, a)| Change::Put(node(n, a))),
        pick(&NODES).prop_map(|n| Change::Delete(RecordKey::Node(n.parse().expect("a name")))),
        (pick(&NODES), pick(&IDS), pick(&SERVICES), 1..4i64)
            .prop_map(|(n, i, s, p)| Change::Put(Record::Instance(instance(n, i, s, p)))),
        (pick(&NODES), pick(&IDS), pick(&SERVICES), 1..4i64)
            .prop_map(|(n, i, s, p)| Change::Put(Record::Instance(sidecar(n, i, "proxy", s, p)))),
        (pick(&NODES), pick(&IDS)).prop_map(|(n, i)| Change::Delete(RecordKey::Instance(key(n, i)))),
        (pick(&NODES), pick(&IDS), prop::option::of((pick(&IDS), pick(&SERVICES))), status)
            .prop_map(|(n, c, s, status)| Change::Put(check(n, c, s, status))),
        (pick(&NODES), pick(&IDS))
            .prop_map(|(n, c)| Change::Delete(RecordKey::Check(n.parse().expect("a name"), c.parse().expect("an id")))),
        (pick(&SERVICES), protocol).prop_map(|(s, p)| Change::Put(Record::Config(defaults(s, p)))),
        (pick(&["web", "*"]), action())
            .prop_map(|(d, a)| Change::Put(Record::Config(intentions(d, vec![connection("api", a)])))),
        pick(&["web", "*"]).prop_map(|d| Change::Delete(RecordKey::Config(intentions(d, vec![]).key()))),
        (pick(&["web", "api"]), pick(&["web", "api", "*"]), action())
            .prop_map(|(d, s, a)| Change::Put(Record::Config(intentions(d, vec![connection(s, a)])))),
        pick(&SERVICES).prop_map(|s| Change::Put(Record::VirtualAddress(virtual_address(s)))),
        pick(&SERVICES).prop_map(|s| Change::Delete(Record::VirtualAddress(virtual_address(s)).key())),
        Just(Change::Put(Record::Fence(Fence::Protocols))),
        coordination(),
    ]
}

fn coordination() -> impl Strategy<Value = Change> {
    prop_oneof![
        (pick(&KEYS), 0..2_u64, prop::option::of(0..2_u128)).prop_map(|(key, f, s)| Change::Put(kv(key, f, s))),
        pick(&KEYS).prop_map(|key| Change::Delete(kv_key(key))),
        (0..2_u128, pick(&NODES)).prop_map(|(id, n)| Change::Put(session(session_id(id), n, 0))),
        (0..2_u128).prop_map(|id| Change::Delete(RecordKey::Coordination(CoordinationKey::Session(session_id(id))))),
    ]
}

#[derive(Default, Clone)]
struct Naive(BTreeMap<RecordKey, Versioned<Record>>);

impl Naive {
    fn apply(&mut self, revision: Revision, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(record) => {
                    let created = self.0.get(&record.key()).map_or(revision, |old| old.created);
                    let new = Versioned { value: record.clone(), created, modified: revision };
                    self.0.insert(record.key(), new);
                }
                Change::Delete(key) => {
                    self.0.remove(key);
                }
            }
        }
    }

    fn instances(&self, wanted: impl Fn(&ServiceInstance) -> bool) -> Vec<InstanceKey> {
        let instances = self.0.values().filter_map(|record| match &record.value {
            Record::Instance(instance) if wanted(instance) => Some(instance.key.clone()),
            _ => None,
        });
        instances.collect()
    }

    fn worst(&self, key: &InstanceKey) -> CheckStatus {
        let statuses = self.0.values().filter_map(|record| match &record.value {
            Record::Check(c) if c.node == key.node && c.service.as_ref().is_none_or(|s| s.id == key.id) => {
                Some(c.status)
            }
            _ => None,
        });
        statuses.max().unwrap_or(CheckStatus::Passing)
    }

    /// An instance's own checks, then its node's.
    fn checks_of(&self, key: &InstanceKey) -> Vec<CheckId> {
        let of = |owner: Option<&InstanceId>| {
            let checks = self.0.values().filter_map(move |record| match &record.value {
                Record::Check(c) if c.node == key.node && c.service.as_ref().map(|s| &s.id) == owner => {
                    Some(c.id.clone())
                }
                _ => None,
            });
            checks.collect::<Vec<_>>()
        };
        [of(Some(&key.id)), of(None)].concat()
    }

    fn configs(&self, kind: ConfigKind) -> Vec<ConfigEntry> {
        let entries = self.0.values().filter_map(|record| match &record.value {
            Record::Config(entry) if entry.key().kind == kind => Some(entry.clone()),
            _ => None,
        });
        entries.collect()
    }

    /// Whose own intentions allow `source` by name.
    fn destinations(&self, source: &ServiceName) -> Vec<ServiceName> {
        let source = IntentionSubject::Service(source.clone());
        let entries = self.configs(ConfigKind::ServiceIntentions).into_iter().filter_map(|entry| match entry {
            ConfigEntry::ServiceIntentions(entry) => Some(entry),
            _ => None,
        });
        let allows =
            |it: &SourceIntention| it.source == source && it.decision != SourceDecision::Connection(Action::Deny);
        let allowing = entries.filter(|entry| entry.sources.iter().any(allows));
        allowing.filter_map(|entry| entry.destination.service().cloned()).collect()
    }

    /// What a subscriber of a subject would look at, as text.
    fn view(&self, subject: &Subject) -> String {
        let records = self.0.values().filter(|record| match (&record.value, subject) {
            (Record::Node(n), Subject::Node(name)) => n.name == *name,
            (Record::Node(_), Subject::NodeList) | (Record::Check(_), Subject::CheckList) => true,
            (Record::Instance(i), Subject::Node(name)) => i.key.node == *name,
            (Record::Instance(i), Subject::Instance(key)) => i.key == *key,
            (Record::Node(n), Subject::Instance(key)) => {
                n.name == key.node && self.0.contains_key(&RecordKey::Instance(key.clone()))
            }
            (Record::Check(c), Subject::Node(name)) => c.node == *name,
            (Record::Instance(i), Subject::Service(name)) => i.name == *name,
            (Record::Instance(i), Subject::Endpoints(name)) => i.identity() == name,
            (Record::Config(ConfigEntry::ServiceDefaults(d)), Subject::Routing(name)) => d.service == *name,
            (Record::Config(ConfigEntry::ServiceIntentions(e)), Subject::Intentions(name)) => e.destination == *name,
            (Record::VirtualAddress(a), Subject::Routing(name)) => a.service == *name,
            (Record::Coordination(CoordinationRecord::Kv(e)), Subject::Kv(key)) => e.key == *key,
            (Record::Coordination(CoordinationRecord::Kv(e)), Subject::KvFolder(folder)) => {
                e.key.as_str().starts_with(folder)
            }
            (Record::Coordination(CoordinationRecord::Session(_)), Subject::SessionList) => true,
            (Record::Coordination(CoordinationRecord::Session(s)), Subject::Session(id)) => s.id == *id,
            (Record::Coordination(CoordinationRecord::Session(s)), Subject::NodeSessions(node)) => s.node == *node,
            _ => false,
        });
        let mut text: String = records.map(|record| format!("{record:?}\n")).collect();
        // The health of an instance is part of how its service is seen.
        let seen = match subject {
            Subject::Service(name) => self.instances(|i| i.name == *name),
            Subject::Endpoints(name) => self.instances(|i| i.identity() == name),
            _ => Vec::new(),
        };
        if let Subject::Destinations(name) = subject {
            text = format!("{:?}", self.destinations(name));
        }
        for key in seen {
            text += &format!("{key} {:?}\n", self.worst(&key));
        }
        text
    }
}

fn records_of(snapshot: &Snapshot) -> Vec<Versioned<Record>> {
    snapshot.records().collect()
}

fn subjects() -> Vec<Subject> {
    let mut all = vec![Subject::NodeList, Subject::CheckList];
    all.extend(NODES.map(|n| Subject::Node(n.parse().expect("a name"))));
    all.extend(NODES.iter().flat_map(|n| IDS.map(|i| Subject::Instance(key(n, i)))));
    for name in SERVICES {
        let name: ServiceName = name.parse().expect("a name");
        all.push(Subject::Service(name.clone()));
        all.push(Subject::Endpoints(name.clone()));
        all.push(Subject::Routing(name.clone()));
        all.push(Subject::Destinations(name.clone()));
        all.push(Subject::Intentions(IntentionSubject::Service(name)));
    }
    all.push(Subject::Intentions(IntentionSubject::Any));
    all.extend(KEYS.map(|key| Subject::Kv(key.parse().expect("a key"))));
    all.extend(FOLDERS.map(|folder| Subject::KvFolder(folder.to_owned())));
    all.extend(NODES.map(|node| Subject::NodeSessions(node.parse().expect("a name"))));
    all.extend([Subject::SessionList, Subject::Session(session_id(0)), Subject::Session(session_id(1))]);
    all
}

proptest! {
    #[test]
    fn indexes_health_and_events_agree(history in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..25)) {
        let mut real = Snapshot::default();
        let mut naive = Naive::default();
        let mut midway = (Snapshot::default(), Naive::default());
        for (step, changes) in history.iter().enumerate() {
            let revision = Revision(step as u64 + 1);
            let before: Vec<_> = subjects().into_iter().map(|s| (naive.view(&s), s)).collect();
            let applied = real.apply(revision, changes);
            naive.apply(revision, changes);
            real = applied.snapshot;
            if step == history.len() / 2 {
                midway = (real.clone(), naive.clone());
            }

            let mut records: Vec<_> = real.records().collect();
            records.sort_by_key(|record| record.value.key());
            prop_assert_eq!(&records, &naive.0.values().cloned().collect::<Vec<_>>());
            for name in SERVICES {
                let name: ServiceName = name.parse().expect("a name");
                let named: Vec<_> = real.instances_of(&name).map(|i| i.value.key.clone()).collect();
                prop_assert_eq!(named, naive.instances(|i| i.name == name));
                let fronting: Vec<_> = real.sidecars_of(&name).map(|i| i.value.key.clone()).collect();
                prop_assert_eq!(fronting, naive.instances(|i| i.sidecar().is_some_and(|p| p.destination == name)));
                prop_assert_eq!(real.destinations(&name).cloned().collect::<Vec<_>>(), naive.destinations(&name));
                let address = virtual_address(name.as_str());
                let given = naive.0.contains_key(&RecordKey::VirtualAddress(address.address));
                prop_assert_eq!(real.virtual_address(&name), given.then_some(address.address));
                prop_assert_eq!(real.virtual_address_of(address.address), given.then_some(&name));
            }
            for (node, port) in NODES.iter().flat_map(|node| (1..4).map(move |port| (node, port))) {
                let node: NodeName = node.parse().expect("a name");
                let port = Port::try_from(port).expect("a port");
                let placed: Vec<_> = real.sidecars_at(&node, port).map(|i| i.value.key.clone()).collect();
                let there = |i: &ServiceInstance| i.sidecar().is_some() && i.key.node == node && i.port == Some(port);
                prop_assert_eq!(placed, naive.instances(there));
            }
            for key in naive.instances(|_| true) {
                prop_assert_eq!(real.health(&key).0, naive.worst(&key));
                let checks: Vec<_> = real.checks_of(&key).map(|c| c.value.id.clone()).collect();
                prop_assert_eq!(checks, naive.checks_of(&key));
            }
            for id in [session_id(0), session_id(1)] {
                let locked: Vec<_> = real.locked_by(id).map(|key| key.as_str()).collect();
                let by_naive = KEYS.iter().filter(|key| naive.0.get(&kv_key(key)).is_some_and(|record| {
                    matches!(&record.value, Record::Coordination(CoordinationRecord::Kv(e)) if e.session == Some(id))
                }));
                prop_assert_eq!(locked, by_naive.copied().collect::<Vec<_>>());
            }
            for kind in ConfigKind::all() {
                let entries: Vec<_> = real.configs(kind).map(|entry| entry.value.clone()).collect();
                prop_assert_eq!(entries, naive.configs(kind));
            }

            let told: BTreeSet<_> = applied.events.iter().map(|event| event.subject.clone()).collect();
            for (view, subject) in before {
                if naive.view(&subject) != view {
                    prop_assert!(told.contains(&subject), "{} changed at {} and nobody was told", subject, revision);
                    prop_assert_eq!(real.subject_revision(&subject), revision, "{}", subject);
                }
            }
        }
        // A reader that starts from the store, or catches up by difference, sees the same.
        let loaded = Snapshot::load(real.revision(), real.records());
        prop_assert_eq!(real.catch_up(&loaded).1, []);
        for (lost, naive_then) in [(Snapshot::default(), Naive::default()), midway] {
            let (caught_up, _) = lost.catch_up(&real);
            // The revisions of each record too: conditions are judged by them.
            prop_assert_eq!(records_of(&caught_up.snapshot), records_of(&real));
            prop_assert_eq!(caught_up.snapshot.revision(), real.revision());
            prop_assert_eq!(caught_up.snapshot.catch_up(&real).1, []);
            let told: BTreeSet<_> = caught_up.events.iter().map(|event| &event.subject).collect();
            for subject in subjects().iter().filter(|subject| naive_then.view(subject) != naive.view(subject)) {
                prop_assert!(told.contains(subject), "{} changed in between and nobody was told", subject);
            }
            for service in SERVICES.iter().map(|name| virtual_address(name).service) {
                prop_assert_eq!(caught_up.snapshot.virtual_address(&service), real.virtual_address(&service));
            }
        }
    }
}

#[test]
fn who_is_told_apart_by_tags_shows_them_and_everybody_else_keeps_them() {
    let fronts = |snapshot: &Snapshot| {
        let mut tags = Vec::new();
        snapshot.visit_fronts(&"web".parse().unwrap(), &mut |front| {
            tags.push(front.marks.as_ref().map(|marks| marks.tags.clone()));
        });
        tags
    };
    let mut sidecar = sidecar("n1", "w1", "web-sidecar-proxy", "web", 80);
    sidecar.tags = vec!["blue".to_owned()];
    let endpoints = Subject::Endpoints("web".parse().unwrap());
    let mut snapshot = Snapshot::default().apply(Revision(1), &[Change::Put(Record::Instance(sidecar))]).snapshot;
    assert_eq!(fronts(&snapshot), [None]);
    let put = |filter| Change::Put(Record::Config(resolver("web", filter)));
    let shown = Some(vec!["blue".to_owned()]);
    for (revision, filter, expected, told) in
        [(2, false, None, false), (3, true, shown.clone(), true), (4, true, shown, true), (5, false, None, true)]
    {
        let applied = snapshot.apply(Revision(revision), &[put(filter)]);
        snapshot = applied.snapshot;
        assert_eq!(fronts(&snapshot), [expected], "at {revision}");
        assert_eq!(applied.events.iter().any(|event| event.subject == endpoints), told, "at {revision}");
    }
}
