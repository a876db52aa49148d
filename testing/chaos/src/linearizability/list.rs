//! Calls and returns in order of time, as a list out of which operations are lifted and into which they are put back, each
//! in constant time. Putting back is right only in the reverse order of lifting.

use super::Operation;

/// What an entry of the list is, and of which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Call(usize),
    Return(usize),
}

pub(super) struct List {
    marks: Vec<Mark>,
    /// By place: the neighbours, where the place after the last is both ends.
    before: Vec<usize>,
    after: Vec<usize>,
    /// By operation: where its call is, and its return if it has one.
    places: Vec<(usize, Option<usize>)>,
}

impl List {
    pub(super) fn new<C, A>(history: &[Operation<C, A>]) -> Self {
        let mut events = Vec::with_capacity(history.len() * 2);
        for (number, operation) in history.iter().enumerate() {
            // Of two at the same time the call counts as the earlier one: they overlap.
            events.push((operation.called, 0, Mark::Call(number)));
            events.extend(operation.returned.as_ref().map(|(time, _)| (*time, 1, Mark::Return(number))));
        }
        events.sort_by_key(|(time, order, _)| (*time, *order));
        let marks: Vec<_> = events.into_iter().map(|(_, _, mark)| mark).collect();
        let mut places = vec![(0, None); history.len()];
        for (place, mark) in marks.iter().enumerate() {
            match mark {
                Mark::Call(operation) => places[*operation].0 = place,
                Mark::Return(operation) => places[*operation].1 = Some(place),
            }
        }
        let end = marks.len();
        let before = (0..=end).map(|place| if place == 0 { end } else { place - 1 }).collect();
        let after = (0..=end).map(|place| if place == end { 0 } else { place + 1 }).collect();
        Self { marks, before, after, places }
    }

    pub(super) fn mark(&self, place: usize) -> Mark {
        self.marks[place]
    }

    /// The first entry; `None` if there is none.
    pub(super) fn first(&self) -> Option<usize> {
        self.after(self.marks.len())
    }

    /// The entry after that at a place; `None` at the end.
    pub(super) fn after(&self, place: usize) -> Option<usize> {
        Some(self.after[place]).filter(|next| *next != self.marks.len())
    }

    pub(super) fn call_of(&self, operation: usize) -> usize {
        self.places[operation].0
    }

    pub(super) fn lift(&mut self, operation: usize) {
        let (call, returned) = self.places[operation];
        self.take_out(call);
        returned.into_iter().for_each(|place| self.take_out(place));
    }

    pub(super) fn put_back(&mut self, operation: usize) {
        let (call, returned) = self.places[operation];
        returned.into_iter().for_each(|place| self.put_in(place));
        self.put_in(call);
    }

    fn take_out(&mut self, place: usize) {
        let (before, after) = (self.before[place], self.after[place]);
        self.after[before] = after;
        self.before[after] = before;
    }

    fn put_in(&mut self, place: usize) {
        let (before, after) = (self.before[place], self.after[place]);
        self.after[before] = place;
        self.before[after] = place;
    }
}
