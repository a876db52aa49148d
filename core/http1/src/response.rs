//! Heads of responses.

use std::ops::Deref;

use bytes::BytesMut;

use crate::body::BodyLength;
use crate::head::{FIELDS_ROOM, Head, Limits, Unsound, read_fields};
use crate::line::ends_are_whole;

/// Why a response cannot be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Not HTTP/1.
    #[error("malformed response: {0}")]
    Malformed(&'static str),
    /// The end of the body could be understood in two ways.
    #[error("ambiguous response: {0}")]
    Ambiguous(&'static str),
    /// The head, or the number of its fields, is too large.
    #[error("response head too large")]
    HeadTooLarge,
}

/// The head of a response.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    head: Head,
    /// The status code, 100 to 999.
    pub status: u16,
    /// The minor version: 0 or 1.
    pub version: u8,
}

impl Deref for ResponseHead {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl ResponseHead {
    /// Takes the head of a response to a request of `method` from the front of `buffer`; `None` if it is not all there yet.
    ///
    /// # Errors
    /// [`ResponseError`]; nothing that follows on the connection can be understood then.
    pub fn take(buffer: &mut BytesMut, method: &str, limits: &Limits) -> Result<Option<Self>, ResponseError> {
        let mut room = [httparse::EMPTY_HEADER; FIELDS_ROOM];
        let mut parsed = httparse::Response::new(&mut room[..limits.fields.min(FIELDS_ROOM)]);
        let length = match parsed.parse(buffer) {
            Ok(httparse::Status::Complete(length)) if length <= limits.head_bytes => length,
            Ok(httparse::Status::Partial) if buffer.len() < limits.head_bytes => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::HeadTooLarge),
            Err(_) => return Err(ResponseError::Malformed("it is not HTTP/1")),
        };
        if !ends_are_whole(&buffer[..length]) {
            return Err(ResponseError::Malformed("a line does not end with CR LF"));
        }
        let (status, version) = (parsed.code.unwrap_or_default(), parsed.version.unwrap_or_default());
        if status < 100 {
            return Err(ResponseError::Malformed("the status has not three digits"));
        }
        let said = read_fields(buffer, parsed.headers).map_err(|unsound| match unsound {
            Unsound::Framing(reason) => ResponseError::Ambiguous(reason),
            Unsound::Coding => ResponseError::Ambiguous("unknown transfer coding"),
            Unsound::Named => ResponseError::Ambiguous("connection names a field that is for everybody"),
        })?;
        if version == 0 && said.chunked {
            return Err(ResponseError::Ambiguous("HTTP/1.0 knows no transfer-encoding"));
        }
        // RFC 9112 section 6.3.
        let bodiless = method == "HEAD" || matches!(status, 100..=199 | 204 | 304);
        let body = match said.length {
            _ if bodiless => BodyLength::Exactly(0),
            _ if said.chunked => BodyLength::Chunked,
            Some(length) => BodyLength::Exactly(length),
            None => BodyLength::UntilClose,
        };
        let keep_alive = said.stays(version) && body != BodyLength::UntilClose;
        let (fields, upgrade, content_length) = (said.fields, said.upgrade, said.length);
        let bytes = buffer.split_to(length).freeze();
        Ok(Some(Self { head: Head { bytes, fields, body, content_length, keep_alive, upgrade }, status, version }))
    }

    /// Whether another head follows for the same request.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}
