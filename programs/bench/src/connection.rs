//! One keep-alive HTTP/1.1 connection, driven by the task that uses it.
//!
//! There is no task or pool between the caller and the socket, so the moment a call begins is the moment its bytes are
//! written, and nothing but the kernel stands between the answer and the caller.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longest body of an answer, in bytes; the largest that a scenario asks for is a receipt of a few kilobytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

type Driver = Pin<Box<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>>;

/// An open connection.
pub(crate) struct Connection {
    address: SocketAddr,
    sender: http1::SendRequest<Full<Bytes>>,
    /// Moves the bytes; gone once the peer has closed.
    driver: Option<Driver>,
}

/// What came back, and when.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Just before the request was written.
    pub(crate) sent: Instant,
    /// When the answer's head was read.
    pub(crate) arrived: Instant,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        // A small request must not wait for the acknowledgement of the one before.
        stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { address, sender, driver: Some(Box::pin(driver)) })
    }

    /// The kept connection if it is still open, or else a new one.
    pub(crate) async fn reuse_or_open(kept: Option<Self>, address: SocketAddr) -> anyhow::Result<Self> {
        if let Some(mut kept) = kept
            && kept.is_open().await
        {
            return Ok(kept);
        }
        Self::open(address).await
    }

    /// Whether the peer has not closed the connection; reads what has arrived since the last call to know.
    async fn is_open(&mut self) -> bool {
        let driver = &mut self.driver;
        poll_fn(|context| {
            if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(context).is_ready()) {
                *driver = None;
            }
            Poll::Ready(())
        })
        .await;
        self.driver.is_some() && !self.sender.is_closed()
    }

    /// Sends one request and reads the whole answer. Has no deadline of its own; a connection whose call was given up
    /// halfway must not be used again.
    pub(crate) async fn call(&mut self, method: Method, target: &str, body: Bytes) -> anyhow::Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(http::header::HOST, self.address.to_string())
            .body(Full::new(body))
            .with_context(|| format!("{target:?} is not a request target"))?;
        let sent = Instant::now();
        let sender = &mut self.sender;
        let mut exchange = pin!(async move {
            let response = sender.send_request(request).await?;
            let arrived = Instant::now();
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(anyhow::Error::from_boxed)?;
            let body = body.to_bytes();
            anyhow::Ok(Answer { status: head.status, headers: head.headers, body, sent, arrived })
        });
        let driver = &mut self.driver;
        poll_fn(|context| {
            if let Poll::Ready(outcome) = exchange.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(context).is_ready()) {
                *driver = None;
            }
            // The driver may just have read the answer, or closed the exchange by going.
            exchange.as_mut().poll(context)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const BRIEF: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    /// Serves so many requests on each connection, one connection after the other, and closes it.
    async fn serve(listener: TcpListener, requests_each: usize) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..requests_each {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(BRIEF).await.unwrap();
            }
        }
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn get(connection: &mut Connection) -> anyhow::Result<Answer> {
        connection.call(Method::GET, "/", Bytes::new()).await
    }

    #[tokio::test]
    async fn one_connection_carries_many_calls() {
        let (listener, address) = listen().await;
        let server = tokio::spawn(serve(listener, 3));
        let mut connection = Connection::open(address).await.unwrap();
        for _ in 0..3 {
            let answer = get(&mut connection).await.unwrap();
            assert_eq!((answer.status, answer.body.as_ref()), (StatusCode::OK, &b"ok"[..]));
            assert!(answer.sent <= answer.arrived);
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_connection_that_the_peer_closed_is_replaced() {
        let (listener, address) = listen().await;
        let server = tokio::spawn(serve(listener, 1));
        let mut connection = Connection::open(address).await.unwrap();
        for _ in 0..3 {
            get(&mut connection).await.unwrap();
            // The peer's close needs a moment to arrive; until then the connection looks open.
            while connection.is_open().await {
                tokio::task::yield_now().await;
            }
            connection = Connection::reuse_or_open(Some(connection), address).await.unwrap();
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_peer_that_closes_instead_of_answering_is_an_error() {
        let (listener, address) = listen().await;
        let server = tokio::spawn(serve(listener, 0));
        let mut connection = Connection::open(address).await.unwrap();
        assert!(get(&mut connection).await.is_err());
        server.abort();
    }

    #[tokio::test]
    async fn a_port_that_nobody_listens_on_is_named() {
        let (listener, address) = listen().await;
        drop(listener);
        let error = Connection::open(address).await.err().unwrap();
        assert!(error.to_string().contains(&address.to_string()), "{error:#}");
    }
}
