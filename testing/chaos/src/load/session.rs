//! What one session of reads has seen, and that it never sees less.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::history::Key;
use crate::register::Answer;

/// What a session knows of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// `X-Consul-Index` of the newest answer.
    index: u64,
    /// Index of the change that it last found there.
    modified: u64,
}

/// A session: a client that expects not to be told of the past once it has been told of the present.
#[derive(Debug, Default)]
pub(crate) struct Session {
    known: BTreeMap<Arc<Key>, Known>,
}

impl Session {
    /// The newest index that it has of a key; 0 if none.
    pub(crate) fn index_of(&self, key: &Key) -> u64 {
        self.known.get(key).map_or(0, |known| known.index)
    }

    /// Takes in an answer, and says what of it is older than what was known.
    pub(crate) fn sees(&mut self, key: &Arc<Key>, answer: Answer, index: u64) -> Result<(), String> {
        let known = self.known.entry(Arc::clone(key)).or_default();
        let before = *known;
        let modified = match answer {
            Answer::Found { modified, .. } => modified,
            Answer::Absent | Answer::Written(_) | Answer::Mismatch => 0,
        };
        *known = Known { index: index.max(before.index), modified: modified.max(before.modified) };
        if index < before.index {
            return Err(format!("index {index} after {}", before.index));
        }
        if modified > 0 && modified < before.modified {
            return Err(format!("a change at {modified} after one at {}", before.modified));
        }
        // What is absent now was removed after the change that was seen.
        if answer == Answer::Absent && index <= before.modified {
            return Err(format!("nothing at index {index} after a change at {}", before.modified));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;

    #[test]
    fn a_session_goes_forward_only() {
        let key = Arc::new(Key { kind: Kind::Node, name: "n".to_owned() });
        let found = |modified| Answer::Found { value: 1, modified };
        let after = |first: (Answer, u64), second: (Answer, u64)| {
            let mut session = Session::default();
            session.sees(&key, first.0, first.1).expect("the first answer is never old");
            session.sees(&key, second.0, second.1)
        };
        assert!(after((found(5), 5), (found(5), 5)).is_ok());
        assert!(after((found(5), 5), (found(7), 9)).is_ok());
        assert!(after((found(5), 5), (Answer::Absent, 6)).is_ok());
        assert!(after((found(5), 6), (found(5), 5)).is_err(), "the index goes back");
        assert!(after((found(5), 6), (found(4), 6)).is_err(), "the content goes back");
        assert!(after((found(5), 5), (Answer::Absent, 5)).is_err(), "it was there at 5");
    }
}
