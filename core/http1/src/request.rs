//! Heads of requests.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use bytes::{Buf, BytesMut};

use crate::body::BodyLength;
use crate::head::{FIELDS_ROOM, Head, Limits, Ranges, Said, Unsound, read_fields};
use crate::host::{is_authority, without_root_dot};
use crate::line::ends_are_whole;

/// Longest method; the longest registered one, `UPDATEREDIRECTREF`, has 17 letters.
const METHOD_BYTES_MAX: usize = 32;

/// Why a request is refused, before anything is decided about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not HTTP/1.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// The end of the body could be understood in two ways.
    #[error("ambiguous request: {0}")]
    Ambiguous(&'static str),
    /// A transfer coding other than chunked.
    #[error("unknown transfer coding")]
    Coding,
    /// The target is too long.
    #[error("request target too long")]
    TargetTooLong,
    /// The head, or the number of its fields, is too large.
    #[error("request head too large")]
    HeadTooLarge,
    /// Neither 1.0 nor 1.1.
    #[error("unknown HTTP version")]
    Version,
    /// An expectation other than `100-continue`.
    #[error("unknown expectation")]
    Expectation,
    /// A tunnel, which nobody here opens.
    #[error("CONNECT is not supported")]
    Connect,
}

impl RequestError {
    /// The status to answer with (RFC 9110 section 15).
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Ambiguous(_) => 400,
            Self::Connect => 405,
            Self::TargetTooLong => 414,
            Self::Expectation => 417,
            Self::HeadTooLarge => 431,
            Self::Coding => 501,
            Self::Version => 505,
        }
    }
}

impl From<Unsound> for RequestError {
    fn from(unsound: Unsound) -> Self {
        match unsound {
            Unsound::Framing(reason) => Self::Ambiguous(reason),
            Unsound::Coding => Self::Coding,
            Unsound::Named => Self::Ambiguous("connection names a field that is for everybody"),
        }
    }
}

/// The head of a request.
#[derive(Debug, Clone)]
pub struct RequestHead {
    head: Head,
    method: Range<u32>,
    target: Range<u32>,
    authority: Authority,
    /// The scheme of an absolute target, in lower case.
    pub scheme: Option<&'static str>,
    /// The minor version: 0 or 1.
    pub version: u8,
    /// Whether the sender waits for `100 Continue` before the body.
    pub expects_continue: bool,
}

/// Where the one form of host and port stands.
#[derive(Debug, Clone)]
enum Authority {
    /// In the head.
    Received(Range<u32>),
    /// A dot was taken out of the middle.
    Made(Box<str>),
}

impl Deref for RequestHead {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl RequestHead {
    /// Takes a head from the front of `buffer`; `None` if it is not all there yet.
    ///
    /// # Errors
    /// [`RequestError`]; nothing that follows on the connection can be understood then.
    pub fn take(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Self>, RequestError> {
        skip_empty_line(buffer);
        let mut room = [httparse::EMPTY_HEADER; FIELDS_ROOM];
        let mut parsed = httparse::Request::new(&mut room[..limits.fields.min(FIELDS_ROOM)]);
        let length = match parsed.parse(buffer) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return incomplete(buffer, limits).map(|()| None),
            Err(error) => return Err(malformed(error, buffer, limits)),
        };
        let (method, target) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
        if target.len() > limits.target_bytes {
            return Err(RequestError::TargetTooLong);
        }
        if length > limits.head_bytes {
            return Err(RequestError::HeadTooLarge);
        }
        if !ends_are_whole(&buffer[..length]) {
            return Err(RequestError::Malformed("a line does not end with CR LF"));
        }
        if !is_method(method.as_bytes()) {
            return Err(RequestError::Malformed("the method is none"));
        }
        if method == "CONNECT" {
            return Err(RequestError::Connect);
        }
        let version = parsed.version.unwrap_or_default();
        let said = read_fields(buffer, parsed.headers)?;
        if version == 0 && said.chunked {
            return Err(RequestError::Ambiguous("HTTP/1.0 knows no transfer-encoding"));
        }
        let (scheme, named, path) = split_target(method, target)?;
        let authority =
            named.map_or_else(|| host(parsed.headers, version), |named| check_host(parsed.headers, named))?;
        let expects_continue = expectation(parsed.headers, version)?;
        let ranges = Ranges::of(buffer);
        let (method, target) = (ranges.range(method.as_bytes()), ranges.range(path.as_bytes()));
        let authority = match without_root_dot(std::str::from_utf8(authority).unwrap_or_default()) {
            Cow::Borrowed(authority) => Authority::Received(ranges.range(authority.as_bytes())),
            Cow::Owned(authority) => Authority::Made(authority.into()),
        };
        let keep_alive = said.stays(version);
        let Said { length: content_length, chunked, upgrade, fields, .. } = said;
        let body = if chunked { BodyLength::Chunked } else { BodyLength::Exactly(content_length.unwrap_or(0)) };
        let bytes = buffer.split_to(length).freeze();
        let head = Head { bytes, fields, body, content_length, keep_alive, upgrade };
        Ok(Some(Self { head, method, target, authority, scheme, version, expects_continue }))
    }

    /// The method, as written.
    #[must_use]
    pub fn method(&self) -> &str {
        std::str::from_utf8(self.slice(&self.method)).unwrap_or_default()
    }

    /// Path and query, or `*`.
    #[must_use]
    pub fn target(&self) -> &str {
        std::str::from_utf8(self.slice(&self.target)).unwrap_or_default()
    }

    /// Host and port that the request is for, without the root's dot: of the target if that is absolute, else of `Host`;
    /// empty if HTTP/1.0 gave none.
    #[must_use]
    pub fn authority(&self) -> &str {
        match &self.authority {
            Authority::Received(range) => std::str::from_utf8(self.slice(range)).unwrap_or_default(),
            Authority::Made(authority) => authority,
        }
    }
}

/// One empty line may come before a request (RFC 9112 section 2.2).
fn skip_empty_line(buffer: &mut BytesMut) {
    if buffer.starts_with(b"\r\n") {
        buffer.advance(2);
    }
}

/// Whether more may be waited for.
fn incomplete(buffer: &[u8], limits: &Limits) -> Result<(), RequestError> {
    let line = memchr::memchr(b'\n', buffer);
    if line.unwrap_or(buffer.len()) > limits.target_bytes + METHOD_BYTES_MAX {
        return Err(RequestError::TargetTooLong);
    }
    if buffer.len() >= limits.head_bytes {
        return Err(RequestError::HeadTooLarge);
    }
    Ok(())
}

fn malformed(error: httparse::Error, buffer: &[u8], limits: &Limits) -> RequestError {
    if let Err(too_large) = incomplete(buffer, limits) {
        return too_large;
    }
    match error {
        httparse::Error::TooManyHeaders => RequestError::HeadTooLarge,
        httparse::Error::Version if names_a_version(buffer) => RequestError::Version,
        httparse::Error::Version => RequestError::Malformed("the first line has not three parts"),
        httparse::Error::HeaderName => RequestError::Malformed("a field name is no token"),
        httparse::Error::HeaderValue => RequestError::Malformed("a field value holds a forbidden byte"),
        httparse::Error::NewLine => RequestError::Malformed("a line does not end with CR LF"),
        httparse::Error::Token | httparse::Error::Status => {
            RequestError::Malformed("the first line is no request line")
        }
    }
}

type SplitTarget<'a> = (Option<&'static str>, Option<&'a str>, &'a str);

/// Whether the third word of the first line is an HTTP version, if an unknown one.
fn names_a_version(buffer: &[u8]) -> bool {
    let mut words = buffer.split(|byte| *byte == b' ');
    words.nth(2).is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// Scheme and authority if the target is absolute, and path with query (RFC 9112 section 3.2).
fn split_target<'a>(method: &str, target: &'a str) -> Result<SplitTarget<'a>, RequestError> {
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok((None, None, target));
    }
    let scheme = |name: &str| target.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    let Some(scheme) = ["http", "https"].into_iter().find(|name| scheme(&format!("{name}://"))) else {
        return Err(RequestError::Malformed("the target is neither a path nor an http URI"));
    };
    let rest = &target[scheme.len() + "://".len()..];
    match rest.find(['/', '?']) {
        // A path is given explicitly, so that what is passed on is what was decided about.
        // RFC 9110 section 4.2.1: without a host it is invalid.
        Some(0) => Err(RequestError::Malformed("the URI has no host")),
        Some(at) if rest.as_bytes()[at] == b'/' => Ok((Some(scheme), Some(&rest[..at]), &rest[at..])),
        Some(_) | None => Err(RequestError::Malformed("the URI has no path")),
    }
}

fn host<'a>(fields: &[httparse::Header<'a>], version: u8) -> Result<&'a [u8], RequestError> {
    let mut hosts = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    let Some(first) = hosts.next() else {
        return if version == 0 { Ok(b"") } else { Err(RequestError::Malformed("there is no host")) };
    };
    if hosts.next().is_some() {
        return Err(RequestError::Ambiguous("there are two host fields"));
    }
    valid_authority(first.value)
}

/// An absolute target's authority, where `Host` has to stand all the same, and to agree.
fn check_host<'a>(fields: &[httparse::Header<'_>], named: &'a str) -> Result<&'a [u8], RequestError> {
    let host = host(fields, 1)?;
    if !host.eq_ignore_ascii_case(named.as_bytes()) {
        return Err(RequestError::Ambiguous("the target and the host field name different hosts"));
    }
    valid_authority(named.as_bytes())
}

/// No user, no path, no white space: characters of a registered name, an address or a port (RFC 3986 section 3.2).
fn valid_authority(value: &[u8]) -> Result<&[u8], RequestError> {
    if is_authority(value) { Ok(value) } else { Err(RequestError::Malformed("the host is no host")) }
}

/// Whether a token may stand for a method. Methods are compared as written, and all registered ones are in capitals: `get`
/// is none to a policy, and `GET` to many an application.
#[must_use]
pub fn is_method(token: &[u8]) -> bool {
    !token.is_empty() && token.len() <= METHOD_BYTES_MAX && !token.iter().any(u8::is_ascii_lowercase)
}

fn expectation(fields: &[httparse::Header<'_>], version: u8) -> Result<bool, RequestError> {
    let mut expected = fields.iter().filter(|field| field.name.len() == 6 && field.name.eq_ignore_ascii_case("expect"));
    match expected.next() {
        None => Ok(false),
        Some(field) if field.value.eq_ignore_ascii_case(b"100-continue") => Ok(version == 1),
        Some(_) => Err(RequestError::Expectation),
    }
}
