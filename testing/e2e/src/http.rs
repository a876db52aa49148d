//! An HTTP client that does exactly what it is told: one connection, HTTP/1.1 or HTTP/2, no retries, no pool.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub use http::Method;

/// Longest wait for one answer; blocking queries of the tests end well before.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {} {}", self.status, self.text()))
    }

    /// A header field.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The revision in `X-Consul-Index`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn index(&self) -> u64 {
        let index = self.header("x-consul-index").and_then(|text| text.parse().ok());
        index.unwrap_or_else(|| panic!("no X-Consul-Index: {} {:?} {}", self.status, self.headers, self.text()))
    }

    /// Itself, if the status is 2xx.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    #[track_caller]
    pub fn success(self) -> Self {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.text());
        self
    }
}

/// One connection.
pub struct Connection {
    sender: Sender,
    authority: String,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Connection {
    /// Connects to `authority`, HOST:PORT, for HTTP/1.1.
    ///
    /// # Errors
    /// If nobody listens.
    pub async fn open(authority: &str) -> anyhow::Result<Self> {
        Self::over(authority, connect(authority).await?).await
    }

    /// Connects to `authority` for HTTP/2 with prior knowledge.
    ///
    /// # Errors
    /// If nobody listens, or it is no HTTP/2.
    pub async fn open_http2(authority: &str) -> anyhow::Result<Self> {
        let io = TokioIo::new(connect(authority).await?);
        let (sender, driver) = http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(driver);
        Ok(Self { sender: Sender::Http2(sender), authority: authority.to_owned() })
    }

    /// Speaks HTTP/1.1 over a stream that is open.
    ///
    /// # Errors
    /// If the stream breaks.
    pub async fn over(
        authority: &str,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(driver);
        Ok(Self { sender: Sender::Http1(sender), authority: authority.to_owned() })
    }

    /// Whether the other end has asked for no more requests on it, or has closed it.
    pub async fn is_over(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(sender) => sender.ready().await.is_err(),
            Sender::Http2(sender) => sender.ready().await.is_err(),
        }
    }

    /// Sends a request and reads the answer. `target` goes on the wire as it is.
    ///
    /// # Errors
    /// If the connection breaks, or no answer comes in time.
    pub async fn send(
        &mut self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Answer> {
        let uri = match &self.sender {
            Sender::Http1(_) => target.parse::<Uri>()?,
            Sender::Http2(_) => format!("http://{}{target}", self.authority).parse::<Uri>()?,
        };
        let mut request = Request::builder().method(method).uri(uri);
        if matches!(self.sender, Sender::Http1(_)) && !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", &self.authority);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into()))?;
        let answer = async {
            let response = match &mut self.sender {
                Sender::Http1(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await?
                }
                Sender::Http2(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await?
                }
            };
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, hyper::Error>(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        let answered = tokio::time::timeout(ANSWER_TIME_MAX, answer).await;
        let answer = answered.with_context(|| format!("no answer to {target} in {ANSWER_TIME_MAX:?}"))?;
        answer.with_context(|| format!("{target} at {}", self.authority))
    }

    /// A GET without header fields.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub async fn get(&mut self, target: &str) -> anyhow::Result<Answer> {
        self.send(Method::GET, target, &[], Bytes::new()).await
    }
}

async fn connect(authority: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(authority).await.with_context(|| format!("connecting to {authority}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// One request on a connection of its own.
///
/// # Errors
/// If nobody listens, or no answer comes.
pub async fn request(
    method: Method,
    authority: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> anyhow::Result<Answer> {
    Connection::open(authority).await?.send(method, target, headers, body).await
}

/// A GET on a connection of its own.
///
/// # Errors
/// If nobody listens, or no answer comes.
pub async fn get(authority: &str, target: &str) -> anyhow::Result<Answer> {
    request(Method::GET, authority, target, &[], Bytes::new()).await
}
