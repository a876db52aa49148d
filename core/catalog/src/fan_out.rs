//! Who waits for which subject, and what each still has to look at.
//!
//! Every subscriber has one pending set: per subject the newest revision wins, so a slow one coalesces and never delays
//! another. Cost model: publishing an event costs O(log) per subscriber of that subject and nothing for the others.

use std::collections::{BTreeMap, BTreeSet};

use starling_model::Revision;

use crate::apply::Event;
use crate::subject::Subject;

/// Names a subscriber for as long as it is subscribed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub u64);

/// Subscribers by subject.
#[derive(Debug, Default)]
pub struct FanOut {
    next_id: u64,
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    by_subject: BTreeMap<Subject, BTreeSet<SubscriberId>>,
}

#[derive(Debug, Default)]
struct Subscriber {
    subjects: BTreeSet<Subject>,
    pending: BTreeMap<Subject, Revision>,
}

impl FanOut {
    /// Adds a subscriber.
    pub fn subscribe(&mut self, subjects: BTreeSet<Subject>) -> SubscriberId {
        let id = SubscriberId(self.next_id);
        self.next_id += 1;
        self.subscribers.insert(id, Subscriber::default());
        self.resubscribe(id, subjects);
        id
    }

    /// Replaces what a subscriber waits for; what is pending for subjects it keeps stays pending.
    pub fn resubscribe(&mut self, id: SubscriberId, subjects: BTreeSet<Subject>) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        for left in subscriber.subjects.difference(&subjects) {
            subscriber.pending.remove(left);
            leave(&mut self.by_subject, left, id);
        }
        for joined in subjects.difference(&subscriber.subjects) {
            self.by_subject.entry(joined.clone()).or_default().insert(id);
        }
        subscriber.subjects = subjects;
    }

    /// Removes a subscriber.
    pub fn unsubscribe(&mut self, id: SubscriberId) {
        let Some(subscriber) = self.subscribers.remove(&id) else { return };
        for subject in &subscriber.subjects {
            leave(&mut self.by_subject, subject, id);
        }
    }

    /// Records events as pending and returns the subscribers that had nothing pending before: those to wake.
    pub fn publish(&mut self, events: &[Event]) -> BTreeSet<SubscriberId> {
        let mut woken = BTreeSet::new();
        for event in events {
            for id in self.by_subject.get(&event.subject).into_iter().flatten() {
                let Some(subscriber) = self.subscribers.get_mut(id) else { continue };
                if subscriber.pending.is_empty() {
                    woken.insert(*id);
                }
                subscriber.pending.insert(event.subject.clone(), event.revision);
            }
        }
        woken
    }

    /// Takes what is pending for a subscriber.
    pub fn take(&mut self, id: SubscriberId) -> BTreeMap<Subject, Revision> {
        self.subscribers.get_mut(&id).map(|subscriber| std::mem::take(&mut subscriber.pending)).unwrap_or_default()
    }

    /// The subscribers of a subject.
    pub fn subscribers_of(&self, subject: &Subject) -> impl Iterator<Item = SubscriberId> {
        self.by_subject.get(subject).into_iter().flatten().copied()
    }

    /// Whether a subscriber waits for anything at all.
    #[must_use]
    pub fn waits(&self, id: SubscriberId) -> bool {
        self.subscribers.get(&id).is_some_and(|subscriber| !subscriber.subjects.is_empty())
    }
}

fn leave(by_subject: &mut BTreeMap<Subject, BTreeSet<SubscriberId>>, subject: &Subject, id: SubscriberId) {
    let Some(ids) = by_subject.get_mut(subject) else { return };
    ids.remove(&id);
    if ids.is_empty() {
        by_subject.remove(subject);
    }
}
