//! A relay between a server's fleet and agents' replicas, all real: what an agent knows behind it is what it would know at the server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../catalog/tests/support/records.rs"]
mod records;

use starling_attach::message::{AgentSays, ServerSays, decode_subject};
use starling_attach::relay::Relay;
use starling_attach::{Fleet, FromServer, Intake, Replica, StreamId};
use starling_catalog::{MeshRead as _, Snapshot, Subject};
use starling_model::{Change, Record, Revision};

/// A server, a relay that is attached to it, and an agent that is attached to the relay.
struct Tree {
    snapshot: Snapshot,
    server: Fleet,
    up: StreamId,
    relay: Relay,
    line: u64,
    now_ms: u64,
}

struct Agent {
    replica: Replica,
    intake: Intake,
    stream: StreamId,
    wholes: usize,
}

impl Tree {
    fn new() -> Self {
        let snapshot = Snapshot::default();
        let mut server = Fleet::new(snapshot.clone());
        let up = server.attach_relay();
        let mut tree = Self { snapshot, server, up, relay: Relay::new([Subject::Roots]), line: 0, now_ms: 0 };
        tree.connect();
        tree
    }

    /// The relay's stream is new, on the same server.
    fn connect(&mut self) {
        self.relay.end(self.line);
        self.server.remove(self.up);
        self.up = self.server.attach_relay();
        self.server.tell_endings(self.up);
        self.line += 1;
        let says = self.relay.begin(self.line);
        self.ask(says);
    }

    fn ask(&mut self, says: Vec<AgentSays>) {
        for says in says {
            match says {
                AgentSays::Subscribe(subscribe) => {
                    let resumes = subscribe.resumes.iter().map(|resume| {
                        let subject = decode_subject(resume.subject.as_ref().unwrap()).unwrap();
                        (subject, Revision(resume.have))
                    });
                    self.server.subscribe(self.up, &resumes.collect::<Vec<_>>()).unwrap();
                }
                AgentSays::Unsubscribe(subjects) => {
                    let subjects: Vec<_> =
                        subjects.subjects.iter().map(|subject| decode_subject(subject).unwrap()).collect();
                    self.server.unsubscribe(self.up, &subjects);
                }
                AgentSays::Hello(_)
                | AgentSays::Applied(_)
                | AgentSays::Rejected(_)
                | AgentSays::Here(_)
                | AgentSays::Promote(_)
                | AgentSays::Relayed(_)
                | AgentSays::Trusts(_) => panic!("no request"),
            }
        }
    }

    fn commit(&mut self, record: Record) {
        self.now_ms += 1;
        let changes = [Change::Put(record)];
        let applied = self.snapshot.apply(Revision(self.snapshot.revision().0 + 1), &changes);
        self.snapshot = applied.snapshot;
        self.server.publish(&self.snapshot, &changes, self.now_ms);
    }

    fn delete(&mut self, record: &Record) {
        self.now_ms += 1;
        let changes = [Change::Delete(record.key())];
        self.snapshot = self.snapshot.apply(Revision(self.snapshot.revision().0 + 1), &changes).snapshot;
        self.server.publish(&self.snapshot, &changes, self.now_ms);
    }

    /// The relay says what it wants, and hears what the server has for it.
    fn pass(&mut self) {
        let requests = self.relay.requests(self.line);
        self.ask(requests);
        loop {
            let frames = self.server.take(self.up, self.now_ms);
            if frames.is_empty() {
                return;
            }
            for frame in frames {
                let says = FromServer::from_bytes(frame.clone()).unwrap();
                self.relay.hear(self.line, &says, &frame, self.now_ms).unwrap();
            }
        }
    }

    fn attach(&mut self, node: &str, subjects: &[Subject]) -> Agent {
        let mut replica = Replica::default();
        for subject in subjects {
            replica.want(subject);
        }
        let stream = self.relay.attach(node.parse().unwrap());
        let (intake, says) = Intake::begin(&mut replica, false);
        let AgentSays::Subscribe(subscribe) = says else { panic!("it subscribes") };
        let resumes = subscribe
            .resumes
            .iter()
            .map(|resume| (decode_subject(resume.subject.as_ref().unwrap()).unwrap(), Revision(resume.have)));
        self.relay.subscribe(stream, resumes.collect(), subscribe.reached.as_ref()).unwrap();
        Agent { replica, intake, stream, wholes: 0 }
    }

    /// The agent hears what the relay has for it; how far it was told that everything is complete.
    fn hear(&mut self, agent: &mut Agent) -> Option<u64> {
        let mut through = None;
        loop {
            let frames = self.relay.take(agent.stream, self.now_ms);
            if frames.is_empty() {
                return through;
            }
            for frame in frames {
                let says = FromServer::from_bytes(frame).unwrap();
                agent.wholes += usize::from(matches!(says, ServerSays::Whole(_)));
                if let ServerSays::Through(said) = &says {
                    through = Some(said.revision);
                }
                if agent.intake.hear(&agent.replica, &says).unwrap() {
                    agent.intake.hand_over(&mut agent.replica);
                }
            }
        }
    }
}

fn endpoints(service: &str) -> Subject {
    Subject::Endpoints(service.parse().unwrap())
}

fn sidecar(node: &str, port: i64) -> Record {
    Record::Instance(records::sidecar(node, "web", "web", "web", port))
}

fn fronts(agent: &Agent) -> Vec<String> {
    let mut fronts = Vec::new();
    agent.replica.visit_fronts(&"web".parse().unwrap(), &mut |front| {
        fronts.push(format!("{}:{}", front.key.node, front.port.map_or(0, |port| port.get())));
    });
    fronts
}

#[test]
fn an_agent_is_told_of_a_subject_when_the_relay_has_heard_of_it_and_not_before() {
    let mut tree = Tree::new();
    tree.commit(records::node("a", "10.0.0.1"));
    tree.commit(sidecar("a", 1001));
    tree.pass();
    let mut agent = tree.attach("n1", &[endpoints("web")]);
    assert_eq!(tree.hear(&mut agent), None, "nothing is complete that the relay does not know");
    tree.pass();
    assert_eq!(tree.hear(&mut agent), Some(2));
    assert_eq!(fronts(&agent), ["a:1001"]);

    tree.commit(sidecar("a", 1002));
    tree.pass();
    assert_eq!((tree.hear(&mut agent), agent.wholes), (Some(3), 1), "a change goes as such");
    assert_eq!(fronts(&agent), ["a:1002"]);
    // Another that comes later is sent what is there, from here.
    let mut second = tree.attach("n2", &[endpoints("web")]);
    assert_eq!(tree.hear(&mut second), Some(3));
    assert_eq!(fronts(&second), ["a:1002"]);
}

#[test]
fn what_a_relay_misses_while_it_is_away_its_agents_get_exactly() {
    let mut tree = Tree::new();
    for node in ["a", "b"] {
        tree.commit(records::node(node, "10.0.0.1"));
        tree.commit(sidecar(node, 1001));
    }
    let mut agent = tree.attach("n1", &[endpoints("web")]);
    tree.pass();
    tree.hear(&mut agent);
    assert_eq!(fronts(&agent), ["a:1001", "b:1001"]);
    tree.relay.end(tree.line);
    tree.delete(&sidecar("a", 1001));
    tree.commit(sidecar("b", 1002));
    tree.connect();
    tree.pass();
    assert_eq!((tree.hear(&mut agent), agent.wholes), (Some(6), 1), "by changes, not anew");
    assert_eq!(fronts(&agent), ["b:1002"]);

    // A server that remembers nothing of the time sends the whole; what differs goes on as changes.
    tree.relay.end(tree.line);
    tree.commit(sidecar("a", 1003));
    tree.server = Fleet::new(tree.snapshot.clone());
    tree.up = tree.server.attach_relay();
    tree.connect();
    tree.pass();
    assert_eq!((tree.hear(&mut agent), agent.wholes), (Some(7), 1));
    assert_eq!(fronts(&agent), ["a:1003", "b:1002"]);
}

#[test]
fn what_nobody_wants_is_forgotten_and_asked_for_anew() {
    let mut tree = Tree::new();
    tree.commit(records::node("a", "10.0.0.1"));
    tree.commit(sidecar("a", 1001));
    // The server's welcome says that it tells of ends of subscriptions.
    let welcome = starling_attach::message::Welcome { level: starling_attach::message::LEVEL, ..Default::default() };
    let frame = FromServer::from(ServerSays::Welcome(welcome.clone())).to_bytes();
    tree.relay.hear(tree.line, &ServerSays::Welcome(welcome), &frame, 0).unwrap();
    let mut agent = tree.attach("n1", &[endpoints("web")]);
    tree.pass();
    tree.hear(&mut agent);
    tree.relay.remove(agent.stream);
    tree.relay.sweep();
    tree.pass();
    assert!(tree.relay.holding().subjects().any(|subject| *subject == endpoints("web")), "an agent may be back");
    tree.relay.sweep();
    tree.pass();
    assert!(tree.relay.holding().subjects().all(|subject| *subject == Subject::Roots));
    tree.commit(sidecar("a", 1002));
    let mut agent = tree.attach("n1", &[endpoints("web")]);
    assert_eq!(tree.hear(&mut agent), None);
    tree.pass();
    assert_eq!(tree.hear(&mut agent), Some(3));
    assert_eq!(fronts(&agent), ["a:1002"]);
}

#[test]
fn a_stream_in_reserve_says_the_same_and_nothing_comes_twice() {
    let mut tree = Tree::new();
    tree.commit(records::node("a", "10.0.0.1"));
    let mut agent = tree.attach("n1", &[endpoints("web")]);
    tree.pass();
    tree.hear(&mut agent);
    tree.commit(sidecar("a", 1001));
    let frames = tree.server.take(tree.up, 0);
    let reserve = tree.line + 100;
    drop(tree.relay.begin(reserve));
    for line in [tree.line, reserve] {
        for frame in &frames {
            let says = FromServer::from_bytes(frame.clone()).unwrap();
            tree.relay.hear(line, &says, frame, 0).unwrap();
        }
    }
    assert_eq!(tree.hear(&mut agent), Some(2));
    assert_eq!(tree.hear(&mut agent), None);
    assert_eq!(fronts(&agent), ["a:1001"]);
}
