//! A set of small numbers that also counts how many members are smaller, so that a plain array can go beside it.

/// Members come in words of 64 neighbours, and only words that have one are kept: ten thousand neighbours take 2.5 KB.
#[derive(Debug, Default)]
pub(super) struct IdSet {
    words: Vec<Word>,
}

#[derive(Debug)]
struct Word {
    /// Bit `n` stands for `base * 64 + n`.
    base: u32,
    /// Members in earlier words.
    before: u32,
    bits: u64,
}

impl Word {
    fn position(&self, bit: u32) -> usize {
        (self.before + (self.bits & ((1 << bit) - 1)).count_ones()) as usize
    }
}

/// Collects members that rise.
impl FromIterator<u32> for IdSet {
    fn from_iter<I: IntoIterator<Item = u32>>(rising: I) -> Self {
        let mut words: Vec<Word> = Vec::new();
        for (before, id) in (0..).zip(rising) {
            match words.last_mut() {
                Some(word) if word.base == id / 64 => word.bits |= 1 << (id % 64),
                Some(_) | None => words.push(Word { base: id / 64, before, bits: 1 << (id % 64) }),
            }
        }
        words.shrink_to_fit();
        Self { words }
    }
}

impl IdSet {
    /// How many members are smaller than this one; `None` if it is no member.
    pub(super) fn position(&self, id: u32) -> Option<usize> {
        let word = &self.words[self.words.binary_search_by_key(&(id / 64), |word| word.base).ok()?];
        (word.bits & 1 << (id % 64) != 0).then(|| word.position(id % 64))
    }

    /// Adds a member and says its position; `Err` with the position if it was there.
    pub(super) fn insert(&mut self, id: u32) -> Result<usize, usize> {
        if let Some(position) = self.position(id) {
            return Err(position);
        }
        let index = match self.words.binary_search_by_key(&(id / 64), |word| word.base) {
            Ok(index) => index,
            Err(index) => {
                let last = index.checked_sub(1).map(|index| &self.words[index]);
                let before = last.map_or(0, |word| word.before + word.bits.count_ones());
                self.words.insert(index, Word { base: id / 64, before, bits: 0 });
                index
            }
        };
        self.words[index].bits |= 1 << (id % 64);
        self.words[index + 1..].iter_mut().for_each(|word| word.before += 1);
        Ok(self.words[index].position(id % 64))
    }

    /// The members, rising.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().flat_map(|word| {
            let mut left = word.bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(word.base * 64 + bit)
            })
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<Word>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set_that_counts(begun in prop::collection::btree_set(0..400u32, 0..60), later in prop::collection::vec(0..400u32, 0..60)) {
            let mut model: BTreeSet<u32> = begun;
            let mut set: IdSet = model.iter().copied().collect();
            for id in later {
                let position = model.range(..id).count();
                prop_assert_eq!(set.insert(id), if model.insert(id) { Ok(position) } else { Err(position) });
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            for id in 0..400 {
                prop_assert_eq!(set.position(id), model.contains(&id).then(|| model.range(..id).count()));
            }
        }
    }
}
