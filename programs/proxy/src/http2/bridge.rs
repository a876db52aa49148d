//! Between the two versions of HTTP: a request that comes in one and goes on in the other.

use std::rc::Rc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response};
use starling_http1::{BodyReader, Limits, Piece, RequestHead, ResponseHead, put_chunk_head, put_field, put_last_chunk};

use super::pump::{Moved, send};
use super::{Http2Error, client};
use crate::exchange::put_status;
use crate::stream::Conn;
use crate::upstream::Upstream;

/// Passes a request of HTTP/2 on in HTTP/1.1.
pub(crate) async fn to_http1(
    upstream: &Rc<Upstream>,
    (method, authority, target): (&str, &str, &str),
    headers: &HeaderMap,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    moved: &mut Moved,
) -> Result<Option<u16>, Http2Error> {
    let mut lease = upstream.lease(false).await?;
    let Some(server) = &mut lease.conn else { return Err(Http2Error::Server) };
    let chunked = !body.is_end_stream() && !headers.contains_key(http::header::CONTENT_LENGTH);
    put_head(&mut server.write, (method, authority, target), headers, chunked);
    let mut upload = Upload { body, chunked, over: false, moved: 0 };
    let head = loop {
        if let Some(head) = ResponseHead::take(&mut server.read, method, &Limits::default())? {
            if !head.is_interim() {
                break head;
            }
            continue;
        }
        upload.until_readable(server).await?;
    };
    let mut response = Response::new(());
    *response.status_mut() = http::StatusCode::from_u16(head.status).map_err(http::Error::from)?;
    put_map(response.headers_mut(), head.end_to_end());
    if let Some(length) = head.content_length {
        response.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let mut reader = BodyReader::new(head.body);
    let mut to = respond.send_response(response, reader.is_over())?;
    moved.answered = true;
    if !reader.is_over() {
        download(server, &mut reader, &mut to, &mut upload, moved).await?;
    }
    moved.up = upload.moved;
    let server_stays = head.keep_alive && upload.is_over() && server.is_written_out() && server.read.is_empty();
    if server_stays {
        lease.keep();
    }
    Ok(Some(head.status))
}

async fn download(
    server: &mut Conn,
    reader: &mut BodyReader,
    to: &mut h2::SendStream<Bytes>,
    upload: &mut Upload,
    moved: &mut Moved,
) -> Result<(), Http2Error> {
    loop {
        match reader.next(&server.read).map_err(|_| Http2Error::Server)? {
            Piece::Data(count) => {
                moved.down += count as u64;
                let chunk = server.read.split_to(count).freeze();
                let over = reader.is_over();
                send(to, chunk, over).await?;
                if over {
                    return Ok(());
                }
            }
            Piece::Framing(count) => server.read.advance(count),
            Piece::End => return Ok(to.send_data(Bytes::new(), true)?),
            Piece::More => match upload.until_readable(server).await {
                Ok(()) => {}
                Err(Http2Error::Server) if reader.close().is_ok() => {}
                Err(error) => return Err(error),
            },
        }
    }
}

/// The body of a request on its way into HTTP/1.1.
struct Upload {
    body: RecvStream,
    chunked: bool,
    over: bool,
    moved: u64,
}

impl Upload {
    fn is_over(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    /// Moves the body until the server has something to be read.
    async fn until_readable(&mut self, server: &mut Conn) -> Result<(), Http2Error> {
        loop {
            if self.body.is_end_stream() && !self.over {
                self.end(&mut server.write);
            }
            server.write_out().await.map_err(|_| Http2Error::Server)?;
            tokio::select! {
                biased;
                read = server.fill() => return match read {
                    Ok(1..) => Ok(()),
                    Ok(0) | Err(_) => Err(Http2Error::Server),
                },
                chunk = self.body.data(), if !self.over => match chunk {
                    Some(chunk) => self.put(&mut server.write, &chunk?)?,
                    None => self.end(&mut server.write),
                },
            }
        }
    }

    fn put(&mut self, out: &mut BytesMut, chunk: &[u8]) -> Result<(), h2::Error> {
        self.moved += chunk.len() as u64;
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
        if name != http::header::COOKIE && name != http::header::TE {
            put_field(out, name.as_str(), value.as_bytes());
        }
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
    let authority = authority.strip_suffix('.').unwrap_or(authority);
    let uri = http::Uri::builder()
        .scheme("http")
        .authority(if authority.is_empty() { "localhost" } else { authority })
        .path_and_query(target)
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
    upstream: &Rc<Upstream>,
    client: &mut Conn,
    (head, target, stays): (&RequestHead, &str, bool),
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    moved: &mut Moved,
) -> Result<Bridged, Http2Error> {
    let request = request_of(head, target, fields)?;
    let mut reader = BodyReader::new(head.body);
    let (pending, mut upload) = client::begin(upstream, request, reader.is_over()).await?;
    let client::Pending { mut response, .. } = pending;
    let response = loop {
        if reader.is_over() {
            break (&mut response).await?;
        }
        tokio::select! {
            biased;
            response = &mut response => break response?,
            passed = upload_piece(client, &mut reader, &mut upload, &mut moved.up) => passed?,
        }
    };
    let (parts, mut body) = response.into_parts();
    let client_stays = stays && reader.is_over();
    let out = &mut client.write;
    let chunked = put_response(out, &parts, head, &body, client_stays);
    moved.answered = true;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        moved.down += chunk.len() as u64;
        let out = &mut client.write;
        if chunked && !chunk.is_empty() {
            put_chunk_head(out, chunk.len());
            out.put_slice(&chunk);
            out.put_slice(b"\r\n");
        } else {
            out.put_slice(&chunk);
        }
        client.write_out().await.map_err(|_| Http2Error::Client)?;
        body.flow_control().release_capacity(chunk.len())?;
    }
    if chunked {
        put_last_chunk(&mut client.write);
    }
    client.write_out().await.map_err(|_| Http2Error::Client)?;
    Ok(Bridged { status: parts.status.as_u16(), received: moved.down, client_stays })
}

/// Passes the next piece of a request's body on.
async fn upload_piece(
    client: &mut Conn,
    reader: &mut BodyReader,
    to: &mut h2::SendStream<Bytes>,
    moved: &mut u64,
) -> Result<(), Http2Error> {
    // Nothing is taken from the reader before the last await: whoever waits for a response, too, drops this.
    if client.read.is_empty() && matches!(client.fill().await, Ok(0) | Err(_)) {
        return Err(Http2Error::Client);
    }
    match reader.next(&client.read).map_err(|_| Http2Error::Client)? {
        Piece::Data(count) => {
            *moved += count as u64;
            let chunk = client.read.split_to(count).freeze();
            send(to, chunk, reader.is_over()).await?;
        }
        Piece::Framing(count) => {
            client.read.advance(count);
            if reader.is_over() {
                to.send_data(Bytes::new(), true)?;
            }
        }
        Piece::More => {
            if matches!(client.fill().await, Ok(0) | Err(_)) {
                return Err(Http2Error::Client);
            }
        }
        Piece::End => {}
    }
    Ok(())
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
