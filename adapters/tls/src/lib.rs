//! Certificates and TLS: the built-in CA, keys that are born where they are used, and the rustls configurations of the
//! mesh.
//!
//! | Module | Owns |
//! |---|---|
//! | [`authority`] | the CA on disk, and the signing of leaves |
//! | [`key`] | private keys of leaves, and their certificate signing requests |
//! | [`credentials`] | a chain with its key, as a party to a connection presents it |
//! | [`agent_identity`] | an agent's certificate, key and roots on disk |
//! | [`roots`] | the roots that a party trusts |
//! | [`seal`] | the CA's key at rest, under a key of the operator |
//! | [`peer`] | who the other end of a connection is |
//! | [`edge`] | TLS for callers from outside the mesh |
//! | `api` | TLS for the HTTP API |
//! | `belief` | which server is believed |
//! | [`origin`] | TLS towards services outside the mesh |
//! | [`config`] | rustls configurations: TLS 1.3, mutual, by SPIFFE ID |
//!
//! What is deliberately absent: any way to read a root's private key, any choice by a requester of the names in its
//! certificate, and a process-wide crypto provider.

pub mod agent_identity;
mod api;
pub mod authority;
mod belief;
pub mod config;
pub mod credentials;
mod disk;
pub mod edge;
mod encoding;
pub mod key;
pub mod origin;
pub mod peer;
mod request;
pub mod roots;
pub mod seal;

pub use agent_identity::{AgentIdentity, AgentIdentityError};
pub use api::{ApiTlsError, LeastTls, api_server_config};
pub use authority::{
    AuthorityError, CertificateAuthority, ChainError, CreateError, ImportError, IssueError, IssuedError, IssuedLeaf,
    LeafProfile, OpenError, UnsealAuthorityError, UnsealReason, check_issued, external_root,
};
pub use belief::{Anybody, Belief, Believing, trusting_verifier};
pub use config::{
    Alpn, ClientAuth, ConfigError, TrustSlot, agent_client_config, agent_server_config, client_config,
    join_client_config, rotating_server_config, server_config, workload_client_config, workload_server_config,
};
pub use credentials::{CredentialSlot, Credentials, CredentialsError};
pub use edge::{EdgeCertificate, EdgeCertificateError, EdgeCertificates, dns_names, edge_server_config};
pub use key::{KeyError, LeafKey, SecretPem, random_secret};
pub use origin::{OriginConfigError, origin_client_config};
pub use peer::{Caller, PeerError, peer_identity, valid_until};
pub use request::{CertificateRequest, RequestError, requested_key};
pub use roots::{RootError, RootSummary, TrustRoots, root_fingerprint};
pub use seal::{SealKeyError, SealKeys, UnsealError};
