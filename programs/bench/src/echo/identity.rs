//! The application as a workload without a sidecar: it speaks mutual TLS itself.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Its certificate and those above it.
pub(crate) const CHAIN: &str = "chain.pem";

/// Its private key.
pub(crate) const KEY: &str = "key.pem";

/// Whom it believes.
pub(crate) const ROOTS: &str = "roots.pem";

/// Takes callers whom the mesh has certified, whoever they are: what is measured is the proxy in front of it.
///
/// # Errors
/// When a file is missing or is not what it should be.
pub(super) fn acceptor(folder: &Path) -> anyhow::Result<TlsAcceptor> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let certificates = |name: &str| {
        let found = rustls_pemfile::certs(&mut read(name)?.as_slice()).collect::<Result<Vec<_>, _>>();
        found.with_context(|| format!("{name} holds something else than certificates"))
    };
    let key = rustls_pemfile::private_key(&mut read(KEY)?.as_slice()).with_context(|| format!("cannot read {KEY}"))?;
    let mut roots = RootCertStore::empty();
    for root in certificates(ROOTS)? {
        roots.add(root).with_context(|| format!("{ROOTS} holds what is no root"))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder
        .context("cannot make a TLS configuration")?
        .with_client_cert_verifier(verifier.context("cannot verify callers")?)
        .with_single_cert(certificates(CHAIN)?, key.with_context(|| format!("{KEY} holds no private key"))?);
    Ok(TlsAcceptor::from(Arc::new(config.context("the certificate is not one that can be shown")?)))
}
