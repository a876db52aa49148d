//! The uplink by itself, and against a server that answers by a script.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use starling_attach::message::{AgentSays, Hello, ServerSays, Through};
use starling_attach::{FromServer, Replica};
use starling_identity::{ClusterId, Identity, IssuanceRules};
use starling_model::{Datacenter, UnixSeconds};
use starling_rpc::{
    AgentDoor, AgentStream, AliasView as WireView, CONNECTIONS_MAX, CallError, Credential, Doors, JoinAnswer,
    JoinRequest, OwnRecords as WireRecords,
};
use starling_tls::{
    CertificateAuthority, CredentialSlot, Credentials, IssuedLeaf as TlsLeaf, LeafKey, TrustRoots, agent_client_config,
    agent_server_config,
};
use tokio::task::{AbortHandle, JoinSet};

use super::*;
use crate::remote::mirror::Mirror;

/// Longer than anything here takes; reached only when a test fails.
const DEADLINE: Duration = Duration::from_secs(20);

/// A server that is compared with: it notes since when, and fails as often as it is told to.
#[derive(Default)]
struct Script {
    /// Whether each stream was one in reserve.
    attached: watch::Sender<Vec<bool>>,
    asked: Mutex<Vec<Option<Revision>>>,
    failures: Mutex<VecDeque<CallError>>,
}

/// A stream that welcomes, tells a primary that it has heard all there is, and then says nothing.
struct Silent(Mutex<Vec<Bytes>>);

impl AgentStream for Silent {
    fn handle(&self, _: AgentSays) -> Result<(), CallError> {
        Ok(())
    }

    fn poll_take(&self, _: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        let said = std::mem::take(&mut *self.0.lock().expect("whole"));
        if said.is_empty() { Poll::Pending } else { Poll::Ready(Ok(said)) }
    }
}

fn unasked<T>() -> Result<T, CallError> {
    Err(CallError::refused("nobody asks that here"))
}

#[async_trait]
impl AgentDoor for Script {
    fn admit(&self, _: &Credential) -> Result<(), CallError> {
        Ok(())
    }

    fn attach(&self, _: NodeName, hello: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        let mut says = vec![ServerSays::Welcome(Welcome::default())];
        if !hello.standby {
            says.push(ServerSays::Through(Through { revision: 1, report_within_ms: 0 }));
        }
        self.attached.send_modify(|attached| attached.push(hello.standby));
        Ok(Arc::new(Silent(Mutex::new(says.into_iter().map(|says| FromServer::from(says).to_bytes()).collect()))))
    }

    async fn commit(&self, _: &Credential, _: Vec<Change>) -> Result<Revision, CallError> {
        unasked()
    }

    async fn own_records(&self, _: &NodeName, since: Option<Revision>) -> Result<WireRecords, CallError> {
        self.asked.lock().expect("whole").push(since);
        match self.failures.lock().expect("whole").pop_front() {
            Some(error) => Err(error),
            None => Ok(WireRecords { revision: Revision(7), records: None, again_after_s: 0 }),
        }
    }

    async fn issue_leaves(
        &self,
        _: &NodeName,
        _: Vec<LeafRequest>,
    ) -> Result<Vec<Result<TlsLeaf, CallError>>, CallError> {
        unasked()
    }

    async fn renew(&self, _: &Credential, _: Vec<u8>) -> Result<TlsLeaf, CallError> {
        unasked()
    }

    fn follow_checks(&self, _: &NodeName, _: Option<&InstanceId>) -> BoxStream<'static, Result<WireView, CallError>> {
        stream::empty().boxed()
    }

    async fn join(&self, _: JoinRequest) -> Result<JoinAnswer, CallError> {
        unasked()
    }
}

struct Deaf;

impl Listener for Deaf {
    fn welcomed(&self, _: &Welcome) {}

    fn heard(&self, _: &BTreeSet<starling_catalog::Subject>) {}
}

/// Serves the scripts, each by a task of its own, and connects to them.
async fn connected(scripts: &[&Arc<Script>], tasks: &mut JoinSet<()>) -> (Arc<Uplink>, Vec<AbortHandle>) {
    let directory = tempfile::tempdir().expect("a directory");
    let domain = ClusterId::from_random(7).trust_domain();
    let now = UnixSeconds(SystemTime::UNIX_EPOCH.elapsed().expect("a clock that is set").as_secs());
    let authority = CertificateAuthority::create(directory.path(), &domain, now).expect("a CA");
    let roots = TrustRoots::new([authority.root()]).expect("a root");
    let (datacenter, rules): (Datacenter, _) = ("dc1".parse().expect("a name"), IssuanceRules::default());
    let key = LeafKey::generate().expect("a key");
    let csr = key.csr_der().expect("a request");
    let own = authority.issue_server(&csr, &datacenter, &[Ipv4Addr::LOCALHOST.into()], &rules, now);
    let own = CredentialSlot::new(Credentials::new(&own.expect("a certificate").chain_pem, &key).expect("it fits"));
    let tls = Arc::new(agent_server_config(own, &roots).expect("a configuration"));
    let (mut addresses, mut serving) = (Vec::new(), Vec::new());
    for script in scripts {
        let listener = starling_rpc::listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        addresses.push(listener.local_addr().expect("its address").to_string());
        let doors = Doors { agents: Some(Arc::clone(script) as _), ..Doors::default() };
        let tls = Arc::clone(&tls);
        serving.push(tasks.spawn(async move {
            let served = starling_rpc::serve_tls(listener, tls, doors, CONNECTIONS_MAX, std::future::pending());
            served.await.expect("it serves");
        }));
    }
    let node: NodeName = "n1".parse().expect("a name");
    let leaf = authority.issue_agent(&csr, &datacenter, &node, &rules, now).expect("a certificate");
    let credentials = Credentials::new(&leaf.chain_pem, &key).expect("it fits");
    let server = Identity::Server { trust_domain: domain, datacenter };
    let tls = watch::Sender::new(Arc::new(agent_client_config(credentials, &roots, server).expect("a configuration")));
    let servers = Arc::new(Servers::new(node.clone(), addresses));
    let config = UplinkConfig { servers, standby: true, node, tls: tls.subscribe() };
    let uplink = Uplink::new();
    let mut up = uplink.client.subscribe();
    let mirror = Mirror::new(Replica::default(), []);
    tasks.spawn(run(config, Arc::clone(&uplink), mirror, Arc::new(Deaf)));
    let connected = tokio::time::timeout(DEADLINE, up.wait_for(Option::is_some)).await;
    connected.expect("it connects").expect("it runs");
    (uplink, serving)
}

#[tokio::test]
async fn a_connection_counts_as_compared_over_once_a_comparison_has_come_back() {
    let (script, mut tasks) = (Arc::new(Script::default()), JoinSet::new());
    let link = RemoteLink(connected(&[&script], &mut tasks).await.0);
    script.failures.lock().expect("whole").push_back(CallError::unavailable("not now"));
    // Of what was agreed on elsewhere this server may know another past; one that failed agreed on nothing.
    link.own_records(Some(Revision(5))).await.expect_err("it fails");
    link.own_records(Some(Revision(5))).await.expect("compared");
    link.own_records(Some(Revision(7))).await.expect("compared");
    assert_eq!(*script.asked.lock().expect("whole"), [None, None, Some(Revision(7))]);
}

#[tokio::test]
async fn a_first_comparison_that_names_no_revision_counts_as_well() {
    let (script, mut tasks) = (Arc::new(Script::default()), JoinSet::new());
    let link = RemoteLink(connected(&[&script], &mut tasks).await.0);
    link.own_records(None).await.expect("compared");
    link.own_records(Some(Revision(7))).await.expect("compared");
    assert_eq!(*script.asked.lock().expect("whole"), [None, Some(Revision(7))]);
}

#[tokio::test]
async fn calls_go_over_a_stream_that_is_open_and_has_yet_to_tell_everything() {
    let (scripts, mut tasks) = ([(); 2].map(|()| Arc::new(Script::default())), JoinSet::new());
    let (uplink, serving) = connected(&scripts.each_ref(), &mut tasks).await;
    for script in &scripts {
        let mut attached = script.attached.subscribe();
        let open = tokio::time::timeout(DEADLINE, attached.wait_for(|attached| !attached.is_empty())).await;
        open.expect("both streams open").expect("it runs");
    }
    let primary = scripts.iter().position(|script| !script.attached.borrow()[0]).expect("a primary");
    let mut clients = uplink.client.subscribe();
    clients.mark_unchanged();
    serving[primary].abort();
    let link = RemoteLink(uplink);
    let answered = async {
        while link.own_records(None).await.is_err() {
            clients.changed().await.expect("it runs");
        }
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("calls go to the other");
    assert_eq!(*scripts[1 - primary].asked.lock().expect("whole"), [None]);
    // When that one goes before it has told everything, there is none.
    serving[1 - primary].abort();
    let none = tokio::time::timeout(DEADLINE, clients.wait_for(Option::is_none)).await;
    drop(none.expect("it is seen to be gone").expect("it runs"));
}
