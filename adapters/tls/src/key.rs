//! Private keys: ECDSA on P-256, made here and never shown by accident.
//!
//! A key leaves its type only through [`LeafKey::private_key_pem`], which exists because Envoy takes keys as PEM over SDS.
//! The CA's key has no such door.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rcgen::{CertificateParams, DistinguishedName, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;
use zeroize::{Zeroize, Zeroizing};

use crate::encoding::{PRIVATE_KEY_LABEL, pem};

/// Why there is no key. The text never holds any of the input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The system's source of randomness or the crypto library failed.
    #[error("a key cannot be generated")]
    Generate,
    /// The text is not PEM of a PKCS #8 private key.
    #[error("the text is not a PKCS #8 private key in PEM")]
    Malformed,
    /// The key is not ECDSA on P-256.
    #[error("the private key is not ECDSA on P-256")]
    KeyType,
    /// A key cannot be written out.
    #[error("the private key cannot be encoded")]
    Encode,
    /// The signing request cannot be built.
    #[error("the certificate signing request cannot be built")]
    Request,
}

/// Random bytes for a secret, from the operating system's generator.
///
/// # Errors
/// [`KeyError`] if it has none to give.
pub fn random_secret<const BYTES: usize>() -> Result<Zeroizing<[u8; BYTES]>, KeyError> {
    let mut secret = Zeroizing::new([0; BYTES]);
    aws_lc_rs::rand::fill(&mut *secret).map_err(|_| KeyError::Generate)?;
    Ok(secret)
}

/// A P-256 key pair; the private half lives in the crypto library's memory, which clears it when freed.
pub(crate) struct P256Key {
    pair: EcdsaKeyPair,
}

impl P256Key {
    pub(crate) fn generate() -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| KeyError::Generate)?;
        Ok(Self { pair })
    }

    pub(crate) fn from_pem(text: &str) -> Result<Self, KeyError> {
        let mut der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| KeyError::Malformed)?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der.secret_pkcs8_der())
            .map_err(|_| KeyError::KeyType);
        der.zeroize();
        Ok(Self { pair: pair? })
    }

    /// A private key in PEM, PKCS #8 or that of SEC 1 (RFC 5915), as others write them.
    pub(crate) fn from_any_pem(text: &str) -> Result<Self, KeyError> {
        let mut der = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| KeyError::Malformed)?;
        let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, der.secret_der());
        der.zeroize();
        Ok(Self { pair: pair.map_err(|_| KeyError::KeyType)? })
    }

    /// Reads what [`P256Key::to_der`] wrote.
    pub(crate) fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der).map_err(|_| KeyError::KeyType)?;
        Ok(Self { pair })
    }

    /// PKCS #8 in DER.
    pub(crate) fn to_der(&self) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let document = self.pair.to_pkcs8v1().map_err(|_| KeyError::Encode)?;
        Ok(Zeroizing::new(document.as_ref().to_vec()))
    }

    pub(crate) fn to_pem(&self) -> Result<SecretPem, KeyError> {
        let document = self.pair.to_pkcs8v1().map_err(|_| KeyError::Encode)?;
        Ok(SecretPem(Zeroizing::new(pem(PRIVATE_KEY_LABEL, document.as_ref()))))
    }

    /// The public key as an uncompressed point (SEC 1, section 2.3.3).
    pub(crate) fn public_point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }
}

impl PublicKeyData for P256Key {
    fn der_bytes(&self) -> &[u8] {
        self.public_point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for P256Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature = self.pair.sign(&SystemRandom::new(), message).map_err(|_| rcgen::Error::RingUnspecified)?;
        Ok(signature.as_ref().to_vec())
    }
}

/// PEM of a private key, cleared when dropped; its debug form shows nothing.
pub struct SecretPem(Zeroizing<String>);

impl SecretPem {
    /// The text, for the one who must have it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretPem(..)")
    }
}

/// The private key of a leaf, born on the node that uses it.
pub struct LeafKey(P256Key);

impl LeafKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// [`KeyError::Generate`] if the system has no randomness to give.
    pub fn generate() -> Result<Self, KeyError> {
        P256Key::generate().map(Self)
    }

    /// Reads what [`LeafKey::private_key_pem`] wrote.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] and [`KeyError::KeyType`] if the text is something else.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        P256Key::from_pem(text).map(Self)
    }

    /// A certificate signing request in DER. It names nobody: the CA takes the names from its own records.
    ///
    /// # Errors
    /// [`KeyError::Request`] if signing fails.
    pub fn csr_der(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0).map_err(|_| KeyError::Request)?;
        Ok(request.der().to_vec())
    }

    /// The private key as PKCS #8 in PEM.
    ///
    /// # Errors
    /// [`KeyError::Encode`] if the crypto library refuses.
    pub fn private_key_pem(&self) -> Result<SecretPem, KeyError> {
        self.0.to_pem()
    }

    /// The key in the form in which rustls signs with it.
    pub(crate) fn to_signer(&self) -> Result<std::sync::Arc<dyn SigningKey>, KeyError> {
        let document = self.0.pair.to_pkcs8v1().map_err(|_| KeyError::Encode)?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document.as_ref()));
        rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der).map_err(|_| KeyError::KeyType)
    }
}

impl fmt::Debug for LeafKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeafKey(..)")
    }
}
