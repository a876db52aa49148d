//! Reading a snapshot file, piece by piece. What it says is not trusted: lengths are held against limits before anything is
//! made of them, and nothing is believed before the checksum at its end.

use sha2::{Digest, Sha256};

use super::{
    CHECKSUM_BYTES, Checksum, HEADER_BYTES_MAX, Header, KEY_BYTES_MAX, MAGIC, RECORD_HEAD_BYTES, StoredRecord, TAG_END,
    TAG_RECORD, VALUE_BYTES_MAX, VERSION, fault,
};

/// Bytes of the end: its tag and the number of records.
const END_BYTES: usize = 1 + 8;

/// Why bytes are no snapshot file. Offsets count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Something else altogether.
    #[error("this is no snapshot of Starling's: it does not begin like one")]
    Foreign,
    /// A later release wrote it.
    #[error(
        "the snapshot is of format {found}, this release understands up to {VERSION}: use the release that wrote it, or a later one"
    )]
    Newer {
        /// Its format.
        found: u32,
    },
    /// It ends too early.
    #[error("the snapshot ends after {length} bytes, in the middle of {within}: it is not whole")]
    Truncated {
        /// Bytes that there are.
        length: u64,
        /// What is cut off.
        within: &'static str,
    },
    /// The header cannot be read.
    #[error("the snapshot is damaged: its header at byte {at} cannot be read: {reason}")]
    Header {
        /// Where it begins.
        at: u64,
        /// What is wrong.
        reason: String,
    },
    /// A record cannot be read.
    #[error("the snapshot is damaged: record {number} at byte {at}: {reason}")]
    Record {
        /// Where it begins.
        at: u64,
        /// Counted from 1.
        number: u64,
        /// What is wrong.
        reason: String,
    },
    /// The number of records is not what the end says.
    #[error("the snapshot is damaged: it says that it has {said} records, and has {found}")]
    Count {
        /// As the end says.
        said: u64,
        /// As were found.
        found: u64,
    },
    /// The checksum is another.
    #[error("the snapshot is damaged: its checksum is {found}, and should be {said}")]
    Checksum {
        /// As the file says.
        said: Checksum,
        /// Of what there is.
        found: Checksum,
    },
    /// Something follows the end.
    #[error("the snapshot ends at byte {at}, and something follows")]
    Trailing {
        /// Where it ends.
        at: u64,
    },
}

/// What has been read of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Where the snapshot is from; comes first, and once.
    Header(Header),
    /// The next record. Nothing is certain of it before [`Decoder::finish`] has succeeded.
    Record(StoredRecord),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    Magic,
    Header,
    Record,
    Checksum,
    Nothing,
}

/// Reads one snapshot file from pieces of any size.
///
/// [`Decoder::push`] a piece, take what it holds by [`Decoder::next`] until there is nothing, and [`Decoder::finish`] after
/// the last one. After an error it is of no further use.
#[derive(Debug)]
pub struct Decoder {
    digest: Sha256,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are done with.
    taken: usize,
    /// Where in the file the buffer begins.
    base: u64,
    expects: Expects,
    revision: u64,
    count: u64,
    last_key: Option<Vec<u8>>,
    checksum: Option<Checksum>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            digest: Sha256::new(),
            buffer: Vec::new(),
            taken: 0,
            base: 0,
            expects: Expects::Magic,
            revision: 0,
            count: 0,
            last_key: None,
            checksum: None,
        }
    }
}

impl Decoder {
    /// Takes the next piece of the file.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.drain(..self.taken);
        self.base += self.taken as u64;
        self.taken = 0;
        self.buffer.extend_from_slice(piece);
    }

    /// What comes next, if enough of the file is there.
    ///
    /// # Errors
    /// [`SnapshotError`] if the file is no good.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and goes on after None")]
    pub fn next(&mut self) -> Result<Option<Item>, SnapshotError> {
        loop {
            let item = match self.expects {
                Expects::Magic => {
                    if !self.magic()? {
                        return Ok(None);
                    }
                    continue;
                }
                Expects::Header => self.header()?.map(Item::Header),
                Expects::Record => match self.record()? {
                    Some(Some(record)) => Some(Item::Record(record)),
                    Some(None) => continue,
                    None => None,
                },
                Expects::Checksum => {
                    if !self.checksum()? {
                        return Ok(None);
                    }
                    continue;
                }
                Expects::Nothing if self.rest().is_empty() => None,
                Expects::Nothing => return Err(SnapshotError::Trailing { at: self.at() }),
            };
            return Ok(item);
        }
    }

    /// Says that the file ends here, and what its checksum is. Only now it is known to be whole.
    ///
    /// # Errors
    /// [`SnapshotError::Truncated`], or what [`Decoder::next`] would have said.
    pub fn finish(mut self) -> Result<Checksum, SnapshotError> {
        // What is left over may be what is wrong.
        while self.next()?.is_some() {}
        let length = self.base + self.buffer.len() as u64;
        let within = match (self.expects, self.checksum) {
            (Expects::Nothing, Some(checksum)) => return Ok(checksum),
            (Expects::Magic, _) => "its first bytes",
            (Expects::Header, _) => "its header",
            (Expects::Record, _) => "its records",
            (Expects::Checksum | Expects::Nothing, _) => "its checksum",
        };
        Err(SnapshotError::Truncated { length, within })
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    fn at(&self) -> u64 {
        self.base + self.taken as u64
    }

    /// Done with some bytes, which the checksum speaks of.
    fn take(&mut self, length: usize) {
        self.digest.update(&self.buffer[self.taken..self.taken + length]);
        self.taken += length;
    }

    /// Whether the first bytes are there and right.
    fn magic(&mut self) -> Result<bool, SnapshotError> {
        let rest = self.rest();
        let known = rest.len().min(MAGIC.len());
        if rest[..known] != MAGIC[..known] {
            return Err(SnapshotError::Foreign);
        }
        let Some(version) = u32_at(rest, MAGIC.len()) else { return Ok(false) };
        if version == 0 {
            return Err(SnapshotError::Foreign);
        }
        if version > VERSION {
            return Err(SnapshotError::Newer { found: version });
        }
        self.take(MAGIC.len() + 4);
        self.expects = Expects::Header;
        Ok(true)
    }

    fn header(&mut self) -> Result<Option<Header>, SnapshotError> {
        let at = self.at();
        let damaged = |reason: String| SnapshotError::Header { at, reason };
        let Some(length) = u32_at(self.rest(), 0).map(|length| length as usize) else { return Ok(None) };
        if length > HEADER_BYTES_MAX {
            return Err(damaged(format!("it would have {length} bytes; {HEADER_BYTES_MAX} may be")));
        }
        let Some(json) = self.rest().get(4..4 + length) else { return Ok(None) };
        let header: Header = serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
        self.take(4 + length);
        self.expects = Expects::Record;
        self.revision = header.revision;
        Ok(Some(header))
    }

    /// The next record; `Some(None)` if there are no more of them.
    fn record(&mut self) -> Result<Option<Option<StoredRecord>>, SnapshotError> {
        let (at, number) = (self.at(), self.count + 1);
        let damaged = |reason: String| SnapshotError::Record { at, number, reason };
        match self.rest().first() {
            None => return Ok(None),
            Some(&TAG_END) => return self.end().map(|ended| ended.then_some(None)),
            Some(&TAG_RECORD) => {}
            Some(other) => return Err(damaged(format!("it begins with {other:#04x}, which no record does"))),
        }
        let head = (u32_at(self.rest(), 1), u32_at(self.rest(), 5), u64_at(self.rest(), 9), u64_at(self.rest(), 17));
        let (Some(key), Some(value), Some(created), Some(modified)) = head else { return Ok(None) };
        let (key, value) = (key as usize, value as usize);
        // Before waiting for so many bytes: they may never have been meant.
        if key > KEY_BYTES_MAX || value > VALUE_BYTES_MAX {
            return Err(damaged(format!("key and value would have {key} and {value} bytes")));
        }
        let length = RECORD_HEAD_BYTES + key + value;
        let Some(bytes) = self.rest().get(RECORD_HEAD_BYTES..length) else { return Ok(None) };
        let (key, value) = bytes.split_at(key);
        let record = StoredRecord { key: key.to_vec(), value: value.to_vec(), created, modified };
        if let Some(reason) = fault(&record, self.revision, self.last_key.as_deref()) {
            return Err(damaged(reason));
        }
        self.take(length);
        self.count = number;
        self.last_key = Some(record.key.clone());
        Ok(Some(Some(record)))
    }

    /// Whether the end is there.
    fn end(&mut self) -> Result<bool, SnapshotError> {
        let Some(said) = u64_at(self.rest(), 1) else { return Ok(false) };
        if said != self.count {
            return Err(SnapshotError::Count { said, found: self.count });
        }
        self.take(END_BYTES);
        self.expects = Expects::Checksum;
        Ok(true)
    }

    /// Whether the checksum is there and right.
    fn checksum(&mut self) -> Result<bool, SnapshotError> {
        let Some(said) = self.rest().first_chunk::<CHECKSUM_BYTES>().copied().map(Checksum) else { return Ok(false) };
        let found = Checksum(self.digest.clone().finalize().into());
        if said != found {
            return Err(SnapshotError::Checksum { said, found });
        }
        self.taken += CHECKSUM_BYTES;
        self.expects = Expects::Nothing;
        self.checksum = Some(found);
        Ok(true)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
