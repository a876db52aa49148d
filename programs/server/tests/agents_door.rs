//! The door for agents, over real sockets and TLS: what is refused there says why and what to do, and whoever is beside it
//! goes on hearing what happens.

#[path = "agents_door/behind.rs"]
mod behind;
#[path = "agents_door/enrolled.rs"]
mod enrolled;
#[path = "agents_door/leaves.rs"]
mod leaves;
#[path = "../../../core/catalog/tests/support/records.rs"]
mod records;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures::{Stream, StreamExt};
use starling_attach::message::{
    AgentSays, Applied, Hello, LEVEL, REFUSAL_NAME_BYTES_MAX, Rejected, Resume, SUBJECTS_MAX, ServerSays, Subscribe,
    WireSubject, encode_subject,
};
use starling_attach::relayed::{Come, Relayed};
use starling_catalog::{Command, JoinTokenCommand, NewJoinToken, Subject};
use starling_identity::{Identity, IssuanceRules, JoinSecret, JoinToken};
use starling_model::{JoinTokenId, JoinTokenRecord, JoinTokenUses, Node, NodeName, Record, Revision, UnixSeconds};
use starling_rpc::{AgentSender, CONNECTIONS_MAX, CallError, Doors, JoinRequest, ServerClient, ServerFrames};
use starling_server::{Door, Server, ServerConfig};
use starling_telemetry::Registry;
use starling_tls::{
    CertificateAuthority, CredentialSlot, Credentials, LeafKey, TrustRoots, agent_client_config, agent_server_config,
    join_client_config,
};
use tokio::task::JoinSet;

/// Longer than anything here takes; reached only when a test fails.
const DEADLINE: Duration = Duration::from_secs(20);

struct Mesh {
    server: Arc<Server>,
    authority: CertificateAuthority,
    address: SocketAddr,
    ports: std::ops::RangeFrom<i64>,
    /// The key of each node's agent.
    keys: Mutex<BTreeMap<String, Arc<LeafKey>>>,
    _serving: JoinSet<()>,
    _directory: tempfile::TempDir,
}

impl Mesh {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let authority = CertificateAuthority::open(directory.path()).expect("its CA");
        let key = LeafKey::generate().expect("a key");
        let own = server.issue_server(key.csr_der().expect("a request"), &[Ipv4Addr::LOCALHOST.into()]).await;
        let own = Credentials::new(&own.expect("a certificate").chain_pem, &key).expect("it fits");
        let roots = TrustRoots::new([&server.root()]).expect("a root");
        let tls = Arc::new(agent_server_config(CredentialSlot::new(own), &roots).expect("a configuration"));
        let listener = starling_rpc::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = listener.local_addr().expect("its address");
        let door = Arc::new(Door::new(Arc::clone(&server), true, None));
        let doors = Doors { agents: Some(door), ..Doors::default() };
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let served = starling_rpc::serve_tls(listener, tls, doors, CONNECTIONS_MAX, std::future::pending());
            served.await.expect("it serves");
        });
        Self {
            server,
            authority,
            address,
            ports: 1000..,
            keys: Mutex::default(),
            _serving: serving,
            _directory: directory,
        }
    }

    /// The key of a node's agent.
    fn key(&self, node: &str) -> Arc<LeafKey> {
        let mut keys = self.keys.lock().expect("whole");
        let key = keys.entry(node.to_owned()).or_insert_with(|| Arc::new(LeafKey::generate().expect("a key")));
        Arc::clone(key)
    }

    /// A connection of a node's agent.
    async fn connect(&self, node: &str) -> ServerClient {
        let key = self.key(node);
        let (node, datacenter): (NodeName, _) = (node.parse().expect("a name"), "dc1".parse().expect("a name"));
        let csr = key.csr_der().expect("a request");
        let leaf = self.authority.issue_agent(&csr, &datacenter, &node, &IssuanceRules::default(), now());
        let credentials = Credentials::new(&leaf.expect("a certificate").chain_pem, &key).expect("it fits");
        let roots = TrustRoots::new([&self.server.root()]).expect("a root");
        let server = Identity::Server { trust_domain: roots.trust_domain().clone(), datacenter };
        let tls = Arc::new(agent_client_config(credentials, &roots, server).expect("a configuration"));
        ServerClient::connect(self.address, tls, DEADLINE).await.expect("a connection")
    }

    async fn attach(&self, node: &str) -> (AgentSender, ServerFrames) {
        let hello = Hello { node: node.to_owned(), ..Hello::default() };
        self.connect(node).await.attach(hello).await.expect("a stream")
    }

    /// Moves the service that the neighbour follows.
    async fn change(&mut self) -> Revision {
        let port = self.ports.next().expect("a port");
        self.server.commit(&register(port)).await.expect("committed")
    }

    /// Asks to be let in by a token.
    async fn join(&self, token: &JoinToken, node: &str) -> Result<(), CallError> {
        self.join_as(token, node, "", self.key(node).csr_der().expect("a request")).await
    }

    async fn join_as(&self, token: &JoinToken, node: &str, id: &str, csr_der: Vec<u8>) -> Result<(), CallError> {
        let tls = Arc::new(join_client_config(token.root).expect("a configuration"));
        let client = ServerClient::connect(self.address, tls, DEADLINE).await.expect("a connection");
        let request = JoinRequest {
            token: token.expose().to_string(),
            node: node.parse().expect("a name"),
            node_id: id.to_owned(),
            csr_der,
            relay: false,
            through: None,
        };
        client.join(&request).await.map(drop)
    }

    /// A connection of a relay.
    async fn connect_relay(&self, relay: &str) -> ServerClient {
        let key = LeafKey::generate().expect("a key");
        let relay = relay.parse().expect("a name");
        let leaf = self.server.issue_relay(&relay, key.csr_der().expect("a request")).await;
        let credentials = Credentials::new(&leaf.expect("a certificate").chain_pem, &key).expect("it fits");
        let roots = TrustRoots::new([&self.server.root()]).expect("a root");
        let datacenter = "dc1".parse().expect("a name");
        let server = Identity::Server { trust_domain: roots.trust_domain().clone(), datacenter };
        let tls = Arc::new(agent_client_config(credentials, &roots, server).expect("a configuration"));
        ServerClient::connect(self.address, tls, DEADLINE).await.expect("a connection")
    }
}

/// A request for a key that nobody has a certificate for.
fn csr() -> Vec<u8> {
    LeafKey::generate().and_then(|key| key.csr_der()).expect("a request")
}

fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::UNIX_EPOCH.elapsed().expect("a clock that is set").as_secs())
}

fn register(port: i64) -> Command {
    let Record::Node(node) = records::node("elsewhere", "10.0.0.1") else { unreachable!("a node") };
    let instances = vec![records::sidecar("elsewhere", "web", "web", "web", port)];
    Command::Register { name: node.name.clone(), node: Some(node), instances, checks: Vec::new() }
}

fn subscribe(resumes: impl IntoIterator<Item = (Option<WireSubject>, u64)>) -> AgentSays {
    let resumes = resumes.into_iter().map(|(subject, have)| Resume { subject, have }).collect();
    AgentSays::Subscribe(Subscribe { resumes, reached: None, more: false })
}

fn endpoints(service: &str) -> Option<WireSubject> {
    encode_subject(&Subject::Endpoints(service.parse().expect("a name")))
}

/// Somebody who follows a service.
struct Neighbour {
    _sender: AgentSender,
    frames: ServerFrames,
}

impl Neighbour {
    async fn attach(mesh: &Mesh) -> Self {
        let (sender, frames) = mesh.attach("neighbour").await;
        sender.send(subscribe([(endpoints("web"), 0)])).expect("said");
        Self { _sender: sender, frames }
    }

    /// Waits for a change that happens now.
    async fn still_hears(&mut self, mesh: &mut Mesh, after: &str) {
        let revision = mesh.change().await.0;
        let heard = async {
            loop {
                let says = self.frames.next().await.expect("its stream is open").expect("its stream is open");
                if matches!(says, ServerSays::Through(through) if through.revision >= revision) {
                    return;
                }
            }
        };
        tokio::time::timeout(DEADLINE, heard).await.unwrap_or_else(|_| panic!("nothing is heard after {after}"));
    }
}

/// How a stream ends.
async fn end_of<T>(frames: &mut (impl Stream<Item = Result<T, CallError>> + Unpin)) -> CallError {
    let ended = async {
        loop {
            if let Err(ended) = frames.next().await.expect("a stream ends with its reason") {
                return ended;
            }
        }
    };
    tokio::time::timeout(DEADLINE, ended).await.expect("it ends")
}

#[tokio::test]
async fn what_cannot_be_subscribed_to_ends_the_stream_with_the_reason() {
    let mut mesh = Mesh::start().await;
    let at = mesh.change().await.0;
    let mut neighbour = Neighbour::attach(&mesh).await;
    let too_many = (0..=SUBJECTS_MAX).map(|number| (endpoints(&format!("s{number}")), 0));
    let of = |kind, name: &str| Some(WireSubject { kind, name: name.to_owned() });
    let cases = [
        (subscribe(too_many), "more than 16384 subjects on one stream"),
        (subscribe([(of(7, "neighbour"), 0)]), "node/neighbour is not of the agent's node"),
        (subscribe([(of(77, "web"), 0)]), "subject kind 77 is unknown"),
        (subscribe([(of(1, "a b"), 0)]), "a b"),
        (subscribe([(of(6, "web"), 0)]), "subject kind 6 has no name"),
        (subscribe([(None, 0)]), "a subscription without a subject"),
        (AgentSays::Rejected(Rejected { proxy: "a/b".to_owned(), ..Rejected::default() }), "a/b"),
    ];
    for (says, reason) in cases {
        let (sender, mut frames) = mesh.attach("n1").await;
        sender.send(says).expect("said");
        let ended = end_of(&mut frames).await;
        assert!(matches!(&ended, CallError::Refused { reason: said } if said.contains(reason)), "{reason}: {ended}");
        neighbour.still_hears(&mut mesh, reason).await;
    }
    let (sender, mut frames) = mesh.attach("n1").await;
    sender.send(subscribe([(endpoints("web"), at + 1_000_000)])).expect("said");
    let ended = end_of(&mut frames).await;
    let CallError::BeginAnew { reason } = &ended else { panic!("{ended}") };
    assert!(reason.contains("endpoints/web") && reason.contains("begin anew with nothing"), "{reason}");
    neighbour.still_hears(&mut mesh, "a resume from the future").await;
    // And so it may.
    let (sender, mut frames) = mesh.attach("n1").await;
    sender.send(subscribe([(endpoints("web"), 0)])).expect("said");
    let whole = async { while !matches!(frames.next().await.expect("open").expect("open"), ServerSays::Whole(_)) {} };
    tokio::time::timeout(DEADLINE, whole).await.expect("it is sent the whole");
}

#[tokio::test]
async fn a_request_in_parts_is_answered_when_all_of_it_is_there() {
    let mut mesh = Mesh::start().await;
    let some = |from: usize, to: usize| (from..to).map(|number| (endpoints(&format!("s{number}")), 0));
    let part = |says| {
        let AgentSays::Subscribe(part) = says else { panic!("{says:?} is no request") };
        AgentSays::Subscribe(Subscribe { more: true, ..part })
    };
    let (sender, mut frames) = mesh.attach("n1").await;
    let relay = mesh.connect_relay("r1").await;
    let (relay_sender, mut relay_frames) = relay.relay(hello("r1")).await.expect("a stream");
    for sender in [&sender, &relay_sender] {
        sender.send(part(subscribe(some(0, 3)))).expect("said");
    }
    // What is said between is heard, and so is the part before it.
    relay_sender.send(AgentSays::Relayed(Relayed { come: vec![come(0, "n2")], ..Relayed::default() })).expect("said");
    is_attached(&mesh, "n2").await;
    let revision = mesh.change().await;
    assert_eq!(mesh.server.report(revision, 1).expect("remembered").counts.affected, 0);
    for sender in [&sender, &relay_sender] {
        sender.send(subscribe([(endpoints("web"), 0)])).expect("said");
    }
    let answered = async {
        let (mut first, mut second) = (0, 0);
        loop {
            let says = frames.next().await.expect("open").expect("open");
            first += usize::from(matches!(says, ServerSays::Whole(_)));
            if matches!(says, ServerSays::Through(_)) {
                break;
            }
        }
        loop {
            let (_, says) = relay_frames.next().await.expect("open").expect("open");
            second += usize::from(matches!(says, ServerSays::Whole(_)));
            if matches!(says, ServerSays::Through(_)) {
                return (first, second);
            }
        }
    };
    let wholes = tokio::time::timeout(DEADLINE, answered).await.expect("both are answered");
    assert_eq!(wholes, (4, 4), "all of it comes before the first word that this was all");

    let (sender, mut frames) = mesh.attach("n3").await;
    sender.send(part(subscribe(some(0, SUBJECTS_MAX)))).expect("said");
    sender.send(part(subscribe(some(SUBJECTS_MAX, SUBJECTS_MAX + 1)))).expect("said");
    let ended = end_of(&mut frames).await;
    assert!(ended.to_string().contains("more than 16384 subjects on one stream"), "{ended}");
}

#[tokio::test]
async fn a_token_lets_in_whom_it_is_for_and_says_why_not_others() {
    let mut mesh = Mesh::start().await;
    let mut neighbour = Neighbour::attach(&mesh).await;
    let (once, _) = mesh.server.create_join_token(NewJoinToken::default()).await.expect("a token");
    let (reusable, _) = mesh
        .server
        .create_join_token(NewJoinToken { reusable: true, ..NewJoinToken::default() })
        .await
        .expect("a token");
    mesh.join(&once, "n1").await.expect("it is let in");
    let refused = mesh.join(&once, "n2").await.expect_err("used twice").to_string();
    assert!(refused.contains("was for one node and node n1 has used it"), "{refused}");
    neighbour.still_hears(&mut mesh, "a token that is used").await;

    // A lost node may come back by its name, a living one keeps it.
    mesh.join(&reusable, "n1").await.expect("nobody lives there");
    let (_sender, _frames) = mesh.attach("n1").await;
    let refused = mesh.join_as(&reusable, "n1", "", csr()).await.expect_err("it lives").to_string();
    assert!(refused.contains("n1") && refused.contains("name"), "{refused}");
    neighbour.still_hears(&mut mesh, "a name that is taken").await;

    let secret = || JoinSecret::from_random(starling_tls::random_secret().expect("random bits"));
    let expired = JoinToken::new(JoinTokenId::from_random(7), secret(), mesh.authority.root_fingerprint());
    let record = JoinTokenRecord {
        id: expired.id,
        secret_hash: expired.secret_hash(),
        description: None,
        for_relays: false,
        services: None,
        uses: JoinTokenUses::Reusable,
        created_at: UnixSeconds(now().0 - 100),
        expires_at: UnixSeconds(now().0 - 1),
    };
    mesh.server.commit(&Command::JoinToken(JoinTokenCommand::Create(record))).await.expect("a token");
    let refused = mesh.join(&expired, "n3").await.expect_err("expired").to_string();
    assert!(refused.contains("expired") && refused.contains("token create"), "{refused}");
    neighbour.still_hears(&mut mesh, "a token that is expired").await;

    let revoke = Command::JoinToken(JoinTokenCommand::Revoke(reusable.id));
    mesh.server.commit(&revoke).await.expect("revoked");
    let refused = mesh.join(&reusable, "n3").await.expect_err("revoked").to_string();
    assert!(refused.contains("not known"), "{refused}");
    let unknown = JoinToken::new(JoinTokenId::from_random(8), secret(), mesh.authority.root_fingerprint());
    let refused_too = mesh.join(&unknown, "n3").await.expect_err("unknown").to_string();
    assert!(refused_too.contains("not known"), "{refused_too}");
    neighbour.still_hears(&mut mesh, "a token that is revoked").await;
}

#[tokio::test]
async fn a_request_that_cannot_be_signed_uses_no_token_up() {
    let mesh = Mesh::start().await;
    let (once, _) = mesh.server.create_join_token(NewJoinToken::default()).await.expect("a token");
    let refused = mesh.join_as(&once, "n1", "", b"no request".to_vec()).await.expect_err("nothing to sign");
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    mesh.join(&once, "n1").await.expect("the token is good still");
    mesh.join(&once, "n2").await.expect_err("and is used now");
}

#[tokio::test]
async fn the_name_of_a_node_that_is_away_for_a_moment_is_kept_for_it() {
    let mesh = Mesh::start().await;
    let (reusable, _) = mesh
        .server
        .create_join_token(NewJoinToken { reusable: true, ..NewJoinToken::default() })
        .await
        .expect("a token");
    let (own_id, other_id) = ("11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555");
    let name: NodeName = "elsewhere".parse().expect("a name");
    let Command::Register { node: Some(record), .. } = register(1) else { unreachable!("it registers a node") };
    let record = Node { id: own_id.to_owned(), ..record };
    let command = Command::Register { name: name.clone(), node: Some(record), instances: vec![], checks: vec![] };
    mesh.server.commit(&command).await.expect("committed");
    drop(mesh.server.attach_agent(name).await.expect("it is not leaving"));
    for id in ["", other_id] {
        let refused = mesh.join_as(&reusable, "elsewhere", id, csr()).await.expect_err("it is waited for");
        assert!(matches!(refused, CallError::Unavailable { .. }), "who asks again may be let in: {refused}");
        let refused = refused.to_string();
        assert!(refused.contains(own_id) && refused.contains("counts as lost"), "{refused}");
    }
    mesh.join_as(&reusable, "elsewhere", own_id, csr()).await.expect("it is the same node");
}

#[tokio::test]
async fn what_an_agent_reports_is_kept_within_bounds() {
    let mut mesh = Mesh::start().await;
    let (sender, mut frames) = mesh.attach("n1").await;
    sender.send(subscribe([(endpoints("web"), 0)])).expect("said");
    let whole = async { while !matches!(frames.next().await.expect("open").expect("open"), ServerSays::Whole(_)) {} };
    tokio::time::timeout(DEADLINE, whole).await.expect("it is sent the whole");
    let reported = mesh.change().await;
    let long = "\u{e4}".repeat(1_500);
    let rejected = Rejected {
        proxy: "web".to_owned(),
        revision: reported.0,
        type_url: long.clone(),
        resources: vec![long.clone(), "short".to_owned()],
        ..Rejected::default()
    };
    sender.send(AgentSays::Rejected(rejected)).expect("said");
    let applied = Applied { through: u64::MAX, refusals_stand: true, held_us: 0 };
    sender.send(AgentSays::Applied(applied)).expect("said");
    let report = mesh.server.change(reported, DEADLINE, 10).await.expect("remembered");
    let refused = &report.rejected.first().expect("refused").1;
    assert_eq!(refused.resources, [long[..REFUSAL_NAME_BYTES_MAX].to_owned(), "short".to_owned()]);
    assert_eq!(refused.type_url, long[..REFUSAL_NAME_BYTES_MAX]);
    // It has not applied what it was not told of yet.
    let next = mesh.change().await;
    let report = mesh.server.report(next, 10).expect("remembered");
    assert_eq!((report.counts.affected, report.counts.pending), (1, 1), "{report:?}");
}

/// A stream that is superseded may linger while others come and go: what it does late is of no account to them.
#[tokio::test]
async fn the_end_of_a_superseded_stream_is_nobody_elses() {
    let mut mesh = Mesh::start().await;
    let (node, other): (NodeName, NodeName) = ("n1".parse().expect("a name"), "n2".parse().expect("a name"));
    let lingering = mesh.server.attach_agent(node.clone()).await.expect("it is not leaving");
    let current = mesh.server.attach_agent(node.clone()).await.expect("it is not leaving");
    // It may be given what the superseded one had.
    let neighbour = mesh.server.attach_agent(other.clone()).await.expect("it is not leaving");
    let web = Subject::Endpoints("web".parse().expect("a name"));
    neighbour.subscribe(vec![(web, Revision(0))], None).expect("subscribed");
    lingering.unsubscribe(&[Subject::Endpoints("web".parse().expect("a name"))]);
    let taken = std::future::poll_fn(|context| lingering.poll_take(context)).await;
    assert!(taken.is_err(), "it takes {taken:?}");
    drop(lingering);
    assert!(mesh.server.is_attached(&node) && mesh.server.is_attached(&other));
    let first = std::future::poll_fn(|context| neighbour.poll_take(context)).await.expect("it is current");
    assert_eq!(first.len(), 2, "a whole, and the word that this was all");
    mesh.change().await;
    let taken = tokio::time::timeout(DEADLINE, std::future::poll_fn(|context| neighbour.poll_take(context))).await;
    assert_eq!(taken.expect("it is woken").expect("it is current").len(), 2);
    drop(current);
    assert!(!mesh.server.is_attached(&node) && mesh.server.is_attached(&other));
}

fn hello(name: &str) -> Hello {
    Hello { node: name.to_owned(), level: LEVEL, ..Hello::default() }
}

fn come(node: u32, name: &str) -> Come {
    Come { node, name: name.to_owned() }
}

/// Waits until a node's agent is attached.
async fn is_attached(mesh: &Mesh, node: &str) {
    let node: NodeName = node.parse().expect("a name");
    let here = async {
        while !mesh.server.is_attached(&node) {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(DEADLINE, here).await.unwrap_or_else(|_| panic!("{node} does not come"));
}

#[tokio::test]
async fn only_a_relay_speaks_for_others_and_only_by_the_name_in_its_certificate() {
    let mesh = Mesh::start().await;
    let other: NodeName = "n2".parse().expect("a name");
    let agent = mesh.connect("n1").await;
    let refused = agent.for_node(&other).expect("a name").commit(Vec::new()).await.expect_err("it is no relay");
    assert!(refused.to_string().contains("only a relay speaks for another node"), "{refused}");
    let refused = agent.relay(hello("n1")).await.expect_err("it is no relay");
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");

    let relay = mesh.connect_relay("r1").await;
    let refused = relay.commit(Vec::new()).await.expect_err("it has no records of its own");
    assert!(refused.to_string().contains("does not say for which node"), "{refused}");
    let refused = relay.attach(hello("r1")).await.expect_err("it is no node");
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    let refused = relay.relay(hello("r2")).await.expect_err("another's name");
    assert!(refused.to_string().contains("r1"), "{refused}");
    let Record::Node(node) = records::node("n2", "10.0.0.2") else { unreachable!("a node") };
    let behind = relay.for_node(&other).expect("a name");
    behind.commit(vec![starling_model::Change::Put(Record::Node(node))]).await.expect("it speaks for the node");
    let foreign = records::node("n3", "10.0.0.3");
    let refused = behind.commit(vec![starling_model::Change::Put(foreign)]).await.expect_err("another node's record");
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    let csr = || LeafKey::generate().and_then(|key| key.csr_der()).expect("a request");
    assert!(relay.renew(csr()).await.is_ok());
    // A certificate of a relay below it is the one thing that it is given for another relay.
    let below = relay.for_relay(&"r2".parse().expect("a name")).expect("a name");
    let key = LeafKey::generate().expect("a key");
    let leaf = below.renew(key.csr_der().expect("a request")).await.expect("it is signed");
    let known_as = Credentials::new(&leaf.chain_pem, &key).expect("it fits").identity().to_string();
    assert!(known_as.ends_with("/agent/relay/dc/dc1/id/r2"), "{known_as}");
    let refused = below.commit(Vec::new()).await.expect_err("a relay has no records");
    assert!(refused.to_string().contains("what only a node is answered"), "{refused}");
    let as_agent = agent.for_relay(&"r2".parse().expect("a name")).expect("a name");
    let refused = as_agent.renew(csr()).await.expect_err("it is no relay");
    assert!(refused.to_string().contains("only a relay speaks for another"), "{refused}");
}

#[tokio::test]
async fn a_token_of_relays_lets_no_node_in_and_that_of_nodes_no_relay() {
    let mesh = Mesh::start().await;
    let (for_relays, _) = mesh
        .server
        .create_join_token(NewJoinToken { for_relays: true, reusable: true, ..NewJoinToken::default() })
        .await
        .expect("a token");
    let (for_nodes, _) = mesh
        .server
        .create_join_token(NewJoinToken { reusable: true, ..NewJoinToken::default() })
        .await
        .expect("a token");
    let refused = mesh.join(&for_relays, "n1").await.expect_err("it is for relays").to_string();
    assert!(refused.contains("lets relays in, not nodes"), "{refused}");
    let tls = Arc::new(join_client_config(for_nodes.root).expect("a configuration"));
    let client = ServerClient::connect(mesh.address, tls, DEADLINE).await.expect("a connection");
    let ask = |token: &JoinToken| JoinRequest {
        token: token.expose().to_string(),
        node: "r1".parse().expect("a name"),
        node_id: String::new(),
        csr_der: LeafKey::generate().and_then(|key| key.csr_der()).expect("a request"),
        relay: true,
        through: None,
    };
    let refused = client.join(&ask(&for_nodes)).await.expect_err("it is for nodes").to_string();
    assert!(refused.contains("lets nodes in, not relays") && refused.contains("--relay"), "{refused}");
    client.join(&ask(&for_relays)).await.expect("it is let in");
}
