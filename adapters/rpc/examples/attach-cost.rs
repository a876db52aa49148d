//! What attached agents cost a server: its memory, its time while nothing happens, and to tell all of them something.
//!
//! The agents are in a process of their own, so that what the server uses can be told apart. Usage:
//! `attach-cost [AGENTS]`, 5,000 if not given; each takes a file descriptor in both processes.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use futures::task::AtomicWaker;
use starling_attach::FromServer;
use starling_attach::message::{AgentSays, Applied, Hello, ServerSays, Whole, WireItem};
use starling_identity::{ClusterId, Identity, IssuanceRules};
use starling_model::{Change, InstanceId, NodeName, Revision, UnixSeconds};
use starling_rpc::{
    AgentDoor, AgentStream, AliasView, CONNECTIONS_MAX, CallError, Credential, Doors, JoinAnswer, JoinRequest,
    LeafRequest, OwnRecords, ServerClient,
};
use starling_tls::{
    AgentIdentity, CertificateAuthority, CredentialSlot, Credentials, IssuedLeaf, LeafKey, TrustRoots,
    agent_client_config, agent_server_config,
};
use tokio::task::JoinSet;

/// Bytes in what everyone is told.
const PAYLOAD_BYTES: usize = 512;

/// Times that everyone is told something.
const ROUNDS: u64 = 10;

/// Seconds that nothing happens.
const IDLE_SECONDS: u32 = 20;

/// Connections that the agents open at once.
const OPENING: usize = 256;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next(), args.next(), args.next()) {
        (Some("fleet"), Some(address), Some(folder), Some(agents)) => {
            fleet(address.parse()?, Path::new(&folder), agents.parse()?).await
        }
        (agents, ..) => server(agents.map_or(Ok(5_000), str::parse)?).await,
    }
}

async fn server(agents: usize) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let tls = authority(folder.path())?;
    let listener = starling_rpc::listen("127.0.0.1:0".parse()?)?;
    let address = listener.local_addr()?;
    let door = Arc::new(Door::default());
    let doors = Doors { agents: Some(Arc::new(Shared(Arc::clone(&door)))), ..Doors::default() };
    let serving = starling_rpc::serve_tls(listener, Arc::new(tls), doors, CONNECTIONS_MAX, std::future::pending());
    tokio::spawn(serving);
    let (before, usage) = (Instant::now(), Usage::now()?);
    let mut fleet = Command::new(std::env::current_exe()?)
        .args(["fleet", &address.to_string(), &folder.path().to_string_lossy(), &agents.to_string()])
        .stdin(Stdio::piped())
        .spawn()?;
    until(|| door.streams().len() == agents).await;
    let attached = Usage::now()?.since(&usage);
    println!(
        "{agents} attached in {:.1?}: {:.1?} of CPU each",
        before.elapsed(),
        attached.cpu / u32::try_from(agents)?
    );
    println!("memory: {} KB each", attached.rss_kb / i64::try_from(agents)?);
    let usage = Usage::now()?;
    tokio::time::sleep(Duration::from_secs(IDLE_SECONDS.into())).await;
    let idle = Usage::now()?.since(&usage);
    println!("idle: {:.1} % of a core", 100.0 * idle.cpu.as_secs_f64() / f64::from(IDLE_SECONDS));
    for revision in 1..=ROUNDS {
        let (before, usage) = (Instant::now(), Usage::now()?);
        door.tell(revision);
        until(|| door.applied.load(Ordering::Relaxed) == agents).await;
        let (took, cpu) = (before.elapsed(), Usage::now()?.since(&usage).cpu);
        println!("told and acknowledged: {took:.0?}, {:.1?} of CPU each", cpu / u32::try_from(agents)?);
    }
    drop(fleet.stdin.take());
    fleet.wait()?;
    Ok(())
}

async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A CA, the server's configuration, and in `folder` the identity that all agents share.
fn authority(folder: &Path) -> Result<rustls::ServerConfig, Failure> {
    let now = UnixSeconds(SystemTime::UNIX_EPOCH.elapsed()?.as_secs());
    let authority = CertificateAuthority::create(folder, &ClusterId::from_random(0).trust_domain(), now)?;
    let (datacenter, rules) = ("dc1".parse()?, IssuanceRules::default());
    let key = LeafKey::generate()?;
    let leaf = authority.issue_agent(&key.csr_der()?, &datacenter, &"n1".parse()?, &rules, now)?;
    AgentIdentity::save(folder, &leaf.chain_pem, &key, &authority.root().certificate_pem)?;
    let key = LeafKey::generate()?;
    let leaf = authority.issue_server(&key.csr_der()?, &datacenter, &["127.0.0.1".parse()?], &rules, now)?;
    let credentials = CredentialSlot::new(Credentials::new(&leaf.chain_pem, &key)?);
    Ok(agent_server_config(credentials, &TrustRoots::new([authority.root()])?)?)
}

/// The agents: each applies what it is told at once. They end with their input.
async fn fleet(address: SocketAddr, folder: &Path, agents: usize) -> Result<(), Failure> {
    let AgentIdentity { credentials, roots } = AgentIdentity::load(folder)?;
    let Identity::Agent { trust_domain, datacenter, .. } = credentials.identity().clone() else {
        return Err("the identity is not an agent's".into());
    };
    let tls = Arc::new(agent_client_config(credentials, &roots, Identity::Server { trust_domain, datacenter })?);
    let mut running = JoinSet::new();
    let opening = Arc::new(tokio::sync::Semaphore::new(OPENING));
    for _ in 0..agents {
        let (tls, opening) = (Arc::clone(&tls), Arc::clone(&opening));
        running.spawn(async move {
            let turn = opening.acquire_owned().await?;
            let client = ServerClient::connect(address, tls, Duration::from_secs(60)).await?;
            let hello = Hello { node: "n1".to_owned(), ..Hello::default() };
            let (sender, mut frames) = client.attach(hello).await?;
            drop(turn);
            while let Some(says) = frames.next().await {
                let ServerSays::Whole(whole) = says? else { continue };
                sender.send(AgentSays::Applied(Applied { through: whole.revision, ..Applied::default() }))?;
            }
            Ok::<_, Failure>(())
        });
    }
    let ended = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    tokio::select! {
        _ = ended => Ok(()),
        // None ends before it is told to.
        Some(failed) = running.join_next() => failed?,
    }
}

#[derive(Default)]
struct Door {
    streams: Mutex<Vec<Arc<Talk>>>,
    applied: AtomicUsize,
}

#[derive(Default)]
struct Talk {
    newest: Mutex<Option<Bytes>>,
    waker: AtomicWaker,
}

impl Door {
    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Talk>>> {
        self.streams.lock().expect("invariant: nobody panics with the lock held")
    }

    fn tell(&self, revision: u64) {
        let item = WireItem { key: String::new(), value: Some(vec![7; PAYLOAD_BYTES].into()) };
        let whole = Whole { subject: None, revision, items: vec![item] };
        let frame = FromServer::from(ServerSays::Whole(whole)).to_bytes();
        self.applied.store(0, Ordering::Relaxed);
        for talk in &*self.streams() {
            *talk.newest.lock().expect("invariant: nobody panics with the lock held") = Some(frame.clone());
            talk.waker.wake();
        }
    }
}

struct Stream(Arc<Door>, Arc<Talk>);

impl AgentStream for Stream {
    fn handle(&self, says: AgentSays) -> Result<(), CallError> {
        if matches!(says, AgentSays::Applied(_)) {
            self.0.applied.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        self.1.waker.register(cx.waker());
        let newest = self.1.newest.lock().expect("invariant: nobody panics with the lock held").take();
        newest.map_or(Poll::Pending, |frame| Poll::Ready(Ok(vec![frame])))
    }
}

struct Shared(Arc<Door>);

#[async_trait]
impl AgentDoor for Shared {
    fn admit(&self, _: &Credential) -> Result<(), CallError> {
        Ok(())
    }

    fn attach(&self, _: NodeName, _: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        let talk = Arc::new(Talk::default());
        self.0.streams().push(Arc::clone(&talk));
        Ok(Arc::new(Stream(Arc::clone(&self.0), talk)))
    }

    async fn commit(&self, _: &Credential, _: Vec<Change>) -> Result<Revision, CallError> {
        Err(CallError::refused("only streams are measured"))
    }

    async fn own_records(&self, _: &NodeName, _: Option<Revision>) -> Result<OwnRecords, CallError> {
        Err(CallError::refused("only streams are measured"))
    }

    async fn issue_leaves(
        &self,
        _: &NodeName,
        _: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError> {
        Err(CallError::refused("only streams are measured"))
    }

    async fn renew(&self, _: &Credential, _: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        Err(CallError::refused("only streams are measured"))
    }

    fn follow_checks(&self, _: &NodeName, _: Option<&InstanceId>) -> BoxStream<'static, Result<AliasView, CallError>> {
        futures::stream::empty().boxed()
    }

    async fn join(&self, _: JoinRequest) -> Result<JoinAnswer, CallError> {
        Err(CallError::refused("only streams are measured"))
    }
}

/// What this process has used.
struct Usage {
    cpu: Duration,
    rss_kb: i64,
}

impl Usage {
    /// From `/proc`: CPU in nanoseconds of all threads, and memory in pages of 4 KB.
    fn now() -> Result<Self, Failure> {
        let mut cpu = Duration::ZERO;
        for task in std::fs::read_dir("/proc/self/task")? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
            cpu += Duration::from_nanos(stat.split(' ').next().unwrap_or_default().parse()?);
        }
        let statm = std::fs::read_to_string("/proc/self/statm")?;
        let pages: i64 = statm.split(' ').nth(1).unwrap_or_default().parse()?;
        Ok(Self { cpu, rss_kb: pages * 4 })
    }

    fn since(&self, before: &Self) -> Self {
        Self { cpu: self.cpu - before.cpu, rss_kb: self.rss_kb - before.rss_kb }
    }
}
