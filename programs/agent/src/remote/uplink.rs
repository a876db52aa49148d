//! The connection to a server: kept up, and torn down by the loop in here; used by everyone who has something to ask.
//!
//! After a loss it is tried again at once, with a little jitter, and then with pauses that double up to a ceiling; the
//! server decides by its admission how fast a fleet comes back, not the agents' fear.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use starling_attach::ReplicaError;
use starling_attach::message::{Hello, ServerSays, Through, Welcome};
use starling_model::{Change, InstanceId, NodeName, Revision, ServiceName};
use starling_rpc::{AgentSender, CallError, ConnectError, LeafRequest, ServerClient, ServerFrames};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::link::{AliasView, IssuedLeaf, LinkError, OwnRecords, ServerLink};
use crate::remote::mirror::Mirror;

/// Time for a connection, its handshake included; and for a stream on it to be opened.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The first pause is random up to this, so that a fleet does not come as one (DESIGN §6).
const JITTER: Duration = Duration::from_millis(100);

/// The pause after the first failure in a row, doubled after each, and its ceiling.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A stream that has told everything and then lived this long was a good one: the next is tried at once. One that the server
/// ends sooner, because it turns this agent away or another of the same name takes its place, counts as a failure.
const GOOD_AFTER: Duration = Duration::from_secs(5);

/// Between two sweeps of what nobody wants any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Leaves asked for in one call.
const LEAVES_PER_CALL_MAX: usize = 256;

/// How a connection is made.
#[derive(Clone)]
pub struct UplinkConfig {
    /// The servers, host and port, tried in turn.
    pub servers: Vec<String>,
    /// The node, as its certificate says.
    pub node: NodeName,
    /// The TLS configuration of the moment: it changes when the agent's certificate is renewed.
    pub tls: watch::Receiver<Arc<rustls::ClientConfig>>,
}

/// The connection of the moment.
pub struct Uplink {
    client: watch::Sender<Option<ServerClient>>,
    /// Counts connections.
    connections: AtomicU64,
    /// The one over which this node was last compared with the catalog.
    compared_over: AtomicU64,
    wanted: Mutex<Wanted>,
}

/// Leaves that wait for the call that is under way to end; they go together in the next.
#[derive(Default)]
struct Wanted {
    leaves: Vec<(LeafRequest, oneshot::Sender<Result<IssuedLeaf, LinkError>>)>,
    calling: bool,
}

impl Uplink {
    /// No connection yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            client: watch::Sender::new(None),
            connections: AtomicU64::new(0),
            compared_over: AtomicU64::new(0),
            wanted: Mutex::default(),
        })
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.client.borrow().is_some()
    }

    /// Has the agent's own certificate signed anew.
    pub(crate) async fn renew(&self, csr_der: Vec<u8>) -> Result<IssuedLeaf, LinkError> {
        self.client()?.renew(csr_der).await.map_err(LinkError::from)
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn client(&self) -> Result<ServerClient, LinkError> {
        let client = self.client.borrow().clone();
        client.ok_or_else(|| LinkError::Unavailable("no server is reached".to_owned()))
    }

    fn lock_wanted(&self) -> std::sync::MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for everything that is wanted, call after call, until nothing is.
    async fn call_for_leaves(self: Arc<Self>) {
        loop {
            let batch: Vec<_> = {
                let mut wanted = self.lock_wanted();
                let some = wanted.leaves.len().min(LEAVES_PER_CALL_MAX);
                wanted.calling = some > 0;
                wanted.leaves.drain(..some).collect()
            };
            if batch.is_empty() {
                return;
            }
            let (requests, waiting): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let answers = match self.client() {
                Ok(client) => client.issue_leaves(requests).await.map_err(LinkError::from),
                Err(error) => Err(error),
            };
            match answers {
                Ok(answers) => {
                    for (waiter, answer) in waiting.into_iter().zip(answers) {
                        // Nobody waits if asking was given up.
                        let _ = waiter.send(answer.map_err(LinkError::from));
                    }
                }
                Err(error) => {
                    for waiter in waiting {
                        let _ = waiter.send(Err(error.clone()));
                    }
                }
            }
        }
    }
}

/// The agent's way to whichever server it is connected to.
pub struct RemoteLink(pub Arc<Uplink>);

#[async_trait]
impl ServerLink for RemoteLink {
    async fn commit(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        self.0.client()?.commit(changes).await.map_err(LinkError::from)
    }

    async fn own_records(&self, since: Option<Revision>) -> Result<OwnRecords, LinkError> {
        let (client, connection) = (self.0.client()?, self.0.connections());
        // Another server, or the same after its end, may have lived another past.
        let since = since.filter(|_| self.0.compared_over.load(Ordering::Relaxed) == connection);
        let records = client.own_records(since).await?;
        self.0.compared_over.store(connection, Ordering::Relaxed);
        Ok(records)
    }

    async fn issue_leaf(&self, service: &ServiceName, csr_der: Vec<u8>) -> Result<IssuedLeaf, LinkError> {
        let (sender, receiver) = oneshot::channel();
        let begin = {
            let mut wanted = self.0.lock_wanted();
            wanted.leaves.push((LeafRequest { service: service.clone(), csr_der }, sender));
            !std::mem::replace(&mut wanted.calling, true)
        };
        if begin {
            tokio::spawn(Arc::clone(&self.0).call_for_leaves());
        }
        receiver.await.unwrap_or_else(|_| Err(LinkError::Unavailable("the call was given up".to_owned())))
    }

    fn follow_checks(&self, node: &NodeName, service: Option<&InstanceId>) -> BoxStream<'static, AliasView> {
        let Ok(client) = self.0.client() else { return stream::empty().boxed() };
        let views = client.follow_checks(node, service);
        views.map(|view| AliasView { exists: view.exists, checks: view.checks }).boxed()
    }
}

/// Why there is no connection, with all that is known of the reason.
fn unreached(error: ConnectError) -> CallError {
    CallError::unavailable(format!("{:#}", anyhow::Error::from(error)))
}

/// What everyone else is told of the stream.
pub trait Listener: Send + Sync + 'static {
    /// The stream is open, and this is the mesh.
    fn welcomed(&self, welcome: &Welcome);

    /// Everything up to now has been heard; `touched` changed, and is not yet in force. Returns before the server is told.
    fn heard(&self, touched: &std::collections::BTreeSet<starling_catalog::Subject>);
}

/// Keeps the connection up until dropped.
pub async fn run(config: UplinkConfig, uplink: Arc<Uplink>, mirror: Arc<Mirror>, listener: Arc<dyn Listener>) {
    let mut retries = Retries::default();
    for attempt in 0_usize.. {
        let server = &*config.servers[attempt % config.servers.len()];
        let mut heard_at = None;
        let ended = stay(&config, server, &uplink, &mirror, &*listener, &mut heard_at).await;
        uplink.client.send_replace(None);
        let pause = retries.after(heard_at.map(|at| at.elapsed()));
        match &ended {
            Ended::Anew(reason) => {
                tracing::warn!(server, reason, "the server has not what this agent heard; it begins anew");
                mirror.begin_anew();
            }
            Ended::Lost(reason) if heard_at.is_some() => tracing::info!(server, reason, "the stream ended"),
            Ended::Lost(reason) => tracing::debug!(server, reason, ?pause, "no server is reached"),
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0) + JITTER.mul_f64(fastrand::f64())).await;
    }
}

/// How often in a row there was no good stream.
#[derive(Default)]
struct Retries {
    failures: u32,
}

impl Retries {
    /// How long to wait, jitter apart, after a stream that lived for `heard` from when it had told everything; `None` if it
    /// never did.
    fn after(&mut self, heard: Option<Duration>) -> Duration {
        if heard.is_some_and(|heard| heard >= GOOD_AFTER) {
            self.failures = 0;
        }
        let pause = match self.failures {
            0 => Duration::ZERO,
            some => RETRY_FIRST.saturating_mul(1 << (some - 1).min(8)).min(RETRY_MAX),
        };
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

/// How a stream ended.
enum Ended {
    Lost(String),
    Anew(String),
}

impl From<CallError> for Ended {
    fn from(error: CallError) -> Self {
        match error {
            CallError::BeginAnew { reason } => Self::Anew(reason),
            CallError::Refused { reason }
            | CallError::Unavailable { reason }
            | CallError::Overloaded { reason, .. } => Self::Lost(reason),
        }
    }
}

impl From<ReplicaError> for Ended {
    fn from(error: ReplicaError) -> Self {
        match error {
            ReplicaError::Back { .. } => Self::Anew(error.to_string()),
            // What is there is good; what could not be read is sent again.
            ReplicaError::Message(_) => Self::Lost(error.to_string()),
        }
    }
}

/// One connection, from its opening to its end; `heard_at` is when everything had been told for the first time.
async fn stay(
    config: &UplinkConfig,
    server: &str,
    uplink: &Uplink,
    mirror: &Mirror,
    listener: &dyn Listener,
    heard_at: &mut Option<Instant>,
) -> Ended {
    let opened = open(config, server, uplink, mirror).await;
    let (sender, mut frames) = match opened {
        Ok(opened) => opened,
        Err(error) => return error.into(),
    };
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0));
    sweeps.tick().await;
    let mut report_at = None;
    let mut report = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        let told = tokio::select! {
            frame = frames.next() => match frame {
                Some(Ok(says)) => {
                    if matches!(says, ServerSays::Through(_)) {
                        heard_at.get_or_insert_with(Instant::now);
                    }
                    hear(&says, mirror, listener)
                }
                Some(Err(error)) => return error.into(),
                None => return Ended::Lost("the server ended the stream".to_owned()),
            },
            () = mirror.outgoing() => Ok(()),
            () = &mut report, if report_at.is_some() => Ok(()),
            _ = sweeps.tick() => {
                mirror.sweep();
                Ok(())
            }
        };
        if let Err(error) = told {
            return error.into();
        }
        let outgoing = mirror.take_outgoing(Instant::now());
        for says in outgoing.says {
            if let Err(error) = sender.send(says) {
                return error.into();
            }
        }
        if let Some(at) = outgoing.next.filter(|at| report_at != Some(*at)) {
            report.as_mut().reset(at);
        }
        report_at = outgoing.next;
    }
}

async fn open(
    config: &UplinkConfig,
    server: &str,
    uplink: &Uplink,
    mirror: &Mirror,
) -> Result<(AgentSender, ServerFrames), CallError> {
    let tls = Arc::clone(&config.tls.borrow());
    let client = ServerClient::connect(server, tls, CONNECT_TIMEOUT).await.map_err(unreached)?;
    let hello = Hello { node: config.node.to_string(), version: env!("CARGO_PKG_VERSION").to_owned() };
    // Until frames come nobody listens for silence.
    let attached = tokio::time::timeout(CONNECT_TIMEOUT, client.attach(hello)).await;
    let (sender, frames) = attached.map_err(|_| CallError::unavailable("the server does not open the stream"))??;
    sender.send(mirror.resume())?;
    uplink.connections.fetch_add(1, Ordering::Relaxed);
    uplink.client.send_replace(Some(client));
    Ok((sender, frames))
}

fn hear(says: &ServerSays, mirror: &Mirror, listener: &dyn Listener) -> Result<(), ReplicaError> {
    if let ServerSays::Welcome(welcome) = says {
        listener.welcomed(welcome);
    }
    if let Some(touched) = mirror.handle(says)? {
        listener.heard(&touched);
    }
    if let ServerSays::Through(Through { report_within_ms: within @ 1.., .. }) = says {
        let within = Duration::from_millis(u64::from(*within));
        let now = Instant::now();
        mirror.hold_report(now, now + within.mul_f64(0.5 + fastrand::f64() / 2.0));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
