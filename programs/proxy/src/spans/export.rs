//! The way to a collector: one queue and one sending thread per collector, for all workers.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use prost::Message;
use starling_model::Collector;
use tokio::net::TcpStream;

use super::Origin;
use super::otlp::{EXPORT, ExportRequest, ExportResponse, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span};

/// Spans that wait to be sent. Past this the collector is slower than the traffic, and spans are lost.
const QUEUE_SPANS: usize = 8 * 1024;

/// Spans sent at once; a few hundred bytes each, so that a message stays far below the 4 MiB that collectors take.
const BATCH_SPANS: usize = 512;

/// Time that a span waits for others to be sent with.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// Time for a collector to take what it is sent.
const SEND_TIME: Duration = Duration::from_secs(10);

/// Bytes of an answer; it says little.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The collectors of an engine.
#[derive(Debug, Default)]
pub(crate) struct Collectors(Mutex<BTreeMap<Collector, Known>>);

#[derive(Debug, Default)]
struct Known {
    queue: Weak<Queue>,
    sending: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

/// One collector's queue. Its thread ends with it, when all that is queued is sent.
#[derive(Debug)]
pub(super) struct Queue {
    spans: Option<SyncSender<Item>>,
    lost: Arc<AtomicU64>,
}

type Item = (Arc<Origin>, Span);

impl Collectors {
    /// Spans lost so far, by collector.
    pub(crate) fn lost(&self) -> Vec<(String, u64)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(collector, known)| (collector.to_string(), known.lost.load(Ordering::Relaxed))).collect()
    }

    pub(super) fn open(&self, collector: &Collector) -> Arc<Queue> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(collector.clone()).or_default();
        if let Some(queue) = known.queue.upgrade() {
            return queue;
        }
        let (queue, sending) = Queue::start(collector, &known.lost);
        let queue = Arc::new(queue);
        (known.queue, known.sending) = (Arc::downgrade(&queue), sending);
        queue
    }

    /// Blocks until what is queued is sent. Nobody may trace any more.
    pub(crate) fn finish(&self) {
        let known = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for sending in known.into_values().filter_map(|known| known.sending) {
            // One that has panicked sends nothing more.
            let _ = sending.join();
        }
    }
}

impl Queue {
    fn start(collector: &Collector, lost: &Arc<AtomicU64>) -> (Self, Option<JoinHandle<()>>) {
        let (spans, received) = sync_channel(QUEUE_SPANS);
        let mut sending = Sending { collector: collector.clone(), open: None, told: false, lost: Arc::clone(lost) };
        let started = thread::Builder::new().name("spans".to_owned()).spawn(move || sending.run(&received));
        if let Err(error) = &started {
            tracing::error!(%error, %collector, "spans cannot be sent");
        }
        (Self { spans: started.is_ok().then_some(spans), lost: Arc::clone(lost) }, started.ok())
    }

    /// Takes a span, if there is room for it.
    pub(super) fn put(&self, origin: Arc<Origin>, span: Span) {
        if self.spans.as_ref().is_none_or(|spans| spans.try_send((origin, span)).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that sends.
struct Sending {
    collector: Collector,
    open: Option<SendRequest<Bytes>>,
    lost: Arc<AtomicU64>,
    /// Somebody has been told that spans cannot be sent.
    told: bool,
}

impl Sending {
    fn run(&mut self, received: &Receiver<Item>) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "spans cannot be sent"),
        };
        while let Ok(first) = received.recv() {
            let (mut batch, began) = (vec![first], Instant::now());
            while batch.len() < BATCH_SPANS
                && let Ok(item) = received.recv_timeout(BATCH_TIME.saturating_sub(began.elapsed()))
            {
                batch.push(item);
            }
            let count = batch.len() as u64;
            let message = framed(&request(batch));
            match runtime.block_on(async { tokio::time::timeout(SEND_TIME, self.send(&message)).await }) {
                Ok(Ok(rejected)) => {
                    self.lost.fetch_add(rejected.min(count), Ordering::Relaxed);
                    self.told = false;
                }
                Ok(Err(error)) => self.failed(count, &format!("{error:#}")),
                Err(late) => self.failed(count, &late.to_string()),
            }
        }
    }

    fn failed(&mut self, count: u64, error: &str) {
        self.open = None;
        self.lost.fetch_add(count, Ordering::Relaxed);
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!(error, collector = %self.collector, "spans cannot be sent");
        }
    }

    /// Sends a batch; answers with how many spans of it were rejected.
    async fn send(&mut self, message: &Bytes) -> anyhow::Result<u64> {
        if let Some(kept) = self.open.take()
            && let Ok(rejected) = self.send_over(kept, message).await
        {
            return Ok(rejected);
        }
        // One that was kept may have been closed meanwhile.
        let (host, port) = (&*self.collector.host, self.collector.port);
        let tcp = TcpStream::connect((host, port)).await.context("connecting")?;
        tcp.set_nodelay(true)?;
        let (sender, connection) = h2::client::handshake(tcp).await.context("the HTTP/2 handshake")?;
        tokio::spawn(async move {
            // Whoever sends over it hears of its end.
            let _ = connection.await;
        });
        self.send_over(sender, message).await
    }

    async fn send_over(&mut self, sender: SendRequest<Bytes>, message: &Bytes) -> anyhow::Result<u64> {
        let mut sender = sender.ready().await?;
        let authority = self.collector.to_string();
        let request = Request::post(format!("{authority}{EXPORT}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let (response, mut body) = sender.send_request(request, false)?;
        send_all(&mut body, message.clone()).await?;
        let (head, mut answer) = response.await?.into_parts();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = answer.data().await {
            let chunk = chunk?;
            answer.flow_control().release_capacity(chunk.len())?;
            bytes.extend_from_slice(&chunk);
            anyhow::ensure!(bytes.len() <= ANSWER_BYTES_MAX, "the answer is too long");
        }
        let trailers = answer.trailers().await?.unwrap_or_default();
        let code = trailers.get("grpc-status").or_else(|| head.headers.get("grpc-status"));
        anyhow::ensure!(code.is_some_and(|code| code == "0"), "status {}, gRPC status {code:?}", head.status);
        self.open = Some(sender);
        let answer = bytes.get(5..).and_then(|message| ExportResponse::decode(message).ok());
        let rejected = answer.and_then(|answer| answer.partial_success).map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }
}

async fn send_all(to: &mut h2::SendStream<Bytes>, mut rest: Bytes) -> anyhow::Result<()> {
    while !rest.is_empty() {
        to.reserve_capacity(rest.len());
        let room = poll_fn(|cx| to.poll_capacity(cx)).await.context("the collector closed")??;
        let part = rest.split_to(room.min(rest.len()));
        to.send_data(part, rest.is_empty())?;
    }
    Ok(())
}

/// A message as gRPC sends it: not compressed, its length in front.
fn framed(request: &ExportRequest) -> Bytes {
    let length = request.encoded_len();
    let mut framed = BytesMut::with_capacity(5 + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    request.encode(&mut framed).expect("invariant: a buffer grows");
    framed.freeze()
}

/// Spans by whose they are.
fn request(batch: Vec<Item>) -> ExportRequest {
    let mut by_origin: Vec<(Arc<Origin>, Vec<Span>)> = Vec::new();
    for (origin, span) in batch {
        match by_origin.iter_mut().find(|(of, _)| Arc::ptr_eq(of, &origin)) {
            Some((_, spans)) => spans.push(span),
            None => by_origin.push((origin, vec![span])),
        }
    }
    let of = |(origin, spans): (Arc<Origin>, Vec<Span>)| {
        let attributes = vec![
            KeyValue::text("service.name", &origin.service),
            KeyValue::text("service.instance.id", &origin.instance),
        ];
        let scope = Scope { name: "starling-proxy".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        ResourceSpans {
            resource: Some(Resource { attributes }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }
    };
    ExportRequest { resource_spans: by_origin.into_iter().map(of).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_queue_does_not_take_is_lost_and_counted() {
        let (spans, received) = sync_channel(2);
        let queue = Queue { spans: Some(spans), lost: Arc::default() };
        let origin = Arc::new(Origin { service: "web".to_owned(), instance: "web-1".to_owned() });
        for _ in 0..5 {
            queue.put(Arc::clone(&origin), Span::default());
        }
        assert_eq!(queue.lost.load(Ordering::Relaxed), 3);
        let request = request(received.try_iter().collect());
        assert_eq!(request.resource_spans.len(), 1, "spans of one workload stand together");
        assert_eq!(request.resource_spans[0].scope_spans[0].spans.len(), 2);
    }
}
