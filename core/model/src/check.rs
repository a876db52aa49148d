//! Health checks: what is known of them, and how an agent runs them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::name::{CheckId, InstanceId, NodeName, ServiceName};
use crate::opaque::OpaqueSettings;

/// The check that says whether a node's agent is alive, named as Consul names it. The server keeps it.
pub const LIVENESS_CHECK: &str = "serfHealth";

/// Name and identifier of the service by which Consul's clients find servers.
pub const CONSUL_SERVICE: &str = "consul";

/// What that check says of a node that is lost.
pub const LIVENESS_LOST: &str = "Agent not attached to any server";

/// Health as Consul orders it: the worst check decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// In order.
    Passing,
    /// Still serving.
    Warning,
    /// Out of every endpoint set.
    Critical,
}

impl CheckStatus {
    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl std::str::FromStr for CheckStatus {
    type Err = UnknownStatus;
    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        match text {
            "passing" => Ok(Self::Passing),
            "warning" => Ok(Self::Warning),
            "critical" => Ok(Self::Critical),
            _ => Err(UnknownStatus(text.to_owned())),
        }
    }
}

/// A text that is no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no check status; it is one of passing, warning, critical")]
pub struct UnknownStatus(pub String);

/// A check as the catalog knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The node it runs on.
    pub node: NodeName,
    /// Its identifier on that node.
    pub id: CheckId,
    /// A name for people.
    pub name: String,
    /// The last result.
    pub status: CheckStatus,
    /// Notes for people.
    #[serde(default)]
    pub notes: String,
    /// What the last run printed or answered, cut at [`OUTPUT_BYTES_MAX`].
    #[serde(default)]
    pub output: String,
    /// The instance it speaks of; `None` for a check of the whole node.
    #[serde(default)]
    pub service: Option<CheckedService>,
    /// Consul's word for the kind: `http`, `tcp`, `grpc`, `ttl`, `script`, `alias`, or empty.
    #[serde(default)]
    pub kind: String,
    /// The interval as given (`10s`), for display; empty for none.
    #[serde(default)]
    pub interval: String,
    /// The timeout as given, for display; empty for none.
    #[serde(default)]
    pub timeout: String,
    /// How whoever registered it without an agent runs it, by Consul's names (`TCP`, `Interval`); nothing here does.
    #[serde(default, skip_serializing_if = "no_definition")]
    pub definition: OpaqueSettings,
}

fn no_definition(definition: &OpaqueSettings) -> bool {
    definition.is_empty()
}

/// Bytes of check output kept; Consul's default for `check_output_max_size`.
pub const OUTPUT_BYTES_MAX: usize = 4096;

/// The instance of which a check speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedService {
    /// Instance on the same node.
    pub id: InstanceId,
    /// Its service.
    pub name: ServiceName,
    /// Its tags at registration.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// How an agent comes to a check's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckDefinition {
    /// What is done.
    pub kind: CheckKind,
    /// Time between the end of one run and the start of the next.
    pub interval: Duration,
    /// Time after which a run has failed.
    pub timeout: Duration,
    /// Passing results in a row before the status becomes passing; 1 means at once (Consul's field counts from 0).
    pub success_before_passing: u32,
    /// Failures in a row before the status becomes warning.
    pub failures_before_warning: u32,
    /// Failures in a row before the status becomes critical.
    pub failures_before_critical: u32,
    /// How long a critical check may stay so before its service is removed; `None` means for ever.
    pub deregister_after: Option<Duration>,
}

/// The ways of checking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// A request; 2xx passes, 429 warns, everything else is critical.
    Http {
        /// Absolute URL, `http` or `https`.
        url: String,
        /// Method, `GET` unless given.
        method: String,
        /// Header fields, possibly several values each.
        headers: BTreeMap<String, Vec<String>>,
        /// Request body, may be empty.
        body: String,
        /// Do not verify the certificate.
        tls_skip_verify: bool,
        /// Server name for SNI and verification; empty means the URL's host.
        tls_server_name: String,
        /// Do not follow redirects.
        disable_redirects: bool,
    },
    /// A TCP connection that is accepted passes.
    Tcp {
        /// `host:port`.
        address: String,
        /// Whether it has to become a TLS connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<CheckTls>,
    },
    /// A datagram that is answered passes.
    Udp {
        /// `host:port`.
        address: String,
    },
    /// An HTTP/2 connection that answers a PING passes (RFC 9113, section 6.7).
    H2Ping {
        /// `host:port`.
        address: String,
        /// Over TLS.
        tls: Option<CheckTls>,
    },
    /// `grpc.health.v1.Health/Check`; SERVING passes.
    Grpc {
        /// `host:port`.
        address: String,
        /// Service asked for; empty means the server.
        service: String,
        /// Over TLS.
        tls: bool,
        /// Do not verify the certificate.
        tls_skip_verify: bool,
        /// Server name for SNI and verification; empty means the host.
        tls_server_name: String,
    },
    /// The application reports; silence longer than this is critical.
    Ttl {
        /// The longest silence.
        ttl: Duration,
    },
    /// A command: exit 0 passes, 1 warns, everything else is critical. Only with script checks enabled.
    Script {
        /// Program and arguments; no shell.
        args: Vec<String>,
    },
    /// A command in a container, run by Docker: exit 0 passes, 1 warns, everything else is critical. Only with script checks enabled.
    Docker {
        /// The container's identifier or name.
        container: String,
        /// The shell that runs the command; empty for none.
        shell: String,
        /// Program and arguments.
        args: Vec<String>,
    },
    /// Follows another instance or node: any of its checks critical makes this one critical.
    Alias {
        /// Node looked at; `None` means this one.
        node: Option<NodeName>,
        /// Instance looked at; `None` means the node's own checks.
        service: Option<InstanceId>,
    },
    /// Nothing is run: somebody has put it there, and it stays as it is until somebody takes it away.
    Maintenance,
}

/// How a server that is checked is believed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckTls {
    /// Do not verify the certificate.
    pub skip_verify: bool,
    /// Server name for SNI and verification; empty means the host.
    pub server_name: String,
}

impl CheckKind {
    /// A TCP connection to `host:port`.
    #[must_use]
    pub fn tcp(address: impl Into<String>) -> Self {
        Self::Tcp { address: address.into(), tls: None }
    }

    /// Consul's word for the kind.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Tcp { .. } => "tcp",
            Self::Udp { .. } => "udp",
            Self::H2Ping { .. } => "h2ping",
            Self::Docker { .. } => "docker",
            Self::Grpc { .. } => "grpc",
            Self::Ttl { .. } => "ttl",
            Self::Script { .. } => "script",
            Self::Alias { .. } => "alias",
            Self::Maintenance => "maintenance",
        }
    }
}
