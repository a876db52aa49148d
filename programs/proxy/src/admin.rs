//! The door for whoever operates the proxy: what it is doing, and draining it. On this machine only.
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /config` | every plan in force, as text, or as JSON with `?format=json`; never a key |
//! | `GET /clusters` | endpoints with their load and connections |
//! | `GET /certificates` | identities, serial numbers, validity, roots |
//! | `GET /connections` | connections of clients |
//! | `GET /ready` | 200 when a plan is in force and connections are taken, else 503 |
//! | `GET /stats` | metrics for Prometheus |
//! | `POST /drain` | no more connections are taken |

mod address;
mod pages;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use starling_telemetry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

pub use address::{AdminAddress, AdminAddressError, AdminListener};

use crate::engine::Engine;
use crate::snapshot::WorkerSnapshot;

/// Connections at a time: operators are few.
const CONNECTIONS_MAX: usize = 32;

/// Time for the head of a request, the wait for it included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// After an accept that failed for want of descriptors or memory.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What is said in the metrics' text form.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the engine's operators for as long as it is not dropped. What is registered already is shown beside the engine's
/// metrics.
pub async fn serve(listener: AdminListener, engine: Arc<Engine>, registry: Registry) {
    engine.register(&registry);
    let admin = Arc::new(Admin { engine, registry });
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Nobody closes it.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let admin = Arc::clone(&admin);
                tokio::spawn(async move {
                    answer_all(stream, admin).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of the proxy's admin interface");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

async fn answer_all(stream: impl AsyncRead + AsyncWrite + Unpin, admin: Arc<Admin>) {
    let service = service_fn(move |request| {
        let admin = Arc::clone(&admin);
        async move { Ok::<_, Infallible>(admin.answer(&request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection of the proxy's admin interface broke off");
    }
}

struct Admin {
    engine: Arc<Engine>,
    registry: Registry,
}

impl Admin {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        // Whatever a browser shows must not be able to reach this through it.
        if request.headers().contains_key(header::ORIGIN) {
            return reply(StatusCode::FORBIDDEN, "text/plain", "not for browsers\n".to_owned());
        }
        let expected = match request.uri().path() {
            "/ready" | "/config" | "/clusters" | "/certificates" | "/connections" | "/stats" => Method::GET,
            "/drain" => Method::POST,
            _ => return reply(StatusCode::NOT_FOUND, "text/plain", format!("{PATHS}\n")),
        };
        if *request.method() != expected {
            let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", format!("use {expected}\n"));
            refused.headers_mut().extend(expected.as_str().parse().map(|value| (header::ALLOW, value)));
            return refused;
        }
        self.page(request.uri()).await
    }

    async fn page(&self, uri: &http::Uri) -> Response<Full<Bytes>> {
        let ok = |kind, body| reply(StatusCode::OK, kind, body);
        let json = |value: serde_json::Value| ok("application/json", format!("{value:#}\n"));
        match uri.path() {
            "/drain" => {
                self.engine.drain().await;
                ok("text/plain", "draining\n".to_owned())
            }
            "/stats" => ok(OPENMETRICS, self.registry.encode()),
            path => {
                let workers = self.engine.snapshot().await;
                match path {
                    "/ready" => ready(&workers),
                    "/clusters" => json(pages::clusters(&workers)),
                    "/certificates" => json(pages::certificates(&workers)),
                    "/connections" => json(pages::connections(&workers)),
                    _ if uri.query() == Some("format=json") => json(pages::config(&workers)),
                    _ => ok("text/plain; charset=utf-8", pages::config_text(&workers)),
                }
            }
        }
    }
}

const PATHS: &str = "GET /ready /config /clusters /certificates /connections /stats, POST /drain";

fn ready(workers: &[WorkerSnapshot]) -> Response<Full<Bytes>> {
    let (status, said) = if workers.iter().any(|worker| worker.draining) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if workers.iter().any(|worker| worker.workloads.is_empty()) {
        (StatusCode::SERVICE_UNAVAILABLE, "no plan is in force\n")
    } else {
        (StatusCode::OK, "ready\n")
    };
    reply(status, "text/plain", said.to_owned())
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

impl AdminListener {
    async fn accept(&self) -> io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(socket) => Box::new(socket.accept().await?),
        })
    }
}

/// Bytes in both directions.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}
