//! A certificate chain with its key, as a party to a connection presents it, and the slot in which it is renewed.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use starling_identity::{Identity, Validity};

use crate::key::{KeyError, LeafKey};
use crate::peer::{PeerError, parse, party};
use crate::roots::validity;

/// Why a chain and a key are no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The chain is not PEM of certificates.
    #[error("the certificate chain is not PEM")]
    Malformed,
    /// The leaf stands for nobody in the mesh.
    #[error("the certificate chain has no identity")]
    Identity(#[from] PeerError),
    /// The key cannot be used.
    #[error("the private key cannot be used")]
    Key(#[from] KeyError),
    /// The chain was issued for another key.
    #[error("the certificate is not of this private key")]
    Mismatch,
}

/// A chain, leaf first, and the key that belongs to its leaf.
#[derive(Clone)]
pub struct Credentials {
    identity: Identity,
    validity: Validity,
    certified: Arc<CertifiedKey>,
}

impl Credentials {
    /// Joins a chain in PEM with its key.
    ///
    /// # Errors
    /// [`CredentialsError`] if the chain cannot be read, bears no identity or belongs to another key.
    pub fn new(chain_pem: &str, key: &LeafKey) -> Result<Self, CredentialsError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| CredentialsError::Malformed)?;
        let leaf = parse(chain.first().ok_or(PeerError::NoCertificate)?)?;
        let identity = party(&leaf)?;
        let validity = validity(&leaf).ok_or(PeerError::Malformed)?;
        let certified = CertifiedKey::new(chain, key.to_signer()?);
        certified.keys_match().map_err(|_| CredentialsError::Mismatch)?;
        Ok(Self { identity, validity, certified: Arc::new(certified) })
    }

    /// Whom they stand for.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When the certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// The serial number of the certificate, as hexadecimal pairs with colons.
    #[must_use]
    pub fn serial(&self) -> String {
        let leaf = self.certified.cert.first().and_then(|leaf| parse(leaf).ok());
        leaf.map(|leaf| leaf.raw_serial_as_string()).unwrap_or_default()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The credentials in use. Renewal replaces them for new handshakes; connections that stand are not touched.
pub struct CredentialSlot(RwLock<Credentials>);

impl CredentialSlot {
    /// A slot that holds `credentials`.
    #[must_use]
    pub fn new(credentials: Credentials) -> Arc<Self> {
        Arc::new(Self(RwLock::new(credentials)))
    }

    /// Uses `credentials` from the next handshake on.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = credentials;
    }

    /// The credentials now in use.
    #[must_use]
    pub fn current(&self) -> Credentials {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for CredentialSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CredentialSlot").field(&self.current()).finish()
    }
}

impl ResolvesServerCert for CredentialSlot {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current().certified)
    }
}

impl ResolvesClientCert for CredentialSlot {
    fn resolve(&self, _root_hint_subjects: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current().certified)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
