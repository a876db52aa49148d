//! TLS towards the API, for those who put it behind HTTPS.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};

use crate::outcome::usage;

/// The files of a TLS client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TlsFiles<'a> {
    /// The CA certificates that the API's must chain to.
    pub(crate) ca: Option<&'a Path>,
    /// The client's own certificate.
    pub(crate) certificate: Option<&'a Path>,
    /// Its private key.
    pub(crate) key: Option<&'a Path>,
}

/// A configuration from files in PEM.
///
/// # Errors
/// If no CA is given, half a client certificate is given, or a file does not hold what it should.
pub(crate) fn client_config(files: TlsFiles<'_>) -> anyhow::Result<Arc<ClientConfig>> {
    let Some(ca) = files.ca else {
        return Err(usage("https needs the CA that signed the API's certificate: give --ca-file or CONSUL_CACERT"));
    };
    let mut roots = RootCertStore::empty();
    for certificate in rustls_pemfile::certs(&mut read(ca)?.as_slice()) {
        let certificate = certificate.with_context(|| format!("{} is no PEM", ca.display()))?;
        roots.add(certificate).with_context(|| format!("{} holds a certificate that is none", ca.display()))?;
    }
    if roots.is_empty() {
        return Err(usage(format!("{} holds no certificate", ca.display())));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS is not available")?
        .with_root_certificates(roots);
    let config = match (files.certificate, files.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
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
        (Some(_), None) | (None, Some(_)) => {
            return Err(usage("CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY go together; one of them is missing"));
        }
    };
    Ok(Arc::new(config))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))
}
