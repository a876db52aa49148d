//! A relay and its servers, of which one may be behind another, and agents that come to it and go: what it says that is complete is,
//! and no server is told of what it has not said itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../catalog/tests/support/records.rs"]
mod records;

use starling_attach::message::{AgentSays, LEVEL, Resume, ServerSays, Welcome, decode_subject};
use starling_attach::relay::{NodeNumber, Relay};
use starling_attach::relayed::{RELAY_SUBJECTS_MAX, Relayed, WireEpoch};
use starling_attach::request::SUBJECTS_PER_PART;
use starling_attach::{Epoch, Fleet, FromServer, Intake, Lineage, Parts, Replica, StreamId, SubscribeError};
use starling_catalog::{MeshRead as _, Snapshot, Subject};
use starling_model::{Change, Record, Revision};

/// One past of a store: each change, and what it came to.
#[derive(Clone, Default)]
struct Store {
    epochs: Vec<Epoch>,
    past: Vec<(Vec<Change>, Snapshot)>,
}

impl Store {
    fn new() -> Self {
        Self { epochs: vec![Epoch { id: 7, after: Revision(0) }], past: Vec::new() }
    }

    fn commit(&mut self, record: Record) -> u64 {
        let changes = vec![Change::Put(record)];
        let revision = self.past.len() as u64 + 1;
        let after = self.at(self.past.len()).apply(Revision(revision), &changes).snapshot;
        self.past.push((changes, after));
        revision
    }

    fn at(&self, revision: usize) -> Snapshot {
        revision.checked_sub(1).map_or_else(Snapshot::default, |place| self.past[place].1.clone())
    }

    /// It is opened anew, by a server that starts.
    fn reopen(&mut self, id: u64) {
        self.epochs.push(Epoch { id, after: Revision(self.past.len() as u64) });
    }
}

/// A server that has followed its store up to a revision, and the relay's stream from it.
struct Server {
    fleet: Fleet,
    lineage: Lineage,
    at: usize,
    stream: StreamId,
    line: u64,
    parts: Parts,
}

impl Server {
    fn start(store: &Store) -> Self {
        let at = store.past.len();
        let mut fleet = Fleet::new(store.at(at));
        let stream = fleet.attach_relay();
        Self { fleet, lineage: Lineage::new(store.epochs.clone()), at, stream, line: 0, parts: Parts::default() }
    }

    /// Follows its store up to `revision`.
    fn follow(&mut self, store: &Store, revision: u64) {
        while (self.at as u64) < revision {
            let (changes, after) = &store.past[self.at];
            self.fleet.publish(after, changes, 0);
            self.at += 1;
        }
    }

    fn subscribe(&mut self, stream: StreamId, says: AgentSays) -> Result<(), SubscribeError> {
        let AgentSays::Subscribe(part) = says else { panic!("{says:?} is no request") };
        let Some(subscribe) = self.parts.add(part, RELAY_SUBJECTS_MAX)? else { return Ok(()) };
        let mut resumes = subscribe.resumes.iter().map(resume).collect::<Vec<_>>();
        self.lineage.admit(&mut resumes, subscribe.reached.as_ref(), self.fleet.revision())?;
        self.fleet.subscribe(stream, &resumes)
    }

    fn welcome(&self) -> ServerSays {
        let epochs = self.lineage.epochs().iter().map(|epoch| WireEpoch { id: epoch.id, after: epoch.after.0 });
        let epoch = self.lineage.current();
        ServerSays::Welcome(Welcome { epoch, epochs: epochs.collect(), level: LEVEL, ..Welcome::default() })
    }
}

fn resume(resume: &Resume) -> (Subject, Revision) {
    (decode_subject(resume.subject.as_ref().unwrap()).unwrap(), Revision(resume.have))
}

/// A relay's streams from servers, each by the number of its line.
struct Above {
    relay: Relay,
    lines: u64,
}

impl Above {
    fn new() -> Self {
        Self { relay: Relay::new([Subject::Roots]), lines: 0 }
    }

    /// Opens a stream from a server, which hears the request and says who it is.
    fn open(&mut self, server: &mut Server) -> Result<(), SubscribeError> {
        self.begin(server).into_iter().try_for_each(|says| server.subscribe(server.stream, says))
    }

    /// The same, but that the request is still on its way.
    fn begin(&mut self, server: &mut Server) -> Vec<AgentSays> {
        self.lines += 1;
        self.relay.end(server.line);
        server.fleet.remove(server.stream);
        (server.line, server.stream) = (self.lines, server.fleet.attach_relay());
        server.fleet.tell_endings(server.stream);
        let says = self.relay.begin(server.line);
        let welcome = server.welcome();
        let frame = FromServer::from(welcome.clone()).to_bytes();
        self.relay.hear(server.line, &welcome, &frame, 0).unwrap();
        says
    }

    /// A server hears what is wanted, and is heard.
    fn pass(&mut self, server: &mut Server) {
        for says in self.relay.requests(server.line) {
            server.subscribe(server.stream, says).unwrap();
        }
        loop {
            let frames = server.fleet.take(server.stream, 0);
            if frames.is_empty() {
                return;
            }
            for frame in frames {
                let says = FromServer::from_bytes(frame.clone()).unwrap();
                self.relay.hear(server.line, &says, &frame, 0).unwrap();
            }
        }
    }

    /// What the server is told of the nodes.
    fn told(&mut self, server: &Server) -> Relayed {
        self.relay.tell(server.line, 0).unwrap_or_default()
    }

    /// What is in force, as the server is told.
    fn told_in_force(&mut self, server: &Server) -> Vec<u64> {
        self.told(server).in_force.iter().map(|in_force| in_force.through).collect()
    }
}

/// A node's agent, which may be attached to a server or to the relay.
struct Agent {
    replica: Replica,
    intake: Intake,
    stream: Option<StreamId>,
    number: NodeNumber,
    wholes: usize,
}

impl Agent {
    fn wanting(subjects: impl IntoIterator<Item = Subject>) -> Self {
        let mut replica = Replica::default();
        for subject in subjects {
            replica.want(&subject);
        }
        let (intake, _) = Intake::begin(&mut replica, false);
        Self { replica, intake, stream: None, number: 0, wholes: 0 }
    }

    /// Attaches to the relay, as the only stream of its node.
    fn attach(&mut self, above: &mut Above) -> Result<(), SubscribeError> {
        let node: starling_model::NodeName = "n1".parse().unwrap();
        let (intake, says) = Intake::begin(&mut self.replica, false);
        self.intake = intake;
        let epoch = above.relay.holding().heard().unwrap().epoch;
        let welcome = ServerSays::Welcome(Welcome { epoch, level: LEVEL, ..Welcome::default() });
        self.intake.hear(&self.replica, &welcome).unwrap();
        let AgentSays::Subscribe(subscribe) = says else { panic!("{says:?} is no request") };
        let stream = above.relay.attach(node.clone());
        let resumes = subscribe.resumes.iter().map(resume).collect();
        let resumed = above.relay.subscribe(stream, resumes, subscribe.reached.as_ref())?;
        self.stream = Some(stream);
        self.number = above.relay.roll.come(node).unwrap();
        let have = resumed.iter().map(|(_, have)| *have).min().unwrap();
        above.relay.roll.wants(self.number, have, resumed.iter().map(|(subject, _)| subject));
        Ok(())
    }

    fn heard(&mut self, frames: Vec<bytes::Bytes>) -> Option<u64> {
        let mut through = None;
        for frame in frames {
            let says = FromServer::from_bytes(frame).unwrap();
            self.wholes += usize::from(matches!(says, ServerSays::Whole(_)));
            if let ServerSays::Through(said) = &says {
                through = Some(said.revision);
            }
            if self.intake.hear(&self.replica, &says).unwrap() {
                self.intake.hand_over(&mut self.replica);
            }
        }
        through
    }

    /// Hears what the relay has for it, has it in force and says so; up to where that is.
    fn hear(&mut self, above: &mut Above) -> Option<u64> {
        let stream = self.stream.unwrap();
        let through = std::iter::from_fn(|| {
            let frames = above.relay.take(stream, 0);
            (!frames.is_empty()).then(|| self.heard(frames))
        });
        let through = through.flatten().last()?;
        above.relay.roll.applied(self.number, Revision(through), false, 0);
        Some(through)
    }

    fn port_of(&self, service: &str) -> Option<u16> {
        let mut port = None;
        self.replica.visit_fronts(&service.parse().unwrap(), &mut |front| port = front.port.map(|port| port.get()));
        port
    }
}

fn endpoints(service: &str) -> Subject {
    Subject::Endpoints(service.parse().unwrap())
}

fn sidecar(service: &str, port: i64) -> Record {
    Record::Instance(records::sidecar("a", service, service, service, port))
}

/// A store with a service at port 1001, as of revision 2.
fn store() -> Store {
    let mut store = Store::new();
    store.commit(records::node("a", "10.0.0.1"));
    store.commit(sidecar("web", 1001));
    store
}

#[test]
fn a_server_that_is_behind_is_told_of_what_it_has_said_itself_and_of_the_rest_when_it_has() {
    let mut store = store();
    let (mut behind, mut ahead) = (Server::start(&store), Server::start(&store));
    let mut above = Above::new();
    above.open(&mut behind).unwrap();
    above.pass(&mut behind);
    above.relay.promote(behind.line);
    above.open(&mut ahead).unwrap();
    let mut agent = Agent::wanting([endpoints("web")]);
    agent.attach(&mut above).unwrap();
    above.pass(&mut behind);
    above.pass(&mut ahead);
    assert_eq!(agent.hear(&mut above), Some(2));
    assert_eq!(above.told_in_force(&behind), [2]);

    for port in [1002, 1003] {
        let revision = store.commit(sidecar("web", port));
        ahead.follow(&store, revision);
        above.pass(&mut ahead);
        assert_eq!(agent.hear(&mut above), Some(revision), "a change is in force when the faster server has told it");
    }
    assert_eq!(agent.port_of("web"), Some(1003));
    assert_eq!(
        above.told(&behind),
        Relayed::default(),
        "it has said nothing of 3 and 4, and would lose what is said of them"
    );
    behind.follow(&store, 3);
    above.pass(&mut behind);
    assert_eq!(above.told_in_force(&behind), [3]);
    behind.follow(&store, 4);
    above.pass(&mut behind);
    assert_eq!(above.told_in_force(&behind), [4]);
    assert_eq!(above.told(&behind), Relayed::default());
}

#[test]
fn a_server_that_takes_over_is_told_everything_as_far_as_it_has_come() {
    let mut store = store();
    let (mut first, mut second) = (Server::start(&store), Server::start(&store));
    let mut above = Above::new();
    above.open(&mut first).unwrap();
    above.pass(&mut first);
    above.relay.promote(first.line);
    let mut agent = Agent::wanting([endpoints("web")]);
    agent.attach(&mut above).unwrap();
    above.pass(&mut first);
    above.open(&mut second).unwrap();
    above.pass(&mut second);
    let revision = store.commit(sidecar("web", 1002));
    first.follow(&store, revision);
    above.pass(&mut first);
    assert_eq!(agent.hear(&mut above), Some(revision));
    assert_eq!(above.told_in_force(&first), [3]);

    // It is lost, and the one in reserve has not come so far.
    above.relay.end(first.line);
    above.relay.promote(second.line);
    let told = above.told(&second);
    assert_eq!((told.come.len(), told.wants.len(), told.in_force[0].through), (1, 1, 2), "{told:?}");
    second.follow(&store, revision);
    above.pass(&mut second);
    assert_eq!(above.told_in_force(&second), [3]);
}

/// More subjects than go in one part; the last of them is the service that changes.
fn many() -> Vec<Subject> {
    (0..SUBJECTS_PER_PART + 500).map(|number| endpoints(&format!("s{number:05}"))).chain([endpoints("web")]).collect()
}

#[test]
fn a_server_answers_a_request_in_parts_when_all_of_it_is_there() {
    let mut store = store();
    let mut server = Server::start(&store);
    let mut above = Above::new();
    above.open(&mut server).unwrap();
    above.pass(&mut server);
    let mut agent = Agent::wanting(many());
    agent.attach(&mut above).unwrap();
    above.pass(&mut server);
    above.relay.promote(server.line);
    assert_eq!((agent.hear(&mut above), agent.port_of("web")), (Some(2), Some(1001)));
    drop(above.told(&server));

    // The connection breaks, something happens, and between the parts of the next request something else.
    above.relay.end(server.line);
    let revision = store.commit(sidecar("web", 1002));
    server.follow(&store, revision);
    let mut parts = above.begin(&mut server);
    assert_eq!(parts.len(), 2, "so many subjects go in parts");
    let last = parts.pop().unwrap();
    server.subscribe(server.stream, parts.pop().unwrap()).unwrap();
    let revision = store.commit(sidecar("s00001", 2001));
    server.follow(&store, revision);
    above.pass(&mut server);
    above.relay.promote(server.line);
    assert_eq!(agent.hear(&mut above), None, "of subjects that were not asked for nothing is complete");
    assert_eq!(above.told_in_force(&server), [0; 0]);
    server.subscribe(server.stream, last).unwrap();
    above.pass(&mut server);
    assert_eq!(agent.hear(&mut above), Some(4));
    assert_eq!((agent.port_of("web"), agent.port_of("s00001")), (Some(1002), Some(2001)));
    assert_eq!(agent.wholes, many().len(), "what was missed came as changes");
    assert_eq!(above.told_in_force(&server), [4]);
}

#[test]
fn between_the_word_of_another_epoch_and_its_content_nobody_comes() {
    let mut store = store();
    let mut server = Server::start(&store);
    let mut above = Above::new();
    above.open(&mut server).unwrap();
    assert!(!above.relay.is_current(), "nothing is known yet");
    above.pass(&mut server);
    assert!(above.relay.is_current());
    let mut agent = Agent::wanting([endpoints("web")]);
    agent.attach(&mut above).unwrap();
    above.pass(&mut server);
    agent.hear(&mut above);

    // The server is restarted, nothing is lost, and the relay has heard that it is another life, and no more.
    store.reopen(8);
    store.commit(sidecar("web", 1002));
    above.relay.end(server.line);
    server = Server { line: server.line, ..Server::start(&store) };
    let request = above.begin(&mut server);
    assert!(!above.relay.is_current());
    // One that breaks then leaves what was before, which is served on.
    above.relay.end(server.line);
    assert!(above.relay.is_current());
    drop(request);
    above.open(&mut server).unwrap();
    assert!(!above.relay.is_current());
    above.pass(&mut server);
    assert!(above.relay.is_current());
    assert_eq!(above.relay.holding().heard().map(|reached| (reached.epoch, reached.revision)), Some((8, 3)));
    // Who comes back resumes.
    above.relay.remove(agent.stream.unwrap());
    let before = agent.wholes;
    agent.attach(&mut above).unwrap();
    assert_eq!((agent.hear(&mut above), agent.port_of("web")), (Some(3), Some(1002)));
    assert_eq!(agent.wholes, before, "by what has changed");
}

#[test]
fn a_store_that_is_set_back_below_what_the_relay_has_begins_it_anew_and_receipts_are_true() {
    let mut store = store();
    let copy = store.clone();
    store.commit(sidecar("web", 1002));
    store.commit(sidecar("web", 1003));
    let mut server = Server::start(&store);
    let mut above = Above::new();
    above.open(&mut server).unwrap();
    above.pass(&mut server);
    above.relay.promote(server.line);
    let mut agent = Agent::wanting([endpoints("web")]);
    agent.attach(&mut above).unwrap();
    above.pass(&mut server);
    assert_eq!((agent.hear(&mut above), above.told_in_force(&server)), (Some(4), vec![4]));

    // The store is set back to revision 2 and written: its revision 3 is another.
    let mut store = copy;
    store.reopen(9);
    store.commit(sidecar("web", 2003));
    server = Server { line: server.line, ..Server::start(&store) };
    let refused = above.open(&mut server).unwrap_err();
    assert_eq!(refused, SubscribeError::OtherPast { heard: Revision(4) });
    assert!(!above.relay.is_current(), "nobody is let in to what the store no longer has");
    above.relay.remove(agent.stream.unwrap());
    above.relay.roll.away(agent.number);
    above.relay.begin_anew();
    above.open(&mut server).unwrap();
    above.pass(&mut server);
    above.relay.promote(server.line);
    assert_eq!(above.told(&server), Relayed::default());

    let refused = agent.attach(&mut above).unwrap_err();
    assert_eq!(refused, SubscribeError::OtherPast { heard: Revision(4) });
    agent.replica.begin_anew();
    agent.attach(&mut above).unwrap();
    above.pass(&mut server);
    assert_eq!((agent.hear(&mut above), agent.port_of("web")), (Some(3), Some(2003)));
    assert_eq!(above.told_in_force(&server), [3], "and no 4, which this store has not had yet");
    let revision = store.commit(sidecar("web", 2004));
    server.follow(&store, revision);
    above.pass(&mut server);
    assert_eq!((agent.hear(&mut above), above.told_in_force(&server)), (Some(4), vec![4]));
    assert_eq!(agent.port_of("web"), Some(2004));
}

#[test]
fn an_agent_that_comes_from_a_server_is_told_exactly_what_it_missed() {
    let mut store = store();
    let mut server = Server::start(&store);
    let mut above = Above::new();
    above.open(&mut server).unwrap();
    above.pass(&mut server);
    above.relay.promote(server.line);
    // The relay follows what the agent wants, since another one does.
    let mut other = Agent::wanting([endpoints("web")]);
    other.attach(&mut above).unwrap();
    above.pass(&mut server);
    assert_eq!(other.hear(&mut above), Some(2));

    for is_relay_ahead in [true, false] {
        let mut agent = Agent::wanting([endpoints("web")]);
        let (intake, says) = Intake::begin(&mut agent.replica, false);
        agent.intake = intake;
        let direct = server.fleet.attach("n1".parse().unwrap());
        let welcome = FromServer::from(server.welcome()).to_bytes();
        agent.heard(vec![welcome]);
        server.subscribe(direct, says).unwrap();
        let at = store.past.len() as u64;
        let frames = server.fleet.take(direct, 0);
        assert_eq!(agent.heard(frames), Some(at));

        let revision = store.commit(sidecar("web", i64::try_from(1100 + at).unwrap()));
        server.follow(&store, revision);
        if is_relay_ahead {
            above.pass(&mut server);
        } else {
            let frames = server.fleet.take(direct, 0);
            assert_eq!(agent.heard(frames), Some(revision), "the agent has heard what the relay has not");
        }
        server.fleet.remove(direct);
        let wholes = agent.wholes;
        agent.attach(&mut above).unwrap();
        let heard = agent.hear(&mut above);
        if !is_relay_ahead {
            assert_eq!(heard, Some(at), "it is not sent away, and waits for the relay");
            above.pass(&mut server);
            assert_eq!(agent.hear(&mut above), Some(revision));
        }
        assert_eq!(agent.wholes, wholes, "by what has changed");
        assert_eq!(agent.port_of("web").map(u64::from), Some(1100 + at));
        let told = above.told_in_force(&server);
        assert_eq!(told.last(), Some(&revision), "{told:?}");
        above.relay.remove(agent.stream.unwrap());
        above.relay.roll.away(agent.number);
    }
}
