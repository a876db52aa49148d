//! Two sidecars to test with: web calls api. Each has an engine of its own, certificates come from a CA in a temporary
//! folder, plans are written by hand, and the application behind api does what the test says.
//!
//! Every world has a loopback address of its own, so that ports chosen by one test are not taken by another.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use starling_admission::Share;
use starling_identity::{Identity, IssuanceRules, Layout, SpiffeId};
use starling_model::{
    Action, BalancePolicy, Datacenter, InstanceId, InstanceKey, IntentionPermission, IntentionSubject, Namespace,
    NodeName, Protocol, Revision, ServiceName, SourceDecision, TrustDomain, UnixSeconds,
};
use starling_plan::plan::{Limits, LocalApp, Trust};
use starling_plan::{Cluster, Endpoint, Endpoints, Inbound, Outbound, Plan, Routes};
use starling_proxy::{Engine, Inherited, Keys, ListenError, Timeouts, Workload};
use starling_tls::{
    Alpn, CertificateAuthority, CredentialSlot, Credentials, LeafKey, TrustRoots, workload_client_config,
};
use starling_traffic::{Policy, PolicyRule};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::app::App;
use crate::wire::{Wire, within};

/// How a world is set up.
pub struct Setup {
    /// What api speaks.
    pub protocol: Protocol,
    /// Who may call api.
    pub rules: Vec<PolicyRule>,
    pub timeouts: Timeouts,
    /// For web's requests to api.
    pub route_timeout: Duration,
    /// For api's application.
    pub request_timeout: Option<Duration>,
    /// To api.
    pub max_connections: Option<u32>,
    /// Of each engine.
    pub workers: usize,
    /// Connections of each engine.
    pub share: Share,
}

impl Setup {
    pub fn of(protocol: Protocol) -> Self {
        Self {
            protocol,
            rules: vec![rule("web", SourceDecision::Connection(Action::Allow))],
            timeouts: Timeouts::default(),
            route_timeout: Duration::from_secs(15),
            request_timeout: None,
            max_connections: None,
            workers: 1,
            share: Share::of(65_536),
        }
    }

    /// Web's requests are decided about one by one; what no permission matches is denied.
    pub fn by_request(mut self, permissions: Vec<IntentionPermission>) -> Self {
        self.rules = vec![rule("web", SourceDecision::Requests(permissions))];
        self
    }
}

/// A rule about calls of `source` to api.
pub fn rule(source: &str, decision: SourceDecision) -> PolicyRule {
    let (source, written_for) = (source.parse().unwrap(), IntentionSubject::Service(service("api")));
    PolicyRule { source, written_for, precedence: 9, decision }
}

/// Old enough to have issued a certificate that ends now.
const CA_AGE_S: u64 = 10 * 24 * 60 * 60;

/// A CA.
pub struct Ca {
    authority: CertificateAuthority,
    _folder: tempfile::TempDir,
}

impl Ca {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority =
            CertificateAuthority::create(folder.path(), &trust_domain(), UnixSeconds(now().0 - CA_AGE_S)).unwrap();
        Self { authority, _folder: folder }
    }

    pub fn root_pem(&self) -> String {
        self.authority.root().certificate_pem.clone()
    }

    pub fn credentials(&self, name: &str) -> Credentials {
        self.credentials_of(name, now())
    }

    /// Those that were issued at some time.
    pub fn credentials_of(&self, name: &str, at: UnixSeconds) -> Credentials {
        let key = LeafKey::generate().unwrap();
        let request = key.csr_der().unwrap();
        let leaf = self.authority.issue_leaf(&request, &identity(name), &IssuanceRules::default(), at, None);
        Credentials::new(&leaf.unwrap().chain_pem, &key).unwrap()
    }

    pub fn roots(&self) -> TrustRoots {
        TrustRoots::new([self.authority.root()]).unwrap()
    }

    pub fn keys(&self, name: &str) -> Arc<Keys> {
        Arc::new(Keys::new(self.credentials(name), self.roots()).unwrap())
    }
}

/// A sidecar that is served.
pub struct Sidecar {
    pub engine: Arc<Engine>,
    pub plan: Plan,
    pub keys: Arc<Keys>,
    workload: Option<Arc<Workload>>,
}

impl Sidecar {
    pub async fn start(setup: &Setup, plan: Plan, keys: Arc<Keys>) -> Self {
        let engine = Engine::limited(setup.workers, setup.timeouts, Inherited::default(), setup.share);
        let engine = Arc::new(engine.unwrap());
        let mut sidecar = Self { engine, plan, keys, workload: None };
        sidecar.apply().await;
        sidecar
    }

    pub fn id(&self) -> InstanceId {
        self.plan.proxy.id.clone()
    }

    /// Puts the plan and the keys in force, as they are now.
    pub async fn apply(&mut self) {
        assert_eq!(self.try_to_apply().await, []);
    }

    /// The same; what could not be put in force.
    pub async fn try_to_apply(&mut self) -> Vec<ListenError> {
        let workload = Arc::new(Workload::following(self.workload.as_deref(), self.plan.clone()));
        let errors = within(self.engine.serve(&self.id(), &workload, &self.keys)).await;
        self.workload = Some(workload);
        errors
    }

    /// Changes where the one service that it calls is.
    pub async fn call_at(&mut self, addresses: &[SocketAddr]) {
        self.plan.endpoints = vec![Arc::new(endpoints(addresses))];
        self.apply().await;
    }
}

/// The mesh of the tests.
pub struct World {
    pub ca: Ca,
    pub web: Sidecar,
    pub api: Sidecar,
    pub app: App,
    /// Where web's application calls api.
    pub outbound: SocketAddr,
    /// Where api's peers call it.
    pub public: SocketAddr,
}

impl World {
    pub async fn start(setup: Setup) -> Self {
        let (ca, ip) = (Ca::new(), next_address());
        let app = App::bind(ip).await;
        let (outbound, public) = free_ports(ip).await;
        let api = Sidecar::start(&setup, api_plan(&ca, &setup, public, app.address), ca.keys("api")).await;
        let web = Sidecar::start(&setup, web_plan(&ca, &setup, outbound, &[public]), ca.keys("web")).await;
        Self { ca, web, api, app, outbound, public }
    }

    /// A connection of web's application to web's sidecar.
    pub async fn client(&self) -> Wire<TcpStream> {
        let stream = TcpStream::connect(self.outbound).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire::new(stream)
    }

    /// A connection of a peer to api's public listener.
    pub async fn peer(&self, name: &str, alpn: Alpn) -> Wire<TlsStream<TcpStream>> {
        Wire::new(connect_tls(&self.ca, name, alpn, self.public).await.unwrap())
    }
}

/// Connects as the service `name`, and expects api.
pub async fn connect_tls(
    ca: &Ca,
    name: &str,
    alpn: Alpn,
    address: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_with(ca, ca.credentials(name), alpn, address).await
}

/// Connects with these credentials, and expects api.
pub async fn connect_with(
    ca: &Ca,
    credentials: Credentials,
    alpn: Alpn,
    address: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let slot = CredentialSlot::new(credentials);
    let config = workload_client_config(slot, &ca.roots(), Identity::Workload(identity("api")), alpn).unwrap();
    let tcp = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(sni().try_into().unwrap(), tcp).await
}

pub fn api_plan(ca: &Ca, setup: &Setup, bind: SocketAddr, app: SocketAddr) -> Plan {
    let policy = Policy { destination: service("api"), default: Action::Deny, rules: setup.rules.clone() };
    let inbound = Inbound {
        service: service("api"),
        bind,
        protocol: setup.protocol,
        local_app: LocalApp {
            address: app.ip().to_string(),
            port: app.port(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: setup.request_timeout,
        },
        max_connections: setup.max_connections,
        rate_limit: None,
        policy: Arc::new(policy),
    };
    Plan { inbound: Some(Arc::new(inbound)), ..empty_plan(ca, "api") }
}

pub fn web_plan(ca: &Ca, setup: &Setup, bind: SocketAddr, api: &[SocketAddr]) -> Plan {
    let protocol = setup.protocol;
    let cluster = Cluster {
        service: service("api"),
        subset: None,
        sni: sni(),
        identity: identity("api"),
        failover_identities: Vec::new(),
        protocol,
        connect_timeout: Duration::from_secs(5),
        limits: Limits::default(),
        balance: BalancePolicy::default(),
        outlier: None,
        retry_budget: None,
    };
    Plan {
        outbounds: vec![Arc::new(Outbound { service: service("api"), bind, protocol })],
        routes: vec![Arc::new(Routes::to_one(&cluster, Some(setup.route_timeout)))],
        clusters: vec![Arc::new(cluster)],
        endpoints: vec![Arc::new(endpoints(api))],
        ..empty_plan(ca, "web")
    }
}

fn empty_plan(ca: &Ca, name: &str) -> Plan {
    Plan {
        revision: Revision(1),
        proxy: InstanceKey {
            node: NodeName::new("n1").unwrap(),
            id: InstanceId::new(&format!("{name}-sidecar")).unwrap(),
        },
        service: service(name),
        trust: Arc::new(Trust { roots_pem: vec![ca.root_pem()] }),
        inbound: None,
        edges: Vec::new(),
        outbounds: Vec::new(),
        routes: Vec::new(),
        clusters: Vec::new(),
        endpoints: Vec::new(),
        exits: Vec::new(),
        origins: Vec::new(),
        capture: None,
        access_log: Arc::default(),
        tracing: Arc::default(),
    }
}

pub fn endpoints(addresses: &[SocketAddr]) -> Endpoints {
    let mut endpoints: Vec<_> =
        addresses.iter().map(|it| Endpoint { address: it.ip(), port: it.port(), weight: 1 }).collect();
    endpoints.sort();
    Endpoints { service: service("api"), subset: None, cluster: sni(), from: None, endpoints, failover: Vec::new() }
}

fn sni() -> String {
    format!("api.default.dc1.internal.{}", trust_domain())
}

pub fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

pub fn identity(name: &str) -> SpiffeId {
    let (namespace, datacenter) = (Namespace::new("default").unwrap(), Datacenter::new("dc1").unwrap());
    SpiffeId::new(Layout::Consul, trust_domain(), namespace, datacenter, service(name))
}

fn trust_domain() -> TrustDomain {
    TrustDomain::new("11111111-2222-3333-4444-555555555555.consul").unwrap()
}

pub fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs())
}

/// A loopback address that no other world of this process has, and hardly one of another process.
pub fn next_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = u8::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).expect("fewer than 256 worlds in one process");
    Ipv4Addr::new(127, (high ^ low.rotate_left(3)) | 1, low, number.max(1)).into()
}

/// Two ports that were free a moment ago.
async fn free_ports(ip: IpAddr) -> (SocketAddr, SocketAddr) {
    let (one, other) = (TcpListener::bind((ip, 0)).await.unwrap(), TcpListener::bind((ip, 0)).await.unwrap());
    (one.local_addr().unwrap(), other.local_addr().unwrap())
}

/// A port that was free a moment ago.
pub async fn free_port(ip: IpAddr) -> SocketAddr {
    TcpListener::bind((ip, 0)).await.unwrap().local_addr().unwrap()
}

/// What was counted on a sidecar, by the fields that tests look at.
pub fn counted(engine: &Engine) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for (_, workers) in engine.ledger().read() {
        for counts in workers {
            let mut add = |name, count| *sums.entry(name).or_default() += count;
            add("open", counts.open.get());
            add("opened", counts.opened.get());
            add("overflowed", counts.overflowed.get());
            add("handshakes_failed", counts.handshakes_failed.get());
            add("broken", counts.broken.get());
            add("malformed", counts.malformed.iter().map(starling_proxy::metrics::Cell::get).sum());
            for (hundred, cell) in counts.responses.iter().enumerate() {
                add(["1xx", "2xx", "3xx", "4xx", "5xx"][hundred], cell.get());
            }
        }
    }
    sums
}
