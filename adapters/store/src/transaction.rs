//! The nouns of the store: revisions, keys, transactions, entries.
//!
//! Owns the limits that every implementation honours, set so that whatever passes
//! [`Transaction::check`] is also accepted by an etcd server with default settings.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::lease::LeaseId;
use crate::store::{CommitError, Quantity};

/// Longest key, in bytes. Keys are stored in every inner node above them, so they stay short.
pub const MAX_KEY_BYTES: usize = 1024;

/// Most writes in one transaction. etcd's `--max-txn-ops` is 128 by default.
pub const MAX_TRANSACTION_OPERATIONS: usize = 128;

/// Most conditions in one transaction: on etcd the store has one of its own.
pub const MAX_TRANSACTION_CONDITIONS: usize = MAX_TRANSACTION_OPERATIONS - 1;

/// Most bytes of keys and values in one transaction. etcd refuses requests over 1.5 MiB by
/// default; the difference is left to its framing.
pub const MAX_TRANSACTION_BYTES: usize = 1024 * 1024;

/// The number of a transaction in the order of commits; 0 is before every transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before every transaction; also the modification revision of a key that is absent.
    pub const ZERO: Revision = Revision(0);

    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A key: between 1 and [`MAX_KEY_BYTES`] bytes, ordered bytewise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// Why bytes are not a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Zero bytes.
    #[error("a key must not be empty")]
    Empty,
    /// Over [`MAX_KEY_BYTES`].
    #[error("a key of {length} bytes is over the limit of {MAX_KEY_BYTES}")]
    TooLong {
        /// Bytes in the refused key.
        length: usize,
    },
}

impl Key {
    /// Takes the bytes as a key.
    ///
    /// # Errors
    /// [`KeyError`] if they are none, or too many.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Key, KeyError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(KeyError::Empty),
            length if length > MAX_KEY_BYTES => Err(KeyError::TooLong { length }),
            _ => Ok(Key(bytes)),
        }
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({self})")
    }
}

/// One change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets the value, whether or not the key exists.
    Put {
        /// The key to set.
        key: Key,
        /// Its new value; may be empty.
        value: Bytes,
        /// The lease with which the key goes; `None` for one that stays.
        lease: Option<LeaseId>,
    },
    /// Removes the key; of an absent key, does nothing.
    Delete {
        /// The key to remove.
        key: Key,
    },
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }

    /// Bytes of key and value.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Write::Put { key, value, .. } => key.0.len() + value.len(),
            Write::Delete { key } => key.0.len(),
        }
    }
}

/// What a [`Condition`] demands of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The key does not exist.
    Absent,
    /// The key exists, whatever its revision.
    Present,
    /// The key was last written by exactly this transaction; 0 means absent.
    ModifiedAt(Revision),
    /// The key was last written by this transaction or an earlier one, or does not exist.
    NotModifiedSince(Revision),
}

impl Expected {
    /// Whether a key last modified at `found` (0 if absent) is as expected.
    #[must_use]
    pub fn holds(self, found: Revision) -> bool {
        match self {
            Expected::Absent => found == Revision::ZERO,
            Expected::Present => found > Revision::ZERO,
            Expected::ModifiedAt(revision) => found == revision,
            Expected::NotModifiedSince(revision) => found <= revision,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Absent => write!(formatter, "absent"),
            Expected::Present => write!(formatter, "present"),
            Expected::ModifiedAt(revision) => write!(formatter, "modified at {revision}"),
            Expected::NotModifiedSince(revision) => {
                write!(formatter, "not modified since {revision}")
            }
        }
    }
}

/// A demand on one key, judged before the writes of its transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key that is looked at.
    pub key: Key,
    /// What must hold of it.
    pub expected: Expected,
}

/// Writes that happen together if all conditions hold, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold; may be empty.
    pub conditions: Vec<Condition>,
    /// Applied in this order; each key at most once.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// A transaction without conditions or writes, to be filled.
    #[must_use]
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn require(mut self, key: Key, expected: Expected) -> Transaction {
        self.conditions.push(Condition { key, expected });
        self
    }

    /// Adds a put.
    #[must_use]
    pub fn put(mut self, key: Key, value: impl Into<Bytes>) -> Transaction {
        let value = value.into();
        self.writes.push(Write::Put { key, value, lease: None });
        self
    }

    /// Adds a put of a key that goes when `lease` ends.
    #[must_use]
    pub fn put_leased(mut self, key: Key, value: impl Into<Bytes>, lease: LeaseId) -> Transaction {
        let value = value.into();
        self.writes.push(Write::Put { key, value, lease: Some(lease) });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Transaction {
        self.writes.push(Write::Delete { key });
        self
    }

    /// Bytes of all keys and values, those of the conditions included.
    #[must_use]
    pub fn size(&self) -> usize {
        let conditions: usize = self.conditions.iter().map(|c| c.key.0.len()).sum();
        let writes: usize = self.writes.iter().map(Write::size).sum();
        conditions + writes
    }

    /// Checks what can be judged without a store; every implementation calls it first.
    ///
    /// # Errors
    /// [`CommitError::Empty`], [`CommitError::TooLarge`] or [`CommitError::DuplicateKey`].
    pub fn check(&self) -> Result<(), CommitError> {
        if self.writes.is_empty() {
            return Err(CommitError::Empty);
        }
        let measures = [
            (Quantity::Writes, self.writes.len(), MAX_TRANSACTION_OPERATIONS),
            (Quantity::Conditions, self.conditions.len(), MAX_TRANSACTION_CONDITIONS),
            (Quantity::Bytes, self.size(), MAX_TRANSACTION_BYTES),
        ];
        for (quantity, found, limit) in measures {
            if found > limit {
                return Err(CommitError::TooLarge { quantity, found, limit });
            }
        }
        let mut seen = BTreeSet::new();
        for write in &self.writes {
            if !seen.insert(write.key()) {
                let key = write.key().clone();
                return Err(CommitError::DuplicateKey { key });
            }
        }
        Ok(())
    }
}

/// A key as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value.
    pub value: Bytes,
    /// The transaction that put the key when it was last absent.
    pub created: Revision,
    /// The transaction that put the key last.
    pub modified: Revision,
    /// Whether it goes with a lease.
    pub leased: bool,
}

/// Everything in the store at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last transaction contained; watch from here to miss nothing.
    pub revision: Revision,
    /// All keys, in bytewise order.
    pub entries: Vec<Entry>,
}

/// One durable transaction, as watchers receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The transaction's number.
    pub revision: Revision,
    /// What it changed, in its own order; deletes of absent keys are left out.
    pub writes: Arc<[Write]>,
}

impl Committed {
    /// Bytes of all keys and values.
    #[must_use]
    pub fn size(&self) -> usize {
        self.writes.iter().map(Write::size).sum()
    }
}
