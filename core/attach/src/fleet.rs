//! The server's side of every stream: who is subscribed to what, what each has been sent, and what it is sent next.
//!
//! Publishing notes names; taking turns names into frames. So a stream that is slow, or not read at all, costs one name per
//! subject, and is sent the newest of each item when it has room. Cost model: publishing costs one projection and one
//! encoding per item changed, and a push onto a short list per stream concerned; taking costs a copied reference per frame.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use starling_catalog::{Snapshot, Subject};
use starling_model::{Change, NodeName, Revision};

use crate::message::{FromServer, SUBJECTS_MAX, ServerSays, Update, Whole, encode_subject, through};
use crate::projection::{ItemChange, Urgency, content, difference, encode_item};
use crate::window::{Frame, Window};

/// Bytes that a stream takes at once, rounded up to whole subjects; the rest stays pending, where it coalesces.
pub const TAKE_BYTES_MAX: usize = 256 * 1024;

/// Subjects without subscribers that are remembered, so that agents that come back resume exactly.
const IDLE_TOPICS_MAX: usize = 65_536;

/// Names a stream for as long as it is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Why a subscription is refused; nothing of the request was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// Subjects of this kind are not sent to agents.
    #[error("{0} is not sent to agents")]
    NotSent(Subject),
    /// The agent has what this server has not: another store's, or a store that was set back.
    #[error("{subject} is wanted from revision {have}, and this server is at {at}; begin anew with nothing")]
    Future {
        /// The subject.
        subject: Subject,
        /// What the agent says it has.
        have: Revision,
        /// Where the server is.
        at: Revision,
    },
    /// Over [`SUBJECTS_MAX`].
    #[error("more than {SUBJECTS_MAX} subjects on one stream")]
    TooMany,
    /// Another node's own things.
    #[error("{0} is not of the agent's node")]
    Foreign(Subject),
}

/// What publishing a commit concerned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Published {
    /// Streams that something is sent to, in order.
    pub concerned: Vec<StreamId>,
    /// Of these, the ones that had nothing to take before: those to wake.
    pub woken: Vec<StreamId>,
}

/// Every stream of one server.
#[derive(Debug)]
pub struct Fleet {
    snapshot: Snapshot,
    topics: BTreeMap<Subject, TopicId>,
    by_id: Vec<Topic>,
    free_topics: Vec<TopicId>,
    streams: Vec<Option<Stream>>,
    free_streams: Vec<StreamId>,
    encoded: u64,
    /// The last `Through`, shared by every stream that reaches it.
    through: (Revision, Bytes),
}

type TopicId = u32;

#[derive(Debug)]
struct Topic {
    subject: Subject,
    window: Window,
    subscribers: BTreeSet<StreamId>,
    /// The whole of it, encoded, at a revision.
    whole: Option<(Revision, Bytes)>,
    /// When it last changed, as far as known.
    changed: Revision,
}

#[derive(Debug)]
struct Stream {
    node: NodeName,
    /// What of each topic has been sent.
    sent: BTreeMap<TopicId, Revision>,
    /// Topics with something to send.
    pending: BTreeSet<TopicId>,
    /// Whether a `Through` is due.
    due: bool,
    /// Whether its connection is gone; it is remembered for receipts only.
    away: bool,
}

impl Fleet {
    /// No streams yet, and nothing known of the time before `snapshot`.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        let revision = snapshot.revision();
        Self {
            snapshot,
            topics: BTreeMap::new(),
            by_id: Vec::new(),
            free_topics: Vec::new(),
            streams: Vec::new(),
            free_streams: Vec::new(),
            encoded: 0,
            through: (revision, through(revision)),
        }
    }

    /// Where the server is.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.snapshot.revision()
    }

    /// Frames encoded since the start, wholes included.
    #[must_use]
    pub fn encoded(&self) -> u64 {
        self.encoded
    }

    /// Adds a stream that has no subscriptions.
    pub fn attach(&mut self, node: NodeName) -> StreamId {
        let stream = Stream { node, sent: BTreeMap::new(), pending: BTreeSet::new(), due: false, away: false };
        if let Some(id) = self.free_streams.pop() {
            self.streams[id.0 as usize] = Some(stream);
            return id;
        }
        self.streams.push(Some(stream));
        StreamId(u32::try_from(self.streams.len() - 1).expect("invariant: fewer streams than file descriptors"))
    }

    /// The stream's connection is gone: nothing is pending for it any more, but what happens still concerns it until it
    /// is removed.
    pub fn leave(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.away = true;
            stream.pending.clear();
            stream.due = false;
        }
    }

    /// Forgets a stream.
    pub fn remove(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id.0 as usize).and_then(Option::take) else { return };
        for topic in stream.sent.into_keys() {
            self.by_id[topic as usize].subscribers.remove(&id);
        }
        self.free_streams.push(id);
        self.forget_idle();
    }

    /// Subscribes a stream to subjects, each with what its agent has of it (0 for nothing). What is missing, and then a
    /// `Through`, is there to be taken at once.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing is subscribed then.
    pub fn subscribe(&mut self, id: StreamId, resumes: &[(Subject, Revision)]) -> Result<(), SubscribeError> {
        let at = self.revision();
        let Some(stream) = self.streams.get(id.0 as usize).and_then(Option::as_ref) else { return Ok(()) };
        if stream.sent.len() + resumes.len() > SUBJECTS_MAX {
            return Err(SubscribeError::TooMany);
        }
        for (subject, have) in resumes {
            if encode_subject(subject).is_none() {
                return Err(SubscribeError::NotSent(subject.clone()));
            }
            if matches!(subject, Subject::Node(node) if *node != stream.node) {
                return Err(SubscribeError::Foreign(subject.clone()));
            }
            if *have > at {
                return Err(SubscribeError::Future { subject: subject.clone(), have: *have, at });
            }
        }
        for (subject, have) in resumes {
            let topic = self.topic(subject);
            self.by_id[topic as usize].subscribers.insert(id);
            if let Some(stream) = self.stream(id) {
                stream.sent.insert(topic, *have);
                stream.pending.insert(topic);
                stream.due = true;
            }
        }
        Ok(())
    }

    /// Ends subscriptions; subjects that were not subscribed to are passed over.
    pub fn unsubscribe(&mut self, id: StreamId, subjects: &[Subject]) {
        for subject in subjects {
            let Some(topic) = self.topics.get(subject).copied() else { continue };
            self.by_id[topic as usize].subscribers.remove(&id);
            if let Some(stream) = self.stream(id) {
                stream.sent.remove(&topic);
                stream.pending.remove(&topic);
            }
        }
        self.forget_idle();
    }

    /// The catalog is at `after` by `changes`.
    pub fn publish(&mut self, after: &Snapshot, changes: &[Change], now_ms: u64) -> Published {
        let before = std::mem::replace(&mut self.snapshot, after.clone());
        let mut published = Published::default();
        let mut touched = BTreeSet::new();
        for change in difference(&before, after, changes) {
            let Some(topic) = self.topics.get(&change.subject).copied() else { continue };
            let frame = self.encode(&change, after.revision(), now_ms);
            let topic_entry = &mut self.by_id[topic as usize];
            topic_entry.window.push(frame);
            topic_entry.changed = after.revision();
            touched.insert(topic);
        }
        for topic in touched {
            for id in &self.by_id[topic as usize].subscribers {
                let Some(stream) = self.streams.get_mut(id.0 as usize).and_then(Option::as_mut) else { continue };
                published.concerned.push(*id);
                if stream.away {
                    continue;
                }
                if stream.pending.is_empty() && !stream.due {
                    published.woken.push(*id);
                }
                stream.pending.insert(topic);
                stream.due = true;
            }
        }
        published.concerned.sort_unstable();
        published.concerned.dedup();
        published
    }

    /// Whether a stream has something to take.
    #[must_use]
    pub fn has_pending(&self, id: StreamId) -> bool {
        self.streams.get(id.0 as usize).and_then(Option::as_ref).is_some_and(|s| s.due || !s.pending.is_empty())
    }

    /// Takes what is sent next on a stream: removals and denials first, at last a `Through`, unless there is more than
    /// may be taken at once.
    pub fn take(&mut self, id: StreamId) -> Vec<Bytes> {
        let at = self.revision();
        let Some(mut stream) = self.streams.get_mut(id.0 as usize).and_then(Option::take) else { return Vec::new() };
        let mut frames: Vec<(Urgency, Revision, Bytes)> = Vec::new();
        let mut bytes = 0;
        while bytes < TAKE_BYTES_MAX {
            let Some(topic) = stream.pending.pop_first() else { break };
            let sent = stream.sent.insert(topic, at).unwrap_or_default();
            let from = frames.len();
            self.collect(topic, sent, &mut frames);
            bytes += frames[from..].iter().map(|(_, _, frame)| frame.len()).sum::<usize>();
        }
        frames.sort_by_key(|(urgency, revision, _)| (*urgency, *revision));
        let mut frames: Vec<_> = frames.into_iter().map(|(_, _, frame)| frame).collect();
        if stream.pending.is_empty() && std::mem::take(&mut stream.due) {
            if self.through.0 != at {
                self.through = (at, through(at));
            }
            frames.push(self.through.1.clone());
        }
        self.streams[id.0 as usize] = Some(stream);
        frames
    }

    fn collect(&mut self, topic: TopicId, sent: Revision, frames: &mut Vec<(Urgency, Revision, Bytes)>) {
        let at = self.revision();
        let entry = &mut self.by_id[topic as usize];
        // What it has nothing of it must be told of, also if that is nothing.
        let newer = if sent == Revision(0) { None } else { entry.window.since(sent) };
        if let Some(newer) = newer {
            frames.extend(newer.into_iter().map(|frame| (frame.urgency, frame.revision, frame.bytes.clone())));
            return;
        }
        // Wholes hold removals, too.
        let urgency = Urgency::Restricts;
        match &entry.whole {
            Some((revision, bytes)) if *revision >= entry.changed => frames.push((urgency, at, bytes.clone())),
            _ => {
                let items = content(&self.snapshot, &entry.subject);
                let items = items.iter().map(|(key, item)| encode_item(key, Some(item))).collect();
                let whole = Whole { subject: encode_subject(&entry.subject), revision: at.0, items };
                let bytes = FromServer::from(ServerSays::Whole(whole)).to_bytes();
                self.encoded += 1;
                entry.whole = Some((at, bytes.clone()));
                frames.push((urgency, at, bytes));
            }
        }
    }

    fn encode(&mut self, change: &ItemChange, revision: Revision, at_ms: u64) -> Frame {
        self.encoded += 1;
        let update = Update {
            subject: encode_subject(&change.subject),
            revision: revision.0,
            item: Some(encode_item(&change.key, change.item.as_ref())),
        };
        let bytes = FromServer::from(ServerSays::Update(update)).to_bytes();
        Frame { revision, key: change.key.clone(), urgency: change.urgency(), bytes, at_ms }
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(id.0 as usize)?.as_mut()
    }

    fn topic(&mut self, subject: &Subject) -> TopicId {
        if let Some(id) = self.topics.get(subject) {
            return *id;
        }
        let at = self.revision();
        let topic = Topic {
            subject: subject.clone(),
            window: Window::new(at),
            subscribers: BTreeSet::new(),
            whole: None,
            changed: at,
        };
        let id = match self.free_topics.pop() {
            Some(id) => {
                self.by_id[id as usize] = topic;
                id
            }
            None => {
                self.by_id.push(topic);
                u32::try_from(self.by_id.len() - 1).expect("invariant: fewer subjects than 4 billion")
            }
        };
        self.topics.insert(subject.clone(), id);
        id
    }

    /// Subjects that nobody is subscribed to are remembered for those who come back, but not without limit.
    fn forget_idle(&mut self) {
        if self.topics.len() <= IDLE_TOPICS_MAX {
            return;
        }
        let idle = |id: &TopicId| self.by_id[*id as usize].subscribers.is_empty();
        let gone: Vec<_> = self.topics.iter().filter(|(_, id)| idle(id)).map(|(s, id)| (s.clone(), *id)).collect();
        // As many go as to make the next pass worth its cost.
        for (subject, id) in gone {
            self.topics.remove(&subject);
            self.by_id[id as usize].window = Window::new(self.snapshot.revision());
            self.by_id[id as usize].whole = None;
            self.free_topics.push(id);
        }
    }
}
