//! TLS for the HTTP API, with a certificate that the operator brings, and perhaps with callers who have to show one.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::edge::{EdgeCertificate, EdgeCertificateError};

/// The oldest version of TLS that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeastTls {
    /// 1.2, and 1.3 with those who can.
    #[default]
    Tls12,
    /// 1.3 alone.
    Tls13,
}

impl LeastTls {
    fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            Self::Tls12 => vec![&TLS13, &TLS12],
            Self::Tls13 => vec![&TLS13],
        }
    }
}

/// Why the API cannot be served over TLS.
#[derive(Debug, thiserror::Error)]
pub enum ApiTlsError {
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] EdgeCertificateError),
    /// The CA of callers cannot be used.
    #[error("the CA of callers holds no certificate in PEM that can be used")]
    Callers,
    /// TLS cannot be configured so.
    #[error("TLS cannot be configured")]
    Tls(#[from] rustls::Error),
}

/// A configuration from a chain, leaf first, and its key; with `callers`, whoever calls has to show a certificate of one of these CAs. All
/// in PEM.
///
/// # Errors
/// [`ApiTlsError`] if something cannot be used.
pub fn api_server_config(
    chain: &[u8],
    key: &[u8],
    callers: Option<&[u8]>,
    least: LeastTls,
) -> Result<Arc<ServerConfig>, ApiTlsError> {
    // Says what is wrong with them in words.
    EdgeCertificate::from_pem(chain, key)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|_| EdgeCertificateError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| EdgeCertificateError::Key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&least.versions())?;
    let builder = match callers {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(|_| ApiTlsError::Callers)?).map_err(|_| ApiTlsError::Callers)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|_| ApiTlsError::Callers)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
