//! Calls over HTTP/2: connections to endpoints, shared by many calls, and one call on them.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::Request;

use super::pump::{Moved, pass};
use super::{CONNECTION_WINDOW, HEADER_LIST_BYTES_MAX, Http2Error, SEND_BUFFER_BYTES, STREAM_WINDOW};
use crate::stream::{Conn, Stream};
use crate::upstream::Upstream;

/// Attempts at a request that a server certainly has not begun with.
const ATTEMPTS: u32 = 3;

/// Calls on one connection before another is opened: one congested connection must not hold up all of them.
const STREAMS_PER_CONNECTION: usize = 100;

/// A connection that many calls share.
#[derive(Clone)]
pub(crate) struct Shared {
    sender: SendRequest<Bytes>,
    open: Rc<Cell<usize>>,
    closed: Rc<Cell<bool>>,
}

impl Shared {
    /// Opens one over a stream.
    pub(crate) async fn open(stream: Stream) -> Result<Self, h2::Error> {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_send_buffer_size(SEND_BUFFER_BYTES);
        let (sender, connection) = builder.handshake(Conn::new(stream)).await?;
        let closed = Rc::new(Cell::new(false));
        let ended = Rc::clone(&closed);
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/2 connection to a server broke off");
            }
            ended.set(true);
        });
        Ok(Self { sender, open: Rc::default(), closed })
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
        Open(Rc::clone(&self.open))
    }
}

/// A call under way.
struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Makes a call and passes its response on; answers with its status.
pub(crate) async fn call(
    upstream: &Rc<Upstream>,
    request: Request<()>,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
    moved: &mut Moved,
) -> Result<Option<u16>, Http2Error> {
    let bodiless = body.is_end_stream();
    let (response, upload) = begin(upstream, request, bodiless).await?;
    let upload_done = Cell::new(bodiless);
    let mut up = 0;
    let outcome = {
        let uploading = async {
            if !upload_done.get() {
                let passed = pass(body, upload, &mut up).await;
                upload_done.set(true);
                passed?;
            }
            std::future::pending::<Result<u16, Http2Error>>().await
        };
        let downloading = async {
            let response = response.response.await?;
            let (parts, received) = response.into_parts();
            let status = parts.status.as_u16();
            let over = received.is_end_stream();
            let to = respond.send_response(http::Response::from_parts(parts, ()), over)?;
            moved.answered = true;
            if !over {
                pass(received, to, &mut moved.down).await?;
            }
            Ok::<_, Http2Error>(status)
        };
        tokio::select! {
            biased;
            done = downloading => done,
            failed = uploading => failed,
        }
    };
    moved.up = up;
    outcome.map(Some)
}

/// A response to come.
pub(crate) struct Pending {
    pub(crate) response: h2::client::ResponseFuture,
    _open: Open,
    _load: crate::upstream::Load,
}

/// Sends a request's head, on another connection if the first one takes no more.
pub(crate) async fn begin(
    upstream: &Rc<Upstream>,
    request: Request<()>,
    bodiless: bool,
) -> Result<(Pending, h2::SendStream<Bytes>), Http2Error> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let (shared, load) = upstream.share().await?;
        let open = shared.begin();
        let mut sender = shared.sender.clone();
        if let Err(error) = poll_fn(|cx| sender.poll_ready(cx)).await {
            shared.closed.set(true);
            last = Some(error);
            continue;
        }
        match sender.send_request(clone_of(&request), bodiless) {
            Ok((response, upload)) => return Ok((Pending { response, _open: open, _load: load }, upload)),
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
