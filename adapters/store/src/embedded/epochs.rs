//! The openings of a database, each with a random name: what tells a database from a copy of it that went its own way.
//!
//! A copy has the openings up to when it was made, and then others than the original. Written before the first transaction
//! of the opening, so that no revision is ever of none.

use redb::{Database, ReadableTable};

use super::door::META;
use crate::transaction::Revision;

/// In [`META`]: the openings, oldest first, each its name and the revision before it, two `u64`, little endian.
const EPOCHS: &str = "epochs";

/// Openings that are remembered: whoever has missed more is treated as one from elsewhere.
pub const EPOCHS_MAX: usize = 64;

/// Bytes of one.
const EPOCH_BYTES: usize = 16;

/// One opening of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its name; never 0.
    pub id: u64,
    /// The last revision before it.
    pub after: Revision,
}

/// Begins one at `revision`, and answers with all that are remembered, this one last.
pub(super) fn begin(database: &Database, revision: Revision) -> Result<Vec<Epoch>, redb::Error> {
    let transaction = database.begin_write()?;
    let epochs = {
        let mut meta = transaction.open_table(META)?;
        let mut epochs = meta.get(EPOCHS)?.map(|bytes| decode(bytes.value())).unwrap_or_default();
        epochs.push(Epoch { id: fastrand::u64(1..), after: revision });
        epochs.drain(..epochs.len().saturating_sub(EPOCHS_MAX));
        meta.insert(EPOCHS, &*encode(&epochs))?;
        epochs
    };
    transaction.commit()?;
    Ok(epochs)
}

fn encode(epochs: &[Epoch]) -> Vec<u8> {
    epochs.iter().flat_map(|epoch| [epoch.id, epoch.after.0]).flat_map(u64::to_le_bytes).collect()
}

/// What does not read as openings is none: everything can be sent anew.
fn decode(bytes: &[u8]) -> Vec<Epoch> {
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    let epoch = |bytes: &[u8]| {
        let (id, after) = bytes.split_at(EPOCH_BYTES / 2);
        Epoch { id: number(id), after: Revision(number(after)) }
    };
    bytes.chunks_exact(EPOCH_BYTES).map(epoch).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::{EmbeddedOptions, EmbeddedStore, Key, Store, Transaction};

    use super::*;

    #[tokio::test]
    async fn a_copy_shares_what_was_before_it_and_nothing_after() {
        let (directory, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |path| EmbeddedStore::open(path, EmbeddedOptions::default()).unwrap();
        let first = open(directory.path());
        assert_eq!(first.epochs().len(), 1);
        first.commit(Transaction::new().put(Key::new("a").unwrap(), "1")).await.unwrap();
        let begun = first.epochs().to_vec();
        assert_eq!(begun[0].after, Revision::ZERO);
        drop(first);
        fs::copy(directory.path().join("store.redb"), copy.path().join("store.redb")).unwrap();
        let (second, other) = (open(directory.path()), open(copy.path()));
        assert_eq!((second.epochs()[0], other.epochs()[0]), (begun[0], begun[0]));
        assert_eq!([second.epochs()[1].after, other.epochs()[1].after], [Revision(1); 2]);
        assert_ne!(second.epochs()[1].id, other.epochs()[1].id);
        assert_eq!(second.id(), other.id(), "which is why that does not tell");
    }

    #[test]
    fn only_the_last_are_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let database = Database::create(path).unwrap();
        let mut all = Vec::new();
        for revision in 0..EPOCHS_MAX as u64 + 3 {
            let epochs = begin(&database, Revision(revision)).unwrap();
            all.push(*epochs.last().unwrap());
            assert_eq!(epochs, all[all.len().saturating_sub(EPOCHS_MAX)..]);
        }
        assert!(all.iter().all(|epoch| epoch.id != 0));
    }
}
