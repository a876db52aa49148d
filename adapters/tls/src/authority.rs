//! The built-in CA: one self-signed ECDSA P-256 root, and the leaves that it signs.
//!
//! The root's private key is read from disk once and stays inside [`CertificateAuthority`]; no method returns it and no
//! debug form shows it. The caller decides who gets a certificate; names come from its records, never from a request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyUsagePurpose, SerialNumber,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use starling_identity::{Identity, IssuanceError, IssuanceRules, RootFingerprint, SpiffeId, Validity};
use starling_model::{CaKeyPlace, CaKeyRecord, CaRootRecord, Datacenter, NodeName, TrustDomain, UnixSeconds};

use crate::encoding::{CERTIFICATE_LABEL, colon_hex, pem};
use crate::key::P256Key;
use crate::peer::parse;
use crate::request::{ProvenKey, RequestError};
use crate::roots::{RootCertificate, RootError};
use crate::seal::{SealKeys, UnsealError};

mod chain;
mod check;
mod folder;
mod profile;

use chain::Chain;
pub use chain::{ChainError, ImportError};
pub use check::{IssuedError, check_issued, external_root};
pub use folder::{CreateError, OpenError};
pub use profile::LeafProfile;
use profile::uri_name;

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
        identity: Box<Identity>,
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

/// The sealed CA of a root is of no use.
#[derive(Debug, thiserror::Error)]
#[error("the key of the CA {root} cannot be used")]
pub struct UnsealAuthorityError {
    /// The root.
    pub root: String,
    /// Why.
    #[source]
    pub reason: UnsealReason,
}

/// Why a sealed CA is of no use.
#[derive(Debug, thiserror::Error)]
pub enum UnsealReason {
    /// The key is not here.
    #[error("it is not here: another program signs with it")]
    Elsewhere,
    /// It cannot be opened.
    #[error(transparent)]
    Unseal(#[from] UnsealError),
    /// What was sealed is no key.
    #[error("what was sealed is no private key")]
    Key(#[from] crate::KeyError),
    /// The certificates beside it are damaged, or another key's.
    #[error("the certificates beside it cannot be used")]
    Chain(#[from] ChainError),
    /// The root is damaged.
    #[error("the root certificate cannot be used")]
    Root(#[from] RootError),
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
    /// The certificate that signs leaves: the root's, or one below it.
    signer: CertificateDer<'static>,
    /// What all leaves have in common.
    template: CertificateParams,
    root: CaRootRecord,
    root_fingerprint: RootFingerprint,
    /// When everything from the signer to the root is valid.
    validity: Validity,
    /// From the signer to the last before the root; empty if the root signs.
    chain_pem: String,
    /// Shown to those who trust only the root before this one.
    bridge_pem: String,
}

impl CertificateAuthority {
    /// Makes a CA and keeps it in `dir/ca`, which must not exist yet.
    ///
    /// Both files of it appear at once or not at all, and are on disk when this returns.
    ///
    /// # Errors
    /// [`CreateError`] if there is one already, or the files cannot be written.
    pub fn create(dir: &Path, trust_domain: &TrustDomain, now: UnixSeconds) -> Result<Self, CreateError> {
        let authority = Self::generate(trust_domain, now)?;
        folder::write(dir, &authority.issuer.key().to_pem()?, &authority.root.certificate_pem)?;
        Ok(authority)
    }

    /// Makes a CA and keeps it nowhere.
    ///
    /// # Errors
    /// [`CreateError`] if there is no randomness, or the clock shows an impossible time.
    pub fn generate(trust_domain: &TrustDomain, now: UnixSeconds) -> Result<Self, CreateError> {
        let validity = Validity::of_root(now)?;
        let key = P256Key::generate()?;
        let certificate = root_params(&key, trust_domain, validity)?.self_signed(&key)?;
        let root = RootCertificate::from_der(certificate.into(), None)?;
        let record = root.record();
        Ok(Self::new(key, &root, record, &Chain::default())?)
    }

    /// Reads the CA in `dir/ca`.
    ///
    /// # Errors
    /// [`OpenError`] if there is none, a file is damaged, key and certificate do not belong together, or others may read
    /// the key. Nothing is ever repaired or overwritten.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (key, root) = folder::read(dir)?;
        let record = root.record();
        let opened = Self::new(key, &root, record, &Chain::default());
        opened.map_err(|source| OpenError::Issuer { path: folder::path(dir), source })
    }

    /// Removes the CA in `dir/ca`, which is somewhere else by now.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(dir: &Path) -> std::io::Result<()> {
        folder::remove(dir)
    }

    /// Removes what a removal of the CA in `dir/ca` left that was interrupted; whether there was anything.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_remains(dir: &Path) -> std::io::Result<bool> {
        folder::remove_remains(dir)
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

    /// Takes a CA from elsewhere: the certificate that signs, with those between it and its root, and its private key, all
    /// in PEM. The root ends the certificates, or is among `roots_pem`. What it signs is tried on a peer's rules before it
    /// is taken.
    ///
    /// # Errors
    /// [`ImportError`] if any of it is not what a CA of this mesh has.
    pub fn import(
        certificates_pem: &str,
        key_pem: &str,
        roots_pem: Option<&str>,
        trust_domain: &TrustDomain,
        now: UnixSeconds,
    ) -> Result<Self, ImportError> {
        let (key, root, chain) = chain::imported(certificates_pem, key_pem, roots_pem, trust_domain, now)?;
        let record = root.record();
        let authority = Self::new(key, &root, record, &chain).map_err(ChainError::Sign)?;
        chain::check_by_trial(&authority, &authority.root, now)?;
        Ok(authority)
    }

    /// Opens a CA from elsewhere whose key comes sealed, and tries what it signs as [`CertificateAuthority::import`] does.
    ///
    /// # Errors
    /// [`UnsealAuthorityError`] if the key cannot be opened, or any of it is not what a CA of this mesh has.
    pub fn unseal_import(
        root_pem: &str,
        key: &CaKeyRecord,
        seal: &SealKeys,
        trust_domain: &TrustDomain,
        now: UnixSeconds,
    ) -> Result<Self, UnsealAuthorityError> {
        let failed = |reason| UnsealAuthorityError { root: key.root.clone(), reason };
        let root =
            RootCertificate::from_pem(root_pem, Some(trust_domain)).map_err(|error| failed(error.into()))?.record();
        let authority = Self::unseal(&root, key, seal)?;
        let tried =
            chain::check_all(&key.chain_pem, &root, now).and_then(|()| chain::check_by_trial(&authority, &root, now));
        tried.map_err(|error| failed(error.into()))?;
        Ok(authority)
    }

    /// Opens the CA of a root whose key is sealed.
    ///
    /// # Errors
    /// [`UnsealAuthorityError`] if the key cannot be opened, or is not that of the certificate beside it.
    pub fn unseal(root: &CaRootRecord, key: &CaKeyRecord, seal: &SealKeys) -> Result<Self, UnsealAuthorityError> {
        let failed = |reason| UnsealAuthorityError { root: root.id.clone(), reason };
        let open = || {
            let CaKeyPlace::Sealed(sealed) = &key.place else { return Err(UnsealReason::Elsewhere) };
            let certificate = RootCertificate::from_record(root)?;
            let chain = Chain::from_pem(&key.chain_pem)?;
            let private = P256Key::from_der(&seal.unseal(&root.id, sealed)?)?;
            let signer = parse(chain.signer(&certificate)).map_err(|_| ChainError::Malformed)?;
            if private.public_point() != signer.public_key().subject_public_key.data.as_ref() {
                return Err(ChainError::Mismatch { subject: signer.subject().to_string() }.into());
            }
            let opened = Self::new(private, &certificate, root.clone(), &chain).map_err(ChainError::Sign)?;
            Ok(Self { bridge_pem: key.bridge_pem.clone(), ..opened })
        };
        open().map_err(failed)
    }

    /// The record of its key, sealed.
    ///
    /// # Errors
    /// [`KeyError`](crate::KeyError) if the crypto library refuses.
    pub fn sealed(&self, seal: &SealKeys) -> Result<CaKeyRecord, crate::KeyError> {
        Ok(CaKeyRecord {
            root: self.root.id.clone(),
            chain_pem: self.chain_pem.clone(),
            bridge_pem: self.bridge_pem.clone(),
            trusted: BTreeMap::new(),
            place: CaKeyPlace::Sealed(seal.seal(&self.root.id, &self.issuer.key().to_der()?)?),
        })
    }

    /// The same, certified by the CA before it: servers show that to agents that know only the older root. Nothing is added
    /// where the name of the newer one cannot be written again.
    #[must_use]
    pub fn bridged_from(self, older: &Self) -> Self {
        let bridge_pem = chain::bridge(older, &self).unwrap_or_default();
        Self {
            bridge_pem: if bridge_pem.is_empty() { bridge_pem } else { bridge_pem + &older.root.certificate_pem },
            ..self
        }
    }

    fn new(key: P256Key, root: &RootCertificate, record: CaRootRecord, chain: &Chain) -> Result<Self, rcgen::Error> {
        let mut template = CertificateParams::default();
        template.distinguished_name = DistinguishedName::new();
        template.is_ca = IsCa::ExplicitNoCa;
        template.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        template.use_authority_key_identifier_extension = true;
        let signer = chain.signer(root).clone();
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(&signer, key)?,
            signer,
            template,
            root: record,
            root_fingerprint: RootFingerprint::of(&root.der),
            validity: chain.validity(root.validity).ok_or(rcgen::Error::CouldNotParseCertificate)?,
            chain_pem: chain.to_pem(),
            bridge_pem: String::new(),
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
        self.issue(csr_der, &LeafProfile::workload(id, &BTreeSet::new()), rules, now, ttl)
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
        self.issue(csr_der, &LeafProfile::workload(id, dns_names), rules, now, ttl)
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
        self.issue(csr_der, &LeafProfile::agent(self.trust_domain(), datacenter, node), rules, now, None)
    }

    /// Issues the certificate of a server.
    ///
    /// Beside its identity it bears `localhost`, `server.<dc>.consul` and the given addresses, for clients that verify
    /// by name. The root ends its chain: of that, an agent that joins knows no more than the fingerprint. What leads to the
    /// root before this one follows, for agents that have been away since.
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
        let profile = LeafProfile::server(self.trust_domain(), datacenter, addresses);
        let leaf = self.issue(csr_der, &profile, rules, now, None)?;
        let chain_pem = leaf.chain_pem + &self.server_tail();
        Ok(IssuedLeaf { chain_pem, ..leaf })
    }

    /// What follows the chain of a server's certificate: the root, and what leads to the one before it.
    #[must_use]
    pub fn server_tail(&self) -> String {
        [self.root.certificate_pem.as_str(), &self.bridge_pem].concat()
    }

    /// Issues a certificate that says what `profile` says, for the key in a certificate signing request.
    ///
    /// # Errors
    /// As [`CertificateAuthority::issue_leaf`].
    pub fn issue(
        &self,
        csr_der: &[u8],
        profile: &LeafProfile,
        rules: &IssuanceRules,
        now: UnixSeconds,
        ttl: Option<Duration>,
    ) -> Result<IssuedLeaf, IssueError> {
        if profile.identity.trust_domain() != &self.root.trust_domain {
            return Err(IssueError::TrustDomain {
                identity: Box::new(profile.identity.clone()),
                trust_domain: self.root.trust_domain.clone(),
            });
        }
        let validity = rules.leaf_validity(now, ttl, self.validity)?;
        let key = ProvenKey::from_request(csr_der)?;
        let serial = random_serial::<LEAF_SERIAL_BYTES>().ok_or(IssueError::Random)?;
        let mut params = self.template.clone();
        params.subject_alt_names = profile.names()?;
        params.extended_key_usages = profile.usages();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        set_validity(&mut params, validity);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let certificate_pem = pem(CERTIFICATE_LABEL, certificate.der());
        Ok(IssuedLeaf {
            chain_pem: [certificate_pem.as_str(), &self.chain_pem].concat(),
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
