//! A request for many subjects: it goes in parts, of which none is too large a frame, and is heard as one.
//!
//! Only the whole of it says what is wanted. If a part were answered by itself, the `Through` after it would speak for subjects that
//! the server has not been asked for yet, and what has happened to these meanwhile would be missed.
//!
//! The end of many subscriptions goes in parts, too. Each of them is an end by itself, and is counted as one at both ends.

use crate::fleet::SubscribeError;
use crate::message::{AgentSays, Reached, Resume, Subjects, Subscribe};

/// Subjects in one part: with the longest names some 1.2 MB, and a server reads 2 MiB at once.
pub const SUBJECTS_PER_PART: usize = 8_192;

impl AgentSays {
    /// The same, in parts if it is a request for more than [`SUBJECTS_PER_PART`] subjects, or the end of more subscriptions; they are
    /// said one right after the other.
    #[must_use]
    pub fn in_parts(self) -> Vec<Self> {
        match self {
            Self::Subscribe(Subscribe { resumes, reached, more }) => {
                let (parts, last) = parts(resumes);
                let part = |resumes, more| Self::Subscribe(Subscribe { resumes, reached, more });
                let parts = parts.into_iter().map(|resumes| part(resumes, true));
                parts.chain([part(last, more)]).collect()
            }
            Self::Unsubscribe(Subjects { subjects }) => {
                let (parts, last) = parts(subjects);
                let part = |subjects| Self::Unsubscribe(Subjects { subjects });
                parts.into_iter().chain([last]).map(part).collect()
            }
            Self::Hello(_)
            | Self::Applied(_)
            | Self::Rejected(_)
            | Self::Here(_)
            | Self::Promote(_)
            | Self::Relayed(_)
            | Self::Trusts(_) => vec![self],
        }
    }
}

/// Parts of [`SUBJECTS_PER_PART`], and the last one, which may be of fewer.
fn parts<T>(mut all: Vec<T>) -> (Vec<Vec<T>>, Vec<T>) {
    let mut parts = Vec::with_capacity(all.len() / SUBJECTS_PER_PART);
    while all.len() > SUBJECTS_PER_PART {
        let rest = all.split_off(SUBJECTS_PER_PART);
        parts.push(std::mem::replace(&mut all, rest));
    }
    (parts, all)
}

/// The parts of a request that have come, until the last one has.
#[derive(Debug, Default)]
pub struct Parts {
    resumes: Vec<Resume>,
    /// As the first of them said.
    reached: Option<Reached>,
    is_begun: bool,
}

impl Parts {
    /// Adds a part; answers with the whole request if it is the last. `subjects_max` is what one stream may have: no more is kept.
    ///
    /// # Errors
    /// [`SubscribeError::TooMany`] over that; the stream has to end then.
    pub fn add(&mut self, part: Subscribe, subjects_max: usize) -> Result<Option<Subscribe>, SubscribeError> {
        let Subscribe { resumes, reached, more } = part;
        if self.resumes.len() + resumes.len() > subjects_max {
            return Err(SubscribeError::TooMany);
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            self.reached = reached;
        }
        self.resumes.extend(resumes);
        if more {
            return Ok(None);
        }
        let Self { resumes, reached, .. } = std::mem::take(self);
        Ok(Some(Subscribe { resumes, reached, more: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::WireSubject;

    fn request(count: usize) -> Subscribe {
        let resume = |number| Resume { subject: None, have: u64::try_from(number).expect("small") };
        let reached = Some(Reached { epoch: 7, revision: 9 });
        Subscribe { resumes: (0..count).map(resume).collect(), reached, more: false }
    }

    #[test]
    fn a_request_is_the_same_after_it_went_in_parts() {
        for count in [0, 1, SUBJECTS_PER_PART, SUBJECTS_PER_PART + 1, 3 * SUBJECTS_PER_PART] {
            let mut said = AgentSays::Subscribe(request(count)).in_parts().into_iter();
            let last = said.next_back();
            let mut parts = Parts::default();
            let mut add = |says| {
                let AgentSays::Subscribe(part) = says else { panic!("{says:?} is no request") };
                assert!(part.resumes.len() <= SUBJECTS_PER_PART);
                parts.add(part, count)
            };
            assert!(said.all(|part| add(part) == Ok(None)), "of {count}");
            assert_eq!(last.map(add), Some(Ok(Some(request(count)))));
        }
    }

    #[test]
    fn the_end_of_many_subscriptions_goes_in_parts_that_are_ends_by_themselves() {
        for (count, parts) in [(0, 1), (1, 1), (SUBJECTS_PER_PART, 1), (SUBJECTS_PER_PART + 1, 2)] {
            let subject = |number: usize| WireSubject { kind: 1, name: number.to_string() };
            let subjects: Vec<_> = (0..count).map(subject).collect();
            let said = AgentSays::Unsubscribe(Subjects { subjects: subjects.clone() }).in_parts();
            assert_eq!(said.len(), parts, "of {count}");
            let heard = said.into_iter().flat_map(|says| {
                let AgentSays::Unsubscribe(part) = says else { panic!("{says:?} is no end") };
                assert!(part.subjects.len() <= SUBJECTS_PER_PART);
                part.subjects
            });
            assert_eq!(heard.collect::<Vec<_>>(), subjects);
        }
    }

    #[test]
    fn no_more_is_kept_than_a_stream_may_have() {
        let mut parts = Parts::default();
        let part = |count| Subscribe { more: true, ..request(count) };
        assert_eq!(parts.add(part(60), 100), Ok(None));
        assert_eq!(parts.add(part(41), 100), Err(SubscribeError::TooMany));
        assert_eq!(parts.resumes.len(), 60);
    }
}
