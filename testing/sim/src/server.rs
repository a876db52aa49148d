//! A server: the real `Fleet` and `Receipts`, joined as `programs/server/src/{agents,hub,door}.rs` join them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use starling_attach::message::{AgentSays, Rejected, ServerSays, Subjects, Subscribe, Welcome, decode_subject};
use starling_attach::{Fleet, FromServer, Lineage, StreamId, SubscribeError};
use starling_catalog::{Receipts, Refused, Reporter, ReporterId, Snapshot, Subject};
use starling_model::{Change, NodeName, Revision};

use crate::connection::{End, StreamHandle};

pub(crate) struct Server {
    pub snapshot: Snapshot,
    lineage: Lineage,
    fleet: Fleet,
    receipts: Receipts,
    attached: BTreeMap<StreamId, Attached>,
    nodes: BTreeMap<NodeName, StreamId>,
    /// The current attachment of each reporter.
    current: BTreeMap<ReporterId, u64>,
    attachments: u64,
    now_us: u64,
    /// Every frame that was ever taken, by what it says.
    frames: BTreeMap<Bytes, Bytes>,
}

struct Attached {
    node: NodeName,
    reporter: ReporterId,
    attachment: u64,
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
            current: BTreeMap::new(),
            attachments: 0,
            now_us: 0,
            frames: BTreeMap::new(),
        }
    }

    /// The catalog is at `after` by `changes`.
    pub(crate) fn publish(&mut self, after: &Snapshot, changes: &[Change], now_ms: u64) -> Result<()> {
        self.now_us += 1;
        let applied = self.snapshot.apply(after.revision(), changes);
        let before = self.fleet.encoded();
        let published = self.fleet.publish(&applied.snapshot, changes, now_ms);
        let items = starling_attach::projection::difference(&self.snapshot, &applied.snapshot, changes).len();
        let encoded = self.fleet.encoded() - before;
        ensure!(encoded <= items as u64, "{encoded} frames were encoded for {items} items");
        self.snapshot = applied.snapshot;
        let reporters = published.concerned.iter().filter_map(|id| Some(self.attached.get(id)?.reporter)).collect();
        let subjects = applied.events.iter().map(|event| event.subject.clone()).collect();
        self.receipts.committed(self.snapshot.revision(), subjects, reporters, self.now_us);
        for id in published.woken {
            if let Some(attached) = self.attached.get_mut(&id) {
                attached.awake = true;
            }
        }
        Ok(())
    }

    /// Opens a node's stream. An earlier one of the node finds out when it is next asked what to send.
    pub(crate) fn attach(&mut self, node: &NodeName) -> StreamHandle {
        let reporter = self.receipts.connected(&Reporter::Node(node.clone()));
        self.attachments += 1;
        let attachment = self.attachments;
        self.current.insert(reporter, attachment);
        let id = self.fleet.attach(node.clone());
        self.attached.insert(id, Attached { node: node.clone(), reporter, attachment, awake: true, away: false });
        if let Some(earlier) = self.nodes.insert(node.clone(), id) {
            self.fleet.remove(earlier);
            self.attached.remove(&earlier);
        }
        StreamHandle { id, attachment }
    }

    fn is_open(&self, stream: StreamHandle) -> bool {
        self.attached.contains_key(&stream.id)
    }

    /// The connection of a stream is gone.
    pub(crate) fn leave(&mut self, stream: StreamHandle) {
        if !self.is_open(stream) {
            return;
        }
        let Some(attached) = self.attached.get_mut(&stream.id) else { return };
        attached.away = true;
        attached.awake = false;
        self.fleet.leave(stream.id);
        if self.current.get(&attached.reporter) == Some(&attached.attachment) {
            self.receipts.disconnected(attached.reporter);
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
    pub(crate) fn hear(&mut self, stream: StreamHandle, says: AgentSays) -> Result<Option<End>> {
        match says {
            AgentSays::Subscribe(subscribe) => return self.subscribe(stream, &subscribe),
            AgentSays::Unsubscribe(Subjects { subjects }) => {
                let subjects: Vec<_> = subjects.iter().map(decode_subject).collect::<Result<_, _>>()?;
                if self.is_open(stream) {
                    self.fleet.unsubscribe(stream.id, &subjects);
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
            AgentSays::Hello(_) | AgentSays::Here(_) => {}
        }
        Ok(None)
    }

    fn subscribe(&mut self, stream: StreamHandle, subscribe: &Subscribe) -> Result<Option<End>> {
        let resumes = subscribe.resumes.iter().map(|resume| {
            let subject = resume.subject.as_ref().context("a subscription without a subject")?;
            Ok((decode_subject(subject)?, Revision(resume.have)))
        });
        let mut resumes: Vec<_> = resumes.collect::<Result<_>>()?;
        if !self.is_open(stream) {
            return Ok(None);
        }
        let admitted = self.lineage.admit(&mut resumes, subscribe.reached.as_ref(), self.fleet.revision());
        match admitted.and_then(|()| self.fleet.subscribe(stream.id, &resumes)) {
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
        if let Some(attached) = self.attached.get_mut(&stream.id) {
            attached.awake = true;
        }
        Ok(None)
    }

    /// What a stream reports under, while it is the current one of its node.
    fn reporter(&self, stream: StreamHandle) -> Option<ReporterId> {
        let by_attachment = self.current.iter().find(|(_, current)| **current == stream.attachment);
        by_attachment.map(|(reporter, _)| *reporter)
    }

    /// What is sent next on a stream.
    pub(crate) fn take(&mut self, stream: StreamHandle, now_ms: u64) -> Result<Taken> {
        if !self.is_open(stream) {
            return Ok(Taken::Superseded);
        }
        let Some(attached) = self.attached.get_mut(&stream.id) else { return Ok(Taken::Superseded) };
        if !attached.awake {
            return Ok(Taken::Nothing);
        }
        let frames = self.fleet.take(stream.id, now_ms);
        if frames.is_empty() {
            attached.awake = false;
            return Ok(Taken::Nothing);
        }
        for frame in &frames {
            let first = self.frames.entry(frame.clone()).or_insert_with(|| frame.clone());
            ensure!(first.as_ptr() == frame.as_ptr(), "encoded twice: {:?}", FromServer::from_bytes(frame.clone()));
        }
        Ok(Taken::Frames(frames))
    }

    /// The first frame of a stream.
    pub(crate) fn welcome(&self) -> Bytes {
        let epoch = self.lineage.current();
        FromServer::from(ServerSays::Welcome(Welcome { epoch, ..Welcome::default() })).to_bytes()
    }

    /// The nodes that have a stream that is not known to be gone.
    pub(crate) fn here(&self) -> BTreeSet<NodeName> {
        self.attached.values().filter(|attached| !attached.away).map(|attached| attached.node.clone()).collect()
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
