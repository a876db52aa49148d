//! Copies of requests: sent when the request itself is over, their answers read over.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use starling_http1::{BodyReader, Limits, Piece, ResponseHead};
use starling_model::Protocol;

use crate::http2::client;
use crate::upstream::{Upstream, Wish};

/// Time for a copy and its answer.
const COPY_TIMEOUT: Duration = Duration::from_secs(15);

/// Sends a copy of a request of HTTP/1.1; nobody waits for it, and nothing depends on it. Only services of HTTP/1.1 get
/// copies of it.
pub(crate) fn send(upstream: &Rc<Upstream>, method: &str, request: BytesMut) {
    if upstream.protocol != Protocol::Http {
        return;
    }
    let (upstream, method) = (Rc::clone(upstream), method.to_owned());
    tokio::task::spawn_local(async move {
        let copied = tokio::time::timeout(COPY_TIMEOUT, copy(&upstream, &method, &request)).await;
        if !matches!(copied, Ok(Some(()))) {
            tracing::debug!(upstream = upstream.name, "a copy of a request was lost");
        }
    });
}

/// The same for HTTP/2.
pub(crate) fn send_http2(upstream: &Rc<Upstream>, request: Request<()>, body: (Vec<Bytes>, Option<HeaderMap>)) {
    if !matches!(upstream.protocol, Protocol::Http2 | Protocol::Grpc) {
        return;
    }
    let upstream = Rc::clone(upstream);
    tokio::task::spawn_local(async move {
        let copied = tokio::time::timeout(COPY_TIMEOUT, client::copy(&upstream, &request, body)).await;
        if !matches!(copied, Ok(Ok(()))) {
            tracing::debug!(upstream = upstream.name, "a copy of a request was lost");
        }
    });
}

async fn copy(upstream: &Rc<Upstream>, method: &str, request: &[u8]) -> Option<()> {
    let mut lease = upstream.lease(false, Wish::default()).await.ok()?;
    let server = lease.conn.as_mut()?;
    server.write.put_slice(request);
    server.write_out().await.ok()?;
    let head = loop {
        match ResponseHead::take(&mut server.read, method, &Limits::default()).ok()? {
            Some(head) if head.is_interim() => {}
            Some(head) => break head,
            None => (server.fill().await.ok()? > 0).then_some(())?,
        }
    };
    let mut body = BodyReader::new(head.body);
    loop {
        match body.next(&server.read).ok()? {
            Piece::Data(count) | Piece::Framing(count) => server.read.advance(count),
            Piece::More => (server.fill().await.ok()? > 0).then_some(())?,
            Piece::End => break,
        }
    }
    if head.keep_alive && server.read.is_empty() {
        lease.keep();
    }
    Some(())
}
