//! Which server is believed, apart from what holds for every one: that whoever shows a certificate has its key.

use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::peer;
use crate::roots::validity;

/// Judges what a server shows.
pub trait Belief: Debug + Send + Sync + 'static {
    /// Whether a certificate with those behind it is believed of whoever is called by `name`.
    ///
    /// # Errors
    /// Why not.
    fn believe(
        &self,
        certificate: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error>;
}

/// A belief, as rustls asks for it.
#[derive(Debug)]
pub struct Believing<B> {
    belief: B,
    provider: Arc<CryptoProvider>,
}

impl<B> Believing<B> {
    /// Believes whom `belief` does, if they have the keys of their certificates.
    #[must_use]
    pub fn new(belief: B, provider: Arc<CryptoProvider>) -> Self {
        Self { belief, provider }
    }
}

impl<B: Belief> ServerCertVerifier for Believing<B> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.belief.believe(certificate, behind, name, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Believes whoever has the key of the certificate that it shows.
#[derive(Debug)]
pub struct Anybody;

impl Belief for Anybody {
    fn believe(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: UnixTime,
    ) -> Result<(), rustls::Error> {
        Ok(())
    }
}

/// Believes whom an authority vouches for, and whoever shows a certificate that is itself among those that are trusted: one that is
/// self-signed is both, and no authority in the sense of the standard. The name is checked in either case.
#[derive(Debug)]
struct ByAuthorityOrItself {
    authorities: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Belief for ByAuthorityOrItself {
    fn believe(
        &self,
        certificate: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let Err(refused) = self.authorities.verify_server_cert(certificate, behind, name, &[], now) else {
            return Ok(());
        };
        if !self.trusted.iter().any(|trusted| trusted == certificate) {
            return Err(refused);
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        let validity = peer::parse(certificate).ok().and_then(|parsed| validity(&parsed)).ok_or(refused)?;
        if now.as_secs() < validity.not_before().0 {
            return Err(CertificateError::NotValidYet.into());
        }
        if now.as_secs() > validity.not_after().0 {
            return Err(CertificateError::Expired.into());
        }
        Ok(())
    }
}

/// A verifier for callers who name the certificates that they trust: authorities, or the very one that a server shows.
///
/// # Errors
/// [`VerifierBuilderError`] if none of them can be used.
pub fn trusting_verifier(
    trusted: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    Ok(Arc::new(Believing::new(ByAuthorityOrItself { authorities, trusted }, provider)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
    use rustls::crypto::aws_lc_rs;

    use super::*;

    /// A certificate that vouches for itself, of an authority or not.
    fn of_itself(is_ca: bool, last_year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["mesh.test".to_owned()]).expect("a name");
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        params.self_signed(&KeyPair::generate().expect("a key")).expect("signed").der().clone()
    }

    fn believed(
        trusted: &CertificateDer<'static>,
        shown: &CertificateDer<'_>,
        name: &'static str,
    ) -> Result<(), String> {
        let verifier =
            trusting_verifier(vec![trusted.clone()], Arc::new(aws_lc_rs::default_provider())).expect("a verifier");
        let name = ServerName::try_from(name).expect("a name");
        // In 2024.
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_710_000_000));
        verifier.verify_server_cert(shown, &[], &name, &[], now).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_certificate_that_is_trusted_itself_is_believed_under_its_name_while_it_is_valid() {
        for is_ca in [true, false] {
            let own = of_itself(is_ca, 2100);
            assert_eq!(believed(&own, &own, "mesh.test"), Ok(()), "{is_ca}");
            assert!(believed(&own, &own, "other.test").is_err(), "{is_ca}: another name");
            assert!(believed(&own, &of_itself(is_ca, 2100), "mesh.test").is_err(), "{is_ca}: another certificate");
            let past = of_itself(is_ca, 2023);
            assert!(believed(&past, &past, "mesh.test").is_err_and(|why| why.contains("Expired")), "{is_ca}");
        }
    }
}
