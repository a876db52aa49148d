//! HTTP/2 and gRPC of the application.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http1::GREETING;

/// What may be on its way on one stream, and on one connection.
const WINDOW: u32 = 1 << 20;

/// Streams of a connection at a time.
const STREAMS_MAX: u32 = 1000;

/// Where collectors take spans, in OTLP over gRPC.
const TAKES_SPANS: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A gRPC message without anything in it.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

/// Serves a connection of which something has been read.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, read: Bytes) -> anyhow::Result<()> {
    let mut builder = Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).max_concurrent_streams(STREAMS_MAX);
    let mut connection = builder.handshake::<_, Bytes>(Begun { stream, read }).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        tokio::spawn(answer(request, respond));
    }
    Ok(())
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let is_grpc = request.headers().get(http::header::CONTENT_TYPE).is_some_and(|kind| kind == "application/grpc");
    let takes_spans = request.uri().path() == TAKES_SPANS;
    let mut body = request.into_body();
    let mut echoed = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        echoed.extend_from_slice(&piece);
    }
    let echoed = if echoed.is_empty() { Bytes::from_static(GREETING) } else { echoed.freeze() };
    // What a collector is sent is no answer to it.
    let echoed = if takes_spans { Bytes::from_static(EMPTY_MESSAGE) } else { echoed };
    let mut response = Response::new(());
    if is_grpc {
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    }
    let mut sending = respond.send_response(response, false)?;
    sending.send_data(echoed, !is_grpc)?;
    if is_grpc {
        sending.send_trailers(HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("0"),
        )]))?;
    }
    Ok(())
}

/// A stream whose first bytes have been read.
struct Begun<S> {
    stream: S,
    read: Bytes,
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.read.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let length = this.read.len().min(buf.remaining());
        buf.put_slice(&this.read[..length]);
        this.read.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
