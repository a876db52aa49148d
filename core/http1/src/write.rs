//! Parts of messages as bytes.

use bytes::{BufMut, BytesMut};

/// Appends a field. Name and value must be clean, as those of a [`crate::Head`] are.
pub fn put_field(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

/// Appends the line in front of a chunk of `size` bytes, at least one; CR LF has to follow the chunk.
pub fn put_chunk_head(out: &mut BytesMut, size: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 16];
    let mut at = text.len();
    let mut rest = size;
    while rest > 0 || at == text.len() {
        at -= 1;
        text[at] = DIGITS[rest % 16];
        rest /= 16;
    }
    out.put_slice(&text[at..]);
    out.put_slice(b"\r\n");
}

/// Appends the end of a chunked body.
pub fn put_last_chunk(out: &mut BytesMut) {
    out.put_slice(b"0\r\n\r\n");
}
