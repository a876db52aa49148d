//! The snapshot file, in bytes.
//!
//! ```text
//! magic      13 bytes  89 53 54 41 52 4c 49 4e 47 0d 0a 1a 0a
//! version    u32       1
//! header     u32 length, JSON: store, revision, saved_at, program
//! record     01, u32 length of key, u32 length of value, u64 created, u64 modified, key, value
//!            … in the order of keys
//! end        02, u64 number of records
//! checksum   32 bytes  SHA-256 of everything before it
//! ```
//!
//! Numbers are little endian. The magic has a byte that is no text and line ends of both kinds, so that a transfer "as text"
//! is noticed at once. Nothing may follow the checksum.
//!
//! Both directions work piece by piece: what is in memory at a time is a piece and a record.

mod decoder;
mod encoder;

use serde::{Deserialize, Serialize};

pub use decoder::{Decoder, Item, SnapshotError};
pub use encoder::{EncodeError, Encoder};

/// First bytes of every snapshot file.
const MAGIC: &[u8; 13] = b"\x89STARLING\r\n\x1a\n";

/// The layout written and understood here.
pub const VERSION: u32 = 1;

/// Bytes of a header; a hundred times what one needs.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a key; the store's limit.
pub const KEY_BYTES_MAX: usize = 1024;

/// Bytes of a value; the store's limit for a transaction.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes before the key of a record: its tag, two lengths and two revisions.
const RECORD_HEAD_BYTES: usize = 1 + 4 + 4 + 8 + 8;

const TAG_RECORD: u8 = 1;
const TAG_END: u8 = 2;

/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 32;

/// The SHA-256 that a file ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub [u8; CHECKSUM_BYTES]);

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where a snapshot is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The store's id.
    pub store: String,
    /// The revision at which the store was as the file has it.
    pub revision: u64,
    /// When that was; seconds since 1970, UTC.
    pub saved_at: u64,
    /// The version of the program that saved it.
    pub program: String,
}

/// One key of the store, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The key: 1 to [`KEY_BYTES_MAX`] bytes.
    pub key: Vec<u8>,
    /// The value: [`VALUE_BYTES_MAX`] bytes at most.
    pub value: Vec<u8>,
    /// The revision at which the key was made.
    pub created: u64,
    /// The revision at which it was last written.
    pub modified: u64,
}

/// Why a record is none that a store may have.
fn fault(record: &StoredRecord, revision: u64, before: Option<&[u8]>) -> Option<String> {
    let StoredRecord { key, value, created, modified } = record;
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Some(format!("its key has {} bytes; 1 to {KEY_BYTES_MAX} may be", key.len()));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Some(format!("its value has {} bytes; {VALUE_BYTES_MAX} may be", value.len()));
    }
    if before.is_some_and(|before| before >= &key[..]) {
        return Some(format!("its key {} does not come after the one before it", key.escape_ascii()));
    }
    if *created == 0 || created > modified || *modified > revision {
        let of = format!("made at {created} and written at {modified}");
        return Some(format!("{} would be {of} in a store at revision {revision}", key.escape_ascii()));
    }
    None
}
