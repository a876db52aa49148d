//! One relay, put together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use starling_agent::WallClock;
use starling_agent::remote::Passage;
use starling_agent::remote::servers::Servers;
use starling_model::{NodeName, Revision};
use starling_rpc::{AgentDoor, Doors};
use starling_telemetry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::door::{API_CONNECTIONS, Door, api};
use crate::identity::{self, Renewal, Shown};
use crate::streams::Streams;
use crate::upstream::{self, Contact, Upstream};

/// Between two looks at who is still attached while the relay leaves.
const LEAVING_LOOK: Duration = Duration::from_millis(50);

/// Agents that know no other relay stay; when none has left for so long, no more will.
const LEAVING_REST: Duration = Duration::from_secs(3);

/// How a relay is set up.
pub struct RelayConfig {
    /// What it is called.
    pub name: NodeName,
    /// Servers or relays above, host and port: those by which it finds the mesh.
    pub servers: Vec<String>,
    /// What lets it in when it has no certificate yet.
    pub join_token: Option<String>,
    /// Where it keeps its certificate.
    pub data_dir: PathBuf,
    /// What time it is.
    pub clock: WallClock,
}

/// A running relay; it ends when dropped.
pub struct RelayNode {
    /// What it serves.
    pub doors: Doors,
    /// What it shows, and whom it trusts.
    pub tls: Arc<rustls::ServerConfig>,
    streams: Arc<Streams>,
    contact: watch::Receiver<Contact>,
    _tasks: JoinSet<()>,
}

impl RelayNode {
    /// Joins if need be, and begins to listen to servers.
    ///
    /// # Errors
    /// When the relay is not let in, or what it keeps on disk cannot be used.
    pub async fn start(config: RelayConfig, registry: &Registry) -> anyhow::Result<Self> {
        let RelayConfig { name, servers, join_token, data_dir, clock } = config;
        let identity = identity::load(&data_dir, &name, &servers, join_token.as_deref(), clock()).await?;
        let tls = watch::Sender::new(identity::client(&identity)?);
        let shown = Shown::new(&identity)?;
        let served = Arc::clone(&shown.config);
        let streams = Streams::new(name.clone(), registry);
        let contact = watch::Sender::new(Contact { lost_at: Some(Instant::now()), ..Contact::default() });
        let (contacts, servers) = (contact.subscribe(), Arc::new(Servers::new(name.clone(), servers)));
        let ways = (0..API_CONNECTIONS).map(|_| Passage::new(Arc::clone(&servers), tls.subscribe())).collect();
        let mut tasks = JoinSet::new();
        let metrics = upstream::Metrics::new(registry);
        let upstream =
            Upstream { name, servers, tls: tls.subscribe(), streams: Arc::clone(&streams), contact, metrics };
        tasks.spawn(upstream::run(upstream));
        let (followed, contact) = (Arc::clone(&streams), contacts.clone());
        let renewal = Renewal { data_dir, streams: followed, contact, tls, shown, clock };
        tasks.spawn(renewal.run(identity));
        let door = Door { streams: Arc::clone(&streams), contact: contacts.clone() };
        let doors = Doors { proxies: None, agents: Some(Arc::new(door) as Arc<dyn AgentDoor>), api: Some(api(ways)) };
        Ok(Self { doors, tls: served, streams, contact: contacts, _tasks: tasks })
    }

    /// Returns once a server has told everything for the first time.
    pub async fn attached(&self) {
        let mut contact = self.contact.clone();
        // The sender lives as long as the task that is kept here.
        let _ = contact.wait_for(|contact| contact.has_heard).await;
    }

    /// The server to which the relay is attached; `None` while none is reached.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        let contact = self.contact.borrow();
        contact.has_heard.then(|| contact.address.clone())
    }

    /// For how long no server has been reached; zero while one is.
    #[must_use]
    pub fn away_for(&self) -> Duration {
        self.contact.borrow().lost_at.map(|at| at.elapsed()).unwrap_or_default()
    }

    /// Everything has been heard up to here.
    #[must_use]
    pub fn heard_through(&self) -> Revision {
        self.streams.revision()
    }

    /// Streams that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.streams.open()
    }

    /// Tells everyone that this relay is leaving, and returns when they are gone, when those that are left stay, or when the time
    /// is over.
    pub async fn leave(&self, within: Duration) {
        self.streams.leave();
        let until = Instant::now() + within;
        let (mut open, mut since) = (self.streams.open(), Instant::now());
        tracing::info!(open, "leaving");
        while open > 0 && Instant::now() < until && since.elapsed() < LEAVING_REST {
            tokio::time::sleep(LEAVING_LOOK).await;
            let left = self.streams.open();
            if left != open {
                (open, since) = (left, Instant::now());
            }
        }
        tracing::info!(open, "left");
    }
}
