//! The agents' side: one connection to one server, over which go the stream and all calls.
//!
//! Reconnecting is the caller's business: when anything here says [`CallError::Unavailable`], the connection is best
//! dropped and another made.

mod api;
mod frames;
mod outbox;
mod plan;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use starling_attach::message::{AgentSays, Hello};
use starling_model::{Change, InstanceId, NodeName, Revision};
use starling_tls::{IssuedLeaf, PeerError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;
use tonic::Request;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::Codec;
use tonic::metadata::{Ascii, MetadataValue};
use tonic_prost::ProstCodec;

use crate::agents::messages::{Compared, Followed, OnWire, Renewal};
use crate::agents::{
    AliasView, COMMIT_BYTES_MAX, FOR_NODE, FOR_RELAY, JoinAnswer, JoinRequest, LeafRequest, OwnRecords,
    SERVER_FRAME_BYTES_MAX, SERVER_REPLY_BYTES_MAX, path,
};
use crate::call::CallError;
use crate::pulse::{Pulse, Pulsed};
use crate::socket;
use frames::{AgentCodec, RelayCodec};
use outbox::{Outbox, Outgoing};

pub use api::ApiBody;
pub use frames::{Framed, ServerFrames};
pub use plan::{Follows, NATIVE_PROXY, PROCESS, PlanMirror, PlanStream, PlanStreamError};

/// An agent that has read nothing for so long asks its server whether it is there. That is how the server knows of the
/// agent, too. An answer may take as long as is left of [`SILENCE_MAX`](crate::SILENCE_MAX), which is enough to send a
/// lost packet twice again; asking every second would cost a server of ten thousand agents a third of a core.
pub const PING_AFTER: Duration = Duration::from_millis(2_250);

/// An agent that has said nothing at all for so long says that it is there.
pub const SPEAK_AFTER: Duration = Duration::from_millis(2_500);

/// Time after which a connection that is not open is begun once more.
const KNOCK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Bytes under way to the agent on one stream: what a slow one cannot coalesce any more.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Bytes under way on the connection. A stream that is not read leaves room for the calls. And half of it is what h2 lets
/// small frames that are not read cost, 256 bytes less their size each, before it takes them for an attack: enough for a
/// stream's window full of the smallest that there are.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// Time for the answer to a ping, where nobody waits for frames and so misses them earlier: what a reader of a kilobyte a
/// second has to take before it, twice over.
const PING_TIMEOUT: Duration = Duration::from_secs(120);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers there, or the name leads nowhere.
    #[error("the server at {address} cannot be reached")]
    Unreachable {
        /// As it was given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// What answers there is not to be trusted.
    #[error("what answers at {address} is not a server of this mesh")]
    NotTrusted {
        /// As it was given.
        address: String,
        /// What is wrong with it.
        source: PeerError,
    },
    /// It does not speak TLS at all.
    #[error(
        "what answers at {address} speaks no TLS; is that a server's --grpc-tls-addr (port 8503), and not its HTTP API?"
    )]
    NoTls {
        /// As it was given.
        address: String,
    },
    /// The handshake failed.
    #[error("no TLS with the server at {address}")]
    Tls {
        /// As it was given.
        address: String,
        /// What TLS said.
        source: io::Error,
    },
    /// What answers there does not speak HTTP/2.
    #[error("no HTTP/2 with the server at {address}")]
    Http2 {
        /// As it was given.
        address: String,
        /// What HTTP/2 said.
        source: hyper::Error,
    },
    /// It took too long.
    #[error("the server at {address} did not answer in {} ms", timeout.as_millis())]
    TimedOut {
        /// As it was given.
        address: String,
        /// The limit.
        timeout: Duration,
    },
}

/// Whether what came is no record of TLS's.
fn is_no_tls(error: &io::Error) -> bool {
    let told = error.get_ref().and_then(|source| source.downcast_ref());
    matches!(told, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

impl From<ConnectError> for CallError {
    fn from(error: ConnectError) -> Self {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        Self::unavailable(format!("{error}{}", source.unwrap_or_default()))
    }
}

/// A connection to a server. Closed when this, and every stream that was begun on it, is dropped.
#[derive(Clone)]
pub struct ServerClient {
    http2: SendRequest<Body>,
    line: Arc<Line>,
    /// For whom a relay asks: the header, and the name.
    asks_for: Option<(&'static str, MetadataValue<Ascii>)>,
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClient").finish_non_exhaustive()
    }
}

/// What holds a connection open.
#[derive(Debug)]
struct Line {
    pulse: Arc<Pulse>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.pulse.hang_up();
    }
}

impl ServerClient {
    /// Connects to `address`, a host and a port. `tls` decides whom to trust and what to show.
    ///
    /// Under TLS 1.3 a server that does not trust the agent says so only after this; the first call fails then.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        address: impl ToSocketAddrs + fmt::Display,
        tls: Arc<ClientConfig>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let text = address.to_string();
        let dialled = tokio::time::timeout(timeout, Self::dial(address, tls)).await;
        dialled.map_err(|_| ConnectError::TimedOut { address: text, timeout })?
    }

    async fn dial(address: impl ToSocketAddrs + fmt::Display, tls: Arc<ClientConfig>) -> Result<Self, ConnectError> {
        let text = || address.to_string();
        let unreachable = |source| ConnectError::Unreachable { address: text(), source };
        let stream = knock(&address).await.map_err(unreachable)?;
        socket::prepare(&stream).map_err(unreachable)?;
        // Servers are known by their identity. The name serves to remember sessions by.
        let name = ServerName::from(stream.peer_addr().map_err(unreachable)?.ip());
        let pulse = Pulse::new();
        let stream = Pulsed::new(stream, Arc::clone(&pulse));
        let stream =
            TlsConnector::from(tls).connect(name, stream).await.map_err(|source| match PeerError::behind(&source) {
                Some(reason) => ConnectError::NotTrusted { address: text(), source: reason.clone() },
                None if is_no_tls(&source) => ConnectError::NoTls { address: text() },
                None => ConnectError::Tls { address: text(), source },
            })?;
        pulse.came_through();
        Self::over(stream, pulse).await.map_err(|source| ConnectError::Http2 { address: text(), source })
    }

    /// Speaks HTTP/2 over a connection with this pulse.
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        pulse: Arc<Pulse>,
    ) -> Result<Self, hyper::Error> {
        let (http2, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_while_idle(true)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the server ended");
            }
        });
        Ok(Self { http2, line: Arc::new(Line { pulse }), asks_for: None })
    }

    /// The same connection of a relay, over which it asks for a node behind it.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the name cannot be said.
    pub fn for_node(&self, node: &NodeName) -> Result<Self, CallError> {
        self.asking_for(FOR_NODE, node)
    }

    /// The same connection of a relay, over which it has the certificate of a relay below it renewed.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the name cannot be said.
    pub fn for_relay(&self, relay: &NodeName) -> Result<Self, CallError> {
        self.asking_for(FOR_RELAY, relay)
    }

    fn asking_for(&self, header: &'static str, name: &NodeName) -> Result<Self, CallError> {
        let name = name.as_str().parse().map_err(CallError::refused)?;
        Ok(Self { asks_for: Some((header, name)), ..self.clone() })
    }

    /// Begins the stream of the node that the certificate names.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn attach(&self, hello: Hello) -> Result<(AgentSender, ServerFrames), CallError> {
        self.stream(hello, path::ATTACH, AgentCodec).await
    }

    /// Begins the stream of the relay that the certificate names: what the server says comes with its bytes.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn relay(&self, hello: Hello) -> Result<(AgentSender, ServerFrames<Framed>), CallError> {
        self.stream(hello, path::RELAY, RelayCodec).await
    }

    async fn stream<T: Send + Sync + 'static>(
        &self,
        hello: Hello,
        path: &'static str,
        codec: impl Codec<Encode = AgentSays, Decode = T> + Send + 'static,
    ) -> Result<(AgentSender, ServerFrames<T>), CallError> {
        let outbox = Arc::new(Outbox::default());
        outbox.say(AgentSays::Hello(hello))?;
        let sender = AgentSender { outbox: Arc::clone(&outbox), _line: Arc::clone(&self.line) };
        let request = Request::new(Outgoing::new(outbox, Arc::clone(&self.line.pulse)));
        let mut grpc = self.grpc(SERVER_FRAME_BYTES_MAX).await?;
        let answer = grpc.streaming(request, PathAndQuery::from_static(path), codec).await?;
        Ok((sender, ServerFrames::new(answer.into_inner(), Arc::clone(&self.line))))
    }

    /// Writes records of the node; returns when all are durable. They go in one transaction, so they may not be more than
    /// [`COMMIT_BYTES_MAX`].
    ///
    /// # Errors
    /// [`CallError::Refused`] and [`CallError::Overloaded`] if nothing was written, [`CallError::Unavailable`] if all, some or
    /// none may have been.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<Revision, CallError> {
        let request = changes.into_wire();
        let bytes = request.encoded_len();
        if bytes > COMMIT_BYTES_MAX {
            let reason = format!("a commit of {bytes} bytes, over the limit of {COMMIT_BYTES_MAX}");
            return Err(CallError::refused(reason));
        }
        self.unary(path::COMMIT, request).await
    }

    /// The catalog's records of the node, unless the server has had the same ever since `since`: a revision of which it
    /// spoke on this connection, for another may have lived another past.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn own_records(&self, since: Option<Revision>) -> Result<OwnRecords, CallError> {
        self.unary(path::OWN_RECORDS, Compared(since).into_wire()).await
    }

    /// Has leaves signed for workloads of the node: one answer for each wanted, in order.
    ///
    /// # Errors
    /// [`CallError`] if none is signed.
    pub async fn issue_leaves(
        &self,
        wanted: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError> {
        let count = wanted.len();
        let answers: Vec<_> = self.unary(path::ISSUE_LEAVES, wanted.into_wire()).await?;
        if answers.len() != count {
            let reason = format!("the server answered {} of {count} signing requests", answers.len());
            return Err(CallError::unavailable(reason));
        }
        Ok(answers)
    }

    /// Has the agent's own certificate signed anew, or that of a relay.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn renew(&self, csr_der: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        self.unary(path::RENEW, Renewal(csr_der).into_wire()).await
    }

    /// The checks of a node that speak of `service` or, if `None`, of the node alone, together with the node's own: as they
    /// are now, and again after every change. Ends when the server is lost or refuses, with the reason.
    #[must_use]
    pub fn follow_checks(
        &self,
        node: &NodeName,
        service: Option<&InstanceId>,
    ) -> BoxStream<'static, Result<AliasView, CallError>> {
        let request = Followed { node: node.clone(), service: service.cloned() }.into_wire();
        let client = self.clone();
        let views = async move {
            let codec = ProstCodec::<_, <AliasView as OnWire>::Message>::default();
            let mut grpc = client.grpc(SERVER_REPLY_BYTES_MAX).await?;
            let path = PathAndQuery::from_static(path::FOLLOW_CHECKS);
            let views = grpc.server_streaming(client.request(request), path, codec).await?.into_inner();
            // The connection is held open by whoever follows.
            let held = move |view: Result<_, tonic::Status>| {
                let _held = &client;
                AliasView::from_wire(view?).map_err(CallError::unavailable)
            };
            Ok::<_, CallError>(views.map(held))
        };
        let until_error = stream::once(views).try_flatten().scan(false, |is_over, view| {
            let is_next = !std::mem::replace(is_over, view.is_err());
            std::future::ready(is_next.then_some(view))
        });
        until_error.boxed()
    }

    /// Asks to be let in; the only call of an agent without a certificate.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn join(&self, request: &JoinRequest) -> Result<JoinAnswer, CallError> {
        self.unary(path::JOIN, request.clone().into_wire()).await
    }

    async fn unary<I, O>(&self, path: &'static str, request: I) -> Result<O, CallError>
    where
        I: Message + 'static,
        O: OnWire<Message: Send + Sync>,
    {
        let mut grpc = self.grpc(SERVER_REPLY_BYTES_MAX).await?;
        let codec = ProstCodec::<I, O::Message>::default();
        let answer = grpc.unary(self.request(request), PathAndQuery::from_static(path), codec).await?;
        O::from_wire(answer.into_inner()).map_err(CallError::unavailable)
    }

    fn request<I>(&self, message: I) -> Request<I> {
        let mut request = Request::new(message);
        if let Some((header, name)) = &self.asks_for {
            request.metadata_mut().insert(*header, name.clone());
        }
        request
    }

    async fn grpc(&self, bytes_max: usize) -> Result<Grpc<Http2>, CallError> {
        // Over TLS to whoever is at the other end: the name is of no account.
        let origin = http::Uri::from_static("https://starling");
        let mut grpc = Grpc::with_origin(Http2(self.http2.clone()), origin).max_decoding_message_size(bytes_max);
        grpc.ready().await.map_err(CallError::unavailable)?;
        Ok(grpc)
    }
}

/// Opens a connection. Linux sends a first packet that was lost again after a second, and then after two, which is long for
/// one agent among ten thousand that lose some; so a second connection is begun before that.
async fn knock(address: &(impl ToSocketAddrs + fmt::Display)) -> io::Result<TcpStream> {
    let mut first = std::pin::pin!(TcpStream::connect(address));
    if let Ok(opened) = tokio::time::timeout(KNOCK_AGAIN_AFTER, &mut first).await {
        return opened;
    }
    let mut second = std::pin::pin!(TcpStream::connect(address));
    tokio::select! {
        opened = &mut first => opened,
        Ok(opened) = &mut second => Ok(opened),
    }
}

/// The agent's end of a stream to a server. The stream ends when this is dropped.
#[derive(Debug)]
pub struct AgentSender {
    outbox: Arc<Outbox>,
    _line: Arc<Line>,
}

impl AgentSender {
    /// Says something as soon as there is room; never waits. Of several `Applied` in a row that wait only the last is said.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if the stream has ended, or so much waits that the server cannot be reading.
    pub fn send(&self, says: AgentSays) -> Result<(), CallError> {
        self.outbox.say(says)
    }

    /// How much waits to be said.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.outbox.waiting()
    }
}

impl Drop for AgentSender {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

/// A connection as a service.
struct Http2(SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Http2 {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
