//! A workload's certificate, its key and whom it trusts, as TLS configurations.

use std::sync::Arc;

use rustls::{ClientConfig, ServerConfig};
use starling_identity::Identity;
use starling_tls::{
    Alpn, ConfigError, CredentialSlot, Credentials, TrustRoots, workload_client_config, workload_server_config,
};

/// What a workload shows and whom it believes. A renewed certificate replaces the one in the slot and is shown from the next
/// handshake on; other roots are other keys.
#[derive(Debug)]
pub struct Keys {
    credentials: Arc<CredentialSlot>,
    roots: TrustRoots,
    opaque: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Keys {
    /// The keys of one workload.
    ///
    /// # Errors
    /// [`ConfigError`] if the crypto provider or the roots do not allow it.
    pub fn new(credentials: Credentials, roots: TrustRoots) -> Result<Self, ConfigError> {
        let credentials = CredentialSlot::new(credentials);
        let opaque = Arc::new(workload_server_config(Arc::clone(&credentials), &roots, Alpn::Opaque)?);
        let http = Arc::new(workload_server_config(Arc::clone(&credentials), &roots, Alpn::AnyHttp)?);
        Ok(Self { credentials, roots, opaque, http })
    }

    /// Shows `credentials` from the next handshake on.
    pub fn renew(&self, credentials: Credentials) {
        self.credentials.replace(credentials);
    }

    /// Whom it stands for.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.credentials.current().identity().clone()
    }

    /// What is shown now.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        self.credentials.current()
    }

    /// Whom it believes.
    #[must_use]
    pub fn roots(&self) -> &TrustRoots {
        &self.roots
    }

    /// For those who call: TLS 1.3, and a certificate of the mesh.
    pub(crate) fn server(&self, is_http: bool) -> Arc<ServerConfig> {
        Arc::clone(if is_http { &self.http } else { &self.opaque })
    }

    /// For callers from outside: the certificate that is shown now.
    pub(crate) fn resolver(&self) -> Arc<CredentialSlot> {
        Arc::clone(&self.credentials)
    }

    /// For calling `expected` and nobody else.
    pub(crate) fn client(&self, expected: Identity, alpn: Alpn) -> Result<ClientConfig, ConfigError> {
        workload_client_config(Arc::clone(&self.credentials), &self.roots, expected, alpn)
    }
}
