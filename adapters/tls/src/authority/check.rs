//! What another program has signed, held against what was asked of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use starling_identity::Identity;
use starling_model::{CaRootRecord, TrustDomain, UnixSeconds};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::chain::{Chain, ChainError, check_authority, verify_path};
use super::{IssuedLeaf, LeafProfile};
use crate::encoding::{CERTIFICATE_LABEL, colon_hex, pem};
use crate::peer::{parse, sole_identity};
use crate::request::CertificateRequest;
use crate::roots::{RootError, TrustRoots, is_self_signed, validity};

/// Why a certificate that another program signed is not handed out.
#[derive(Debug, thiserror::Error)]
pub enum IssuedError {
    /// It cannot be read.
    #[error("it is no certificate in PEM")]
    Malformed,
    /// It is of another key.
    #[error("the certificate is not of the key that was shown")]
    Key,
    /// It says more or less than it was to.
    #[error(
        "the certificate says {found}; {wanted} was asked for: let the role take names of requests for certificates, and no others"
    )]
    Names {
        /// What it says.
        found: String,
        /// What it was to say.
        wanted: String,
    },
    /// Its holder could sign others.
    #[error("the certificate is that of a CA")]
    Authority,
    /// Its holder may not do what it is for.
    #[error("the certificate is not for {0}: have the role set client_flag, and server_flag")]
    Usage(&'static str),
    /// It is not valid now.
    #[error("the certificate is not valid now")]
    NotNow,
    /// No peer accepts it.
    #[error("it does not lead to the root that signs: {0}")]
    Path(String),
    /// The root is damaged.
    #[error("the root cannot be used")]
    Root(#[from] RootError),
}

/// The root that ends a chain in PEM, or that is among `roots_pem`, as a record that does not sign yet; and what stands
/// below it.
///
/// # Errors
/// [`ChainError`] if one of them is no CA, is not valid now, or there is no root.
pub fn external_root(
    chain_pem: &str,
    roots_pem: Option<&str>,
    trust_domain: &TrustDomain,
    now: UnixSeconds,
) -> Result<(CaRootRecord, String), ChainError> {
    let given = Chain::from_pem(chain_pem)?;
    let beside = roots_pem.map(Chain::from_pem).transpose()?.unwrap_or_default();
    let (chain, root) = given.split_root(beside, trust_domain)?;
    for der in chain.certificates().chain([&root.der]) {
        check_authority(der, now)?;
    }
    let record = CaRootRecord { active: false, ..root.record() };
    Ok((record, chain.to_pem()))
}

/// Holds a certificate that another program has signed against what was asked of it: the key of the request, the names and
/// uses of the profile, and a path to the root.
///
/// # Errors
/// [`IssuedError`] if it says anything else.
pub fn check_issued(
    certificate_pem: &str,
    between_pem: &[String],
    request: &CertificateRequest,
    profile: &LeafProfile,
    root: &CaRootRecord,
    now: UnixSeconds,
) -> Result<IssuedLeaf, IssuedError> {
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|_| IssuedError::Malformed)?;
    let leaf = parse(&der).map_err(|_| IssuedError::Malformed)?;
    if leaf.public_key().subject_public_key.data.as_ref() != request.public_point() {
        return Err(IssuedError::Key);
    }
    if leaf.is_ca() {
        return Err(IssuedError::Authority);
    }
    check_names(&leaf, profile)?;
    check_usage(&leaf, profile)?;
    let valid = validity(&leaf).ok_or(IssuedError::Malformed)?;
    if now < valid.not_before() || now >= valid.not_after() {
        return Err(IssuedError::NotNow);
    }
    let mut chain_pem = pem(CERTIFICATE_LABEL, &der);
    for text in between_pem {
        for between in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let between = between.map_err(|_| IssuedError::Malformed)?;
            // A peer has its own roots.
            if !parse(&between).is_ok_and(|certificate| is_self_signed(&certificate)) {
                chain_pem.push_str(&pem(CERTIFICATE_LABEL, &between));
            }
        }
    }
    verify_path(&chain_pem, &TrustRoots::new([root])?, now).map_err(IssuedError::Path)?;
    Ok(IssuedLeaf {
        certificate_pem: pem(CERTIFICATE_LABEL, &der),
        chain_pem,
        serial: colon_hex(leaf.raw_serial()),
        not_before: valid.not_before(),
        not_after: valid.not_after(),
    })
}

fn check_names(leaf: &X509Certificate<'_>, profile: &LeafProfile) -> Result<(), IssuedError> {
    let names = leaf.subject_alternative_name().map_err(|_| IssuedError::Malformed)?;
    let names = names.map_or(&[][..], |extension| &extension.value.general_names);
    let (mut dns, mut addresses, mut others) = (BTreeSet::new(), BTreeSet::new(), 0);
    for name in names {
        if let GeneralName::DNSName(name) = name {
            dns.insert((*name).to_owned());
        } else if let GeneralName::IPAddress(bytes) = name {
            addresses.insert(address(bytes).ok_or(IssuedError::Malformed)?);
        } else if !matches!(name, GeneralName::URI(_)) {
            others += 1;
        }
    }
    let identity = sole_identity(leaf);
    let wanted: BTreeSet<IpAddr> = profile.addresses.iter().copied().collect();
    let same =
        identity.as_ref() == Ok(&profile.identity) && dns == profile.dns_names && addresses == wanted && others == 0;
    if same {
        return Ok(());
    }
    let describe = |identity: Option<&Identity>, dns: &BTreeSet<String>, addresses: &BTreeSet<IpAddr>| {
        let identity = identity.map_or("no identity".to_owned(), Identity::to_uri);
        let rest = dns.iter().cloned().chain(addresses.iter().map(ToString::to_string));
        [identity].into_iter().chain(rest).collect::<Vec<_>>().join(", ")
    };
    Err(IssuedError::Names {
        found: describe(identity.as_ref().ok(), &dns, &addresses),
        wanted: describe(Some(&profile.identity), &profile.dns_names, &wanted),
    })
}

fn check_usage(leaf: &X509Certificate<'_>, profile: &LeafProfile) -> Result<(), IssuedError> {
    let usage = leaf.extended_key_usage().map_err(|_| IssuedError::Malformed)?;
    // Without the extension it may be used for anything.
    let Some(usage) = usage.map(|extension| extension.value) else { return Ok(()) };
    if !usage.any && !usage.client_auth {
        return Err(IssuedError::Usage("clients"));
    }
    if profile.serves && !usage.any && !usage.server_auth {
        return Err(IssuedError::Usage("servers"));
    }
    Ok(())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(Into::into)
}
