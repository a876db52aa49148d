//! HTTP/1.1 connections of clients: requests one after the other, each decided about and passed on.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use starling_http1::{Limits, RequestError, RequestHead, put_field};
use starling_model::{HeaderEdits, Protocol};
use starling_traffic::HeaderFields;
use starling_traffic::retry::Ended;
use starling_traffic::trace::Begun;
use tokio::time::{Instant, Sleep};

use crate::access_log::{Asked, Event, HeadFields, MapFields};
use crate::exchange::{Answering, Body, Exchange, ExchangeError, Outcome, put_request_framing, put_status};
use crate::failure::Failure;
use crate::http2::bridge::{self, Bridged};
use crate::http2::pump::{Moved, patiently};
use crate::http2::{self, Http2Error};
use crate::listener::Listening;
use crate::metrics::Ending;
use crate::mirror;
use crate::served::{Decision, Forward, Heeded, Peer, Side};
use crate::stream::{Conn, Stream};
use crate::tcp;
use crate::timeouts::{Expiry, Patience};
use crate::tries::Tries;
use crate::upstream::{CallError, Lease, Upstream, Wish};

/// What is read over of a request that is answered already.
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// The fields of a head, for policies.
pub(crate) struct Fields<'a>(pub(crate) &'a RequestHead);

impl HeaderFields for Fields<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        if name == "host" || name == ":authority" {
            return test(self.0.authority().as_bytes());
        }
        self.0.heeded(name).any(test)
    }
}

/// Serves a client's connection until it ends.
pub(crate) async fn serve(stream: Stream, read: BytesMut, listening: Rc<Listening>, peer: Peer) {
    let mut conn = Conn::new(stream);
    conn.read = read;
    let sleep = tokio::time::sleep(listening.timeouts.idle);
    let (leaves, connection) = (Rc::clone(&listening), Rc::clone(&peer.connection));
    let leaves = leaves.retired(&connection);
    tokio::pin!(sleep, leaves);
    let peer = Rc::new(peer);
    let mut serving = Serving { conn, listening, peer, sleep, leaves, limits: Limits::default() };
    while serving.request().await {}
}

struct Serving<'a, L> {
    conn: Conn,
    listening: Rc<Listening>,
    peer: Rc<Peer>,
    /// The one timer of the connection.
    sleep: Pin<&'a mut Sleep>,
    /// Ends when connections are to end.
    leaves: Pin<&'a mut L>,
    limits: Limits,
}

/// Why no request was read.
enum Unread {
    /// The client has closed, or rested for too long.
    Gone,
    /// What came is none.
    Refused(RequestError),
    /// Its head did not come to its end in time.
    Slow,
}

/// A request as every try of it has it.
struct Attempt<'a> {
    forward: &'a Forward<'a>,
    head: &'a RequestHead,
    out: &'a BytesMut,
    edits: &'a [&'a HeaderEdits],
}

/// The body of an answer in the proxy's own name.
#[derive(Clone, Copy)]
enum Text<'a> {
    Sent(&'a str),
    /// To HEAD: only told of (RFC 9110 section 9.3.2).
    Unsent(&'a str),
}

/// How a request ended that was passed on.
#[expect(clippy::large_enum_variant, reason = "one a request, on the stack: a box would cost more than the room")]
enum Passed {
    Done(Outcome, Lease),
    /// In HTTP/2.
    Bridged(Bridged),
    /// Nothing was told to the client.
    Failed(Failure),
    /// The client has got a part, or is gone.
    Broken,
}

impl<L: Future<Output = ()>> Serving<'_, L> {
    /// Serves one request; whether another may come.
    async fn request(&mut self) -> bool {
        let head = match self.read_head().await {
            Ok(head) => head,
            Err(Unread::Gone) => {
                // Whoever is gone takes no leave.
                let _ = tokio::time::timeout(self.listening.timeouts.linger, self.conn.shut()).await;
                return false;
            }
            Err(Unread::Refused(error)) => return self.refuse(error.status(), &error.to_string()).await,
            Err(Unread::Slow) => return self.refuse(408, "request head timeout").await,
        };
        // Held by a connection that has a request, not by one that rests.
        Box::pin(self.answer(head)).await
    }

    /// Answers a request; whether another may come.
    async fn answer(&mut self, head: RequestHead) -> bool {
        let side = self.listening.side();
        let began = std::time::Instant::now();
        let peer = Rc::clone(&self.peer);
        let _carrying = peer.connection.carries();
        let fields = Heeded { side: &side, peer: &peer, fields: &Fields(&head) };
        let request = (head.method(), head.scheme, head.authority(), head.target());
        let begun = side.tracer().map(|tracer| tracer.begin(&fields));
        let mut decision = side.decide(&peer, request, &fields);
        begun.iter().for_each(|begun| decision.traced(&begun.edits));
        let (mut body, moved) =
            (Body::of_request(&head), Moved::noting(side.log().is_some_and(|log| log.wants_response)));
        let listening = Rc::clone(&self.listening);
        let allows = |side: &Side| side.still_allows(&peer, (head.method(), head.target()), &fields);
        let passed = {
            let mut denied = pin!(listening.until_denied(peer.connection.chain(), allows));
            tokio::select! {
                biased;
                passed = self.carry(&side, &head, &decision, &mut body, &moved) => passed,
                () = &mut denied => Passed::Broken,
            }
        };
        let upstream = match &decision {
            Decision::Forward(forward) => Some(&*forward.upstream.name),
            Decision::Reply { .. } | Decision::Redirect { .. } => None,
        };
        self.finished((&side, begun.as_ref()), (&head, upstream), &passed, began, (body.moved, &moved));
        match passed {
            Passed::Done(outcome, lease) if outcome.upgraded => {
                let until = listening.until_denied(peer.connection.chain(), allows);
                tcp::splice(&mut self.conn, lease, &listening, &peer.connection, until).await;
                false
            }
            Passed::Done(outcome, lease) => {
                if outcome.server_stays {
                    lease.keep();
                }
                if !outcome.client_stays {
                    self.linger().await;
                }
                outcome.client_stays
            }
            Passed::Bridged(bridged) => {
                if !bridged.client_stays {
                    self.linger().await;
                }
                bridged.client_stays
            }
            Passed::Failed(failure) => {
                // What is left of the request would be taken for the next one.
                let over = body.is_over() || moved.over.get().is_some();
                let stays = head.keep_alive && over && !self.is_last();
                let location = match &decision {
                    Decision::Redirect { location, .. } => Some(&**location),
                    Decision::Forward(_) | Decision::Reply { .. } => None,
                };
                let text =
                    if head.method() == "HEAD" { Text::Unsent(failure.text()) } else { Text::Sent(failure.text()) };
                self.reply((failure.status(), location), text, stays).await;
                if !stays {
                    self.linger().await;
                }
                stays
            }
            Passed::Broken => false,
        }
    }

    /// Does what was decided, as far as it takes another connection.
    async fn carry(
        &mut self,
        side: &Side,
        head: &RequestHead,
        decision: &Decision<'_>,
        body: &mut Body,
        moved: &Moved,
    ) -> Passed {
        let forward = match decision {
            Decision::Forward(forward) => forward,
            Decision::Reply { status, text } => return Passed::Failed(Failure::Decided { status: *status, text }),
            Decision::Redirect { status, .. } => {
                return Passed::Failed(Failure::Decided { status: *status, text: "" });
            }
        };
        if matches!(forward.upstream.protocol, Protocol::Http2 | Protocol::Grpc) {
            return self.bridge(side, head, forward, moved).await;
        }
        let mut out = BytesMut::with_capacity(512);
        side.put_request(&mut out, &self.peer, head, forward);
        put_request_framing(&mut out, head);
        if forward.mirror.is_some() {
            body.keep();
        }
        let passed = self.pass(forward, head, &out, body, moved).await;
        if let (Some(mirror), Some(sent), true) = (&forward.mirror, body.replay(), body.is_over()) {
            out.extend_from_slice(sent);
            mirror::send(mirror, head.method(), out);
        }
        passed
    }

    /// Counts what has become of a request, logs it, and ends its span.
    fn finished(
        &self,
        (side, begun): (&Side, Option<&Begun>),
        (head, upstream): (&RequestHead, Option<&str>),
        passed: &Passed,
        began: std::time::Instant,
        (body, moved): (u64, &Moved),
    ) {
        let (ending, took, up, down) = (ending(passed), began.elapsed(), body + moved.up.get(), received(passed));
        self.listening.metrics.finished(ending, took, up, down);
        self.peer.connection.asked();
        let (log, span) = (side.log(), side.tracer().zip(begun));
        if log.is_none() && span.is_none() {
            return;
        }
        let noted = moved.response.borrow();
        let noted = noted.as_ref().map(MapFields);
        let answered = match passed {
            Passed::Done(outcome, _) => outcome.head.as_ref().map(HeadFields),
            Passed::Bridged(_) | Passed::Failed(_) | Passed::Broken => None,
        };
        let response = answered.as_ref().map(|fields| fields as &dyn HeaderFields);
        let event = Event {
            connection: &self.peer.connection,
            request: Some(Asked {
                version: if head.version == 0 { "HTTP/1.0" } else { "HTTP/1.1" },
                method: head.method(),
                target: head.target(),
                fields: &Fields(head),
            }),
            response: response.or(noted.as_ref().map(|fields| fields as &dyn HeaderFields)),
            ending,
            received: up,
            sent: down,
            took,
            upstream,
            host: moved.host.get(),
        };
        log.iter().for_each(|log| log.log(&event));
        span.iter().for_each(|(tracer, begun)| tracer.end(begun, &event));
    }

    /// Refuses what is no request, and what follows it.
    async fn refuse(&mut self, status: u16, text: &str) -> bool {
        self.listening.metrics.refused(status);
        if let Some(log) = self.listening.side().log() {
            log.log(&Event::bare(
                &self.peer.connection,
                Ending::Failed(Failure::Decided { status, text: "malformed" }),
            ));
        }
        self.reply((status, None), Text::Sent(text), false).await;
        self.linger().await;
        false
    }

    /// Whether the connection is to end with the request that it carries.
    fn is_last(&self) -> bool {
        self.listening.is_last(&self.peer.connection)
    }

    /// Waits for a request.
    async fn read_head(&mut self) -> Result<RequestHead, Unread> {
        if self.conn.read.is_empty() {
            self.conn.rest();
            let is_first = self.peer.connection.requests.get() == 0;
            self.sleep.as_mut().reset(Instant::now() + self.listening.patience(is_first));
            if !self.rested().await {
                return Err(Unread::Gone);
            }
        }
        let mut waits = false;
        loop {
            if let Some(head) = RequestHead::take(&mut self.conn.read, &self.limits).map_err(Unread::Refused)? {
                return Ok(head);
            }
            if !std::mem::replace(&mut waits, true) {
                self.sleep.as_mut().reset(Instant::now() + self.listening.timeouts.head);
            }
            if !self.filled().await {
                return Err(if self.sleep.is_elapsed() { Unread::Slow } else { Unread::Gone });
            }
        }
    }

    /// Waits for the first bytes of a request, but not for long if the connection is to end.
    async fn rested(&mut self) -> bool {
        let (conn, sleep, leaves) = (&mut self.conn, &mut self.sleep, &mut self.leaves);
        let (listening, mut leaving) = (&self.listening, false);
        poll_fn(|cx| {
            if let Poll::Ready(read) = conn.poll_fill(cx) {
                return Poll::Ready(matches!(read, Ok(count) if count > 0));
            }
            if !leaving && (listening.is_draining() || leaves.as_mut().poll(cx).is_ready()) {
                leaving = true;
                sleep.as_mut().reset(Instant::now() + listening.timeouts.leave);
            }
            sleep.as_mut().poll(cx).map(|()| false)
        })
        .await
    }

    /// Reads more before the timer ends; whether there is more.
    async fn filled(&mut self) -> bool {
        let (conn, sleep) = (&mut self.conn, &mut self.sleep);
        poll_fn(|cx| {
            if let Poll::Ready(read) = conn.poll_fill(cx) {
                return Poll::Ready(matches!(read, Ok(count) if count > 0));
            }
            sleep.as_mut().poll(cx).map(|()| false)
        })
        .await
    }

    /// Passes a request on: to another connection if a kept one turns out to be closed, and again where the plan says so.
    async fn pass(
        &mut self,
        forward: &Forward<'_>,
        head: &RequestHead,
        out: &BytesMut,
        body: &mut Body,
        moved: &Moved,
    ) -> Passed {
        self.wait(forward.delay).await;
        let still = forward.still.unwrap_or(self.listening.timeouts.still);
        let mut patience = Patience::new(forward.timeout, still, Instant::now().into_std());
        self.sleep.as_mut().reset(Instant::now() + patience.first_look());
        let edits: Vec<_> = forward.response_edits().collect();
        let mut tries = Tries::new(forward);
        if body.is_over() {
            moved.request_over();
        }
        let request = Attempt { forward, head, out, edits: &edits };
        let attempts = tries.run(moved, async |tries| {
            let (passed, ended) = self.attempt(&request, body, moved, (&mut patience, tries)).await;
            (passed, ended.filter(|_| body.can_be_replayed()))
        });
        attempts.await
    }

    /// Waits, if that is wanted.
    async fn wait(&mut self, delay: Option<Duration>) {
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
    }

    /// Makes one try; how it ended, if it may be made again.
    async fn attempt(
        &mut self,
        Attempt { forward, head, out, edits }: &Attempt<'_>,
        body: &mut Body,
        moved: &Moved,
        (patience, tries): (&mut Patience, &Tries<'_>),
    ) -> (Passed, Option<Ended>) {
        let upstream = &forward.upstream;
        let leasing = (tries.wants_fresh(), tries.wish());
        let leasing = leased(upstream, leasing, patience, &mut self.sleep, (body, moved));
        let mut lease = match tries.within(moved, pin!(leasing)).await {
            Some(Ok(Ok(lease))) => lease,
            Some(Ok(Err(error))) => {
                moved.host.set(error.host());
                return (refused(&error), matches!(error, CallError::Connect { .. }).then_some(Ended::Connect));
            }
            Some(Err(expiry)) => return (Passed::Failed(http2::expired(expiry, moved)), None),
            None => return (Passed::Failed(Failure::Timeout), Some(Ended::TimedOut)),
        };
        moved.host.set(lease.address());
        if tries.keeps_body() || (lease.reused && is_idempotent(head.method())) {
            body.keep();
        }
        let reused = lease.reused;
        let Some(server) = &mut lease.conn else { return (Passed::Broken, None) };
        server.write.put_slice(out);
        if tries.is_again() {
            server.write.put_slice(body.replay().unwrap_or_default());
        }
        let stays = head.keep_alive && !self.is_last();
        let route = Answering { tries: Some(tries), edits, cookie: forward.cookie.as_deref() };
        let mut exchange = Exchange::new((&mut self.conn, server), (head, stays), body, &self.limits).answering(route);
        let ended =
            tries.within(moved, pin!(ended(&mut exchange, patience, &mut self.sleep, (&self.listening, moved)))).await;
        let answered = exchange.has_answered();
        let Some(ended) = ended else {
            lease.ended(false);
            return (Passed::Failed(Failure::Timeout), Some(Ended::TimedOut));
        };
        if let Some(well) = judged(&ended, reused, moved) {
            lease.ended(well);
        }
        match ended {
            Ok(Ok(outcome)) => (Passed::Done(outcome, lease), None),
            Ok(Err(ExchangeError::Client)) => (Passed::Broken, None),
            Ok(Err(ExchangeError::Again(status))) => {
                // Only asked for where another try is to come.
                (Passed::Failed(Failure::Reset), Some(Ended::Answered { status, grpc: None }))
            }
            _ if answered => (Passed::Broken, None),
            Ok(Err(ExchangeError::Body(_))) => (Passed::Failed(Failure::NO_BODY), None),
            Ok(Err(ExchangeError::Unanswered(_))) if reused && is_idempotent(head.method()) => {
                (Passed::Failed(Failure::Reset), Some(Ended::Refused))
            }
            Ok(Err(ExchangeError::Response(error))) => {
                tracing::debug!(upstream = upstream.name, %error, "a response was refused");
                (Passed::Failed(Failure::Protocol), None)
            }
            Ok(Err(ExchangeError::Unanswered(_) | ExchangeError::Server)) => {
                (Passed::Failed(Failure::Reset), Some(Ended::Reset))
            }
            Err(expiry) => (Passed::Failed(http2::expired(expiry, moved)), None),
        }
    }

    /// Passes a request on in HTTP/2.
    async fn bridge(&mut self, side: &Side, head: &RequestHead, forward: &Forward<'_>, moved: &Moved) -> Passed {
        self.wait(forward.delay).await;
        let stays = head.keep_alive && !self.is_last();
        if head.expects_continue {
            self.conn.write.put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        let fields = side.fields(&self.peer, head);
        let request = (head, &*forward.target, stays);
        let call = pin!(bridge::to_http2(forward, &mut self.conn, request, fields, moved));
        match patiently(call, forward.timeout, forward.still.unwrap_or(self.listening.timeouts.still), moved).await {
            Ok(Ok(bridged)) => Passed::Bridged(bridged),
            _ if moved.answered.get() => Passed::Broken,
            Ok(Err(Http2Error::Client)) => Passed::Broken,
            Ok(Err(error)) => Passed::Failed(Failure::from(&error)),
            Err(expiry) => Passed::Failed(http2::given_up(expiry, &forward.upstream, moved)),
        }
    }

    /// Answers in the proxy's own name.
    async fn reply(&mut self, (status, location): (u16, Option<&str>), text: Text<'_>, stays: bool) {
        let out = &mut self.conn.write;
        put_status(out, status);
        if let Some(location) = location {
            put_field(out, "location", location.as_bytes());
        } else {
            put_field(out, "content-type", b"text/plain");
        }
        let (Text::Sent(whole) | Text::Unsent(whole)) = text;
        put_field(out, "content-length", whole.len().to_string().as_bytes());
        if !stays {
            out.put_slice(b"connection: close\r\n");
        }
        out.put_slice(b"\r\n");
        if let Text::Sent(text) = text {
            out.put_slice(text.as_bytes());
        }
        // Whoever does not take the answer is gone.
        let _ = tokio::time::timeout(self.listening.timeouts.linger, self.conn.write_out()).await;
    }

    /// Lets the client read the answer before the connection is reset for what it has sent and nobody reads.
    async fn linger(&mut self) {
        let conn = &mut self.conn;
        let lingered = tokio::time::timeout(self.listening.timeouts.linger, async {
            conn.shut().await;
            let mut seen = 0;
            while let Ok(count @ 1..) = conn.fill().await {
                seen += count;
                conn.read.clear();
                if seen > LINGER_BYTES {
                    break;
                }
            }
        });
        // Time is up for whoever goes on sending.
        let _ = lingered.await;
    }
}

/// Waits for a connection, until patience is at its end.
async fn leased(
    upstream: &Rc<Upstream>,
    (fresh, wish): (bool, Wish),
    patience: &mut Patience,
    sleep: &mut Pin<&mut Sleep>,
    (body, moved): (&Body, &Moved),
) -> Result<Result<Lease, CallError>, Expiry> {
    let mut leasing = pin!(upstream.lease(fresh, wish));
    poll_fn(|cx| match leasing.as_mut().poll(cx) {
        Poll::Ready(leased) => Poll::Ready(Ok(leased)),
        Poll::Pending => poll_patience(cx, patience, sleep, (body.moved, moved)).map(Err),
    })
    .await
}

/// Moves an exchange to its end, or until patience is.
async fn ended(
    exchange: &mut Exchange<'_>,
    patience: &mut Patience,
    sleep: &mut Pin<&mut Sleep>,
    (listening, moved): (&Listening, &Moved),
) -> Result<Result<Outcome, ExchangeError>, Expiry> {
    poll_fn(|cx| {
        if listening.is_draining() {
            exchange.leave();
        }
        if let Poll::Ready(ended) = exchange.poll(cx) {
            return Poll::Ready(Ok(ended));
        }
        if exchange.is_request_over() {
            moved.request_over();
        }
        moved.answered.set(exchange.has_answered());
        poll_patience(cx, patience, sleep, (exchange.moved(), moved)).map(Err)
    })
    .await
}

/// Ready when patience is at its end; `count` bytes have moved.
fn poll_patience(
    cx: &mut Context<'_>,
    patience: &mut Patience,
    sleep: &mut Pin<&mut Sleep>,
    (count, moved): (u64, &Moved),
) -> Poll<Expiry> {
    while sleep.as_mut().poll(cx).is_ready() {
        match patience.look(std::time::Instant::now(), count, moved.over.get()) {
            Ok(again) => sleep.as_mut().reset(again.into()),
            Err(expiry) => return Poll::Ready(expiry),
        }
    }
    Poll::Pending
}

/// Whether doing it twice does what doing it once does (RFC 9110 section 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// What an exchange says of the endpoint, if anything.
fn judged(ended: &Result<Result<Outcome, ExchangeError>, Expiry>, reused: bool, moved: &Moved) -> Option<bool> {
    match ended {
        Ok(Ok(outcome)) => Some(outcome.status < 500),
        Ok(Err(ExchangeError::Again(status))) => Some(*status < 500),
        // It was the client.
        Ok(Err(ExchangeError::Client | ExchangeError::Body(_))) => None,
        Err(expiry) if http2::expired(*expiry, moved) == Failure::Still => None,
        // A kept connection that was closed meanwhile.
        Ok(Err(ExchangeError::Unanswered(_))) if reused => None,
        Ok(Err(ExchangeError::Unanswered(_) | ExchangeError::Server | ExchangeError::Response(_))) | Err(_) => {
            Some(false)
        }
    }
}

fn refused(error: &CallError) -> Passed {
    tracing::debug!(%error, "a call could not be made");
    Passed::Failed(error.into())
}

fn ending(passed: &Passed) -> Ending {
    match passed {
        Passed::Done(outcome, _) => Ending::Answered(outcome.status),
        Passed::Bridged(bridged) => Ending::Answered(bridged.status),
        Passed::Failed(failure) => Ending::Failed(*failure),
        Passed::Broken => Ending::Broken,
    }
}

fn received(passed: &Passed) -> u64 {
    match passed {
        Passed::Done(outcome, _) => outcome.received,
        Passed::Bridged(bridged) => bridged.received,
        Passed::Failed(_) | Passed::Broken => 0,
    }
}
