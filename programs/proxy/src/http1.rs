//! HTTP/1.1 connections of clients: requests one after the other, each decided about and passed on.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use starling_http1::{Limits, RequestError, RequestHead, put_field};
use starling_model::Protocol;
use starling_traffic::HeaderFields;
use tokio::time::{Instant, Sleep};

use crate::exchange::{Body, Exchange, ExchangeError, Outcome, put_request_framing, put_status};
use crate::http2::bridge::{self, Bridged};
use crate::http2::pump::Moved;
use crate::http2::{self, Http2Error};
use crate::listener::Listening;
use crate::metrics::Ending;
use crate::served::{Decision, Forward, Peer, Side};
use crate::stream::{Conn, Stream};
use crate::tcp;
use crate::upstream::{CallError, Lease, Upstream};

/// Time for the head of a request to arrive once its first byte has, as with the Envoy that Starling configures.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection may rest between requests; a peer closes earlier.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Time that a request or its response may stand still.
const STILL_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for a client to take an answer to a request that was not read to its end.
const LINGER: Duration = Duration::from_secs(1);

/// What is read over meanwhile.
const LINGER_BYTES: usize = 1024 * 1024;

/// Attempts at a request whose kept connection turns out to be closed.
const ATTEMPTS: u32 = 3;

/// The fields of a head, for policies.
pub(crate) struct Fields<'a>(pub(crate) &'a RequestHead);

impl HeaderFields for Fields<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        if name == "host" || name == ":authority" {
            return test(self.0.authority().as_bytes());
        }
        self.0.values(name).any(test)
    }
}

/// Serves a client's connection until it ends.
pub(crate) async fn serve(stream: Stream, read: BytesMut, listening: Rc<Listening>, peer: Peer) {
    let mut conn = Conn::new(stream);
    conn.read = read;
    let sleep = tokio::time::sleep(IDLE_TIMEOUT);
    tokio::pin!(sleep);
    let mut serving = Serving { conn, listening, peer, sleep, limits: Limits::default() };
    while serving.request().await {}
}

struct Serving<'a> {
    conn: Conn,
    listening: Rc<Listening>,
    peer: Peer,
    /// The one timer of the connection.
    sleep: Pin<&'a mut Sleep>,
    limits: Limits,
}

/// How a request ended that was passed on.
enum Passed {
    Done(Outcome, Lease),
    /// In HTTP/2.
    Bridged(Bridged),
    /// Nothing was told to the client.
    Failed {
        status: u16,
        text: &'static str,
    },
    /// The client has got a part, or is gone.
    Broken,
}

impl Serving<'_> {
    /// Serves one request; whether another may come.
    async fn request(&mut self) -> bool {
        let head = match self.read_head().await {
            Ok(Some(head)) => head,
            Ok(None) => return false,
            Err(error) => {
                self.listening.metrics.refused(error.status());
                self.reply(error.status(), &error.to_string(), false).await;
                self.linger().await;
                return false;
            }
        };
        let side = self.listening.side();
        let began = std::time::Instant::now();
        let fields = Fields(&head);
        let decision = side.decide(&self.peer, head.method(), head.target(), &fields);
        let mut body = Body::of_request(&head);
        let passed = match &decision {
            Decision::Forward(forward) if matches!(forward.upstream.protocol, Protocol::Http2 | Protocol::Grpc) => {
                self.bridge(&side, &head, forward).await
            }
            Decision::Forward(forward) => {
                self.sleep.as_mut().reset(Instant::now() + forward.timeout.unwrap_or(STILL_TIMEOUT));
                let mut out = BytesMut::with_capacity(512);
                side.put_request(&mut out, &self.peer, &head, &forward.request);
                put_request_framing(&mut out, &head);
                self.pass(&forward.upstream, &head, &out, &mut body, forward.timeout.is_some()).await
            }
            Decision::Reply { status, text } => Passed::Failed { status: *status, text },
        };
        self.listening.metrics.finished(ending(&passed), began.elapsed(), body.moved, received(&passed));
        match passed {
            Passed::Done(outcome, lease) if outcome.upgraded => {
                tcp::splice(&mut self.conn, lease, &self.listening).await;
                false
            }
            Passed::Done(outcome, lease) => {
                if outcome.server_stays {
                    lease.keep();
                }
                if !outcome.client_stays {
                    self.linger().await;
                }
                outcome.client_stays && !self.listening.is_draining()
            }
            Passed::Bridged(bridged) => {
                if !bridged.client_stays {
                    self.linger().await;
                }
                bridged.client_stays
            }
            Passed::Failed { status, text } => {
                let stays = head.keep_alive && body.is_untouched_and_empty() && !self.listening.is_draining();
                self.reply(status, text, stays).await;
                if !stays {
                    self.linger().await;
                }
                stays
            }
            Passed::Broken => false,
        }
    }

    /// Waits for a request; `None` if the client has closed, or rested for too long.
    async fn read_head(&mut self) -> Result<Option<RequestHead>, RequestError> {
        if self.conn.read.is_empty() {
            self.conn.rest();
            self.sleep.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
            if !self.filled().await {
                return Ok(None);
            }
        }
        let mut waits = false;
        loop {
            if let Some(head) = RequestHead::take(&mut self.conn.read, &self.limits)? {
                return Ok(Some(head));
            }
            if !std::mem::replace(&mut waits, true) {
                self.sleep.as_mut().reset(Instant::now() + HEAD_TIMEOUT);
            }
            if !self.filled().await {
                return Ok(None);
            }
        }
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

    /// Passes a request on, to another connection if a kept one turns out to be closed.
    async fn pass(
        &mut self,
        upstream: &Rc<Upstream>,
        head: &RequestHead,
        out: &BytesMut,
        body: &mut Body,
        whole: bool,
    ) -> Passed {
        for attempt in 1..=ATTEMPTS {
            let mut lease = match upstream.lease(attempt > 1).await {
                Ok(lease) => lease,
                Err(error) => return refused(&error),
            };
            if lease.reused && is_idempotent(head.method()) {
                body.keep();
            }
            let Some(server) = &mut lease.conn else { return Passed::Broken };
            server.write.put_slice(out);
            if attempt > 1 {
                server.write.put_slice(body.replay().unwrap_or_default());
            }
            let stays = head.keep_alive && !self.listening.is_draining();
            let mut exchange = Exchange::new((&mut self.conn, server), (head, stays), body, &self.limits);
            let sleep = &mut self.sleep;
            let ended = poll_fn(|cx| {
                if let Poll::Ready(ended) = exchange.poll(cx) {
                    return Poll::Ready(Some(ended));
                }
                sleep.as_mut().poll(cx).map(|()| None)
            });
            let ended = ended.await;
            let answered = exchange.has_answered();
            return match ended {
                Some(Ok(outcome)) => Passed::Done(outcome, lease),
                Some(Err(ExchangeError::Unanswered(_))) if lease.reused && body.replay().is_some() => continue,
                Some(Err(ExchangeError::Client)) => Passed::Broken,
                _ if answered => Passed::Broken,
                Some(Err(ExchangeError::Response(error))) => {
                    tracing::debug!(upstream = upstream.name, %error, "a response was refused");
                    Passed::Failed { status: 502, text: "upstream protocol error" }
                }
                Some(Err(ExchangeError::Unanswered(_) | ExchangeError::Server)) => {
                    Passed::Failed { status: 503, text: "upstream reset before response started" }
                }
                None if whole => Passed::Failed { status: 504, text: "upstream request timeout" },
                None => Passed::Failed { status: 408, text: "stream timeout" },
            };
        }
        Passed::Failed { status: 503, text: "upstream reset before response started" }
    }

    /// Passes a request on in HTTP/2.
    async fn bridge(&mut self, side: &Side, head: &RequestHead, forward: &Forward<'_>) -> Passed {
        let stays = head.keep_alive && !self.listening.is_draining();
        let mut moved = Moved::default();
        if head.expects_continue {
            self.conn.write.put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            if self.conn.write_out().await.is_err() {
                return Passed::Broken;
            }
        }
        let fields = side.fields(&self.peer, head);
        let request = (head, forward.request.target(), stays);
        let call = bridge::to_http2(&forward.upstream, &mut self.conn, request, fields, &mut moved);
        let ended = match forward.timeout {
            Some(whole) => tokio::time::timeout(whole, call).await,
            None => Ok(call.await),
        };
        match ended {
            Ok(Ok(bridged)) => Passed::Bridged(bridged),
            _ if moved.answered => Passed::Broken,
            Ok(Err(Http2Error::Client)) => Passed::Broken,
            Ok(Err(error)) => {
                let (status, text) = http2::told(&error);
                Passed::Failed { status, text }
            }
            Err(_) => Passed::Failed { status: 504, text: "upstream request timeout" },
        }
    }

    /// Answers in the proxy's own name.
    async fn reply(&mut self, status: u16, text: &str, stays: bool) {
        let out = &mut self.conn.write;
        put_status(out, status);
        put_field(out, "content-type", b"text/plain");
        put_field(out, "content-length", text.len().to_string().as_bytes());
        if !stays {
            out.put_slice(b"connection: close\r\n");
        }
        out.put_slice(b"\r\n");
        out.put_slice(text.as_bytes());
        // Whoever does not take the answer is gone.
        let _ = tokio::time::timeout(LINGER, self.conn.write_out()).await;
    }

    /// Lets the client read the answer before the connection is reset for what it has sent and nobody reads.
    async fn linger(&mut self) {
        let conn = &mut self.conn;
        let lingered = tokio::time::timeout(LINGER, async {
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

/// Whether doing it twice does what doing it once does (RFC 9110 section 9.2.2).
fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

fn refused(error: &CallError) -> Passed {
    tracing::debug!(%error, "a call could not be made");
    let text = match error {
        CallError::NoEndpoint(_) => "no healthy upstream",
        CallError::Overloaded(_) => "upstream overloaded",
        CallError::Connect { .. } => "upstream connect failure",
    };
    Passed::Failed { status: 503, text }
}

fn ending(passed: &Passed) -> Ending {
    match passed {
        Passed::Done(outcome, _) => Ending::Answered(outcome.status),
        Passed::Bridged(bridged) => Ending::Answered(bridged.status),
        Passed::Failed { status, .. } => Ending::Answered(*status),
        Passed::Broken => Ending::Broken,
    }
}

fn received(passed: &Passed) -> u64 {
    match passed {
        Passed::Done(outcome, _) => outcome.received,
        Passed::Bridged(bridged) => bridged.received,
        Passed::Failed { .. } | Passed::Broken => 0,
    }
}
