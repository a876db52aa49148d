//! TLS for callers from outside the mesh: certificates that users bring, chosen by the name that a caller asks for.
//!
//! Callers show nothing of their own, speak TLS 1.2 or 1.3, and may resume their sessions: nothing is known of them that a
//! resumed session could outlive.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use starling_identity::Validity;
use starling_model::TlsVersion;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::config::{Alpn, ConfigError};
use crate::peer::parse;
use crate::roots::validity;

/// Why a certificate cannot be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EdgeCertificateError {
    /// There is no certificate.
    #[error("there is no certificate in PEM")]
    Certificate,
    /// There is no key.
    #[error("there is no private key in PEM")]
    Key,
    /// The key is of a kind that is not used.
    #[error("the private key is of no kind that can be used")]
    KeyKind,
    /// The certificate is no X.509 certificate.
    #[error("the certificate cannot be read")]
    Malformed,
    /// They do not belong together.
    #[error("the certificate is not of this private key")]
    Mismatch,
}

/// A certificate with its key and the hosts that it is for.
#[derive(Clone)]
pub struct EdgeCertificate {
    certified: Arc<CertifiedKey>,
    names: Vec<String>,
    validity: Option<Validity>,
}

impl EdgeCertificate {
    /// Joins a chain, leaf first, with its key, both in PEM.
    ///
    /// # Errors
    /// [`EdgeCertificateError`] if they cannot be read or do not belong together.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, EdgeCertificateError> {
        use EdgeCertificateError as Wrong;
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(|_| Wrong::Certificate)?;
        let leaf = parse(chain.first().ok_or(Wrong::Certificate)?).map_err(|_| Wrong::Malformed)?;
        let (names, validity) = (names_of(&leaf), validity(&leaf));
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| Wrong::Key)?;
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).map_err(|_| Wrong::KeyKind)?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|_| Wrong::Mismatch)?;
        Ok(Self { certified: Arc::new(certified), names, validity })
    }

    /// The hosts that it is for, in lower case.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// When it is valid; `None` if that cannot be told.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.validity
    }
}

impl fmt::Debug for EdgeCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeCertificate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The DNS names in the first certificate of a chain in PEM; none if it cannot be read.
#[must_use]
pub fn dns_names(chain_pem: &str) -> BTreeSet<String> {
    let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes()).next().and_then(Result::ok);
    let leaf = chain.as_ref().and_then(|leaf| parse(leaf).ok());
    leaf.map(|leaf| names_of(&leaf).into_iter().collect()).unwrap_or_default()
}

/// The DNS names of a certificate; one that has none is for its common name, as before RFC 6125.
fn names_of(leaf: &X509Certificate<'_>) -> Vec<String> {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    let dns = |name: &GeneralName<'_>| {
        if let GeneralName::DNSName(name) = name { Some(name.to_ascii_lowercase()) } else { None }
    };
    let names: Vec<_> = alternatives.iter().flat_map(|names| &names.value.general_names).filter_map(dns).collect();
    if !names.is_empty() || alternatives.is_some() {
        return names;
    }
    let common = leaf.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    common.map(str::to_ascii_lowercase).collect()
}

/// Certificates to choose from, at least one.
#[derive(Debug, Clone)]
pub struct EdgeCertificates {
    first: EdgeCertificate,
    rest: Vec<EdgeCertificate>,
    /// Names and the places of their certificates, sorted; wildcards as they are written.
    by_name: Vec<(String, usize)>,
}

impl EdgeCertificates {
    /// The first one is shown to who asks for no name, or for one that no certificate has.
    #[must_use]
    pub fn new(first: EdgeCertificate, rest: Vec<EdgeCertificate>) -> Self {
        let all = std::iter::once(&first).chain(&rest).enumerate();
        let mut by_name: Vec<_> =
            all.flat_map(|(place, it)| it.names.iter().map(move |name| (name.clone(), place))).collect();
        // Where two have a name the first of them is shown.
        by_name.sort();
        by_name.dedup_by(|(a, _), (b, _)| a == b);
        Self { first, rest, by_name }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &EdgeCertificate> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The place of the certificate that is for `host`: one that names it, or else one that names it but for its first label
    /// (RFC 6125 section 6.4.3).
    #[must_use]
    pub fn find(&self, host: &str) -> Option<usize> {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let look_up = |name: &str| {
            let found = self.by_name.binary_search_by(|(other, _)| other.as_str().cmp(name)).ok();
            found.map(|place| self.by_name[place].1)
        };
        look_up(&host).or_else(|| look_up(&format!("*.{}", host.split_once('.')?.1)))
    }

    /// What is shown to who asks for `name`.
    #[must_use]
    pub fn choose(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let place = name.and_then(|name| self.find(name)).unwrap_or(0);
        let chosen = place.checked_sub(1).and_then(|place| self.rest.get(place)).unwrap_or(&self.first);
        Arc::clone(&chosen.certified)
    }
}

/// The configuration of a port for callers from outside.
///
/// # Errors
/// [`ConfigError`] if the crypto provider does not allow it.
pub fn edge_server_config(
    certificates: Arc<dyn ResolvesServerCert>,
    min_version: TlsVersion,
    alpn: Alpn,
) -> Result<ServerConfig, ConfigError> {
    let versions: &[&SupportedProtocolVersion] = match min_version {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .map_err(ConfigError::Protocol)?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = alpn.protocols();
    // Tickets that every worker can read: a caller comes back to any of them.
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(ConfigError::Tickets)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn made(names: &[&str], common: Option<&str>) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    fn certificate(names: &[&str]) -> EdgeCertificate {
        let (chain, key) = made(names, Some("not.this"));
        EdgeCertificate::from_pem(chain.as_bytes(), key.as_bytes()).expect("a certificate with its key")
    }

    #[test]
    fn a_name_finds_its_certificate_and_any_other_the_first() {
        let all = EdgeCertificates::new(
            certificate(&["a.example.com", "*.wild.example"]),
            vec![certificate(&["b.example.com"]), certificate(&["x.wild.example", "a.example.com"])],
        );
        for (name, expected) in [
            ("a.example.com", Some(0)),
            ("B.Example.com", Some(1)),
            ("b.example.com.", Some(1)),
            ("y.wild.example", Some(0)),
            ("x.wild.example", Some(2)),
            ("x.y.wild.example", None),
            ("wild.example", None),
            ("not.this", None),
            ("localhost", None),
        ] {
            assert_eq!(all.find(name), expected, "{name}");
        }
        let shown = |name| all.iter().position(|it| Arc::ptr_eq(&it.certified, &all.choose(name)));
        assert_eq!(shown(Some("x.wild.example")), Some(2));
        assert_eq!((shown(None), shown(Some("other"))), (Some(0), Some(0)));
    }

    #[test]
    fn what_cannot_be_shown_is_refused_with_the_reason() {
        let ((chain, key), (_, other)) = (made(&["a"], None), made(&["a"], None));
        let read = |chain: &str, key: &str| {
            EdgeCertificate::from_pem(chain.as_bytes(), key.as_bytes()).map(|it| it.names().to_vec())
        };
        assert_eq!(read(&chain, &key), Ok(vec!["a".to_owned()]));
        assert_eq!(read("", &key), Err(EdgeCertificateError::Certificate));
        assert_eq!(read(&key, &key), Err(EdgeCertificateError::Certificate));
        assert_eq!(read(&chain, &chain), Err(EdgeCertificateError::Key));
        assert_eq!(read(&chain, &other), Err(EdgeCertificateError::Mismatch));
        let (old, key) = made(&[], Some("Old.Example"));
        assert_eq!(read(&old, &key), Ok(vec!["old.example".to_owned()]), "named as before RFC 6125");
    }
}
