//! What holds of a snapshot file, whatever its bytes. Included by the fuzz target and by the test that replays what it has
//! found.

use starling_backup::file::{Checksum, Decoder, Encoder, Item, SnapshotError};

/// It is read alike in pieces of any size, and one that is believed is, byte for byte, what writing it would give.
pub fn snapshot(data: &[u8]) {
    let piece = data.first().map_or(1, |byte| usize::from(*byte) + 1);
    let whole = read(data, data.len().max(1));
    assert_eq!(whole, read(data, piece));
    let Ok((items, checksum)) = whole else { return };
    let mut items = items.into_iter();
    let Some(Item::Header(header)) = items.next() else { panic!("no header comes first") };
    let mut again = Vec::new();
    let mut encoder = Encoder::begin(&header, &mut again).expect("it was read");
    let header_end = again.len();
    for item in items {
        let Item::Record(record) = item else { panic!("a second header") };
        encoder.record(&record, &mut again).expect("it was read");
    }
    let written = encoder.finish(&mut again);
    // JSON has many forms for one header; of the rest there is one.
    if data.get(..header_end) == again.get(..header_end) {
        assert_eq!((data, checksum), (&again[..], written));
    }
}

type Whole = (Vec<Item>, Checksum);

fn read(data: &[u8], piece: usize) -> Result<Whole, SnapshotError> {
    let mut decoder = Decoder::default();
    let mut items = Vec::new();
    for piece in data.chunks(piece) {
        decoder.push(piece);
        while let Some(item) = decoder.next()? {
            items.push(item);
        }
    }
    decoder.finish().map(|checksum| (items, checksum))
}
