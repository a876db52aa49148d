//! A TLS client that presents whatever certificate a test gives it, and believes whoever answers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme, SupportedProtocolVersion,
};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest time for a handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// A certificate chain and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Leaf first.
    pub chain_pem: String,
    /// The key.
    pub key_pem: String,
}

impl Credentials {
    /// What `/v1/agent/connect/ca/leaf/SERVICE` answers.
    ///
    /// # Panics
    /// If it is no leaf.
    #[must_use]
    pub fn of_leaf(leaf: &Value) -> Self {
        let text = |field: &str| leaf[field].as_str().unwrap_or_else(|| panic!("no {field}: {leaf}")).to_owned();
        Self { chain_pem: text("CertPEM"), key_pem: text("PrivateKeyPEM") }
    }

    /// A certificate that names `uri`, of a CA that nobody has heard of.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn of_a_foreign_ca(uri: &str) -> Self {
        let ca_key = KeyPair::generate().expect("a key");
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().expect("a key");
        let mut leaf = CertificateParams::default();
        leaf.subject_alt_names = vec![SanType::URI(uri.try_into().expect("an ASCII URI"))];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = leaf.signed_by(&key, &issuer).expect("a certificate");
        Self { chain_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }

    /// The chain in DER.
    ///
    /// # Panics
    /// If it is no PEM.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.chain_pem.as_bytes()).collect();
        chain.expect("certificates in PEM")
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).expect("a private key in PEM")
    }

    /// A server that presents them and asks for nothing.
    ///
    /// # Panics
    /// If key and certificate do not belong together.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let config = config.expect("protocol versions").with_no_client_auth();
        Arc::new(config.with_single_cert(self.chain(), self.key()).expect("a key that fits"))
    }
}

/// Connects to `authority` with TLS of one `version`, presenting `credentials`.
///
/// In TLS 1.3 a server that refuses the certificate says so only after this has returned: what is read next fails.
///
/// # Errors
/// If the handshake fails.
pub async fn connect(
    authority: &str,
    credentials: Option<&Credentials>,
    version: &'static SupportedProtocolVersion,
) -> anyhow::Result<TlsStream<TcpStream>> {
    connect_to("mesh.test", authority, credentials, version).await
}

/// The same, asking for `name`.
///
/// # Errors
/// If the handshake fails.
pub async fn connect_to(
    name: &str,
    authority: &str,
    credentials: Option<&Credentials>,
    version: &'static SupportedProtocolVersion,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version])?;
    let config = config.dangerous().with_custom_certificate_verifier(trusts_anybody());
    let config = match credentials {
        Some(credentials) => config.with_client_auth_cert(credentials.chain(), credentials.key())?,
        None => config.with_no_client_auth(),
    };
    let stream = TcpStream::connect(authority).await?;
    let name = ServerName::try_from(name.to_owned())?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    Ok(tokio::time::timeout(HANDSHAKE_TIME_MAX, handshake).await.context("no handshake in time")??)
}

/// Checks that a chain leads to the root in `root_pem` and is valid now, for a client.
///
/// # Errors
/// What is wrong with it.
pub fn verify_chain(chain: &[CertificateDer<'static>], root_pem: &str) -> anyhow::Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root_pem.as_bytes())?)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
    let (leaf, intermediates) = chain.split_first().context("no certificate")?;
    verifier.verify_client_cert(leaf, intermediates, UnixTime::now())?;
    Ok(())
}

/// Trusts every server, for a client that checks or measures something else.
#[must_use]
pub fn trusts_anybody() -> Arc<dyn ServerCertVerifier> {
    Arc::new(Anybody(provider()))
}

/// The crypto of every side.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Believes every server; what it says is checked by the test itself.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
