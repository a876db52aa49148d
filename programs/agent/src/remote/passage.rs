//! The way to the servers' HTTP API, for what is asked of this node and only a server can answer.
//!
//! It has a connection of its own, made when something is asked, rather to the server that the node is attached to: whoever reads an answer slowly must not hold up the
//! agent's stream. Each request goes to one server; only one that was certainly not sent is tried at the next. A server that is silent
//! is given up, and what is asked there with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use starling_rpc::{ApiBody, CallError, ServerClient};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::remote::servers::Servers;

/// The connection, and how another is made.
pub struct Passage {
    servers: Arc<Servers>,
    tls: watch::Receiver<Arc<rustls::ClientConfig>>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    client: Option<ServerClient>,
    /// Who ends the connection when it is silent.
    _vigil: JoinSet<()>,
}

/// To connect: a server that hangs takes connections, and answers nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

impl Passage {
    /// To these servers, by the TLS configuration of the moment.
    #[must_use]
    pub fn new(servers: Arc<Servers>, tls: watch::Receiver<Arc<rustls::ClientConfig>>) -> Self {
        Self { servers, tls, held: Mutex::default() }
    }

    /// Asks a server; `request` has a path and a query for an address.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if no answer begins; a server may have done what was asked all the same.
    pub async fn ask(&self, request: Request<Bytes>) -> Result<Response<ApiBody>, CallError> {
        let client = self.client().await?;
        let (mut head, body) = request.into_parts();
        // HTTP/2 wants to know whom it is for; the other end is known by its certificate.
        let mut address = head.uri.into_parts();
        address.scheme = Some(http::uri::Scheme::HTTPS);
        address.authority = Some(http::uri::Authority::from_static("starling"));
        head.uri = Uri::from_parts(address).map_err(CallError::refused)?;
        client.ask_api(Request::from_parts(head, Full::new(body))).await
    }

    /// The connection of the moment, or another if it is no more. Those who come meanwhile wait for the same one.
    async fn client(&self) -> Result<ServerClient, CallError> {
        let mut held = self.held.lock().await;
        if let Some(client) = held.client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let mut last = CallError::unavailable("no server was named");
        for server in self.servers.in_order() {
            let tls = Arc::clone(&self.tls.borrow());
            match ServerClient::connect(&*server, tls, CONNECT_TIMEOUT).await {
                Ok(client) => {
                    let mut vigil = JoinSet::new();
                    vigil.spawn(client.vigil());
                    *held = Held { client: Some(client.clone()), _vigil: vigil };
                    return Ok(client);
                }
                Err(error) => {
                    self.servers.failed(&server);
                    last = error.into();
                }
            }
        }
        Err(last)
    }
}
