//! Which past a store has, so that an agent that has heard of another is noticed.
//!
//! Revisions alone do not tell: a store that is set back to an old copy and then written gives the same numbers to other
//! changes. So each opening of the store begins an *epoch*: a random name, and the revision after which it began. An agent
//! says with what it has how far it has heard, and in which epoch. If that epoch is one of the store's own, and had come so
//! far before the next began, the agent has heard nothing that the store does not hold; otherwise it begins anew.
//!
//! An epoch that is forgotten, since the store keeps the last few only, is as one of another past: everything is sent whole.

use starling_catalog::Subject;
use starling_model::Revision;

use crate::fleet::SubscribeError;
use crate::message::Reached;

/// A stretch of a store's life, from one opening to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// Its name, drawn at random; never 0, which stands for none.
    pub id: u64,
    /// The revision that the store was at when it began.
    pub after: Revision,
}

/// The epochs that a store remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    epochs: Vec<Epoch>,
}

impl Lineage {
    /// Of these epochs, in the order in which they began; the last is the present one.
    #[must_use]
    pub fn new(epochs: Vec<Epoch>) -> Self {
        Self { epochs }
    }

    /// The present epoch, which agents are told; 0 if there is none.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.epochs.last().map_or(0, |epoch| epoch.id)
    }

    /// The epochs, in the order in which they began.
    #[must_use]
    pub fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// Whether everything up to there is of this past.
    fn holds(&self, reached: &Reached) -> bool {
        let Some(place) = self.epochs.iter().position(|epoch| epoch.id == reached.epoch) else { return false };
        self.epochs.get(place + 1).is_none_or(|next| reached.revision <= next.after.0)
    }

    /// Sees to it that what an agent says it has at a server that is at `at` is of this past. Of an agent that does not say
    /// what it has heard there is no knowing, so that it is taken to have nothing.
    ///
    /// Several servers share a store and its present epoch, and one of them may be behind another by what has been written
    /// a moment ago. An agent that has heard that already is not sent away.
    ///
    /// # Errors
    /// [`SubscribeError::OtherPast`] if it has heard of another, [`SubscribeError::Future`] if it has what cannot be yet.
    pub fn admit(
        &self,
        resumes: &mut [(Subject, Revision)],
        reached: Option<&Reached>,
        at: Revision,
    ) -> Result<(), SubscribeError> {
        if resumes.iter().all(|(_, have)| *have == Revision(0)) {
            return Ok(());
        }
        if let Some(reached) = reached.filter(|reached| !self.holds(reached)) {
            return Err(SubscribeError::OtherPast { heard: Revision(reached.revision) });
        }
        let is_ahead = reached.is_some_and(|reached| reached.epoch == self.current());
        for (subject, have) in resumes {
            if *have > at && !is_ahead {
                return Err(SubscribeError::Future { subject: subject.clone(), have: *have, at });
            }
            if reached.is_none() {
                *have = Revision(0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_holds_up_to_where_the_next_began() {
        let epoch = |id, after| Epoch { id, after: Revision(after) };
        let lineage = Lineage::new(vec![epoch(7, 0), epoch(9, 40), epoch(5, 40), epoch(3, 60)]);
        let holds = |epoch, revision| lineage.holds(&Reached { epoch, revision });
        assert_eq!([holds(7, 1), holds(7, 40), holds(7, 41)], [true, true, false]);
        // One in which nothing was written.
        assert_eq!([holds(9, 40), holds(9, 41)], [true, false]);
        assert_eq!([holds(5, 60), holds(5, 61), holds(3, u64::MAX)], [true, false, true]);
        assert!(!holds(8, 1), "of another store, or forgotten");
        assert_eq!((lineage.current(), Lineage::default().current()), (3, 0));
    }

    #[test]
    fn who_does_not_say_what_it_heard_is_taken_to_have_nothing() {
        let lineage = Lineage::new(vec![Epoch { id: 7, after: Revision(0) }]);
        let had = |have: u64| vec![(Subject::Roots, Revision(have)), (Subject::ProxyDefaults, Revision(0))];
        let admit = |have: u64, reached: Option<Reached>| {
            let mut resumes = had(have);
            lineage.admit(&mut resumes, reached.as_ref(), Revision(10)).map(|()| resumes)
        };
        assert_eq!(admit(5, None), Ok(had(0)));
        let future = SubscribeError::Future { subject: Subject::Roots, have: Revision(11), at: Revision(10) };
        assert_eq!(admit(11, None), Err(future));
        assert_eq!(admit(11, Some(Reached { epoch: 7, revision: 11 })), Ok(had(11)), "this server is behind another");
        assert_eq!(admit(5, Some(Reached { epoch: 7, revision: 6 })), Ok(had(5)));
        let other = Some(Reached { epoch: 8, revision: 6 });
        assert_eq!(admit(5, other), Err(SubscribeError::OtherPast { heard: Revision(6) }));
        assert_eq!(admit(0, other), Ok(had(0)), "with nothing it may come from anywhere");
    }
}
