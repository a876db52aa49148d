//! Writing a snapshot file, piece by piece.

use sha2::{Digest, Sha256};

use super::{
    Checksum, HEADER_BYTES_MAX, Header, MAGIC, RECORD_HEAD_BYTES, StoredRecord, TAG_END, TAG_RECORD, VERSION, fault,
};

/// Why something cannot be in a snapshot file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The header is too long.
    #[error("the header of a snapshot would have {0} bytes; {HEADER_BYTES_MAX} may be")]
    Header(usize),
    /// A record is none that a store may have.
    #[error("record {number} cannot be saved: {reason}")]
    Record {
        /// Counted from 1.
        number: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// Writes one snapshot file into buffers of the caller's.
#[derive(Debug)]
pub struct Encoder {
    digest: Sha256,
    revision: u64,
    count: u64,
    last_key: Option<Vec<u8>>,
}

impl Encoder {
    /// Begins a file: appends what comes before the first record.
    ///
    /// # Errors
    /// [`EncodeError::Header`].
    pub fn begin(header: &Header, out: &mut Vec<u8>) -> Result<Self, EncodeError> {
        let json = serde_json::to_vec(header).expect("invariant: texts and numbers always serialise");
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        if json.len() > HEADER_BYTES_MAX {
            return Err(EncodeError::Header(json.len()));
        }
        let mut this = Self { digest: Sha256::new(), revision: header.revision, count: 0, last_key: None };
        let start = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&json);
        this.digest.update(&out[start..]);
        Ok(this)
    }

    /// Appends a record. They come in the order of their keys.
    ///
    /// # Errors
    /// [`EncodeError::Record`]; nothing is appended then.
    pub fn record(&mut self, record: &StoredRecord, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if let Some(reason) = fault(record, self.revision, self.last_key.as_deref()) {
            return Err(EncodeError::Record { number: self.count + 1, reason });
        }
        let start = out.len();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        out.reserve(RECORD_HEAD_BYTES + record.key.len() + record.value.len());
        out.push(TAG_RECORD);
        out.extend_from_slice(&length(&record.key));
        out.extend_from_slice(&length(&record.value));
        out.extend_from_slice(&record.created.to_le_bytes());
        out.extend_from_slice(&record.modified.to_le_bytes());
        out.extend_from_slice(&record.key);
        out.extend_from_slice(&record.value);
        self.digest.update(&out[start..]);
        self.count += 1;
        self.last_key = Some(record.key.clone());
        Ok(())
    }

    /// Appends the end of the file.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Checksum {
        let start = out.len();
        out.push(TAG_END);
        out.extend_from_slice(&self.count.to_le_bytes());
        self.digest.update(&out[start..]);
        let checksum = Checksum(self.digest.finalize().into());
        out.extend_from_slice(&checksum.0);
        checksum
    }
}
