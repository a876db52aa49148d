//! What the first bytes of a connection say is spoken, where HTTP of either version may be.
//!
//! It is asked only of connections to services that speak HTTP, and decides which reader gets the bytes, never whether there
//! is one: what is no HTTP is refused, not passed on. A connection to anything else is never looked at, since its server may
//! be the one to speak first.

use crate::request::is_http2_preface;

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// HTTP/1, as far as the first byte can tell; its reader judges the rest.
    Http1,
    /// HTTP/2: its preface is there.
    Http2,
    /// TLS: the client takes this for the server itself.
    Tls,
    /// None of them.
    Other,
}

/// The type of a TLS record with a handshake message (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// The first byte of the version in every such record since SSL 3.0.
const TLS_MAJOR_VERSION: u8 = 3;

impl Spoken {
    /// What these bytes begin with; `None` if there are too few to tell. No more than the 24 bytes of HTTP/2's preface are
    /// ever needed, and what has been told stays so, whatever follows.
    #[must_use]
    pub fn by(bytes: &[u8]) -> Option<Self> {
        match (is_http2_preface(bytes)?, bytes) {
            (true, _) => Some(Self::Http2),
            (false, [TLS_HANDSHAKE]) => None,
            (false, [TLS_HANDSHAKE, TLS_MAJOR_VERSION, ..]) => Some(Self::Tls),
            // A method, or the empty line that a reader passes over.
            (false, [first, ..]) if is_token(*first) || matches!(first, b'\r' | b'\n') => Some(Self::Http1),
            (false, _) => Some(Self::Other),
        }
    }
}

/// Whether a method may have this byte in it (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    #[test]
    fn each_is_told_by_as_few_bytes_as_can_tell() {
        for (bytes, spoken) in [
            (&b""[..], None),
            (b"G", Some(Spoken::Http1)),
            (b"GET / HTTP/1.1\r\n", Some(Spoken::Http1)),
            (b"P", None),
            (b"PO", Some(Spoken::Http1)),
            (b"PRI * HTTP/2.0\r\n\r\nSX", Some(Spoken::Http1)),
            (b"\r\nGET", Some(Spoken::Http1)),
            (&PREFACE[..23], None),
            (PREFACE, Some(Spoken::Http2)),
            (b"\x16", None),
            (b"\x16\x03\x01", Some(Spoken::Tls)),
            (b"\x16\x02", Some(Spoken::Other)),
            (b"\0", Some(Spoken::Other)),
            (b" GET", Some(Spoken::Other)),
            (b"\x80\x2e\x01", Some(Spoken::Other)),
        ] {
            assert_eq!(Spoken::by(bytes), spoken, "{bytes:?}");
        }
    }
}
