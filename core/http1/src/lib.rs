//! HTTP/1.1 messages without I/O: heads and body framing, as a proxy has to read them.
//!
//! What two readers could understand differently is refused (RFC 9112 section 11.2, request smuggling): a message has one
//! end, and everybody behind the proxy sees the same one. Heads are read once; fields are ranges of the bytes received, so a
//! field that is passed on is never copied twice. Cost model: a head costs one pass of httparse, one search for line ends and
//! one reference-counted slice; a body costs nothing by byte where its length is given, and a look at each chunk's size
//! where it is chunked.

mod body;
mod first_bytes;
mod head;
mod host;
mod line;
mod request;
mod response;
mod write;

pub use body::{BodyError, BodyLength, BodyReader, CHUNK_EXTENSION_BYTES_MAX, Piece, TRAILER_BYTES_MAX};
pub use first_bytes::is_http2_preface;
pub use head::{Field, Head, Limits};
pub use host::{is_authority, without_root_dot};
pub use request::{RequestError, RequestHead, is_method};
pub use response::{ResponseError, ResponseHead};
pub use write::{put_chunk_head, put_field, put_last_chunk};
