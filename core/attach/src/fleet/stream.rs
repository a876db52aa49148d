//! One stream: what it is subscribed to, and what is pending for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use starling_model::{NodeName, Revision};

use super::TopicId;

/// Whose a stream is.
#[derive(Debug)]
pub(super) enum Whose {
    /// A node's, which may hear of its own things and no other's.
    Node(NodeName),
    /// A relay's: it hears for the nodes behind it.
    Relay,
}

/// Subscriptions that are put in one by one; more are sorted in.
const INSERTED_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Stream {
    pub whose: Whose,
    /// In the order of topics.
    pub subscriptions: Vec<Subscription>,
    /// Topics with something to send, in the order in which they are sent. One that is there twice is sent once: the second
    /// time there is nothing more of it.
    pub pending: VecDeque<TopicId>,
    /// Topics of which there is no telling yet what is there. Until there is nothing is said to be complete.
    pub unknown: Vec<TopicId>,
    /// Whether a `Through` is due.
    pub due: bool,
    /// Whether nothing is sent on it: its connection is gone, or a relay stands in between. It is remembered for receipts only.
    pub away: bool,
    /// Of how many ends of subscriptions was heard, and said; `None` if the agent does not understand it.
    pub endings: Option<Endings>,
}

/// How often subscriptions were ended, and how many of these the agent was told of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Endings {
    pub heard: u64,
    pub told: u64,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub topic: TopicId,
    /// Up to where everything has been sent.
    pub sent: Revision,
}

impl Stream {
    pub(super) fn new(whose: Whose) -> Self {
        Self {
            whose,
            subscriptions: Vec::new(),
            pending: VecDeque::new(),
            unknown: Vec::new(),
            due: false,
            away: false,
            endings: None,
        }
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.is_through_due()
    }

    /// Whether everything there is to send has been, and it is to be said.
    pub(super) fn is_through_due(&self) -> bool {
        self.due && self.pending.is_empty() && self.unknown.is_empty()
    }

    pub(super) fn subscription(&mut self, topic: TopicId) -> Option<&mut Subscription> {
        let at = self.subscriptions.binary_search_by_key(&topic, |subscription| subscription.topic).ok()?;
        self.subscriptions.get_mut(at)
    }

    /// Adds subscriptions, each with what has been sent of it; of those that are there already only that is changed.
    pub(super) fn subscribe(&mut self, mut wanted: BTreeMap<TopicId, Revision>) {
        if !self.away {
            self.pending.extend(wanted.keys());
            self.due = true;
        }
        wanted.retain(|topic, have| match self.subscription(*topic) {
            Some(subscription) => {
                subscription.sent = *have;
                false
            }
            None => true,
        });
        if wanted.len() <= INSERTED_MAX {
            for (topic, sent) in wanted {
                let at = self.subscriptions.partition_point(|subscription| subscription.topic < topic);
                self.subscriptions.insert(at, Subscription { topic, sent });
            }
        } else {
            self.subscriptions.extend(wanted.into_iter().map(|(topic, sent)| Subscription { topic, sent }));
            self.subscriptions.sort_unstable_by_key(|subscription| subscription.topic);
        }
        self.bound_pending();
    }

    /// Ends subscriptions.
    pub(super) fn unsubscribe(&mut self, topics: &BTreeSet<TopicId>) {
        self.subscriptions.retain(|subscription| !topics.contains(&subscription.topic));
        self.pending.retain(|topic| !topics.contains(topic));
        self.unknown.retain(|topic| !topics.contains(topic));
        if let Some(endings) = &mut self.endings {
            endings.heard += 1;
        }
    }

    /// What is there of a topic has become known; whether the stream has waited for that.
    pub(super) fn is_known(&mut self, topic: TopicId) -> bool {
        let before = self.unknown.len();
        self.unknown.retain(|unknown| *unknown != topic);
        let waited = self.unknown.len() < before;
        if waited {
            self.pending.push_back(topic);
        }
        waited
    }

    /// There is something to send of a topic; what takes something away goes before what is pending already.
    pub(super) fn note(&mut self, topic: TopicId, restricts: bool) {
        if restricts {
            self.pending.push_front(topic)
        } else {
            self.pending.push_back(topic)
        }
        self.due = true;
        self.bound_pending();
    }

    /// Looking each time whether a topic is pending already would cost every stream more than it saves the slow ones.
    fn bound_pending(&mut self) {
        if self.pending.len() > 2 * self.subscriptions.len() {
            let mut seen = BTreeSet::new();
            self.pending.retain(|topic| seen.insert(*topic));
        }
    }
}
