//! The roots of the mesh: what a root certificate says, and the set of them that a party trusts.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use starling_identity::{Identity, Validity};
use starling_model::{CaRootRecord, TrustDomain, UnixSeconds};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::OID_SIG_ECDSA_WITH_SHA256;
use x509_parser::prelude::FromDer;

use crate::encoding::{CERTIFICATE_LABEL, colon_hex, pem, root_id};
use crate::peer::{PeerError, sole_identity};

/// Why a certificate is not a root of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// The set has no member.
    #[error("there is no root certificate")]
    Empty,
    /// Not PEM of a certificate.
    #[error("the root certificate cannot be read")]
    Malformed,
    /// The certificate may not sign others.
    #[error("the certificate is not of a CA")]
    NotAnAuthority,
    /// The certificate lacks its key identifier, or its serial number does not fit 64 bits.
    #[error("the root certificate has no {0}")]
    Missing(&'static str),
    /// The certificate is damaged, or signed by another.
    #[error("the root certificate is not signed by its own key")]
    NotSelfSigned,
    /// The certificate does not bear the identity of a trust domain.
    #[error("the root certificate does not name its trust domain")]
    Identity(#[from] PeerError),
    /// The identity is that of a party, not of a trust domain.
    #[error("the root certificate bears {0} instead of the identity of a trust domain")]
    NotATrustDomain(Box<Identity>),
    /// Roots of two meshes in one set: each could sign for the other.
    #[error("roots of two trust domains, {first} and {second}, cannot be trusted together")]
    TrustDomains {
        /// One of them.
        first: TrustDomain,
        /// Another.
        second: TrustDomain,
    },
}

/// The roots that a party trusts: one or, while they are being rotated, several, all of one trust domain.
#[derive(Clone)]
pub struct TrustRoots {
    trust_domain: TrustDomain,
    store: Arc<RootCertStore>,
    summaries: Arc<[RootSummary]>,
}

/// What there is to say of one root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootSummary {
    /// Its identifier, as in the catalog.
    pub id: String,
    /// Its common name.
    pub name: String,
    /// Its serial number.
    pub serial: u64,
    /// When it is valid.
    pub validity: Validity,
}

impl TrustRoots {
    /// The set of the given records.
    ///
    /// # Errors
    /// [`RootError`] if there are none, one is not a root of a mesh, or two are of different meshes.
    pub fn new<'a>(records: impl IntoIterator<Item = &'a CaRootRecord>) -> Result<Self, RootError> {
        Self::from_pem(records.into_iter().map(|record| record.certificate_pem.as_str()))
    }

    /// The set of the given certificates, each in PEM.
    ///
    /// # Errors
    /// As [`TrustRoots::new`].
    pub fn from_pem<'a>(certificates: impl IntoIterator<Item = &'a str>) -> Result<Self, RootError> {
        Self::of(certificates.into_iter().map(RootCertificate::from_pem))
    }

    /// The set of all certificates in one text of PEM.
    ///
    /// # Errors
    /// As [`TrustRoots::new`].
    pub fn from_bundle(text: &str) -> Result<Self, RootError> {
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes());
        Self::of(certificates.map(|der| RootCertificate::from_der(der.map_err(|_| RootError::Malformed)?)))
    }

    /// The set of one certificate.
    pub(crate) fn from_der(der: CertificateDer<'static>) -> Result<Self, RootError> {
        Self::of([RootCertificate::from_der(der)])
    }

    fn of(roots: impl IntoIterator<Item = Result<RootCertificate, RootError>>) -> Result<Self, RootError> {
        let (mut store, mut summaries) = (RootCertStore::empty(), Vec::new());
        let mut trust_domain: Option<TrustDomain> = None;
        for root in roots {
            let root = root?;
            if let Some(first) = trust_domain.replace(root.trust_domain.clone())
                && first != root.trust_domain
            {
                return Err(RootError::TrustDomains { first, second: root.trust_domain });
            }
            let (id, name) = (root_id(&root.der), root.name);
            summaries.push(RootSummary { id, name, serial: root.serial, validity: root.validity });
            store.add(root.der).map_err(|_| RootError::Malformed)?;
        }
        Ok(Self {
            trust_domain: trust_domain.ok_or(RootError::Empty)?,
            store: Arc::new(store),
            summaries: summaries.into(),
        })
    }

    /// The trust domain of all of them.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Each of them.
    #[must_use]
    pub fn summaries(&self) -> &[RootSummary] {
        &self.summaries
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}

impl fmt::Debug for TrustRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustRoots")
            .field("trust_domain", &self.trust_domain)
            .field("roots", &self.store.len())
            .finish_non_exhaustive()
    }
}

/// What a root certificate says, its self-signature checked.
pub(crate) struct RootCertificate {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) public_point: Vec<u8>,
    pub(crate) validity: Validity,
    name: String,
    serial: u64,
    key_id: Vec<u8>,
}

impl RootCertificate {
    pub(crate) fn from_pem(text: &str) -> Result<Self, RootError> {
        let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
        // A second certificate would be dropped in silence, so it is refused.
        match (certificates.next(), certificates.next()) {
            (Some(Ok(der)), None) => Self::from_der(der),
            _ => Err(RootError::Malformed),
        }
    }

    pub(crate) fn from_der(der: CertificateDer<'static>) -> Result<Self, RootError> {
        let (rest, certificate) = X509Certificate::from_der(&der).map_err(|_| RootError::Malformed)?;
        if !rest.is_empty() {
            return Err(RootError::Malformed);
        }
        if !certificate.is_ca() {
            return Err(RootError::NotAnAuthority);
        }
        let public_point = certificate.public_key().subject_public_key.data.to_vec();
        check_self_signature(&certificate, &public_point)?;
        let trust_domain = match sole_identity(&certificate)? {
            Identity::Authority(trust_domain) => trust_domain,
            other @ (Identity::Workload(_) | Identity::Agent { .. } | Identity::Server { .. }) => {
                return Err(RootError::NotATrustDomain(Box::new(other)));
            }
        };
        let common_name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let name = common_name.unwrap_or_default().to_owned();
        let serial = serial_number(&certificate).ok_or(RootError::Missing("serial number of 64 bits"))?;
        let key_id = key_identifier(&certificate).ok_or(RootError::Missing("subject key identifier"))?.to_vec();
        let validity = validity(&certificate).ok_or(RootError::Malformed)?;
        Ok(Self { trust_domain, public_point, validity, name, serial, key_id, der })
    }

    /// The record under which the root is stored and published, as the one that signs.
    pub(crate) fn record(&self) -> CaRootRecord {
        CaRootRecord {
            id: root_id(&self.der),
            name: self.name.clone(),
            certificate_pem: pem(CERTIFICATE_LABEL, &self.der),
            serial: self.serial,
            signing_key_id: colon_hex(&self.key_id),
            trust_domain: self.trust_domain.clone(),
            not_before: self.validity.not_before(),
            not_after: self.validity.not_after(),
            active: true,
        }
    }
}

fn check_self_signature(certificate: &X509Certificate<'_>, public_point: &[u8]) -> Result<(), RootError> {
    if certificate.subject().as_raw() != certificate.issuer().as_raw()
        || certificate.signature_algorithm.algorithm != OID_SIG_ECDSA_WITH_SHA256
    {
        return Err(RootError::NotSelfSigned);
    }
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, public_point)
        .verify(certificate.tbs_certificate.as_ref(), certificate.signature_value.data.as_ref())
        .map_err(|_| RootError::NotSelfSigned)
}

fn serial_number(certificate: &X509Certificate<'_>) -> Option<u64> {
    certificate.raw_serial().iter().try_fold(0_u64, |serial, byte| {
        let shifted = serial.checked_mul(1 << u8::BITS)?;
        Some(shifted | u64::from(*byte))
    })
}

fn key_identifier<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    certificate.extensions().iter().find_map(|extension| {
        if let ParsedExtension::SubjectKeyIdentifier(key_id) = extension.parsed_extension() {
            Some(key_id.0)
        } else {
            None
        }
    })
}

/// From when until when a certificate is valid; `None` if that is no span of time since 1970.
pub(crate) fn validity(certificate: &X509Certificate<'_>) -> Option<Validity> {
    let seconds = |timestamp: i64| u64::try_from(timestamp).ok().map(UnixSeconds);
    let validity = certificate.validity();
    Validity::new(seconds(validity.not_before.timestamp())?, seconds(validity.not_after.timestamp())?)
}
