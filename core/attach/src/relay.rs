//! A relay's side of both streams: what it hears from servers it holds and passes on to agents in the bytes in which it came,
//! and what the agents say of themselves it tells a server in batches.
//!
//! It wants what its agents want. Of a subject that is new to it an agent is told when the relay has heard of it, and no
//! `Through` before that: what an agent is told to be complete is complete here. Up to here is one step per revision, as for
//! an agent's replica; two servers may be heard at once, and only one of them, the primary, is told of the nodes.
//! See docs/adr/0020-relay.md.

mod holding;
mod roll;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use starling_catalog::Subject;
use starling_model::{NodeName, Revision};

use crate::Intake;
use crate::fleet::{Fleet, Published, StreamId, SubscribeError};
use crate::intake::Hearer as _;
use crate::lineage::{Epoch, Lineage};
use crate::message::{AgentSays, Reached, ServerSays, Welcome};
use crate::relayed::{Gone, RELAY_SUBJECTS_MAX, Relayed};
use crate::replica::ReplicaError;

pub use holding::{HeldItem, HeldWhole, Holding, HoldingIntake, News};
pub use roll::{Crowded, NodeNumber, Roll};

/// Subjects that a relay holds at most. Half of what it may name to a server, which may know as many besides that no node wants any more.
pub const RELAY_HELD_MAX: usize = RELAY_SUBJECTS_MAX / 2;

/// Of these, the unwanted for which it is worth looking through all: fewer of them are no room.
const UNWANTED_MIN: usize = RELAY_HELD_MAX / 16;

/// Names a stream from a server.
pub type LineId = u64;

/// A relay without its sockets.
#[derive(Debug)]
pub struct Relay {
    fleet: Fleet<Holding>,
    /// The nodes behind it.
    pub roll: Roll,
    lines: BTreeMap<LineId, Line>,
    /// The one that is told of the nodes.
    primary: Option<LineId>,
    /// What the relay itself follows.
    own: BTreeSet<Subject>,
    /// What nobody has wanted since before the last sweep.
    idle: BTreeSet<Subject>,
    /// Of the servers' store, as what is held is of it.
    lineage: Lineage,
    /// Nodes that are to be told a `Through`, once all is known up to there.
    reminded: BTreeMap<NodeNumber, Revision>,
}

/// A stream from a server.
#[derive(Debug)]
struct Line {
    intake: HoldingIntake,
    /// Of its server's store, until the first handing over.
    lineage: Option<Lineage>,
    /// Whom the server has named since its last `Through`.
    reminded: BTreeSet<NodeNumber>,
}

/// What came of a frame from a server.
#[derive(Debug, Default)]
pub struct Heard {
    /// Streams that there is something for.
    pub woken: Vec<StreamId>,
    /// Nodes that are to be told a `Through`.
    pub reminded: Vec<NodeNumber>,
    /// Nodes that have attached elsewhere: their streams end.
    pub superseded: Vec<NodeNumber>,
    /// What the server has told is now what is held.
    pub handed_over: bool,
    /// With that what is held is of another epoch of the servers' store, or the first: what agents were told is over.
    pub other_epoch: bool,
}

impl Relay {
    /// One that holds nothing, and follows `own` for itself.
    #[must_use]
    pub fn new(own: impl IntoIterator<Item = Subject>) -> Self {
        let mut fleet = Fleet::new(Holding::default());
        let own: BTreeSet<_> = own.into_iter().collect();
        for subject in &own {
            fleet.hold(subject);
        }
        Self {
            fleet,
            roll: Roll::default(),
            lines: BTreeMap::new(),
            primary: None,
            own,
            idle: BTreeSet::new(),
            lineage: Lineage::default(),
            reminded: BTreeMap::new(),
        }
    }

    /// What agents and relays below are sent.
    #[must_use]
    pub fn holding(&self) -> &Holding {
        self.fleet.source()
    }

    /// Everything that is held is complete up to here.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.fleet.revision()
    }

    /// Frames that were made here, and not passed on as they came.
    #[must_use]
    pub fn encoded(&self) -> u64 {
        self.fleet.encoded()
    }

    /// Begins a stream from a server: answers with what to say on it first.
    #[must_use]
    pub fn begin(&mut self, line: LineId) -> Vec<AgentSays> {
        let beside = !self.lines.is_empty();
        let (intake, says) = Intake::begin(self.fleet.source_mut(), beside);
        self.lines.insert(line, Line { intake, lineage: None, reminded: BTreeSet::new() });
        says.in_parts()
    }

    /// A stream from a server is over.
    pub fn end(&mut self, line: LineId) {
        self.lines.remove(&line);
        if self.primary == Some(line) {
            self.primary = None;
        }
    }

    /// A stream from a server is told of the nodes from now on, beginning with all of them.
    pub fn promote(&mut self, line: LineId) {
        self.primary = Some(line);
        self.roll.tell_anew();
    }

    /// Servers have not what was heard: all of it is forgotten. Every stream has to end, on either side.
    pub fn begin_anew(&mut self) {
        self.lines.clear();
        self.primary = None;
        self.reminded.clear();
        self.fleet.begin_anew();
        self.lineage = Lineage::default();
    }

    /// Hears what a server says.
    ///
    /// # Errors
    /// [`ReplicaError`]; the stream has to end then, and what is held is as it was.
    pub fn hear(&mut self, line: LineId, says: &ServerSays, frame: &Bytes, now_ms: u64) -> Result<Heard, ReplicaError> {
        let Some(Line { intake, lineage, reminded }) = self.lines.get_mut(&line) else {
            return Err(ReplicaError::BegunAnew);
        };
        let mut heard = Heard { handed_over: intake.hear_frame(self.fleet.source(), says, frame)?, ..Heard::default() };
        if heard.handed_over {
            let Published { woken, .. } = self.fleet.hear(intake, now_ms);
            heard.woken = woken;
            if let Some(lineage) = lineage.take() {
                heard.other_epoch = lineage.current() != self.lineage.current();
                self.lineage = lineage;
            }
        }
        match says {
            ServerSays::Welcome(welcome) => *lineage = Some(lineage_of(welcome)),
            ServerSays::Remind(remind) => reminded.extend(&remind.nodes),
            ServerSays::Superseded(superseded) if self.primary == Some(line) => {
                let is_meant = |gone: &&Gone| self.roll.name(gone.node).is_some_and(|name| name.as_str() == gone.name);
                heard.superseded.extend(superseded.nodes.iter().filter(is_meant).map(|gone| gone.node));
            }
            ServerSays::Through(through) => {
                let at = Revision(through.revision);
                self.reminded.extend(std::mem::take(reminded).into_iter().map(|node| (node, at)));
                if self.primary == Some(line) {
                    self.roll.server_is_further();
                }
            }
            ServerSays::Superseded(_)
            | ServerSays::Update(_)
            | ServerSays::Whole(_)
            | ServerSays::Unsubscribed(_)
            | ServerSays::MoveTo(_)
            | ServerSays::Leaving(_)
            | ServerSays::Reach(_) => {}
        }
        let at = self.fleet.revision();
        self.reminded.retain(|node, until| {
            let is_due = *until <= at;
            heard.reminded.extend(is_due.then_some(*node));
            !is_due
        });
        Ok(heard)
    }

    /// Whether what is held is of the present epoch, as far as servers say. Between the word of another epoch and its content nobody
    /// who comes may be told anything: it could be of a past that the store no longer has.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let said = self.lines.values().filter_map(|line| line.lineage.as_ref());
        said.into_iter().all(|lineage| lineage.current() == self.lineage.current())
    }

    /// What there is to say to a server about what is wanted.
    #[must_use]
    pub fn requests(&mut self, line: LineId) -> Vec<AgentSays> {
        self.lines.get_mut(&line).map(|line| line.intake.requests()).unwrap_or_default()
    }

    /// What there is to tell the server of the nodes, on the line that is told: nothing of what this server has not said `Through`
    /// for, though another has.
    #[must_use]
    pub fn tell(&mut self, line: LineId, now_us: u64) -> Option<Relayed> {
        let said = self.lines.get(&line).filter(|_| self.primary == Some(line))?.intake.through();
        let relayed = self.roll.has_untold().then(|| self.roll.tell(said, now_us))?;
        (relayed != Relayed::default()).then_some(relayed)
    }

    /// Adds an agent's stream.
    pub fn attach(&mut self, node: NodeName) -> StreamId {
        let id = self.fleet.attach(node);
        self.fleet.tell_endings(id);
        id
    }

    /// Adds the stream of a relay below.
    pub fn attach_relay(&mut self) -> StreamId {
        let id = self.fleet.attach_relay();
        self.fleet.tell_endings(id);
        id
    }

    /// Forgets a stream.
    pub fn remove(&mut self, id: StreamId) {
        self.fleet.remove(id);
    }

    /// Subscribes a stream to subjects, each with what is there of it at the other end; answers with these, as far as they may
    /// be relied on. What is new here is wanted of servers from now on.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing is subscribed then.
    pub fn subscribe(
        &mut self,
        id: StreamId,
        mut resumes: Vec<(Subject, Revision)>,
        reached: Option<&Reached>,
    ) -> Result<Vec<(Subject, Revision)>, SubscribeError> {
        let at = self.fleet.revision();
        self.lineage.admit(&mut resumes, reached, at)?;
        self.make_room(&resumes)?;
        self.fleet.subscribe(id, &resumes)?;
        for (subject, _) in &resumes {
            self.idle.remove(subject);
            if self.fleet.hold(subject) {
                self.lines.values_mut().for_each(|line| line.intake.want(subject));
            }
        }
        Ok(resumes)
    }

    /// Ends subscriptions of a stream.
    pub fn unsubscribe(&mut self, id: StreamId, subjects: &[Subject]) {
        self.fleet.unsubscribe(id, subjects);
    }

    /// What a stream is subscribed to.
    #[must_use]
    pub fn subjects(&mut self, id: StreamId) -> BTreeSet<Subject> {
        self.fleet.subjects(id)
    }

    /// A `Through` is due on a stream.
    pub fn remind(&mut self, id: StreamId) {
        self.fleet.remind(id);
    }

    /// Takes what is sent next on a stream.
    pub fn take(&mut self, id: StreamId, now_ms: u64) -> Vec<Bytes> {
        self.fleet.take(id, now_ms)
    }

    /// Forgets what nobody has wanted since before the last sweep, unless a server would not say when it has heard of it. While no server
    /// is reached all is kept: it could not be had again.
    pub fn sweep(&mut self) {
        if self.lines.is_empty() || !self.may_forget() {
            return;
        }
        let unwanted = self.unwanted();
        for subject in std::mem::replace(&mut self.idle, unwanted) {
            if self.idle.remove(&subject) {
                self.forget(&subject);
            }
        }
    }

    /// Makes room for what is new of `resumes`, if there is none, by forgetting what nobody wants, servers or not.
    fn make_room(&mut self, resumes: &[(Subject, Revision)]) -> Result<(), SubscribeError> {
        let held = self.holding().subjects().len();
        if held + resumes.len() <= RELAY_HELD_MAX {
            return Ok(());
        }
        let new: BTreeSet<_> =
            resumes.iter().map(|(subject, _)| subject).filter(|it| !self.holding().wants(it)).collect();
        if held + new.len() <= RELAY_HELD_MAX {
            return Ok(());
        }
        let unwanted_max = held.saturating_sub(self.fleet.subjects_wanted());
        if unwanted_max < UNWANTED_MIN.max(held + new.len() - RELAY_HELD_MAX) || !self.may_forget() {
            return Err(SubscribeError::Crowded);
        }
        let coming: BTreeSet<_> = resumes.iter().map(|(subject, _)| subject).collect();
        for subject in self.unwanted() {
            if !coming.contains(&subject) {
                self.idle.remove(&subject);
                self.forget(&subject);
            }
        }
        let is_room = self.holding().subjects().len() + new.len() <= RELAY_HELD_MAX;
        if is_room { Ok(()) } else { Err(SubscribeError::Crowded) }
    }

    fn may_forget(&self) -> bool {
        self.lines.values().all(|line| line.intake.may_forget())
    }

    fn unwanted(&self) -> BTreeSet<Subject> {
        let is_unwanted = |subject: &&Subject| !self.own.contains(*subject) && !self.fleet.is_subscribed(subject);
        self.holding().subjects().filter(is_unwanted).cloned().collect()
    }

    fn forget(&mut self, subject: &Subject) {
        self.fleet.forget(subject);
        self.lines.values_mut().for_each(|line| line.intake.forget(subject));
    }
}

fn lineage_of(welcome: &Welcome) -> Lineage {
    let epochs = welcome.epochs.iter().map(|epoch| Epoch { id: epoch.id, after: Revision(epoch.after) });
    Lineage::new(epochs.collect())
}

impl Holding {
    /// How far was heard, and of which epoch; `None` before anything was.
    #[must_use]
    pub fn heard(&self) -> Option<Reached> {
        self.reached()
    }
}
