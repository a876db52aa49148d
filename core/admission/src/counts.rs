//! How many of something each holder has, where each may have so many.

use std::collections::BTreeMap;

/// Counts by holder. A holder with none takes no room.
#[derive(Debug)]
pub struct Counts<K> {
    per_holder: usize,
    max: usize,
    total: usize,
    counts: BTreeMap<K, usize>,
}

impl<K: Ord + Clone> Counts<K> {
    /// At most `max` in all, and `per_holder` of each.
    #[must_use]
    pub fn new(max: usize, per_holder: usize) -> Self {
        Self { per_holder, max, total: 0, counts: BTreeMap::new() }
    }

    /// Counts one more of `holder`; false if it has as many as it may, or there are as many as there may be.
    #[must_use]
    pub fn add(&mut self, holder: &K) -> bool {
        let has = self.counts.get(holder).copied().unwrap_or(0);
        if has >= self.per_holder || self.total >= self.max {
            return false;
        }
        self.counts.insert(holder.clone(), has + 1);
        self.total += 1;
        true
    }

    /// Counts one less, which was counted before.
    pub fn remove(&mut self, holder: &K) {
        let Some(has) = self.counts.get_mut(holder) else { return };
        *has -= 1;
        self.total -= 1;
        if *has == 0 {
            self.counts.remove(holder);
        }
    }

    /// How many there are in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_limit_and_all_have_one() {
        let mut counts = Counts::new(3, 2);
        assert!(counts.add(&"a") && counts.add(&"a"));
        assert!(!counts.add(&"a"), "as many as one may have");
        assert!(counts.add(&"b"));
        assert!(!counts.add(&"c"), "as many as there may be");
        counts.remove(&"a");
        counts.remove(&"nobody");
        assert!(counts.add(&"c"));
        assert_eq!(counts.total(), 3);
        for holder in ["a", "b", "c"] {
            counts.remove(&holder);
        }
        assert!(counts.counts.is_empty() && counts.total() == 0);
    }
}
