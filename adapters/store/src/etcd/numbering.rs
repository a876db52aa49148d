//! Revisions as they are told to the outside: etcd's own, and beyond those of the store that this one took the place of.
//!
//! etcd's revision cannot be raised from outside. So a store that was filled from another one describes itself with an
//! *offset*, which every server adds to etcd's numbers: they agree on it, and no index that a client has heard of goes back.

use crate::transaction::Revision;

/// What is added to etcd's revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbering {
    pub(super) offset: u64,
}

impl Numbering {
    /// etcd's number as ours. 0, which stands for none, stays what it is.
    pub(super) fn ours(self, revision: i64) -> Revision {
        match u64::try_from(revision).unwrap_or_default() {
            0 => Revision::ZERO,
            revision => Revision(revision.saturating_add(self.offset)),
        }
    }

    /// Our number as etcd's; 0 for one that was given out before this store.
    pub(super) fn theirs(self, revision: Revision) -> i64 {
        i64::try_from(revision.0.saturating_sub(self.offset)).unwrap_or(i64::MAX)
    }

    /// Our number as one that is compared with: one from before this store equals none of its own, not even that of a key
    /// that is absent.
    pub(super) fn equal_to(self, revision: Revision) -> i64 {
        if revision != Revision::ZERO && revision.0 <= self.offset { i64::MAX } else { self.theirs(revision) }
    }

    /// The first of etcd's numbers that is over ours.
    pub(super) fn after(self, revision: Revision) -> i64 {
        self.theirs(Revision(revision.0.saturating_add(1))).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back_and_none_is_of_another_store() {
        for offset in [0, 1_000] {
            let numbering = Numbering { offset };
            assert_eq!((numbering.ours(0), numbering.theirs(Revision::ZERO)), (Revision::ZERO, 0));
            assert_eq!(numbering.ours(7), Revision(7 + offset));
            assert_eq!((numbering.theirs(Revision(7 + offset)), numbering.after(Revision(7 + offset))), (7, 8));
            assert_eq!(numbering.equal_to(Revision::ZERO), 0);
            assert_eq!(numbering.after(Revision::ZERO), 1);
        }
        let numbering = Numbering { offset: 1_000 };
        assert_eq!((numbering.theirs(Revision(900)), numbering.after(Revision(900))), (0, 1));
        assert_eq!(numbering.equal_to(Revision(900)), i64::MAX);
        assert_eq!(numbering.equal_to(Revision(1_000)), i64::MAX);
        assert_eq!(numbering.equal_to(Revision(1_001)), 1);
    }
}
