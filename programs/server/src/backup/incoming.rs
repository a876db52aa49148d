//! A snapshot file on its way in: read piece by piece, and nothing of it used before all of it was found good.

use std::collections::BTreeSet;

use starling_backup::file::{Decoder, Header, Item, SnapshotError, StoredRecord};
use starling_backup::is_saved;
use starling_backup::plan::Records;
use starling_catalog::{Interpreted, StoredWrite};
use starling_model::{Change, RecordKey};

/// A snapshot file that is being read.
#[derive(Debug, Default)]
pub struct Incoming {
    decoder: Decoder,
    header: Option<Header>,
    records: Records,
    unreadable: Unreadable,
}

/// Records of a snapshot file that this release cannot use.
#[derive(Debug, Clone, Default)]
pub struct Unreadable {
    /// How many there are.
    pub count: u64,
    /// Those with a key of this release: a restore leaves the present record as it is.
    pub keys: BTreeSet<RecordKey>,
}

/// Why a snapshot cannot be restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// The file is no good.
    #[error(transparent)]
    File(#[from] SnapshotError),
}

impl Incoming {
    /// Takes the next piece of the file.
    ///
    /// # Errors
    /// [`IncomingError`]
    pub fn push(&mut self, piece: &[u8]) -> Result<(), IncomingError> {
        self.decoder.push(piece);
        while let Some(item) = self.decoder.next()? {
            match item {
                Item::Header(header) => self.header = Some(header),
                Item::Record(record) => self.take(&record),
            }
        }
        Ok(())
    }

    fn take(&mut self, stored: &StoredRecord) {
        if !is_saved(&stored.key) {
            return;
        }
        let interpreted = Interpreted::of([StoredWrite { key: &stored.key, value: Some(&stored.value) }]);
        for (key, record) in interpreted.quarantined() {
            tracing::warn!(
                key,
                reason = record.reason,
                "the snapshot file holds a record that this release cannot use"
            );
            self.unreadable.count += 1;
        }
        for change in interpreted.changes {
            match change {
                Change::Put(record) => drop(self.records.insert(record.key(), record)),
                Change::Delete(key) => drop(self.unreadable.keys.insert(key)),
            }
        }
    }

    /// The whole of it.
    ///
    /// # Errors
    /// [`IncomingError`]
    pub fn finish(self) -> Result<(Header, Records, Unreadable), IncomingError> {
        let length = SnapshotError::Truncated { length: 0, within: "its header" };
        self.decoder.finish()?;
        Ok((self.header.ok_or(length)?, self.records, self.unreadable))
    }
}
