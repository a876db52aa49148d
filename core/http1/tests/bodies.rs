//! Where bodies end, however they arrive.

use bytes::BytesMut;
use proptest::prelude::*;
use starling_http1::{BodyError, BodyLength, BodyReader, Piece, put_chunk_head, put_last_chunk};

/// The body read from text that comes in pieces of `step` bytes, and what is left behind it.
fn read(length: BodyLength, text: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), BodyError> {
    let mut reader = BodyReader::new(length);
    let (mut body, mut buffer) = (Vec::new(), BytesMut::new());
    let mut parts = text.chunks(step);
    loop {
        match reader.next(&buffer)? {
            Piece::Data(count) => body.extend_from_slice(&buffer.split_to(count)),
            Piece::Framing(count) => drop(buffer.split_to(count)),
            Piece::More => match parts.next() {
                Some(part) => buffer.extend_from_slice(part),
                None => {
                    reader.close()?;
                    return Ok((body, buffer.to_vec()));
                }
            },
            Piece::End => {
                buffer.extend(parts.flatten());
                return Ok((body, buffer.to_vec()));
            }
        }
    }
}

#[test]
fn chunks_are_joined_and_what_surrounds_them_dropped() {
    let text = b"5;ext=1\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nx-sum: 1\r\n\r\nnext";
    for step in 1..text.len() {
        assert_eq!(read(BodyLength::Chunked, text, step), Ok((b"hello world".to_vec(), b"next".to_vec())), "{step}");
    }
}

#[test]
fn framing_that_could_be_read_in_two_ways_ends_the_body() {
    for text in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloworld\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "0\r\nno colon\r\n\r\n",
        "0\r\n: a\r\n\r\n",
        "0\r\na: b\n\r\n",
        "-1\r\n",
        "g\r\n",
    ] {
        for step in [1, 3, 100] {
            assert!(read(BodyLength::Chunked, text.as_bytes(), step).is_err(), "{text:?} by {step}");
        }
    }
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(300));
    assert_eq!(read(BodyLength::Chunked, long.as_bytes(), 64), Err(BodyError::Extension));
    let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(2000));
    assert_eq!(read(BodyLength::Chunked, trailers.as_bytes(), 64), Err(BodyError::Trailer));
}

#[test]
fn a_body_that_ends_early_is_no_body() {
    assert_eq!(read(BodyLength::Exactly(5), b"hell", 2), Err(BodyError::Early));
    assert_eq!(read(BodyLength::Chunked, b"5\r\nhello\r\n", 2), Err(BodyError::Early));
    assert_eq!(read(BodyLength::UntilClose, b"hell", 2), Ok((b"hell".to_vec(), Vec::new())));
    assert_eq!(read(BodyLength::Exactly(4), b"hello", 2), Ok((b"hell".to_vec(), b"o".to_vec())));
    assert_eq!(read(BodyLength::Exactly(0), b"next", 2), Ok((Vec::new(), b"next".to_vec())));
}

proptest! {
    #[test]
    fn what_is_written_in_chunks_is_read(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..70), 0..6), step in 1_usize..50) {
        let mut text = BytesMut::new();
        for part in &parts {
            put_chunk_head(&mut text, part.len());
            text.extend_from_slice(part);
            text.extend_from_slice(b"\r\n");
        }
        put_last_chunk(&mut text);
        text.extend_from_slice(b"next");
        prop_assert_eq!(read(BodyLength::Chunked, &text, step), Ok((parts.concat(), b"next".to_vec())));
    }
}
