//! The plan: what one proxy must do, at one revision.
//!
//! Parts behind an `Arc` are shared by every plan that needs them; two plans hold the same part exactly if the pointers
//! are equal, so comparing plans costs a pointer comparison per part.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use starling_identity::SpiffeId;
use starling_model::{InstanceKey, Protocol, Revision, ServiceName};
use starling_traffic::Policy;

/// What one proxy must do.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The revision of the snapshot it was made from.
    pub revision: Revision,
    /// The sidecar.
    pub proxy: InstanceKey,
    /// The service whose identity it bears; its leaf certificate names it.
    pub service: ServiceName,
    /// Whom it trusts.
    pub trust: Arc<Trust>,
    /// The public listener; `None` for a sidecar that only calls out.
    pub inbound: Option<Arc<Inbound>>,
    /// The listeners for the application's calls, ordered by bind address.
    pub outbounds: Vec<Arc<Outbound>>,
    /// One per service called, ordered by service.
    pub clusters: Vec<Arc<Cluster>>,
    /// One per service called, ordered by service.
    pub endpoints: Vec<Arc<Endpoints>>,
    /// Whether the proxy writes an access log.
    pub access_log: bool,
}

/// The roots that peers' certificates must chain to. Shared by the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// Every trusted root in PEM, active first.
    pub roots_pem: Vec<String>,
}

/// The listener that peers' sidecars connect to. One per proxy; its policy is shared by all instances of the service.
#[derive(Debug, Clone, PartialEq)]
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
    /// Who may call.
    pub policy: Arc<Policy>,
}

/// The application behind an inbound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq)]
pub struct Outbound {
    /// The service called.
    pub service: ServiceName,
    /// Where the application connects to.
    pub bind: SocketAddr,
    /// What is spoken; the called service's protocol.
    pub protocol: Protocol,
}

/// How a service is called: everything but its endpoints. Shared by every caller that sets nothing of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// The service called.
    pub service: ServiceName,
    /// The name in statistics and SNI: `SERVICE.NAMESPACE.DATACENTER.internal.TRUST-DOMAIN`.
    pub sni: String,
    /// The one identity that its endpoints may present.
    pub identity: SpiffeId,
    /// What is spoken.
    pub protocol: Protocol,
    /// Time to connect.
    pub connect_timeout: Duration,
    /// How much may be under way at once.
    pub limits: Limits,
}

/// What one proxy may have under way towards one service; `None` leaves it to the proxy's own default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Limits {
    /// Connections (Envoy's `max_connections`).
    pub connections: Option<u32>,
    /// Requests waiting for a connection (Envoy's `max_pending_requests`).
    pub pending_requests: Option<u32>,
    /// Requests under way (Envoy's `max_requests`).
    pub concurrent_requests: Option<u32>,
}

/// Where a service is. Shared by every caller; the part that changes most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// The service.
    pub service: ServiceName,
    /// The name of its cluster; equal to [`Cluster::sni`].
    pub cluster: String,
    /// Those in order to be called, ordered by address and port, each once.
    pub endpoints: Vec<Endpoint>,
}

/// One address of a service: the public listener of a sidecar, or a natively meshed instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its IP.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Share of load, at least 1.
    pub weight: u32,
}
