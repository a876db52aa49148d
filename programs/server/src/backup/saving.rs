//! The snapshot file of a running server, made as it is read.

use std::vec;

use bytes::Bytes;
use starling_backup::file::{EncodeError, Encoder, Header, StoredRecord};
use starling_backup::is_saved;
use starling_model::Revision;
use starling_store::{Entry, LoadError};

use crate::server::{Server, now};

/// Bytes of a piece, give or take a record.
const PIECE_BYTES: usize = 64 * 1024;

/// What was in the store at one revision: an iterator over the pieces of its snapshot file.
#[derive(Debug)]
pub struct Saved {
    header: Header,
    entries: vec::IntoIter<Entry>,
    encoder: State,
}

#[derive(Debug)]
enum State {
    NotBegun,
    Begun(Box<Encoder>),
    Ended,
}

impl Saved {
    /// The revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision(self.header.revision)
    }

    fn piece(&mut self) -> Result<Option<Bytes>, EncodeError> {
        let mut out = Vec::with_capacity(PIECE_BYTES);
        let mut encoder = match std::mem::replace(&mut self.encoder, State::Ended) {
            State::NotBegun => Box::new(Encoder::begin(&self.header, &mut out)?),
            State::Begun(encoder) => encoder,
            State::Ended => return Ok(None),
        };
        while out.len() < PIECE_BYTES {
            let Some(entry) = self.entries.next() else {
                encoder.finish(&mut out);
                return Ok(Some(out.into()));
            };
            encoder.record(&record(&entry), &mut out)?;
        }
        self.encoder = State::Begun(encoder);
        Ok(Some(out.into()))
    }
}

impl Iterator for Saved {
    type Item = Result<Bytes, EncodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece().transpose()
    }
}

fn record(entry: &Entry) -> StoredRecord {
    StoredRecord {
        key: entry.key.as_bytes().to_vec(),
        value: entry.value.to_vec(),
        created: entry.created.0,
        modified: entry.modified.0,
    }
}

impl Server {
    /// What a snapshot of the store holds now: everything that was acknowledged, by whichever server, before this was called.
    ///
    /// # Errors
    /// [`LoadError`] if the store cannot be read.
    pub async fn save(&self) -> Result<Saved, LoadError> {
        let stored = self.store().load().await?;
        let mut entries = stored.entries;
        entries.retain(|entry| !entry.leased && is_saved(entry.key.as_bytes()));
        let header = Header {
            store: self.store().id().to_string(),
            revision: stored.revision.0,
            saved_at: now().0,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Saved { header, entries: entries.into_iter(), encoder: State::NotBegun })
    }
}
