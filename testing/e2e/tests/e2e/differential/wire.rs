//! HTTP/1.1 as bytes, for the client and the application: neither mends what it sends, nor minds what it reads. And HTTP/2,
//! for what can be said in it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for an answer; both proxies answer in milliseconds, or never.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The head of a message.
#[derive(Debug, Clone, Default)]
pub(super) struct MessageHead {
    /// The request line or the status line.
    pub(super) first: String,
    /// Names in lower case.
    pub(super) fields: Vec<(String, String)>,
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

impl MessageHead {
    fn parse(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Self { first, fields }
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn framing(&self, is_response: bool) -> Framing {
        if self.value("transfer-encoding").is_some() {
            return Framing::Chunked;
        }
        match self.value("content-length").and_then(|length| length.parse().ok()) {
            Some(length) => Framing::Length(length),
            None if is_response => Framing::UntilClose,
            None => Framing::Length(0),
        }
    }

    fn status(&self) -> Option<u16> {
        self.first.split(' ').nth(1)?.parse().ok()
    }
}

/// Reads messages off a connection.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) stream: TcpStream,
    read: Vec<u8>,
}

impl Reader {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    /// Reads more; `None` at the end.
    async fn fill(&mut self) -> Option<()> {
        let count = self.stream.read_buf(&mut self.read).await.ok()?;
        (count > 0).then_some(())
    }

    /// The next head; `None` if there is none.
    pub(super) async fn head(&mut self) -> Option<MessageHead> {
        loop {
            if let Some(end) = find(&self.read, b"\r\n\r\n") {
                let head = self.read.drain(..end + 4).collect::<Vec<_>>();
                return Some(MessageHead::parse(&String::from_utf8_lossy(&head[..end])));
            }
            self.fill().await?;
        }
    }

    async fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.read.len() < count {
            self.fill().await?;
        }
        Some(self.read.drain(..count).collect())
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.read, b"\r\n") {
                let line = self.take(end + 2).await?;
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.fill().await?;
        }
    }

    /// The body that follows a head; `None` if it does not come to its end.
    pub(super) async fn body(&mut self, framing: Framing) -> Option<Vec<u8>> {
        match framing {
            Framing::Length(length) => self.take(length).await,
            Framing::UntilClose => {
                while self.fill().await.is_some() {}
                Some(std::mem::take(&mut self.read))
            }
            Framing::Chunked => self.chunks().await,
        }
    }

    async fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
            if size == 0 {
                while !self.line().await?.is_empty() {}
                return Some(body);
            }
            body.extend(self.take(size).await?);
            self.line().await?;
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// What a client was answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Response {
    /// `None` if the connection ended, or time was up, without an answer.
    pub(super) status: Option<u16>,
    /// Names in lower case and values, in the order of names, those of trailers among them.
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: String,
}

/// A client's connections, one of each version, opened anew whenever they have ended.
pub(super) struct Client {
    authority: String,
    open: Option<Reader>,
    open2: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(super) fn new(authority: String) -> Self {
        Self { authority, open: None, open2: None }
    }

    /// Sends a request as bytes, and reads its answer.
    pub(super) async fn send(&mut self, request: &[u8], is_head: bool) -> Response {
        let mut reader = match self.open.take() {
            Some(reader) => reader,
            None => {
                let stream = TcpStream::connect(&self.authority).await.expect("the proxy listens");
                stream.set_nodelay(true).expect("a socket");
                Reader::new(stream)
            }
        };
        // A proxy may close before it has read all.
        let _ = reader.stream.write_all(request).await;
        let answered = tokio::time::timeout(ANSWER_TIME_MAX, answer(&mut reader, is_head)).await;
        let Ok(Some((response, stays))) = answered else { return Response::default() };
        self.open = stays.then_some(reader);
        response
    }
}

impl Client {
    /// Sends a request over HTTP/2, and reads its answer.
    pub(super) async fn send2(&mut self, request: Request<Full<Bytes>>) -> Response {
        let answered = tokio::time::timeout(ANSWER_TIME_MAX, self.answer2(request)).await;
        let Ok(Some(response)) = answered else {
            self.open2 = None;
            return Response::default();
        };
        response
    }

    async fn answer2(&mut self, request: Request<Full<Bytes>>) -> Option<Response> {
        if let Some(sender) = &mut self.open2
            && sender.ready().await.is_err()
        {
            self.open2 = None;
        }
        let sender = match &mut self.open2 {
            Some(sender) => sender,
            open => {
                let stream = TcpStream::connect(&self.authority).await.expect("the proxy listens");
                stream.set_nodelay(true).expect("a socket");
                let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
                tokio::spawn(driver);
                open.insert(sender)
            }
        };
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let collected = body.collect().await.ok()?;
        let mut headers = head.headers;
        headers.extend(collected.trailers().cloned().unwrap_or_default());
        let body = String::from_utf8_lossy(&collected.to_bytes()).into_owned();
        Some(Response { status: Some(head.status.as_u16()), fields: fields_of(&headers), body })
    }
}

/// Fields in the order of names; several of one name in the order received.
pub(super) fn fields_of(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut fields: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    fields
}

/// The final answer, and whether the connection stays.
async fn answer(reader: &mut Reader, is_head: bool) -> Option<(Response, bool)> {
    loop {
        let head = reader.head().await?;
        let status = head.status()?;
        if (100..200).contains(&status) && status != 101 {
            continue;
        }
        let empty = is_head || matches!(status, 101 | 204 | 304);
        let framing = if empty { Framing::Length(0) } else { head.framing(true) };
        let body = reader.body(framing).await?;
        let closes = head.value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let stays = !closes && framing != Framing::UntilClose && status != 101 && status != 400;
        let mut fields = head.fields;
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        return Some((
            Response { status: Some(status), fields, body: String::from_utf8_lossy(&body).into_owned() },
            stays,
        ));
    }
}
