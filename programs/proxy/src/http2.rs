//! HTTP/2 connections of clients, gRPC included: each stream a request, decided about and passed on.
//!
//! Limits are set by hand, here and in `client`: streams, windows, header lists, streams reset by the client (rapid reset,
//! CVE-2023-44487). What exceeds them ends the connection with `GOAWAY`; other connections are not disturbed.

pub(crate) mod bridge;
pub(crate) mod client;
mod heard;
mod kept;
mod meter;
pub(crate) mod pump;
mod source;

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use starling_http1::{BodyError, is_authority, is_method, without_root_dot};
use starling_model::Protocol;
use starling_traffic::HeaderFields;
use starling_traffic::forwarded::FORWARDED_PROTO;
use starling_traffic::retry::Ended;
use tokio::time::{sleep, timeout};

use self::meter::{Metered, Told};
use crate::access_log::{Asked, Event, MapFields};
use crate::contain;
use crate::edits::edit_map;
use crate::failure::Failure;
use crate::listener::Listening;
use crate::metrics::Ending;
use crate::served::{Decision, Forward, Heeded, Peer, Side};
use crate::stream::{Conn, Stream};
use crate::timeouts::{Expiry, Timeouts};
use crate::upstream::{CallError, Upstream};

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

/// Streams that a client has taken back before they were answered; past this, and half of all, it is an attack, as with
/// Envoy's `premature_reset_total_stream_count`.
const TAKEN_BACK_MAX: u64 = 500;

/// Why a call over HTTP/2 brought no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http2Error {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the stream was broken off")]
    Stream(#[from] h2::Error),
    /// The client left.
    #[error("the client broke off")]
    Client,
    /// The client sends what is no body.
    #[error(transparent)]
    Body(BodyError),
    /// The server, in HTTP/1.1.
    #[error("the server broke off")]
    Server,
    /// The server, in HTTP/1.1, had closed a kept connection before it got a request that can be made twice.
    #[error("a kept connection was closed")]
    Stale,
    /// The time of one try was up.
    #[error("a try took too long")]
    TimedOut,
    /// The server's answer, with its gRPC status, is one after which the request is tried again.
    #[error("the server answered {0}")]
    Again(u16, Option<u32>),
    #[error(transparent)]
    Response(#[from] starling_http1::ResponseError),
    #[error("a head cannot be passed on")]
    Head(#[from] http::Error),
}

impl Http2Error {
    /// The endpoint that could not be connected to.
    pub(crate) fn host(&self) -> Option<SocketAddr> {
        match self {
            Self::Call(error) => error.host(),
            Self::Stream(_) | Self::Client | Self::Body(_) | Self::Server | Self::Stale | Self::TimedOut => None,
            Self::Again(..) | Self::Response(_) | Self::Head(_) => None,
        }
    }

    /// How a try ended that failed so; `None` if that is no reason for another.
    pub(crate) fn ended(&self) -> Option<Ended> {
        match self {
            Self::Call(CallError::Connect { .. }) => Some(Ended::Connect),
            Self::Stream(error) if is_unseen(error) => Some(Ended::Refused),
            Self::Stale => Some(Ended::Refused),
            Self::Stream(_) | Self::Server => Some(Ended::Reset),
            Self::TimedOut => Some(Ended::TimedOut),
            Self::Again(status, grpc) => Some(Ended::Answered { status: *status, grpc: *grpc }),
            Self::Call(CallError::NoEndpoint(_) | CallError::Overloaded(_)) => None,
            Self::Client | Self::Body(_) | Self::Response(_) | Self::Head(_) => None,
        }
    }
}

/// Whether the server says that it has done nothing about a request (RFC 9113 sections 6.8 and 8.7).
fn is_unseen(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
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
    let (metered, told) = Metered::new(conn);
    let handshake = timeout(listening.timeouts.handshake, builder.handshake::<_, Bytes>(metered));
    let Ok(Ok(mut connection)) = handshake.await else {
        listening.metrics.refused(400);
        return;
    };
    let caller =
        Rc::new(Caller { peer, told, begun: Cell::new(0), taken_back: Cell::new(0), unfinished: Cell::new(None) });
    let (retiring, connected) = (Rc::clone(&listening), Rc::clone(&caller.peer.connection));
    let draining = retiring.retired(&connected);
    let look_every = listening.timeouts.head.min(listening.patience(true));
    let look = sleep(look_every);
    tokio::pin!(draining, look);
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            accepted = accept(&mut connection, &caller) => match accepted {
                Accepted::Request(request, respond) => {
                    let (listening, caller) = (Rc::clone(&listening), Rc::clone(&caller));
                    contain::spawn("a request", answer(request, respond, listening, caller));
                }
                Accepted::Attack => {
                    return put_out(&mut connection, &listening, 400).await;
                }
                Accepted::Broken(error) => {
                    tracing::debug!(%error, "an HTTP/2 connection was broken off");
                    if !error.is_io() {
                        listening.metrics.refused(400);
                    }
                    return;
                }
                Accepted::Nothing => return,
            },
            // Streams that the client begins before it hears of it are served.
            () = &mut draining, if !leaving => {
                leaving = true;
                connection.graceful_shutdown();
            }
            () = &mut look => {
                let mut next = look_every;
                match caller.rest(&listening) {
                    Rest::Stalled => {
                        return put_out(&mut connection, &listening, 408).await;
                    }
                    // It was told to go, and does not.
                    Rest::Idle if leaving => return,
                    Rest::Idle => {
                        (leaving, next) = (true, listening.timeouts.leave);
                        connection.graceful_shutdown();
                    }
                    Rest::No => {}
                }
                look.as_mut().reset(tokio::time::Instant::now() + next);
            }
        }
    }
}

/// Tells a client to calm down, and closes its connection.
async fn put_out(connection: &mut Connection<Metered, Bytes>, listening: &Listening, counted_as: u16) {
    listening.metrics.refused(counted_as);
    connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
    // Whoever does not take it is not waited for.
    let _ = timeout(listening.timeouts.linger, poll_fn(|cx| connection.poll_closed(cx))).await;
}

/// Whether a connection stands still.
enum Rest {
    /// It carries something, or has not been idle for long.
    No,
    /// It has carried no request for as long as it may.
    Idle,
    /// A header list, or the head of a frame, has not come to its end since the last look.
    Stalled,
}

/// What comes next on a connection.
#[expect(clippy::large_enum_variant, reason = "one a request, on the stack: a box would cost more than the room")]
enum Accepted {
    Request(Request<RecvStream>, SendResponse<Bytes>),
    /// More than a client has reason to send.
    Attack,
    Broken(h2::Error),
    /// The end.
    Nothing,
}

async fn accept(connection: &mut Connection<Metered, Bytes>, caller: &Caller) -> Accepted {
    let accepted = poll_fn(|cx| {
        let accepted = connection.poll_accept(cx);
        if caller.attacks() { Poll::Ready(None) } else { accepted.map(Some) }
    });
    match accepted.await {
        None => Accepted::Attack,
        Some(None) => Accepted::Nothing,
        Some(Some(Err(error))) => Accepted::Broken(error),
        Some(Some(Ok((request, respond)))) => {
            caller.begun.set(caller.begun.get() + 1);
            Accepted::Request(request, respond)
        }
    }
}

/// Who calls over one connection, and how.
struct Caller {
    peer: Peer,
    /// What its frames tell.
    told: Rc<Told>,
    begun: Cell<u64>,
    /// Requests reset before they were answered.
    taken_back: Cell<u64>,
    /// What was unfinished at the last look.
    unfinished: Cell<Option<u64>>,
}

impl Caller {
    /// Looks whether the connection stands still.
    fn rest(&self, listening: &Listening) -> Rest {
        let now = self.told.unfinished.get();
        let before = self.unfinished.replace(now);
        if now.is_some() && now == before {
            return Rest::Stalled;
        }
        let patience = listening.patience(self.begun.get() == 0);
        let is_idle = self.peer.connection.idle_since().is_some_and(|since| since.elapsed() >= patience);
        if is_idle { Rest::Idle } else { Rest::No }
    }

    fn attacks(&self) -> bool {
        let (begun, taken_back) = (self.begun.get(), self.taken_back.get());
        self.told.exceeds.get() || (taken_back > TAKEN_BACK_MAX && taken_back * 2 > begun)
    }
}

/// Answers one request.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    listening: Rc<Listening>,
    caller: Rc<Caller>,
) {
    let began = Instant::now();
    let (side, peer) = (listening.side(), &caller.peer);
    let _carrying = peer.connection.carries();
    let (parts, body) = request.into_parts();
    let authority = authority_of(&parts);
    let target = parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str).to_owned();
    let fields = Heeded { side: &side, peer, fields: &Fields { authority: &authority, map: &parts.headers } };
    let request = (parts.method.as_str(), parts.uri.scheme_str(), &*authority, &*target);
    let begun = side.tracer().map(|tracer| tracer.begin(&fields));
    let decision = match malformed(&parts, &authority) {
        Some(failure) => Err((failure, None)),
        None => match side.decide(peer, request, &fields) {
            Decision::Reply { status, text } => Err((Failure::Decided { status, text }, None)),
            Decision::Redirect { status, location } => Err((Failure::Decided { status, text: "" }, Some(location))),
            Decision::Forward(forward) => Ok(Forward { trace: begun.as_ref().map(|begun| &begun.edits), ..forward }),
        },
    };
    let moved = pump::Moved::noting(side.log().is_some_and(|log| log.wants_response));
    let upstream = decision.as_ref().ok().map(|forward| Rc::clone(&forward.upstream));
    let ending = match decision {
        Ok(forward) => {
            let call = Call { side: &side, peer, parts: &parts, authority: &authority, forward };
            let allows = |side: &Side| side.still_allows(peer, (parts.method.as_str(), &target), &fields);
            let ended = {
                let mut denied = pin!(listening.until_denied(peer.connection.chain(), allows));
                tokio::select! {
                    biased;
                    ending = forwarded(call, &listening.timeouts, body, &mut respond, &moved) => Some(ending),
                    () = &mut denied => None,
                }
            };
            match ended {
                Some(ending) => ending,
                None if moved.answered.get() => {
                    respond.send_reset(h2::Reason::CANCEL);
                    Ending::Broken
                }
                None => reply(&parts, &mut respond, (Failure::DENIED, None)),
            }
        }
        Err((failure, location)) => reply(&parts, &mut respond, (failure, location)),
    };
    if matches!(ending, Ending::Broken) && !moved.answered.get() {
        caller.taken_back.set(caller.taken_back.get() + 1);
    }
    let (took, received, sent) = (began.elapsed(), moved.up.get(), moved.down.get());
    listening.metrics.finished(ending, took, received, sent);
    peer.connection.asked();
    let (log, span) = (side.log(), side.tracer().zip(begun.as_ref()));
    if log.is_none() && span.is_none() {
        return;
    }
    let response = moved.response.borrow();
    let response = response.as_ref().map(MapFields);
    let event = Event {
        connection: &peer.connection,
        request: Some(Asked { version: "HTTP/2", method: parts.method.as_str(), target: &target, fields: &fields }),
        response: response.as_ref().map(|fields| fields as &dyn HeaderFields),
        ending,
        received,
        sent,
        took,
        upstream: upstream.as_ref().map(|upstream| &*upstream.name),
        host: moved.host.get(),
    };
    log.iter().for_each(|log| log.log(&event));
    span.iter().for_each(|(tracer, begun)| tracer.end(begun, &event));
}

/// Why a header list is no request, as far as it decodes.
fn malformed(parts: &http::request::Parts, authority: &str) -> Option<Failure> {
    if parts.method == http::Method::CONNECT {
        return Some(Failure::Decided { status: 405, text: "CONNECT is not supported" });
    }
    if !is_method(parts.method.as_str().as_bytes()) {
        return Some(Failure::Decided { status: 400, text: "the method is none" });
    }
    let is_host = is_authority(authority.as_bytes());
    (!is_host).then_some(Failure::Decided { status: 400, text: "the host is no host" })
}

/// Host and port that a request is for, without the root's dot; `Host` stands in where there is no `:authority` (RFC 9113
/// section 8.3.1).
fn authority_of(parts: &http::request::Parts) -> String {
    let named = parts.uri.authority().map(http::uri::Authority::as_str);
    let host = || parts.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
    without_root_dot(named.or_else(host).unwrap_or_default()).into_owned()
}

/// A request and what was decided about it.
struct Call<'a> {
    side: &'a Side,
    peer: &'a Peer,
    parts: &'a http::request::Parts,
    authority: &'a str,
    forward: Forward<'a>,
}

/// Passes a request on, and its response back.
async fn forwarded(
    call: Call<'_>,
    timeouts: &Timeouts,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    moved: &pump::Moved,
) -> Ending {
    let Call { side, peer, parts, authority, forward } = call;
    let (upstream, target, authority) = (&forward.upstream, &*forward.target, forward.authority(authority));
    let mut headers = side.headers(peer, &parts.headers);
    edit_map(&mut headers, forward.request_edits());
    if let Some(delay) = forward.delay {
        tokio::time::sleep(delay).await;
    }
    let call = async {
        match upstream.protocol {
            Protocol::Http2 | Protocol::Grpc => {
                let request = rewritten(parts, authority, target, headers.clone())?;
                client::call(&forward, request, body, respond, moved).await
            }
            Protocol::Http | Protocol::Tcp => {
                let request = bridge::Asked { method: parts.method.as_str(), authority, target, headers: &headers };
                bridge::to_http1(&forward, request, body, respond, moved).await
            }
        }
    };
    let still = forward.still.unwrap_or(timeouts.still);
    let answered = pump::patiently(pin!(call), forward.timeout, still, moved).await;
    let failure = match answered {
        Ok(Ok(status)) => return Ending::Answered(status),
        // Time is up, or the server failed, within its answer.
        _ if moved.answered.get() => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ending::Broken;
        }
        Ok(Err(Http2Error::Client)) => return Ending::Broken,
        Err(expiry) => given_up(expiry, upstream, moved),
        Ok(Err(error)) => {
            tracing::debug!(upstream = upstream.name, %error, "a call failed");
            Failure::from(&error)
        }
    };
    reply(parts, respond, (failure, None))
}

/// What a client is told when patience is at its end.
pub(crate) fn expired(expiry: Expiry, moved: &pump::Moved) -> Failure {
    match expiry {
        Expiry::Still if moved.over.get().is_none() => Failure::Still,
        Expiry::Still | Expiry::Whole => Failure::Timeout,
    }
}

/// The same, of a call that was given up from outside: what that says of its endpoint was not noted yet.
pub(crate) fn given_up(expiry: Expiry, upstream: &Upstream, moved: &pump::Moved) -> Failure {
    let failure = expired(expiry, moved);
    if failure == Failure::Timeout && moved.asked.get() {
        upstream.given_up(moved.host.get());
    }
    failure
}

/// A request as the next hop gets it.
fn rewritten(
    parts: &http::request::Parts,
    authority: &str,
    target: &str,
    headers: HeaderMap,
) -> Result<Request<()>, http::Error> {
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

/// Whether a call is one of gRPC, by the only type of its content: `application/grpc` or `application/grpc+` and a codec's name.
/// That of browsers (`application/grpc-web`) is another protocol.
fn is_grpc(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all("content-type").iter().filter(|value| !value.is_empty());
    let (Some(only), None) = (types.next(), types.next()) else { return false };
    let codec = only.as_bytes().strip_prefix(b"application/grpc");
    codec.is_some_and(|codec| codec.first().is_none_or(|first| *first == b'+'))
}

/// Answers in the proxy's own name; gRPC callers in their own terms (gRPC over HTTP2, "Responses").
fn reply(
    request: &http::request::Parts,
    respond: &mut SendResponse<Bytes>,
    (failure, location): (Failure, Option<String>),
) -> Ending {
    let (status, text) = (failure.status(), failure.text());
    let is_grpc = is_grpc(&request.headers);
    let mut response = Response::new(());
    let fields = response.headers_mut();
    if let Some(location) = location.and_then(|location| HeaderValue::from_str(&location).ok()) {
        fields.insert(http::header::LOCATION, location);
        fields.insert("content-length", HeaderValue::from(0));
    } else if is_grpc {
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
    let bare = is_grpc || request.method == http::Method::HEAD;
    if let Ok(mut stream) = respond.send_response(response, bare)
        && !bare
    {
        let _ = stream.send_data(Bytes::from_static(text.as_bytes()), true);
    }
    Ending::Failed(failure)
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
        let stopped: Vec<HeaderName> =
            headers.keys().filter(|name| !self.passes(peer, name.as_str())).cloned().collect();
        for name in stopped {
            headers.remove(name);
        }
        // A proxy before this one may have named who called it.
        let says_proto = headers.contains_key(FORWARDED_PROTO);
        for (name, value) in self.own_fields(peer, || says_proto).into_iter().flatten() {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        headers
    }
}
