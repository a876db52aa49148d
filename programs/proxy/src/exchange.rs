//! One HTTP/1.1 request and its response, moved between two connections.
//!
//! Both directions move in one state machine: a response may come before the request is over, and neither side may be made
//! to wait for the other. Cost model: a request whose head and body are there costs one write, a response that comes in one
//! piece one read and one write.

use std::io;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, BytesMut};
use starling_http1::{
    BodyError, BodyLength, BodyReader, Limits, Piece, RequestHead, ResponseError, ResponseHead, put_chunk_head,
    put_field, put_last_chunk,
};
use starling_model::HeaderEdits;

use crate::edits::put_fields;
use crate::stream::Conn;
use crate::tries::{Tries, grpc_status};

/// What waits to be written before more is read.
const WRITE_AHEAD_BYTES: usize = 64 * 1024;

/// Responses before the final one; a server that sends more is broken.
const INTERIM_MAX: u32 = 16;

/// Why a response did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// The client is gone.
    #[error("the client broke off")]
    Client,
    /// The client sends what is no body.
    #[error(transparent)]
    Body(BodyError),
    /// The server closed or broke off before it answered anything.
    #[error("the server closed the connection")]
    Unanswered(#[source] Option<io::Error>),
    /// The server broke off within its answer, of which a part may have been passed on.
    #[error("the server broke off")]
    Server,
    /// The server's answer is one after which the request is tried again.
    #[error("the server answered {0}")]
    Again(u16),
    /// The server's answer is not HTTP, or can be understood in two ways.
    #[error(transparent)]
    Response(#[from] ResponseError),
}

/// What an exchange left.
pub(crate) struct Outcome {
    pub(crate) status: u16,
    /// Bytes of the response's body.
    pub(crate) received: u64,
    /// Whether the client's connection can carry another request.
    pub(crate) client_stays: bool,
    /// Whether the server's connection can.
    pub(crate) server_stays: bool,
    /// The server changed to another protocol; what follows is bytes.
    pub(crate) upgraded: bool,
    pub(crate) head: Option<ResponseHead>,
}

/// Bytes of a request's body that are kept until it is answered, to be sent again on another connection.
const REPLAY_BYTES_MAX: usize = 64 * 1024;

/// How the body of a message is passed on.
pub(crate) struct Body {
    reader: BodyReader,
    /// In chunks, as its length is not known.
    chunked: bool,
    pub(crate) moved: u64,
    /// What was passed on so far, as it was written; `None` if that cannot be had again.
    replay: Option<BytesMut>,
}

/// What ended the moving of a body.
#[derive(PartialEq)]
enum Moved {
    /// The body is over.
    All,
    /// More has to be read.
    Starved,
    /// What is there has to be written first.
    Full,
}

/// A request and its response on the way.
pub(crate) struct Exchange<'a> {
    pub(crate) client: &'a mut Conn,
    pub(crate) server: &'a mut Conn,
    request: &'a mut Body,
    /// The server takes no more of the request.
    request_cut: bool,
    response: Option<(ResponseHead, Body)>,
    method: &'a str,
    client_keeps: bool,
    /// HTTP/1.0 knows no chunks.
    client_reads_chunks: bool,
    interims: u32,
    /// What the client would change to, if the server agrees.
    upgrade: Option<&'a [u8]>,
    limits: &'a Limits,
    route: Answering<'a>,
}

/// What the plan says of answers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Answering<'a> {
    /// Which of them are not passed on, but asked for again.
    pub(crate) tries: Option<&'a Tries<'a>>,
    /// What is done to the head, in this order.
    pub(crate) edits: &'a [&'a HeaderEdits],
    /// A cookie to be set.
    pub(crate) cookie: Option<&'a str>,
}

impl<'a> Exchange<'a> {
    /// Of a request whose whole head stands in the server's write buffer; `stays` if the client's connection is to carry
    /// another one.
    pub(crate) fn new(
        (client, server): (&'a mut Conn, &'a mut Conn),
        (head, stays): (&'a RequestHead, bool),
        request: &'a mut Body,
        limits: &'a Limits,
    ) -> Self {
        Self {
            client,
            server,
            request,
            request_cut: false,
            response: None,
            method: head.method(),
            client_keeps: stays,
            client_reads_chunks: head.version == 1,
            interims: 0,
            upgrade: upgrade_of(head),
            limits,
            route: Answering::default(),
        }
    }

    /// Heeds what the plan says of answers.
    pub(crate) fn answering(self, route: Answering<'a>) -> Self {
        Self { route, ..self }
    }

    /// Whether the client has said everything.
    pub(crate) fn is_request_over(&self) -> bool {
        self.request.reader.is_over()
    }

    /// The client's connection is to end after this; it is told so if it has not been told the contrary.
    pub(crate) fn leave(&mut self) {
        if self.response.is_none() {
            self.client_keeps = false;
        }
    }

    /// Bytes of bodies moved so far.
    pub(crate) fn moved(&self) -> u64 {
        self.request.moved + self.response.as_ref().map_or(0, |(_, body)| body.moved)
    }

    /// Whether the client has been told anything.
    pub(crate) fn has_answered(&self) -> bool {
        self.response.is_some() || self.interims > 0
    }

    /// Moves what can be moved.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, ExchangeError>> {
        if let Poll::Ready(Err(error)) = self.poll_request(cx) {
            return Poll::Ready(Err(error));
        }
        while self.response.is_none() {
            // The client may wait for an interim response before it sends the body.
            if let Poll::Ready(Err(_)) = self.client.poll_write_out(cx) {
                return Poll::Ready(Err(ExchangeError::Client));
            }
            match ResponseHead::take(&mut self.server.read, self.method, self.limits)? {
                Some(head) => self.begin_response(head)?,
                None => match std::task::ready!(self.server.poll_fill(cx)) {
                    Ok(0) => return Poll::Ready(Err(self.broken_off(None))),
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Err(self.broken_off(Some(error)))),
                },
            }
        }
        self.poll_response(cx)
    }

    fn broken_off(&self, error: Option<io::Error>) -> ExchangeError {
        if self.interims == 0 && self.server.read.is_empty() {
            ExchangeError::Unanswered(error)
        } else {
            ExchangeError::Server
        }
    }

    /// Moves the request; ready when it is over, or the server takes no more.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        if self.request_cut {
            return Poll::Ready(Ok(()));
        }
        if self.request.reader.is_over() && self.server.is_written_out() {
            return self.poll_client_gone(cx);
        }
        loop {
            let moved = self.request.pass(&mut self.client.read, &mut self.server.write);
            let moved = moved.map_err(ExchangeError::Body)?;
            // It may have answered before it closed.
            if std::task::ready!(self.server.poll_write_out(cx)).is_err() {
                self.request_cut = true;
                return Poll::Ready(Ok(()));
            }
            match moved {
                Moved::All => return self.poll_client_gone(cx),
                Moved::Full => {}
                Moved::Starved => match std::task::ready!(self.client.poll_fill(cx)) {
                    Ok(0) | Err(_) => return Poll::Ready(Err(ExchangeError::Client)),
                    Ok(_) => {}
                },
            }
        }
    }

    /// Waits for the client to leave before it is answered, or for its next request, which is kept.
    fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        if !self.client.read.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match std::task::ready!(self.client.poll_fill(cx)) {
            Ok(0) | Err(_) => Poll::Ready(Err(ExchangeError::Client)),
            Ok(_) => Poll::Ready(Ok(())),
        }
    }

    /// Passes on the head of a response.
    fn begin_response(&mut self, head: ResponseHead) -> Result<(), ExchangeError> {
        if head.status == 101 && self.upgrade.is_none() {
            return Err(ResponseError::Malformed("it changes the protocol unasked").into());
        }
        if head.is_interim() && !self.client_reads_chunks {
            // HTTP/1.0 knows no interim responses.
            return self.count_interim();
        }
        let grpc = || grpc_status(head.value("grpc-status"));
        let again = !head.is_interim() && self.interims == 0 && self.request.can_be_replayed();
        if again && self.route.tries.is_some_and(|tries| tries.refuses(head.status, grpc())) {
            return Err(ExchangeError::Again(head.status));
        }
        let out = &mut self.client.write;
        put_status(out, head.status);
        if head.is_interim() {
            put_fields(out, head.end_to_end(), std::iter::empty());
        } else {
            put_fields(out, head.end_to_end(), self.route.edits.iter().copied());
            self.route.cookie.iter().for_each(|cookie| put_field(out, "set-cookie", cookie.as_bytes()));
        }
        if head.is_interim() {
            out.put_slice(b"\r\n");
            return self.count_interim();
        }
        let chunked = match head.body {
            BodyLength::Chunked | BodyLength::UntilClose => self.client_reads_chunks,
            BodyLength::Exactly(_) => false,
        };
        if head.body != BodyLength::Exactly(0) && !chunked && head.content_length.is_none() {
            self.client_keeps = false;
        }
        if chunked {
            out.put_slice(b"transfer-encoding: chunked\r\n");
        } else if let Some(length) = head.content_length.filter(|_| !matches!(head.status, 101 | 204)) {
            put_length(out, length);
        }
        if head.status == 101 {
            put_upgrade(out, head.upgrade().unwrap_or_default());
        } else {
            // What is left of the request would be taken for the next one.
            self.client_keeps &= self.request.reader.is_over();
            if !self.client_keeps {
                out.put_slice(b"connection: close\r\n");
            } else if !self.client_reads_chunks {
                out.put_slice(b"connection: keep-alive\r\n");
            }
        }
        out.put_slice(b"\r\n");
        let body = Body { reader: BodyReader::new(head.body), chunked, moved: 0, replay: None };
        self.response = Some((head, body));
        Ok(())
    }

    fn count_interim(&mut self) -> Result<(), ExchangeError> {
        self.interims += 1;
        if self.interims > INTERIM_MAX {
            return Err(ResponseError::Malformed("it is preceded by too many others").into());
        }
        Ok(())
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, ExchangeError>> {
        let Some((head, body)) = &mut self.response else { return Poll::Pending };
        loop {
            let moved = body.pass(&mut self.server.read, &mut self.client.write);
            let moved = moved.map_err(|_| ExchangeError::Server)?;
            if std::task::ready!(self.client.poll_write_out(cx)).is_err() {
                return Poll::Ready(Err(ExchangeError::Client));
            }
            if moved == Moved::Full {
                continue;
            }
            if moved == Moved::All {
                let request_over = self.request.reader.is_over() && !self.request_cut && self.server.is_written_out();
                let mut outcome = Outcome {
                    status: head.status,
                    received: body.moved,
                    client_stays: self.client_keeps && self.request.reader.is_over(),
                    server_stays: head.keep_alive && request_over && self.server.read.is_empty(),
                    upgraded: head.status == 101,
                    head: None,
                };
                outcome.head = self.response.take().map(|(head, _)| head);
                return Poll::Ready(Ok(outcome));
            }
            match std::task::ready!(self.server.poll_fill(cx)) {
                Ok(0) if body.reader.close().is_ok() => body.finish(&mut self.client.write),
                Ok(0) | Err(_) => return Poll::Ready(Err(ExchangeError::Server)),
                Ok(_) => {}
            }
        }
    }
}

impl Body {
    /// The body of a request, of which nothing has been moved.
    pub(crate) fn of_request(head: &RequestHead) -> Self {
        let (reader, chunked) = (BodyReader::new(head.body), head.body == BodyLength::Chunked);
        Self { reader, chunked, moved: 0, replay: None }
    }

    /// Keeps what is passed on from now on, if that is all of it.
    pub(crate) fn keep(&mut self) {
        if self.moved == 0 && self.replay.is_none() {
            self.replay = Some(BytesMut::new());
        }
    }

    /// Whether all that was moved of it can be moved again.
    pub(crate) fn can_be_replayed(&self) -> bool {
        self.moved == 0 || self.replay.is_some()
    }

    /// Whether its end has been read.
    pub(crate) fn is_over(&self) -> bool {
        self.reader.is_over()
    }

    /// What has to be written to another server in place of what was moved; `None` if that is gone.
    pub(crate) fn replay(&self) -> Option<&[u8]> {
        self.replay.as_deref()
    }

    /// Moves what has been read, up to [`WRITE_AHEAD_BYTES`].
    fn pass(&mut self, from: &mut BytesMut, to: &mut BytesMut) -> Result<Moved, BodyError> {
        let begin = to.len();
        let moved = self.move_pieces(from, to)?;
        if let Some(replay) = &mut self.replay {
            replay.extend_from_slice(&to[begin..]);
            if replay.len() > REPLAY_BYTES_MAX {
                self.replay = None;
            }
        }
        Ok(moved)
    }

    fn move_pieces(&mut self, from: &mut BytesMut, to: &mut BytesMut) -> Result<Moved, BodyError> {
        while to.len() < WRITE_AHEAD_BYTES {
            match self.reader.next(from)? {
                Piece::Data(count) => {
                    self.moved += count as u64;
                    if self.chunked {
                        put_chunk_head(to, count);
                    }
                    to.extend_from_slice(&from[..count]);
                    from.advance(count);
                    if self.chunked {
                        to.put_slice(b"\r\n");
                    }
                }
                Piece::Framing(count) => {
                    from.advance(count);
                    if self.reader.is_over() {
                        self.finish(to);
                    }
                }
                Piece::More => return Ok(Moved::Starved),
                Piece::End => return Ok(Moved::All),
            }
        }
        Ok(Moved::Full)
    }

    fn finish(&mut self, to: &mut BytesMut) {
        if self.chunked {
            put_last_chunk(to);
        }
    }
}

/// Appends how the end of a request's body is known, and the end of its head.
pub(crate) fn put_request_framing(out: &mut BytesMut, head: &RequestHead) {
    if head.body == BodyLength::Chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    } else if let Some(length) = head.content_length {
        put_length(out, length);
    }
    if let Some(protocol) = upgrade_of(head) {
        put_upgrade(out, protocol);
    }
    out.put_slice(b"\r\n");
}

/// What a client may change to: WebSocket, by a request that has no body (RFC 6455 section 4.1). HTTP/2 in plaintext, say,
/// would carry requests past every decision.
fn upgrade_of(head: &RequestHead) -> Option<&[u8]> {
    let asks = head.version == 1 && head.method() == "GET" && head.body == BodyLength::Exactly(0);
    head.upgrade().filter(|protocol| asks && protocol.eq_ignore_ascii_case(b"websocket"))
}

fn put_length(out: &mut BytesMut, length: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = length;
    while rest > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    put_field(out, "content-length", &digits[at..]);
}

fn put_upgrade(out: &mut BytesMut, protocol: &[u8]) {
    out.put_slice(b"connection: upgrade\r\n");
    put_field(out, "upgrade", protocol);
}

/// Appends a status line.
pub(crate) fn put_status(out: &mut BytesMut, status: u16) {
    let text = http::StatusCode::from_u16(status).ok();
    let reason = text.as_ref().and_then(http::StatusCode::canonical_reason).unwrap_or("Unknown");
    out.put_slice(b"HTTP/1.1 ");
    let digit = |value: u16| b'0' + u8::try_from(value % 10).unwrap_or(0);
    out.put_slice(&[digit(status / 100), digit(status / 10), digit(status), b' ']);
    out.put_slice(reason.as_bytes());
    out.put_slice(b"\r\n");
}
