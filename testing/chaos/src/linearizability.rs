//! Whether a history of concurrent operations could have come from one thing that does them one at a time.
//!
//! The algorithm is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with Lowe's memoisation
//! ("Testing for linearizability", 2017), in the shape that the checker porcupine gave it: calls and returns stand in one
//! list by time; an operation that fits the state is lifted out of it, together with its return, and is put back when the
//! rest does not work out. What was tried before (the same operations done, the same state) is not tried again. A history
//! is linearizable if and only if its part on each key is (Herlihy and Wing, 1990), so [`check`] is given one key's.
//!
//! An operation of which it is not known whether it took place stays open: it may take effect at any time after its call,
//! also after everything else, which is as good as never.

mod list;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::hash::Hash;
use std::time::{Duration, Instant};

use list::{List, Mark};

/// Steps between two looks at the clock.
const STEPS_PER_LOOK: u32 = 4096;

/// What the thing does when it does one operation at a time.
pub trait Model {
    /// All that decides how it answers.
    type State: Clone + Eq + Hash;
    /// What is asked of it.
    type Call;
    /// What it answers.
    type Answer;

    /// As it is before the first operation.
    fn initial(&self) -> Self::State;

    /// The state after `call` was answered with `answer`, or `None` if it does not answer so in `state`. Without an answer
    /// the call was carried out and nobody heard of it.
    fn step(&self, state: &Self::State, call: &Self::Call, answer: Option<&Self::Answer>) -> Option<Self::State>;
}

/// One operation of one client.
#[derive(Clone, Debug)]
pub struct Operation<C, A> {
    /// When it was called; any unit, from any beginning.
    pub called: u64,
    /// What was asked.
    pub call: C,
    /// When the answer came, and what it was; `None` if it is not known whether it took place.
    pub returned: Option<(u64, A)>,
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order of one at a time that explains every answer.
    Linearizable,
    /// There is none.
    NotLinearizable {
        /// The operations of the longest order that was found, by their places in the history.
        longest: Vec<usize>,
    },
    /// It was not found out in time.
    TimedOut,
}

/// Looks for an order in which the model would have given every answer of the history, each operation between its call and
/// its return.
///
/// Time and memory grow with the number of ways in which operations overlap, in the worst case exponentially.
pub fn check<M: Model>(model: &M, history: &[Operation<M::Call, M::Answer>], limit: Duration) -> Verdict {
    let begun = Instant::now();
    let mut list = List::new(history);
    let mut search = Search { state: model.initial(), done: Done::new(history.len()), tried: HashSet::new() };
    // What was lifted, each with the state before it.
    let mut lifted: Vec<(usize, M::State)> = Vec::new();
    let mut longest: Vec<usize> = Vec::new();
    let mut answered = history.iter().filter(|operation| operation.returned.is_some()).count();
    let mut entry = list.first();
    let mut steps = 0_u32;
    while answered > 0 {
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(STEPS_PER_LOOK) && begun.elapsed() > limit {
            return Verdict::TimedOut;
        }
        // While there is an answered operation there is its return, and at a return the way forward ends.
        let at = entry.expect("invariant: the list ends with a return while an operation is in it");
        match list.mark(at) {
            Mark::Call(operation) => {
                let Operation { call, returned, .. } = &history[operation];
                let answer = returned.as_ref().map(|(_, answer)| answer);
                match model.step(&search.state, call, answer).filter(|state| search.is_new(operation, state)) {
                    Some(state) => {
                        lifted.push((operation, std::mem::replace(&mut search.state, state)));
                        answered -= usize::from(returned.is_some());
                        list.lift(operation);
                        if lifted.len() > longest.len() {
                            longest = lifted.iter().map(|(operation, _)| *operation).collect();
                        }
                        entry = list.first();
                    }
                    None => entry = list.after(at),
                }
            }
            Mark::Return(_) => {
                let Some((operation, before)) = lifted.pop() else { return Verdict::NotLinearizable { longest } };
                search.state = before;
                search.done.remove(operation);
                answered += usize::from(history[operation].returned.is_some());
                list.put_back(operation);
                entry = list.after(list.call_of(operation));
            }
        }
    }
    Verdict::Linearizable
}

struct Search<S> {
    state: S,
    done: Done,
    tried: HashSet<(Done, S)>,
}

impl<S: Clone + Eq + Hash> Search<S> {
    /// Notes that `operation` is done and leads to `state`, unless the same was tried before.
    fn is_new(&mut self, operation: usize, state: &S) -> bool {
        self.done.insert(operation);
        let is_new = self.tried.insert((self.done.clone(), state.clone()));
        if !is_new {
            self.done.remove(operation);
        }
        is_new
    }
}

/// A set of operations, a bit for each.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Done(Box<[u64]>);

impl Done {
    fn new(operations: usize) -> Self {
        Self(vec![0; operations.div_ceil(64)].into())
    }

    fn insert(&mut self, operation: usize) {
        self.0[operation / 64] |= 1 << (operation % 64);
    }

    fn remove(&mut self, operation: usize) {
        self.0[operation / 64] &= !(1 << (operation % 64));
    }
}
