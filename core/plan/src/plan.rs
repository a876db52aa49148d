//! The plan: what one proxy must do, at one revision.
//!
//! Parts behind an `Arc` are shared by every plan that needs them; two plans hold the same part exactly if the pointers
//! are equal, so comparing plans costs a pointer comparison per part.

mod exit;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use exit::{Exit, Origins, OutsideEndpoint, is_local, is_local_name};
use serde::{Deserialize, Serialize};
use starling_identity::SpiffeId;
use starling_model::{
    AccessLog, BalancePolicy, HeaderEdits, HostPattern, HttpsRedirect, IngressTls, InstanceKey, IpRange, Locality,
    PassiveHealthCheck, Protocol, RateLimit, RequestMatch, RetryBudget, Revision, ServiceName, SubsetName, Tracing,
};
use starling_traffic::{Forward, Policy, RouteRule, RouteTable, RuleAction, WEIGHT_TOTAL, WeightedTarget};

/// What one proxy must do.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The revision of the snapshot it was made from.
    pub revision: Revision,
    /// The sidecar or gateway.
    pub proxy: InstanceKey,
    /// The service whose identity it bears; its leaf certificate names it.
    pub service: ServiceName,
    /// Whom it trusts.
    pub trust: Arc<Trust>,
    /// The public listener; `None` for a sidecar that only calls out, and for a gateway.
    pub inbound: Option<Arc<Inbound>>,
    /// The listeners for callers from outside the mesh, ordered by bind address; a sidecar has none.
    pub edges: Vec<Arc<Edge>>,
    /// The listeners for the application's calls, ordered by bind address.
    pub outbounds: Vec<Arc<Outbound>>,
    /// Where the requests to each service called go, ordered by service.
    pub routes: Vec<Arc<Routes>>,
    /// One per target that a route names, ordered by service and subset.
    pub clusters: Vec<Arc<Cluster>>,
    /// One per target that a route names, each at the place of its cluster.
    pub endpoints: Vec<Arc<Endpoints>>,
    /// The services outside the mesh for which it stands, ordered by service and subset; only a gateway stands for any.
    pub exits: Vec<Arc<Exit>>,
    /// Where each of them is, at the place of its exit.
    pub origins: Vec<Arc<Origins>>,
    /// What the kernel leads to the proxy; `None` for a proxy that has nothing but its listeners.
    pub capture: Option<Arc<Capture>>,
    /// The access log that the proxy writes.
    pub access_log: Arc<AccessLog>,
    /// The traces that the proxy takes part in.
    pub tracing: Arc<Tracing>,
}

/// The roots that peers' certificates must chain to. Shared by the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Every trusted root in PEM, active first.
    pub roots_pem: Vec<String>,
}

/// The listener that peers' sidecars connect to. One per proxy; its policy is shared by all instances of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inbound {
    /// The service behind it.
    pub service: ServiceName,
    /// Where it listens.
    pub bind: SocketAddr,
    /// What the application speaks.
    pub protocol: Protocol,
    /// The application.
    pub local_app: LocalApp,
    /// Connections at most; `None` for no limit.
    pub max_connections: Option<u32>,
    /// Requests that it takes; `None` for no limit. Of no account where requests cannot be told apart.
    pub rate_limit: Option<RateLimit>,
    /// Who may call.
    pub policy: Arc<Policy>,
}

/// The application behind an inbound listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalApp {
    /// IP or host name, as seen from the proxy.
    pub address: String,
    /// Port.
    pub port: u16,
    /// Time to connect.
    pub connect_timeout: Duration,
    /// Time for a whole request; `None` for no limit.
    pub request_timeout: Option<Duration>,
}

/// A listener for the application's calls to one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outbound {
    /// The service called.
    pub service: ServiceName,
    /// Where the application connects to.
    pub bind: SocketAddr,
    /// What is spoken; the called service's protocol.
    pub protocol: Protocol,
}

/// A listener of a gateway, for callers from outside the mesh. One per gateway and port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// Where it listens.
    pub bind: SocketAddr,
    /// What is spoken.
    pub protocol: Protocol,
    /// How it is encrypted; `None` for not at all.
    pub tls: Option<IngressTls>,
    /// Whether each connection begins with the PROXY protocol.
    pub proxy_protocol: bool,
    /// Who is believed what it says about who has called it.
    pub trusted_proxies: Vec<IpRange>,
    /// Connections at most; `None` for no limit.
    pub max_connections: Option<u32>,
    /// What becomes of what comes in.
    pub route: EdgeRoute,
}

/// What becomes of what comes in at a gateway's port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeRoute {
    /// It goes to one of these, by host; without requests there is one, and no host.
    Hosts(Vec<EdgeHost>),
    /// Callers are told to come again by HTTPS.
    Redirect(HttpsRedirect),
}

/// A service that is called by hosts of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeHost {
    /// The service; its routes stand in the plan.
    pub service: ServiceName,
    /// The hosts.
    pub hosts: Vec<HostPattern>,
    /// What is done to the head of a request; edits of the route come first.
    pub request_headers: HeaderEdits,
    /// What is done to the head of its response; edits of the route come first.
    pub response_headers: HeaderEdits,
}

impl Edge {
    /// The services that are called there.
    #[must_use]
    pub fn hosts(&self) -> &[EdgeHost] {
        match &self.route {
            EdgeRoute::Hosts(hosts) => hosts,
            EdgeRoute::Redirect(_) => &[],
        }
    }
}

/// How a proxy takes connections that the kernel leads to it, on this machine and for this workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// The port at which what the application calls arrives.
    pub outbound_port: u16,
    /// The port at which what the application is sent arrives.
    pub inbound_port: u16,
    /// Whether the application is also sent what comes without mutual TLS, about which no intention decides.
    pub permissive: bool,
    /// Whether what is called and is no service of the mesh is refused, and not passed on as it is.
    pub mesh_only: bool,
    /// The services called by addresses of their own, ordered by service; each has routes.
    pub virtuals: Vec<Virtual>,
}

/// A service that is called by an address of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Virtual {
    /// The service called.
    pub service: ServiceName,
    /// Where the application connects to, at whatever port.
    pub addresses: Vec<IpAddr>,
    /// What is spoken; the called service's protocol.
    pub protocol: Protocol,
}

/// A service, or a subset of one, as somebody to call: redirects and default subsets have been followed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// The service.
    pub service: ServiceName,
    /// Its subset; `None` is every instance.
    pub subset: Option<SubsetName>,
}

/// `SERVICE` or `SUBSET.SERVICE`, as the names in SNI begin.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subset {
            Some(subset) => write!(f, "{subset}.{}", self.service),
            None => self.service.fmt(f),
        }
    }
}

/// Where the requests to a service go. Shared by every caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// The service called.
    pub service: ServiceName,
    /// What is spoken.
    pub protocol: Protocol,
    /// The rules; the last one matches everything. Where requests cannot be told apart it is the only one, and only its
    /// targets count: each connection goes to one of them.
    pub table: Arc<RouteTable>,
    /// Everybody that a rule names, in order; each has a cluster.
    pub targets: Vec<Target>,
    /// The widest retry budget of a rule, which holds for all of those clusters.
    pub retry_budget: Option<RetryBudget>,
}

/// How a target is called: everything but its endpoints. Shared by every caller that sets nothing of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The service called.
    pub service: ServiceName,
    /// The subset called.
    pub subset: Option<SubsetName>,
    /// The name in statistics and SNI: `[SUBSET.]SERVICE.NAMESPACE.DATACENTER.internal.TRUST-DOMAIN`.
    pub sni: String,
    /// The one identity that its endpoints may present.
    pub identity: SpiffeId,
    /// The identities that endpoints of failover groups may present, if they are of other services.
    pub failover_identities: Vec<SpiffeId>,
    /// What is spoken.
    pub protocol: Protocol,
    /// Time to connect.
    pub connect_timeout: Duration,
    /// How much may be under way at once.
    pub limits: Limits,
    /// How an endpoint is chosen.
    pub balance: BalancePolicy,
    /// When an endpoint that fails is left out for a while; `None` for never.
    pub outlier: Option<PassiveHealthCheck>,
    /// How many retries may be under way at once; `None` leaves it to the proxy's own default.
    pub retry_budget: Option<RetryBudget>,
}

/// What one proxy may have under way towards one service; `None` leaves it to the proxy's own default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Connections (Envoy's `max_connections`).
    pub connections: Option<u32>,
    /// Requests waiting for a connection (Envoy's `max_pending_requests`).
    pub pending_requests: Option<u32>,
    /// Requests under way (Envoy's `max_requests`).
    pub concurrent_requests: Option<u32>,
}

/// Where a target is. Shared by every caller, or by those of one locality where its resolver prefers who is near; the part that changes most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// The service.
    pub service: ServiceName,
    /// Its subset.
    pub subset: Option<SubsetName>,
    /// The name of its cluster; equal to [`Cluster::sni`].
    pub cluster: String,
    /// Where the callers are that have this one; `None` where that is of no account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Arc<Locality>>,
    /// Those in order to be called, ordered by address and port, each once; with `from`, those nearest to it.
    pub endpoints: Vec<Endpoint>,
    /// Who is called where none of them is left, the first group with anybody in it: with `from`, those of the target that
    /// are farther away, and then others.
    pub failover: Vec<FailoverGroup>,
}

/// A target, and where those are who call it if that counts.
pub type EndpointsKey = (Target, Option<Arc<Locality>>);

/// Endpoints that are called where all before them are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverGroup {
    /// Whose they are; they present that service's identity.
    pub target: Target,
    /// They, ordered by address and port, each once.
    pub endpoints: Vec<Endpoint>,
}

impl Routes {
    /// Routes of one rule: every request to this cluster, within `timeout`.
    #[must_use]
    pub fn to_one(cluster: &Cluster, timeout: Option<Duration>) -> Self {
        let target = WeightedTarget {
            cluster: cluster.sni.as_str().into(),
            weight: WEIGHT_TOTAL,
            request_headers: HeaderEdits::default(),
            response_headers: HeaderEdits::default(),
        };
        let forward = Forward { targets: vec![target], timeout, ..Forward::default() };
        let rule = RouteRule { matches: RequestMatch::default(), action: RuleAction::Forward(Box::new(forward)) };
        Self {
            service: cluster.service.clone(),
            protocol: cluster.protocol,
            table: Arc::new(RouteTable::new(vec![rule])),
            targets: vec![cluster.target()],
            retry_budget: None,
        }
    }
}

impl Cluster {
    /// Who is called.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { service: self.service.clone(), subset: self.subset.clone() }
    }
}

impl Endpoints {
    /// Where who is.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { service: self.service.clone(), subset: self.subset.clone() }
    }

    /// What tells it from others: where who is, and for whom.
    #[must_use]
    pub fn key(&self) -> EndpointsKey {
        (self.target(), self.from.clone())
    }

    /// Every service whose instances they are.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        std::iter::once(&self.service).chain(self.failover.iter().map(|group| &group.target.service))
    }
}

/// One address of a service: the public listener of a sidecar, or a natively meshed instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its IP.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Share of load, at least 1.
    pub weight: u32,
}
