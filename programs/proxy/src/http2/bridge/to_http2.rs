//! A request that comes in HTTP/1.1 and goes on in HTTP/2.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::header::HeaderValue;
use http::{Request, Response};
use starling_http1::{BodyReader, Piece, RequestHead, put_chunk_head, put_field, put_last_chunk};
use starling_traffic::http2_form;

use super::put_map;
use crate::edits::edit_map;
use crate::exchange::put_status;
use crate::http2::client::{Pending, ended, grpc_status_of};
use crate::http2::kept::Kept;
use crate::http2::pump::{Moved, poll_send};
use crate::http2::{Http2Error, client};
use crate::mirror;
use crate::served::Forward;
use crate::stream::Conn;
use crate::tries::Tries;

/// A request of HTTP/1.1 as one of HTTP/2; what the next hop is told is in `fields`.
fn request_of<'a>(
    (head, authority): (&RequestHead, &str),
    target: &str,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Request<()>, http::Error> {
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
    let mut request = request_of((head, forward.authority(head.authority())), target, fields)?;
    edit_map(request.headers_mut(), forward.request_edits());
    let mut tries = Tries::new(forward);
    let wanted = tries.keeps_body() || forward.mirror.is_some();
    let mut raise = Raise::new(BodyReader::new(head.body), wanted, moved);
    let attempts = tries.run(moved, async |tries| {
        let done = attempt(forward, &request, &mut raise, client, tries).await;
        ended(done, raise.kept.is_whole())
    });
    let passed = match attempts.await {
        Ok(answered) => answer(forward, (head, stays), answered, &mut raise, client).await,
        Err(error) => Err(error),
    };
    if let (Some(mirror), Some(chunks)) = (&forward.mirror, raise.whole()) {
        mirror::send_http2(mirror, request, (chunks, None));
    }
    passed
}

/// Makes one try of a request up to the head of its response.
async fn attempt(
    forward: &Forward<'_>,
    request: &Request<()>,
    raise: &mut Raise<'_>,
    client: &mut Conn,
    tries: &Tries<'_>,
) -> Result<(Pending, Response<RecvStream>), Http2Error> {
    let moved = raise.moved;
    let begun = client::begin((&forward.upstream, tries.wish()), request, raise.is_empty());
    let begun = tries.within(moved, pin!(begun)).await.ok_or(Http2Error::TimedOut)?;
    let (mut pending, to) = begun.inspect_err(|error| moved.host.set(error.host()))?;
    moved.asks(pending.load.address());
    raise.begin(to);
    let response = poll_fn(|cx| {
        if let Poll::Ready(Err(error)) = raise.poll(cx, client) {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(Err(_)) = client.poll_write_out(cx) {
            return Poll::Ready(Err(Http2Error::Client));
        }
        Pin::new(&mut pending.response).poll(cx).map_err(Http2Error::from)
    });
    let error = match tries.within(moved, pin!(response)).await.unwrap_or(Err(Http2Error::TimedOut)) {
        Ok(response) => {
            let (status, grpc) = (response.status().as_u16(), grpc_status_of(response.headers()));
            pending.load.ended(status < 500);
            if !(raise.kept.is_whole() && tries.refuses(status, grpc)) {
                return Ok((pending, response));
            }
            Http2Error::Again(status, grpc)
        }
        Err(error) => {
            if !matches!(error, Http2Error::Client | Http2Error::Body(_)) {
                pending.load.ended(false);
            }
            error
        }
    };
    raise.to = None;
    Err(error)
}

/// Passes a response on.
async fn answer(
    forward: &Forward<'_>,
    (head, stays): (&RequestHead, bool),
    (_pending, response): (Pending, Response<RecvStream>),
    raise: &mut Raise<'_>,
    client: &mut Conn,
) -> Result<Bridged, Http2Error> {
    let (mut parts, mut body) = response.into_parts();
    forward.edit_response(&mut parts.headers);
    let moved = raise.moved;
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
    kept: Kept,
    /// How many of the kept chunks the present try has taken up.
    sent: usize,
    /// `None` when the body is over, or the server takes no more.
    to: Option<SendStream<Bytes>>,
    /// Taken up and not yet taken by the server.
    chunk: Bytes,
    moved: &'a Moved,
}

impl<'a> Raise<'a> {
    /// Of which nothing has come; `wanted` if it may have to be sent again.
    fn new(reader: BodyReader, wanted: bool, moved: &'a Moved) -> Self {
        if reader.is_over() {
            moved.request_over();
        }
        Self { reader, kept: Kept::new(wanted), sent: 0, to: None, chunk: Bytes::new(), moved }
    }

    /// Whether there is no body.
    fn is_empty(&self) -> bool {
        self.reader.is_over() && self.kept.chunks().is_empty() && self.kept.is_whole()
    }

    /// The whole of it, if that has come and was kept.
    fn whole(self) -> Option<Vec<Bytes>> {
        (self.reader.is_over() && self.kept.is_whole()).then(|| self.kept.into_chunks())
    }

    /// Sends it to another server, from its beginning.
    fn begin(&mut self, to: SendStream<Bytes>) {
        (self.sent, self.chunk) = (0, Bytes::new());
        self.to = (!self.is_empty()).then_some(to);
    }

    /// Moves the body, then waits for the client to leave; ready if it has, or sends its next request, which is kept.
    fn poll(&mut self, cx: &mut Context<'_>, client: &mut Conn) -> Poll<Result<(), Http2Error>> {
        while let Some(to) = &mut self.to {
            let over = self.reader.is_over() && self.sent == self.kept.chunks().len();
            let sent = ready!(poll_send(cx, to, &mut self.chunk, over));
            if over || sent.is_err() {
                self.to = None;
                break;
            }
            if let Some(chunk) = self.kept.chunks().get(self.sent) {
                self.chunk = chunk.clone();
                self.sent += 1;
                continue;
            }
            match self.reader.next(&client.read).map_err(Http2Error::Body)? {
                Piece::Data(count) => {
                    self.moved.add_up(count);
                    self.chunk = client.read.split_to(count).freeze();
                    self.kept.keep(&self.chunk);
                    self.sent = self.kept.chunks().len();
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
