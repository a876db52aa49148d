//! A caller without a sidecar of its own: it shows the certificate of the calling service.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::registrations::CALLER;
use crate::api::Api;
use crate::echo::identity;
use crate::load::AnyServer;

/// Longest wait for a handshake on this machine.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Leaf {
    #[serde(rename = "CertPEM")]
    certificate_pem: String,
    #[serde(rename = "PrivateKeyPEM")]
    private_key_pem: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Roots {
    roots: Vec<Root>,
}

#[derive(Debug, Deserialize)]
struct Root {
    #[serde(rename = "RootCert")]
    certificate_pem: String,
}

/// Writes what an application needs that speaks mutual TLS as a service, as [`identity`] names it, into a folder.
///
/// # Errors
/// When the agent gives no certificate, or the folder cannot be written.
pub(crate) async fn write_identity(agent: &mut Api, service: &str, folder: &Path) -> anyhow::Result<()> {
    let leaf = leaf(agent, service).await?;
    let Roots { roots } = agent.read("/v1/agent/connect/ca/roots", Duration::ZERO).await?;
    let roots: String = roots.into_iter().map(|root| root.certificate_pem + "\n").collect();
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let files =
        [(identity::CHAIN, leaf.certificate_pem), (identity::KEY, leaf.private_key_pem), (identity::ROOTS, roots)];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

async fn leaf(agent: &mut Api, service: &str) -> anyhow::Result<Leaf> {
    agent.read(&format!("/v1/agent/connect/ca/leaf/{service}"), Duration::ZERO).await
}

/// TLS as the calling service does it, with a whole handshake for every connection.
///
/// # Errors
/// When the agent gives no certificate.
pub(crate) async fn as_caller(agent: &mut Api) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let leaf = leaf(agent, CALLER).await?;
    let chain = rustls_pemfile::certs(&mut leaf.certificate_pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = rustls_pemfile::private_key(&mut leaf.private_key_pem.as_bytes()).context("cannot read a private key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().context("cannot make a TLS configuration")?;
    // What is measured is the proxy, which this process has started.
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)));
    let mut config = builder
        .with_client_auth_cert(chain.context("cannot read a certificate")?, key.context("there is no private key")?)
        .context("the calling service's certificate is not one")?;
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from("bench.invalid").context("cannot name a server")?;
    Ok((Arc::new(config), name))
}

/// The certificate that a sidecar shows its callers, in DER.
///
/// # Errors
/// When it cannot be reached, or shows none.
pub(crate) async fn shown_at(
    address: SocketAddr,
    (config, name): &(Arc<ClientConfig>, ServerName<'static>),
) -> anyhow::Result<Vec<u8>> {
    let handshake = async {
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await
    };
    let stream = tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await.context("no handshake in time")??;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().context("no certificate is shown")?.to_vec())
}
