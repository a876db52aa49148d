//! The built-in CA: one self-signed ECDSA P-256 root, and the leaves that it signs.
//!
//! The root's private key is read from disk once and stays inside [`CertificateAuthority`]; no method returns it and no
//! debug form shows it. The caller decides who gets a certificate; names come from its records, never from a request.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use starling_identity::{Identity, IssuanceError, IssuanceRules, RootFingerprint, SpiffeId, Validity};
use starling_model::{CaRootRecord, Datacenter, NodeName, TrustDomain, UnixSeconds};

use crate::encoding::{CERTIFICATE_LABEL, colon_hex, pem};
use crate::key::P256Key;
use crate::request::{ProvenKey, RequestError};
use crate::roots::RootCertificate;

mod folder;

pub use folder::{CreateError, OpenError};

/// Bytes in a leaf's serial number: 128 bits, all but two of them random (RFC 5280, section 4.1.2.2, allows 160).
const LEAF_SERIAL_BYTES: usize = 16;

/// Bytes in a root's serial number; it is published as a 64-bit number.
const ROOT_SERIAL_BYTES: usize = 8;

/// Bytes of the key identifier that tell one root from another in its name.
const NAME_KEY_ID_BYTES: usize = 4;

/// Why there is no CA.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The one on disk cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// None was there, and a new one cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The one on disk belongs to another cluster.
    #[error("the CA on disk is of trust domain {found}; this cluster is {wanted}")]
    TrustDomain {
        /// The trust domain of the root on disk.
        found: TrustDomain,
        /// The trust domain asked for.
        wanted: TrustDomain,
    },
}

/// Why no certificate is issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The request is refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The rules do not allow it now.
    #[error(transparent)]
    Rules(#[from] IssuanceError),
    /// The identity belongs to another mesh.
    #[error("identity {identity} is not of trust domain {trust_domain}")]
    TrustDomain {
        /// The identity asked for.
        identity: Box<SpiffeId>,
        /// The trust domain of the CA.
        trust_domain: TrustDomain,
    },
    /// The system has no randomness to give.
    #[error("no random serial number can be drawn")]
    Random,
    /// The certificate cannot be encoded or signed.
    #[error("the certificate cannot be signed")]
    Sign(#[from] rcgen::Error),
}

/// A certificate fresh from the CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedLeaf {
    /// The leaf alone, in PEM.
    pub certificate_pem: String,
    /// The leaf and what stands between it and the root, in PEM, leaf first. The root is in it for servers only.
    pub chain_pem: String,
    /// The serial number, hexadecimal pairs with colons.
    pub serial: String,
    /// Not valid before.
    pub not_before: UnixSeconds,
    /// Not valid after.
    pub not_after: UnixSeconds,
}

/// The CA of one mesh.
pub struct CertificateAuthority {
    issuer: Issuer<'static, P256Key>,
    /// What all leaves have in common.
    template: CertificateParams,
    root: CaRootRecord,
    root_fingerprint: RootFingerprint,
    root_validity: Validity,
}

impl CertificateAuthority {
    /// Makes a CA and keeps it in `dir/ca`, which must not exist yet.
    ///
    /// Both files of it appear at once or not at all, and are on disk when this returns.
    ///
    /// # Errors
    /// [`CreateError`] if there is one already, or the files cannot be written.
    pub fn create(dir: &Path, trust_domain: &TrustDomain, now: UnixSeconds) -> Result<Self, CreateError> {
        let validity = Validity::of_root(now)?;
        let key = P256Key::generate()?;
        let certificate = root_params(&key, trust_domain, validity)?.self_signed(&key)?;
        folder::write(dir, &key.to_pem()?, &pem(CERTIFICATE_LABEL, certificate.der()))?;
        Ok(Self::new(key, &RootCertificate::from_der(certificate.into())?)?)
    }

    /// Reads the CA in `dir/ca`.
    ///
    /// # Errors
    /// [`OpenError`] if there is none, a file is damaged, key and certificate do not belong together, or others may read
    /// the key. Nothing is ever repaired or overwritten.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (key, root) = folder::read(dir)?;
        Self::new(key, &root).map_err(|source| OpenError::Issuer { path: folder::path(dir), source })
    }

    /// Opens the CA in `dir/ca`, or creates it if there is none.
    ///
    /// # Errors
    /// [`AuthorityError`] if what is there cannot be used or is of another trust domain, or nothing is there and a new
    /// one cannot be made.
    pub fn open_or_create(dir: &Path, trust_domain: &TrustDomain, now: UnixSeconds) -> Result<Self, AuthorityError> {
        match Self::open(dir) {
            Ok(authority) if authority.trust_domain() != trust_domain => Err(AuthorityError::TrustDomain {
                found: authority.trust_domain().clone(),
                wanted: trust_domain.clone(),
            }),
            Err(OpenError::Absent { .. }) => Ok(Self::create(dir, trust_domain, now)?),
            opened => Ok(opened?),
        }
    }

    fn new(key: P256Key, root: &RootCertificate) -> Result<Self, rcgen::Error> {
        let mut template = CertificateParams::default();
        template.distinguished_name = DistinguishedName::new();
        template.is_ca = IsCa::ExplicitNoCa;
        template.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        template.use_authority_key_identifier_extension = true;
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(&root.der, key)?,
            template,
            root: root.record(),
            root_fingerprint: RootFingerprint::of(&root.der),
            root_validity: root.validity,
        })
    }

    /// The root as it is stored and published.
    #[must_use]
    pub fn root(&self) -> &CaRootRecord {
        &self.root
    }

    /// By what an agent that joins knows the root.
    #[must_use]
    pub fn root_fingerprint(&self) -> RootFingerprint {
        self.root_fingerprint
    }

    /// The trust domain for which it signs.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.root.trust_domain
    }

    /// Issues the certificate of a workload for the key in a certificate signing request.
    ///
    /// `id` is the certificate's only name; whatever the request asks for is ignored. Without `ttl` the rules' own
    /// lifetime holds.
    ///
    /// # Errors
    /// [`IssueError`] if the request does not prove possession of a P-256 or P-384 key, `id` is of another trust domain,
    /// or the rules forbid it.
    pub fn issue_leaf(
        &self,
        csr_der: &[u8],
        id: &SpiffeId,
        rules: &IssuanceRules,
        now: UnixSeconds,
        ttl: Option<Duration>,
    ) -> Result<IssuedLeaf, IssueError> {
        self.issue_gateway_leaf(csr_der, (id, &BTreeSet::new()), rules, now, ttl)
    }

    /// Issues the certificate of a gateway: that of a workload, which bears DNS names beside its identity, for clients
    /// outside the mesh that verify by name. They are the caller's, never the request's.
    ///
    /// # Errors
    /// As [`CertificateAuthority::issue_leaf`].
    pub fn issue_gateway_leaf(
        &self,
        csr_der: &[u8],
        (id, dns_names): (&SpiffeId, &BTreeSet<String>),
        rules: &IssuanceRules,
        now: UnixSeconds,
        ttl: Option<Duration>,
    ) -> Result<IssuedLeaf, IssueError> {
        if id.trust_domain != self.root.trust_domain {
            return Err(IssueError::TrustDomain {
                identity: Box::new(id.clone()),
                trust_domain: self.root.trust_domain.clone(),
            });
        }
        let validity = rules.leaf_validity(now, ttl, self.root_validity)?;
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let mut names = vec![uri_name(id.to_uri())?];
        for name in dns_names {
            names.push(SanType::DnsName(Ia5String::try_from(name.as_str())?));
        }
        self.sign(csr_der, names, usages, validity)
    }

    /// Issues the certificate by which the agent of `node` is known to servers; it is a client and nothing else.
    ///
    /// # Errors
    /// As [`CertificateAuthority::issue_leaf`].
    pub fn issue_agent(
        &self,
        csr_der: &[u8],
        datacenter: &Datacenter,
        node: &NodeName,
        rules: &IssuanceRules,
        now: UnixSeconds,
    ) -> Result<IssuedLeaf, IssueError> {
        let identity = Identity::Agent {
            trust_domain: self.root.trust_domain.clone(),
            datacenter: datacenter.clone(),
            node: node.clone(),
        };
        let validity = rules.leaf_validity(now, None, self.root_validity)?;
        self.sign(csr_der, vec![uri_name(identity.to_uri())?], vec![ExtendedKeyUsagePurpose::ClientAuth], validity)
    }

    /// Issues the certificate of a server.
    ///
    /// Beside its identity it bears `localhost`, `server.<dc>.consul` and the given addresses, for clients that verify
    /// by name. The root ends its chain: of that, an agent that joins knows no more than the fingerprint.
    ///
    /// # Errors
    /// As [`CertificateAuthority::issue_leaf`].
    pub fn issue_server(
        &self,
        csr_der: &[u8],
        datacenter: &Datacenter,
        addresses: &[IpAddr],
        rules: &IssuanceRules,
        now: UnixSeconds,
    ) -> Result<IssuedLeaf, IssueError> {
        let identity =
            Identity::Server { trust_domain: self.root.trust_domain.clone(), datacenter: datacenter.clone() };
        let mut names = vec![
            uri_name(identity.to_uri())?,
            SanType::DnsName(Ia5String::try_from("localhost")?),
            SanType::DnsName(Ia5String::try_from(format!("server.{datacenter}.consul"))?),
        ];
        names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        let validity = rules.leaf_validity(now, None, self.root_validity)?;
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let mut leaf = self.sign(csr_der, names, usages, validity)?;
        leaf.chain_pem.push_str(&self.root.certificate_pem);
        Ok(leaf)
    }

    fn sign(
        &self,
        csr_der: &[u8],
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<IssuedLeaf, IssueError> {
        let key = ProvenKey::from_request(csr_der)?;
        let serial = random_serial::<LEAF_SERIAL_BYTES>().ok_or(IssueError::Random)?;
        let mut params = self.template.clone();
        params.subject_alt_names = names;
        params.extended_key_usages = usages;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        set_validity(&mut params, validity);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let certificate_pem = pem(CERTIFICATE_LABEL, certificate.der());
        Ok(IssuedLeaf {
            // The root signs leaves itself: nothing stands between them.
            chain_pem: certificate_pem.clone(),
            certificate_pem,
            serial: colon_hex(&serial),
            not_before: validity.not_before(),
            not_after: validity.not_after(),
        })
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("root", &self.root.id)
            .field("trust_domain", &self.root.trust_domain)
            .finish_non_exhaustive()
    }
}

fn root_params(
    key: &P256Key,
    trust_domain: &TrustDomain,
    validity: Validity,
) -> Result<CertificateParams, CreateError> {
    let mut params = CertificateParams::default();
    let key_id = params.key_identifier(key);
    let short = colon_hex(&key_id[..NAME_KEY_ID_BYTES]).replace(':', "");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Starling CA {short}"));
    params.subject_alt_names = vec![uri_name(Identity::Authority(trust_domain.clone()).to_uri())?];
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    let serial = random_serial::<ROOT_SERIAL_BYTES>().ok_or(CreateError::Random)?;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    set_validity(&mut params, validity);
    Ok(params)
}

fn uri_name(uri: String) -> Result<SanType, rcgen::Error> {
    Ok(SanType::URI(Ia5String::try_from(uri)?))
}

fn set_validity(params: &mut CertificateParams, validity: Validity) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(validity.not_before().0);
    params.not_after = epoch + Duration::from_secs(validity.not_after().0);
}

/// Random bytes of which the first is in 0x40 to 0x7f: positive in DER, and as long in DER as here.
fn random_serial<const BYTES: usize>() -> Option<[u8; BYTES]> {
    let mut serial = [0; BYTES];
    aws_lc_rs::rand::fill(&mut serial).ok()?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Some(serial)
}
