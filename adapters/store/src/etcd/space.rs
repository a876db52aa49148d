//! Where in etcd's key space a store lives: everything under one prefix, so that etcd may hold other things, too.

use std::fmt;
use std::str::FromStr;

use bytes::{BufMut, Bytes, BytesMut};

use crate::transaction::Key;

/// Bytes of a prefix.
const PREFIX_BYTES_MAX: usize = 256;

/// Under the prefix: what the store says about itself.
const META: &str = "meta";

/// Under the prefix: the entries, each by its own key.
const RECORDS: &str = "records/";

/// Bytes of an ignored key that a log line shows: etcd sets no limit on keys.
const FOREIGN_KEY_SHOWN: usize = 128;

/// A prefix of etcd's keys, such as `/starling/`: begins and ends with a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPrefix(String);

/// Why a text is no [`EtcdPrefix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a prefix is made of letters, digits and any of - _ . between slashes, {PREFIX_BYTES_MAX} bytes at most")]
pub struct EtcdPrefixError;

impl Default for EtcdPrefix {
    fn default() -> Self {
        Self("/starling/".to_owned())
    }
}

impl fmt::Display for EtcdPrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for EtcdPrefix {
    type Err = EtcdPrefixError;

    /// Slashes at either end may be left out.
    fn from_str(text: &str) -> Result<Self, EtcdPrefixError> {
        let inner = text.trim_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_segment = |segment: &str| !segment.is_empty() && segment.chars().all(is_plain);
        if inner.len() + 2 > PREFIX_BYTES_MAX || !inner.split('/').all(is_segment) {
            return Err(EtcdPrefixError);
        }
        Ok(Self(format!("/{inner}/")))
    }
}

/// The keys under a prefix.
#[derive(Debug)]
pub(super) struct Space {
    /// Of what the store says about itself.
    pub(super) meta: Bytes,
    /// From here to [`Space::records_end`] is every entry.
    pub(super) records: Bytes,
    pub(super) records_end: Bytes,
    /// From here to [`Space::end`] is everything under the prefix.
    pub(super) all: Bytes,
    pub(super) end: Bytes,
}

impl Space {
    pub(super) fn new(prefix: &EtcdPrefix) -> Self {
        let records = format!("{prefix}{RECORDS}");
        Self {
            meta: format!("{prefix}{META}").into(),
            records_end: after(&records),
            records: records.into(),
            end: after(&prefix.0),
            all: prefix.0.clone().into(),
        }
    }

    /// Where an entry is.
    pub(super) fn key(&self, key: &Key) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.records.len() + key.as_bytes().len());
        bytes.put_slice(&self.records);
        bytes.put_slice(key.as_bytes());
        bytes.freeze()
    }

    /// The entry that is there; `None` if there can be none.
    pub(super) fn entry(&self, key: &Bytes) -> Option<Key> {
        let inner = key.strip_prefix(&self.records[..])?;
        Key::new(key.slice_ref(inner)).ok()
    }

    /// Logs a key under the prefix that no server writes: empty, too long, or outside the records. Always `None`.
    pub(super) fn warn_of_foreign(&self, key: &Bytes) -> Option<Key> {
        let shown = &key[..key.len().min(FOREIGN_KEY_SHOWN)];
        tracing::warn!(
            key = %shown.escape_ascii(),
            bytes = key.len(),
            prefix = %self.all.escape_ascii(),
            "ignored an etcd key that no server has written; delete it, or move it out of the prefix"
        );
        None
    }
}

/// The first key that does not begin with `prefix`, which ends with a slash.
fn after(prefix: &str) -> Bytes {
    let mut bytes = prefix.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last += 1;
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_slashes_around_plain_segments() {
        let parse = |text: &str| text.parse::<EtcdPrefix>().map(|prefix| prefix.to_string());
        for text in ["a/b", "/a/b", "a/b/", "/a/b/"] {
            assert_eq!(parse(text), Ok("/a/b/".to_owned()));
        }
        for text in ["", "/", "//", "a//b", "a b", "a/?", &"x".repeat(255)] {
            assert_eq!(parse(text), Err(EtcdPrefixError), "{text:?}");
        }
    }

    #[test]
    fn every_entry_lies_between_the_bounds_and_nothing_else_does() {
        let space = Space::new(&EtcdPrefix::default());
        for key in [vec![0], vec![0xff; 3], b"service/web".to_vec()] {
            let key = Key::new(key).unwrap();
            let place = space.key(&key);
            assert!(space.records < place && place < space.records_end && place < space.end);
            assert_eq!(space.entry(&place), Some(key));
        }
        assert!(space.meta > space.all && space.meta < space.records);
        assert_eq!(space.entry(&space.meta), None);
        assert_eq!(space.entry(&space.records), None, "the empty key is none");
    }
}
