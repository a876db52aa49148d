//! A mesh to test with: a CA in a temporary folder, parties with credentials, and an attacker who holds the CA's key.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DistinguishedName, Issuer, KeyPair, SanType};
use starling_identity::{Identity, IssuanceRules, Layout, SpiffeId};
use starling_model::{Datacenter, Namespace, NodeName, ServiceName, TrustDomain, UnixSeconds};
use starling_tls::{CertificateAuthority, CredentialSlot, Credentials, IssuedLeaf, LeafKey, TrustRoots};

pub const DAY: u64 = 24 * 60 * 60;

pub fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs())
}

pub fn days_ago(days: u64) -> UnixSeconds {
    UnixSeconds(now().0 - days * DAY)
}

pub fn trust_domain() -> TrustDomain {
    TrustDomain::new("11111111-2222-3333-4444-555555555555.consul").unwrap()
}

pub fn datacenter() -> Datacenter {
    Datacenter::new("dc1").unwrap()
}

pub fn workload(service: &str) -> SpiffeId {
    SpiffeId::new(
        Layout::Consul,
        trust_domain(),
        Namespace::new("default").unwrap(),
        datacenter(),
        ServiceName::new(service).unwrap(),
    )
}

pub fn server() -> Identity {
    Identity::Server { trust_domain: trust_domain(), datacenter: datacenter() }
}

pub fn agent(node: &str) -> Identity {
    Identity::Agent { trust_domain: trust_domain(), datacenter: datacenter(), node: NodeName::new(node).unwrap() }
}

/// A CA and the folder that holds it.
pub struct Mesh {
    pub folder: tempfile::TempDir,
    pub authority: CertificateAuthority,
}

impl Mesh {
    pub fn new() -> Self {
        Self::born(now())
    }

    pub fn born(at: UnixSeconds) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::create(folder.path(), &trust_domain(), at).unwrap();
        Self { folder, authority }
    }

    pub fn key_path(&self) -> PathBuf {
        self.folder.path().join("ca/root.key")
    }

    pub fn certificate_path(&self) -> PathBuf {
        self.folder.path().join("ca/root.pem")
    }

    pub fn roots(&self) -> TrustRoots {
        TrustRoots::new([self.authority.root()]).unwrap()
    }

    pub fn issue(&self, key: &LeafKey, service: &str, at: UnixSeconds, ttl: Option<Duration>) -> IssuedLeaf {
        let request = key.csr_der().unwrap();
        self.authority.issue_leaf(&request, &workload(service), &IssuanceRules::default(), at, ttl).unwrap()
    }

    pub fn workload_credentials(&self, service: &str, at: UnixSeconds) -> Arc<CredentialSlot> {
        let key = LeafKey::generate().unwrap();
        slot(&self.issue(&key, service, at, None).chain_pem, &key)
    }

    pub fn server_credentials(&self) -> Arc<CredentialSlot> {
        let key = LeafKey::generate().unwrap();
        slot(&self.issue_server(&key).chain_pem, &key)
    }

    pub fn issue_server(&self, key: &LeafKey) -> IssuedLeaf {
        self.issue_server_at(key, now())
    }

    pub fn issue_server_at(&self, key: &LeafKey, at: UnixSeconds) -> IssuedLeaf {
        let request = key.csr_der().unwrap();
        let addresses = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        self.authority.issue_server(&request, &datacenter(), &addresses, &IssuanceRules::default(), at).unwrap()
    }

    pub fn issue_agent(&self, key: &LeafKey, node: &str, at: UnixSeconds) -> IssuedLeaf {
        let (request, node) = (key.csr_der().unwrap(), NodeName::new(node).unwrap());
        self.authority.issue_agent(&request, &datacenter(), &node, &IssuanceRules::default(), at).unwrap()
    }

    pub fn agent_credentials(&self, node: &str, at: UnixSeconds) -> Credentials {
        let key = LeafKey::generate().unwrap();
        Credentials::new(&self.issue_agent(&key, node, at).chain_pem, &key).unwrap()
    }

    /// A certificate with arbitrary contents, truly signed by the mesh's root.
    pub fn forge(
        &self,
        key: &KeyPair,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> rcgen::Certificate {
        let root_key = KeyPair::from_pem(&std::fs::read_to_string(self.key_path()).unwrap()).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&self.authority.root().certificate_pem, root_key).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names.iter().map(|name| SanType::URI((*name).try_into().unwrap())).collect();
        change(&mut params);
        params.signed_by(key, &issuer).unwrap()
    }
}

pub fn slot(chain_pem: &str, key: &LeafKey) -> Arc<CredentialSlot> {
    CredentialSlot::new(Credentials::new(chain_pem, key).unwrap())
}
