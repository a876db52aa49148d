//! A server: the real `Fleet` and `Receipts`, joined as `programs/server/src/{agents,hub,door}.rs` join them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use starling_attach::message::{AgentSays, LEVEL, Rejected, ServerSays, Subjects, Subscribe, Welcome, decode_subject};
use starling_attach::{Fleet, FromServer, Lineage, StreamId, SubscribeError};
use starling_catalog::{Applied, Receipts, Refused, Reporter, ReporterId, Snapshot, Subject};
use starling_model::{Change, NodeName, Revision};

use crate::connection::End;

pub(crate) struct Server {
    pub snapshot: Snapshot,
    lineage: Lineage,
    fleet: Fleet,
    receipts: Receipts,
    attached: BTreeMap<StreamId, Attached>,
    nodes: BTreeMap<NodeName, StreamId>,
    standbys: BTreeMap<NodeName, StreamId>,
    /// The current attachment of each reporter.
    current: BTreeMap<ReporterId, u64>,
    attachments: u64,
    now_us: u64,
    /// Every frame that was ever taken, by what it says.
    frames: BTreeMap<Bytes, Bytes>,
}

struct Attached {
    node: NodeName,
    /// By what it reports, and the number of its attachment, once it is a primary.
    reporter: Option<(ReporterId, u64)>,
    /// Whether it is worth asking what there is to take.
    awake: bool,
    away: bool,
}

/// What came of a stream that was asked what to send.
pub(crate) enum Taken {
    Frames(Vec<Bytes>),
    Nothing,
    Superseded,
}

impl Server {
    pub(crate) fn new(snapshot: Snapshot, lineage: Lineage) -> Self {
        Self {
            lineage,
            fleet: Fleet::new(snapshot.clone()),
            snapshot,
            receipts: Receipts::default(),
            attached: BTreeMap::new(),
            nodes: BTreeMap::new(),
            standbys: BTreeMap::new(),
            current: BTreeMap::new(),
            attachments: 0,
            now_us: 0,
            frames: BTreeMap::new(),
        }
    }

    /// The catalog is at `after` by `changes`.
    pub(crate) fn publish(&mut self, applied: Applied, changes: &[Change], now_ms: u64) -> Result<()> {
        self.now_us += 1;
        let before = self.fleet.encoded();
        let published = self.fleet.publish(&applied.snapshot, changes, now_ms);
        let items = starling_attach::projection::difference(&self.snapshot, &applied.snapshot, changes).len();
        let encoded = self.fleet.encoded() - before;
        ensure!(encoded <= items as u64, "{encoded} frames were encoded for {items} items");
        self.snapshot = applied.snapshot;
        let reporters = published.concerned.iter().filter_map(|id| self.attached.get(id)?.reporter);
        let reporters = reporters.map(|(reporter, _)| reporter).collect();
        let subjects = applied.events.iter().map(|event| event.subject.clone()).collect();
        self.receipts.committed(self.snapshot.revision(), subjects, reporters, self.now_us);
        for id in published.woken {
            if let Some(attached) = self.attached.get_mut(&id) {
                attached.awake = true;
            }
        }
        Ok(())
    }

    /// Opens a node's stream. An earlier one of its kind finds out when it is next asked what to send.
    pub(crate) fn attach(&mut self, node: &NodeName, standby: bool) -> StreamId {
        let id = self.fleet.attach(node.clone());
        self.fleet.tell_endings(id);
        self.attached.insert(id, Attached { node: node.clone(), reporter: None, awake: true, away: false });
        if standby {
            let earlier = self.standbys.insert(node.clone(), id);
            earlier.into_iter().for_each(|earlier| self.end(earlier));
        } else {
            self.is_primary(node, id);
        }
        id
    }

    fn is_primary(&mut self, node: &NodeName, id: StreamId) -> ReporterId {
        let reporter = self.receipts.connected(&Reporter::Node(node.clone()));
        self.attachments += 1;
        self.current.insert(reporter, self.attachments);
        if let Some(attached) = self.attached.get_mut(&id) {
            attached.reporter = Some((reporter, self.attachments));
        }
        let earlier = self.nodes.insert(node.clone(), id);
        earlier.into_iter().for_each(|earlier| self.end(earlier));
        reporter
    }

    fn end(&mut self, id: StreamId) {
        self.fleet.remove(id);
        self.attached.remove(&id);
    }

    fn promote(&mut self, id: StreamId, through: Revision) -> Result<()> {
        let Some(attached) = self.attached.get(&id).filter(|attached| attached.reporter.is_none()) else {
            return Ok(());
        };
        let (node, at) = (attached.node.clone(), self.snapshot.revision());
        ensure!(through <= at, "{through} is in force where a server is at {at}");
        if self.standbys.get(&node) == Some(&id) {
            self.standbys.remove(&node);
        }
        let reporter = self.is_primary(&node, id);
        let subjects = self.fleet.subjects(id);
        self.receipts.subscribed(reporter, through, &subjects);
        self.fleet.remind(id);
        if let Some(attached) = self.attached.get_mut(&id) {
            attached.awake = true;
        }
        Ok(())
    }

    fn is_open(&self, stream: StreamId) -> bool {
        self.attached.contains_key(&stream)
    }

    /// The connection of a stream is gone.
    pub(crate) fn leave(&mut self, stream: StreamId) {
        if !self.is_open(stream) {
            return;
        }
        let Some(attached) = self.attached.get_mut(&stream) else { return };
        let Some((reporter, attachment)) = attached.reporter else {
            let node = attached.node.clone();
            if self.standbys.get(&node) == Some(&stream) {
                self.standbys.remove(&node);
            }
            return self.end(stream);
        };
        attached.away = true;
        attached.awake = false;
        self.fleet.leave(stream);
        if self.current.get(&reporter) == Some(&attachment) {
            self.receipts.disconnected(reporter);
        }
    }

    /// Gives up a node that is away, as the grace is over.
    pub(crate) fn give_up(&mut self, node: &NodeName) {
        if let Some(id) = self.nodes.get(node).copied() {
            if self.attached.get(&id).is_some_and(|attached| !attached.away) {
                return;
            }
            self.nodes.remove(node);
            self.attached.remove(&id);
            self.fleet.remove(id);
        }
        if let Some(reporter) = self.receipts.find(&Reporter::Node(node.clone())) {
            self.current.remove(&reporter);
            self.receipts.removed(reporter);
        }
    }

    /// An agent said something; `Some` if its stream ends by it.
    pub(crate) fn hear(&mut self, stream: StreamId, says: AgentSays) -> Result<Option<End>> {
        match says {
            AgentSays::Subscribe(subscribe) => return self.subscribe(stream, &subscribe),
            AgentSays::Unsubscribe(Subjects { subjects }) => {
                let subjects: Vec<_> = subjects.iter().map(decode_subject).collect::<Result<_, _>>()?;
                if self.is_open(stream) {
                    self.fleet.unsubscribe(stream, &subjects);
                }
            }
            AgentSays::Applied(applied) => {
                let (through, at) = (Revision(applied.through), self.snapshot.revision());
                ensure!(through <= at, "{through} is reported as applied to a server that is at {at}");
                let now = self.now_us;
                if let Some(reporter) = self.reporter(stream) {
                    self.receipts.applied(reporter, through, applied.refusals_stand, now);
                }
            }
            AgentSays::Rejected(rejected) => {
                if let Some(reporter) = self.reporter(stream) {
                    self.receipts.rejected(reporter, refused(rejected)?);
                }
            }
            AgentSays::Promote(promote) => self.promote(stream, Revision(promote.through))?,
            AgentSays::Hello(_) | AgentSays::Relayed(_) | AgentSays::Trusts(_) => unreachable!("agents only"),
            AgentSays::Here(_) => {}
        }
        Ok(None)
    }

    fn subscribe(&mut self, stream: StreamId, subscribe: &Subscribe) -> Result<Option<End>> {
        let resumes = subscribe.resumes.iter().map(|resume| {
            let subject = resume.subject.as_ref().context("a subscription without a subject")?;
            Ok((decode_subject(subject)?, Revision(resume.have)))
        });
        let mut resumes: Vec<_> = resumes.collect::<Result<_>>()?;
        if !self.is_open(stream) {
            return Ok(None);
        }
        let admitted = self.lineage.admit(&mut resumes, subscribe.reached.as_ref(), self.fleet.revision());
        match admitted.and_then(|()| self.fleet.subscribe(stream, &resumes)) {
            Ok(()) => {}
            Err(SubscribeError::Future { .. } | SubscribeError::OtherPast { .. }) => return Ok(Some(End::Anew)),
            Err(other) => return Err(other).context("nobody asked for that"),
        }
        let at = self.fleet.revision();
        let mut by_revision: BTreeMap<Revision, BTreeSet<Subject>> = BTreeMap::new();
        for (subject, have) in resumes {
            let as_of = if have == Revision(0) { at } else { have };
            by_revision.entry(as_of).or_default().insert(subject);
        }
        if let Some(reporter) = self.reporter(stream) {
            for (as_of, subjects) in by_revision {
                self.receipts.subscribed(reporter, as_of, &subjects);
            }
        }
        if let Some(attached) = self.attached.get_mut(&stream) {
            attached.awake = true;
        }
        Ok(None)
    }

    /// What a stream reports under, while it is the current one of its node.
    fn reporter(&self, stream: StreamId) -> Option<ReporterId> {
        let (reporter, attachment) = self.attached.get(&stream)?.reporter?;
        (self.current.get(&reporter) == Some(&attachment)).then_some(reporter)
    }

    /// What is sent next on a stream.
    pub(crate) fn take(&mut self, stream: StreamId, now_ms: u64) -> Result<Taken> {
        if !self.is_open(stream) {
            return Ok(Taken::Superseded);
        }
        let Some(attached) = self.attached.get_mut(&stream) else { return Ok(Taken::Superseded) };
        if !attached.awake {
            return Ok(Taken::Nothing);
        }
        let frames = self.fleet.take(stream, now_ms);
        if frames.is_empty() {
            attached.awake = false;
            return Ok(Taken::Nothing);
        }
        let is_shared =
            |frame: &&Bytes| !matches!(FromServer::from_bytes(Bytes::clone(frame)), Ok(ServerSays::Unsubscribed(_)));
        for frame in frames.iter().filter(is_shared) {
            let first = self.frames.entry(frame.clone()).or_insert_with(|| frame.clone());
            ensure!(first.as_ptr() == frame.as_ptr(), "encoded twice: {:?}", FromServer::from_bytes(frame.clone()));
        }
        Ok(Taken::Frames(frames))
    }

    /// The first frame of a stream.
    pub(crate) fn welcome(&self) -> Bytes {
        let epoch = self.lineage.current();
        FromServer::from(ServerSays::Welcome(Welcome { epoch, level: LEVEL, ..Welcome::default() })).to_bytes()
    }

    /// The nodes that have a primary stream that is not known to be gone.
    pub(crate) fn here(&self) -> BTreeSet<NodeName> {
        let here = self.attached.values().filter(|attached| !attached.away && attached.reporter.is_some());
        here.map(|attached| attached.node.clone()).collect()
    }

    /// How many streams there are that are not known to be gone.
    pub(crate) fn open(&self) -> usize {
        self.attached.values().filter(|attached| !attached.away).count()
    }

    /// Fails if something is outstanding of any change.
    pub(crate) fn check_settled(&self) -> Result<()> {
        for revision in self.receipts.revisions() {
            let report = self.receipts.report(revision, 9).context("it is remembered")?;
            ensure!(report.is_settled(), "{revision} is outstanding at {:?}", report.pending);
        }
        ensure!(self.receipts.behind() == 0, "{} are behind", self.receipts.behind());
        Ok(())
    }
}

fn refused(rejected: Rejected) -> Result<Refused> {
    let rejected = rejected.bounded();
    Ok(Refused {
        revision: Revision(rejected.revision),
        since: Revision(rejected.since),
        proxy: Some(rejected.proxy.parse()?),
        type_url: rejected.type_url,
        resources: rejected.resources,
        text: rejected.text,
    })
}
