//! What a store holds, as far as it is kept, and by what two of them are compared.

use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use starling_backup::file::StoredRecord;
use starling_backup::{Summary, is_saved, kind_of};
use starling_store::{Entry, Key, Revision, Snapshot};

/// The kind of the records of servers that run.
const SERVER_KIND: &str = "server";

/// Everything in a store that is to be kept, by key.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// The store's id.
    pub(crate) store: String,
    /// Its last revision.
    pub(crate) revision: Revision,
    /// Its entries, in the order of their keys.
    pub(crate) entries: Vec<Entry>,
    /// The keys of servers that are running on it.
    pub(crate) servers: Vec<String>,
}

/// SHA-256 over keys and values: equal for two stores that hold the same, whatever their revisions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Content {
    pub(super) fn of(store: String, snapshot: Snapshot) -> Self {
        let Snapshot { revision, mut entries } = snapshot;
        let server = |entry: &Entry| kind_of(entry.key.as_bytes()) == SERVER_KIND;
        let servers = entries.iter().filter(|entry| server(entry)).map(|entry| entry.key.to_string()).collect();
        entries.retain(|entry| !entry.leased && is_saved(entry.key.as_bytes()));
        Self { store, revision, entries, servers }
    }

    /// What was read of a snapshot file.
    pub(crate) fn from_records(store: String, revision: u64, records: Vec<StoredRecord>) -> anyhow::Result<Self> {
        let entry = |record: StoredRecord| {
            anyhow::Ok(Entry {
                key: Key::new(record.key)?,
                value: record.value.into(),
                created: Revision(record.created),
                modified: Revision(record.modified),
                leased: false,
            })
        };
        let records = records.into_iter().filter(|record| is_saved(&record.key));
        let entries = records.map(entry).collect::<anyhow::Result<_>>()?;
        Ok(Self { store, revision: Revision(revision), entries, servers: Vec::new() })
    }

    /// The entries as a snapshot file has them.
    pub(crate) fn records(&self) -> impl Iterator<Item = StoredRecord> {
        self.entries.iter().map(|entry| StoredRecord {
            key: entry.key.as_bytes().to_vec(),
            value: entry.value.to_vec(),
            created: entry.created.0,
            modified: entry.modified.0,
        })
    }

    /// What there is, counted.
    pub(crate) fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        self.records().for_each(|record| summary.add(&record));
        summary
    }

    /// What it is compared by.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut digest = Sha256::new();
        for entry in &self.entries {
            for part in [entry.key.as_bytes(), &entry.value] {
                digest.update((part.len() as u64).to_le_bytes());
                digest.update(part);
            }
        }
        Fingerprint(digest.finalize().into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.0.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a text never fails.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        f.write_str(&hex)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(entries: &[(&str, &str, u64)]) -> Content {
        let entry = |(key, value, at): &(&str, &str, u64)| Entry {
            key: Key::new((*key).to_owned()).unwrap(),
            value: (*value).to_owned().into(),
            created: Revision(*at),
            modified: Revision(*at),
            leased: *key == "leased",
        };
        let entries = entries.iter().map(entry).collect();
        Content::of("id".to_owned(), Snapshot { revision: Revision(9), entries })
    }

    #[test]
    fn what_is_compared_is_what_is_kept_and_not_its_revisions() {
        let one = content(&[("a", "1", 1), ("attachment/n", "x", 1), ("leased", "x", 3), ("server/ab", "x", 2)]);
        let other = content(&[("a", "1", 7)]);
        assert_eq!(one.fingerprint(), other.fingerprint());
        assert_eq!((one.servers.len(), one.entries.len()), (1, 1));
        for different in [&[("a", "2", 1)][..], &[("a1", "", 1)], &[], &[("a", "1", 1), ("b", "", 1)]] {
            assert_ne!(content(different).fingerprint(), other.fingerprint(), "{different:?}");
        }
    }
}
