//! What an ingress gateway lets in (Consul's `ingress-gateway`).
//!
//! Certificates from files, redirects to HTTPS, the PROXY protocol and trusted proxies are Starling's own; everything else
//! is Consul's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config_entry::Protocol;
use crate::host::HostPattern;
use crate::ip_range::IpRange;
use crate::name::{Datacenter, Port, ServiceName};
use crate::router::{HeaderEdits, RedirectStatus};
use crate::upstream_config::UpstreamSettings;

/// DNS names in one certificate: more makes it larger than a handshake may be.
pub const CERTIFICATE_NAMES_MAX: usize = 500;

/// What the gateways that are registered under one name let in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressGateway {
    /// The service name under which they are registered.
    pub gateway: ServiceName,
    /// How their ports are encrypted that say nothing of their own; `None` for not at all.
    #[serde(default)]
    pub tls: Option<IngressTls>,
    /// How they call services, where a service says nothing of its own.
    #[serde(default)]
    pub defaults: UpstreamSettings,
    /// Whom they believe what they say about who called them. Starling's own.
    #[serde(default)]
    pub trusted_proxies: Vec<IpRange>,
    /// Where they listen; each port once.
    #[serde(default)]
    pub listeners: Vec<IngressListener>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// One port of a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressListener {
    /// The port.
    pub port: Port,
    /// What is spoken.
    pub protocol: Protocol,
    /// How it is encrypted.
    #[serde(default)]
    pub tls: ListenerTls,
    /// Whether each connection begins with the PROXY protocol. Starling's own.
    #[serde(default)]
    pub proxy_protocol: bool,
    /// What becomes of what comes in.
    pub route: IngressRoute,
}

/// What becomes of what comes in at one port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IngressRoute {
    /// It goes to one of these, by host; of a listener for TCP there is one. No two have a host in common.
    Services(Vec<IngressService>),
    /// Callers are told to come again by HTTPS. Starling's own.
    Redirect(HttpsRedirect),
}

/// A service that is let in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressService {
    /// The service.
    pub service: ServiceName,
    /// The hosts that it is called by; at least one, but none of a listener for TCP.
    #[serde(default)]
    pub hosts: Vec<HostPattern>,
    /// What is done to the head of a request.
    #[serde(default)]
    pub request_headers: HeaderEdits,
    /// What is done to the head of its response.
    #[serde(default)]
    pub response_headers: HeaderEdits,
    /// How it is called.
    #[serde(default)]
    pub settings: UpstreamSettings,
    /// Where its certificate would come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Box<SecretService>>,
}

/// Where callers are told to come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpsRedirect {
    /// The port.
    pub port: Port,
    /// By which status.
    pub status: RedirectStatus,
}

/// What a port says about its encryption.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerTls {
    /// Nothing: it is encrypted as the gateway says; one that redirects is not.
    #[default]
    AsGateway,
    /// It is not.
    Off,
    /// So.
    Own(IngressTls),
}

/// How a port is encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IngressTls {
    /// Certificates on the gateway's own machine, of which the one is shown that the client asks for; none is the gateway's
    /// certificate from the mesh's CA.
    #[serde(default)]
    pub certificates: Vec<CertificateFiles>,
    /// The oldest version of TLS.
    #[serde(default)]
    pub min_version: TlsVersion,
    /// Where the certificate would come from. Nothing asks there in this release, so a port with it is not opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Box<SecretService>>,
}

/// A service of somebody else's that hands out certificates (Consul's `SDS`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretService {
    /// Which one.
    pub cluster: String,
    /// The certificate there.
    pub resource: String,
    /// Whether `Enabled` was written beside it, which it implies.
    #[serde(default)]
    pub said_enabled: bool,
}

/// A certificate and its key, as files of the machine on which they are used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CertificateFiles {
    /// The certificate, then intermediates, in PEM.
    pub certificate: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

/// Versions of TLS that are good enough to be spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum TlsVersion {
    /// 1.2 (RFC 5246).
    #[default]
    V1_2,
    /// 1.3 (RFC 8446).
    V1_3,
}

impl TlsVersion {
    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1_2 => "TLSv1_2",
            Self::V1_3 => "TLSv1_3",
        }
    }
}

impl IngressGateway {
    /// Whether the certificate of a port, or of a service there, would come from where nothing asks.
    #[must_use]
    pub fn lacks_secret(&self, listener: &IngressListener) -> bool {
        let port = self.tls_of(listener).is_some_and(|tls| tls.secret.is_some());
        port || listener.services().iter().any(|service| service.secret.is_some())
    }

    /// How a port of it is encrypted, if it is.
    #[must_use]
    pub fn tls_of<'a>(&'a self, listener: &'a IngressListener) -> Option<&'a IngressTls> {
        match (&listener.route, &listener.tls) {
            (IngressRoute::Redirect(_), _) | (IngressRoute::Services(_), ListenerTls::Off) => None,
            (IngressRoute::Services(_), ListenerTls::AsGateway) => self.tls.as_ref(),
            (IngressRoute::Services(_), ListenerTls::Own(tls)) => Some(tls),
        }
    }
}

/// DNS names in the certificate that the mesh's CA issues to a gateway with these ports, each told by its encryption and the
/// hosts that it lets in: those hosts, and every service below `ingress`, as in Consul. Empty if no port shows it.
#[must_use]
pub fn certificate_names<'a, H: IntoIterator<Item = &'a HostPattern>>(
    ports: impl Iterator<Item = (Option<&'a IngressTls>, H)>,
    datacenter: &Datacenter,
) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, hosts) in
        ports.filter(|(tls, _)| tls.is_some_and(|tls| tls.certificates.is_empty() && tls.secret.is_none()))
    {
        names.extend(["*.ingress.consul".to_owned(), format!("*.ingress.{datacenter}.consul")]);
        names.extend(hosts.into_iter().filter(|host| host.is_name()).map(ToString::to_string));
    }
    names.into_iter().take(CERTIFICATE_NAMES_MAX).collect()
}

impl IngressGateway {
    /// DNS names in the certificate that the mesh's CA issues to it.
    #[must_use]
    pub fn certificate_names(&self, datacenter: &Datacenter) -> BTreeSet<String> {
        let hosts = |listener: &'_ IngressListener| -> Vec<_> {
            listener.services().iter().flat_map(|service| service.hosts.clone()).collect()
        };
        let owned: Vec<_> = self.listeners.iter().map(|it| (self.tls_of(it), hosts(it))).collect();
        certificate_names(owned.iter().map(|(tls, hosts)| (*tls, hosts)), datacenter)
    }
}

impl IngressListener {
    /// The services that it lets in.
    #[must_use]
    pub fn services(&self) -> &[IngressService] {
        match &self.route {
            IngressRoute::Services(services) => services,
            IngressRoute::Redirect(_) => &[],
        }
    }
}
