//! One stream as an agent hears it: what it says is staged until its `Through`, and then handed to the replica in one step.
//!
//! An agent may hear the same from several servers at once. What one of them says of a revision that the replica has is
//! passed over before it is decoded; what is new is applied whole, by whichever stream says its `Through` first. So the loss of
//! a stream costs nothing, and never is half of a revision in force.
//!
//! A stream speaks for a subject from the moment at which it has answered the subscription to it. Until then it may not
//! move the replica past what another stream has told of that subject; it keeps what it stages, and hands it over
//! later. Nor is what it says taken for the answer that was on its way when an earlier subscription to the same subject ended:
//! the server says how many endings it has heard of, in the order of its frames. See docs/adr/0016.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use starling_catalog::Subject;
use starling_model::Revision;

use crate::message::{
    AgentSays, MessageError, Reached, Resume, ServerSays, Subjects, Subscribe, Update, Welcome, Whole,
};
use crate::message::{LEVEL_OF_MOVES, decode_subject, encode_subject};
use crate::projection::ReadItem;
use crate::replica::{Content, ReplicaError};

/// For whom streams are heard: an agent's replica, or what a relay holds.
pub trait Hearer {
    /// One item that was new, changed or gone, as it is staged.
    type Item;
    /// The whole of a subject, as it is staged.
    type Whole;
    /// What comes of handing over.
    type HandedOver: Default;

    /// Whether a subject is held.
    fn wants(&self, subject: &Subject) -> bool;
    /// Whether a subject has been heard of.
    fn knows(&self, subject: &Subject) -> bool;
    /// Everything known is complete up to here.
    fn through(&self) -> Revision;
    /// Counts how often everything was begun anew.
    fn life(&self) -> u64;
    /// Whether there is something to tell though no server says anything new.
    fn is_to_be_told(&self, epoch: u64) -> bool;
    /// What is wanted, each with what is there of it, 0 for nothing.
    fn resumes(&self) -> Vec<(Subject, Revision)>;
    /// How far was heard.
    fn reached(&self) -> Option<Reached>;
    /// Nothing is complete, so that it does not matter up to where that was.
    fn has_nothing(&mut self);
    /// Reads an item of a frame.
    ///
    /// # Errors
    /// [`MessageError`] if it does not fit its subject.
    fn read_item(subject: &Subject, update: &Update, frame: &Bytes) -> Result<Self::Item, MessageError>;
    /// Reads the whole of a subject.
    ///
    /// # Errors
    /// [`MessageError`] if it does not fit its subject.
    fn read_whole(subject: &Subject, whole: &Whole, frame: &Bytes) -> Result<Self::Whole, MessageError>;
    /// Applies what one stream has staged, as one step.
    fn apply(
        &mut self,
        staged: Vec<Staged<Self::Item, Self::Whole>>,
        through: Revision,
        epoch: u64,
    ) -> Self::HandedOver;
}

/// What has been heard on one stream and is not in the replica yet.
#[derive(Debug, Clone)]
pub struct Intake<I = ReadItem, W = Content> {
    /// The epoch of the server at the other end.
    epoch: u64,
    /// The epoch that it has to be of, since another stream is open beside this one.
    beside: Option<u64>,
    /// The replica's life in which it began.
    life: u64,
    /// In the order in which it came.
    staged: Vec<Staged<I, W>>,
    /// What the server last said `Through` for.
    through: Revision,
    /// What the server has yet to answer as a whole, or has since the last handing over.
    awaited: BTreeMap<Subject, Awaited>,
    /// To be asked for, and no longer.
    subscribe: BTreeSet<Subject>,
    unsubscribe: BTreeSet<Subject>,
    /// How often the end of subscriptions was said, and of how many the server has heard.
    endings_said: u64,
    endings_heard: u64,
    /// Whether the server says of how many it has heard.
    tells_endings: bool,
}

/// A subscription that begins with the whole.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    /// The server must have heard of so many endings before what it says is of this subscription.
    after: u64,
    answered: bool,
}

/// Something that was said of a subject.
#[derive(Debug, Clone)]
pub struct Staged<I, W> {
    /// The subject.
    pub subject: Subject,
    /// When it changed, or when it was so.
    pub revision: Revision,
    /// What.
    pub what: What<I, W>,
}

/// What was said of a subject.
#[derive(Debug, Clone)]
pub enum What<I, W> {
    /// One item.
    Item(I),
    /// All of it.
    Whole(W),
}

/// What came of handing over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandedOver {
    /// The subjects that have changed since the last one.
    pub touched: BTreeSet<Subject>,
    /// The revisions at which the node's own records were written; 0 among them if there is no telling.
    pub node_written: BTreeSet<Revision>,
    /// Why items that came now cannot be read by this release.
    pub unreadable: Vec<String>,
}

impl<I, W> Intake<I, W> {
    /// Begins a stream: answers with what to say first, which is all that the replica wants, each with what is there of it.
    /// `beside` another stream it has to be of a server of the same store.
    #[must_use]
    pub fn begin<H: Hearer<Item = I, Whole = W>>(replica: &mut H, beside: bool) -> (Self, AgentSays) {
        let resumes = replica.resumes();
        if !beside && resumes.iter().all(|(_, have)| *have == Revision(0)) {
            replica.has_nothing();
        }
        let reached = replica.reached();
        let awaited = Awaited { after: 0, answered: false };
        let from_nothing = resumes.iter().filter(|(_, have)| *have == Revision(0));
        let intake = Self {
            epoch: 0,
            beside: reached.filter(|_| beside).map(|reached| reached.epoch),
            life: replica.life(),
            staged: Vec::new(),
            through: Revision(0),
            awaited: from_nothing.map(|(subject, _)| (subject.clone(), awaited)).collect(),
            subscribe: BTreeSet::new(),
            unsubscribe: BTreeSet::new(),
            endings_said: 0,
            endings_heard: 0,
            tells_endings: false,
        };
        let resumes = resumes.iter().filter_map(resume).collect();
        (intake, AgentSays::Subscribe(Subscribe { resumes, reached, more: false }))
    }

    /// What the server has said `Through` for on this stream: all that it may be told of.
    #[must_use]
    pub fn through(&self) -> Revision {
        self.through
    }

    /// The replica holds a new subject, of which nothing is there.
    pub fn want(&mut self, subject: &Subject) {
        // One that waits to be unsubscribed is told so first, in however many endings there will be by then.
        let after = self.endings_said + u64::from(!self.unsubscribe.is_empty());
        self.awaited.insert(subject.clone(), Awaited { after, answered: false });
        self.subscribe.insert(subject.clone());
    }

    /// Whether subjects may be forgotten: the server has to say when it has heard of it.
    #[must_use]
    pub fn may_forget(&self) -> bool {
        self.tells_endings
    }

    /// The replica has forgotten a subject.
    pub fn forget(&mut self, subject: &Subject) {
        self.awaited.remove(subject);
        self.staged.retain(|staged| staged.subject != *subject);
        if !self.subscribe.remove(subject) {
            self.unsubscribe.insert(subject.clone());
        }
    }

    /// What there is to say to the server about what is wanted, in parts.
    #[must_use]
    pub fn requests(&mut self) -> Vec<AgentSays> {
        let mut says = Vec::new();
        let leave = std::mem::take(&mut self.unsubscribe);
        if !leave.is_empty() {
            let subjects = leave.iter().filter_map(encode_subject).collect();
            says = AgentSays::Unsubscribe(Subjects { subjects }).in_parts();
            // Each part is one to the server.
            self.endings_said += says.len() as u64;
        }
        let join = std::mem::take(&mut self.subscribe);
        for subject in &join {
            if let Some(awaited) = self.awaited.get_mut(subject) {
                awaited.after = self.endings_said;
            }
        }
        if !join.is_empty() {
            let resumes = join.into_iter().filter_map(|subject| resume(&(subject, Revision(0)))).collect();
            says.extend(AgentSays::Subscribe(Subscribe { resumes, reached: None, more: false }).in_parts());
        }
        says
    }

    /// Hears what the server says; whether there is something to hand over now.
    ///
    /// # Errors
    /// [`ReplicaError`]; the stream has to end then, and the replica is as it was.
    pub fn hear<H: Hearer<Item = I, Whole = W>>(
        &mut self,
        replica: &H,
        says: &ServerSays,
    ) -> Result<bool, ReplicaError> {
        self.hear_frame(replica, says, &Bytes::new())
    }

    /// The same, with the bytes that came.
    ///
    /// # Errors
    /// As [`Intake::hear`].
    pub fn hear_frame<H: Hearer<Item = I, Whole = W>>(
        &mut self,
        replica: &H,
        says: &ServerSays,
        frame: &Bytes,
    ) -> Result<bool, ReplicaError> {
        if self.life != replica.life() {
            return Err(ReplicaError::BegunAnew);
        }
        match says {
            ServerSays::Welcome(Welcome { epoch, level, .. }) => {
                if let Some(heard) = self.beside.filter(|heard| heard != epoch) {
                    return Err(ReplicaError::Elsewhere { heard, epoch: *epoch });
                }
                (self.epoch, self.tells_endings) = (*epoch, *level >= LEVEL_OF_MOVES);
            }
            ServerSays::Update(update) => self.update(replica, update, frame)?,
            ServerSays::Whole(whole) => self.whole(replica, whole, frame)?,
            ServerSays::Unsubscribed(unsubscribed) => self.endings_heard = unsubscribed.count,
            ServerSays::Through(through) => return self.complete(replica, Revision(through.revision)),
            ServerSays::MoveTo(_)
            | ServerSays::Leaving(_)
            | ServerSays::Remind(_)
            | ServerSays::Superseded(_)
            | ServerSays::Reach(_) => {}
        }
        Ok(false)
    }

    /// Hands over what is staged, and the replica is where the stream is.
    pub fn hand_over<H: Hearer<Item = I, Whole = W>>(&mut self, replica: &mut H) -> H::HandedOver {
        if self.life != replica.life() || self.through < replica.through() {
            return H::HandedOver::default();
        }
        self.awaited.retain(|_, awaited| !awaited.answered);
        replica.apply(std::mem::take(&mut self.staged), self.through, self.epoch)
    }

    fn update<H: Hearer<Item = I, Whole = W>>(
        &mut self,
        replica: &H,
        update: &Update,
        frame: &Bytes,
    ) -> Result<(), ReplicaError> {
        let revision = Revision(update.revision);
        // The common case of a second stream.
        if self.awaited.is_empty() && revision <= replica.through() && revision > self.through {
            return Ok(());
        }
        let subject = decode_subject(update.subject.as_ref().ok_or(MessageError::Unknown)?)?;
        let item = H::read_item(&subject, update, frame)?;
        // Said before the server heard that it is no longer wanted.
        if !replica.wants(&subject) {
            return Ok(());
        }
        match self.awaited.get(&subject) {
            // A part would look like the whole, which is still to come.
            Some(awaited) if !awaited.answered => return Ok(()),
            Some(_) => {}
            None if revision <= self.through => {
                return Err(ReplicaError::Back { subject, have: self.through, sent: revision });
            }
            None if revision <= replica.through() => return Ok(()),
            None => {}
        }
        self.staged.push(Staged { subject, revision, what: What::Item(item) });
        Ok(())
    }

    fn whole<H: Hearer<Item = I, Whole = W>>(
        &mut self,
        replica: &H,
        whole: &Whole,
        frame: &Bytes,
    ) -> Result<(), ReplicaError> {
        let subject = decode_subject(whole.subject.as_ref().ok_or(MessageError::Unknown)?)?;
        let revision = Revision(whole.revision);
        let is_known = |intake: &Self| !intake.awaited.contains_key(&subject) && revision <= replica.through();
        let content = H::read_whole(&subject, whole, frame)?;
        if !replica.wants(&subject) || is_known(self) {
            return Ok(());
        }
        if let Some(awaited) = self.awaited.get_mut(&subject) {
            if self.tells_endings && self.endings_heard < awaited.after {
                return Ok(());
            }
            awaited.answered = true;
        }
        self.staged.push(Staged { subject, revision, what: What::Whole(content) });
        Ok(())
    }

    fn complete<H: Hearer>(&mut self, replica: &H, through: Revision) -> Result<bool, ReplicaError> {
        if through < self.through {
            return Err(ReplicaError::Back { subject: Subject::ServiceList, have: self.through, sent: through });
        }
        self.through = through;
        let is_missed = |(subject, awaited): (&Subject, &Awaited)| !awaited.answered && replica.knows(subject);
        if through < replica.through() || self.awaited.iter().any(is_missed) {
            // What another stream has told meanwhile need not be kept.
            let awaited = &self.awaited;
            self.staged.retain(|staged| staged.revision > replica.through() || awaited.contains_key(&staged.subject));
            return Ok(false);
        }
        let is_news = through > replica.through() || !self.staged.is_empty() || replica.is_to_be_told(self.epoch);
        Ok(is_news)
    }
}

fn resume((subject, have): &(Subject, Revision)) -> Option<Resume> {
    Some(Resume { subject: Some(encode_subject(subject)?), have: have.0 })
}
