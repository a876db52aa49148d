//! A mesh of agents to test with: a CA, a door that remembers what it was asked, and a server in front of it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use futures::task::AtomicWaker;
use http_body_util::{BodyExt, Full};
use rustls::ClientConfig;
use starling_attach::FromServer;
use starling_attach::message::{AgentSays, Hello, ServerSays, Whole, WireItem};
use starling_identity::{Identity, IssuanceRules, Layout, SpiffeId};
use starling_model::{Change, InstanceId, NodeName, Revision, TrustDomain, UnixSeconds};
use starling_rpc::{
    AgentDoor, AgentStream, AliasView, Api, CONNECTIONS_MAX, CallError, Credential, Doors, JoinAnswer, JoinRequest,
    LeafRequest, OwnRecords, ServeError, ServerClient,
};
use starling_tls::{
    CertificateAuthority, CredentialSlot, Credentials, IssuedLeaf, LeafKey, TrustRoots, agent_client_config,
    agent_server_config, client_config, join_client_config,
};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

pub const DEADLINE: Duration = Duration::from_secs(30);

pub fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs())
}

/// A CA in a temporary folder.
pub struct Mesh {
    _folder: tempfile::TempDir,
    pub authority: CertificateAuthority,
}

impl Mesh {
    pub fn new() -> Self {
        Self::made_at(now())
    }

    /// One whose root is valid from then on.
    pub fn made_at(at: UnixSeconds) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::create(folder.path(), &Self::trust_domain(), at).unwrap();
        Self { _folder: folder, authority }
    }

    fn trust_domain() -> TrustDomain {
        "11111111-2222-3333-4444-555555555555.consul".parse().unwrap()
    }

    fn roots(&self) -> TrustRoots {
        TrustRoots::new([self.authority.root()]).unwrap()
    }

    pub fn server_identity() -> Identity {
        Identity::Server { trust_domain: Self::trust_domain(), datacenter: "dc1".parse().unwrap() }
    }

    pub fn server_credentials(&self) -> Credentials {
        let (key, addresses) = (LeafKey::generate().unwrap(), [Ipv4Addr::LOCALHOST.into()]);
        let request = key.csr_der().unwrap();
        let rules = IssuanceRules::default();
        let issued = self.authority.issue_server(&request, &"dc1".parse().unwrap(), &addresses, &rules, now());
        Credentials::new(&issued.unwrap().chain_pem, &key).unwrap()
    }

    pub fn issue_agent(&self, csr_der: &[u8], node: &NodeName) -> IssuedLeaf {
        let dc = "dc1".parse().unwrap();
        self.authority.issue_agent(csr_der, &dc, node, &IssuanceRules::default(), now()).unwrap()
    }

    pub fn issue_leaf(&self, csr_der: &[u8], service: &str) -> IssuedLeaf {
        let namespace = "default".parse().unwrap();
        let dc = "dc1".parse().unwrap();
        let id = SpiffeId::new(Layout::Consul, Self::trust_domain(), namespace, dc, service.parse().unwrap());
        self.authority.issue_leaf(csr_der, &id, &IssuanceRules::default(), now(), None).unwrap()
    }

    /// The agent of a node.
    pub fn agent(&self, node: &str) -> Arc<ClientConfig> {
        let key = LeafKey::generate().unwrap();
        let leaf = self.issue_agent(&key.csr_der().unwrap(), &node.parse().unwrap());
        let credentials = Credentials::new(&leaf.chain_pem, &key).unwrap();
        Arc::new(agent_client_config(credentials, &self.roots(), Self::server_identity()).unwrap())
    }

    /// A workload, which has no business here.
    pub fn workload(&self, service: &str) -> Arc<ClientConfig> {
        let key = LeafKey::generate().unwrap();
        let leaf = self.issue_leaf(&key.csr_der().unwrap(), service);
        self.member(Credentials::new(&leaf.chain_pem, &key).unwrap())
    }

    /// Whoever has these credentials.
    pub fn member(&self, credentials: Credentials) -> Arc<ClientConfig> {
        let slot = CredentialSlot::new(credentials);
        Arc::new(client_config(Some(slot), &self.roots(), Self::server_identity()).unwrap())
    }

    /// An agent that has not joined.
    pub fn stranger(&self) -> Arc<ClientConfig> {
        let root = self.authority.root_fingerprint();
        Arc::new(join_client_config(root).unwrap())
    }
}

/// A door that remembers what it was asked. Each stream is sent the newest payload.
pub struct Door {
    pub mesh: Arc<Mesh>,
    streams: Mutex<BTreeMap<NodeName, Arc<Talk>>>,
    /// Nodes with a stream, each with what its agent has said.
    pub said: watch::Sender<BTreeMap<NodeName, Vec<AgentSays>>>,
    pub committed: Mutex<Vec<(NodeName, Vec<Change>)>>,
    pub views: watch::Sender<AliasView>,
}

/// One node's stream.
pub struct Talk {
    newest: Mutex<Option<Bytes>>,
    waker: AtomicWaker,
    pub taken_bytes: watch::Sender<usize>,
}

impl Door {
    pub fn new(mesh: Arc<Mesh>) -> Arc<Self> {
        Arc::new(Self {
            mesh,
            streams: Mutex::default(),
            said: watch::Sender::new(BTreeMap::new()),
            committed: Mutex::default(),
            views: watch::Sender::new(AliasView::default()),
        })
    }

    pub fn talk(&self, node: &str) -> Arc<Talk> {
        Arc::clone(&self.streams.lock().unwrap()[&node.parse::<NodeName>().unwrap()])
    }

    /// Waits until what was said is as wanted.
    pub async fn until(&self, wanted: impl FnMut(&BTreeMap<NodeName, Vec<AgentSays>>) -> bool) {
        let mut said = self.said.subscribe();
        let waited = tokio::time::timeout(DEADLINE, said.wait_for(wanted)).await;
        waited.unwrap_or_else(|_| panic!("said so far: {:?}", self.said.borrow())).unwrap();
    }

    pub async fn until_attached(&self, node: &str, attached: bool) {
        let node: NodeName = node.parse().unwrap();
        self.until(|said| said.contains_key(&node) == attached).await;
    }
}

impl Talk {
    /// What is to be said now; what was to be said before, and was not taken, is not said any more.
    pub fn publish(&self, revision: u64, bytes: usize) {
        let item = WireItem { key: String::new(), value: Some(vec![7; bytes].into()) };
        let whole = Whole { subject: None, revision, items: vec![item] };
        *self.newest.lock().unwrap() = Some(FromServer::from(ServerSays::Whole(whole)).to_bytes());
        self.waker.wake();
    }
}

struct Stream {
    door: Arc<Door>,
    node: NodeName,
    talk: Arc<Talk>,
}

impl AgentStream for Stream {
    fn handle(&self, says: AgentSays) -> Result<(), CallError> {
        let refused = matches!(says, AgentSays::Unsubscribe(_));
        self.door.said.send_modify(|said| said.get_mut(&self.node).unwrap().push(says));
        if refused { Err(CallError::BeginAnew { reason: "as asked".to_owned() }) } else { Ok(()) }
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        self.talk.waker.register(cx.waker());
        let Some(frame) = self.talk.newest.lock().unwrap().take() else { return Poll::Pending };
        self.talk.taken_bytes.send_modify(|taken| *taken += frame.len());
        Poll::Ready(Ok(vec![frame]))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.door.said.send_modify(|said| drop(said.remove(&self.node)));
    }
}

/// The door as a server has it.
pub struct Shared(pub Arc<Door>);

#[async_trait]
impl AgentDoor for Shared {
    fn admit(&self, _: &Credential) -> Result<(), CallError> {
        Ok(())
    }

    fn attach(&self, node: NodeName, _: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        let talk = Talk { newest: Mutex::default(), waker: AtomicWaker::new(), taken_bytes: watch::Sender::new(0) };
        let talk = Arc::new(talk);
        self.0.streams.lock().unwrap().insert(node.clone(), Arc::clone(&talk));
        self.0.said.send_modify(|said| drop(said.insert(node.clone(), Vec::new())));
        Ok(Arc::new(Stream { door: Arc::clone(&self.0), node, talk }))
    }

    async fn commit(&self, caller: &Credential, changes: Vec<Change>) -> Result<Revision, CallError> {
        let mut committed = self.0.committed.lock().unwrap();
        committed.push((caller.member.name().clone(), changes));
        Ok(Revision(committed.len() as u64))
    }

    async fn own_records(&self, node: &NodeName, since: Option<Revision>) -> Result<OwnRecords, CallError> {
        let committed = self.0.committed.lock().unwrap();
        let own = committed.iter().filter(|(of, _)| of == node).flat_map(|(_, changes)| changes);
        let records = own.filter_map(|change| match change {
            Change::Put(record) => Some(record.clone()),
            Change::Delete(_) => None,
        });
        let revision = Revision(committed.len() as u64);
        Ok(OwnRecords { revision, records: (since != Some(revision)).then(|| records.collect()), again_after_s: 9 })
    }

    async fn issue_leaves(
        &self,
        _: &NodeName,
        wanted: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError> {
        let answer = |wanted: LeafRequest| match wanted.service.as_str() {
            "busy" => Err(CallError::Overloaded { reason: "later".to_owned(), retry_after: Duration::from_millis(7) }),
            service => Ok(self.0.mesh.issue_leaf(&wanted.csr_der, service)),
        };
        Ok(wanted.into_iter().map(answer).collect())
    }

    async fn renew(&self, caller: &Credential, csr_der: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        Ok(self.0.mesh.issue_agent(&csr_der, caller.member.name()))
    }

    fn follow_checks(&self, _: &NodeName, _: Option<&InstanceId>) -> BoxStream<'static, Result<AliasView, CallError>> {
        tokio_stream::wrappers::WatchStream::new(self.0.views.subscribe()).map(Ok).boxed()
    }

    async fn join(&self, request: JoinRequest) -> Result<JoinAnswer, CallError> {
        if request.token != "good" {
            return Err(CallError::refused("the join token is not known"));
        }
        let leaf = self.0.mesh.issue_agent(&request.csr_der, &request.node);
        Ok(JoinAnswer { leaf, roots_pem: self.0.mesh.authority.root().certificate_pem.clone() })
    }
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub door: Arc<Door>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(Mesh::new())
    }

    pub fn start_with(mesh: Mesh) -> Self {
        Self::start_for(mesh, CONNECTIONS_MAX)
    }

    /// One that takes so many connections at once.
    pub fn start_for(mesh: Mesh, connections_max: usize) -> Self {
        let mesh = Arc::new(mesh);
        let credentials = CredentialSlot::new(mesh.server_credentials());
        let tls = Arc::new(agent_server_config(credentials, &mesh.roots()).unwrap());
        let door = Door::new(mesh);
        let listener = starling_rpc::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let api = Api::new(tower::service_fn(echo));
        let doors = Doors { agents: Some(Arc::new(Shared(Arc::clone(&door)))), api: Some(api), ..Doors::default() };
        let task = tokio::spawn(starling_rpc::serve_tls(listener, tls, doors, connections_max, async {
            drop(stopped.await);
        }));
        Self { address, door, stop, task }
    }

    pub async fn connect(&self, tls: Arc<ClientConfig>) -> ServerClient {
        ServerClient::connect(self.address, tls, DEADLINE).await.unwrap()
    }

    pub async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(DEADLINE, self.task).await.expect("the server does not stop").unwrap().unwrap();
    }
}

/// An API that says back what was asked.
async fn echo(request: http::Request<hyper::body::Incoming>) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let mut said = format!("{} {} ", head.method, head.uri.path()).into_bytes();
    said.extend(body.collect().await.unwrap().to_bytes());
    Ok(http::Response::new(Full::new(said.into())))
}
