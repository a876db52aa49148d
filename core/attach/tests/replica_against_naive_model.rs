//! Agents that lose their connections, read slowly and change their minds, beside a naive model that remembers the whole
//! catalog at every revision: whoever hears a `Through` has what the catalog was then.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../catalog/tests/support/records.rs"]
mod records;
#[path = "story/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use records::*;
use starling_attach::StreamId;
use starling_attach::fleet::FRAME_AGE_MS_MAX;
use starling_catalog::{MeshRead, Snapshot, Subject};
use starling_model::*;

use world::{Agent, Asks, Items, World, content_of, subject};

// Few of each, so that they meet.
const NODES: [&str; 2] = ["n1", "n2"];
const APPLICATIONS: [&str; 2] = ["i1", "i2"];
const SIDECARS: [&str; 2] = ["s1", "s2"];
const IDS: [&str; 4] = ["i1", "i2", "s1", "s2"];
const SERVICES: [&str; 2] = ["web", "api"];
/// One agent of another node, and one whose node others write.
const AGENTS: [(&str, &str); 2] = [("a", "n9"), ("b", "n1")];
const SUBJECTS: [&str; 10] = [
    "endpoints/web",
    "endpoints/web",
    "endpoints/api",
    "service/web",
    "routing/web",
    "intentions/web",
    "destinations/api",
    "proxy-defaults",
    "roots",
    "node/n1",
];

fn pick(of: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(of)
}

fn root(id: &str, active: bool) -> Record {
    Record::CaRoot(CaRootRecord {
        id: id.to_owned(),
        name: String::new(),
        certificate_pem: format!("certificate {id}"),
        serial: 1,
        signing_key_id: String::new(),
        trust_domain: "mesh.test".parse().unwrap(),
        not_before: UnixSeconds(0),
        not_after: UnixSeconds(1),
        active,
        overlap: None,
        renew_within_s: 0,
    })
}

fn change() -> impl Strategy<Value = Change> {
    let status = prop::sample::select(&[CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical][..]);
    let protocol = || prop::sample::select(&[Protocol::Tcp, Protocol::Http][..]);
    let action = || prop::sample::select(&[Action::Allow, Action::Deny][..]);
    let put = |record| Change::Put(record);
    let delete_config =
        |kind, name: &str| Change::Delete(RecordKey::Config(ConfigEntryKey { kind, name: name.to_owned() }));
    prop_oneof![
        2 => (pick(&NODES), pick(&["10.0.0.1", "10.0.0.2"])).prop_map(move |(n, a)| put(node(n, a))),
        1 => pick(&NODES).prop_map(|n| Change::Delete(RecordKey::Node(n.parse().unwrap()))),
        3 => (pick(&NODES), pick(&APPLICATIONS), pick(&SERVICES), 1..4i64, any::<bool>()).prop_map(move |(n, i, s, p, native)| {
            put(Record::Instance(ServiceInstance { native, ..instance(n, i, s, p) }))
        }),
        6 => (pick(&NODES), pick(&SIDECARS), pick(&SERVICES), 1..4i64, prop::option::of(pick(&APPLICATIONS)), any::<bool>())
            .prop_map(move |(n, i, s, p, behind, blue)| {
                let mut sidecar = sidecar(n, i, "proxy", s, p);
                sidecar.tags = if blue { vec!["blue".to_owned()] } else { Vec::new() };
                if let InstanceKind::Sidecar(proxy) = &mut sidecar.kind {
                    proxy.destination_id = behind.map(|id| id.parse().unwrap());
                }
                put(Record::Instance(sidecar))
            }),
        4 => (pick(&NODES), pick(&IDS)).prop_map(|(n, i)| Change::Delete(RecordKey::Instance(key(n, i)))),
        4 => (pick(&NODES), pick(&IDS), prop::option::of((pick(&IDS), pick(&SERVICES))), status)
            .prop_map(move |(n, c, s, status)| put(check(n, c, s, status))),
        2 => (pick(&NODES), pick(&IDS))
            .prop_map(|(n, c)| Change::Delete(RecordKey::Check(n.parse().unwrap(), c.parse().unwrap()))),
        1 => (pick(&SERVICES), protocol()).prop_map(move |(s, p)| put(Record::Config(defaults(s, p)))),
        1 => pick(&SERVICES).prop_map(move |s| delete_config(ConfigKind::ServiceDefaults, s)),
        2 => (pick(&SERVICES), any::<bool>()).prop_map(move |(s, filter)| put(Record::Config(resolver(s, filter)))),
        1 => pick(&SERVICES).prop_map(move |s| delete_config(ConfigKind::ServiceResolver, s)),
        1 => (pick(&SERVICES), pick(&SERVICES)).prop_map(move |(s, to)| put(Record::Config(splitter(s, to)))),
        1 => pick(&SERVICES).prop_map(move |s| delete_config(ConfigKind::ServiceSplitter, s)),
        1 => protocol().prop_map(move |p| {
            put(Record::Config(ConfigEntry::ProxyDefaults(ProxyDefaults { protocol: Some(p), ..ProxyDefaults::default() })))
        }),
        1 => Just(delete_config(ConfigKind::ProxyDefaults, "global")),
        1 => any::<bool>().prop_map(move |only| {
            put(Record::Config(ConfigEntry::Mesh(MeshEntry { mesh_destinations_only: only, ..MeshEntry::default() })))
        }),
        1 => Just(delete_config(ConfigKind::Mesh, "mesh")),
        2 => (pick(&["web", "*"]), action())
            .prop_map(move |(d, a)| put(Record::Config(intentions(d, vec![connection("api", a)])))),
        1 => pick(&["web", "*"]).prop_map(move |d| delete_config(ConfigKind::ServiceIntentions, d)),
        1 => (pick(&["r1", "r2"]), any::<bool>()).prop_map(move |(id, active)| put(root(id, active))),
        1 => pick(&["r1", "r2"]).prop_map(|id| Change::Delete(RecordKey::CaRoot(id.to_owned()))),
        2 => (pick(&SERVICES), pick(&["web", "api"]), action())
            .prop_map(move |(d, s, a)| put(Record::Config(intentions(d, vec![connection(s, a)])))),
        1 => pick(&SERVICES).prop_map(move |s| put(Record::VirtualAddress(virtual_address(s)))),
        1 => Just(put(Record::Fence(Fence::Protocols))),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<Change>),
    Wants(usize, &'static str),
    Forgets(usize, &'static str),
    /// Forgets and wants at once, so that both are under way together.
    WantsAgain(usize, &'static str),
    Connects(usize),
    Loses(usize),
    /// The connection is gone, and the server keeps the stream for its receipts until the agent is back.
    Leaves(usize),
    ServerReads(usize),
    ServerSends(usize),
    Reads(usize, usize),
    AgentRestarts(usize),
    ServerRestarts,
    /// Milliseconds pass.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0..AGENTS.len();
    prop_oneof![
        8 => prop::collection::vec(change(), 1..4).prop_map(Step::Commit),
        4 => (agent(), pick(&SUBJECTS)).prop_map(|(a, s)| Step::Wants(a, s)),
        1 => (agent(), pick(&SUBJECTS)).prop_map(|(a, s)| Step::Forgets(a, s)),
        4 => (agent(), pick(&SUBJECTS)).prop_map(|(a, s)| Step::WantsAgain(a, s)),
        4 => agent().prop_map(Step::Connects),
        1 => agent().prop_map(Step::Loses),
        1 => agent().prop_map(Step::Leaves),
        8 => agent().prop_map(Step::ServerReads),
        8 => agent().prop_map(Step::ServerSends),
        8 => (agent(), 1..6usize).prop_map(|(a, n)| Step::Reads(a, n)),
        1 => agent().prop_map(Step::AgentRestarts),
        1 => Just(Step::ServerRestarts),
        1 => (0..FRAME_AGE_MS_MAX).prop_map(Step::Wait),
    ]
}

/// Steps that belong together often enough to be worth trying: a subject that is wanted, forgotten and wanted again while all
/// of it is under way, changes meanwhile, and a connection that ends in the middle.
fn again() -> impl Strategy<Value = Vec<Step>> {
    let changes = || prop::collection::vec(change(), 3..8);
    let all =
        (0..AGENTS.len(), pick(&SUBJECTS), changes(), changes(), 1..9usize).prop_map(|(a, s, first, second, n)| {
            vec![
                Step::Connects(a),
                Step::Wants(a, s),
                Step::ServerReads(a),
                Step::ServerReads(a),
                Step::ServerSends(a),
                Step::Commit(first),
                Step::WantsAgain(a, s),
                Step::ServerReads(a),
                Step::Commit(second),
                Step::ServerSends(a),
                Step::Reads(a, n),
                Step::Loses(a),
                Step::Connects(a),
            ]
        });
    // Any of them may be missing.
    (all, prop::collection::vec(prop::bool::weighted(0.85), 13))
        .prop_map(|(all, kept)| all.into_iter().zip(kept).filter_map(|(step, kept)| kept.then_some(step)).collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = prop_oneof![3 => prop::collection::vec(step(), 1..10), 1 => again()];
    prop::collection::vec(some, 1..16).prop_map(|steps| steps.concat())
}

/// What the model knows of an agent.
#[derive(Default)]
struct Naive {
    /// Up to where the last `Through` was.
    through: Revision,
    /// What whoever listens to the agent was last told of, or could have looked at, since it was known.
    announced: BTreeMap<Subject, Items>,
    /// What each subject held whenever it last changed by the agent's own clock.
    at: BTreeMap<(Subject, Revision), Items>,
    /// Somebody wrote to its node, and it was not told.
    node_written: bool,
    /// What the server has heard that it wants.
    subscribed: BTreeSet<Subject>,
    /// Its last stream, which the server keeps for its receipts.
    left: Option<StreamId>,
}

struct Run {
    world: World,
    history: BTreeMap<Revision, Snapshot>,
    naive: Vec<Naive>,
}

impl Run {
    fn new() -> Self {
        let mut world = World::new();
        for (name, node) in AGENTS {
            world.agents.insert(name.to_owned(), Agent::new(node));
        }
        let history = BTreeMap::from([(Revision(0), world.snapshot.clone())]);
        Self { world, history, naive: AGENTS.iter().map(|_| Naive::default()).collect() }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Commit(changes) => self.commit(changes),
            Step::Wants(agent, what) => self.wants(*agent, what),
            Step::Forgets(agent, what) => self.forgets(*agent, what),
            Step::WantsAgain(agent, what) => {
                self.forgets(*agent, what);
                self.wants(*agent, what);
            }
            Step::Connects(agent) => {
                self.world.connect(AGENTS[*agent].0);
                let naive = &mut self.naive[*agent];
                naive.left.take().into_iter().for_each(|stream| self.world.fleet.remove(stream));
                naive.subscribed.clear();
            }
            Step::Loses(agent) => self.lose(*agent),
            Step::Leaves(agent) => self.leave(*agent),
            Step::ServerReads(agent) => self.server_reads(*agent),
            Step::ServerSends(agent) => {
                self.world.server_sends(AGENTS[*agent].0);
            }
            Step::Reads(agent, frames) => (0..*frames).for_each(|_| self.read(*agent)),
            Step::AgentRestarts(agent) => self.restart_agent(*agent),
            Step::ServerRestarts => {
                self.world.restart();
                for naive in &mut self.naive {
                    naive.left = None;
                    naive.subscribed.clear();
                }
                self.history.insert(self.world.snapshot.revision(), self.world.snapshot.clone());
            }
            Step::Wait(ms) => self.world.now_ms += ms,
        }
    }

    fn commit(&mut self, changes: &[Change]) {
        let before = self.world.snapshot.clone();
        let published = self.world.commit(changes);
        let after = self.world.snapshot.clone();
        self.history.insert(after.revision(), after.clone());
        for (index, (name, node)) in AGENTS.iter().enumerate() {
            let node: NodeName = node.parse().unwrap();
            let on = |snapshot: &Snapshot| {
                let instances = snapshot.instances_on(&node).map(|i| format!("{i:?}")).collect::<String>();
                let checks = snapshot.checks_on(&node).map(|check| format!("{check:?}")).collect::<String>();
                format!("{:?} {instances} {checks}", snapshot.node(&node))
            };
            self.naive[index].node_written |= on(&before) != on(&after);
            let naive = &self.naive[index];
            let Some(stream) = self.world.agents[*name].stream.or(naive.left) else { continue };
            let changes = |subject: &&Subject| content_of(&before, subject) != content_of(&after, subject);
            let changed = naive.subscribed.iter().find(changes);
            let concerned = published.concerned.contains(&stream);
            assert!(concerned || changed.is_none(), "{name} is subscribed to {changed:?}, which changed");
            assert!(concerned || !published.woken.contains(&stream));
            assert_eq!(concerned && naive.left.is_none(), concerned && self.world.fleet.has_pending(stream));
        }
    }

    fn wants(&mut self, agent: usize, what: &str) {
        let (name, node) = AGENTS[agent];
        // Another's own things are refused; that is another test's.
        if what != "node/n1" || node == "n1" {
            self.world.agent(name).wants(&subject(what));
        }
    }

    fn forgets(&mut self, agent: usize, what: &str) {
        let what = subject(what);
        let name = AGENTS[agent].0;
        if self.world.agents[name].replica.subjects().any(|subject| *subject == what) {
            self.world.agent(name).forgets(&what);
            self.naive[agent].announced.remove(&what);
        }
    }

    fn lose(&mut self, agent: usize) {
        self.world.drop_connection(AGENTS[agent].0);
        if self.naive[agent].left.is_none() {
            self.naive[agent].subscribed.clear();
        }
    }

    fn leave(&mut self, agent: usize) {
        let reached = self.world.agents.get_mut(AGENTS[agent].0).unwrap();
        let Some(stream) = reached.stream else { return };
        reached.hang_up();
        self.naive[agent].left = Some(stream);
        self.world.fleet.leave(stream);
        assert!(!self.world.fleet.has_pending(stream) && self.world.fleet.take(stream, self.world.now_ms).is_empty());
    }

    fn server_reads(&mut self, agent: usize) {
        let subscribed = &mut self.naive[agent].subscribed;
        match self.world.server_reads(AGENTS[agent].0).unwrap() {
            Some(Asks::Subscribe(resumes, _)) => subscribed.extend(resumes.into_iter().map(|(subject, _)| subject)),
            Some(Asks::Unsubscribe(subjects)) => subjects.iter().for_each(|subject| {
                subscribed.remove(subject);
            }),
            None => {}
        }
    }

    fn restart_agent(&mut self, agent: usize) {
        let name = AGENTS[agent].0;
        self.lose(agent);
        let replica = &self.world.agent(name).replica;
        let unknown: Vec<_> = replica.subjects().filter(|subject| !replica.knows(subject)).cloned().collect();
        self.world.agent(name).restart();
        let replica = &mut self.world.agent(name).replica;
        for subject in unknown {
            assert!(replica.want(&subject), "what was never heard of is not on disk");
        }
        let naive = &mut self.naive[agent];
        // Everybody plans from what was on disk.
        naive.at.clear();
        naive.announced = self.world.agent(name).holds();
    }

    fn read(&mut self, agent: usize) {
        let name = AGENTS[agent].0;
        let naive = &mut self.naive[agent];
        let Some((_, touched)) = self.world.agent(name).reads().unwrap() else { return };
        let replica = &self.world.agents[name].replica;
        let holds = self.world.agents[name].holds();
        for (subject, items) in &holds {
            let changed = (subject.clone(), replica.subject_revision(subject));
            let before = naive.at.entry(changed).or_insert_with(|| items.clone());
            assert_eq!(before, items, "{subject} has changed, and its clock stood still");
        }
        let Some(touched) = touched else { return };
        let through = replica.through();
        assert!(naive.through <= through, "{} after {}", through, naive.through);
        naive.through = through;
        let then = &self.history[&through];
        for (subject, items) in &holds {
            assert_eq!(items, &content_of(then, subject), "{subject} of {name} at {through}");
        }
        for (subject, items) in holds {
            let known = naive.announced.insert(subject.clone(), items.clone());
            let told = touched.contains(&subject);
            assert!(told || known == Some(items), "{name} was not told of {subject} at {through}");
            naive.node_written &= !(told && matches!(subject, Subject::Node(_)));
        }
    }

    /// Everybody comes back, hears everything, and has everything.
    fn settle(&mut self) {
        for (agent, (name, _)) in AGENTS.into_iter().enumerate() {
            if self.world.agents[name].stream.is_none() {
                self.step(&Step::Connects(agent));
            }
            for _ in 0..100 {
                self.step(&Step::ServerReads(agent));
                self.step(&Step::ServerSends(agent));
                self.step(&Step::Reads(agent, 10));
            }
            let reached = &self.world.agents[name];
            assert!(reached.up.is_empty() && reached.down.is_empty());
            let wanted: BTreeSet<_> = reached.replica.subjects().cloned().collect();
            let holds = reached.holds();
            assert_eq!(wanted, holds.keys().cloned().collect(), "{name} knows all it wants");
            for (subject, items) in holds {
                assert_eq!(items, content_of(&self.world.snapshot, &subject), "{subject} of {name} in the end");
            }
            if wanted.contains(&subject("node/n1")) {
                assert!(!self.naive[agent].node_written, "{name} was not told that its node was written");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_agent_has_what_the_catalog_was(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.settle();
    }
}
