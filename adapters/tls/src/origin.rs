//! TLS towards services outside the mesh, by files that users bring: their authorities decide whom to believe.
//!
//! TLS 1.2 or 1.3; what is shown to them is a certificate of the user's, if anything.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SignatureVerificationAlgorithm, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::VerifierBuilderError;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};

use crate::belief::{Belief, Believing};
use crate::config::Alpn;

/// Why services outside cannot be called by these files.
#[derive(Debug, thiserror::Error)]
pub enum OriginConfigError {
    /// There is no authority that can be used.
    #[error("there is no certificate of an authority in PEM")]
    Authorities,
    /// There is no certificate to be shown.
    #[error("there is no certificate in PEM")]
    Certificate,
    /// There is no key.
    #[error("there is no private key in PEM")]
    Key,
    /// The certificate and the key are of no use together.
    #[error("the certificate and its private key cannot be used")]
    Pair(#[source] rustls::Error),
    /// The crypto provider does not allow it.
    #[error("TLS 1.2 and 1.3 are not available")]
    Protocol(#[source] rustls::Error),
    /// The authorities cannot verify servers.
    #[error("server certificates cannot be verified")]
    Verifier(#[source] VerifierBuilderError),
}

/// The configuration with which a service outside is called. Its certificate has to chain to one of `authorities`, and to have the name
/// that is asked for where `checks_name`; `shown` is a chain, leaf first, with its key. All in PEM.
///
/// # Errors
/// [`OriginConfigError`] if the files are of no use.
pub fn origin_client_config(
    authorities: &[u8],
    shown: Option<(&[u8], &[u8])>,
    checks_name: bool,
    alpn: Alpn,
) -> Result<ClientConfig, OriginConfigError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(authorities).flatten());
    if roots.is_empty() {
        return Err(OriginConfigError::Authorities);
    }
    let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
    let verifier: Arc<dyn ServerCertVerifier> = if checks_name {
        WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(OriginConfigError::Verifier)?
    } else {
        let algorithms = provider.signature_verification_algorithms.all;
        Arc::new(Believing::new(Chained { roots, algorithms }, Arc::clone(&provider)))
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(OriginConfigError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
                .collect::<Result<_, _>>()
                .map_err(|_| OriginConfigError::Certificate)?;
            if chain.is_empty() {
                return Err(OriginConfigError::Certificate);
            }
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| OriginConfigError::Key)?;
            builder.with_client_auth_cert(chain, key).map_err(OriginConfigError::Pair)?
        }
    };
    config.alpn_protocols = alpn.protocols();
    Ok(config)
}

/// Believes whoever an authority vouches for, whatever the name: where users name none, there is none to be held against.
#[derive(Debug)]
struct Chained {
    roots: Arc<RootCertStore>,
    algorithms: &'static [&'static dyn SignatureVerificationAlgorithm],
}

impl Belief for Chained {
    fn believe(
        &self,
        certificate: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, behind, now, self.algorithms)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn made() -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["a.example.com".to_owned()]).expect("a name");
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    #[test]
    fn files_of_no_use_are_refused_by_what_is_missing() {
        let ((one, key), (_, other)) = (made(), made());
        let config = |authorities: &str, shown: Option<(&str, &str)>| {
            let shown = shown.map(|(chain, key)| (chain.as_bytes(), key.as_bytes()));
            origin_client_config(authorities.as_bytes(), shown, true, Alpn::Http1).map_err(|error| error.to_string())
        };
        assert_eq!(config(&one, Some((&one, &key))).expect("a configuration").alpn_protocols, [b"http/1.1"]);
        assert!(config(&one, None).is_ok());
        for (authorities, shown, expected) in [
            ("", None, "of an authority"),
            (&*key, None, "of an authority"),
            (&*one, Some(("", &*key)), "no certificate in PEM"),
            (&*one, Some((&*one, "")), "no private key"),
            (&*one, Some((&*one, &*other)), "cannot be used"),
        ] {
            let error = config(authorities, shown).map(|_| ()).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
