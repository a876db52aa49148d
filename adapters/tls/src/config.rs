//! rustls configurations of the mesh: TLS 1.3, HTTP/2, both ends known by SPIFFE ID.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};
use starling_identity::Identity;
use starling_model::TrustDomain;

use crate::credentials::CredentialSlot;
use crate::peer::{PeerError, member_identity};
use crate::roots::TrustRoots;

/// The protocol spoken inside: HTTP/2 over TLS (RFC 9113, section 3.1).
const ALPN_HTTP2: &[u8] = b"h2";

/// Why a configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// TLS 1.3 is not offered by the crypto provider.
    #[error("TLS 1.3 is not available")]
    Protocol(#[source] rustls::Error),
    /// The roots cannot verify clients.
    #[error("client certificates cannot be verified")]
    Verifier(#[source] VerifierBuilderError),
}

/// Whether a client must show who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate, no connection.
    Required,
    /// A client may come without a certificate; one that it shows must be good.
    Optional,
}

/// The configuration of a server that knows its clients by their certificates.
///
/// Sessions are never resumed: a resumed one would outlive the client's certificate and its root. A full handshake
/// costs a fraction of a millisecond.
///
/// # Errors
/// [`ConfigError`] if the crypto provider or the roots do not allow it.
pub fn server_config(
    credentials: Arc<CredentialSlot>,
    roots: &TrustRoots,
    client_auth: ClientAuth,
) -> Result<ServerConfig, ConfigError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(roots.store(), Arc::clone(&provider));
    let builder = match client_auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional => builder.allow_unauthenticated(),
    };
    let chain = builder.build().map_err(ConfigError::Verifier)?;
    let verifier = MemberVerifier { chain, trust_domain: roots.trust_domain().clone() };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(ConfigError::Protocol)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(credentials);
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The configuration of a client that accepts `expected` and nobody else, whatever name or address it dials.
///
/// Without credentials the client stays anonymous.
///
/// # Errors
/// [`ConfigError::Protocol`] if the crypto provider does not allow it.
pub fn client_config(
    credentials: Option<Arc<CredentialSlot>>,
    roots: &TrustRoots,
    expected: Identity,
) -> Result<ClientConfig, ConfigError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = ExpectedServer {
        provider: Arc::clone(&provider),
        roots: roots.store(),
        trust_domain: roots.trust_domain().clone(),
        expected,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(ConfigError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match credentials {
        Some(slot) => builder.with_client_cert_resolver(slot),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn refused(error: PeerError) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

/// Accepts clients whose chain ends at a root and whose leaf is a member of its trust domain.
#[derive(Debug)]
struct MemberVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
}

impl ClientCertVerifier for MemberVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        member_identity(end_entity, &self.trust_domain).map_err(refused)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Accepts one server, by its identity; DNS names play no part.
#[derive(Debug)]
struct ExpectedServer {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    trust_domain: TrustDomain,
    expected: Identity,
}

impl ServerCertVerifier for ExpectedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        let found = member_identity(end_entity, &self.trust_domain).map_err(refused)?;
        if found != self.expected {
            return Err(refused(PeerError::Unexpected {
                found: Box::new(found),
                wanted: Box::new(self.expected.clone()),
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
