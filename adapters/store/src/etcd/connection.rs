//! The way to etcd: one connection to one member, and on to the next when it fails.
//!
//! A request that was surely not carried out is repeated here, elsewhere if need be, until the caller's patience ends; one of
//! which that is not known never is, unless it only reads. A change of member is told to everyone who holds a stream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::trouble::{EtcdTrouble, Judged, judge};
use super::wire::{
    Answer, AuthenticateRequest, AuthenticateResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, StatusRequest,
    StatusResponse, WatchRequest, WatchResponse,
};
use super::{EtcdCredentials, EtcdOptions};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// Time to connect to one member, the handshake of TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which the next member is tried beside one that has not taken the connection yet.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// Time for one member to answer. etcd gives up on a proposal after 7 s by default; somebody else may be faster.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a request that was surely not carried out is repeated: longer than a leader's election (1 to 2 s by default).
const PATIENCE: Duration = Duration::from_secs(4);

/// Pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// Silence of a member before it is asked for a sign of life. etcd ends connections that ask more often than every 5 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);

/// Time for that sign.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes of one answer: a page of the whole, or the events of one transaction.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A connection to one member.
#[derive(Clone)]
pub(super) struct Line {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    /// Counts the connections.
    pub(super) number: u64,
}

/// What went wrong, and whether a write is known not to have been carried out.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) trouble: EtcdTrouble,
    pub(super) is_refusal: bool,
}

pub(super) struct Connections {
    endpoints: Vec<Endpoint>,
    credentials: Option<EtcdCredentials>,
    state: Mutex<State>,
    /// Rises with every connection that is made or left; streams over one of another number are to end.
    current: watch::Sender<u64>,
    /// The cluster that must answer; 0 until it is known.
    cluster: AtomicU64,
}

struct State {
    /// The endpoint to try next.
    next: usize,
    line: Option<Line>,
    /// When a search for a member that takes a connection last ended, and with what.
    failed: Option<(Instant, EtcdTrouble)>,
}

impl Connections {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, EtcdTrouble> {
        let endpoints = options.endpoints.iter().map(|address| endpoint(address, options));
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            credentials: options.credentials.clone(),
            state: Mutex::new(State { next: 0, line: None, failed: None }),
            current: watch::Sender::new(0),
            cluster: AtomicU64::new(0),
        })
    }

    /// From now on only this cluster may answer.
    pub(super) fn expect_cluster(&self, cluster: u64) {
        self.cluster.store(cluster, Ordering::Release);
    }

    /// Tells of the connection that is to be used.
    pub(super) fn current(&self) -> watch::Receiver<u64> {
        self.current.subscribe()
    }

    /// The connection in use, else one to the next member that takes it. Of many who ask at once one searches, and what comes
    /// of it is the answer to all.
    pub(super) async fn line(&self) -> Result<Line, EtcdTrouble> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(line) = &state.line {
            return Ok(line.clone());
        }
        if let Some((_, trouble)) = state.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(trouble.clone());
        }
        match self.search(state.next).await {
            Ok((at, line)) => {
                state.next = at;
                state.line = Some(line.clone());
                self.current.send_replace(line.number);
                Ok(line)
            }
            Err(trouble) => {
                state.failed = Some((Instant::now(), trouble.clone()));
                Err(trouble)
            }
        }
    }

    /// The first connection that is made, trying the endpoint `next` and then those after it; and at which endpoint. A member
    /// that is slow to answer has the one after it tried beside it: packets that are dropped cost no more time than one takes.
    async fn search(&self, next: usize) -> Result<(usize, Line), EtcdTrouble> {
        let mut left = (0..self.endpoints.len()).map(|step| (next + step) % self.endpoints.len());
        let mut tried = FuturesUnordered::new();
        let mut trouble = self.unreachable(&"there is no endpoint");
        loop {
            if let Some(at) = left.next() {
                tried.push(async move { (at, self.connect(&self.endpoints[at]).await) });
            }
            let patience = if left.len() > 0 { NEXT_AFTER } else { Duration::MAX };
            match timeout(patience, tried.next()).await {
                Ok(Some((at, Ok(line)))) => return Ok((at, line)),
                Ok(Some((_, Err(found)))) if found.may_pass() => trouble = found,
                Ok(Some((_, Err(found)))) => return Err(found),
                Ok(None) => return Err(trouble),
                Err(_elapsed) => {}
            }
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Line, EtcdTrouble> {
        let connected = timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
        let channel = match connected {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(self.unreachable(&causes(&error))),
            Err(_elapsed) => return Err(self.unreachable(&"no connection in time")),
        };
        let number = *self.current.borrow() + 1;
        let mut line = Line { channel, token: None, number };
        line.token = self.authenticate(&line).await?;
        Ok(line)
    }

    async fn authenticate(&self, line: &Line) -> Result<Option<MetadataValue<Ascii>>, EtcdTrouble> {
        let Some(EtcdCredentials { user, password }) = &self.credentials else { return Ok(None) };
        let request = AuthenticateRequest { name: user.clone(), password: password.clone() };
        let asked = line.unary::<_, AuthenticateResponse>(AUTHENTICATE, request);
        let answered =
            timeout(ATTEMPT_TIMEOUT, asked).await.map_err(|_elapsed| EtcdTrouble::TooSlow(ATTEMPT_TIMEOUT))?;
        match answered {
            Ok(answer) => {
                let token = answer.token.parse().map_err(|_| EtcdTrouble::Malformed("a token".to_owned()))?;
                Ok(Some(token))
            }
            Err(status) if status.message().contains("authentication is not enabled") => {
                tracing::warn!("etcd asks nobody for a password; the user that was given is of no effect");
                Ok(None)
            }
            Err(status) => Err(judge(&status, Some(user)).trouble),
        }
    }

    /// Has everyone use another connection than this one.
    pub(super) async fn leave(&self, line: &Line) {
        let mut state = self.state.lock().await;
        if state.line.as_ref().is_some_and(|current| current.number == line.number) {
            state.line = None;
            state.next += 1;
            // Whoever holds a stream over it need not wait until it breaks.
            self.current.send_modify(|current| *current += 1);
        }
    }

    /// Asks for something that only reads.
    pub(super) async fn read<Q: Message + Clone + 'static, A: Answer>(
        &self,
        method: &'static str,
        request: Q,
    ) -> Result<A, EtcdTrouble> {
        self.call(method, request, true).await.map_err(|failed| failed.trouble)
    }

    /// Asks for something that writes.
    pub(super) async fn write<Q: Message + Clone + 'static, A: Answer>(
        &self,
        method: &'static str,
        request: Q,
    ) -> Result<A, Failed> {
        self.call(method, request, false).await
    }

    async fn call<Q: Message + Clone + 'static, A: Answer>(
        &self,
        method: &'static str,
        request: Q,
        only_reads: bool,
    ) -> Result<A, Failed> {
        let begun = Instant::now();
        loop {
            let judged = match self.attempt(method, request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(judged) => judged,
            };
            let passes = judged.trouble.may_pass() || (judged.token_is_stale && self.credentials.is_some());
            let is_harmless = judged.is_refusal || only_reads;
            if !passes || !is_harmless || begun.elapsed() + PAUSE > PATIENCE {
                return Err(Failed { trouble: judged.trouble, is_refusal: judged.is_refusal });
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt<Q: Message + 'static, A: Answer>(&self, method: &'static str, request: Q) -> Result<A, Judged> {
        let line = self.line().await.map_err(Judged::refusal)?;
        let judged = match timeout(ATTEMPT_TIMEOUT, line.unary::<Q, A>(method, request)).await {
            Ok(Ok(answer)) => match self.foreign(answer.header().cluster_id) {
                None => return Ok(answer),
                Some(trouble) => Judged::foreign(trouble),
            },
            Ok(Err(status)) => judge(&status, self.user()),
            Err(_elapsed) => Judged::silence(ATTEMPT_TIMEOUT),
        };
        if judged.leaves_member || judged.token_is_stale {
            self.leave(&line).await;
        }
        Err(judged)
    }

    /// The release of the member in use.
    pub(super) async fn version(&self) -> Result<String, EtcdTrouble> {
        Ok(self.read::<_, StatusResponse>(STATUS, StatusRequest {}).await?.version)
    }

    /// What each member says of itself, asked at once over connections of their own, in the order of the endpoints.
    pub(super) async fn statuses(&self) -> Vec<(String, Result<StatusResponse, EtcdTrouble>)> {
        let ask = async |endpoint: &Endpoint| {
            let channel = endpoint.connect().await.map_err(|error| Status::unavailable(causes(&error)))?;
            Line { channel, token: None, number: 0 }.unary::<_, StatusResponse>(STATUS, StatusRequest {}).await
        };
        let each = self.endpoints.iter().map(async |endpoint| {
            let said = match timeout(CONNECT_TIMEOUT, ask(endpoint)).await {
                Ok(Ok(answer)) => self.foreign(answer.header().cluster_id).map_or(Ok(answer), Err),
                Ok(Err(status)) => Err(judge(&status, None).trouble),
                Err(_elapsed) => Err(EtcdTrouble::TooSlow(CONNECT_TIMEOUT)),
            };
            (endpoint.uri().authority().map(ToString::to_string).unwrap_or_default(), said)
        });
        futures::future::join_all(each).await
    }

    /// Opens a stream of watches over a connection.
    pub(super) async fn watch(
        &self,
        line: &Line,
        asks: tokio::sync::mpsc::Receiver<WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, EtcdTrouble> {
        let asks = futures::stream::unfold(asks, |mut asks| async move { Some((asks.recv().await?, asks)) });
        let mut client = line.client();
        let opened = async {
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            client.streaming(line.with_metadata(asks), PathAndQuery::from_static(WATCH), codec).await
        };
        match timeout(ATTEMPT_TIMEOUT, opened).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(judge(&status, self.user()).trouble),
            Err(_elapsed) => Err(EtcdTrouble::TooSlow(ATTEMPT_TIMEOUT)),
        }
    }

    /// Asks once, over the connection in use, that a lease be kept.
    pub(super) async fn keep_alive(
        &self,
        request: LeaseKeepAliveRequest,
        within: Duration,
    ) -> Result<LeaseKeepAliveResponse, EtcdTrouble> {
        let line = self.line().await?;
        let asked = async {
            let mut client = line.client();
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<LeaseKeepAliveRequest, LeaseKeepAliveResponse>::default();
            // etcd answers each question of a stream; one that ends after the first is answered all the same.
            let asks = line.with_metadata(futures::stream::iter([request]));
            let answers = client.streaming(asks, PathAndQuery::from_static(KEEP_ALIVE), codec).await?;
            answers.into_inner().message().await
        };
        let trouble = match timeout(within, asked).await {
            Ok(Ok(Some(answer))) => return Ok(answer),
            Ok(Ok(None)) => EtcdTrouble::Malformed("a lease's keeping without an answer".to_owned()),
            Ok(Err(status)) => judge(&status, self.user()).trouble,
            Err(_elapsed) => EtcdTrouble::TooSlow(within),
        };
        self.leave(&line).await;
        Err(trouble)
    }

    /// What is wrong with an answer of that cluster, if anything is.
    pub(super) fn foreign(&self, found: u64) -> Option<EtcdTrouble> {
        let expected = self.cluster.load(Ordering::Acquire);
        (expected != 0 && found != expected).then_some(EtcdTrouble::OtherCluster { found, expected })
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.credentials.as_ref().map(|credentials| credentials.user.as_str())
    }

    fn unreachable(&self, reason: &dyn std::fmt::Display) -> EtcdTrouble {
        let endpoints: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.uri().to_string()).collect();
        EtcdTrouble::Unreachable { endpoints: endpoints.join(", "), reason: reason.to_string() }
    }
}

impl Line {
    fn client(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn with_metadata<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        // A member that knows of no leader says so at once, in place of waiting for one.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }

    async fn unary<Q: Message + 'static, A: Answer>(&self, method: &'static str, message: Q) -> Result<A, Status> {
        let mut client = self.client();
        client.ready().await.map_err(|error| Status::unavailable(causes(&error)))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = client.unary(self.with_metadata(message), PathAndQuery::from_static(method), codec).await?;
        Ok(answer.into_inner())
    }
}

fn endpoint(address: &str, options: &EtcdOptions) -> Result<Endpoint, EtcdTrouble> {
    let unusable = |error: tonic::transport::Error| EtcdTrouble::Unreachable {
        endpoints: address.to_owned(),
        reason: causes(&error),
    };
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(unusable)?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let Some(tls) = &options.tls else { return Ok(endpoint) };
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca_pem));
    let config = match &tls.identity {
        Some(identity) => config.identity(Identity::from_pem(&identity.certificate_pem, &identity.key_pem)),
        None => config,
    };
    endpoint.tls_config(config).map_err(unusable)
}

/// An error with what lies beneath it: the transport's own text says only that it is one.
fn causes(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source()).map(ToString::to_string);
    sources.last().unwrap_or_else(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use futures::future::join_all;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A member to which packets are lost: its queue of connections is full, and nobody empties it.
    struct Lost {
        _listener: TcpListener,
        _queued: Vec<TcpStream>,
        address: SocketAddr,
    }

    impl Lost {
        fn new() -> Self {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
            let listener = socket.listen(1).expect("listens");
            let address = listener.local_addr().expect("an address");
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok();
            let queued = std::iter::from_fn(connect).take(64).collect::<Vec<_>>();
            assert!(queued.len() < 64, "the queue has an end");
            Self { _listener: listener, _queued: queued, address }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_ask_none_waits_longer_for_being_refused_than_the_first() {
        let members: Vec<_> = (0..3).map(|_| Lost::new()).collect();
        let options = EtcdOptions::new(members.iter().map(|member| member.address.to_string()).collect());
        let connections = Connections::new(&options).expect("good addresses");
        let asked = Instant::now();
        let all = join_all((0..50).map(|_| connections.version())).await;
        assert!(all.iter().all(|one| matches!(one, Err(EtcdTrouble::Unreachable { .. }))), "{all:?}");
        let longest = PATIENCE + CONNECT_TIMEOUT + 3 * NEXT_AFTER;
        assert!(asked.elapsed() <= longest, "{:?}", asked.elapsed());
    }
}
