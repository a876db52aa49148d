//! The CA, its leaves and the handshakes between their holders, over the public interface.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "tls/agent_identity.rs"]
mod agent_identity;
#[path = "tls/agents.rs"]
mod agents;
#[path = "tls/authority.rs"]
mod authority;
#[path = "tls/external.rs"]
mod external;
#[path = "tls/handshake.rs"]
mod handshake;
#[path = "tls/issue.rs"]
mod issue;
#[path = "tls/mesh.rs"]
mod mesh;
#[path = "tls/secrets.rs"]
mod secrets;
