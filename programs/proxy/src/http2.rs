//! HTTP/2 connections of clients, gRPC included: each stream a request, decided about and passed on.
//!
//! Limits are set by hand, here and in `client`: streams, windows, header lists, streams reset by the client (rapid reset,
//! CVE-2023-44487). What exceeds them ends the connection with `GOAWAY`; other connections are not disturbed.

pub(crate) mod bridge;
pub(crate) mod client;
pub(crate) mod pump;

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use starling_model::Protocol;
use starling_traffic::HeaderFields;
use tokio::time::{sleep, timeout};

use crate::listener::Listening;
use crate::metrics::Ending;
use crate::served::{CLIENT_CERTIFICATE, Decision, Forward, Peer, Side};
use crate::stream::{Conn, Stream};
use crate::upstream::CallError;

/// Streams that a client may have open on one connection, as with the Envoy that Starling configures.
const STREAMS_MAX: u32 = 1_024;

/// Unacknowledged bytes on one stream, and on a connection.
pub(crate) const STREAM_WINDOW: u32 = 1024 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// Bytes of one header list, as with HTTP/1.1 heads.
pub(crate) const HEADER_LIST_BYTES_MAX: u32 = 60 * 1024;

/// Streams that were reset and of which frames may still come.
const RESET_STREAMS_MAX: usize = 64;

/// Streams that a client may reset before they are looked at; past this it is an attack.
const PENDING_RESETS_MAX: usize = 64;

/// Bytes that may wait to be written on one stream.
pub(crate) const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Between the announcement that a connection ends and its end: streams that the client has begun meanwhile are served.
const GOAWAY_AFTER: Duration = Duration::from_millis(500);

/// Time for the preface and settings.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call over HTTP/2 brought no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http2Error {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the stream was broken off")]
    Stream(#[from] h2::Error),
    /// The client, in HTTP/1.1.
    #[error("the client broke off")]
    Client,
    /// The server, in HTTP/1.1.
    #[error("the server broke off")]
    Server,
    #[error(transparent)]
    Response(#[from] starling_http1::ResponseError),
    #[error("a head cannot be passed on")]
    Head(#[from] http::Error),
}

/// The fields of a header list, for policies.
pub(crate) struct Fields<'a> {
    pub(crate) authority: &'a str,
    pub(crate) map: &'a HeaderMap,
}

impl HeaderFields for Fields<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        if name == "host" || name == ":authority" {
            return test(self.authority.as_bytes());
        }
        self.map.get_all(name).iter().any(|value| test(value.as_bytes()))
    }
}

/// Serves a client's connection until it ends.
pub(crate) async fn serve(stream: Stream, read: BytesMut, listening: Rc<Listening>, peer: Peer) {
    let mut conn = Conn::new(stream);
    conn.read = read;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES);
    let Ok(Ok(mut connection)) = timeout(PREFACE_TIMEOUT, builder.handshake::<_, Bytes>(conn)).await else {
        listening.metrics.refused(400);
        return;
    };
    let peer = Rc::new(peer);
    let draining = listening.drained();
    tokio::pin!(draining);
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let (listening, peer) = (Rc::clone(&listening), Rc::clone(&peer));
                    tokio::task::spawn_local(answer(request, respond, listening, peer));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "an HTTP/2 connection was broken off");
                    listening.metrics.refused(400);
                    return;
                }
                None => return,
            },
            () = &mut draining, if !leaving => {
                leaving = true;
                sleep(GOAWAY_AFTER).await;
                connection.graceful_shutdown();
            }
        }
    }
}

/// Answers one request.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    listening: Rc<Listening>,
    peer: Rc<Peer>,
) {
    let began = Instant::now();
    let side = listening.side();
    let (parts, body) = request.into_parts();
    let authority = parts.uri.authority().map_or("", http::uri::Authority::as_str).to_owned();
    let target = parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str).to_owned();
    let fields = Fields { authority: &authority, map: &parts.headers };
    let decision = match side.decide(&peer, parts.method.as_str(), &target, &fields) {
        Decision::Reply { status, text } => Err((status, text)),
        Decision::Forward(forward) => Ok(forward),
    };
    let (ending, moved) = match decision {
        Ok(forward) => forwarded(&side, &peer, (&parts, &authority), forward, body, &mut respond).await,
        Err((status, text)) => (reply(&parts.headers, &mut respond, status, text), (0, 0)),
    };
    listening.metrics.finished(ending, began.elapsed(), moved.0, moved.1);
}

/// Passes a request on, and its response back.
async fn forwarded(
    side: &Side,
    peer: &Peer,
    (parts, authority): (&http::request::Parts, &str),
    forward: Forward<'_>,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> (Ending, (u64, u64)) {
    let Forward { upstream, request, timeout: whole } = forward;
    let mut moved = pump::Moved::default();
    let target = request.target().to_owned();
    let headers = side.headers(peer, &parts.headers);
    let call = async {
        match upstream.protocol {
            Protocol::Http2 | Protocol::Grpc => {
                let request = rewritten(parts, authority, &target, headers.clone())?;
                client::call(&upstream, request, body, respond, &mut moved).await
            }
            Protocol::Http | Protocol::Tcp => {
                bridge::to_http1(
                    &upstream,
                    (parts.method.as_str(), authority, &target),
                    &headers,
                    body,
                    respond,
                    &mut moved,
                )
                .await
            }
        }
    };
    let ended = match whole {
        Some(whole) => timeout(whole, call).await.unwrap_or(Ok(None)),
        None => call.await,
    };
    let ending = match ended {
        Ok(Some(status)) => Ending::Answered(status),
        // Time is up, or the server failed, within its answer.
        _ if moved.answered => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            Ending::Broken
        }
        Ok(None) => reply(&parts.headers, respond, 504, "upstream request timeout"),
        Err(error) => {
            tracing::debug!(upstream = upstream.name, %error, "a call failed");
            let (status, text) = told(&error);
            reply(&parts.headers, respond, status, text)
        }
    };
    (ending, (moved.up, moved.down))
}

/// A request as the next hop gets it.
fn rewritten(
    parts: &http::request::Parts,
    authority: &str,
    target: &str,
    headers: HeaderMap,
) -> Result<Request<()>, http::Error> {
    let authority = authority.strip_suffix('.').unwrap_or(authority);
    let uri = http::Uri::builder()
        .scheme(parts.uri.scheme_str().unwrap_or("http"))
        .authority(if authority.is_empty() { "localhost" } else { authority })
        .path_and_query(target)
        .build()?;
    let mut request =
        Request::builder().method(parts.method.clone()).uri(uri).version(http::Version::HTTP_2).body(())?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// What a client is told of a failed call.
pub(crate) fn told(error: &Http2Error) -> (u16, &'static str) {
    match error {
        Http2Error::Call(CallError::NoEndpoint(_)) => (503, "no healthy upstream"),
        Http2Error::Call(CallError::Overloaded(_)) => (503, "upstream overloaded"),
        Http2Error::Call(CallError::Connect { .. }) => (503, "upstream connect failure"),
        Http2Error::Stream(_) | Http2Error::Server | Http2Error::Client => {
            (503, "upstream reset before response started")
        }
        Http2Error::Response(_) | Http2Error::Head(_) => (502, "upstream protocol error"),
    }
}

/// Answers in the proxy's own name; gRPC callers in their own terms (gRPC over HTTP2, "Responses").
fn reply(request: &HeaderMap, respond: &mut SendResponse<Bytes>, status: u16, text: &'static str) -> Ending {
    let is_grpc = request.get("content-type").is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    let mut response = Response::new(());
    let fields = response.headers_mut();
    if is_grpc {
        fields.insert("content-type", HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from_static(grpc_status(status)));
        fields.insert("grpc-message", HeaderValue::from_static(text));
    } else {
        fields.insert("content-type", HeaderValue::from_static("text/plain"));
        fields.insert("content-length", HeaderValue::from(text.len()));
    }
    if !is_grpc {
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    }
    // Whoever is gone is answered nothing.
    if let Ok(mut stream) = respond.send_response(response, is_grpc)
        && !is_grpc
    {
        let _ = stream.send_data(Bytes::from_static(text.as_bytes()), true);
    }
    Ending::Answered(status)
}

/// The status of a gRPC call that HTTP refused (gRPC, "HTTP to gRPC Status Code Mapping").
fn grpc_status(status: u16) -> &'static str {
    match status {
        400 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        504 => "4",
        429 | 502 | 503 => "14",
        _ => "2",
    }
}

impl Side {
    /// The header list of a request as it is passed on.
    pub(crate) fn headers(&self, peer: &Peer, received: &HeaderMap) -> HeaderMap {
        let mut headers = received.clone();
        let stopped: Vec<HeaderName> = headers.keys().filter(|name| !self.passes(name.as_str())).cloned().collect();
        for name in stopped {
            headers.remove(name);
        }
        if matches!(self, Self::Inbound(_))
            && let Ok(value) = HeaderValue::from_str(&peer.certificate)
        {
            headers.insert(CLIENT_CERTIFICATE, value);
        }
        headers
    }
}
