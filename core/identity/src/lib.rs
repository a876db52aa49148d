//! Who is who in the mesh: SPIFFE IDs, the tokens by which nodes join, the rules by which certificates are issued, and when
//! they are renewed.
//!
//! Everything here is a pure function of its arguments. The crate owns no keys, no certificates and no clock:
//! `adapters/tls` signs, the programs supply time and randomness. What is deliberately absent is any matching of
//! identities as text: a URI is parsed once, and compared as structure from then on.

mod base64url;
pub mod cluster;
pub mod issuance;
pub mod join;
pub mod renewal;
pub mod sni;
pub mod spiffe;
pub use cluster::ClusterId;
pub use issuance::{
    CLOCK_SKEW, IssuanceError, IssuanceRules, LEAF_TTL_DEFAULT, LEAF_TTL_MAX, LEAF_TTL_MIN, ROOT_LIFETIME, Validity,
};
pub use join::{
    JOIN_TOKEN_TTL_DEFAULT, JOIN_TOKEN_TTL_MAX, JOIN_TOKEN_TTL_MIN, JoinSecret, JoinToken, JoinTokenError,
    JoinTokenTtlError, RootFingerprint, join_token_expiry,
};
pub use renewal::{RenewalError, renew_at};
pub use sni::{service_sni, subset_sni};
pub use spiffe::{Identity, Layout, SPIFFE_ID_BYTES_MAX, SpiffeId, SpiffeIdError};
pub use starling_model::{Uuid, UuidError};
