//! TLS of health checks: whom they trust.
//!
//! A check is a client of the application, not of the mesh: it trusts the system's authorities, or anybody if asked to.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use starling_tls::{Anybody, Believing};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::Failure;

/// Where systems keep the authorities that they trust: Debian and Alpine, Fedora and RHEL, SUSE.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// Client configurations, made when first needed and then shared.
#[derive(Debug, Default)]
pub(super) struct Trust {
    system: OnceLock<ClientConfig>,
    anybody: OnceLock<ClientConfig>,
}

impl Trust {
    /// Makes a TLS connection over `stream`.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        host: &str,
        skip_verify: bool,
        alpn: Option<&[u8]>,
    ) -> Result<TlsStream<TcpStream>, Failure> {
        let (shared, make): (_, fn() -> Result<ClientConfig, Failure>) = match skip_verify {
            true => (&self.anybody, trust_anybody),
            false => (&self.system, trust_system),
        };
        let mut config = match shared.get() {
            Some(config) => config.clone(),
            // A failure is not kept: the next run may find what this one misses.
            None => {
                let made = make()?;
                shared.get_or_init(|| made).clone()
            }
        };
        config.alpn_protocols = alpn.map(<[u8]>::to_vec).into_iter().collect();
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is no server name"))?;
        let connector = TlsConnector::from(Arc::new(config));
        let connected = connector.connect(name, stream).await;
        Ok(connected.map_err(|error| format!("TLS handshake: {error}"))?)
    }
}

/// The server name for `host:port`, unless one is given.
pub(super) fn name_for<'a>(address: &'a str, given: &'a str) -> &'a str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    if given.is_empty() { host.trim_matches(['[', ']']) } else { given }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn trust_system() -> Result<ClientConfig, Failure> {
    let mut roots = RootCertStore::empty();
    let certificates = system_roots()?.filter_map(Result::ok);
    roots.add_parsable_certificates(certificates);
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

fn system_roots() -> Result<pem::ReadIter<io::BufReader<std::fs::File>, CertificateDer<'static>>, Failure> {
    for path in SYSTEM_ROOTS {
        match CertificateDer::pem_file_iter(path) {
            Ok(certificates) => return Ok(certificates),
            Err(pem::Error::Io(error)) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::from(error).of(path));
            }
            Err(_) => {}
        }
    }
    Err(format!("the system's certificate authorities are in none of {SYSTEM_ROOTS:?}").into())
}

/// For `TLSSkipVerify`: any certificate, but its holder has to have the key.
fn trust_anybody() -> Result<ClientConfig, Failure> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Believing::new(Anybody, provider())))
        .with_no_client_auth();
    Ok(config)
}
