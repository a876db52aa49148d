//! SPIFFE IDs: the URIs by which the parties of a mesh are known, as structure.
//!
//! There is exactly one text for each identity and one identity for each text: whatever could be written in two ways
//! (percent-encoding, letter case of the trust domain, empty segments) is refused rather than normalised.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use starling_model::{Datacenter, NameError, Namespace, NodeName, ServiceName, TrustDomain};

/// Bytes in a SPIFFE ID (SPIFFE ID specification, section 2.3).
pub const SPIFFE_ID_BYTES_MAX: usize = 2_048;

const SCHEME: &str = "spiffe://";

/// How a workload's place is written into the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Layout {
    /// `/ns/<namespace>/dc/<datacenter>/svc/<service>`.
    #[default]
    Consul,
    /// `/ns/<namespace>/sa/<service>`: the service stands where Istio has the service account.
    Istio,
}

/// The identity of a workload: every instance of one service has the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpiffeId {
    /// The mesh it belongs to.
    pub trust_domain: TrustDomain,
    /// The service's namespace.
    pub namespace: Namespace,
    /// The service's datacentre; `None` in Istio's layout, which does not name it.
    pub datacenter: Option<Datacenter>,
    /// The service.
    pub service: ServiceName,
}

impl SpiffeId {
    /// The identity of `service`, in the given layout.
    #[must_use]
    pub fn new(
        layout: Layout,
        trust_domain: TrustDomain,
        namespace: Namespace,
        datacenter: Datacenter,
        service: ServiceName,
    ) -> Self {
        let datacenter = match layout {
            Layout::Consul => Some(datacenter),
            Layout::Istio => None,
        };
        Self { trust_domain, namespace, datacenter, service }
    }

    /// The layout in which it is written.
    #[must_use]
    pub fn layout(&self) -> Layout {
        if self.datacenter.is_some() { Layout::Consul } else { Layout::Istio }
    }

    /// The identity as URI.
    #[must_use]
    pub fn to_uri(&self) -> String {
        self.to_string()
    }
}

/// Everyone who holds a certificate of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A service.
    Workload(SpiffeId),
    /// The agent of one node.
    Agent {
        /// The mesh it belongs to.
        trust_domain: TrustDomain,
        /// The agent's datacentre.
        datacenter: Datacenter,
        /// The node on which it runs.
        node: NodeName,
    },
    /// A server; the servers of one datacentre are interchangeable and share the identity.
    Server {
        /// The mesh it belongs to.
        trust_domain: TrustDomain,
        /// The server's datacentre.
        datacenter: Datacenter,
    },
    /// A relay: it serves agents as a server does, and speaks for the nodes behind it.
    Relay {
        /// The mesh it belongs to.
        trust_domain: TrustDomain,
        /// The relay's datacentre.
        datacenter: Datacenter,
        /// What it is called.
        relay: NodeName,
    },
    /// The CA itself: the trust domain without a path. Only roots bear it, never a party to a connection.
    Authority(TrustDomain),
}

impl Identity {
    /// The mesh it belongs to.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        match self {
            Self::Workload(id) => &id.trust_domain,
            Self::Agent { trust_domain, .. }
            | Self::Server { trust_domain, .. }
            | Self::Relay { trust_domain, .. }
            | Self::Authority(trust_domain) => trust_domain,
        }
    }

    /// The identity as URI.
    #[must_use]
    pub fn to_uri(&self) -> String {
        self.to_string()
    }
}

/// Why a text is not a SPIFFE ID of this mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeIdError {
    /// Longer than the limit.
    #[error("SPIFFE ID is {len} bytes long; at most {SPIFFE_ID_BYTES_MAX} are allowed")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// Another scheme, or the scheme in other letters.
    #[error("SPIFFE ID does not begin with spiffe://")]
    Scheme,
    /// Has `%`: two texts could mean the same.
    #[error("SPIFFE ID is percent-encoded")]
    PercentEncoding,
    /// Has `?`.
    #[error("SPIFFE ID has a query")]
    Query,
    /// Has `#`.
    #[error("SPIFFE ID has a fragment")]
    Fragment,
    /// Has `@` before the path.
    #[error("SPIFFE ID has user information")]
    UserInformation,
    /// Has `:` before the path.
    #[error("SPIFFE ID has a port")]
    Port,
    /// Ends with `/`.
    #[error("SPIFFE ID ends with a slash")]
    TrailingSlash,
    /// Has `//` in the path.
    #[error("SPIFFE ID has an empty path segment")]
    EmptySegment,
    /// The path is of no form that the mesh knows.
    #[error("SPIFFE ID is neither of a workload, an agent, a server, a relay nor a CA")]
    Path,
    /// The path is a good one, but not a workload's.
    #[error("SPIFFE ID is not of a workload")]
    NotAWorkload,
    /// A name in it is outside its grammar.
    #[error("SPIFFE ID has a part outside its grammar")]
    Name(#[from] NameError),
}

impl FromStr for Identity {
    type Err = SpiffeIdError;

    /// Parses a URI strictly.
    ///
    /// Source: SPIFFE ID specification, section 2.
    fn from_str(text: &str) -> Result<Self, SpiffeIdError> {
        let (authority, path) = split(text)?;
        let trust_domain = TrustDomain::new(authority)?;
        let Some(path) = path else {
            return Ok(Self::Authority(trust_domain));
        };
        if path.is_empty() || path.ends_with('/') {
            return Err(SpiffeIdError::TrailingSlash);
        }
        let segments: Vec<&str> = path.split('/').collect();
        if segments.contains(&"") {
            return Err(SpiffeIdError::EmptySegment);
        }
        match *segments.as_slice() {
            ["ns", namespace, "dc", datacenter, "svc", service] => Ok(Self::Workload(SpiffeId {
                trust_domain,
                namespace: namespace.parse()?,
                datacenter: Some(datacenter.parse()?),
                service: service.parse()?,
            })),
            ["ns", namespace, "sa", service] => Ok(Self::Workload(SpiffeId {
                trust_domain,
                namespace: namespace.parse()?,
                datacenter: None,
                service: service.parse()?,
            })),
            ["agent", "client", "dc", datacenter, "id", node] => {
                Ok(Self::Agent { trust_domain, datacenter: datacenter.parse()?, node: node.parse()? })
            }
            ["agent", "server", "dc", datacenter] => Ok(Self::Server { trust_domain, datacenter: datacenter.parse()? }),
            ["agent", "relay", "dc", datacenter, "id", relay] => {
                Ok(Self::Relay { trust_domain, datacenter: datacenter.parse()?, relay: relay.parse()? })
            }
            _ => Err(SpiffeIdError::Path),
        }
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeIdError;

    /// Parses the URI of a workload strictly, in either layout.
    fn from_str(text: &str) -> Result<Self, SpiffeIdError> {
        match text.parse()? {
            Identity::Workload(id) => Ok(id),
            Identity::Agent { .. } | Identity::Server { .. } | Identity::Relay { .. } | Identity::Authority(_) => {
                Err(SpiffeIdError::NotAWorkload)
            }
        }
    }
}

/// The authority, and what follows its slash if there is one.
fn split(text: &str) -> Result<(&str, Option<&str>), SpiffeIdError> {
    if text.len() > SPIFFE_ID_BYTES_MAX {
        return Err(SpiffeIdError::TooLong { len: text.len() });
    }
    let rest = text.strip_prefix(SCHEME).ok_or(SpiffeIdError::Scheme)?;
    for character in rest.chars() {
        match character {
            '%' => return Err(SpiffeIdError::PercentEncoding),
            '?' => return Err(SpiffeIdError::Query),
            '#' => return Err(SpiffeIdError::Fragment),
            _ => {}
        }
    }
    let (authority, path) = rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    if authority.contains('@') {
        return Err(SpiffeIdError::UserInformation);
    }
    if authority.contains(':') {
        return Err(SpiffeIdError::Port);
    }
    Ok((authority, path))
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, namespace, datacenter, service } = self;
        match datacenter {
            Some(datacenter) => write!(f, "{SCHEME}{trust_domain}/ns/{namespace}/dc/{datacenter}/svc/{service}"),
            None => write!(f, "{SCHEME}{trust_domain}/ns/{namespace}/sa/{service}"),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(id) => id.fmt(f),
            Self::Agent { trust_domain, datacenter, node } => {
                write!(f, "{SCHEME}{trust_domain}/agent/client/dc/{datacenter}/id/{node}")
            }
            Self::Server { trust_domain, datacenter } => {
                write!(f, "{SCHEME}{trust_domain}/agent/server/dc/{datacenter}")
            }
            Self::Relay { trust_domain, datacenter, relay } => {
                write!(f, "{SCHEME}{trust_domain}/agent/relay/dc/{datacenter}/id/{relay}")
            }
            Self::Authority(trust_domain) => write!(f, "{SCHEME}{trust_domain}"),
        }
    }
}
