//! Vault's PKI secrets engine as what signs: certificates are asked of it over HTTP, and the key of the CA never is here.
//!
//! What comes back is believed as little as what anybody sends: its names are those that were asked for and no others, its
//! key is the request's, and it leads to the root that the catalog says signs.
//!
//! | Module | Owns |
//! |---|---|
//! | [`pki`] | what is asked, and what of the answers is taken |
//! | [`wire`] | one request over one connection |
//!
//! Source: the API of the PKI secrets engine, `POST /v1/<mount>/sign/<role>` and `GET /v1/<mount>/ca_chain`.

pub mod pki;
pub mod wire;

pub use pki::{TIMEOUT_DEFAULT, VaultConfig, VaultPki};
pub use wire::{Address, AddressError, VaultError};
