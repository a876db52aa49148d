//! The high-water mark: the last revision known to be durable, kept beside the database.
//!
//! A database whose newest commit is damaged looks exactly like one whose newest commit was
//! interrupted, and is rolled back by one commit either way. The mark tells them apart: it is
//! written only after the commit was synced, so a database behind its mark has lost acknowledged
//! data. It is never synced itself; after a power cut it may be behind, which is harmless.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::door::OpenError;
use super::{FILE_MODE, sync_directory};
use crate::transaction::Revision;

/// Name of the mark's file in the data directory.
pub(super) const FILE_NAME: &str = "store.acknowledged";

/// First word of the file.
const TITLE: &str = "starling-acknowledged";

/// Decimal digits of a revision, so that a rewrite in place always has one length.
const DIGITS: usize = 20;

/// Longest content that is read: far more than a mark, and bounded whatever the file is.
const MAX_FILE_BYTES: u64 = 256;

#[derive(Debug)]
pub(super) struct Acknowledged {
    file: File,
}

impl Acknowledged {
    /// Reads the mark, without changing anything; `None` if there is no file.
    pub(super) fn read(directory: &Path) -> Result<Option<Revision>, OpenError> {
        let path = directory.join(FILE_NAME);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(OpenError::io(&path, "inspect", source)),
        };
        if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
            return Err(OpenError::BadMark { path });
        }
        let content = fs::read(&path).map_err(|source| OpenError::io(&path, "read", source))?;
        match parse(&content) {
            Some(revision) => Ok(Some(revision)),
            None => Err(OpenError::BadMark { path }),
        }
    }

    /// Opens the mark for writing; makes the file, holding `revision`, if there is none.
    pub(super) fn open(directory: &Path, revision: Revision) -> Result<Acknowledged, OpenError> {
        let path = directory.join(FILE_NAME);
        let file = match OpenOptions::new().write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(directory, revision).map_err(|source| OpenError::io(&path, "create", source))?
            }
            Err(source) => return Err(OpenError::io(&path, "open", source)),
        };
        Ok(Acknowledged { file })
    }

    /// Raises the mark; `revision` must already be durable in the database.
    pub(super) fn record(&self, revision: Revision) -> io::Result<()> {
        self.file.write_all_at(render(revision).as_bytes(), 0)
    }
}

fn create(directory: &Path, revision: Revision) -> io::Result<File> {
    let fresh: PathBuf = directory.join(format!("{FILE_NAME}.new"));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&fresh)?;
    file.write_all_at(render(revision).as_bytes(), 0)?;
    file.sync_all()?;
    fs::rename(&fresh, directory.join(FILE_NAME))?;
    sync_directory(directory)?;
    Ok(file)
}

/// The revision stands there twice, so that damage to one is noticed.
fn render(revision: Revision) -> String {
    let number = revision.0;
    format!("{TITLE} {number:0DIGITS$} {number:0DIGITS$}\n")
}

fn parse(content: &[u8]) -> Option<Revision> {
    let text = std::str::from_utf8(content).ok()?;
    let revision = text.split(' ').nth(1)?.parse().ok().map(Revision)?;
    (render(revision) == text).then_some(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_and_damage_does_not() {
        for revision in [Revision(0), Revision(7), Revision(u64::MAX)] {
            assert_eq!(parse(render(revision).as_bytes()), Some(revision));
        }
        let good = render(Revision(1234));
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 1;
            assert_eq!(parse(&bad), None, "flipped byte {at}");
            assert_eq!(parse(&good.as_bytes()[..at]), None, "cut at {at}");
        }
    }
}
