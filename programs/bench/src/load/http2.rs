//! HTTP/2, and gRPC unary calls over it: many requests at a time on a connection.

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::Request;
use tokio::task::AbortHandle;

use super::failure::Failure;
use super::wire::{Peer, Wire};

/// What may be on its way on one stream, and on one connection: more than any answer asked for here.
const WINDOW: u32 = 1 << 20;

/// A connection that several lanes share. It ends when the last of them drops it.
#[derive(Clone)]
pub(super) struct Connection {
    sender: SendRequest<Bytes>,
    driver: AbortHandle,
}

impl Connection {
    /// Connects; within a set of local tasks.
    pub(super) async fn open(peer: &Peer) -> Result<Self, Failure> {
        let wire = Wire::open(peer).await?;
        let mut builder = Builder::new();
        builder.enable_push(false).initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (sender, connection) = builder.handshake(wire).await?;
        let driver = tokio::task::spawn_local(async move {
            // Whoever has a request on it hears of the error.
            let _ = connection.await;
        });
        Ok(Self { sender, driver: driver.abort_handle() })
    }

    pub(super) fn is_over(&self) -> bool {
        self.driver.is_finished()
    }

    /// Closes it, whoever else has it.
    pub(super) fn close(&self) {
        self.driver.abort();
    }

    /// Makes a request and reads the whole answer; with its status.
    pub(super) async fn exchange(&self, request: Request<()>, body: Bytes, grpc: bool) -> Result<u16, Failure> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut upload) = sender.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            upload.send_data(body, true)?;
        }
        let response = response.await?;
        let (head, mut body) = response.into_parts();
        while let Some(piece) = body.data().await {
            body.flow_control().release_capacity(piece?.len())?;
        }
        let status = head.status.as_u16();
        if !grpc || status != 200 {
            return Ok(status);
        }
        let trailers = body.trailers().await?;
        let said = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
        match said.or_else(|| head.headers.get("grpc-status")) {
            Some(code) if code == "0" => Ok(status),
            Some(code) => Err(Failure::Grpc(String::from_utf8_lossy(code.as_bytes()).into_owned())),
            None => Err(Failure::Grpc("missing".to_owned())),
        }
    }
}
