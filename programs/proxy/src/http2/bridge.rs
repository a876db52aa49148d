//! Between the two versions of HTTP: a request that comes in one and goes on in the other.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response};
use starling_http1::{BodyReader, Limits, Piece, RequestHead, ResponseHead, put_chunk_head, put_field, put_last_chunk};
use starling_traffic::http2_form;
use starling_traffic::retry::Ended;

use super::client::unless_reset;
use super::pump::{Moved, poll_send};
use super::{Http2Error, client};
use crate::edits::edit_map;
use crate::exchange::put_status;
use crate::http1::is_idempotent;
use crate::served::Forward;
use crate::stream::Conn;
use crate::tries::Tries;
use crate::upstream::{Lease, Wish};

/// Responses before the final one; a server that sends more is broken.
const INTERIM_MAX: u32 = 16;

/// Passes a request of HTTP/2 on in HTTP/1.1.
pub(crate) async fn to_http1(
    forward: &Forward<'_>,
    (method, authority, target): (&str, &str, &str),
    headers: &HeaderMap,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    moved: &Moved,
) -> Result<u16, Http2Error> {
    let bodiless = body.is_end_stream();
    if bodiless {
        moved.request_over();
    }
    let chunked = !bodiless && !headers.contains_key(http::header::CONTENT_LENGTH);
    let mut upload = Upload { body, chunked, over: false, cut: false, moved };
    let mut tries = Tries::new(forward);
    let (mut lease, head) = loop {
        let request = ((method, authority, target), headers);
        let (error, ended) = match attempt(forward, request, &mut upload, respond, &mut tries).await {
            Ok(answered) => break answered,
            Err(failed) => failed,
        };
        // What was taken of a body is gone.
        let whole = bodiless || !(upload.over || moved.up.get() > 0);
        if !ended.is_some_and(|ended| whole && tries.again(ended, moved.host.get())) {
            return Err(error);
        }
        tokio::task::yield_now().await;
    };
    lease.ended(head.status < 500);
    let Some(server) = &mut lease.conn else { return Err(Http2Error::Server) };
    if head.status == 101 {
        return Err(starling_http1::ResponseError::Malformed("it changes the protocol unasked").into());
    }
    let mut response = Response::new(());
    *response.status_mut() = http::StatusCode::from_u16(head.status).map_err(http::Error::from)?;
    put_map(response.headers_mut(), head.end_to_end());
    if let Some(length) = head.content_length.filter(|_| head.status != 204) {
        response.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    forward.edit_response(response.headers_mut());
    moved.note_response(response.headers());
    let mut reader = BodyReader::new(head.body);
    let mut to = respond.send_response(response, reader.is_over())?;
    moved.answered.set(true);
    if !reader.is_over() {
        download(server, &mut reader, &mut to, &mut upload).await?;
    }
    let whole = upload.is_over() && !upload.cut && server.is_written_out();
    if head.keep_alive && whole && server.read.is_empty() {
        lease.keep();
    }
    Ok(head.status)
}

/// Makes one try of a request up to the head of its response; how it ended, if it may be made again.
async fn attempt(
    forward: &Forward<'_>,
    ((method, authority, target), headers): ((&str, &str, &str), &HeaderMap),
    upload: &mut Upload<'_>,
    respond: &mut SendResponse<Bytes>,
    tries: &mut Tries<'_>,
) -> Result<(Lease, ResponseHead), (Http2Error, Option<Ended>)> {
    let bodiless = upload.body.is_end_stream() && !upload.chunked;
    let with_end = |error: Http2Error| {
        let ended = error.ended();
        (error, ended)
    };
    let leasing = unless_reset(respond, forward.upstream.lease(tries.wants_fresh(), tries.wish()));
    let leased = tries.within(leasing).await.unwrap_or(Err(Http2Error::TimedOut)).map_err(with_end)?;
    let leased = leased.inspect_err(|error| upload.moved.host.set(error.host()));
    let mut lease = leased.map_err(|error| with_end(error.into()))?;
    upload.moved.host.set(lease.address());
    let Some(server) = &mut lease.conn else { return Err((Http2Error::Server, None)) };
    put_head(&mut server.write, (method, authority, target), headers, upload.chunked);
    upload.cut = false;
    let head = tries.within(unless_reset(respond, upload.until_head(server, method))).await;
    let unread = server.read.is_empty();
    let error = match head.unwrap_or(Ok(Err(Http2Error::TimedOut))).map_err(with_end)? {
        Ok(head) if !(bodiless && tries.refuses(head.status, None)) => return Ok((lease, head)),
        Ok(head) => Http2Error::Again(head.status, None),
        // A kept connection that the server has closed meanwhile: what has no body can be sent again.
        Err(error @ Http2Error::Server) if lease.reused && unread && bodiless && is_idempotent(method) => {
            let ended = if tries.stale() { Ended::Refused } else { Ended::Reset };
            return Err((error, Some(ended)));
        }
        Err(error) => error,
    };
    lease.ended(false);
    Err(with_end(error))
}

async fn download(
    server: &mut Conn,
    reader: &mut BodyReader,
    to: &mut h2::SendStream<Bytes>,
    upload: &mut Upload<'_>,
) -> Result<(), Http2Error> {
    loop {
        match reader.next(&server.read).map_err(|_| Http2Error::Server)? {
            Piece::Data(count) => {
                upload.moved.add_down(count);
                let mut chunk = server.read.split_to(count).freeze();
                let over = reader.is_over();
                poll_fn(|cx| {
                    if let Poll::Ready(Err(error)) = upload.poll(cx, server) {
                        return Poll::Ready(Err(error));
                    }
                    poll_send(cx, to, &mut chunk, over).map_err(Http2Error::from)
                })
                .await?;
                if over {
                    return Ok(());
                }
            }
            Piece::Framing(count) => server.read.advance(count),
            Piece::End => return Ok(to.send_data(Bytes::new(), true)?),
            Piece::More => {
                let read = poll_fn(|cx| {
                    if let Poll::Ready(read) = upload.poll_readable(cx, server) {
                        return Poll::Ready(read);
                    }
                    to.poll_reset(cx).map(|_| Err(Http2Error::Client))
                });
                match read.await {
                    Ok(true) => {}
                    Ok(false) => reader.close().map_err(|_| Http2Error::Server)?,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// The body of a request on its way into HTTP/1.1.
struct Upload<'a> {
    body: RecvStream,
    chunked: bool,
    over: bool,
    /// The server takes no more of it.
    cut: bool,
    moved: &'a Moved,
}

impl Upload<'_> {
    fn is_over(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    /// Moves the body until a response has begun.
    async fn until_head(&mut self, server: &mut Conn, method: &str) -> Result<ResponseHead, Http2Error> {
        let mut interims = 0;
        loop {
            match ResponseHead::take(&mut server.read, method, &Limits::default())? {
                Some(head) if !head.is_interim() => return Ok(head),
                Some(_) => {
                    interims += 1;
                    if interims > INTERIM_MAX {
                        return Err(Http2Error::Server);
                    }
                }
                None => {
                    if !poll_fn(|cx| self.poll_readable(cx, server)).await? {
                        return Err(Http2Error::Server);
                    }
                }
            }
        }
    }

    /// Moves the body until the server has something to be read, or has closed.
    fn poll_readable(&mut self, cx: &mut Context<'_>, server: &mut Conn) -> Poll<Result<bool, Http2Error>> {
        if let Poll::Ready(Err(error)) = self.poll(cx, server) {
            return Poll::Ready(Err(error));
        }
        server.poll_fill(cx).map(|read| read.map(|count| count > 0).map_err(|_| Http2Error::Server))
    }

    /// Moves the body; ready when it is over, or the server takes no more.
    fn poll(&mut self, cx: &mut Context<'_>, server: &mut Conn) -> Poll<Result<(), Http2Error>> {
        loop {
            if self.body.is_end_stream() && !self.over {
                self.end(&mut server.write);
            }
            if self.cut {
                return Poll::Ready(Ok(()));
            }
            if ready!(server.poll_write_out(cx)).is_err() {
                // It may have answered before it closed.
                self.cut = true;
                continue;
            }
            if self.over {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.body.poll_data(cx)) {
                Some(Ok(chunk)) => self.put(&mut server.write, &chunk).map_err(|_| Http2Error::Client)?,
                Some(Err(_)) => return Poll::Ready(Err(Http2Error::Client)),
                None => self.end(&mut server.write),
            }
        }
    }

    fn put(&mut self, out: &mut BytesMut, chunk: &[u8]) -> Result<(), h2::Error> {
        self.moved.add_up(chunk.len());
        if self.chunked && !chunk.is_empty() {
            put_chunk_head(out, chunk.len());
            out.put_slice(chunk);
            out.put_slice(b"\r\n");
        } else {
            out.put_slice(chunk);
        }
        self.body.flow_control().release_capacity(chunk.len())
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.over = true;
        self.moved.request_over();
        if self.chunked {
            put_last_chunk(out);
        }
    }
}

fn put_head(out: &mut BytesMut, (method, authority, target): (&str, &str, &str), headers: &HeaderMap, chunked: bool) {
    for part in [method, " ", target, " HTTP/1.1\r\n"] {
        out.put_slice(part.as_bytes());
    }
    put_field(out, "host", if authority.is_empty() { "localhost" } else { authority }.as_bytes());
    let mut cookies = headers.get_all(http::header::COOKIE).iter().peekable();
    if cookies.peek().is_some() {
        // Several lines in HTTP/2, one in HTTP/1.1 (RFC 9113 section 8.2.3).
        let joined = cookies.map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b"; "[..]);
        put_field(out, "cookie", &joined);
    }
    for (name, value) in headers {
        if name != http::header::COOKIE && name != http::header::TE && name != http::header::CONTENT_LENGTH {
            put_field(out, name.as_str(), value.as_bytes());
        }
    }
    // Once, however often it was said.
    if let Some(length) = headers.get(http::header::CONTENT_LENGTH) {
        put_field(out, "content-length", length.as_bytes());
    }
    if chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    }
    out.put_slice(b"\r\n");
}

fn put_map<'a>(map: &mut HeaderMap, fields: impl Iterator<Item = (&'a str, &'a [u8])>) {
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
}

/// A request of HTTP/1.1 as one of HTTP/2; what the next hop is told is in `fields`.
fn request_of<'a>(
    head: &RequestHead,
    target: &str,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Request<()>, http::Error> {
    let authority = head.authority();
    let uri = http::Uri::builder()
        .scheme("http")
        .authority(if authority.is_empty() { "localhost" } else { authority })
        .path_and_query(&*http2_form(target))
        .build()?;
    let mut request = Request::builder().method(head.method()).uri(uri).version(http::Version::HTTP_2).body(())?;
    put_map(request.headers_mut(), fields);
    if let Some(length) = head.content_length {
        request.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(request)
}

/// What became of a request of HTTP/1.1 that went on in HTTP/2.
pub(crate) struct Bridged {
    pub(crate) status: u16,
    pub(crate) received: u64,
    /// Whether the client's connection can carry another request.
    pub(crate) client_stays: bool,
}

/// Passes a request of HTTP/1.1 on in HTTP/2, and its response back; `stays` if the client's connection is to carry another.
pub(crate) async fn to_http2<'a>(
    forward: &Forward<'_>,
    client: &mut Conn,
    (head, target, stays): (&RequestHead, &str, bool),
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    moved: &Moved,
) -> Result<Bridged, Http2Error> {
    let mut request = request_of(head, target, fields)?;
    edit_map(request.headers_mut(), forward.request_edits());
    let (reader, wish) = (BodyReader::new(head.body), Wish { hash: forward.hash, not: None });
    if reader.is_over() {
        moved.request_over();
    }
    let (mut pending, to) = client::begin((&forward.upstream, wish), &request, reader.is_over()).await?;
    moved.host.set(pending.load.address());
    let mut raise = Raise { reader, to: Some(to), chunk: Bytes::new(), moved };
    if raise.reader.is_over() {
        raise.to = None;
    }
    let response = poll_fn(|cx| {
        if let Poll::Ready(Err(error)) = raise.poll(cx, client) {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(Err(_)) = client.poll_write_out(cx) {
            return Poll::Ready(Err(Http2Error::Client));
        }
        Pin::new(&mut pending.response).poll(cx).map_err(Http2Error::from)
    });
    let (mut parts, mut body) = response.await?.into_parts();
    pending.load.ended(parts.status.as_u16() < 500);
    forward.edit_response(&mut parts.headers);
    moved.note_response(&parts.headers);
    let client_stays = stays && raise.reader.is_over();
    let chunked = put_response(&mut client.write, &parts, head, &body, client_stays);
    moved.answered.set(true);
    loop {
        let chunk = poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = raise.poll(cx, client) {
                return Poll::Ready(Err(error));
            }
            if ready!(client.poll_write_out(cx)).is_err() {
                return Poll::Ready(Err(Http2Error::Client));
            }
            body.poll_data(cx).map(|chunk| chunk.transpose().map_err(Http2Error::from))
        });
        let Some(chunk) = chunk.await? else { break };
        moved.add_down(chunk.len());
        let out = &mut client.write;
        if chunked && !chunk.is_empty() {
            put_chunk_head(out, chunk.len());
            out.put_slice(&chunk);
            out.put_slice(b"\r\n");
        } else {
            out.put_slice(&chunk);
        }
        body.flow_control().release_capacity(chunk.len())?;
    }
    if chunked {
        put_last_chunk(&mut client.write);
    }
    client.write_out().await.map_err(|_| Http2Error::Client)?;
    Ok(Bridged { status: parts.status.as_u16(), received: moved.down.get(), client_stays })
}

/// The body of a request of HTTP/1.1 on its way into HTTP/2.
struct Raise<'a> {
    reader: BodyReader,
    /// `None` when the body is over, or the server takes no more.
    to: Option<h2::SendStream<Bytes>>,
    /// Taken from the client and not yet by the server.
    chunk: Bytes,
    moved: &'a Moved,
}

impl Raise<'_> {
    /// Moves the body, then waits for the client to leave; ready if it has, or sends its next request, which is kept.
    fn poll(&mut self, cx: &mut Context<'_>, client: &mut Conn) -> Poll<Result<(), Http2Error>> {
        while let Some(to) = &mut self.to {
            let over = self.reader.is_over();
            let sent = ready!(poll_send(cx, to, &mut self.chunk, over));
            if over || sent.is_err() {
                self.to = None;
                break;
            }
            match self.reader.next(&client.read).map_err(Http2Error::Body)? {
                Piece::Data(count) => {
                    self.moved.add_up(count);
                    self.chunk = client.read.split_to(count).freeze();
                }
                Piece::Framing(count) => {
                    client.read.advance(count);
                    if self.reader.is_over() {
                        // What it ends may have been ended by the server.
                        let _ = to.send_data(Bytes::new(), true);
                        self.to = None;
                    }
                }
                Piece::More => match ready!(client.poll_fill(cx)) {
                    Ok(0) | Err(_) => return Poll::Ready(Err(Http2Error::Client)),
                    Ok(_) => {}
                },
                Piece::End => self.to = None,
            }
            if self.reader.is_over() {
                self.moved.request_over();
            }
        }
        if !client.read.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match ready!(client.poll_fill(cx)) {
            Ok(0) | Err(_) => Poll::Ready(Err(Http2Error::Client)),
            Ok(_) => Poll::Ready(Ok(())),
        }
    }
}

/// Appends the head of a response of HTTP/2; whether its body goes in chunks.
fn put_response(
    out: &mut BytesMut,
    parts: &http::response::Parts,
    request: &RequestHead,
    body: &RecvStream,
    stays: bool,
) -> bool {
    put_status(out, parts.status.as_u16());
    for (name, value) in &parts.headers {
        put_field(out, name.as_str(), value.as_bytes());
    }
    let bodiless = request.method() == "HEAD" || matches!(parts.status.as_u16(), 204 | 304);
    let counted = parts.headers.contains_key(http::header::CONTENT_LENGTH);
    let chunked = !bodiless && !counted && request.version == 1;
    if chunked && body.is_end_stream() {
        put_field(out, "content-length", b"0");
    } else if chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    }
    if !stays || (!bodiless && !counted && !chunked) {
        out.put_slice(b"connection: close\r\n");
    }
    out.put_slice(b"\r\n");
    chunked && !body.is_end_stream()
}
