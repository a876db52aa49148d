//! The server's side of every stream: who is subscribed to what, what each has been sent, and what it is sent next.
//!
//! Publishing notes names; taking turns names into frames. So a stream that is slow, or not read at all, costs one name per
//! subject, and is sent the newest of each item when it has room. Cost model: publishing costs one projection and one
//! encoding per item changed, and a push onto a short list per stream concerned; taking costs a copied reference per frame.
//! Frames are remembered within limits for each subject (`window`) and for all of them (here).

mod held;
mod source;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use starling_catalog::{Snapshot, Subject};
use starling_model::{Change, NodeName, Revision};

use crate::message::{FromServer, SUBJECTS_MAX, ServerSays, Update, encode_subject, through, unsubscribed};
use crate::projection::{ItemChange, Urgency, difference, encode_item};
use crate::relay::RELAY_HELD_MAX;
use crate::relayed::RELAY_SUBJECTS_MAX;
use crate::window::{Frame, Window};
use stream::{Endings, Stream, Whose};

pub use source::Source;

/// Bytes that a stream takes at once, rounded up to whole subjects; the rest stays pending, where it coalesces.
pub const TAKE_BYTES_MAX: usize = 256 * 1024;

/// Subjects without subscribers that are remembered, so that agents that come back resume exactly.
const IDLE_TOPICS_MAX: usize = 65_536;

/// Milliseconds after which a frame is forgotten: whoever was away longer is sent the whole.
pub const FRAME_AGE_MS_MAX: u64 = 5 * 60 * 1000;

/// Frames remembered in all: a minute of a thousand a second. Whoever was away longer is sent the whole of what it wants, and
/// what it wants is small.
const FRAMES_MAX: usize = 65_536;

/// Bytes of frames remembered in all; with as many frames of common size, both limits are met at once.
const FRAMES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Streams that a change concerns up to which everyone is to report at once.
const REPORT_AT_ONCE_MAX: usize = 256;

/// Beyond that, time set aside for each of them, telling it included; and at most in all. Answers that came while others
/// are still to be told would double the time until the last is.
const REPORT_US_EACH: usize = 60;
const REPORT_MS_MAX: u64 = 3_000;

/// Names a stream, and no other that comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    place: u32,
    /// Counts the streams that have had the place.
    turn: u32,
}

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
    /// The agent has heard of another past than this server's: the store was set back and has been written since.
    #[error("the agent has heard up to revision {heard} of another past; begin anew with nothing")]
    OtherPast {
        /// How far it has heard.
        heard: Revision,
    },
    /// Over [`SUBJECTS_MAX`], or over [`RELAY_SUBJECTS_MAX`] on a relay's.
    #[error("more than {SUBJECTS_MAX} subjects on one stream, or {RELAY_SUBJECTS_MAX} on a relay's")]
    TooMany,
    /// This relay holds [`RELAY_HELD_MAX`].
    #[error("this relay holds {RELAY_HELD_MAX} subjects, and no more may be; attach to another")]
    Crowded,
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

/// Every stream of one server, or of one relay.
#[derive(Debug)]
pub struct Fleet<S = Snapshot> {
    source: S,
    topics: BTreeMap<Subject, TopicId>,
    by_id: Vec<Topic>,
    free_topics: Vec<TopicId>,
    /// Topics without subscribers.
    idle: usize,
    /// The frames in the windows of all topics, oldest first; some of them are forgotten already.
    remembered: VecDeque<Remembered>,
    remembered_bytes: usize,
    places: Vec<Place>,
    free_places: Vec<u32>,
    encoded: u64,
    /// The last `Through`, with the time that it gives, shared by every stream that reaches it.
    through: Option<((Revision, u64), Bytes)>,
    /// When the last of those who have been told something lately are to have reported, by the clock of the frames.
    reported_at_ms: u64,
    /// When was published last.
    now_ms: u64,
}

type TopicId = u32;

#[derive(Debug)]
struct Topic {
    subject: Subject,
    window: Window,
    /// In order.
    subscribers: Vec<StreamId>,
    /// The whole of it, encoded, until it changes.
    whole: Option<Bytes>,
}

#[derive(Debug)]
struct Remembered {
    topic: TopicId,
    revision: Revision,
    at_ms: u64,
}

/// Where a stream is kept.
#[derive(Debug, Default)]
struct Place {
    turn: u32,
    stream: Option<Stream>,
}

impl<S: Source> Fleet<S> {
    /// No streams yet, and nothing known of the time before `source`.
    #[must_use]
    pub fn new(source: S) -> Self {
        Self {
            source,
            topics: BTreeMap::new(),
            by_id: Vec::new(),
            free_topics: Vec::new(),
            idle: 0,
            remembered: VecDeque::new(),
            remembered_bytes: 0,
            places: Vec::new(),
            free_places: Vec::new(),
            encoded: 0,
            through: None,
            reported_at_ms: 0,
            now_ms: 0,
        }
    }

    /// Where the server is.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.source.revision()
    }

    /// Where the content comes from.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Frames encoded since the start, wholes included.
    #[must_use]
    pub fn encoded(&self) -> u64 {
        self.encoded
    }

    /// Adds a stream that has no subscriptions.
    pub fn attach(&mut self, node: NodeName) -> StreamId {
        self.place_stream(Stream::new(Whose::Node(node)))
    }

    /// Adds a relay's stream that has no subscriptions.
    pub fn attach_relay(&mut self) -> StreamId {
        self.place_stream(Stream::new(Whose::Relay))
    }

    /// Adds a node behind a relay: nothing is ever pending for it, but what happens concerns it.
    pub fn attach_behind(&mut self, node: NodeName) -> StreamId {
        self.place_stream(Stream { away: true, ..Stream::new(Whose::Node(node)) })
    }

    fn place_stream(&mut self, stream: Stream) -> StreamId {
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).expect("invariant: fewer streams than file descriptors")
        });
        let kept = &mut self.places[place as usize];
        kept.stream = Some(stream);
        StreamId { place, turn: kept.turn }
    }

    /// The stream's agent wants to know of how many ended subscriptions was heard before what it is sent.
    pub fn tell_endings(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.endings = Some(Endings::default());
        }
    }

    /// A `Through` is due on a stream, also where nothing else is: whoever waits for its agent to report needs one.
    pub fn remind(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id).filter(|stream| !stream.away) {
            stream.due = true;
        }
    }

    /// What a stream is subscribed to.
    #[must_use]
    pub fn subjects(&mut self, id: StreamId) -> BTreeSet<Subject> {
        let subscriptions = self.stream(id).map(|stream| stream.subscriptions.as_slice()).unwrap_or_default();
        let topics: Vec<_> = subscriptions.iter().map(|subscription| subscription.topic as usize).collect();
        topics.into_iter().map(|topic| self.by_id[topic].subject.clone()).collect()
    }

    /// The stream's connection is gone: nothing is pending for it any more, but what happens still concerns it until it
    /// is removed.
    pub fn leave(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.away = true;
            stream.due = false;
            stream.pending = VecDeque::new();
            stream.unknown = Vec::new();
        }
    }

    /// Forgets a stream.
    pub fn remove(&mut self, id: StreamId) {
        let Some(stream) = self.place(id).and_then(|place| place.stream.take()) else { return };
        for subscription in &stream.subscriptions {
            self.leave_topic(subscription.topic, id);
        }
        let turn = &mut self.places[id.place as usize].turn;
        *turn = turn.wrapping_add(1);
        self.free_places.push(id.place);
        self.forget_idle();
    }

    /// Subscribes a stream to subjects, each with what its agent has of it (0 for nothing), which may be more than is known
    /// here yet. What is missing, and then a `Through`, is there to be taken at once.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing is subscribed then.
    pub fn subscribe(&mut self, id: StreamId, resumes: &[(Subject, Revision)]) -> Result<(), SubscribeError> {
        let Some(stream) = self.stream(id) else { return Ok(()) };
        let subjects_max = match stream.whose {
            Whose::Node(_) => SUBJECTS_MAX,
            Whose::Relay => RELAY_SUBJECTS_MAX,
        };
        if stream.subscriptions.len() + resumes.len() > subjects_max {
            return Err(SubscribeError::TooMany);
        }
        for (subject, _) in resumes {
            if encode_subject(subject).is_none() {
                return Err(SubscribeError::NotSent(subject.clone()));
            }
            if matches!((subject, &stream.whose), (Subject::Node(node), Whose::Node(own)) if node != own) {
                return Err(SubscribeError::Foreign(subject.clone()));
            }
        }
        let wanted: BTreeMap<_, _> = resumes.iter().map(|(subject, have)| (self.topic(subject), *have)).collect();
        for topic in wanted.keys() {
            self.join_topic(*topic, id);
        }
        if let Some(stream) = self.stream(id) {
            stream.subscribe(wanted);
        }
        Ok(())
    }

    /// Ends subscriptions; subjects that were not subscribed to are passed over.
    pub fn unsubscribe(&mut self, id: StreamId, subjects: &[Subject]) {
        let topics: BTreeSet<_> = subjects.iter().filter_map(|subject| self.topics.get(subject).copied()).collect();
        let Some(stream) = self.stream(id) else { return };
        stream.unsubscribe(&topics);
        for topic in topics {
            self.leave_topic(topic, id);
        }
        self.forget_idle();
    }

    /// Tells of frames, each of which has come true, in the order of their revisions for each topic.
    fn tell(&mut self, frames: Vec<(TopicId, Frame)>, now_ms: u64) -> Published {
        // Whether something that a topic shows was taken away.
        let mut touched: BTreeMap<TopicId, bool> = BTreeMap::new();
        for (topic, frame) in frames {
            *touched.entry(topic).or_default() |= frame.urgency == Urgency::Restricts;
            self.remember(topic, frame, now_ms);
        }
        self.forget_oldest(now_ms);
        let mut published = Published::default();
        let mut told = 0;
        for (topic, restricts) in &touched {
            for id in &self.by_id[*topic as usize].subscribers {
                let Some(stream) = self.places[id.place as usize].stream.as_mut() else { continue };
                published.concerned.push(*id);
                if stream.away {
                    continue;
                }
                told += 1;
                if !stream.has_pending() {
                    published.woken.push(*id);
                }
                stream.note(*topic, *restricts);
            }
        }
        if touched.len() > 1 {
            published.concerned.sort_unstable();
            published.concerned.dedup();
        }
        self.now_ms = now_ms;
        self.hold_reports(told.min(published.concerned.len()), now_ms);
        published
    }

    /// So many streams are told something now.
    fn hold_reports(&mut self, told: usize, now_ms: u64) {
        if told > REPORT_AT_ONCE_MAX {
            let within = told.saturating_mul(REPORT_US_EACH) / 1000;
            let within = u64::try_from(within).unwrap_or(u64::MAX).min(REPORT_MS_MAX);
            self.reported_at_ms = self.reported_at_ms.max(now_ms.saturating_add(within));
        }
    }

    fn through(&mut self, at: Revision, now_ms: u64) -> Bytes {
        let held = now_ms < self.reported_at_ms;
        let within = if held { self.reported_at_ms.saturating_sub(self.now_ms) } else { 0 };
        if let Some((_, bytes)) = self.through.as_ref().filter(|(which, _)| *which == (at, within)) {
            return bytes.clone();
        }
        let bytes = through(at, u32::try_from(within).unwrap_or(u32::MAX));
        self.through = Some(((at, within), bytes.clone()));
        bytes
    }

    /// Whether a stream has something to take.
    #[must_use]
    pub fn has_pending(&self, id: StreamId) -> bool {
        let place = self.places.get(id.place as usize).filter(|place| place.turn == id.turn);
        place.and_then(|place| place.stream.as_ref()).is_some_and(Stream::has_pending)
    }

    /// Takes what is sent next on a stream: removals and denials first, at last a `Through`, unless there is more than
    /// may be taken at once. `now_ms` is by the clock of [`Fleet::publish`].
    pub fn take(&mut self, id: StreamId, now_ms: u64) -> Vec<Bytes> {
        let at = self.revision();
        let Some(mut stream) = self.place(id).and_then(|place| place.stream.take()) else { return Vec::new() };
        let mut frames = Vec::new();
        let mut bytes = 0;
        while bytes < TAKE_BYTES_MAX {
            let Some(topic) = stream.pending.pop_front() else { break };
            if !self.source.knows(&self.by_id[topic as usize].subject) {
                if !stream.unknown.contains(&topic) {
                    stream.unknown.push(topic);
                }
                continue;
            }
            let Some(subscription) = stream.subscription(topic) else { continue };
            let sent = subscription.sent;
            subscription.sent = sent.max(at);
            let from = frames.len();
            self.collect(topic, sent, &mut frames);
            bytes += frames[from..].iter().map(|frame: &Taken| frame.bytes.len()).sum::<usize>();
        }
        if frames.len() > 1 {
            frames.sort_by_key(|frame| (frame.urgency, frame.revision));
        }
        let mut taken = Vec::with_capacity(frames.len() + 1);
        if let Some(endings) = stream.endings.as_mut().filter(|endings| endings.told < endings.heard)
            && !frames.is_empty()
        {
            endings.told = endings.heard;
            taken.push(unsubscribed(endings.heard));
        }
        taken.extend(frames.into_iter().map(|frame| frame.bytes));
        if stream.is_through_due() {
            stream.due = false;
            taken.push(self.through(at, now_ms));
        }
        self.places[id.place as usize].stream = Some(stream);
        taken
    }

    fn collect(&mut self, topic: TopicId, sent: Revision, frames: &mut Vec<Taken>) {
        let at = self.revision();
        let entry = &mut self.by_id[topic as usize];
        // What it has nothing of it must be told of, also if that is nothing.
        let newer = if sent == Revision(0) { None } else { entry.window.since(sent) };
        if let Some(newer) = newer {
            frames.extend(newer.into_iter().map(|frame| Taken {
                urgency: frame.urgency,
                revision: frame.revision,
                bytes: frame.bytes.clone(),
            }));
            return;
        }
        let bytes = match &entry.whole {
            Some(bytes) => bytes.clone(),
            None => {
                let bytes = self.source.whole(&entry.subject);
                self.encoded += 1;
                entry.whole = Some(bytes.clone());
                bytes
            }
        };
        // Wholes hold removals, too.
        frames.push(Taken { urgency: Urgency::Restricts, revision: at, bytes });
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.place(id)?.stream.as_mut()
    }

    fn place(&mut self, id: StreamId) -> Option<&mut Place> {
        self.places.get_mut(id.place as usize).filter(|place| place.turn == id.turn)
    }

    fn topic(&mut self, subject: &Subject) -> TopicId {
        if let Some(id) = self.topics.get(subject) {
            return *id;
        }
        let window = Window::new(self.revision());
        let topic = Topic { subject: subject.clone(), window, subscribers: Vec::new(), whole: None };
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
        self.idle += 1;
        id
    }

    fn join_topic(&mut self, topic: TopicId, id: StreamId) {
        let subscribers = &mut self.by_id[topic as usize].subscribers;
        self.idle -= usize::from(subscribers.is_empty());
        if let Err(at) = subscribers.binary_search(&id) {
            subscribers.insert(at, id);
        }
    }

    fn leave_topic(&mut self, topic: TopicId, id: StreamId) {
        let subscribers = &mut self.by_id[topic as usize].subscribers;
        if let Ok(at) = subscribers.binary_search(&id) {
            subscribers.remove(at);
            self.idle += usize::from(subscribers.is_empty());
        }
    }

    fn remember(&mut self, topic: TopicId, frame: Frame, at_ms: u64) {
        let entry = &mut self.by_id[topic as usize];
        // It shows what was before.
        entry.whole = None;
        self.remembered.push_back(Remembered { topic, revision: frame.revision, at_ms });
        self.remembered_bytes -= entry.window.bytes();
        entry.window.push(frame);
        self.remembered_bytes += entry.window.bytes();
    }

    /// Forgets the frames that are over the limits of all windows together.
    fn forget_oldest(&mut self, now_ms: u64) {
        while let Some(oldest) = self.remembered.front() {
            let old = now_ms.saturating_sub(oldest.at_ms) > FRAME_AGE_MS_MAX;
            if !old && self.remembered.len() <= FRAMES_MAX && self.remembered_bytes <= FRAMES_BYTES_MAX {
                return;
            }
            let window = &mut self.by_id[oldest.topic as usize].window;
            self.remembered_bytes -= window.bytes();
            // If another subject has the topic's number by now, its frames are later.
            window.forget_through(oldest.revision);
            self.remembered_bytes += window.bytes();
            self.remembered.pop_front();
        }
    }

    /// Subjects that nobody is subscribed to are remembered for those who come back, but not without limit: past it all
    /// of them go, so that the pass over all topics is rare.
    fn forget_idle(&mut self) {
        if self.idle <= IDLE_TOPICS_MAX {
            return;
        }
        let nothing_before = self.revision();
        self.topics.retain(|_, id| {
            let topic = &mut self.by_id[*id as usize];
            if !topic.subscribers.is_empty() {
                return true;
            }
            self.remembered_bytes -= topic.window.bytes();
            topic.window = Window::new(nothing_before);
            topic.whole = None;
            self.free_topics.push(*id);
            false
        });
        self.idle = 0;
    }
}

impl Fleet<Snapshot> {
    /// The catalog is at `after` by `changes`. `now_ms` are milliseconds since any moment that stays the same.
    pub fn publish(&mut self, after: &Snapshot, changes: &[Change], now_ms: u64) -> Published {
        let before = std::mem::replace(&mut self.source, after.clone());
        let mut frames = Vec::new();
        for change in difference(&before, after, changes) {
            let Some(topic) = self.topics.get(&change.subject).copied() else { continue };
            self.encoded += 1;
            frames.push((topic, encode(&change, after.revision())));
        }
        self.tell(frames, now_ms)
    }
}

fn encode(change: &ItemChange, revision: Revision) -> Frame {
    let item = encode_item(&change.key, change.item.as_ref());
    let key = item.key.clone();
    let update = Update { subject: encode_subject(&change.subject), revision: revision.0, item: Some(item) };
    let bytes = FromServer::from(ServerSays::Update(update)).to_bytes();
    Frame { revision, key, urgency: change.urgency(), bytes }
}

/// A frame on its way to a stream.
struct Taken {
    urgency: Urgency,
    revision: Revision,
    bytes: Bytes,
}
