//! Config entries: settings of the mesh and of services, in Consul's kinds.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::access_log::AccessLog;
use crate::ingress::IngressGateway;
use crate::intention::ServiceIntentions;
use crate::kept::{KeptEntry, KeptKind};
use crate::locality::LocalityMode;
use crate::name::ServiceName;
use crate::opaque::OpaqueSettings;
use crate::resolver::ServiceResolver;
use crate::router::ServiceRouter;
use crate::splitter::ServiceSplitter;
use crate::terminating::TerminatingGateway;
use crate::tracing::Tracing;
use crate::upstream_config::{RateLimit, UpstreamConfig};

/// What a service speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Bytes.
    #[default]
    Tcp,
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    Http2,
    /// gRPC.
    Grpc,
}

impl Protocol {
    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
        }
    }

    /// Whether single requests can be told apart.
    #[must_use]
    pub fn is_l7(self) -> bool {
        match self {
            Self::Tcp => false,
            Self::Http | Self::Http2 | Self::Grpc => true,
        }
    }
}

impl FromStr for Protocol {
    type Err = UnknownProtocol;
    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "http" => Ok(Self::Http),
            "http2" => Ok(Self::Http2),
            "grpc" => Ok(Self::Grpc),
            _ => Err(UnknownProtocol(text.to_owned())),
        }
    }
}

/// A text that is no protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no protocol; it is one of tcp, http, http2, grpc")]
pub struct UnknownProtocol(pub String);

/// The kinds of config entry of this release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigKind {
    /// Settings of every proxy; the name is always `global`.
    ProxyDefaults,
    /// Settings of one service.
    ServiceDefaults,
    /// Who may call one service.
    ServiceIntentions,
    /// Which instances of one service are called.
    ServiceResolver,
    /// Where the requests to one service go.
    ServiceRouter,
    /// How the calls of one service are divided.
    ServiceSplitter,
    /// What an ingress gateway lets in.
    IngressGateway,
    /// What a terminating gateway stands for.
    TerminatingGateway,
    /// Settings of the whole mesh; the name is always `mesh`.
    Mesh,
    /// What is kept and not acted upon.
    Kept(KeptKind),
}

impl ConfigKind {
    /// The kinds that together say how a service is called.
    pub const ROUTING: [Self; 4] =
        [Self::ServiceDefaults, Self::ServiceResolver, Self::ServiceRouter, Self::ServiceSplitter];

    /// The kinds that are acted upon, in the order of their names.
    pub const OBEYED: [Self; 9] = [
        Self::IngressGateway,
        Self::Mesh,
        Self::ProxyDefaults,
        Self::ServiceDefaults,
        Self::ServiceIntentions,
        Self::ServiceResolver,
        Self::ServiceRouter,
        Self::ServiceSplitter,
        Self::TerminatingGateway,
    ];

    /// Every kind of users: those that are acted upon, then those that are kept.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::OBEYED.into_iter().chain(KeptKind::ALL.into_iter().map(Self::Kept))
    }

    /// The kind that users call so when they write an entry.
    ///
    /// # Errors
    /// [`UnknownKind`] if there is none.
    pub fn of_users(text: &str) -> Result<Self, UnknownKind> {
        Self::all().find(|kind| kind.as_str() == text).ok_or_else(|| UnknownKind(text.to_owned()))
    }

    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProxyDefaults => "proxy-defaults",
            Self::ServiceDefaults => "service-defaults",
            Self::ServiceIntentions => "service-intentions",
            Self::ServiceResolver => "service-resolver",
            Self::ServiceRouter => "service-router",
            Self::ServiceSplitter => "service-splitter",
            Self::IngressGateway => "ingress-gateway",
            Self::TerminatingGateway => "terminating-gateway",
            Self::Mesh => "mesh",
            Self::Kept(kind) => kind.as_str(),
        }
    }
}

impl FromStr for ConfigKind {
    type Err = UnknownKind;
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let apart = || KeptKind::APART.into_iter().map(Self::Kept).find(|kind| kind.as_str() == text);
        Self::of_users(text).or_else(|error| apart().ok_or(error))
    }
}

/// A text that is no kind of config entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no config entry kind; it is one of ingress-gateway, mesh, proxy-defaults, service-defaults, service-intentions, service-resolver, service-router, service-splitter, terminating-gateway, \
     or of those that are only kept: api-gateway, exported-services, file-system-certificate, http-route, inline-certificate, jwt-provider, tcp-route"
)]
pub struct UnknownKind(pub String);

/// Kind and name, unique in the mesh.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigEntryKey {
    /// The kind.
    pub kind: ConfigKind,
    /// The name: `global`, `mesh`, a service, or `*`.
    pub name: String,
}

impl fmt::Display for ConfigEntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), self.name)
    }
}

/// A config entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigEntry {
    /// Settings of every proxy.
    ProxyDefaults(ProxyDefaults),
    /// Settings of one service.
    ServiceDefaults(ServiceDefaults),
    /// Who may call one service.
    ServiceIntentions(ServiceIntentions),
    /// Which instances of one service are called.
    ServiceResolver(Box<ServiceResolver>),
    /// Where the requests to one service go.
    ServiceRouter(ServiceRouter),
    /// How the calls of one service are divided.
    ServiceSplitter(ServiceSplitter),
    /// What an ingress gateway lets in.
    IngressGateway(Box<IngressGateway>),
    /// What a terminating gateway stands for.
    TerminatingGateway(Box<TerminatingGateway>),
    /// Settings of the whole mesh.
    Mesh(MeshEntry),
    /// What is kept and not acted upon.
    Kept(Box<KeptEntry>),
}

impl ConfigEntry {
    /// Its kind and name.
    #[must_use]
    pub fn key(&self) -> ConfigEntryKey {
        let (kind, name) = match self {
            Self::ProxyDefaults(_) => (ConfigKind::ProxyDefaults, "global"),
            Self::ServiceDefaults(entry) => (ConfigKind::ServiceDefaults, entry.service.as_str()),
            Self::ServiceIntentions(entry) => (ConfigKind::ServiceIntentions, entry.destination.as_str()),
            Self::ServiceResolver(entry) => (ConfigKind::ServiceResolver, entry.service.as_str()),
            Self::ServiceRouter(entry) => (ConfigKind::ServiceRouter, entry.service.as_str()),
            Self::ServiceSplitter(entry) => (ConfigKind::ServiceSplitter, entry.service.as_str()),
            Self::IngressGateway(entry) => (ConfigKind::IngressGateway, entry.gateway.as_str()),
            Self::TerminatingGateway(entry) => (ConfigKind::TerminatingGateway, entry.gateway.as_str()),
            Self::Mesh(_) => (ConfigKind::Mesh, "mesh"),
            Self::Kept(entry) => (ConfigKind::Kept(entry.kind), entry.name.as_str()),
        };
        ConfigEntryKey { kind, name: name.to_owned() }
    }

    /// The service whose routing it is part of, if it is one of those kinds.
    #[must_use]
    pub fn routing_of(&self) -> Option<&ServiceName> {
        match self {
            Self::ServiceDefaults(entry) => Some(&entry.service),
            Self::ServiceResolver(entry) => Some(&entry.service),
            Self::ServiceRouter(entry) => Some(&entry.service),
            Self::ServiceSplitter(entry) => Some(&entry.service),
            Self::ProxyDefaults(_)
            | Self::ServiceIntentions(_)
            | Self::IngressGateway(_)
            | Self::TerminatingGateway(_)
            | Self::Mesh(_)
            | Self::Kept(_) => None,
        }
    }
}

impl ConfigEntry {
    /// The same, read as what it is where it was kept by a release that did not act on its kind.
    #[must_use]
    pub(crate) fn obeyed(self) -> Self {
        let kept = if let Self::Kept(entry) = &self { Some(entry) } else { None };
        match kept.filter(|entry| entry.kind == KeptKind::TerminatingGateway) {
            Some(entry) => Self::TerminatingGateway(Box::new(TerminatingGateway::of_kept(entry))),
            None => self,
        }
    }
}

fn nothing_kept(kept: &OpaqueSettings) -> bool {
    kept.is_empty()
}

/// Settings of the whole mesh (Consul's `mesh`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MeshEntry {
    /// Whether captured calls to what is no service of the mesh are refused, and not passed on as they are
    /// (`TransparentProxy.MeshDestinationsOnly`).
    #[serde(default)]
    pub mesh_destinations_only: bool,
    /// What else was given and is not acted upon, by Consul's names.
    #[serde(default, skip_serializing_if = "nothing_kept")]
    pub kept: OpaqueSettings,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// Settings of every proxy (Consul's `proxy-defaults`, always named `global`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ProxyDefaults {
    /// Opaque settings as given; `protocol` and `local_connect_timeout_ms`, among others, are read by the planner.
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
    /// The protocol in `config`, parsed at the door.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// The access log of proxies.
    #[serde(default)]
    pub access_logs: AccessLog,
    /// The traces that proxies take part in.
    #[serde(default)]
    pub tracing: Box<Tracing>,
    /// Whether instances near the caller come first, of every service whose resolver does not say; `None` is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prioritize_by_locality: Option<LocalityMode>,
    /// What else was given and is not acted upon, by Consul's names.
    #[serde(default, skip_serializing_if = "nothing_kept")]
    pub kept: OpaqueSettings,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// Settings of one service (Consul's `service-defaults`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceDefaults {
    /// The service.
    pub service: ServiceName,
    /// What it speaks; `None` falls to proxy-defaults, then to TCP.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// How long a proxy tries to connect to the local application (`LocalConnectTimeoutMs`).
    #[serde(default)]
    pub local_connect_timeout: Option<Duration>,
    /// How long the local application may take for a request (`LocalRequestTimeoutMs`).
    #[serde(default)]
    pub local_request_timeout: Option<Duration>,
    /// Connections into the service at most (`MaxInboundConnections`).
    #[serde(default)]
    pub max_inbound_connections: Option<u32>,
    /// Requests that each of its instances takes (`RateLimits`).
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// How its sidecars call others (`UpstreamConfig`).
    #[serde(default)]
    pub upstream_config: Box<UpstreamConfig>,
    /// What else was given and is not acted upon, by Consul's names.
    #[serde(default, skip_serializing_if = "nothing_kept")]
    pub kept: OpaqueSettings,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

impl ServiceDefaults {
    /// An entry that says nothing.
    #[must_use]
    pub fn bare(service: ServiceName) -> Self {
        Self {
            service,
            protocol: None,
            local_connect_timeout: None,
            local_request_timeout: None,
            max_inbound_connections: None,
            rate_limit: None,
            upstream_config: Box::default(),
            kept: OpaqueSettings::default(),
            meta: BTreeMap::new(),
        }
    }
}
