//! What stands between leaves and a root: the certificate that signs, those that certified it, and whether all of it is
//! what every peer accepts.

use std::collections::BTreeSet;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, KeyIdMethod, KeyUsagePurpose,
    PublicKeyData, SignatureAlgorithm,
};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use starling_identity::Validity;
use starling_model::{CaRootRecord, TrustDomain, UnixSeconds};
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;

use crate::encoding::{CERTIFICATE_LABEL, pem};
use crate::key::P256Key;
use crate::peer::parse;
use crate::roots::{RootCertificate, RootError, TrustRoots, is_self_signed, key_identifier, validity};

use super::{CertificateAuthority, LeafProfile, set_validity};

/// Certificates of a CA in one file, root included: more than anybody has.
const CERTIFICATES_MAX: usize = 8;

/// Why certificates and a key are not a CA for this mesh.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// Not PEM of certificates, or far too many.
    #[error("the text is not PEM of 1 to {CERTIFICATES_MAX} certificates")]
    Malformed,
    /// One of them may not sign.
    #[error("{subject} is no CA: it lacks basicConstraints CA:TRUE, or keyUsage without keyCertSign")]
    NotAnAuthority {
        /// The certificate.
        subject: String,
    },
    /// One of them is not valid now.
    #[error("{subject} is valid from {} until {} (unix seconds); it is now {}", not_before.0, not_after.0, now.0)]
    NotNow {
        /// The certificate.
        subject: String,
        /// The first second of its validity.
        not_before: UnixSeconds,
        /// The last.
        not_after: UnixSeconds,
        /// The time.
        now: UnixSeconds,
    },
    /// One of them limits the names below it.
    #[error(
        "{subject} has name constraints, which proxies do not read alike for URI names, as those of the mesh are; have it \
         issued without"
    )]
    NameConstraints {
        /// The certificate.
        subject: String,
    },
    /// The key is not of the first certificate.
    #[error("the private key is not of the first certificate, {subject}, which is the one that signs")]
    Mismatch {
        /// The certificate.
        subject: String,
    },
    /// There is no root among them, nor beside them.
    #[error("there is no root certificate that ends the chain; give it by --roots")]
    NoRoot,
    /// The root is of no use to this mesh.
    #[error("the root certificate cannot be used")]
    Root(#[from] RootError),
    /// A leaf below the chain is not accepted.
    #[error("peers would not accept what it signs: {0}")]
    Refused(String),
    /// It cannot be used to sign.
    #[error("the certificate cannot be used to sign")]
    Sign(#[from] rcgen::Error),
}

/// The certificates between leaves and a root: that which signs first, the root not among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain(Vec<CertificateDer<'static>>);

impl Chain {
    pub(super) fn from_pem(text: &str) -> Result<Self, ChainError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let all = all.map_err(|_| ChainError::Malformed)?;
        if all.len() > CERTIFICATES_MAX { Err(ChainError::Malformed) } else { Ok(Self(all)) }
    }

    pub(super) fn to_pem(&self) -> String {
        self.0.iter().map(|der| pem(CERTIFICATE_LABEL, der)).collect()
    }

    pub(super) fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.0.iter()
    }

    /// The certificate that signs leaves; the root if there is none before it.
    pub(super) fn signer<'a>(&'a self, root: &'a RootCertificate) -> &'a CertificateDer<'static> {
        self.0.first().unwrap_or(&root.der)
    }

    /// When everything from the signer to the root is valid; `None` if never.
    pub(super) fn validity(&self, root: Validity) -> Option<Validity> {
        self.0.iter().try_fold(root, |joint, der| {
            let own = validity(&parse(der).ok()?)?;
            Validity::new(joint.not_before().max(own.not_before()), joint.not_after().min(own.not_after()))
        })
    }

    /// Takes a root off the end, or finds one among those given beside.
    pub(super) fn split_root(
        mut self,
        beside: Self,
        trust_domain: &TrustDomain,
    ) -> Result<(Self, RootCertificate), ChainError> {
        let is_root = |der: &CertificateDer<'_>| parse(der).is_ok_and(|certificate| is_self_signed(&certificate));
        let own = self.0.last().is_some_and(is_root).then(|| self.0.pop()).flatten();
        let root = match own {
            Some(root) => root,
            None => {
                let last = self.0.last().ok_or(ChainError::Malformed)?;
                let last = parse(last).map_err(|_| ChainError::Malformed)?;
                let wanted = last.issuer().as_raw().to_vec();
                let named = |der: &CertificateDer<'_>| {
                    parse(der).is_ok_and(|certificate| certificate.subject().as_raw() == wanted)
                };
                beside.0.into_iter().filter(is_root).find(|der| named(der)).ok_or(ChainError::NoRoot)?
            }
        };
        self.check_length(&root)?;
        Ok((self, RootCertificate::from_der(root, Some(trust_domain))?))
    }

    /// Whether a root lets that many CAs stand below it. Not every peer asks a root it trusts, but some do.
    fn check_length(&self, root: &CertificateDer<'_>) -> Result<(), ChainError> {
        let root = parse(root).map_err(|_| ChainError::Malformed)?;
        let most = root.basic_constraints().ok().flatten().and_then(|found| found.value.path_len_constraint);
        match most {
            Some(most) if self.0.len() > most as usize => {
                let text = format!("{} lets {most} CAs stand below it; there are {}", root.subject(), self.0.len());
                Err(ChainError::Refused(text))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Certificates and key from elsewhere, checked: the root's record, the chain below it, and the key.
pub(super) fn imported(
    certificates_pem: &str,
    key_pem: &str,
    roots_pem: Option<&str>,
    trust_domain: &TrustDomain,
    now: UnixSeconds,
) -> Result<(P256Key, RootCertificate, Chain), ImportError> {
    let given = Chain::from_pem(certificates_pem)?;
    let beside = roots_pem.map(Chain::from_pem).transpose()?.unwrap_or_default();
    for der in &given.0 {
        check_authority(der, now)?;
    }
    let key = P256Key::from_any_pem(key_pem)?;
    let (chain, root) = given.split_root(beside, trust_domain)?;
    check_authority(&root.der, now)?;
    let signer = parse(chain.signer(&root)).map_err(|_| ChainError::Malformed)?;
    if key.public_point() != signer.public_key().subject_public_key.data.as_ref() {
        return Err(ChainError::Mismatch { subject: signer.subject().to_string() }.into());
    }
    Ok((key, root, chain))
}

/// Why nothing is imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The certificates are of no use.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The key is of no use.
    #[error("the private key cannot be used; it is to be ECDSA on P-256, in PEM without a password")]
    Key(#[from] crate::key::KeyError),
}

pub(super) fn check_authority(der: &CertificateDer<'_>, now: UnixSeconds) -> Result<(), ChainError> {
    let certificate = parse(der).map_err(|_| ChainError::Malformed)?;
    let subject = || certificate.subject().to_string();
    let may_sign = match certificate.key_usage() {
        Ok(Some(usage)) => usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    // rcgen reads names that have an attribute in every part.
    let has_whole_name = certificate.subject().iter().all(|part| part.iter().next().is_some());
    if !certificate.is_ca() || !may_sign || !has_whole_name {
        return Err(ChainError::NotAnAuthority { subject: subject() });
    }
    if !matches!(certificate.name_constraints(), Ok(None)) {
        return Err(ChainError::NameConstraints { subject: subject() });
    }
    let valid = validity(&certificate).ok_or(ChainError::Malformed)?;
    if now < valid.not_before() || now > valid.not_after() {
        let (not_before, not_after) = (valid.not_before(), valid.not_after());
        return Err(ChainError::NotNow { subject: subject(), not_before, not_after, now });
    }
    Ok(())
}

/// Whether each certificate of a chain, and its root, is that of a CA that is valid now.
pub(super) fn check_all(chain_pem: &str, root: &CaRootRecord, now: UnixSeconds) -> Result<(), ChainError> {
    let root = RootCertificate::from_record(root)?;
    Chain::from_pem(chain_pem)?.0.iter().chain([&root.der]).try_for_each(|der| check_authority(der, now))
}

/// Signs a leaf by way of trial, and looks at it as a peer does. What no peer accepts is found here: a path that does not
/// lead to the root, a path that is too long, a signature that is wrong.
pub(super) fn check_by_trial(
    authority: &CertificateAuthority,
    root: &CaRootRecord,
    now: UnixSeconds,
) -> Result<(), ChainError> {
    let refused = |error: &dyn std::fmt::Display| ChainError::Refused(error.to_string());
    let key = crate::LeafKey::generate().map_err(|error| refused(&error))?;
    let csr = key.csr_der().map_err(|error| refused(&error))?;
    let datacenter = "dc1".parse().map_err(|error| refused(&error))?;
    let profile = LeafProfile::server(&root.trust_domain, &datacenter, &[]);
    let leaf = authority.issue(&csr, &profile, &Default::default(), now, None).map_err(|error| refused(&error))?;
    verify_path(&leaf.chain_pem, &TrustRoots::new([root])?, now).map_err(ChainError::Refused)
}

/// Whether a chain in PEM, leaf first, leads to one of the roots.
pub(super) fn verify_path(chain_pem: &str, roots: &TrustRoots, now: UnixSeconds) -> Result<(), String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain_pem.as_bytes()).collect();
    let chain: Vec<CertificateDer<'static>> = chain.map_err(|error| error.to_string())?;
    let (leaf, between) = chain.split_first().ok_or("there is no certificate")?;
    let parsed = ParsedCertificate::try_from(leaf).map_err(|error| error.to_string())?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let algorithms = provider.signature_verification_algorithms.all;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.0));
    verify_server_cert_signed_by_trust_anchor(&parsed, &roots.store(), between, now, algorithms)
        .map_err(|error| error.to_string())
}

/// The public key in a certificate, to be certified once more.
struct CertifiedKeyOf {
    point: Vec<u8>,
}

impl PublicKeyData for CertifiedKeyOf {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        // Whoever signs leaves here signs with P-256.
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// The signer of a new CA, certified by an older one; in PEM, with what stands between that and its root.
///
/// `None` if its name is in a form that cannot be written again.
pub(super) fn bridge(older: &CertificateAuthority, newer: &CertificateAuthority) -> Option<String> {
    let signer = parse(&newer.signer).ok()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = name_of(&signer)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.key_identifier_method = KeyIdMethod::PreSpecified(key_identifier(&signer));
    params.use_authority_key_identifier_extension = true;
    let (one, other) = (older.validity, newer.validity);
    let joint = Validity::new(one.not_before().max(other.not_before()), one.not_after().min(other.not_after()))?;
    set_validity(&mut params, joint);
    let key = CertifiedKeyOf { point: signer.public_key().subject_public_key.data.to_vec() };
    let certificate = params.signed_by(&key, &older.issuer).ok()?;
    Some(pem(CERTIFICATE_LABEL, certificate.der()) + &older.chain_pem)
}

/// The name of a certificate, to be written in another; `None` if that would not come out the same.
fn name_of(certificate: &X509Certificate<'_>) -> Option<DistinguishedName> {
    let mut name = DistinguishedName::new();
    let mut known = BTreeSet::new();
    for part in certificate.subject().iter() {
        let mut attributes = part.iter();
        let (Some(attribute), None) = (attributes.next(), attributes.next()) else { return None };
        let oid: Vec<u64> = attribute.attr_type().iter()?.collect();
        let text = attribute.as_str().ok()?;
        let value = match attribute.attr_value().tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text.try_into().ok()?),
            Tag::Ia5String => DnValue::Ia5String(text.try_into().ok()?),
            _ => return None,
        };
        if !known.insert(oid.clone()) {
            return None;
        }
        name.push(DnType::from_oid(&oid), value);
    }
    Some(name)
}
