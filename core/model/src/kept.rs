//! Config entries on which nothing in this release acts (ADR 0021).
//!
//! Tools write them, read them back and compare. They are kept as they were given, and no proxy hears of them.

use serde::{Deserialize, Serialize};

use crate::name::ServiceName;
use crate::opaque::OpaqueSettings;

/// Consul's kinds of config entry that are kept and not acted upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptKind {
    /// Listeners of an API gateway.
    ApiGateway,
    /// What other partitions and peers may call.
    ExportedServices,
    /// A certificate of an API gateway, by the names of its files.
    FileSystemCertificate,
    /// Routes of an API gateway for requests.
    HttpRoute,
    /// A certificate of an API gateway. Its private key is not kept.
    InlineCertificate,
    /// Where the keys of tokens come from.
    JwtProvider,
    /// Routes of an API gateway for connections.
    TcpRoute,
    /// Services outside the mesh, and how they are called: as earlier releases have written it, which did not act on it.
    TerminatingGateway,
    /// Settings of Consul's autopilot. No entry of users: an endpoint of its own writes it.
    Autopilot,
    /// A prepared query, by its identifier; an endpoint of its own writes and carries it out.
    PreparedQuery,
}

impl KeptKind {
    /// Every kind that users write as a config entry, in the order of their names.
    pub const ALL: [Self; 7] = [
        Self::ApiGateway,
        Self::ExportedServices,
        Self::FileSystemCertificate,
        Self::HttpRoute,
        Self::InlineCertificate,
        Self::JwtProvider,
        Self::TcpRoute,
    ];

    /// Those that have an endpoint of their own.
    pub const APART: [Self; 2] = [Self::Autopilot, Self::PreparedQuery];

    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiGateway => "api-gateway",
            Self::ExportedServices => "exported-services",
            Self::FileSystemCertificate => "file-system-certificate",
            Self::HttpRoute => "http-route",
            Self::InlineCertificate => "inline-certificate",
            Self::JwtProvider => "jwt-provider",
            Self::TcpRoute => "tcp-route",
            Self::TerminatingGateway => "terminating-gateway",
            Self::Autopilot => "autopilot-configuration",
            Self::PreparedQuery => "prepared-query",
        }
    }
}

/// An entry of such a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptEntry {
    /// Its kind.
    pub kind: KeptKind,
    /// Its name, which obeys the grammar of a service's.
    pub name: ServiceName,
    /// Everything else, as it was given, by Consul's names.
    pub settings: OpaqueSettings,
}
