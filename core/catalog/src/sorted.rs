//! Records in an order, found by what is written in them.
//!
//! An index is as long as what it indexes, and there are several of each: one that held names would take as much room as
//! the records. These hold the records themselves, one pointer each. Most are short, a node's or a small service's; a
//! short one is a list that is copied as a whole when it is written to, a long one a tree of which one path is.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::sync::Arc;

use equivalent::{Comparable, Equivalent};
use imbl::OrdSet;
use starling_model::Versioned;

/// Records of a list; with more it becomes a tree. Copying so many pointers costs what copying a tree's path does.
const LIST_MAX: usize = 64;

/// An order of records, total where no two have the same place.
pub(crate) trait Order {
    /// What is sorted.
    type Record: std::fmt::Debug;

    /// Which of two comes first.
    fn order(one: &Self::Record, other: &Self::Record) -> Ordering;
}

/// Shared records in the order `O`, at most one in each place.
#[derive(Debug)]
pub(crate) struct Sorted<O: Order>(Kept<O>);

#[derive(Debug)]
enum Kept<O: Order> {
    List(Vec<Placed<O>>),
    Tree(OrdSet<Placed<O>>),
}

impl<O: Order> Sorted<O> {
    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            Kept::List(list) => list.is_empty(),
            Kept::Tree(tree) => tree.is_empty(),
        }
    }

    /// The record at a place; `place` says how a record lies to it.
    pub(crate) fn get(&self, place: impl Fn(&O::Record) -> Ordering) -> Option<&Arc<Versioned<O::Record>>> {
        let placed = match &self.0 {
            Kept::List(list) => list.get(list.binary_search_by(|it| place(it.record())).ok()?),
            Kept::Tree(tree) => tree.get(&Place(place)),
        };
        placed.map(|placed| &placed.shared)
    }

    /// Puts a record in its place, instead of what is there.
    pub(crate) fn insert(&mut self, record: Arc<Versioned<O::Record>>) {
        let placed = Placed { shared: record, order: PhantomData };
        let list = match &mut self.0 {
            Kept::List(list) => list,
            Kept::Tree(tree) => {
                tree.insert(placed);
                return;
            }
        };
        match list.binary_search(&placed) {
            Ok(at) => list[at] = placed,
            Err(at) if list.len() < LIST_MAX => {
                // No more room than it takes: what a list sets aside to grow would be half of an index.
                list.reserve_exact(1);
                list.insert(at, placed);
            }
            Err(_) => {
                let mut tree: OrdSet<_> = list.drain(..).collect();
                tree.insert(placed);
                self.0 = Kept::Tree(tree);
            }
        }
    }

    /// Takes the record at a place away.
    pub(crate) fn remove(&mut self, place: impl Fn(&O::Record) -> Ordering) {
        match &mut self.0 {
            Kept::List(list) => {
                if let Ok(at) = list.binary_search_by(|it| place(it.record())) {
                    list.remove(at);
                }
            }
            Kept::Tree(tree) => {
                tree.remove(&Place(place));
                // At half of it, so that one that changes around the limit is not made anew each time.
                if tree.len() <= LIST_MAX / 2 {
                    self.0 = Kept::List(tree.iter().cloned().collect());
                }
            }
        }
    }

    /// Every record, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Versioned<O::Record>>> {
        self.from(|_| Ordering::Greater)
    }

    /// The records from a place on, that place included.
    pub(crate) fn from(
        &self,
        place: impl Fn(&O::Record) -> Ordering,
    ) -> impl Iterator<Item = &Arc<Versioned<O::Record>>> {
        let (list, tree) = match &self.0 {
            Kept::List(list) => {
                let first = list.partition_point(|it| place(it.record()) == Ordering::Less);
                (Some(&list[first..]), None)
            }
            Kept::Tree(tree) => (None, Some(tree.range(Place(place)..))),
        };
        list.into_iter().flatten().chain(tree.into_iter().flatten()).map(|placed| &placed.shared)
    }
}

impl<O: Order> Default for Sorted<O> {
    fn default() -> Self {
        Self(Kept::List(Vec::new()))
    }
}

impl<O: Order> Clone for Sorted<O> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kept::List(list) => Kept::List(list.clone()),
            Kept::Tree(tree) => Kept::Tree(tree.clone()),
        })
    }
}

/// A record that is compared by its place.
struct Placed<O: Order> {
    shared: Arc<Versioned<O::Record>>,
    order: PhantomData<fn() -> O>,
}

impl<O: Order> Placed<O> {
    fn record(&self) -> &O::Record {
        &self.shared.value
    }
}

impl<O: Order> std::fmt::Debug for Placed<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.fmt(f)
    }
}

impl<O: Order> Clone for Placed<O> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), order: PhantomData }
    }
}

impl<O: Order> Ord for Placed<O> {
    fn cmp(&self, other: &Self) -> Ordering {
        O::order(self.record(), other.record())
    }
}

impl<O: Order> PartialOrd for Placed<O> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<O: Order> PartialEq for Placed<O> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<O: Order> Eq for Placed<O> {}

/// A place to look for: says how a record lies to it.
struct Place<F>(F);

impl<O: Order, F: Fn(&O::Record) -> Ordering> Equivalent<Placed<O>> for Place<F> {
    fn equivalent(&self, placed: &Placed<O>) -> bool {
        (self.0)(placed.record()) == Ordering::Equal
    }
}

impl<O: Order, F: Fn(&O::Record) -> Ordering> Comparable<Placed<O>> for Place<F> {
    fn compare(&self, placed: &Placed<O>) -> Ordering {
        (self.0)(placed.record()).reverse()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use starling_model::Revision;

    use super::*;

    /// A number and what is written beside it, in the order of the number.
    #[derive(Debug, Clone, PartialEq)]
    struct Numbered(u8, usize);

    #[derive(Debug)]
    struct ByNumber;

    impl Order for ByNumber {
        type Record = Numbered;
        fn order(one: &Numbered, other: &Numbered) -> Ordering {
            one.0.cmp(&other.0)
        }
    }

    fn place(number: u8) -> impl Fn(&Numbered) -> Ordering {
        move |it| it.0.cmp(&number)
    }

    fn shared(number: u8, written: usize) -> Arc<Versioned<Numbered>> {
        Arc::new(Versioned { value: Numbered(number, written), created: Revision(1), modified: Revision(1) })
    }

    fn written<'a>(records: impl Iterator<Item = &'a Arc<Versioned<Numbered>>>) -> Vec<(u8, usize)> {
        records.map(|it| (it.value.0, it.value.1)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Growing far beyond a list's limit and shrinking to nothing, with a clone kept at every step.
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((any::<u8>(), 0..10_u8), 0..600), turn in 0..600_usize) {
            let (mut sorted, mut naive) = (Sorted::<ByNumber>::default(), BTreeMap::new());
            for (step, (number, dice)) in steps.into_iter().enumerate() {
                let before = (sorted.clone(), naive.clone());
                // Mostly growing before the turn, mostly shrinking after it.
                if (dice < 8) == (step < turn) {
                    sorted.insert(shared(number, step));
                    naive.insert(number, step);
                } else {
                    sorted.remove(place(number));
                    naive.remove(&number);
                }
                prop_assert_eq!(sorted.get(place(number)).map(|it| it.value.1), naive.get(&number).copied());
                prop_assert_eq!(written(sorted.from(place(number))), naive.range(number..).map(|(n, w)| (*n, *w)).collect::<Vec<_>>());
                prop_assert_eq!(written(sorted.iter()), naive.into_iter().collect::<Vec<_>>());
                prop_assert_eq!(written(before.0.iter()), before.1.into_iter().collect::<Vec<_>>());
                prop_assert_eq!(sorted.is_empty(), written(sorted.iter()).is_empty());
                naive = written(sorted.iter()).into_iter().collect();
            }
        }
    }

    #[test]
    fn a_list_becomes_a_tree_at_its_limit_and_a_list_again_at_half_of_it() {
        let mut sorted = Sorted::<ByNumber>::default();
        let is_list = |sorted: &Sorted<ByNumber>| matches!(sorted.0, Kept::List(_));
        let limit = u8::try_from(LIST_MAX).expect("small");
        (0..limit).for_each(|number| sorted.insert(shared(number, 0)));
        assert!(is_list(&sorted));
        sorted.insert(shared(0, 1));
        assert!(is_list(&sorted), "one that is there takes no room");
        sorted.insert(shared(limit, 0));
        assert!(!is_list(&sorted));
        (0..=limit / 2).for_each(|number| sorted.remove(place(number)));
        assert!(is_list(&sorted));
        assert_eq!(sorted.iter().count(), LIST_MAX / 2);
    }
}
