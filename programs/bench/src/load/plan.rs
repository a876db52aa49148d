//! What is to be sent, to whom, and at what pace.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::uri::Uri;
use http::{HeaderName, HeaderValue, Method, Request, Version};

use super::arrivals::Arrivals;
use super::wire::Peer;

/// Length of the prefix of a gRPC message: a byte that says whether it is compressed, and its length.
const GRPC_PREFIX_BYTES: usize = 5;

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    /// Unary calls, over HTTP/2.
    Grpc,
    /// Bytes that are sent back.
    Tcp,
}

impl Protocol {
    /// As reports have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// Each when the one before it was answered.
    Closed,
    /// So many a second, whatever the answers do.
    Open { rate: f64, arrivals: Arrivals },
}

/// How long a run lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Time(Duration),
    Requests(u64),
}

/// A run of the load generator.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) peer: Peer,
    pub(crate) protocol: Protocol,
    pub(crate) message: Message,
    pub(crate) connections: u32,
    /// Requests on a connection at a time; 1 unless the protocol knows more.
    pub(crate) streams: u32,
    pub(crate) pace: Pace,
    /// How far each request of an open loop of constant arrivals is moved, as a share of their distance; up to a half.
    pub(crate) jitter: f64,
    pub(crate) length: Length,
    /// Sent before `length` begins, and not counted.
    pub(crate) warm_up: Duration,
    /// Longest wait for an answer.
    pub(crate) timeout: Duration,
    /// Several requests on a connection, or a new one for each.
    pub(crate) keep_alive: bool,
    pub(crate) threads: u32,
    /// Keep each request's moment, and its latency or that it failed.
    pub(crate) keep_each: bool,
}

/// The request, which is always the same.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    method: Method,
    /// Scheme, authority and path.
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    written: Bytes,
}

impl Message {
    /// A `GET` without a body, or a `POST` with so many bytes.
    pub(crate) fn new(protocol: Protocol, uri: Uri, headers: Vec<(HeaderName, HeaderValue)>, payload: usize) -> Self {
        let zeroes = vec![b'x'; payload];
        let (method, body) = match protocol {
            Protocol::Http1 | Protocol::Http2 if payload == 0 => (Method::GET, Bytes::new()),
            Protocol::Http1 | Protocol::Http2 | Protocol::Tcp => (Method::POST, Bytes::from(zeroes)),
            Protocol::Grpc => (Method::POST, grpc_message(&zeroes)),
        };
        let mut message = Self { method, uri, headers, body, written: Bytes::new() };
        message.written = match protocol {
            Protocol::Http1 => message.as_http1(),
            Protocol::Tcp => message.body.clone(),
            Protocol::Http2 | Protocol::Grpc => {
                message.name_host();
                Bytes::new()
            }
        };
        message
    }

    pub(super) fn method(&self) -> &str {
        self.method.as_str()
    }

    pub(super) fn body(&self) -> Bytes {
        self.body.clone()
    }

    /// The bytes of it, of HTTP/1.1 and TCP.
    pub(super) fn written(&self) -> &Bytes {
        &self.written
    }

    fn as_http1(&self) -> Bytes {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut text = format!("{} {path} HTTP/1.1\r\n", self.method).into_bytes();
        if !self.headers.iter().any(|(name, _)| name == http::header::HOST)
            && let Some(authority) = self.uri.authority()
        {
            text.extend_from_slice(format!("host: {authority}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        if !self.body.is_empty() {
            text.extend_from_slice(format!("content-length: {}\r\n", self.body.len()).as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(&self.body);
        text.into()
    }

    /// Has the URL name the host of a header, which is where HTTP/2 has it: `:authority` (RFC 9113, section 8.3.1).
    fn name_host(&mut self) {
        let hosts: Vec<_> = self.headers.extract_if(.., |(name, _)| *name == http::header::HOST).collect();
        let named = hosts.first().and_then(|(_, host)| host.to_str().ok()?.parse().ok());
        let mut parts = self.uri.clone().into_parts();
        parts.authority = named.or(parts.authority);
        if let Ok(uri) = Uri::from_parts(parts) {
            self.uri = uri;
        }
    }

    /// As HTTP/2 and gRPC have it.
    pub(super) fn as_http2(&self, protocol: Protocol) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        for (name, value) in &self.headers {
            request.headers_mut().append(name.clone(), value.clone());
        }
        if protocol == Protocol::Grpc {
            request.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            request.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
        }
        request
    }
}

fn grpc_message(payload: &[u8]) -> Bytes {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut message = Vec::with_capacity(GRPC_PREFIX_BYTES + payload.len());
    message.push(0);
    message.extend_from_slice(&length);
    message.extend_from_slice(payload);
    message.into()
}

/// What a URL says: the protocol, and the URL as requests have it, of scheme `https` if that is over TLS.
///
/// # Errors
/// When it is none, or of a scheme that is not spoken, with those that are.
pub(crate) fn parse_url(text: &str, http2: bool) -> anyhow::Result<(Protocol, Uri)> {
    let uri: Uri = text.parse().with_context(|| format!("{text:?} is not a URL"))?;
    let protocol = match uri.scheme_str() {
        Some("http" | "https") if http2 => Protocol::Http2,
        Some("http" | "https") => Protocol::Http1,
        Some("grpc" | "grpcs") => Protocol::Grpc,
        Some("tcp" | "tls") => Protocol::Tcp,
        _ => bail!(
            "{text:?}: write http://HOST:PORT/PATH, grpc://HOST:PORT/SERVICE/METHOD or tcp://HOST:PORT, or with TLS \
             https://, grpcs:// or tls://"
        ),
    };
    let tls = matches!(uri.scheme_str(), Some("https" | "grpcs" | "tls"));
    let mut parts = uri.into_parts();
    parts.scheme = Some(if tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP });
    let authority = parts.authority.as_ref().with_context(|| format!("{text:?} names no host"))?;
    if authority.port().is_none() && protocol != Protocol::Http1 && protocol != Protocol::Http2 {
        bail!("{text:?} names no port");
    }
    parts.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
    Ok((protocol, Uri::from_parts(parts)?))
}

impl Load {
    /// A run against an address, with what is usual.
    pub(crate) fn new(peer: Peer, protocol: Protocol, message: Message) -> Self {
        Self {
            peer,
            protocol,
            message,
            connections: 1,
            streams: 1,
            pace: Pace::Closed,
            jitter: 0.0,
            length: Length::Time(Duration::from_secs(10)),
            warm_up: Duration::ZERO,
            timeout: Duration::from_secs(10),
            keep_alive: true,
            threads: 1,
            keep_each: false,
        }
    }

    /// The share of one of the threads.
    pub(super) fn share(self: &Arc<Self>, number: u32) -> Share {
        let threads = self.threads.clamp(1, self.connections.max(1));
        let part = |total: u64| total / u64::from(threads) + u64::from(u64::from(number) < total % u64::from(threads));
        let connections = u32::try_from(part(u64::from(self.connections))).unwrap_or(u32::MAX);
        let requests = match self.length {
            Length::Time(_) => None,
            Length::Requests(count) => Some(part(count)),
        };
        Share { load: Arc::clone(self), number, threads, connections, requests }
    }
}

/// What one thread does of a run.
pub(super) struct Share {
    pub(super) load: Arc<Load>,
    pub(super) number: u32,
    /// How many threads there are.
    pub(super) threads: u32,
    pub(super) connections: u32,
    pub(super) requests: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(protocol: Protocol, url: &str, payload: usize) -> Message {
        let headers = vec![(HeaderName::from_static("x-a"), HeaderValue::from_static("b"))];
        Message::new(protocol, parse_url(url, false).unwrap().1, headers, payload)
    }

    #[test]
    fn a_request_without_a_payload_is_a_get() {
        let found = message(Protocol::Http1, "http://a:81/p?q=1", 0);
        assert_eq!(found.written(), "GET /p?q=1 HTTP/1.1\r\nhost: a:81\r\nx-a: b\r\n\r\n");
        let found = message(Protocol::Http1, "http://a", 3);
        assert_eq!(found.written(), "POST / HTTP/1.1\r\nhost: a\r\nx-a: b\r\ncontent-length: 3\r\n\r\nxxx");
    }

    #[test]
    fn a_grpc_message_has_its_length_in_front() {
        let found = message(Protocol::Grpc, "grpc://a:1/s/M", 2);
        assert_eq!(found.body().as_ref(), b"\0\0\0\0\x02xx");
        let request = found.as_http2(Protocol::Grpc);
        assert_eq!(
            (request.uri().to_string().as_str(), &request.headers()["te"]),
            ("http://a:1/s/M", &"trailers".parse().unwrap())
        );
    }

    #[test]
    fn what_is_no_target_is_refused_with_what_is() {
        for wrong in ["a:80", "ftp://a/", "/path", "http:///p", "tcp://a"] {
            assert!(parse_url(wrong, false).is_err(), "{wrong}");
        }
        assert!(parse_url("x://a", false).unwrap_err().to_string().contains("grpc://HOST:PORT/SERVICE/METHOD"));
        assert_eq!(parse_url("http://a", true).unwrap().0, Protocol::Http2);
        for (url, protocol, uri) in [
            ("https://a/b", Protocol::Http1, "https://a/b"),
            ("grpcs://a:1/s/M", Protocol::Grpc, "https://a:1/s/M"),
            ("tls://a:1", Protocol::Tcp, "https://a:1/"),
        ] {
            assert_eq!(parse_url(url, false).unwrap(), (protocol, uri.parse().unwrap()));
        }
    }
}
