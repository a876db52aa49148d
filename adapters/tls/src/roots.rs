//! The roots of the mesh: what a root certificate says, and the set of them that a party trusts.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use starling_identity::{Identity, RootFingerprint, Validity};
use starling_model::{CaRootRecord, TrustDomain, UnixSeconds};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
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
    /// The certificate is damaged, or signed by another.
    #[error("the root certificate is not signed by its own key")]
    NotSelfSigned,
    /// The certificate does not bear the identity of a trust domain.
    #[error("the root certificate does not name its trust domain")]
    Identity(#[from] PeerError),
    /// The identity is that of a party, not of a trust domain.
    #[error("the root certificate bears {0} instead of the identity of a trust domain")]
    NotATrustDomain(Box<Identity>),
    /// The certificate names another trust domain than that of the mesh.
    #[error("the root certificate is of trust domain {found}; this mesh is {wanted}")]
    OtherTrustDomain {
        /// The certificate's.
        found: TrustDomain,
        /// The mesh's.
        wanted: TrustDomain,
    },
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
        Self::of(records.into_iter().map(RootCertificate::from_record))
    }

    /// The set of the given certificates, each in PEM; each names its trust domain, as those that were made here do.
    ///
    /// # Errors
    /// As [`TrustRoots::new`].
    pub fn from_pem<'a>(certificates: impl IntoIterator<Item = &'a str>) -> Result<Self, RootError> {
        Self::of(certificates.into_iter().map(|text| RootCertificate::from_pem(text, None)))
    }

    /// The set of the given certificates, each in PEM, in a mesh of this trust domain. Those that come from elsewhere
    /// need not name it.
    ///
    /// # Errors
    /// As [`TrustRoots::new`].
    pub fn trusted_in<'a>(
        trust_domain: &TrustDomain,
        certificates: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, RootError> {
        Self::of(certificates.into_iter().map(|text| RootCertificate::from_pem(text, Some(trust_domain))))
    }

    /// The set of all certificates in one text of PEM, in a mesh of this trust domain.
    ///
    /// # Errors
    /// As [`TrustRoots::new`].
    pub fn from_bundle(trust_domain: &TrustDomain, text: &str) -> Result<Self, RootError> {
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes());
        let root = |der| RootCertificate::from_der(der, Some(trust_domain));
        Self::of(certificates.map(|der| root(der.map_err(|_| RootError::Malformed)?)))
    }

    /// The set of one certificate, in a mesh of this trust domain.
    pub(crate) fn from_der(der: CertificateDer<'static>, trust_domain: &TrustDomain) -> Result<Self, RootError> {
        Self::of([RootCertificate::from_der(der, Some(trust_domain))])
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

    /// Whether the certificate of a client, which comes first, leads to one of these roots now, by way of the others.
    #[must_use]
    pub fn vouch_for(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, between)) = chain.split_first() else { return false };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.store(), provider).build();
        verifier.is_ok_and(|verifier| verifier.verify_client_cert(leaf, between, UnixTime::now()).is_ok())
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}

/// By what an agent that joins knows a root; `None` if its certificate is damaged.
#[must_use]
pub fn root_fingerprint(record: &CaRootRecord) -> Option<RootFingerprint> {
    let der = CertificateDer::from_pem_slice(record.certificate_pem.as_bytes()).ok()?;
    Some(RootFingerprint::of(&der))
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
    /// The root of a record.
    pub(crate) fn from_record(record: &CaRootRecord) -> Result<Self, RootError> {
        Self::from_pem(&record.certificate_pem, Some(&record.trust_domain))
    }

    /// A root in PEM, which names its trust domain; one from elsewhere need not, if it is given.
    pub(crate) fn from_pem(text: &str, trust_domain: Option<&TrustDomain>) -> Result<Self, RootError> {
        let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
        // A second certificate would be dropped in silence, so it is refused.
        match (certificates.next(), certificates.next()) {
            (Some(Ok(der)), None) => Self::from_der(der, trust_domain),
            _ => Err(RootError::Malformed),
        }
    }

    pub(crate) fn from_der(der: CertificateDer<'static>, given: Option<&TrustDomain>) -> Result<Self, RootError> {
        let (rest, certificate) = X509Certificate::from_der(&der).map_err(|_| RootError::Malformed)?;
        if !rest.is_empty() {
            return Err(RootError::Malformed);
        }
        if !certificate.is_ca() {
            return Err(RootError::NotAnAuthority);
        }
        let public_point = certificate.public_key().subject_public_key.data.to_vec();
        if !is_self_signed(&certificate) {
            return Err(RootError::NotSelfSigned);
        }
        let trust_domain = trust_domain(&certificate, given)?;
        let common_name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let name = common_name.unwrap_or_default().to_owned();
        let serial = serial_number(&certificate);
        let key_id = key_identifier(&certificate);
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
            overlap: None,
            renew_within_s: 0,
        }
    }
}

/// The trust domain that a root names, or else the one that is given.
fn trust_domain(certificate: &X509Certificate<'_>, given: Option<&TrustDomain>) -> Result<TrustDomain, RootError> {
    match (sole_identity(certificate), given) {
        (Ok(Identity::Authority(found)), Some(wanted)) if found != *wanted => {
            Err(RootError::OtherTrustDomain { found, wanted: wanted.clone() })
        }
        (Ok(Identity::Authority(found)), _) => Ok(found),
        (
            Ok(
                other @ (Identity::Workload(_)
                | Identity::Agent { .. }
                | Identity::Server { .. }
                | Identity::Relay { .. }),
            ),
            _,
        ) => Err(RootError::NotATrustDomain(Box::new(other))),
        // What else it names is its own affair: no leaf bears it.
        (Err(PeerError::UriCount { .. } | PeerError::SpiffeId(_)), Some(given)) => Ok(given.clone()),
        (Err(error), _) => Err(error.into()),
    }
}

/// Whether a certificate is signed by its own key, so that no byte of it was changed since.
pub(crate) fn is_self_signed(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject().as_raw() == certificate.issuer().as_raw() && certificate.verify_signature(None).is_ok()
}

/// The serial number as Consul publishes it: the last 64 bits.
fn serial_number(certificate: &X509Certificate<'_>) -> u64 {
    certificate.raw_serial().iter().fold(0_u64, |serial, byte| serial << u8::BITS | u64::from(*byte))
}

/// The key identifier that a certificate bears, or else that of its key by RFC 5280, section 4.2.1.2, method 1.
pub(crate) fn key_identifier(certificate: &X509Certificate<'_>) -> Vec<u8> {
    let borne = certificate.extensions().iter().find_map(|extension| {
        if let ParsedExtension::SubjectKeyIdentifier(key_id) = extension.parsed_extension() {
            Some(key_id.0.to_vec())
        } else {
            None
        }
    });
    borne.unwrap_or_else(|| {
        let key = &certificate.public_key().subject_public_key.data;
        digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, key).as_ref().to_vec()
    })
}

/// From when until when a certificate is valid; `None` if that is no span of time since 1970.
pub(crate) fn validity(certificate: &X509Certificate<'_>) -> Option<Validity> {
    let seconds = |timestamp: i64| u64::try_from(timestamp).ok().map(UnixSeconds);
    let validity = certificate.validity();
    Validity::new(seconds(validity.not_before.timestamp())?, seconds(validity.not_after.timestamp())?)
}
