//! What holds of every HTTP/1 message, whatever its bytes. Included by the fuzz targets and by the test that replays what
//! they have found.

use bytes::{BufMut, BytesMut};
use starling_http1::{
    BodyError, BodyLength, BodyReader, CHUNK_EXTENSION_BYTES_MAX, Limits, Piece, RequestHead, ResponseHead,
    TRAILER_BYTES_MAX, is_http2_preface, put_chunk_head, put_field, put_last_chunk,
};

/// Small, so that they are met.
const LIMITS: Limits = Limits { head_bytes: 512, target_bytes: 128, fields: 16 };

/// Whether it is HTTP/2 is told by the first 24 bytes at most, and never told otherwise later; and the reader of HTTP/1 takes
/// nothing that is.
pub fn first_bytes(data: &[u8]) {
    const NEEDED_MAX: usize = 24;
    let told: Vec<_> = (0..=data.len()).map(|count| is_http2_preface(&data[..count])).collect();
    for pair in told.windows(2) {
        assert!(pair[0].is_none() || pair[0] == pair[1], "told otherwise");
    }
    assert!(data.len() < NEEDED_MAX || told[NEEDED_MAX].is_some(), "not told");
    if told.last() == Some(&Some(true)) {
        let taken = RequestHead::take(&mut BytesMut::from(data), &LIMITS);
        assert!(!matches!(taken, Ok(Some(_))), "HTTP/2, and a request");
    }
}

/// A head is the same however its bytes come in, and what is passed on of it is read as what it was.
pub fn request(data: &[u8]) {
    let mut whole = BytesMut::from(data);
    let Ok(Some(head)) = RequestHead::take(&mut whole, &LIMITS) else {
        assert!(!matches!(byte_by_byte(data), Some(Ok(_))), "refused at once, accepted in parts");
        return;
    };
    assert!(head.target().starts_with('/') || head.target() == "*");
    assert!(starling_http1::is_authority(head.authority().as_bytes()));
    let parts = byte_by_byte(data).expect("the end of the head is there").expect("accepted in parts, too");
    assert_eq!((parts.method(), parts.target(), parts.authority()), (head.method(), head.target(), head.authority()));
    assert_eq!((parts.body, parts.keep_alive), (head.body, head.keep_alive));

    let mut out = BytesMut::new();
    out.put_slice(format!("{} {} HTTP/1.1\r\n", head.method(), head.target()).as_bytes());
    put_field(&mut out, "host", head.authority().as_bytes());
    for (name, value) in head.end_to_end().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        put_field(&mut out, name, value);
    }
    put_framing(&mut out, head.body, head.content_length);
    out.put_slice(b"\r\n");
    let room = Limits { head_bytes: 4 * 512, fields: 32, ..LIMITS };
    let again = RequestHead::take(&mut out, &room).expect("sound").expect("whole");
    assert!(out.is_empty(), "nothing can be read behind it");
    assert_eq!((again.method(), again.target(), again.body), (head.method(), head.target(), head.body));
    let rest = |head: &RequestHead| {
        let fields = head.end_to_end().filter(|(name, _)| !name.eq_ignore_ascii_case("host"));
        fields.map(|(name, value)| (name.to_owned(), value.to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(rest(&again), rest(&head));
}

/// The outcome of bytes that come one at a time; `None` if the head does not come to its end.
fn byte_by_byte(data: &[u8]) -> Option<Result<RequestHead, starling_http1::RequestError>> {
    let mut buffer = BytesMut::new();
    for byte in data {
        buffer.put_u8(*byte);
        match RequestHead::take(&mut buffer, &LIMITS) {
            Ok(Some(head)) => return Some(Ok(head)),
            Ok(None) => assert!(buffer.len() <= LIMITS.head_bytes, "no more than the limit is waited for"),
            Err(error) => {
                assert!((400..600).contains(&error.status()));
                return Some(Err(error));
            }
        }
    }
    None
}

/// The first byte says to which method; what is passed on is read as what it was.
pub fn response(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let method = ["GET", "HEAD", "POST"][usize::from(choice % 3)];
    let mut buffer = BytesMut::from(data);
    let Ok(Some(head)) = ResponseHead::take(&mut buffer, method, &LIMITS) else { return };
    assert!((100..=999).contains(&head.status));
    if method == "HEAD" || matches!(head.status, 100..=199 | 204 | 304) {
        assert_eq!(head.body, BodyLength::Exactly(0));
    }
    let mut out = BytesMut::new();
    out.put_slice(format!("HTTP/1.1 {} X\r\n", head.status).as_bytes());
    for (name, value) in head.end_to_end() {
        put_field(&mut out, name, value);
    }
    put_framing(&mut out, head.body, head.content_length);
    out.put_slice(b"\r\n");
    let room = Limits { head_bytes: 4 * 512, fields: 32, ..LIMITS };
    let again = ResponseHead::take(&mut out, method, &room).expect("sound").expect("whole");
    assert!(out.is_empty(), "nothing can be read behind it");
    assert_eq!((again.status, again.body), (head.status, head.body));
}

/// The first two bytes say how the end is known and in which steps the rest comes.
pub fn body(data: &[u8]) {
    let [choice, step, data @ ..] = data else { return };
    let length = match choice % 3 {
        0 => BodyLength::Exactly(u64::from(choice / 3)),
        1 => BodyLength::Chunked,
        _ => BodyLength::UntilClose,
    };
    let whole = read(length, data, usize::MAX);
    assert_eq!(read(length, data, usize::from(*step).max(1)).is_ok(), whole.is_ok(), "in steps as at once");
    let Ok((body, left)) = whole else { return };
    assert_eq!(read(length, data, 1), Ok((body.clone(), left)), "byte by byte as at once");
    let mut out = BytesMut::new();
    for chunk in body.chunks(usize::from(*step).max(1)) {
        put_chunk_head(&mut out, chunk.len());
        out.put_slice(chunk);
        out.put_slice(b"\r\n");
    }
    put_last_chunk(&mut out);
    out.put_slice(b"GET /");
    assert_eq!(read(BodyLength::Chunked, &out, 3), Ok((body, b"GET /".to_vec())), "passed on as it was");
}

/// The body, and what is left behind it.
fn read(length: BodyLength, text: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), BodyError> {
    let mut reader = BodyReader::new(length);
    let (mut body, mut buffer) = (Vec::new(), BytesMut::new());
    let mut parts = text.chunks(step.min(text.len().max(1)));
    loop {
        match reader.next(&buffer)? {
            Piece::Data(count) => {
                assert!(count > 0);
                body.extend_from_slice(&buffer.split_to(count));
            }
            Piece::Framing(count) => {
                assert!(count > 0);
                drop(buffer.split_to(count));
            }
            Piece::More => {
                let room = CHUNK_EXTENSION_BYTES_MAX.max(TRAILER_BYTES_MAX) + 64;
                assert!(buffer.len() <= room, "{} bytes are waited with", buffer.len());
                match parts.next() {
                    Some(part) => buffer.extend_from_slice(part),
                    None => {
                        reader.close()?;
                        return Ok((body, buffer.to_vec()));
                    }
                }
            }
            Piece::End => {
                assert!(reader.is_over());
                parts.for_each(|part| buffer.extend_from_slice(part));
                return Ok((body, buffer.to_vec()));
            }
        }
    }
}

fn put_framing(out: &mut BytesMut, body: BodyLength, length: Option<u64>) {
    match (body, length) {
        (BodyLength::Chunked, _) => put_field(out, "transfer-encoding", b"chunked"),
        (_, Some(length)) => put_field(out, "content-length", length.to_string().as_bytes()),
        (_, None) => {}
    }
}
