//! The high-water mark: how much of the journal was acknowledged, kept beside it.
//!
//! A journal that has lost its end looks exactly like one whose last write was interrupted. The mark tells them apart: it
//! is written only after the journal was synced, so a journal that ends before its mark has lost what somebody was told
//! is kept. It is never synced itself; after a power cut it may be behind, which is harmless.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Name of the mark's file in the agent's directory.
pub(super) const FILE: &str = "journal.acknowledged";

/// First word of the file.
const TITLE: &str = "starling-journal-acknowledged";

/// Longest content that is read: far more than a mark.
const FILE_BYTES_MAX: u64 = 256;

/// A place in the history of the journal; later ones are greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// How often the journal was written anew.
    pub(super) generation: u64,
    /// Bytes since then, of whole lines.
    pub(super) bytes: u64,
}

impl Mark {
    /// Reads the mark beside a journal, without changing anything; `None` if there is none. One that is damaged is
    /// [`io::ErrorKind::InvalidData`].
    pub(super) fn read(directory: &Path) -> io::Result<Option<Self>> {
        let path = directory.join(FILE);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut text = String::new();
        File::open(&path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Self::parse(&text).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Both numbers stand there twice, so that damage to one is noticed, and always in one length, so that a rewrite in
    /// place leaves nothing of the last.
    fn render(self) -> String {
        let numbers = format!("{:020} {:020}", self.generation, self.bytes);
        format!("{TITLE} {numbers} {numbers}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace().skip(1);
        let mut number = || words.next()?.parse().ok();
        let mark = Self { generation: number()?, bytes: number()? };
        (mark.render() == text).then_some(mark)
    }
}

/// The mark's file, open for raising.
#[derive(Debug)]
pub(super) struct Acknowledged(File);

impl Acknowledged {
    /// Makes the mark of a journal that was written anew and synced, in place of the mark of the one before.
    pub(super) fn begin(directory: &Path, mark: Mark) -> io::Result<Self> {
        let path = directory.join(FILE);
        let fresh = path.with_extension("acknowledged.tmp");
        // Never seen half made: a mark that is damaged keeps the agent from starting.
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        let acknowledged = Self(file);
        acknowledged.raise(mark)?;
        acknowledged.0.sync_all()?;
        fs::rename(&fresh, &path)?;
        Ok(acknowledged)
    }

    /// Raises the mark; the journal must have been synced up to there.
    pub(super) fn raise(&self, mark: Mark) -> io::Result<()> {
        self.0.write_all_at(mark.render().as_bytes(), 0)
    }
}
