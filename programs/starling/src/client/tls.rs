//! TLS towards the API, for those who put it behind HTTPS.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use starling_tls::{Anybody, Believing, trusting_verifier};

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

    /// Whether the client shows no certificate.
    pub(super) fn shows_nothing(&self) -> bool {
        self.certificate.is_none()
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

/// A configuration from files in PEM; without authorities it believes those that the machine trusts, and whoever answers if it is not
/// `verified`.
///
/// # Errors
/// If half a client certificate is given, a file does not hold what it should, or there is no CA at all.
pub(super) fn client_config(settings: &TlsSettings, verified: bool) -> anyhow::Result<Arc<ClientConfig>> {
    let credentials = settings.credentials()?;
    let config = match &settings.authorities {
        _ if !verified => config(Arc::new(Believing::new(Anybody, provider())), credentials),
        Some(authorities) => trusting(&authorities.pem()?, credentials)
            .with_context(|| format!("TLS with what {} holds", authorities.path().display())),
        None => believing(of_this_machine()?, credentials),
    };
    Ok(Arc::new(config?))
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
    believing(trusted, credentials)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn believing(
    trusted: Vec<CertificateDer<'static>>,
    credentials: Option<(&Path, &Path)>,
) -> anyhow::Result<ClientConfig> {
    config(trusting_verifier(trusted, provider()).context("there is no certificate in PEM")?, credentials)
}

fn config(verifier: Arc<dyn ServerCertVerifier>, credentials: Option<(&Path, &Path)>) -> anyhow::Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
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

/// What the machine trusts, by `SSL_CERT_FILE` and `SSL_CERT_DIR` or where its system keeps it.
fn of_this_machine() -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(usage(
            "https needs the CA that signed the API's certificate, and this machine trusts none: give --ca-file, --ca-path, \
             CONSUL_CACERT or CONSUL_CAPATH",
        ));
    }
    Ok(found.certs)
}

/// What is missing where TLS has failed, if that can be told.
pub(super) fn missing(error: &(dyn Error + 'static), settings: &TlsSettings) -> Option<String> {
    let refused = refused(error)?;
    if let rustls::Error::AlertReceived(alert) = refused {
        return of_alert(*alert, settings);
    }
    if matches!(refused, rustls::Error::InvalidMessage(_)) {
        return Some("does it speak TLS there? https is served at a port of its own".to_owned());
    }
    let rustls::Error::InvalidCertificate(reason) = refused else { return None };
    // The second is what one gets whose CA has the name of one that is known.
    if matches!(reason, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        return Some(match &settings.authorities {
            Some(given) => {
                format!("its certificate is of no CA that {} holds; --ca-file names its CA", given.path().display())
            }
            None => "its certificate is of no CA that this machine trusts: --ca-file and CONSUL_CACERT name its CA"
                .to_owned(),
        });
    }
    let is_anothers =
        matches!(reason, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. });
    is_anothers.then(|| {
        "its certificate is for another name: --tls-server-name and CONSUL_TLS_SERVER_NAME say for which".to_owned()
    })
}

/// Whoever asks for a certificate tells why it has sent somebody away.
fn of_alert(alert: AlertDescription, settings: &TlsSettings) -> Option<String> {
    use AlertDescription as A;
    match (alert, &settings.certificate) {
        (A::CertificateRequired | A::HandshakeFailure | A::BadCertificate, None) => Some(NO_CERTIFICATE.to_owned()),
        (
            A::UnknownCA
            | A::BadCertificate
            | A::CertificateUnknown
            | A::DecryptError
            | A::UnsupportedCertificate
            | A::AccessDenied,
            Some(shown),
        ) => Some(format!(
            "it does not accept the client certificate {}: it is of another CA than the API asks for",
            shown.display()
        )),
        (A::CertificateExpired, Some(shown)) => Some(format!("the client certificate {} has expired", shown.display())),
        _ => None,
    }
}

/// What is said to somebody who has shown no certificate.
pub(super) const NO_CERTIFICATE: &str = "callers have to show a certificate there: give --client-cert and --client-key, or \
     CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY";

/// What TLS says, beneath whatever has carried it.
fn refused<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut error = error;
    loop {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an error of I/O is that of what it carries, not this itself.
        error = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(carried) => carried,
            None => error.source()?,
        };
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_is_missing_is_told_from_beneath_whatever_carries_it() {
        let carried = |error: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let said =
            |error: rustls::Error, settings: &TlsSettings| missing(&carried(error), settings).unwrap_or_default();
        let alert = rustls::Error::AlertReceived;
        let (none, shown) = (
            TlsSettings::default(),
            TlsSettings { certificate: Some("own.pem".into()), key: Some("own.key".into()), ..TlsSettings::default() },
        );
        assert!(said(alert(AlertDescription::CertificateRequired), &none).contains("--client-cert"));
        assert!(said(alert(AlertDescription::UnknownCA), &shown).contains("own.pem: it is of another CA"));
        assert!(said(alert(AlertDescription::CertificateExpired), &shown).contains("own.pem has expired"));
        assert_eq!(said(alert(AlertDescription::InternalError), &shown), "");
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(said(unknown.clone(), &none).contains("that this machine trusts"));
        let given = TlsSettings { authorities: Some(Authorities::File("ca.pem".into())), ..TlsSettings::default() };
        assert!(said(unknown, &given).contains("that ca.pem holds"));
        assert!(missing(&io::Error::from(io::ErrorKind::ConnectionReset), &none).is_none());
    }
}
