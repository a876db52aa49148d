//! Certificate signing requests (PKCS #10, RFC 2986) as bytes from outside.
//!
//! A request proves one thing, that the requester holds the private key to a public key. Subject, extensions and
//! attributes are not looked at.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, EcdsaVerificationAlgorithm, UnparsedPublicKey,
};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData, SignatureAlgorithm};
use starling_model::KeyFingerprint;
use x509_parser::asn1_rs::BitString;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384,
    Oid,
};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::encoding::{REQUEST_LABEL, pem};
use crate::peer::fingerprint_of;

/// Bytes in a request; one for an elliptic-curve key has a few hundred, generous names included.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Longer than the limit.
    #[error("the certificate signing request is {len} bytes long; at most {REQUEST_BYTES_MAX} are allowed")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// Not DER of a request, or something follows it.
    #[error("the certificate signing request is not the DER of one")]
    Malformed,
    /// The key is of another kind, or its point is not written in the uncompressed form.
    #[error("the key of the certificate signing request is not ECDSA on P-256 or P-384")]
    KeyType,
    /// The requester does not prove that it holds the private key.
    #[error("the certificate signing request is not signed by its own key")]
    Signature,
    /// The request names somebody, where another program might believe it.
    #[error("the certificate signing request asks for names; where a Vault signs it must ask for none")]
    Names,
}

/// A request that proves possession of its key, and says nothing else.
#[derive(Debug)]
pub struct CertificateRequest {
    der: Vec<u8>,
    key: ProvenKey,
}

impl CertificateRequest {
    /// Reads a request in DER that asks for no names.
    ///
    /// # Errors
    /// [`RequestError`] if it proves no key of P-256 or P-384, or asks for names.
    pub fn nameless(der: &[u8]) -> Result<Self, RequestError> {
        let key = ProvenKey::from_request(der)?;
        let (_, request) = X509CertificationRequest::from_der(der).map_err(|_| RequestError::Malformed)?;
        let asks = request.requested_extensions().is_some_and(|mut extensions| extensions.next().is_some());
        if asks || request.certification_request_info.subject.iter().next().is_some() {
            return Err(RequestError::Names);
        }
        Ok(Self { der: der.to_vec(), key })
    }

    /// The request in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem(REQUEST_LABEL, &self.der)
    }

    /// The public key as an uncompressed point.
    pub(crate) fn public_point(&self) -> &[u8] {
        self.key.der_bytes()
    }
}

/// The fingerprint of the key that a request in DER proves possession of.
///
/// # Errors
/// [`RequestError`] if it proves no key of P-256 or P-384.
pub fn requested_key(der: &[u8]) -> Result<KeyFingerprint, RequestError> {
    ProvenKey::from_request(der)?;
    let (_, request) = X509CertificationRequest::from_der(der).map_err(|_| RequestError::Malformed)?;
    Ok(fingerprint_of(request.certification_request_info.subject_pki.raw))
}

/// A public key whose holder has proved to have the private one.
#[derive(Debug)]
pub(crate) struct ProvenKey {
    point: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl PublicKeyData for ProvenKey {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

/// What belongs to one curve.
struct Curve {
    /// Bytes in an uncompressed point: a tag and two coordinates.
    point_bytes: usize,
    signature_oid: Oid<'static>,
    verification: &'static EcdsaVerificationAlgorithm,
    key_algorithm: &'static SignatureAlgorithm,
}

/// The first byte of an uncompressed point (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;

impl ProvenKey {
    /// Parses a request and checks its signature.
    pub(crate) fn from_request(der: &[u8]) -> Result<Self, RequestError> {
        if der.len() > REQUEST_BYTES_MAX {
            return Err(RequestError::TooLong { len: der.len() });
        }
        let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| RequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(RequestError::Malformed);
        }
        let body = &request.certification_request_info;
        let curve = Curve::of(&body.subject_pki)?;
        let point = whole_bytes(&body.subject_pki.subject_public_key).ok_or(RequestError::KeyType)?;
        if point.len() != curve.point_bytes || point.first() != Some(&UNCOMPRESSED) {
            return Err(RequestError::KeyType);
        }
        // RFC 5758, section 3.2: parameters are absent.
        if request.signature_algorithm.algorithm != curve.signature_oid
            || request.signature_algorithm.parameters.is_some()
        {
            return Err(RequestError::Signature);
        }
        let signature = whole_bytes(&request.signature_value).ok_or(RequestError::Signature)?;
        UnparsedPublicKey::new(curve.verification, point)
            .verify(body.raw, signature)
            .map_err(|_| RequestError::Signature)?;
        Ok(Self { point: point.to_vec(), algorithm: curve.key_algorithm })
    }
}

/// The contents of a bit string whose last byte is used to the last bit, as keys and signatures have it.
fn whole_bytes<'a>(bits: &'a BitString<'_>) -> Option<&'a [u8]> {
    (bits.unused_bits == 0).then_some(bits.data.as_ref())
}

impl Curve {
    fn of(key: &SubjectPublicKeyInfo<'_>) -> Result<Self, RequestError> {
        let named = key.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok()).ok_or(RequestError::KeyType)?;
        if key.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY {
            Err(RequestError::KeyType)
        } else if named == OID_EC_P256 {
            Ok(Self {
                point_bytes: 65,
                signature_oid: OID_SIG_ECDSA_WITH_SHA256,
                verification: &ECDSA_P256_SHA256_ASN1,
                key_algorithm: &PKCS_ECDSA_P256_SHA256,
            })
        } else if named == OID_NIST_EC_P384 {
            Ok(Self {
                point_bytes: 97,
                signature_oid: OID_SIG_ECDSA_WITH_SHA384,
                verification: &ECDSA_P384_SHA384_ASN1,
                key_algorithm: &PKCS_ECDSA_P384_SHA384,
            })
        } else {
            Err(RequestError::KeyType)
        }
    }
}
