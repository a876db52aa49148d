//! One HTTP/2 connection: its limits, and which service a call on it is for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;

use crate::agents::{AgentDoor, AgentsService, PIECE_BYTES};
use crate::api::Api;
use crate::connection::{Connection, Origin, stopped};
use crate::service::AdsService;
use crate::source::ProxySource;

/// Streams on one connection: a proxy needs one, and a second while it changes over; an agent needs one, one for each call
/// under way, and one for each alias check of another node.
const STREAMS_PER_CONNECTION_MAX: u32 = 256;

/// Bytes in the headers of one request.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;

/// Streams that a client has reset and that are not yet cleared away; past this the connection is closed.
const PENDING_RESETS_MAX: usize = 32;

/// Bytes under way to us on one stream, and on one connection; requests are small.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of one stream that are handed over before the socket takes them, whatever window the client grants: one piece,
/// and the next is not asked for before there is room.
const SEND_BUFFER_BYTES: usize = PIECE_BYTES;

/// How often a connection on which nothing is heard is asked for a sign of life, and how long that may take: a proxy whose
/// machine has vanished is given up within seconds, so that nobody waits for its receipts. Agents ask by themselves.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is served on a listener; calls for what is `None` are answered with `unimplemented`.
#[derive(Clone, Default)]
pub struct Doors {
    /// xDS, for proxies.
    pub proxies: Option<Arc<dyn ProxySource>>,
    /// `starling.agent.v1.Agents`, for agents.
    pub agents: Option<Arc<dyn AgentDoor>>,
    /// The HTTP API, for agents.
    pub api: Option<Api>,
}

/// Serves a connection to its end, which comes in time once the server stops.
pub(crate) async fn serve_connection<S>(
    connection: Connection<S>,
    origin: Origin,
    doors: Doors,
    mut stopping: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http2 = Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    let mut watching = JoinSet::new();
    let member = origin.member();
    let revoked = match (&doors.agents, &member) {
        (Some(door), Some(member)) => door.connected(member),
        (None, _) | (_, None) => Box::pin(std::future::pending()),
    };
    if member.is_some() {
        watching.spawn(Arc::clone(&origin.pulse).watch());
    } else {
        http2.keep_alive_interval(KEEPALIVE_INTERVAL).keep_alive_timeout(KEEPALIVE_TIMEOUT);
    }
    let services = Services { doors, stopping: stopping.clone() };
    let service = hyper::service::service_fn(move |request| {
        // In a box, which goes when the answer begins: an agent's stream goes on for weeks after that.
        let answer = Box::pin(services.clone().answer(origin.clone(), request));
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut serving = std::pin::pin!(http2.serve_connection(TokioIo::new(connection), service));
    let served = tokio::select! {
        served = &mut serving => served,
        () = stopped(&mut stopping) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        // No farewell: what was asked by an evicted member is not answered any more.
        () = revoked => return,
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

#[derive(Clone)]
struct Services {
    doors: Doors,
    stopping: watch::Receiver<bool>,
}

impl Services {
    async fn answer(self, origin: Origin, request: http::Request<Incoming>) -> http::Response<Body> {
        let Self { doors: Doors { proxies, agents, api }, stopping } = self;
        let path = request.uri().path();
        if let (Some(door), Some(member)) = (&agents, origin.member())
            && let Err(refused) = door.admit(&member)
        {
            return Status::from(refused).into_http();
        }
        match (proxies, agents, api) {
            (Some(source), _, _) if path.starts_with(AdsService::PREFIX) => {
                AdsService { source, stopping }.answer(origin, request).await
            }
            (_, Some(door), _) if path.starts_with(AgentsService::PREFIX) => {
                AgentsService { door, stopping }.answer(origin, request).await
            }
            (_, _, Some(api)) if Api::is_meant_by(path) => api.answer(&origin, request).await,
            _ => Status::unimplemented("no such service").into_http(),
        }
    }
}
