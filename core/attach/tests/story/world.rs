//! A server, its agents, and the wire between them, all in one hand: what is said arrives when the test says so.
#![allow(missing_docs, reason = "names say it all")]
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use starling_attach::message::{
    AgentSays, LEVEL, Reached, ServerSays, Subscribe, Welcome, Whole, decode_subject, encode_subject,
};
use starling_attach::projection::{content, encode_item};
use starling_attach::{
    Epoch, Fleet, FromServer, Intake, Lineage, Published, Replica, ReplicaError, StreamId, SubscribeError,
};
use starling_catalog::{Snapshot, Subject};
use starling_model::{Change, ConfigKind, IntentionSubject, NodeName, Revision};

/// What an agent has said and the server has not read.
#[derive(Debug, Clone)]
pub enum Asks {
    Subscribe(Vec<(Subject, Revision)>, Option<Reached>),
    Unsubscribe(Vec<Subject>),
}

/// What was said, and at a `Through` what has changed.
pub type Heard = (ServerSays, Option<BTreeSet<Subject>>);

pub struct Agent {
    pub node: NodeName,
    pub replica: Replica,
    /// What it has heard on its stream and not handed over.
    pub intake: Option<Intake>,
    pub stream: Option<StreamId>,
    pub up: VecDeque<Asks>,
    pub down: VecDeque<Bytes>,
}

pub struct World {
    pub snapshot: Snapshot,
    /// Of the store, one for each time that the server came up.
    pub epochs: Vec<Epoch>,
    /// How many there ever were.
    epochs_begun: u64,
    pub fleet: Fleet,
    pub agents: BTreeMap<String, Agent>,
    pub now_ms: u64,
}

impl World {
    pub fn new() -> Self {
        let snapshot = Snapshot::default();
        let fleet = Fleet::new(snapshot.clone());
        let mut world =
            Self { fleet, snapshot, epochs: Vec::new(), epochs_begun: 0, agents: BTreeMap::new(), now_ms: 0 };
        world.begin_epoch();
        world
    }

    fn begin_epoch(&mut self) {
        self.epochs_begun += 1;
        self.epochs.push(Epoch { id: self.epochs_begun, after: self.snapshot.revision() });
    }

    fn lineage(&self) -> Lineage {
        Lineage::new(self.epochs.clone())
    }

    pub fn commit(&mut self, changes: &[Change]) -> Published {
        let revision = Revision(self.snapshot.revision().0 + 1);
        self.snapshot = self.snapshot.apply(revision, changes).snapshot;
        self.fleet.publish(&self.snapshot, changes, self.now_ms)
    }

    /// The server ends and comes back with what it has stored; nobody is connected.
    pub fn restart(&mut self) {
        self.snapshot = Snapshot::load(self.snapshot.revision(), self.snapshot.records());
        self.fleet = Fleet::new(self.snapshot.clone());
        self.begin_epoch();
        for agent in self.agents.values_mut() {
            agent.hang_up();
        }
    }

    /// The server ends, and comes back with a copy of its store that was made when this was the state.
    pub fn set_back(&mut self, copy: Snapshot) {
        self.epochs.retain(|epoch| epoch.id == 1 || epoch.after < copy.revision());
        self.snapshot = copy;
        self.restart();
    }

    pub fn agent(&mut self, name: &str) -> &mut Agent {
        self.agents.get_mut(name).unwrap()
    }

    /// Attaches an agent's stream, and says what it has; the earlier stream is given up.
    pub fn connect(&mut self, name: &str) {
        let epoch = self.lineage().current();
        let agent = self.agents.get_mut(name).unwrap();
        if let Some(earlier) = agent.stream.take() {
            self.fleet.remove(earlier);
        }
        agent.hang_up();
        let stream = self.fleet.attach(agent.node.clone());
        self.fleet.tell_endings(stream);
        agent.stream = Some(stream);
        let (mut intake, says) = Intake::begin(&mut agent.replica, false);
        let welcome = ServerSays::Welcome(Welcome { epoch, level: LEVEL, ..Welcome::default() });
        assert!(!intake.hear(&agent.replica, &welcome).unwrap());
        agent.intake = Some(intake);
        agent.asks(vec![says]);
    }

    /// The connection is gone, with all that was under way.
    pub fn drop_connection(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        if let Some(stream) = agent.stream {
            self.fleet.leave(stream);
            self.fleet.remove(stream);
        }
        agent.hang_up();
    }

    /// The server reads one thing that an agent asked.
    pub fn server_reads(&mut self, name: &str) -> Result<Option<Asks>, SubscribeError> {
        let lineage = self.lineage();
        let agent = self.agents.get_mut(name).unwrap();
        let (Some(stream), Some(mut asks)) = (agent.stream, agent.up.pop_front()) else { return Ok(None) };
        match &mut asks {
            Asks::Subscribe(resumes, reached) => {
                lineage.admit(resumes, reached.as_ref(), self.fleet.revision())?;
                self.fleet.subscribe(stream, resumes)?;
            }
            Asks::Unsubscribe(subjects) => self.fleet.unsubscribe(stream, subjects),
        }
        Ok(Some(asks))
    }

    /// The server puts what there is on the wire.
    pub fn server_sends(&mut self, name: &str) -> usize {
        let agent = self.agents.get_mut(name).unwrap();
        let frames = agent.stream.map(|stream| self.fleet.take(stream, self.now_ms)).unwrap_or_default();
        let sent = frames.len();
        agent.down.extend(frames);
        sent
    }

    /// Everything under way arrives, in both directions, until nothing is left to say.
    pub fn settle(&mut self, name: &str) -> Vec<Heard> {
        let mut heard = Vec::new();
        loop {
            while self.server_reads(name).unwrap().is_some() {}
            self.server_sends(name);
            let before = heard.len();
            while let Some(one) = self.agent(name).reads().unwrap() {
                heard.push(one);
            }
            if heard.len() == before && self.agent(name).up.is_empty() {
                return heard;
            }
        }
    }
}

impl Agent {
    pub fn new(node: &str) -> Self {
        let (up, down) = (VecDeque::new(), VecDeque::new());
        Self { node: node.parse().unwrap(), replica: Replica::default(), intake: None, stream: None, up, down }
    }

    pub fn hang_up(&mut self) {
        self.stream = None;
        self.intake = None;
        self.up.clear();
        self.down.clear();
    }

    pub fn wants(&mut self, subject: &Subject) {
        if self.replica.want(subject)
            && let Some(intake) = &mut self.intake
        {
            intake.want(subject);
            let says = intake.requests();
            self.asks(says);
        }
    }

    pub fn forgets(&mut self, subject: &Subject) {
        self.replica.forget(subject);
        if let Some(intake) = &mut self.intake {
            intake.forget(subject);
            let says = intake.requests();
            self.asks(says);
        }
    }

    fn asks(&mut self, says: Vec<AgentSays>) {
        for says in says {
            self.up.push_back(match says {
                AgentSays::Subscribe(Subscribe { resumes, reached, more: _ }) => {
                    let resumes = resumes.iter().map(|resume| {
                        let subject = decode_subject(resume.subject.as_ref().unwrap()).unwrap();
                        (subject, Revision(resume.have))
                    });
                    Asks::Subscribe(resumes.collect(), reached)
                }
                AgentSays::Unsubscribe(subjects) => Asks::Unsubscribe(
                    subjects.subjects.iter().map(|subject| decode_subject(subject).unwrap()).collect(),
                ),
                other @ (AgentSays::Hello(_)
                | AgentSays::Applied(_)
                | AgentSays::Rejected(_)
                | AgentSays::Here(_)
                | AgentSays::Promote(_)
                | AgentSays::Relayed(_)
                | AgentSays::Trusts(_)) => panic!("no request: {other:?}"),
            });
        }
    }

    /// Comes back with what is on its disk.
    pub fn restart(&mut self) {
        self.hang_up();
        let epoch = self.replica.reached().map_or(0, |reached| reached.epoch);
        let welcome = FromServer::from(ServerSays::Welcome(Welcome { epoch, ..Welcome::default() })).to_bytes();
        self.replica = Replica::from_frames([welcome].into_iter().chain(self.replica.to_frames())).unwrap();
    }

    /// Reads one frame from the wire.
    pub fn reads(&mut self) -> Result<Option<Heard>, ReplicaError> {
        let Some(frame) = self.down.pop_front() else { return Ok(None) };
        let says = FromServer::from_bytes(frame)?;
        let intake = self.intake.as_mut().unwrap();
        let is_news = intake.hear(&self.replica, &says)?;
        let is_through = matches!(says, ServerSays::Through(_));
        let touched = is_news.then(|| intake.hand_over(&mut self.replica).touched);
        Ok(Some((says, touched.or(is_through.then(BTreeSet::new)))))
    }

    /// What is known of each subject, as it would be sent.
    pub fn holds(&self) -> BTreeMap<Subject, Items> {
        let frames = self.replica.to_frames().into_iter().map(|frame| FromServer::from_bytes(frame).unwrap());
        let wholes = frames.filter_map(|says| match says {
            ServerSays::Whole(whole) => Some((decode_subject(whole.subject.as_ref().unwrap()).unwrap(), items(&whole))),
            ServerSays::Welcome(_)
            | ServerSays::Update(_)
            | ServerSays::Through(_)
            | ServerSays::Unsubscribed(_)
            | ServerSays::MoveTo(_)
            | ServerSays::Leaving(_)
            | ServerSays::Remind(_)
            | ServerSays::Superseded(_)
            | ServerSays::Reach(_) => None,
        });
        wholes.collect()
    }
}

/// The items of a subject by key, encoded.
pub type Items = BTreeMap<String, Bytes>;

fn items(whole: &Whole) -> Items {
    whole.items.iter().map(|item| (item.key.clone(), item.value.clone().unwrap())).collect()
}

/// What whoever is current has of a subject.
pub fn content_of(snapshot: &Snapshot, subject: &Subject) -> Items {
    let items = content(snapshot, subject);
    let items: Vec<_> = items.iter().map(|(key, item)| encode_item(key, Some(item))).collect();
    let whole = Whole { subject: encode_subject(subject), revision: 0, items };
    self::items(&whole)
}

/// The subject whose text this is.
pub fn subject(text: &str) -> Subject {
    let (kind, name) = text.split_once('/').unwrap_or((text, ""));
    match kind {
        "node" => Subject::Node(name.parse().unwrap()),
        "service" => Subject::Service(name.parse().unwrap()),
        "endpoints" => Subject::Endpoints(name.parse().unwrap()),
        "routing" => Subject::Routing(name.parse().unwrap()),
        "intentions" => Subject::Intentions(name.parse::<IntentionSubject>().unwrap()),
        "destinations" => Subject::Destinations(name.parse().unwrap()),
        "proxy-defaults" => Subject::ProxyDefaults,
        "roots" => Subject::Roots,
        "nodes" => Subject::NodeList,
        "config" => Subject::ConfigList(name.parse::<ConfigKind>().unwrap()),
        other => panic!("no subject {other:?}"),
    }
}
