//! What one key of the catalog does, one operation at a time: a value with the index of its last change, written always, or
//! only if it is still at an index.

use serde::{Deserialize, Serialize};

use crate::linearizability::Model;

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// What is there?
    Read,
    /// Set it, whatever is there.
    Write(u64),
    /// Set it if it was last changed at this index; 0 if there is nothing.
    CompareAndSet {
        /// The index.
        expected: u64,
        /// The value.
        value: u64,
    },
    /// Remove it, if it is there.
    Delete,
}

/// What a key answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Of a read: this, last changed at that index.
    Found {
        /// The value.
        value: u64,
        /// The index of its last change.
        modified: u64,
    },
    /// Of a read: nothing.
    Absent,
    /// Of any write: it is so since this index at the latest.
    Written(u64),
    /// Of a conditional write: it is at another index.
    Mismatch,
}

/// When a key was last changed, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Modified {
    At(u64),
    /// After this, by a write whose answer was lost.
    After(u64),
}

impl Modified {
    /// Whether a change at `index` comes after it.
    fn is_before(self, index: u64) -> bool {
        index > self.least()
    }

    fn least(self) -> u64 {
        match self {
            Self::At(index) | Self::After(index) => index,
        }
    }

    /// Whether it can be `index`.
    fn can_be(self, index: u64) -> bool {
        match self {
            Self::At(known) => known == index,
            Self::After(least) => index > least,
        }
    }
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    value: Option<u64>,
    modified: Modified,
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Whether the value that it has already is not written again, and each index is judged; else values alone are.
    pub has_exact_indexes: bool,
}

impl Register {
    fn written(self, state: &State, value: Option<u64>, answer: Option<&Answer>) -> Option<State> {
        let at = match answer {
            None => None,
            Some(Answer::Written(index)) => Some(*index),
            Some(_) => return None,
        };
        if !self.has_exact_indexes {
            return Some(State { value, ..*state });
        }
        if state.value == value {
            // Nothing is written; the answer is the index at which that was found.
            return at.is_none_or(|index| index >= state.modified.least()).then_some(*state);
        }
        let modified = match at {
            None => Modified::After(state.modified.least()),
            Some(index) if !state.modified.is_before(index) => return None,
            // Of what is gone nobody reads an index; that of the next write is greater.
            Some(index) if value.is_none() => Modified::After(index),
            Some(index) => Modified::At(index),
        };
        Some(State { value, modified })
    }

    fn read(self, state: &State, answer: Option<&Answer>) -> Option<State> {
        match answer {
            None => Some(*state),
            Some(Answer::Absent) => state.value.is_none().then_some(*state),
            Some(Answer::Found { value, modified }) => {
                let is_exact = self.has_exact_indexes;
                let fits = state.value == Some(*value) && (!is_exact || state.modified.can_be(*modified));
                let known = State { modified: Modified::At(*modified), ..*state };
                fits.then_some(if is_exact { known } else { *state })
            }
            Some(Answer::Written(_) | Answer::Mismatch) => None,
        }
    }

    fn compared(self, state: &State, expected: u64, value: u64, answer: Option<&Answer>) -> Option<State> {
        let (can_match, can_differ) = match (state.value, state.modified) {
            (None, _) => (expected == 0, expected != 0),
            (Some(_), modified @ Modified::At(_)) => (modified.can_be(expected), !modified.can_be(expected)),
            (Some(_), modified @ Modified::After(_)) => (modified.can_be(expected), true),
        };
        match answer {
            Some(Answer::Mismatch) => can_differ.then_some(*state),
            // One that was carried out in vain is left open to the end, which is as good.
            None if !can_match => Some(*state),
            _ if can_match => self.written(state, Some(value), answer),
            _ => None,
        }
    }
}

impl Model for Register {
    type State = State;
    type Call = Call;
    type Answer = Answer;

    fn initial(&self) -> State {
        State { value: None, modified: Modified::After(0) }
    }

    fn step(&self, state: &State, call: &Call, answer: Option<&Answer>) -> Option<State> {
        match call {
            Call::Read => self.read(state, answer),
            Call::Write(value) => self.written(state, Some(*value), answer),
            Call::Delete => self.written(state, None, answer),
            Call::CompareAndSet { expected, value } => self.compared(state, *expected, *value, answer),
        }
    }
}
