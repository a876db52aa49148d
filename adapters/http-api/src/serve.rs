//! Serving connections: limits on their number and on request heads, and an orderly end.

mod door;
mod guard;
mod head;
mod held;
mod places;
mod waits;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use starling_sockets::{Complaint, Place};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

use crate::blocking::Stopping;
use crate::limits::{
    FIRST_HEAD_TIMEOUT, HEAD_BYTES_MAX, HEAD_TIMEOUT, HEADERS_MAX, RESERVED_HEAD_TIMEOUT, SHUTDOWN_GRACE,
};
use crate::site::OnLoopback;
pub use door::Door;
use door::Incoming;
pub(crate) use guard::CameFrom;
pub use guard::{Guards, guarded};
use held::Held;
pub use places::Places;
use places::is_always_answered;
pub(crate) use waits::{Waiting, Waits};

/// Time to breathe after a failed accept, which means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` at `door` until `shutdown` ends, then lets open requests end for [`SHUTDOWN_GRACE`].
///
/// Those that wait for a change are answered at once, as if their time were over.
///
/// While all places are taken, a new connection takes that of the one that has been idle the longest. If none is idle, the
/// new one gets a place of the reserve, where requests about health are answered and others refused.
///
/// In plaintext on a loopback address only requests for a host that nobody else can claim are answered.
pub async fn serve(
    door: impl Into<Door>,
    router: axum::Router,
    places: Arc<Places>,
    shutdown: impl Future<Output = ()>,
) {
    let door = door.into();
    let (stop, stopping) = watch::channel(false);
    let mut router = stopped_by(router, stopping.clone()).layer(axum::Extension(Arc::clone(&places.waits)));
    let failed = Complaint::default();
    if door.is_plain_loopback() {
        router = router.layer(axum::Extension(OnLoopback));
    }
    let mut shutdown = std::pin::pin!(shutdown);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = door.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(caller) => match places.entrance.enter(caller.from(), caller.descriptor()) {
                Some(place) => {
                    connections.spawn(connection(caller, place, router.clone(), stopping.clone()));
                }
                // Not even the reserve has a descriptor: to accept and close at full speed would help nobody.
                None => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Err(error) => {
                if let Some(count) = failed.due() {
                    tracing::warn!(%error, count, "cannot accept a connection");
                }
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

/// What is spoken over a connection.
struct Spoken {
    router: axum::Router,
    from: Option<CameFrom>,
    place: Arc<Place>,
    stopping: watch::Receiver<bool>,
}

async fn connection(caller: Incoming, place: Place, router: axum::Router, stopping: watch::Receiver<bool>) {
    let place = Arc::new(place);
    let spoken = Spoken { router, from: caller.address().map(CameFrom), place: Arc::clone(&place), stopping };
    tokio::select! {
        () = converse_with(caller, spoken) => {}
        () = place.shed() => tracing::debug!("an idle connection makes room for another one"),
    }
}

async fn converse_with(caller: Incoming, spoken: Spoken) {
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
    let Spoken { router, from, place, mut stopping } = spoken;
    let (inner, head_came) = (TowerToHyperService::new(router), Arc::new(Notify::new()));
    let (first_head, is_reserved) = (Arc::clone(&head_came), place.is_reserved());
    let service = service_fn(move |request| {
        head_came.notify_one();
        let busy = place.busy();
        let mut request = head::detached(request);
        if let Some(from) = from {
            request.extensions_mut().insert(from);
        }
        let refused = (is_reserved && !is_always_answered(request.uri().path())).then(places::refusal);
        let answering = refused.is_none().then(|| inner.call(request));
        async move {
            let mut answer = match (answering, refused) {
                (Some(answering), _) => answering.await?,
                (None, refused) => refused.unwrap_or_default(),
            };
            if is_reserved {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer.map(|body| Held::new(body, busy)))
        }
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
    let patience = if is_reserved { RESERVED_HEAD_TIMEOUT } else { FIRST_HEAD_TIMEOUT };
    let silent = async {
        if tokio::time::timeout(patience, first_head.notified()).await.is_ok() {
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
