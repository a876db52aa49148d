//! A relay's streams: what they are sent is what the relay has heard, in the bytes in which it came.

use starling_catalog::Subject;
use starling_model::Revision;

use super::{Fleet, Published, StreamId};
use crate::relay::{Holding, HoldingIntake, News};
use crate::window::Window;

impl Fleet<Holding> {
    /// Begins to hold a subject; whether it is new here, and so to be subscribed to.
    pub(crate) fn hold(&mut self, subject: &Subject) -> bool {
        self.source.want(subject)
    }

    /// The content, for a stream that begins.
    pub(crate) fn source_mut(&mut self) -> &mut Holding {
        &mut self.source
    }

    /// Hands over what one stream from servers has staged, and tells of it.
    pub(crate) fn hear(&mut self, intake: &mut HoldingIntake, now_ms: u64) -> Published {
        let News { learned, frames } = intake.hand_over(&mut self.source);
        let mut woken = Vec::new();
        for (subject, at) in learned {
            self.has_become_known(&subject, at, &mut woken);
        }
        let topics = frames.into_iter().filter_map(|(subject, frame)| Some((*self.topics.get(&subject)?, frame)));
        let frames = topics.collect();
        let mut published = self.tell(frames, now_ms);
        published.woken.extend(woken);
        published.woken.sort_unstable();
        published.woken.dedup();
        published
    }

    /// What is there of a subject is known as of `at`, and nothing of the time before.
    fn has_become_known(&mut self, subject: &Subject, at: Revision, woken: &mut Vec<StreamId>) {
        let Some(id) = self.topics.get(subject).copied() else { return };
        let topic = &mut self.by_id[id as usize];
        self.remembered_bytes -= topic.window.bytes();
        topic.window = Window::new(at);
        topic.whole = None;
        for subscriber in &topic.subscribers {
            let Some(stream) = self.places[subscriber.place as usize].stream.as_mut() else { continue };
            if stream.is_known(id) {
                woken.push(*subscriber);
            }
        }
    }

    /// Whether anybody is subscribed to a subject.
    pub(crate) fn is_subscribed(&self, subject: &Subject) -> bool {
        let topic = self.topics.get(subject).map(|id| &self.by_id[*id as usize]);
        topic.is_some_and(|topic| !topic.subscribers.is_empty())
    }

    /// How many subjects somebody is subscribed to.
    pub(crate) fn subjects_wanted(&self) -> usize {
        self.topics.len() - self.idle
    }

    /// Forgets a subject that nobody is subscribed to.
    pub(crate) fn forget(&mut self, subject: &Subject) {
        self.source.forget(subject);
        let Some(id) = self.topics.get(subject).copied() else { return };
        let nothing_before = self.revision();
        let topic = &mut self.by_id[id as usize];
        if !topic.subscribers.is_empty() {
            return;
        }
        self.remembered_bytes -= topic.window.bytes();
        topic.window = Window::new(nothing_before);
        topic.whole = None;
        self.topics.remove(subject);
        self.free_topics.push(id);
        self.idle -= 1;
    }

    /// Nothing that was heard counts any more. Every stream has to end.
    pub(crate) fn begin_anew(&mut self) {
        self.source.begin_anew();
        let topics: Vec<_> = self.topics.values().copied().collect();
        for id in topics {
            let topic = &mut self.by_id[id as usize];
            self.remembered_bytes -= topic.window.bytes();
            topic.window = Window::new(Revision(0));
            topic.whole = None;
        }
        self.remembered.clear();
        self.through = None;
    }
}
