//! The application behind api: connections that the test answers by hand, or one that always answers the same.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::wire::{Wire, within};

/// Where it listens.
pub struct App {
    pub address: SocketAddr,
    listener: Arc<TcpListener>,
}

impl App {
    pub async fn bind(ip: IpAddr) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        Self { address: listener.local_addr().unwrap(), listener: Arc::new(listener) }
    }

    /// The next connection.
    pub async fn accept(&self) -> Wire<TcpStream> {
        Wire::new(within(self.listener.accept()).await.unwrap().0)
    }

    /// Whether nobody connects; to be asked when somebody would have.
    pub async fn is_left_alone(&self) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(1), self.listener.accept()).await.is_err()
    }

    /// Answers each request of HTTP/1.1 with its head, until this is dropped.
    pub fn mirror(&self) -> Running {
        let (listener, served) = (Arc::clone(&self.listener), Arc::<AtomicU64>::default());
        let (count, heads) = (Arc::clone(&served), Arc::<Mutex<Vec<String>>>::default());
        let seen = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (count, seen) = (Arc::clone(&count), Arc::clone(&seen));
                tokio::spawn(async move {
                    let mut wire = Wire::new(tcp);
                    while let Some(head) = wire.try_head().await {
                        count.fetch_add(1, Ordering::Relaxed);
                        seen.lock().unwrap().push(head.clone());
                        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
                        if wire.try_send(answer).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Running { task, served, heads }
    }

    /// Answers each request of HTTP/2 with its body and trailers, until this is dropped.
    pub fn mirror_http2(&self) -> Running {
        let (listener, served) = (Arc::clone(&self.listener), Arc::<AtomicU64>::default());
        let count = Arc::clone(&served);
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    let Ok(mut connection) = h2::server::handshake(tcp).await else { return };
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        count.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(mirror_stream(request, respond));
                    }
                });
            }
        });
        Running { task, served, heads: Arc::default() }
    }
}

/// Says what was asked for in its header list, and then what was sent; whoever is gone is answered nothing.
async fn mirror_stream(request: Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let (parts, mut body) = request.into_parts();
    let mut response = Response::new(());
    *response.headers_mut() = parts.headers.clone();
    response.headers_mut().remove("content-length");
    response.headers_mut().insert("asked", format!("{} {}", parts.method, parts.uri).parse().unwrap());
    let Ok(mut to) = respond.send_response(response, false) else { return };
    while let Some(Ok(chunk)) = body.data().await {
        let _ = body.flow_control().release_capacity(chunk.len());
        if send_all(&mut to, chunk).await.is_err() {
            return;
        }
    }
    let trailers = body.trailers().await.ok().flatten().unwrap_or_default();
    let _ = to.send_trailers(trailers);
}

/// Sends as the window allows.
pub async fn send_all(to: &mut h2::SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        to.reserve_capacity(data.len());
        let granted = std::future::poll_fn(|cx| to.poll_capacity(cx)).await;
        let granted = granted.unwrap_or_else(|| Err(h2::Reason::CANCEL.into()))?;
        to.send_data(data.split_to(granted.min(data.len())), false)?;
    }
    Ok(())
}

/// A response of HTTP/2, whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

/// Reads a response to its end.
pub async fn answer(response: h2::client::ResponseFuture) -> Result<Answer, h2::Error> {
    let (parts, mut received) = within(response).await?.into_parts();
    let mut body = Vec::new();
    while let Some(chunk) = within(received.data()).await {
        let chunk = chunk?;
        let _ = received.flow_control().release_capacity(chunk.len());
        body.extend_from_slice(&chunk);
    }
    let trailers = within(received.trailers()).await?;
    Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body, trailers })
}

/// An application that runs until it is dropped.
pub struct Running {
    task: JoinHandle<()>,
    /// Requests that it was sent.
    pub served: Arc<AtomicU64>,
    /// The heads of those in HTTP/1.1, with whatever came before them and is none.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Running {
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The heads of requests in HTTP/1.1 that it was sent.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
