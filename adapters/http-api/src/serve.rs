//! Serving connections: limits on their number and on request heads, and an orderly end.

mod door;
mod guard;
mod head;

use std::future::Future;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::blocking::Stopping;
use crate::limits::{FIRST_HEAD_TIMEOUT, HEAD_BYTES_MAX, HEAD_TIMEOUT, HEADERS_MAX, SHUTDOWN_GRACE};
use crate::site::OnLoopback;
pub use door::Door;
use door::Incoming;
use guard::CameFrom;
pub use guard::{Guards, guarded};

/// Time to breathe after a failed accept, which means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections a door may hold, of a process that has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Connections at once.
    pub connections: usize,
    /// File descriptors from this one on are for others: one that is given out means that all below are taken.
    pub descriptors: RawFd,
}

impl Places {
    /// So many, whatever else the process has.
    #[must_use]
    pub fn of(connections: usize) -> Self {
        Self { connections, descriptors: RawFd::MAX }
    }
}

/// Serves `router` at `door` until `shutdown` ends, then lets open requests end for [`SHUTDOWN_GRACE`].
///
/// Those that wait for a change are answered at once, as if their time were over.
///
/// At `limits.connections` no further connection is accepted until one ends; [`CONNECTIONS_MAX`](crate::limits::CONNECTIONS_MAX) if
/// there are file descriptors for it.
///
/// In plaintext on a loopback address only requests for a host that nobody else can claim are answered.
pub async fn serve(door: impl Into<Door>, router: axum::Router, limits: Places, shutdown: impl Future<Output = ()>) {
    let door = door.into();
    let places = Arc::new(Semaphore::new(limits.connections));
    let (stop, stopping) = watch::channel(false);
    let mut router = stopped_by(router, stopping.clone());
    if door.is_plain_loopback() {
        router = router.layer(axum::Extension(OnLoopback));
    }
    let mut shutdown = std::pin::pin!(shutdown);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&door, &places) => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((caller, _)) if caller.descriptor() >= limits.descriptors => {
                tracing::warn!("no file descriptor is left for a connection: it is closed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Ok((caller, place)) => {
                connections.spawn(connection(caller, place, router.clone(), stopping.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(door);
    stop.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, ended).await.is_err() {
        connections.shutdown().await;
    }
}

/// The router, with waiting requests answered at once when `stopping` turns true; [`serve`] does that by itself.
pub fn stopped_by(router: axum::Router, stopping: watch::Receiver<bool>) -> axum::Router {
    router.layer(axum::Extension(Stopping::new(stopping)))
}

async fn accept(door: &Door, places: &Arc<Semaphore>) -> std::io::Result<(Incoming, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(std::io::Error::other)?;
    Ok((door.accept().await?, place))
}

/// What is spoken over a connection.
struct Spoken {
    router: axum::Router,
    from: Option<CameFrom>,
    stopping: watch::Receiver<bool>,
}

async fn connection(
    caller: Incoming,
    place: OwnedSemaphorePermit,
    router: axum::Router,
    stopping: watch::Receiver<bool>,
) {
    let _held_until_the_end = place;
    let spoken = Spoken { router, from: caller.address().map(CameFrom), stopping };
    match caller {
        Incoming::Tcp(stream) => converse(without_delay(stream), spoken).await,
        Incoming::Unix(stream) => converse(stream, spoken).await,
        // Apart, so that a caller in plaintext who waits for minutes takes no room for it.
        Incoming::Tls(stream, config) => Box::pin(over_tls(stream, config, spoken)).await,
    }
}

async fn over_tls(stream: TcpStream, config: Arc<ServerConfig>, spoken: Spoken) {
    let handshake = TlsAcceptor::from(config).accept(without_delay(stream));
    match tokio::time::timeout(FIRST_HEAD_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => converse(stream, spoken).await,
        Ok(Err(error)) => tracing::debug!(%error, "a caller could not agree on TLS"),
        Err(_) => tracing::debug!("a caller took too long to agree on TLS"),
    }
}

fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    stream
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, spoken: Spoken) {
    let Spoken { router, from, mut stopping } = spoken;
    let (inner, head_came) = (TowerToHyperService::new(router), Arc::new(Notify::new()));
    let first_head = Arc::clone(&head_came);
    let service = service_fn(move |request| {
        head_came.notify_one();
        let mut request = head::detached(request);
        if let Some(from) = from {
            request.extensions_mut().insert(from);
        }
        inner.call(request)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // As Go writes them; some clients compare header names by bytes.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let silent = async {
        if tokio::time::timeout(FIRST_HEAD_TIMEOUT, first_head.notified()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = silent => {
            tracing::debug!("a connection without a request is closed");
            return;
        }
        _ = stopping.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
