//! The value of an entry in the database: two revisions, then the caller's bytes.
//!
//! Layout: creation revision, modification revision (each `u64`, little endian), value.

use crate::transaction::Revision;

/// Bytes before the caller's value.
const HEADER_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revisions {
    pub(super) created: Revision,
    pub(super) modified: Revision,
}

pub(super) fn encode(created: Revision, modified: Revision, value: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + value.len());
    record.extend_from_slice(&created.0.to_le_bytes());
    record.extend_from_slice(&modified.0.to_le_bytes());
    record.extend_from_slice(value);
    record
}

/// The parts of a record, or `None` if it is too short to be one.
pub(super) fn decode(record: &[u8]) -> Option<(Revisions, &[u8])> {
    let (created, rest) = record.split_first_chunk()?;
    let (modified, value) = rest.split_first_chunk()?;
    let created = Revision(u64::from_le_bytes(*created));
    let modified = Revision(u64::from_le_bytes(*modified));
    Some((Revisions { created, modified }, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_a_short_one_does_not() {
        let record = encode(Revision(3), Revision(9), b"value");
        let revisions = Revisions { created: Revision(3), modified: Revision(9) };
        assert_eq!(decode(&record), Some((revisions, &b"value"[..])));
        assert_eq!(decode(&record[..HEADER_BYTES]), Some((revisions, &b""[..])));
        assert_eq!(decode(&record[..HEADER_BYTES - 1]), None);
    }
}
