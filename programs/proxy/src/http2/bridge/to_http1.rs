//! A request that comes in HTTP/2 and goes on in HTTP/1.1.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::HeaderValue;
use http::{HeaderMap, Response};
use starling_http1::{BodyReader, Limits, Piece, ResponseHead, put_chunk_head, put_field, put_last_chunk};
use starling_traffic::retry::Ended;

use super::put_map;
use crate::http1::is_idempotent;
use crate::http2::Http2Error;
use crate::http2::client::unless_reset;
use crate::http2::pump::{Moved, poll_send};
use crate::served::Forward;
use crate::stream::Conn;
use crate::tries::Tries;
use crate::upstream::Lease;

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
