//! A mesh without a server: hand-made plans, a CA, and a source that serves them.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use starling_identity::{IssuanceRules, Layout, SpiffeId, service_sni};
use starling_model::{
    AccessLog, AclSecret, Action, BalancePolicy, Datacenter, InstanceKey, IntentionPermission, IntentionSubject,
    Namespace, Protocol, Revision, ServiceName, SourceDecision, TrustDomain, UnixSeconds,
};
use starling_plan::{
    Cluster, Endpoint, Endpoints, Inbound, Limits, LocalApp, OUTBOUND_TIMEOUT, Outbound, Plan, Routes, Trust,
};
use starling_rpc::{AttachError, LoopbackListener, Peer, ProxyFeed, ProxySource};
use starling_tls::{CertificateAuthority, LeafKey};
use starling_traffic::{Policy, PolicyRule};
use starling_xds::{Leaf, MeshNames, ProxyNode, Renderer, Report, ResourceSet};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

pub const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Time for anything that happens on its own; far beyond what it takes, so that only a failure meets it.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub fn names() -> MeshNames {
    MeshNames {
        layout: Layout::Consul,
        trust_domain: TrustDomain::new("11111111-2222-4333-8444-555555555555.consul").unwrap(),
        namespace: Namespace::new("default").unwrap(),
        datacenter: Datacenter::new("dc1").unwrap(),
    }
}

pub fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

pub fn identity(name: &str) -> SpiffeId {
    let names = names();
    SpiffeId::new(names.layout, names.trust_domain, names.namespace, names.datacenter, service(name))
}

/// A CA of its own; every one has another key.
pub struct Authority {
    ca: CertificateAuthority,
    _folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::create(&folder.path().join("ca"), &names().trust_domain, now()).unwrap();
        Self { ca, _folder: folder }
    }

    pub fn trust(&self) -> Arc<Trust> {
        Arc::new(Trust { roots_pem: vec![self.ca.root().certificate_pem.clone()] })
    }

    pub fn root_pem(&self) -> &str {
        &self.ca.root().certificate_pem
    }

    pub fn key_and_chain(&self, name: &str) -> (LeafKey, String) {
        let key = LeafKey::generate().unwrap();
        let rules = IssuanceRules::default();
        let leaf = self.ca.issue_leaf(&key.csr_der().unwrap(), &identity(name), &rules, now(), None).unwrap();
        (key, leaf.chain_pem)
    }

    pub fn leaf(&self, name: &str) -> Arc<Leaf> {
        let (key, chain) = self.key_and_chain(name);
        let private_key_pem = key.private_key_pem().unwrap().expose().to_owned();
        Arc::new(Leaf { certificate_chain_pem: chain, private_key_pem })
    }
}

fn now() -> UnixSeconds {
    UnixSeconds(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs())
}

/// `web` calls `api`: the two sidecars, and what their plans are made of.
pub struct World {
    pub protocol: Protocol,
    pub app: SocketAddr,
    pub outbound: SocketAddr,
    pub public: SocketAddr,
    pub access_log: Arc<AccessLog>,
    trust: Arc<Trust>,
    leaves: BTreeMap<&'static str, Arc<Leaf>>,
    renderer: Renderer,
    revision: u64,
    rules: Vec<PolicyRule>,
    placed: bool,
    api_inbound: Option<Arc<Inbound>>,
    web_outbound: Arc<Outbound>,
    routes: Arc<Routes>,
    cluster: Arc<Cluster>,
}

impl World {
    pub fn new(authority: &Authority, protocol: Protocol, app: SocketAddr) -> Self {
        let names = names();
        let outbound = free_address();
        let api = service("api");
        let cluster = Cluster {
            service: api.clone(),
            subset: None,
            failover_identities: Vec::new(),
            balance: BalancePolicy::default(),
            outlier: None,
            retry_budget: None,
            sni: service_sni(&api, &names.namespace, &names.datacenter, &names.trust_domain),
            identity: identity("api"),
            protocol,
            connect_timeout: Duration::from_secs(5),
            limits: Limits::default(),
        };
        Self {
            protocol,
            app,
            outbound,
            public: free_address(),
            access_log: Arc::default(),
            trust: authority.trust(),
            leaves: ["web", "api"].map(|name| (name, authority.leaf(name))).into(),
            renderer: Renderer::new(names),
            revision: 0,
            rules: vec![rule("web", SourceDecision::Connection(Action::Allow))],
            placed: true,
            api_inbound: None,
            web_outbound: Arc::new(Outbound { service: api, bind: outbound, protocol }),
            routes: Arc::new(Routes::to_one(&cluster, Some(OUTBOUND_TIMEOUT))),
            cluster: Arc::new(cluster),
        }
    }

    pub fn decide(&mut self, decision: SourceDecision) {
        self.rules = vec![rule("web", decision)];
        self.api_inbound = None;
    }

    pub fn place(&mut self, placed: bool) {
        self.placed = placed;
    }

    pub fn cluster_timeout(&mut self, connect_timeout: Duration) {
        self.cluster = Arc::new(Cluster { connect_timeout, ..Cluster::clone(&self.cluster) });
    }

    pub fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// The sets of both sidecars at the next revision.
    pub fn next(&mut self) -> BTreeMap<&'static str, Arc<ResourceSet>> {
        self.revision += 1;
        self.again()
    }

    /// The sets of both sidecars, as a restarted server makes them.
    pub fn again(&mut self) -> BTreeMap<&'static str, Arc<ResourceSet>> {
        let plans = [("web", self.web()), ("api", self.api())];
        plans.map(|(name, plan)| (name, Arc::new(self.renderer.render(&plan, Some(&self.leaves[name]))))).into()
    }

    pub fn forget_rendered(&mut self) {
        self.renderer = Renderer::new(names());
    }

    fn web(&self) -> Plan {
        let endpoint = Endpoint { address: self.public.ip(), port: self.public.port(), weight: 1 };
        let endpoints = Endpoints {
            service: service("api"),
            subset: None,
            cluster: self.cluster.sni.clone(),
            from: None,
            endpoints: if self.placed { vec![endpoint] } else { Vec::new() },
            failover: Vec::new(),
        };
        Plan {
            outbounds: vec![Arc::clone(&self.web_outbound)],
            routes: vec![Arc::clone(&self.routes)],
            clusters: vec![Arc::clone(&self.cluster)],
            endpoints: vec![Arc::new(endpoints)],
            ..self.bare("web")
        }
    }

    fn api(&mut self) -> Plan {
        let inbound = self.api_inbound.get_or_insert_with(|| {
            let policy = Policy { destination: service("api"), default: Action::Deny, rules: self.rules.clone() };
            Arc::new(Inbound {
                service: service("api"),
                bind: self.public,
                protocol: self.protocol,
                local_app: LocalApp {
                    address: self.app.ip().to_string(),
                    port: self.app.port(),
                    connect_timeout: Duration::from_secs(5),
                    request_timeout: None,
                },
                max_connections: Some(100),
                rate_limit: None,
                policy: Arc::new(policy),
            })
        });
        let inbound = Some(Arc::clone(inbound));
        Plan { inbound, ..self.bare("api") }
    }

    fn bare(&self, name: &str) -> Plan {
        Plan {
            revision: Revision(self.revision),
            proxy: InstanceKey { node: "n1".parse().unwrap(), id: name.parse().unwrap() },
            service: service(name),
            trust: Arc::clone(&self.trust),
            inbound: None,
            edges: Vec::new(),
            outbounds: Vec::new(),
            routes: Vec::new(),
            clusters: Vec::new(),
            endpoints: Vec::new(),
            access_log: Arc::clone(&self.access_log),
            exits: Vec::new(),
            origins: Vec::new(),
            capture: None,
            tracing: Arc::default(),
        }
    }
}

pub fn rule(source: &str, decision: SourceDecision) -> PolicyRule {
    let source: IntentionSubject = source.parse().unwrap();
    PolicyRule { source, written_for: "api".parse().unwrap(), precedence: 9, decision }
}

pub fn permission(action: Action, path: starling_model::PathMatch) -> IntentionPermission {
    IntentionPermission { action, path: Some(path), methods: Vec::new(), headers: Vec::new() }
}

/// An address that nobody has; binding it later may fail, if seldom.
pub fn free_address() -> SocketAddr {
    std::net::TcpListener::bind((LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Serves the sets of a few proxies, and remembers their reports.
#[derive(Clone)]
pub struct Source {
    feeds: Arc<BTreeMap<&'static str, watch::Sender<Arc<ResourceSet>>>>,
    reports: watch::Sender<Vec<(String, Report)>>,
    pub attached: Arc<Mutex<Vec<(ProxyNode, Peer)>>>,
    /// The tokens that they showed.
    pub shown: Arc<Mutex<Vec<Option<AclSecret>>>>,
    /// Why all streams are to end, once they are.
    pub ends: watch::Sender<Option<AttachError>>,
    /// Rises when a stream ends.
    pub detached: watch::Sender<usize>,
}

impl Source {
    pub fn new(sets: BTreeMap<&'static str, Arc<ResourceSet>>) -> Self {
        let feeds = sets.into_iter().map(|(name, set)| (name, watch::Sender::new(set))).collect();
        Self {
            feeds: Arc::new(feeds),
            reports: watch::Sender::new(Vec::new()),
            attached: Arc::default(),
            shown: Arc::default(),
            ends: watch::Sender::new(None),
            detached: watch::Sender::new(0),
        }
    }

    pub fn publish(&self, sets: BTreeMap<&'static str, Arc<ResourceSet>>) {
        for (name, set) in sets {
            self.feeds[name].send_replace(set);
        }
    }

    /// Waits for a report of this proxy that `wanted` accepts.
    pub async fn report(&self, proxy: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let mut reports = self.reports.subscribe();
        let found = |all: &Vec<(String, Report)>| all.iter().any(|(of, report)| of == proxy && wanted(report));
        let all = tokio::time::timeout(DEADLINE, reports.wait_for(found)).await;
        let all = all.unwrap_or_else(|_| panic!("{proxy} does not report; so far {:?}", self.all_reports())).unwrap();
        all.iter().rev().find(|(of, report)| of == proxy && wanted(report)).unwrap().1.clone()
    }

    pub async fn applied(&self, proxy: &str, at_least: Revision) {
        self.report(proxy, |report| matches!(report, Report::Applied { revision, .. } if *revision >= at_least)).await;
    }

    pub fn all_reports(&self) -> Vec<(String, Report)> {
        self.reports.borrow().clone()
    }
}

struct Detach(watch::Sender<usize>);

impl Drop for Detach {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl ProxySource for Source {
    async fn attach(&self, node: ProxyNode, peer: Peer, token: Option<AclSecret>) -> Result<ProxyFeed, AttachError> {
        let id = node.id.clone();
        let feed = self.feeds.get(id.as_str()).ok_or_else(|| AttachError::Unknown { id: id.clone() })?;
        self.attached.lock().unwrap().push((node, peer));
        self.shown.lock().unwrap().push(token);
        let (reports, detach) = (self.reports.clone(), Detach(self.detached.clone()));
        let on_report = move |report| {
            let _alive = &detach;
            reports.send_modify(|all| all.push((id.clone(), report)));
        };
        let mut ends = self.ends.subscribe();
        let ends = async move {
            match ends.wait_for(Option::is_some).await.map(|end| end.clone()) {
                Ok(Some(end)) => end,
                Ok(None) | Err(_) => std::future::pending().await,
            }
        };
        Ok(ProxyFeed { resources: feed.subscribe(), on_report: Box::new(on_report), ends: Box::pin(ends) })
    }
}

/// A running server; stops when asked to.
pub struct Server {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), starling_rpc::ServeError>>,
}

impl Server {
    pub async fn start(source: &Source, address: SocketAddr) -> Self {
        let listener = LoopbackListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let source: Arc<dyn ProxySource> = Arc::new(source.clone());
        let task = tokio::spawn(starling_rpc::serve(listener, source, starling_rpc::CONNECTIONS_MAX, async {
            drop(stopped.await)
        }));
        Self { address, stop, task }
    }

    pub async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(DEADLINE, self.task).await.expect("the server does not stop").unwrap().unwrap();
    }
}
