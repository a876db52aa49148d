//! Which version of HTTP the first bytes of a connection begin, where either may be.
//!
//! It is asked only of connections to services that speak HTTP, and decides which reader gets the bytes, never whether there
//! is one: what is no HTTP is refused by the reader of HTTP/1, not passed on. A connection to anything else is never looked
//! at, since its server may be the one to speak first.

/// What an HTTP/2 client sends first (RFC 9113 section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether bytes begin an HTTP/2 connection; `None` if there are too few to tell. No more than the 24 bytes of the preface are
/// ever needed, and what has been told stays so, whatever follows.
#[must_use]
pub fn is_http2_preface(bytes: &[u8]) -> Option<bool> {
    let compared = bytes.len().min(HTTP2_PREFACE.len());
    if bytes[..compared] != HTTP2_PREFACE[..compared] {
        return Some(false);
    }
    (compared == HTTP2_PREFACE.len()).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_told_by_as_few_bytes_as_can_tell() {
        for (bytes, told) in [
            (&b""[..], None),
            (b"G", Some(false)),
            (b"P", None),
            (b"PO", Some(false)),
            (b"PRI ", None),
            (b"PRINT", Some(false)),
            (b"PRI * HTTP/2.0\r\n\r\nSX", Some(false)),
            (&HTTP2_PREFACE[..23], None),
            (HTTP2_PREFACE, Some(true)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Some(true)),
            (b"\x16", Some(false)),
            (b"\x16\x03\x01", Some(false)),
            (b"\0", Some(false)),
        ] {
            assert_eq!(is_http2_preface(bytes), told, "{bytes:?}");
        }
    }
}
