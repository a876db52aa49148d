//! TLS of the generator: whom it trusts, and what it shows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::plan::Protocol;

/// Where systems keep the authorities that they trust: Debian and Alpine, Fedora and RHEL, SUSE.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The part of the command line that is about TLS.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TlsArgs {
    /// CA certificates (PEM) that the server's has to be of, instead of the system's
    #[arg(long, value_name = "PATH", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Take any certificate of the server
    #[arg(short = 'k', long)]
    insecure: bool,
    /// Show the server a certificate: a PEM file with its chain
    #[arg(long, value_name = "PATH", requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's private key: a PEM file
    #[arg(long, value_name = "PATH", requires = "cert")]
    key: Option<PathBuf>,
}

impl TlsArgs {
    /// Whether any was given.
    pub(crate) fn is_given(&self) -> bool {
        self.ca.is_some() || self.insecure || self.cert.is_some()
    }

    /// How to speak it with `host`. Each connection has a whole handshake: what a new one costs is part of the figures.
    ///
    /// # Errors
    /// When a file cannot be read, or has not in it what it should have.
    pub(super) fn configuration(
        &self,
        host: &str,
        protocol: Protocol,
    ) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .context("cannot make a TLS configuration")?;
        let builder = match self.insecure {
            true => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
            false => builder.with_root_certificates(self.roots()?),
        };
        let mut config = match self.cert.as_deref().zip(self.key.as_deref()) {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| anyhow::anyhow!("no private key in {}: {error}", key.display()))?;
                let fitting = builder.with_client_auth_cert(certificates(cert)?, private);
                fitting.with_context(|| format!("{} and {} do not fit", cert.display(), key.display()))?
            }
        };
        config.resumption = Resumption::disabled();
        config.alpn_protocols = match protocol {
            Protocol::Http1 => vec![b"http/1.1".to_vec()],
            Protocol::Http2 | Protocol::Grpc => vec![b"h2".to_vec()],
            Protocol::Tcp => Vec::new(),
        };
        let name = ServerName::try_from(host.to_owned()).with_context(|| format!("{host:?} is no server name"))?;
        Ok((Arc::new(config), name))
    }

    fn roots(&self) -> anyhow::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| format!("a certificate in {}", path.display()))?;
            }
            return Ok(roots);
        }
        let Some(path) = SYSTEM_ROOTS.into_iter().map(Path::new).find(|path| path.exists()) else {
            bail!("the system's certificate authorities are in none of {SYSTEM_ROOTS:?}; name one with --ca");
        };
        roots.add_parsable_certificates(certificates(path)?);
        Ok(roots)
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))?;
    if found.is_empty() {
        bail!("no certificate in {}", path.display());
    }
    Ok(found)
}

/// Takes whoever has the key of the certificate it shows.
#[derive(Debug)]
pub(crate) struct AnyServer(pub(crate) Arc<CryptoProvider>);

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
