//! A caller without a sidecar of its own: it shows the certificate of the calling service.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use serde::Deserialize;

use super::registrations::CALLER;
use crate::api::Api;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Leaf {
    #[serde(rename = "CertPEM")]
    certificate_pem: String,
    #[serde(rename = "PrivateKeyPEM")]
    private_key_pem: String,
}

/// TLS as the calling service does it, with a whole handshake for every connection.
///
/// # Errors
/// When the agent gives no certificate.
pub(crate) async fn as_caller(agent: &mut Api) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let leaf: Leaf = agent.read(&format!("/v1/agent/connect/ca/leaf/{CALLER}"), Duration::ZERO).await?;
    let chain = rustls_pemfile::certs(&mut leaf.certificate_pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = rustls_pemfile::private_key(&mut leaf.private_key_pem.as_bytes()).context("cannot read a private key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().context("cannot make a TLS configuration")?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)));
    let mut config = builder
        .with_client_auth_cert(chain.context("cannot read a certificate")?, key.context("there is no private key")?)
        .context("the calling service's certificate is not one")?;
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from("bench.invalid").context("cannot name a server")?;
    Ok((Arc::new(config), name))
}

/// Takes whoever has the key of the certificate it shows: what is measured is the proxy, which this process has started.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
