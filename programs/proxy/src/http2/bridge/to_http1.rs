//! A request that comes in HTTP/2 and goes on in HTTP/1.1.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::HeaderValue;
use http::{HeaderMap, Response};
use starling_http1::{BodyReader, Limits, Piece, ResponseHead, put_chunk_head, put_field, put_last_chunk};

use super::put_map;
use crate::http1::is_idempotent;
use crate::http2::Http2Error;
use crate::http2::client::{ended, unless_reset};
use crate::http2::kept::Kept;
use crate::http2::pump::{Moved, poll_send};
use crate::mirror;
use crate::served::Forward;
use crate::stream::Conn;
use crate::tries::{Tries, grpc_status};
use crate::upstream::Lease;

/// Responses before the final one; a server that sends more is broken.
const INTERIM_MAX: u32 = 16;

/// A request as every try of it has it, but for its body.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) authority: &'a str,
    pub(crate) target: &'a str,
    pub(crate) headers: &'a HeaderMap,
}

/// Passes a request of HTTP/2 on in HTTP/1.1.
pub(crate) async fn to_http1(
    forward: &Forward<'_>,
    request: Asked<'_>,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    moved: &Moved,
) -> Result<u16, Http2Error> {
    let bodiless = body.is_end_stream();
    if bodiless {
        moved.request_over();
    }
    let chunked = !bodiless && !request.headers.contains_key(http::header::CONTENT_LENGTH);
    let mut tries = Tries::new(forward);
    // What can be done twice is sent again where a kept connection turns out to be closed.
    let wanted = tries.keeps_body() || forward.mirror.is_some() || is_idempotent(request.method);
    let mut upload = Upload { body, kept: Kept::new(wanted), chunked, over: false, cut: false, moved };
    let attempts = tries.run(moved, async |tries| {
        let done = attempt(forward, request, &mut upload, respond, tries).await;
        ended(done, upload.kept.is_whole())
    });
    let passed = match attempts.await {
        Ok((lease, head)) => answer(forward, (lease, head), &mut upload, respond).await,
        Err(error) => Err(error),
    };
    if let (Some(mirror), true) = (&forward.mirror, upload.over && upload.kept.is_whole()) {
        let mut copy = BytesMut::new();
        put_head(&mut copy, request, chunked);
        upload.put_again(&mut copy);
        mirror::send(mirror, request.method, copy);
    }
    passed
}

/// Passes a response on.
async fn answer(
    forward: &Forward<'_>,
    (mut lease, head): (Lease, ResponseHead),
    upload: &mut Upload<'_>,
    respond: &mut SendResponse<Bytes>,
) -> Result<u16, Http2Error> {
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
    upload.moved.note_response(response.headers());
    let mut reader = BodyReader::new(head.body);
    let mut to = respond.send_response(response, reader.is_over())?;
    upload.moved.answered.set(true);
    if !reader.is_over() {
        download(server, &mut reader, &mut to, upload).await?;
    }
    let whole = upload.is_over() && !upload.cut && server.is_written_out();
    if head.keep_alive && whole && server.read.is_empty() {
        lease.keep();
    }
    Ok(head.status)
}

/// Makes one try of a request up to the head of its response.
async fn attempt(
    forward: &Forward<'_>,
    request: Asked<'_>,
    upload: &mut Upload<'_>,
    respond: &mut SendResponse<Bytes>,
    tries: &Tries<'_>,
) -> Result<(Lease, ResponseHead), Http2Error> {
    let moved = upload.moved;
    let leased = {
        let leasing = pin!(forward.upstream.lease(tries.wants_fresh(), tries.wish()));
        tries.within(moved, pin!(unless_reset(respond, leasing))).await.unwrap_or(Err(Http2Error::TimedOut))?
    };
    let mut lease = leased.inspect_err(|error| moved.host.set(error.host()))?;
    moved.asks(lease.address());
    let Some(server) = &mut lease.conn else { return Err(Http2Error::Server) };
    put_head(&mut server.write, request, upload.chunked);
    upload.put_again(&mut server.write);
    upload.cut = false;
    let head = {
        let head = pin!(upload.until_head(server, request.method));
        tries.within(moved, pin!(unless_reset(respond, head))).await
    };
    let stale = lease.reused && server.read.is_empty();
    match head.unwrap_or(Ok(Err(Http2Error::TimedOut)))? {
        Ok(head) => {
            lease.ended(head.status < 500);
            let grpc = grpc_status(head.value("grpc-status"));
            if upload.kept.is_whole() && tries.refuses(head.status, grpc) {
                return Err(Http2Error::Again(head.status, grpc));
            }
            Ok((lease, head))
        }
        // What the server has closed meanwhile says nothing about it.
        Err(Http2Error::Server) if stale => {
            Err(if is_idempotent(request.method) { Http2Error::Stale } else { Http2Error::Server })
        }
        Err(error) => {
            if !matches!(error, Http2Error::Client) {
                lease.ended(false);
            }
            Err(error)
        }
    }
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
    kept: Kept,
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
                Some(Ok(chunk)) => self.take(&mut server.write, &chunk).map_err(|_| Http2Error::Client)?,
                Some(Err(_)) => return Poll::Ready(Err(Http2Error::Client)),
                None => self.end(&mut server.write),
            }
        }
    }

    /// Passes on what has come.
    fn take(&mut self, out: &mut BytesMut, chunk: &Bytes) -> Result<(), h2::Error> {
        self.moved.add_up(chunk.len());
        self.kept.keep(chunk);
        self.put(out, chunk);
        self.body.flow_control().release_capacity(chunk.len())
    }

    /// Appends what had come before this try.
    fn put_again(&self, out: &mut BytesMut) {
        self.kept.chunks().iter().for_each(|chunk| self.put(out, chunk));
        if self.over {
            self.put_end(out);
        }
    }

    fn put(&self, out: &mut BytesMut, chunk: &[u8]) {
        if self.chunked && !chunk.is_empty() {
            put_chunk_head(out, chunk.len());
            out.put_slice(chunk);
            out.put_slice(b"\r\n");
        } else {
            out.put_slice(chunk);
        }
    }

    fn put_end(&self, out: &mut BytesMut) {
        if self.chunked {
            put_last_chunk(out);
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.over = true;
        self.moved.request_over();
        self.put_end(out);
    }
}

fn put_head(out: &mut BytesMut, Asked { method, authority, target, headers }: Asked<'_>, chunked: bool) {
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
