//! A service instance: one running copy of a service, the sidecar proxy of one, or a gateway.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::locality::Locality;
use crate::name::{InstanceId, NodeName, Port, ServiceName};
use crate::opaque::OpaqueSettings;

/// Where an instance lives: identifiers are unique on their node only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceKey {
    /// The node.
    pub node: NodeName,
    /// The instance on it.
    pub id: InstanceId,
}

impl std::fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.node, self.id)
    }
}

/// One running copy of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceInstance {
    /// Node and identifier.
    pub key: InstanceKey,
    /// The service of which it is a copy; for a sidecar by custom `NAME-sidecar-proxy`.
    pub name: ServiceName,
    /// Application, sidecar or gateway.
    #[serde(deserialize_with = "obeyed")]
    pub kind: InstanceKind,
    /// Its own address; `None` means the node's.
    #[serde(default)]
    pub address: Option<String>,
    /// The port; `None` where the service has none.
    #[serde(default)]
    pub port: Option<Port>,
    /// Tags in the order given.
    #[serde(default, deserialize_with = "tight")]
    pub tags: Vec<String>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Addresses by purpose.
    #[serde(default)]
    pub tagged_addresses: BTreeMap<String, TaggedAddress>,
    /// Share of load while passing and while warning.
    #[serde(default)]
    pub weights: Weights,
    /// Whether catalog writers may change the tags (kept and shown; Consul's anti-entropy switch).
    #[serde(default)]
    pub enable_tag_override: bool,
    /// Whether the instance speaks mesh mTLS itself (Consul's `Connect.Native`).
    #[serde(default)]
    pub native: bool,
    /// Where it runs; behind a pointer, since most say nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<Arc<Locality>>,
    /// What else was given and is not acted upon, by Consul's names: `SocketPath`, `Ports`.
    #[serde(default, skip_serializing_if = "nothing_kept")]
    pub kept: OpaqueSettings,
}

/// Reads a kind as what it is where it was kept by a release that planned nothing for it.
fn obeyed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<InstanceKind, D::Error> {
    let kind = InstanceKind::deserialize(deserializer)?;
    let kept = if let InstanceKind::OtherGateway(gateway) = &kind { Some(gateway) } else { None };
    Ok(match kept.filter(|gateway| gateway.kind == OtherGatewayKind::TerminatingGateway) {
        Some(gateway) => InstanceKind::TerminatingGateway(gateway.config.clone()),
        None => kind,
    })
}

fn nothing_kept(kept: &OpaqueSettings) -> bool {
    kept.is_empty()
}

impl ServiceInstance {
    /// The address at which peers reach it, given its node's address.
    #[must_use]
    pub fn reachable_address<'a>(&'a self, node_address: &'a str) -> &'a str {
        self.address.as_deref().unwrap_or(node_address)
    }

    /// The service whose identity it bears: a sidecar bears its destination's.
    #[must_use]
    pub fn identity(&self) -> &ServiceName {
        match &self.kind {
            InstanceKind::Typical
            | InstanceKind::IngressGateway(_)
            | InstanceKind::TerminatingGateway(_)
            | InstanceKind::OtherGateway(_) => &self.name,
            InstanceKind::Sidecar(proxy) => &proxy.destination,
        }
    }

    /// The proxy part, if this is a sidecar.
    #[must_use]
    pub fn sidecar(&self) -> Option<&SidecarProxy> {
        match &self.kind {
            InstanceKind::Typical
            | InstanceKind::IngressGateway(_)
            | InstanceKind::TerminatingGateway(_)
            | InstanceKind::OtherGateway(_) => None,
            InstanceKind::Sidecar(proxy) => Some(proxy),
        }
    }

    /// The settings of the proxy, if this is a gateway.
    #[must_use]
    pub fn gateway(&self) -> Option<&OpaqueSettings> {
        match &self.kind {
            InstanceKind::Typical | InstanceKind::Sidecar(_) | InstanceKind::OtherGateway(_) => None,
            InstanceKind::IngressGateway(settings) | InstanceKind::TerminatingGateway(settings) => Some(settings),
        }
    }

    /// Whether it does what a plan says.
    #[must_use]
    pub fn is_proxy(&self) -> bool {
        match &self.kind {
            InstanceKind::Typical | InstanceKind::OtherGateway(_) => false,
            InstanceKind::Sidecar(_) | InstanceKind::IngressGateway(_) | InstanceKind::TerminatingGateway(_) => true,
        }
    }
}

/// What an instance is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceKind {
    /// The application itself (Consul's empty kind).
    Typical,
    /// A sidecar proxy (Consul's `connect-proxy`).
    Sidecar(Box<SidecarProxy>),
    /// A gateway into the mesh (Consul's `ingress-gateway`), with opaque settings as given (`bind_address`, …).
    IngressGateway(OpaqueSettings),
    /// A gateway out of the mesh (Consul's `terminating-gateway`), with opaque settings as given.
    TerminatingGateway(OpaqueSettings),
    /// A gateway of a kind for which nothing is planned: it is kept and answered.
    OtherGateway(Box<OtherGateway>),
}

/// A gateway for which nothing is planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OtherGateway {
    /// Which kind.
    pub kind: OtherGatewayKind,
    /// The settings of its proxy, as given.
    #[serde(default)]
    pub config: OpaqueSettings,
}

/// Consul's kinds of gateway for which nothing is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherGatewayKind {
    /// Between datacentres.
    MeshGateway,
    /// Out of the mesh: as earlier releases have written it, which planned nothing for it.
    TerminatingGateway,
    /// Into the mesh, by routes.
    ApiGateway,
}

impl OtherGatewayKind {
    /// Every kind that is registered so.
    pub const ALL: [Self; 2] = [Self::MeshGateway, Self::ApiGateway];

    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MeshGateway => "mesh-gateway",
            Self::TerminatingGateway => "terminating-gateway",
            Self::ApiGateway => "api-gateway",
        }
    }
}

/// An address under a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaggedAddress {
    /// IP or host name.
    pub address: String,
    /// Port; 0 in Consul's form means none.
    #[serde(default)]
    pub port: Option<Port>,
}

/// Relative share of load (RFC 2782 weight).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// While every check passes.
    pub passing: u32,
    /// While the worst check warns.
    pub warning: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { passing: 1, warning: 1 }
    }
}

/// What a sidecar does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SidecarProxy {
    /// The service it stands in front of, and whose identity it bears.
    pub destination: ServiceName,
    /// The local instance it stands in front of.
    #[serde(default)]
    pub destination_id: Option<InstanceId>,
    /// Where the application listens, as seen from the proxy.
    #[serde(default = "loopback")]
    pub local_address: String,
    /// The application's port; `None` for a sidecar that only calls out.
    #[serde(default)]
    pub local_port: Option<Port>,
    /// Listeners for services that the application calls.
    #[serde(default, deserialize_with = "tight")]
    pub upstreams: Vec<Upstream>,
    /// Opaque proxy settings as given (`protocol`, `local_connect_timeout_ms`, …).
    #[serde(default)]
    pub config: OpaqueSettings,
    /// How it takes connections that the kernel leads to it; `None` where the application calls its listeners by name
    /// (Consul's `Mode` `direct`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent: Option<TransparentProxy>,
    /// What else was given and is not acted upon, by Consul's names: `Expose`, and `Upstreams` that are prepared queries.
    #[serde(default, skip_serializing_if = "nothing_kept")]
    pub kept: OpaqueSettings,
}

/// How a sidecar takes connections that the kernel leads to it (Consul's `Mode` `transparent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransparentProxy {
    /// Where what the application calls arrives.
    pub outbound_port: Port,
    /// Where what the application is sent arrives.
    pub inbound_port: Port,
    /// Whether the application is also sent what comes without mutual TLS, which no intention decides about (Consul's
    /// `MutualTLSMode` `permissive`).
    #[serde(default)]
    pub permissive: bool,
}

impl TransparentProxy {
    /// Consul's and Istio's port for what applications call.
    pub const OUTBOUND_PORT: u16 = 15_001;
    /// Istio's port for what applications are sent.
    pub const INBOUND_PORT: u16 = 15_006;
}

/// Reads a list into no more room than it takes: a catalog holds hundreds of thousands of them, most of one entry, for
/// which a list that grows sets four aside.
fn tight<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

fn loopback() -> String {
    "127.0.0.1".to_owned()
}

/// A local listener whose traffic goes to another service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Upstream {
    /// The service called.
    pub destination: ServiceName,
    /// Address of the listener.
    pub bind_address: IpAddr,
    /// Port of the listener.
    pub bind_port: Port,
    /// Opaque settings as given (`connect_timeout_ms`, `protocol`, …).
    #[serde(default)]
    pub config: OpaqueSettings,
    /// Whether it was not said that it is a service: then nobody is told so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kind_unsaid: bool,
}
