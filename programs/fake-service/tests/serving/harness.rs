//! Starts services in this process and calls them; everything ends with the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use starling_fake_service::{Config, serve};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest any single step may take on a busy machine; only a hang reaches it.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A service that stops when it is dropped or told to.
pub struct Running {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn grpc_uri(&self) -> String {
        format!("grpc://{}", self.address)
    }

    /// Tells the service to stop, and does not wait.
    pub fn begin_stop(&mut self) {
        self.stop.take();
    }

    /// Waits until the service has stopped.
    pub async fn stopped(mut self) {
        self.begin_stop();
        within(&mut self.task).await.expect("no panic").expect("no error");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a service as the given environment describes it.
pub async fn start(variables: &[(&str, &str)]) -> Running {
    start_on(listener().await, variables)
}

pub async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port")
}

pub fn start_on(listener: TcpListener, variables: &[(&str, &str)]) -> Running {
    let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let config = Config::from_env(lookup).expect("a valid environment");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel();
    let shutdown = async move {
        let _: Result<(), _> = stopped.await;
    };
    let task = tokio::spawn(serve(config, listener, shutdown));
    Running { address, stop: Some(stop), task }
}

/// An address on which nobody listens.
pub async fn nobody() -> SocketAddr {
    listener().await.local_addr().expect("an address")
}

/// A plain HTTP server with a handler of the test's own; counts its connections.
pub struct Plain {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Plain {
    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub async fn plain<H, F>(handler: H) -> Plain
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = listener().await;
    let address = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            let handler = handler.clone();
            let service = hyper::service::service_fn(move |request| {
                let answer = handler(request);
                async move { Ok::<_, std::convert::Infallible>(answer.await) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Plain { address, connections, task }
}

pub async fn get(uri: &str) -> (StatusCode, Value) {
    call(Method::GET, uri, &[], Bytes::new()).await
}

pub async fn call(method: Method, uri: &str, headers: &[(&str, &str)], body: Bytes) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = within(client.request(request.body(Full::new(body)).expect("a request"))).await.expect("an answer");
    read(response).await
}

/// Reads JSON, or text as a JSON string.
pub async fn read(response: Response<Incoming>) -> (StatusCode, Value) {
    let status = response.status();
    let body = within(response.into_body().collect()).await.expect("a whole body").to_bytes();
    let value = serde_json::from_slice(&body).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body)));
    (status, value)
}

/// Fails the test instead of hanging it.
pub async fn within<F: Future>(step: F) -> F::Output {
    tokio::time::timeout(DEADLINE, step).await.expect("step ends within the deadline")
}
