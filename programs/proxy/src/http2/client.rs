//! Calls over HTTP/2: connections to endpoints, shared by many calls, and one call on them.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request};
use starling_traffic::retry::Ended;

use super::heard::{Heard, lost};
use super::pump::{Moved, PumpError, pass, send};
use super::source::Source;
use super::{CONNECTION_WINDOW, HEADER_LIST_BYTES_MAX, Http2Error, SEND_BUFFER_BYTES, STREAM_WINDOW};
use crate::mirror;
use crate::quota::Opened;
use crate::served::Forward;
use crate::stream::{Conn, Stream};
use crate::tries::{Tries, grpc_status};
use crate::upstream::{Load, Upstream, Wish};

/// Attempts at a request that a server certainly has not begun with.
const ATTEMPTS: u32 = 3;

/// Calls on one connection before another is opened: one congested connection must not hold up all of them.
const STREAMS_PER_CONNECTION: usize = 100;

/// A call that ends after so long takes its connection out of the pool if nothing at all was heard on it meanwhile.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

/// A connection that many calls share.
#[derive(Clone)]
pub(crate) struct Shared {
    sender: SendRequest<Bytes>,
    open: Rc<Cell<usize>>,
    closed: Rc<Cell<bool>>,
    /// Counts what the server sends.
    heard: Rc<Cell<u64>>,
}

impl Shared {
    /// Opens one over a stream; `pings` if the server is on another machine, which can vanish.
    pub(crate) async fn open(stream: Stream, opened: Option<Opened>, pings: bool) -> Result<Self, h2::Error> {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_send_buffer_size(SEND_BUFFER_BYTES);
        let (heard, open) = (Rc::default(), Rc::default());
        let (sender, mut connection) = builder.handshake(Heard::new(Conn::new(stream), &heard)).await?;
        let closed = Rc::new(Cell::new(false));
        let shared = Self { sender, open, closed, heard };
        let (ended, heard, calls) = (Rc::clone(&shared.closed), Rc::clone(&shared.heard), Rc::clone(&shared.open));
        let ping = connection.ping_pong().filter(|_| pings);
        tokio::task::spawn_local(async move {
            let _counted = opened;
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "an HTTP/2 connection to a server broke off");
                },
                () = lost(ping, &heard, &calls) => {
                    tracing::debug!("a server answers no PING: its HTTP/2 connection is closed");
                }
            }
            ended.set(true);
        });
        Ok(shared)
    }

    /// Whether another call should go over it.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_closed() && self.open.get() < STREAMS_PER_CONNECTION.min(self.sender.current_max_send_streams())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    fn begin(&self) -> Open {
        self.open.set(self.open.get() + 1);
        let (open, closed, heard) = (Rc::clone(&self.open), Rc::clone(&self.closed), Rc::clone(&self.heard));
        Open { open, closed, before: heard.get(), heard, began: Instant::now() }
    }
}

/// A call under way.
struct Open {
    open: Rc<Cell<usize>>,
    closed: Rc<Cell<bool>>,
    heard: Rc<Cell<u64>>,
    /// What was heard before it began.
    before: u64,
    began: Instant,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
        // Others that wait on the connection go on; later ones take another.
        if self.heard.get() == self.before && self.began.elapsed() >= SUSPECT_AFTER {
            self.closed.set(true);
        }
    }
}

/// Makes a call and passes its response on, again where the plan says so; answers with its status.
pub(crate) async fn call(
    forward: &Forward<'_>,
    request: Request<()>,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    moved: &Moved,
) -> Result<u16, Http2Error> {
    let mut tries = Tries::new(forward);
    let mut source = Source::new(body, tries.keeps_body() || forward.mirror.is_some());
    if source.is_over() {
        moved.request_over();
    }
    let attempts = tries.run(moved, async |tries| {
        let done = attempt(forward, &request, &mut source, (respond, moved), tries).await;
        let whole = source.can_be_sent_again() && !moved.answered.get();
        ended(done, whole)
    });
    let answered = attempts.await;
    if let (Some(mirror), Some((chunks, trailers))) = (&forward.mirror, source.whole()) {
        mirror::send_http2(mirror, request, (chunks, trailers));
    }
    answered
}

/// How a try ended, if it can be made again because nothing of it is lost.
pub(super) fn ended<T>(done: Result<T, Http2Error>, whole: bool) -> (Result<T, Http2Error>, Option<Ended>) {
    let ended = done.as_ref().err().and_then(Http2Error::ended);
    (done, ended.filter(|_| whole))
}

/// Makes one try of a call.
async fn attempt(
    forward: &Forward<'_>,
    request: &Request<()>,
    source: &mut Source,
    (respond, moved): (&mut SendResponse<Bytes>, &Moved),
    tries: &Tries<'_>,
) -> Result<u16, Http2Error> {
    let bodiless = source.is_empty();
    let begun = {
        let begun = pin!(begin((&forward.upstream, tries.wish()), request, bodiless));
        tries.within(moved, pin!(unless_reset(respond, begun))).await.ok_or(Http2Error::TimedOut)??
    };
    let (mut pending, mut upload) = begun.inspect_err(|error| moved.host.set(error.host()))?;
    moved.asks(pending.load.address());
    let load = &pending.load;
    let can_be_sent_again = source.keeps();
    let uploading = pin!(async {
        // A server that takes no more of a request may have answered it.
        if !bodiless && let Err(PumpError::From(_)) = source.pass(&mut upload, moved).await {
            return Err::<u16, _>(Http2Error::Client);
        }
        std::future::pending().await
    });
    let downloading = pin!(async {
        let response = unless_reset(respond, Pin::new(&mut pending.response)).await?;
        let response = response.inspect_err(|_| load.ended(false))?;
        let (mut parts, received) = response.into_parts();
        let (status, grpc) = (parts.status.as_u16(), grpc_status_of(&parts.headers));
        load.ended(status < 500);
        if can_be_sent_again.get() && tries.refuses(status, grpc) {
            return Err(Http2Error::Again(status, grpc));
        }
        forward.edit_response(&mut parts.headers);
        moved.note_response(&parts.headers);
        let over = received.is_end_stream();
        // It was answered, whether or not the client can be told: that is not to be asked again.
        let answer = respond.send_response(http::Response::from_parts(parts, ()), over);
        let mut to = answer.map_err(|_| Http2Error::Client)?;
        moved.answered.set(true);
        if !over {
            pass(received, &mut to, |bytes, _| moved.add_down(bytes)).await.map_err(h2::Error::from)?;
        }
        Ok::<_, Http2Error>(status)
    });
    let either = pin!(async {
        tokio::select! {
            biased;
            done = downloading => done,
            failed = uploading => failed,
        }
    });
    tries.within(moved, either).await.unwrap_or_else(|| {
        load.ended(false);
        Err(Http2Error::TimedOut)
    })
}

/// Makes a copy of a call, of whose answer nobody hears.
pub(crate) async fn copy(
    upstream: &Rc<Upstream>,
    request: &Request<()>,
    (chunks, trailers): (Vec<Bytes>, Option<HeaderMap>),
) -> Result<(), Http2Error> {
    let bodiless = chunks.is_empty() && trailers.is_none();
    let (pending, mut to) = begin((upstream, Wish::default()), request, bodiless).await?;
    for chunk in chunks {
        send(&mut to, chunk, false).await?;
    }
    match trailers {
        _ if bodiless => {}
        Some(trailers) => to.send_trailers(trailers)?,
        None => to.send_data(Bytes::new(), true)?,
    }
    let mut received = pending.response.await?.into_body();
    while let Some(chunk) = received.data().await {
        received.flow_control().release_capacity(chunk?.len())?;
    }
    Ok(())
}

/// What a call of gRPC ended with, if that is all that the answer says.
pub(super) fn grpc_status_of(headers: &HeaderMap) -> Option<u32> {
    grpc_status(headers.get("grpc-status").map(HeaderValue::as_bytes))
}

/// Waits for `what`, unless the client takes its request back.
pub(crate) async fn unless_reset<T>(
    respond: &mut SendResponse<Bytes>,
    mut what: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Http2Error> {
    poll_fn(|cx| match what.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => respond.poll_reset(cx).map(|_| Err(Http2Error::Client)),
    })
    .await
}

/// A response to come.
pub(crate) struct Pending {
    pub(crate) response: h2::client::ResponseFuture,
    _open: Open,
    pub(crate) load: Load,
}

/// Sends a request's head, on another connection if the first one takes no more.
pub(crate) async fn begin(
    (upstream, wish): (&Rc<Upstream>, Wish),
    request: &Request<()>,
    bodiless: bool,
) -> Result<(Pending, h2::SendStream<Bytes>), Http2Error> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let (shared, load) = upstream.share(wish).await?;
        let open = shared.begin();
        let mut sender = shared.sender.clone();
        if let Err(error) = poll_fn(|cx| sender.poll_ready(cx)).await {
            shared.closed.set(true);
            last = Some(error);
            continue;
        }
        match sender.send_request(clone_of(request), bodiless) {
            Ok((response, upload)) => return Ok((Pending { response, _open: open, load }, upload)),
            Err(error) => {
                shared.closed.set(true);
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| Reason::REFUSED_STREAM.into()).into())
}

fn clone_of(request: &Request<()>) -> Request<()> {
    let mut clone = Request::new(());
    *clone.method_mut() = request.method().clone();
    *clone.uri_mut() = request.uri().clone();
    *clone.version_mut() = request.version();
    *clone.headers_mut() = request.headers().clone();
    clone
}
