//! What a relay holds of what servers have said: the items of subjects in the form in which they travel.
//!
//! What a relay need not understand it passes on: an item's value is never read, but for how urgent it is. So what a later
//! release adds to it reaches those who understand it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use starling_catalog::Subject;
use starling_model::Revision;

use crate::fleet::Source;
use crate::intake::{Hearer, Intake, Staged, What};
use crate::message::{FromServer, MessageError, Reached, ServerSays, Update, Whole, WireItem, encode_subject};
use crate::projection::{ItemChange, Urgency, decode_item};
use crate::replica::not_whole;
use crate::window::Frame;

/// An intake of a relay.
pub type HoldingIntake = Intake<HeldItem, HeldWhole>;

/// An item that was new, changed or gone.
#[derive(Debug, Clone)]
pub struct HeldItem {
    item: WireItem,
    urgency: Urgency,
    /// The frame in which it came.
    frame: Bytes,
}

/// All items of a subject.
#[derive(Debug, Clone)]
pub struct HeldWhole {
    items: BTreeMap<String, Bytes>,
    /// The frame in which they came.
    frame: Bytes,
}

/// What is held.
#[derive(Debug, Default)]
pub struct Holding {
    topics: BTreeMap<Subject, Held>,
    through: Revision,
    reached: Reached,
    life: u64,
}

#[derive(Debug, Default)]
struct Held {
    /// Whether the whole of it was heard of.
    known: bool,
    items: BTreeMap<String, Bytes>,
    /// The frame of the whole, as long as it is what is there.
    whole: Option<Bytes>,
}

/// What has come by handing over.
#[derive(Debug, Default)]
pub struct News {
    /// Subjects that have become known, and as of when.
    pub(crate) learned: Vec<(Subject, Revision)>,
    /// What has changed of those that were known; of each subject by revision.
    pub(crate) frames: Vec<(Subject, Frame)>,
}

impl Holding {
    pub(crate) fn want(&mut self, subject: &Subject) -> bool {
        if self.topics.contains_key(subject) {
            return false;
        }
        self.topics.insert(subject.clone(), Held::default());
        true
    }

    pub(crate) fn forget(&mut self, subject: &Subject) {
        self.topics.remove(subject);
    }

    pub(crate) fn begin_anew(&mut self) {
        self.topics.values_mut().for_each(|held| *held = Held::default());
        self.through = Revision(0);
        self.reached = Reached::default();
        self.life += 1;
    }

    /// What is held.
    pub fn subjects(&self) -> impl ExactSizeIterator<Item = &Subject> {
        self.topics.keys()
    }

    /// The values of a subject's items, by key.
    pub fn items(&self, subject: &Subject) -> impl Iterator<Item = WireItem> {
        let items = self.topics.get(subject).into_iter().flat_map(|held| &held.items);
        items.map(|(key, value)| WireItem { key: key.clone(), value: Some(value.clone()) })
    }
}

impl Source for Holding {
    fn revision(&self) -> Revision {
        self.through
    }

    fn knows(&self, subject: &Subject) -> bool {
        self.topics.get(subject).is_some_and(|held| held.known)
    }

    fn whole(&self, subject: &Subject) -> Bytes {
        if let Some(whole) = self.topics.get(subject).and_then(|held| held.whole.as_ref()) {
            return whole.clone();
        }
        let items = self.items(subject).collect();
        let whole = Whole { subject: encode_subject(subject), revision: self.through.0, items };
        FromServer::from(ServerSays::Whole(whole)).to_bytes()
    }
}

impl Hearer for Holding {
    type Item = HeldItem;
    type Whole = HeldWhole;
    type HandedOver = News;

    fn wants(&self, subject: &Subject) -> bool {
        self.topics.contains_key(subject)
    }

    fn knows(&self, subject: &Subject) -> bool {
        Source::knows(self, subject)
    }

    fn through(&self) -> Revision {
        self.through
    }

    fn life(&self) -> u64 {
        self.life
    }

    fn is_to_be_told(&self, epoch: u64) -> bool {
        self.reached.epoch != epoch
    }

    fn resumes(&self) -> Vec<(Subject, Revision)> {
        let have = |held: &Held| if held.known { self.through } else { Revision(0) };
        self.topics.iter().map(|(subject, held)| (subject.clone(), have(held))).collect()
    }

    fn reached(&self) -> Option<Reached> {
        (self.reached.epoch != 0).then_some(self.reached)
    }

    fn has_nothing(&mut self) {
        self.through = Revision(0);
        self.reached = Reached::default();
    }

    fn read_item(subject: &Subject, update: &Update, frame: &Bytes) -> Result<HeldItem, MessageError> {
        let wire = update.item.as_ref().ok_or(MessageError::Unknown)?;
        let urgency = urgency(subject, wire);
        // Of its own, not a part of what was read with it.
        let value = wire.value.as_ref().map(|value| Bytes::copy_from_slice(value));
        let item = WireItem { key: wire.key.clone(), value };
        Ok(HeldItem { item, urgency, frame: Bytes::copy_from_slice(frame) })
    }

    fn read_whole(subject: &Subject, whole: &Whole, frame: &Bytes) -> Result<HeldWhole, MessageError> {
        let mut items = BTreeMap::new();
        for wire in &whole.items {
            let Some(value) = &wire.value else { return Err(not_whole(subject)) };
            items.insert(wire.key.clone(), Bytes::copy_from_slice(value));
        }
        Ok(HeldWhole { items, frame: Bytes::copy_from_slice(frame) })
    }

    fn apply(&mut self, mut staged: Vec<Staged<HeldItem, HeldWhole>>, through: Revision, epoch: u64) -> News {
        // What restricts comes first on the wire; a window holds what came by its revision.
        staged.sort_by_key(|staged| staged.revision);
        let mut news = News::default();
        let mut begun = BTreeSet::new();
        for Staged { subject, revision, what } in staged {
            let Some(held) = self.topics.get_mut(&subject) else { continue };
            let is_complete = held.known && !begun.contains(&subject);
            if is_complete && revision <= self.through {
                continue;
            }
            match what {
                What::Item(HeldItem { item, urgency, frame }) => {
                    held.whole = None;
                    let WireItem { key, value } = item;
                    match value {
                        Some(value) => held.items.insert(key.clone(), value),
                        None => held.items.remove(&key),
                    };
                    news.frames.push((subject, Frame { revision, key, urgency, bytes: frame }));
                }
                What::Whole(whole) if is_complete => {
                    let frames = difference(&subject, &held.items, &whole.items, revision);
                    news.frames.extend(frames.into_iter().map(|frame| (subject.clone(), frame)));
                    (held.items, held.whole) = (whole.items, Some(whole.frame));
                }
                What::Whole(whole) => {
                    (held.known, held.items, held.whole) = (true, whole.items, Some(whole.frame));
                    begun.insert(subject.clone());
                    news.learned.retain(|(other, _)| *other != subject);
                    news.frames.retain(|(other, _)| *other != subject);
                    news.learned.push((subject, revision));
                }
            }
        }
        self.through = through;
        self.reached = Reached { epoch, revision: self.reached.revision.max(through.0) };
        news
    }
}

/// How urgent a change is, as far as it can be read here.
fn urgency(subject: &Subject, wire: &WireItem) -> Urgency {
    match decode_item(subject, wire) {
        Ok((key, item)) => ItemChange { subject: subject.clone(), key, item }.urgency(),
        Err(_) if wire.value.is_none() || matches!(subject, Subject::Intentions(_)) => Urgency::Restricts,
        Err(_) => Urgency::Adjusts,
    }
}

/// What made `after` of `before`, as of `revision`: servers have forgotten by which frames it came to that.
fn difference(
    subject: &Subject,
    before: &BTreeMap<String, Bytes>,
    after: &BTreeMap<String, Bytes>,
    revision: Revision,
) -> Vec<Frame> {
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key, None));
    // Of a node nothing is shown but that something may have been written there.
    let is_news = |key: &String, value: &Bytes| matches!(subject, Subject::Node(_)) || before.get(key) != Some(value);
    let put = after.iter().filter(|(key, value)| is_news(key, value)).map(|(key, value)| (key, Some(value)));
    let frame = |(key, value): (&String, Option<&Bytes>)| {
        let item = WireItem { key: key.clone(), value: value.cloned() };
        let urgency = urgency(subject, &item);
        let update = Update { subject: encode_subject(subject), revision: revision.0, item: Some(item) };
        let bytes = FromServer::from(ServerSays::Update(update)).to_bytes();
        Frame { revision, key: key.clone(), urgency, bytes }
    };
    gone.chain(put).map(frame).collect()
}
