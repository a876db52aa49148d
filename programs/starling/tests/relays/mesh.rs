//! A server, relays before it, and agents that have no more than what they ask.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use starling_identity::Identity;
use starling_model::{Change, Node, NodeName, Record};
use starling_relay::{RelayConfig, RelayNode};
use starling_rpc::{CONNECTIONS_MAX, Doors, ServerClient};
use starling_server::{Door, Server, ServerConfig};
use starling_telemetry::Registry;
use starling_tls::{CredentialSlot, Credentials, LeafKey, TrustRoots, agent_client_config, agent_server_config};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Longer than anything here takes; reached only when a test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Tries until it holds.
pub(crate) async fn eventually<T>(what: &str, mut holds: impl AsyncFnMut() -> anyhow::Result<T>) -> T {
    let until = tokio::time::Instant::now() + DEADLINE;
    loop {
        match holds().await {
            Ok(held) => return held,
            Err(error) if tokio::time::Instant::now() > until => panic!("{what}: not in time: {error:#}"),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = starling_rpc::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

/// Serves until it is dropped.
fn serve(listener: TcpListener, tls: Arc<rustls::ServerConfig>, doors: Doors) -> JoinSet<()> {
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let served = starling_rpc::serve_tls(listener, tls, doors, CONNECTIONS_MAX, std::future::pending());
        served.await.expect("it serves");
    });
    serving
}

/// A server that agents and relays find.
pub(crate) struct Mesh {
    pub(crate) server: Arc<Server>,
    address: SocketAddr,
    _serving: JoinSet<()>,
    _directory: tempfile::TempDir,
}

impl Mesh {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let key = LeafKey::generate().expect("a key");
        let own = server.issue_server(key.csr_der().expect("a request"), &[Ipv4Addr::LOCALHOST.into()]).await;
        let own = Credentials::new(&own.expect("a certificate").chain_pem, &key).expect("it fits");
        let roots = TrustRoots::new([&server.root()]).expect("a root");
        let tls = Arc::new(agent_server_config(CredentialSlot::new(own), &roots).expect("a configuration"));
        let (listener, address) = listener();
        let door = Arc::new(Door::new(Arc::clone(&server), true, None));
        let serving = serve(listener, tls, Doors { agents: Some(door), ..Doors::default() });
        Self { server, address, _serving: serving, _directory: directory }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// A relay that is attached at `above`.
    pub(crate) async fn relay(&self, name: &str, above: &str) -> Relay {
        let (token, _) = self
            .server
            .create_join_token(starling_catalog::NewJoinToken {
                for_relays: true,
                reusable: true,
                ..starling_catalog::NewJoinToken::default()
            })
            .await
            .expect("a token");
        let data = tempfile::tempdir().expect("a directory");
        let forward_s = Arc::new(AtomicU64::new(0));
        let (clock, forward) = (starling_agent::system_clock(), Arc::clone(&forward_s));
        let config = RelayConfig {
            name: name.parse().expect("a name"),
            servers: vec![above.to_owned()],
            join_token: Some(token.expose().to_string()),
            data_dir: data.path().to_owned(),
            clock: Arc::new(move || clock().plus(forward.load(Ordering::Relaxed))),
        };
        let registry = Registry::default();
        let node = RelayNode::start(config, &registry).await.expect("it is let in");
        tokio::time::timeout(DEADLINE, node.attached()).await.expect("it is attached");
        let (listener, address) = listener();
        let serving = serve(listener, Arc::clone(&node.tls), node.doors.clone());
        Relay { address: address.to_string(), _node: node, registry, forward_s, data, _serving: serving }
    }
}

/// A relay in this process.
pub(crate) struct Relay {
    pub(crate) address: String,
    _node: RelayNode,
    registry: Registry,
    forward_s: Arc<AtomicU64>,
    data: tempfile::TempDir,
    _serving: JoinSet<()>,
}

impl Relay {
    pub(crate) fn data_dir(&self) -> &Path {
        self.data.path()
    }

    /// What it counts.
    pub(crate) fn metrics(&self) -> String {
        self.registry.encode()
    }

    /// Its clock is so much before everybody else's.
    pub(crate) fn set_clock_forward(&self, by: Duration) {
        self.forward_s.store(by.as_secs(), Ordering::Relaxed);
    }
}

/// A node's connection to a relay.
pub(crate) struct Agent {
    pub(crate) node: NodeName,
    pub(crate) client: ServerClient,
}

impl Agent {
    pub(crate) async fn behind(mesh: &Mesh, relay: &str, node: &str) -> Self {
        let node: NodeName = node.parse().expect("a name");
        let key = LeafKey::generate().expect("a key");
        let leaf = mesh.server.issue_agent(&node, key.csr_der().expect("a request")).await;
        let credentials = Credentials::new(&leaf.expect("a certificate").chain_pem, &key).expect("it fits");
        let roots = TrustRoots::new([&mesh.server.root()]).expect("a root");
        let datacenter = "dc1".parse().expect("a name");
        let server = Identity::Server { trust_domain: roots.trust_domain().clone(), datacenter };
        let tls = Arc::new(agent_client_config(credentials, &roots, server).expect("a configuration"));
        let client = ServerClient::connect(relay, tls, DEADLINE).await.expect("a connection");
        Self { node, client }
    }

    /// The node, as it registers itself.
    pub(crate) fn record(&self) -> Change {
        Change::Put(Record::Node(Node {
            name: self.node.clone(),
            id: String::new(),
            address: "10.0.0.1".to_owned(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
        }))
    }

    /// Registers the node, as often as it is asked to come again.
    pub(crate) async fn commits(&self) {
        eventually("the write is answered", async || {
            let answered = tokio::time::timeout(DEADLINE, self.client.commit(vec![self.record()])).await;
            Ok(answered.unwrap_or_else(|_| panic!("no answer to {} in {DEADLINE:?}", self.node))?)
        })
        .await;
    }
}
