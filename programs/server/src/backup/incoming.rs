//! A snapshot file on its way in: read piece by piece, and nothing of it used before all of it was found good.

use starling_backup::file::{Decoder, Header, Item, SnapshotError, StoredRecord};
use starling_backup::is_saved;
use starling_backup::plan::Records;
use starling_model::{Record, RecordError, RecordKey};

/// A snapshot file that is being read.
#[derive(Debug, Default)]
pub struct Incoming {
    decoder: Decoder,
    header: Option<Header>,
    records: Records,
}

/// Why a snapshot cannot be restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// The file is no good.
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// It is whole, but this release does not understand what is in it.
    #[error("the snapshot holds what this release does not understand: use the release that saved it, or a later one")]
    Record(#[from] RecordError),
    /// A key is no text.
    #[error("the snapshot is of another kind of store: its key {0} is none of Starling's")]
    Key(String),
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
                Item::Record(record) => self.take(&record)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, stored: &StoredRecord) -> Result<(), IncomingError> {
        if !is_saved(&stored.key) {
            return Ok(());
        }
        let text =
            std::str::from_utf8(&stored.key).map_err(|_| IncomingError::Key(stored.key.escape_ascii().to_string()))?;
        let key = RecordKey::decode(text)?;
        let record = Record::decode(&key, &stored.value)?;
        self.records.insert(key, record);
        Ok(())
    }

    /// The whole of it.
    ///
    /// # Errors
    /// [`IncomingError`]
    pub fn finish(self) -> Result<(Header, Records), IncomingError> {
        let length = SnapshotError::Truncated { length: 0, within: "its header" };
        self.decoder.finish()?;
        Ok((self.header.ok_or(length)?, self.records))
    }
}
