//! What of a store is saved, and what a snapshot holds, counted.

use std::collections::BTreeMap;

use crate::file::StoredRecord;

/// The kind of records that hold a CA's private key, sealed.
pub const SEALED_KEY_KIND: &str = "ca-key";

/// Kinds that speak of servers, agents and applications that are running: of no meaning, or a wrong one, at any other time.
const OF_THE_MOMENT: [&str; 6] = ["server", "leader", "attachment", "session", "session-renewal", "lock-delay"];

/// The kind of a record by its key: what stands before the first slash.
#[must_use]
pub fn kind_of(key: &[u8]) -> String {
    let kind = key.split(|byte| *byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(kind).into_owned()
}

/// Whether the record under a key belongs in a snapshot.
#[must_use]
pub fn is_saved(key: &[u8]) -> bool {
    !OF_THE_MOMENT.contains(&kind_of(key).as_str())
}

/// What there is, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Records by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Records in all.
    pub records: u64,
    /// Bytes of all keys and values.
    pub bytes: u64,
}

impl Summary {
    /// Counts a record.
    pub fn add(&mut self, record: &StoredRecord) {
        *self.kinds.entry(kind_of(&record.key)).or_default() += 1;
        self.records += 1;
        self.bytes += (record.key.len() + record.value.len()) as u64;
    }

    /// Whether there is a CA's private key, sealed.
    #[must_use]
    pub fn has_sealed_key(&self) -> bool {
        self.kinds.contains_key(SEALED_KEY_KIND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_speaks_of_who_runs_is_not_saved() {
        for key in ["server/ab12", "leader", "attachment/n1"] {
            assert!(!is_saved(key.as_bytes()), "{key}");
        }
        for key in ["node/n1", "config/mesh/mesh", "ca-root/aa:bb", "ca-key/aa", "servers/x", "leaders"] {
            assert!(is_saved(key.as_bytes()), "{key}");
        }
    }
}
