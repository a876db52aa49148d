//! TLS towards the API, for those who put it behind HTTPS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use starling_tls::trusting_verifier;

use super::args::ApiArgs;
use super::authorities::Authorities;
use crate::environment::Environment;
use crate::outcome::usage;

/// What TLS is spoken with, as flags and environment give it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    /// The CA certificates that the server's must chain to.
    pub(crate) authorities: Option<Authorities>,
    /// The client's own certificate.
    certificate: Option<PathBuf>,
    /// Its private key.
    key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host's.
    pub(crate) server_name: Option<String>,
}

impl TlsSettings {
    /// What is given; a flag wins over a variable.
    pub(super) fn given(args: &ApiArgs, environment: &Environment) -> Self {
        Self {
            authorities: Authorities::given(args.ca_file.clone(), args.ca_path.clone())
                .or_else(|| environment.authorities.clone()),
            certificate: args.client_cert.clone().or_else(|| environment.client_cert.clone()),
            key: args.client_key.clone().or_else(|| environment.client_key.clone()),
            server_name: args.tls_server_name.clone().or_else(|| environment.tls_server_name.clone()),
        }
    }

    /// The client's certificate and its private key, if it has any.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if only one of them is given.
    pub(crate) fn credentials(&self) -> anyhow::Result<Option<(&Path, &Path)>> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (Some(_), None) => Err(usage("--client-cert and CONSUL_CLIENT_CERT need the key: give --client-key")),
            (None, Some(_)) => {
                Err(usage("--client-key and CONSUL_CLIENT_KEY need the certificate: give --client-cert"))
            }
        }
    }
}

/// A configuration from files in PEM.
///
/// # Errors
/// If no CA is given, half a client certificate is given, or a file does not hold what it should.
pub(super) fn client_config(settings: &TlsSettings) -> anyhow::Result<Arc<ClientConfig>> {
    let Some(authorities) = &settings.authorities else {
        return Err(usage(
            "https needs the CA that signed the API's certificate: give --ca-file, --ca-path, CONSUL_CACERT or \
             CONSUL_CAPATH",
        ));
    };
    let config = trusting(&authorities.pem()?, settings.credentials()?)
        .with_context(|| format!("TLS with what {} holds", authorities.path().display()))?;
    Ok(Arc::new(config))
}

/// A client that believes these authorities, in PEM, and shows this certificate with this key.
///
/// # Errors
/// If something does not hold what it should.
pub(crate) fn trusting(authorities: &str, credentials: Option<(&Path, &Path)>) -> anyhow::Result<ClientConfig> {
    let trusted: Vec<_> = rustls_pemfile::certs(&mut authorities.as_bytes()).collect::<Result<_, _>>()?;
    for certificate in &trusted {
        RootCertStore::empty().add(certificate.clone()).context("a CA certificate is none")?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = trusting_verifier(trusted, Arc::clone(&provider)).context("there is no certificate in PEM")?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS is not available")?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match credentials {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = rustls_pemfile::certs(&mut read(certificate)?.as_slice())
                .collect::<Result<Vec<_>, _>>()
                .with_context(|| format!("{} is no PEM", certificate.display()))?;
            let private_key = rustls_pemfile::private_key(&mut read(key)?.as_slice())
                .with_context(|| format!("{} is no PEM", key.display()))?
                .ok_or_else(|| usage(format!("{} holds no private key", key.display())))?;
            builder
                .with_client_auth_cert(chain, private_key)
                .context("the client certificate and its key do not serve")?
        }
    };
    Ok(config)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))
}
