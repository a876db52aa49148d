//! The connections to servers, and what everyone who has something to ask sees of them: the one of the moment.
//!
//! One, the primary, is the server to which the node is attached: it is told what is in force, and answers calls. Where
//! another server is known a standby stream to it is open besides, which says the same; when the primary is lost, it is
//! promoted at once (`keeper`). What is under way on a lost connection fails, and is asked again by whoever asked.
//!
//! After a loss with nothing in reserve it is tried again at once, with a little jitter, and then with pauses that double
//! up to a ceiling; the server decides by its admission how fast a fleet comes back, not the agents' fear.

mod ended;
mod figures;
mod keeper;
mod line;
mod retries;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use starling_attach::message::Welcome;
use starling_model::{Change, InstanceId, NodeName, Revision, ServiceName};
use starling_rpc::{LeafRequest, ServerClient};
use tokio::sync::{oneshot, watch};

use crate::link::{AliasView, IssuedLeaf, LinkError, OwnRecords, ServerLink};
use crate::remote::servers::Servers;

pub use ended::Ended;
pub use figures::{Figures, GAP_BUCKETS_S};
pub use keeper::run;
pub use retries::{Attempts, CutOff};

/// Time for a connection, its handshake included; and for a stream on it to be opened.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Leaves asked for in one call.
const LEAVES_PER_CALL_MAX: usize = 256;

/// How a connection is made.
#[derive(Clone)]
pub struct UplinkConfig {
    /// The servers.
    pub servers: Arc<Servers>,
    /// Whether a second stream is kept in reserve where there are several servers.
    pub standby: bool,
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
    figures: Mutex<Figures>,
    /// Whether the node leaves the mesh: no stream takes the place of one that ends.
    leaving: watch::Sender<bool>,
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
            figures: Mutex::default(),
            leaving: watch::Sender::new(false),
        })
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.client.borrow().is_some()
    }

    /// Returns once there is one.
    pub(crate) async fn until_up(&self) {
        // This is the sender, so the channel is not closed.
        let _ = self.client.subscribe().wait_for(Option::is_some).await;
    }

    /// What has happened to the streams so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.count(|figures| figures.clone())
    }

    fn count<T>(&self, count: impl FnOnce(&mut Figures) -> T) -> T {
        // A panic while holding the lock leaves plain numbers.
        count(&mut self.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls go over this connection from now on.
    fn goes_over(&self, client: Option<ServerClient>) {
        if client.is_some() {
            self.connections.fetch_add(1, Ordering::Relaxed);
        }
        self.client.send_replace(client);
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

    async fn leave(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        let client = self.0.client()?;
        // Before it is said: a server ends the stream then, and one that was opened anew would bring the node back.
        self.0.leaving.send_replace(true);
        let left = client.commit(changes).await.map_err(LinkError::from);
        // It is said again, perhaps over another line.
        self.0.leaving.send_replace(left.is_ok());
        left
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
        let until_error = client.follow_checks(node, service).scan((), |(), view| {
            let view =
                view.inspect_err(|error| tracing::info!(%error, "checks of another node are no longer followed"));
            std::future::ready(view.ok().map(|view| AliasView { exists: view.exists, checks: view.checks }))
        });
        until_error.boxed()
    }
}

/// What everyone else is told of the streams.
pub trait Listener: Send + Sync + 'static {
    /// A stream is open, and this is the mesh.
    fn welcomed(&self, welcome: &Welcome);

    /// Everything up to now has been heard; `touched` changed, and is not yet in force. Returns before a server is told.
    fn heard(&self, touched: &std::collections::BTreeSet<starling_catalog::Subject>);
}

#[cfg(test)]
mod tests;
