//! The accept loop: connections in, graceful stop out.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{Id, JoinSet};

use crate::config::Config;
use crate::over_http::Door;
use crate::service::FakeService;

/// Connections held at once; past this the kernel's backlog waits, and descriptors remain for upstream calls.
const CONNECTIONS_MAX: usize = 8 * 1024;

/// Largest request head; proxies add certificates and traces to it, but no honest one needs more.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// HTTP/2 requests in flight on one connection; a proxy may put all of its load on one.
const STREAMS_MAX: u32 = 1024;

/// Time that requests in flight get to finish once the server stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Pause after a failed accept: without descriptors, trying again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves one fake service on `listener` until `shutdown` completes.
///
/// Requests in flight are then finished, for at most ten seconds; idle connections close at once. HTTP/1.1 and HTTP/2
/// without TLS are told apart by their first bytes.
/// # Errors
/// If the listener has no address or an upstream cannot be made into a client; single connections fail quietly.
pub async fn serve(config: Config, listener: TcpListener, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    let (stop, stopping) = watch::channel(false);
    let upstreams: Vec<String> = config.upstreams.iter().map(ToString::to_string).collect();
    let service = Arc::new(FakeService::new(config, address, stopping)?);
    tracing::info!(
        name = service.config.name,
        %address,
        server_type = ?service.config.server_type,
        upstreams = upstreams.join(","),
        "fake service started"
    );
    let mut connections = Connections::default();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            () = connections.reap(), if !connections.tasks.is_empty() => {}
            accepted = listener.accept(), if connections.tasks.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => connections.open(stream, &service),
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    stop.send_replace(true);
    connections.close().await;
    tracing::info!(name = service.config.name, "fake service stopped");
    Ok(())
}

/// The open connections, each with the sender whose drop asks it to stop.
///
/// One sender each rather than one shared signal: polling a oneshot takes no lock, and a connection polls it with
/// every request.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    stops: HashMap<Id, oneshot::Sender<()>>,
}

impl Connections {
    fn open(&mut self, stream: TcpStream, service: &Arc<FakeService>) {
        let (stop, stopped) = oneshot::channel();
        let door = Door { service: Arc::clone(service) };
        let task = self.tasks.spawn(drive(stream, door, stopped));
        self.stops.insert(task.id(), stop);
    }

    /// Waits for a connection to end and forgets it.
    async fn reap(&mut self) {
        let id = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => {
                tracing::error!(%error, "connection task failed");
                error.id()
            }
            None => return,
        };
        self.stops.remove(&id);
    }

    /// Asks every connection to stop, and cuts those that have not within the grace.
    async fn close(mut self) {
        self.stops.clear();
        let drained = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, drained).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "cutting connections that did not finish in time");
        }
    }
}

async fn drive(stream: TcpStream, door: Door, stopped: oneshot::Receiver<()>) {
    // Without it a small answer may wait for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // No time limit on reading heads: it would also close idle connections, which proxies keep and reuse.
    builder.http1().max_buf_size(HEAD_BYTES_MAX).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), door));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        _ = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "connection ended early");
    }
}
