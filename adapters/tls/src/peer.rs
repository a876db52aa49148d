//! Who the other end of a connection is, read from its certificate.

use std::io;

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, OtherError};
use starling_identity::{Identity, SpiffeIdError};
use starling_model::{KeyFingerprint, TrustDomain, UnixSeconds};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::roots::validity;

/// Why a certificate stands for nobody in the mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No certificate was presented.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// Not DER of a certificate, or its alternative names cannot be read.
    #[error("the peer's certificate cannot be read")]
    Malformed,
    /// None or several identities; which one is meant would be a guess.
    #[error("the certificate has {count} URI names; exactly one is allowed")]
    UriCount {
        /// URI names in the certificate.
        count: usize,
    },
    /// The one URI is not an identity of the mesh.
    #[error("the certificate's URI name is no identity")]
    SpiffeId(#[from] SpiffeIdError),
    /// The identity is the CA's, which takes part in no connection.
    #[error("the certificate bears the identity of the CA")]
    Authority,
    /// The identity belongs to another mesh than the root.
    #[error("the certificate is of trust domain {found}; {wanted} is trusted")]
    TrustDomain {
        /// The trust domain in the certificate.
        found: TrustDomain,
        /// The trust domain of the roots.
        wanted: TrustDomain,
    },
    /// The session was resumed past the end of the certificate with which it began.
    #[error("the peer's certificate expired at {} (unix seconds)", not_after.0)]
    Expired {
        /// The last second of its validity.
        not_after: UnixSeconds,
    },
    /// None of the certificates that the server sent is the root that the join token names.
    #[error(
        "the server does not belong to the root that the join token names: it is of another mesh, or the root was replaced since"
    )]
    OtherRoot,
    /// A valid peer that is no server and no relay, where one was asked for.
    #[error("the peer is {found}, which is no server")]
    NotAServer {
        /// Who it is.
        found: Box<Identity>,
    },
    /// A valid peer, but another one than was asked for.
    #[error("the peer is {found}; {wanted} was expected")]
    Unexpected {
        /// Who it is.
        found: Box<Identity>,
        /// Who it should be.
        wanted: Box<Identity>,
    },
}

impl PeerError {
    /// Why this end refused the other, if that is what broke the handshake; the text of rustls's own error does not tell.
    #[must_use]
    pub fn behind(error: &io::Error) -> Option<&Self> {
        let rustls::Error::InvalidCertificate(refused) = error.get_ref()?.downcast_ref()? else { return None };
        let CertificateError::Other(OtherError(reason)) = refused else { return None };
        reason.downcast_ref()
    }
}

/// The identity in the first certificate of a chain.
///
/// Reads, and verifies nothing: the chain must come from a handshake under [`crate::server_config`] or
/// [`crate::client_config`].
///
/// # Errors
/// [`PeerError`] if the chain is empty, or its leaf does not have exactly one URI name that is an identity of a workload,
/// an agent, a server or a relay.
/// Source: X.509-SVID specification, sections 2 and 5.2.
pub fn peer_identity(chain: &[CertificateDer<'_>]) -> Result<Identity, PeerError> {
    let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
    party(&parse(leaf)?)
}

/// Who calls a port on which strangers may ask to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody that is known yet.
    Stranger,
    /// A party with a certificate of the mesh.
    Member {
        /// The certificate's identity.
        identity: Identity,
        /// The certificate's key, of which TLS has proved possession.
        key: KeyFingerprint,
    },
}

impl Caller {
    /// The client at the other end of a handshake under [`crate::agent_server_config`], by the certificates that it
    /// presented.
    ///
    /// # Errors
    /// As [`peer_identity`], and [`PeerError::Expired`] if the certificate is over now: a session that is resumed shows
    /// the certificate of its first handshake, and TLS does not look at it again.
    pub fn of(chain: Option<&[CertificateDer<'_>]>, now: UnixSeconds) -> Result<Self, PeerError> {
        let Some(leaf) = chain.and_then(<[_]>::first) else { return Ok(Self::Stranger) };
        let certificate = parse(leaf)?;
        let not_after = validity(&certificate).ok_or(PeerError::Malformed)?.not_after();
        if not_after < now {
            return Err(PeerError::Expired { not_after });
        }
        let key = fingerprint(&certificate);
        Ok(Self::Member { identity: party(&certificate)?, key })
    }
}

/// The fingerprint of a certificate's key.
pub(crate) fn fingerprint(certificate: &X509Certificate<'_>) -> KeyFingerprint {
    fingerprint_of(certificate.public_key().raw)
}

/// The fingerprint of a public key, by its `SubjectPublicKeyInfo` in DER.
pub(crate) fn fingerprint_of(public_key_info: &[u8]) -> KeyFingerprint {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public_key_info);
    KeyFingerprint(digest.as_ref().try_into().expect("invariant: SHA-256 has 32 bytes"))
}

/// The last second of validity of the first certificate of a chain; `None` if there is none that can be read.
#[must_use]
pub fn valid_until(chain: Option<&[CertificateDer<'_>]>) -> Option<UnixSeconds> {
    validity(&parse(chain?.first()?).ok()?).map(|validity| validity.not_after())
}

/// A certificate with nothing after it.
pub(crate) fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(PeerError::Malformed),
    }
}

/// The identity in a certificate, if it is one of a party to connections.
pub(crate) fn party(certificate: &X509Certificate<'_>) -> Result<Identity, PeerError> {
    match sole_identity(certificate)? {
        Identity::Authority(_) => Err(PeerError::Authority),
        identity @ (Identity::Workload(_)
        | Identity::Agent { .. }
        | Identity::Server { .. }
        | Identity::Relay { .. }) => Ok(identity),
    }
}

/// [`peer_identity`] of a leaf, which must be of `trust_domain`.
pub(crate) fn member_identity(leaf: &CertificateDer<'_>, trust_domain: &TrustDomain) -> Result<Identity, PeerError> {
    let identity = peer_identity(std::slice::from_ref(leaf))?;
    if identity.trust_domain() != trust_domain {
        return Err(PeerError::TrustDomain { found: identity.trust_domain().clone(), wanted: trust_domain.clone() });
    }
    Ok(identity)
}

/// The identity in the one URI name of a certificate.
pub(crate) fn sole_identity(certificate: &X509Certificate<'_>) -> Result<Identity, PeerError> {
    let extension = certificate.subject_alternative_name().map_err(|_| PeerError::Malformed)?;
    let names = extension.map_or(&[][..], |extension| &extension.value.general_names);
    let mut uris = Vec::new();
    for name in names {
        // A name that this parser cannot read might be a URI to another parser.
        if let GeneralName::Invalid(..) = name {
            return Err(PeerError::Malformed);
        }
        if let GeneralName::URI(uri) = name {
            uris.push(*uri);
        }
    }
    match *uris.as_slice() {
        [uri] => Ok(uri.parse()?),
        _ => Err(PeerError::UriCount { count: uris.len() }),
    }
}
