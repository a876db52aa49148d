//! The snapshot file: what is written reads back, and what is not whole is never believed.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use proptest::prelude::*;
use starling_backup::file::{
    Checksum, Decoder, EncodeError, Encoder, Header, Item, SnapshotError, StoredRecord, VERSION,
};

#[path = "../../../fuzz/properties/snapshot.rs"]
mod property;

fn header(revision: u64) -> Header {
    Header { store: "0".repeat(32), revision, saved_at: 1_800_000_000, program: "0.1.0".to_owned() }
}

fn record(key: &str, value: &[u8], created: u64, modified: u64) -> StoredRecord {
    StoredRecord { key: key.into(), value: value.to_vec(), created, modified }
}

fn encoded(header: &Header, records: &[StoredRecord]) -> (Vec<u8>, Checksum) {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::begin(header, &mut bytes).unwrap();
    records.iter().for_each(|record| encoder.record(record, &mut bytes).unwrap());
    let checksum = encoder.finish(&mut bytes);
    (bytes, checksum)
}

fn decoded(bytes: &[u8], piece: usize) -> Result<(Header, Vec<StoredRecord>, Checksum), SnapshotError> {
    let mut decoder = Decoder::default();
    let (mut header, mut records) = (None, Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        while let Some(item) = decoder.next()? {
            match item {
                Item::Header(found) => assert!(header.replace(found).is_none(), "one header"),
                Item::Record(record) => records.push(record),
            }
        }
    }
    let checksum = decoder.finish()?;
    Ok((header.expect("a header before the end"), records, checksum))
}

fn three() -> (Header, Vec<StoredRecord>) {
    let records = [record("a/1", b"", 1, 7), record("a/2", b"two", 3, 3), record("b", &[0xff; 300], 2, 9)];
    (header(9), records.to_vec())
}

#[test]
fn a_damaged_byte_is_noticed_wherever_it_is() {
    let (header, records) = three();
    let (good, checksum) = encoded(&header, &records);
    assert_eq!(decoded(&good, 1), Ok((header, records, checksum)));
    for at in 0..good.len() {
        for bit in [0, 7] {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(decoded(&bad, 64).is_err(), "byte {at}, bit {bit}");
        }
        assert!(matches!(decoded(&good[..at], 64), Err(SnapshotError::Truncated { .. })), "cut at {at}");
    }
    let longer = [&good[..], b"\n"].concat();
    assert_eq!(decoded(&longer, 64), Err(SnapshotError::Trailing { at: good.len() as u64 }));
}

#[test]
fn what_is_wrong_is_said() {
    let (header, records) = three();
    let (good, _) = encoded(&header, &records);
    let said = |bytes: &[u8]| decoded(bytes, 4096).unwrap_err().to_string();
    assert!(said(b"PK\x03\x04").contains("no snapshot"), "foreign");
    let mut newer = good.clone();
    newer[13] = 9;
    assert_eq!(decoded(&newer, 4096), Err(SnapshotError::Newer { found: 9 }));
    assert!(said(&newer).contains(&format!("up to {VERSION}")));
    assert!(said(&good[..good.len() - 1]).contains("in the middle of its checksum"));
    assert!(said(&good[..60]).contains("in the middle of its header"));
    let at = good.windows(3).position(|part| part == b"a/2").unwrap();
    let mut order = good.clone();
    order[at + 2] = b'0';
    let text = said(&order);
    assert!(text.contains("record 2 at byte") && text.contains("a/0 does not come after"), "{text}");
    let mut value = good.clone();
    value[at + 3] ^= 1;
    assert!(said(&value).contains("checksum"), "{}", said(&value));
    let mut length = good;
    length[at - 17] = 0xff;
    assert!(said(&length).contains("would have"), "{}", said(&length));
}

#[test]
fn what_no_store_may_have_is_not_written() {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::begin(&header(9), &mut bytes).unwrap();
    let begun = bytes.len();
    let long = "k".repeat(1025);
    for wrong in [
        record("", b"", 1, 1),
        record(&long, b"", 1, 1),
        record("k", &vec![0; 1024 * 1024 + 1], 1, 1),
        record("k", b"", 0, 1),
        record("k", b"", 2, 1),
        record("k", b"", 1, 10),
    ] {
        assert!(matches!(encoder.record(&wrong, &mut bytes), Err(EncodeError::Record { number: 1, .. })), "{wrong:?}");
    }
    assert_eq!(bytes.len(), begun);
    encoder.record(&record("k", b"", 1, 1), &mut bytes).unwrap();
    assert!(encoder.record(&record("k", b"", 1, 1), &mut bytes).is_err(), "twice");
}

proptest! {
    #[test]
    fn whatever_is_written_reads_back_in_pieces_of_any_size(
        entries in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..20),
            (proptest::collection::vec(any::<u8>(), 0..200), 1..1_000_u64, 0..1_000_u64),
            0..20,
        ),
        piece in 1..2_000_usize,
    ) {
        let records: Vec<_> = entries
            .into_iter()
            .map(|(key, (value, created, more))| StoredRecord { key, value, created, modified: created + more })
            .collect();
        let (bytes, checksum) = encoded(&header(2_000), &records);
        prop_assert_eq!(decoded(&bytes, piece), Ok((header(2_000), records, checksum)));
        property::snapshot(&bytes);
    }
}

#[test]
fn what_fuzzing_has_kept_holds() {
    let folder = format!("{}/../../fuzz/corpus/snapshot", env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        property::snapshot(&std::fs::read(file.unwrap().path()).unwrap());
        seen += 1;
    }
    assert!(seen > 0, "{folder} is empty");
}
