//! Reading a snapshot file to its end, which is the only way to know that it is good.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use starling_backup::Summary;
use starling_backup::file::{Checksum, Decoder, Header, Item, SnapshotError, StoredRecord};

use crate::outcome::usage;

/// Bytes read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// What a snapshot that was found good is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) header: Header,
    pub(super) summary: Summary,
    pub(super) checksum: Checksum,
}

/// A snapshot that is being read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    decoder: Decoder,
    header: Option<Header>,
    summary: Summary,
}

impl Reading {
    /// Takes the next piece, and hands its records to `take`.
    pub(super) fn push(&mut self, piece: &[u8], mut take: impl FnMut(StoredRecord)) -> Result<(), SnapshotError> {
        self.decoder.push(piece);
        while let Some(item) = self.decoder.next()? {
            match item {
                Item::Header(header) => self.header = Some(header),
                Item::Record(record) => {
                    self.summary.add(&record);
                    take(record);
                }
            }
        }
        Ok(())
    }

    /// What it is, now that all of it was read.
    pub(super) fn finish(self) -> Result<Verified, SnapshotError> {
        let checksum = self.decoder.finish()?;
        let header = self.header.ok_or(SnapshotError::Truncated { length: 0, within: "its header" })?;
        Ok(Verified { header, summary: self.summary, checksum })
    }
}

/// Reads a file, handing its records to `take`; they are good only if this succeeds.
pub(super) fn read(path: &Path, mut take: impl FnMut(StoredRecord)) -> anyhow::Result<Verified> {
    let name = || path.display().to_string();
    let mut file = File::open(path).map_err(|error| usage(format!("cannot open {}: {error}", name())))?;
    let mut reading = Reading::default();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = file.read(&mut piece).with_context(|| format!("reading {}", name()))?;
        if length == 0 {
            return reading.finish().with_context(name);
        }
        reading.push(&piece[..length], &mut take).with_context(name)?;
    }
}
