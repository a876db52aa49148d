//! CAs whose key is sealed, that come from elsewhere, or that take another's place: what they sign is accepted by those who
//! trust the root, and nothing of it is taken that no peer would accept.

use std::collections::BTreeSet;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, SanType, date_time_ymd,
};
use starling_identity::{Identity, IssuanceRules, RootFingerprint};
use starling_model::{CaKeyPlace, CaRootRecord};
use starling_tls::{
    CertificateAuthority, CertificateRequest, ChainError, ClientAuth, CredentialSlot, Credentials, ImportError,
    IssuedError, LeafKey, LeafProfile, SealKeys, TrustRoots, UnsealError, UnsealReason, agent_server_config,
    check_issued, client_config, join_client_config, rotating_server_config, server_config,
};

use crate::handshake::shake;
use crate::mesh::{Mesh, agent, datacenter, now, server, trust_domain, workload};

/// A key of a CA, and its certificate.
struct Ca {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Example");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Ca {
    fn root() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        Self { certificate: params("Example Root").self_signed(&key).unwrap(), key }
    }

    fn below(&self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = params("Example Mesh CA");
        change(&mut params);
        let issuer = Issuer::from_ca_cert_der(self.certificate.der(), &self.key).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        Self { certificate, key }
    }

    fn import(&self, roots: Option<&Self>, extra: &str) -> Result<CertificateAuthority, ImportError> {
        let chain = self.certificate.pem() + extra;
        let roots = roots.map(|root| root.certificate.pem());
        let key = self.key.serialize_pem();
        CertificateAuthority::import(&chain, &key, roots.as_deref(), &trust_domain(), now())
    }
}

fn seal() -> (tempfile::TempDir, SealKeys) {
    let folder = tempfile::tempdir().unwrap();
    let keys = SealKeys::create(&folder.path().join("seal"), None).unwrap();
    (folder, keys)
}

fn credentials(authority: &CertificateAuthority, service: &str) -> std::sync::Arc<CredentialSlot> {
    let key = LeafKey::generate().unwrap();
    let request = key.csr_der().unwrap();
    let leaf = authority.issue_leaf(&request, &workload(service), &IssuanceRules::default(), now(), None).unwrap();
    CredentialSlot::new(Credentials::new(&leaf.chain_pem, &key).unwrap())
}

fn server_credentials(authority: &CertificateAuthority) -> std::sync::Arc<CredentialSlot> {
    let (key, rules) = (LeafKey::generate().unwrap(), IssuanceRules::default());
    let leaf = authority.issue_server(&key.csr_der().unwrap(), &datacenter(), &[], &rules, now()).unwrap();
    CredentialSlot::new(Credentials::new(&leaf.chain_pem, &key).unwrap())
}

/// Whether two workloads that trust `roots` meet, the one called under one CA and the caller under the other.
fn meet(called: &CertificateAuthority, caller: &CertificateAuthority, roots: &TrustRoots) -> bool {
    let server = server_config(credentials(called, "api"), roots, ClientAuth::Required).unwrap();
    let expected = Identity::Workload(workload("api"));
    let client = client_config(Some(credentials(caller, "web")), roots, expected).unwrap();
    shake(client, server).is_ok()
}

#[test]
fn a_sealed_ca_opens_with_its_own_seal_key_under_its_own_root() {
    let (_folder, keys) = seal();
    let (_other_folder, other) = seal();
    let authority = CertificateAuthority::generate(&trust_domain(), now()).unwrap();
    let record = authority.sealed(&keys).unwrap();
    let opened = CertificateAuthority::unseal(authority.root(), &record, &keys).unwrap();
    let roots = TrustRoots::new([authority.root()]).unwrap();
    assert!(meet(&opened, &authority, &roots), "it is the same CA");

    let refused = CertificateAuthority::unseal(authority.root(), &record, &other).unwrap_err();
    assert!(matches!(refused.reason, UnsealReason::Unseal(UnsealError::OtherKey { .. })), "{refused:?}");
    let second = CertificateAuthority::generate(&trust_domain(), now()).unwrap();
    let refused = CertificateAuthority::unseal(second.root(), &record, &keys).unwrap_err();
    assert!(matches!(refused.reason, UnsealReason::Unseal(UnsealError::Damaged)), "records swapped: {refused:?}");
    // A certificate that is not the key's, sealed for the right root.
    let mixed = starling_model::CaKeyRecord { chain_pem: second.root().certificate_pem.clone(), ..record.clone() };
    let refused = CertificateAuthority::unseal(authority.root(), &mixed, &keys).unwrap_err();
    assert!(matches!(refused.reason, UnsealReason::Chain(ChainError::Mismatch { .. })), "{refused:?}");
    let CaKeyPlace::Sealed(sealed) = &record.place else { panic!("sealed") };
    assert!(!format!("{record:?}").contains("PRIVATE") && sealed.seal_key == keys.id());
}

#[test]
fn an_intermediate_signs_and_peers_that_trust_its_root_meet() {
    let root = Ca::root();
    let authority = root.below(|_| {}).import(Some(&root), "").unwrap();
    assert_eq!(authority.root().trust_domain, trust_domain(), "the cluster's, which the root does not name");
    assert_eq!(authority.root().certificate_pem.trim(), root.certificate.pem().replace("\r\n", "\n").trim());
    let roots = TrustRoots::new([authority.root()]).unwrap();
    assert!(meet(&authority, &authority, &roots));
    let own = CertificateAuthority::generate(&trust_domain(), now()).unwrap();
    assert!(!meet(&authority, &authority, &TrustRoots::new([own.root()]).unwrap()));
    let both = TrustRoots::new([own.root(), authority.root()]).unwrap();
    assert!(meet(&own, &authority, &both) && meet(&authority, &own, &both), "while both are trusted");
    // Proxies have the roots as PEM alone.
    let pems = [own.root().certificate_pem.as_str(), &authority.root().certificate_pem];
    assert!(meet(&own, &authority, &TrustRoots::trusted_in(&trust_domain(), pems).unwrap()));
    assert!(TrustRoots::from_pem(pems).is_err(), "an external root does not say whose it is");

    let (_folder, keys) = seal();
    let record = authority.sealed(&keys).unwrap();
    let reopened = CertificateAuthority::unseal(authority.root(), &record, &keys).unwrap();
    assert!(meet(&reopened, &authority, &roots));
    let root_alone =
        CertificateAuthority::import(&Ca::root_on_p256().certificate.pem(), "no key", None, &trust_domain(), now());
    assert!(matches!(root_alone, Err(ImportError::Key(_))));
    let root_alone = Ca::root_on_p256();
    let own_root = root_alone.import(None, "").unwrap();
    assert!(meet(&own_root, &own_root, &TrustRoots::new([own_root.root()]).unwrap()), "a root may sign by itself");
}

impl Ca {
    fn root_on_p256() -> Self {
        let key = KeyPair::generate().unwrap();
        Self { certificate: params("Example Small Root").self_signed(&key).unwrap(), key }
    }
}

#[test]
fn what_no_peer_accepts_is_not_imported() {
    let root = Ca::root();
    let refusal = |change: fn(&mut CertificateParams)| match root.below(change).import(Some(&root), "") {
        Err(ImportError::Chain(error)) => error,
        other => panic!("not refused: {other:?}"),
    };
    assert!(matches!(refusal(|params| params.is_ca = IsCa::ExplicitNoCa), ChainError::NotAnAuthority { .. }));
    let no_sign: fn(&mut CertificateParams) = |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    assert!(matches!(refusal(no_sign), ChainError::NotAnAuthority { .. }));
    let expired: fn(&mut CertificateParams) = |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    assert!(matches!(refusal(expired), ChainError::NotNow { .. }));
    let constrained: fn(&mut CertificateParams) = |params| {
        let permitted_subtrees = vec![GeneralSubtree::DnsName("example.org".to_owned())];
        params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    };
    assert!(matches!(refusal(constrained), ChainError::NameConstraints { .. }));

    let good = root.below(|_| {});
    assert!(matches!(good.import(None, ""), Err(ImportError::Chain(ChainError::NoRoot))));
    // Of the same name, and another key: only a signature tells.
    let refused = good.import(Some(&Ca::root()), "").unwrap_err();
    assert!(matches!(refused, ImportError::Chain(ChainError::Refused(_))), "{refused:?}");
    let mixed = Ca { certificate: root.below(|_| {}).certificate, key: KeyPair::generate().unwrap() };
    assert!(matches!(mixed.import(Some(&root), ""), Err(ImportError::Chain(ChainError::Mismatch { .. }))));
    // A path that is longer than the root allows.
    let mut short = params("Short Root");
    short.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    let key = KeyPair::generate().unwrap();
    let short = Ca { certificate: short.self_signed(&key).unwrap(), key };
    let middle = short.below(|_| {});
    let long = middle.below(|_| {});
    let refused = long.import(Some(&short), &middle.certificate.pem()).unwrap_err();
    assert!(matches!(refused, ImportError::Chain(ChainError::Refused(_))), "{refused:?}");
    assert!(middle.import(Some(&short), "").is_ok());
    let large = Ca {
        certificate: root.certificate.clone(),
        key: KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(),
    };
    assert!(matches!(large.import(None, ""), Err(ImportError::Key(_))));
}

#[test]
fn who_knows_only_the_root_before_finds_a_server_of_the_next_by_a_bridge() {
    let older = CertificateAuthority::generate(&trust_domain(), now()).unwrap();
    let root = Ca::root();
    let generated = CertificateAuthority::generate(&trust_domain(), now()).unwrap();
    let imported = root.below(|_| {}).import(Some(&root), "").unwrap();
    let roots = TrustRoots::new([older.root()]).unwrap();
    for newer in [generated, imported] {
        let client = |credentials| client_config(credentials, &roots, server()).unwrap();
        let serving = |authority: &CertificateAuthority| {
            agent_server_config(
                server_credentials(authority),
                &TrustRoots::new([older.root(), authority.root()]).unwrap(),
            )
            .unwrap()
        };
        assert!(shake(client(None), serving(&newer)).is_err(), "without a bridge there is no way");
        let newer = newer.bridged_from(&older);
        assert!(shake(client(None), serving(&newer)).is_ok());
        // So does who joins by a token that names the older root, and of course who knows the newer.
        let joining = join_client_config(starling_tls::root_fingerprint(older.root()).unwrap()).unwrap();
        assert!(shake(joining, serving(&newer)).is_ok());
        let joining = join_client_config(RootFingerprint::of(&[1, 2, 3])).unwrap();
        assert!(shake(joining, serving(&newer)).is_err());
        let joining = join_client_config(starling_tls::root_fingerprint(newer.root()).unwrap()).unwrap();
        assert!(shake(joining, serving(&newer)).is_ok());
        // The bridge is kept with the key.
        let (_folder, keys) = seal();
        let reopened = CertificateAuthority::unseal(newer.root(), &newer.sealed(&keys).unwrap(), &keys).unwrap();
        assert!(shake(client(None), serving(&reopened)).is_ok());
    }
}

#[test]
fn a_server_holds_agents_against_other_roots_while_it_runs() {
    let (older, newer) = (Mesh::new(), Mesh::new());
    let (config, trust) = rotating_server_config(older.server_credentials(), &older.roots()).unwrap();
    let meets = |mesh: &Mesh| {
        let credentials = CredentialSlot::new(mesh.agent_credentials("n1", now()));
        shake(client_config(Some(credentials), &older.roots(), server()).unwrap(), config.clone()).is_ok()
    };
    assert!(meets(&older) && !meets(&newer));
    trust.replace(&TrustRoots::new([older.authority.root(), newer.authority.root()]).unwrap()).unwrap();
    assert!(meets(&older) && meets(&newer));
    trust.replace(&newer.roots()).unwrap();
    assert!(!meets(&older) && meets(&newer));
    assert!(matches!(agent("n1"), Identity::Agent { .. }));
}

/// A certificate that a program elsewhere has signed for `key`, with these names.
fn signed(ca: &Ca, key: &KeyPair, names: &[SanType], change: impl FnOnce(&mut CertificateParams)) -> String {
    let issuer = Issuer::from_ca_cert_der(ca.certificate.der(), &ca.key).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names.to_vec();
    change(&mut params);
    params.signed_by(key, &issuer).unwrap().pem()
}

#[test]
fn what_another_program_signs_is_what_was_asked_for_or_nothing() {
    let root = Ca::root();
    let ca = root.below(|_| {});
    let record: CaRootRecord = ca.import(Some(&root), "").unwrap().root().clone();
    let key = KeyPair::generate().unwrap();
    let mut nameless = CertificateParams::default();
    nameless.distinguished_name = DistinguishedName::new();
    let request = nameless.serialize_request(&key).unwrap();
    let request = CertificateRequest::nameless(request.der()).unwrap();
    let profile = LeafProfile::workload(&workload("web"), &BTreeSet::from(["web.example".to_owned()]));
    let uri = |text: String| SanType::URI(text.try_into().unwrap());
    let own = uri(workload("web").to_uri());
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let between = [ca.certificate.pem(), root.certificate.pem()];
    let check = |pem: &str| check_issued(pem, &between, &request, &profile, &record, now());
    let good = check(&signed(&ca, &key, &[own.clone(), dns("web.example")], |_| {})).unwrap();
    assert_eq!(good.chain_pem.matches("BEGIN CERTIFICATE").count(), 2, "the root is not in it");

    for names in [
        vec![own.clone()],
        vec![own.clone(), dns("web.example"), dns("other.example")],
        vec![uri(workload("api").to_uri()), dns("web.example")],
        vec![own.clone(), own.clone(), dns("web.example")],
        vec![own.clone(), dns("web.example"), SanType::IpAddress("10.0.0.1".parse().unwrap())],
        vec![own.clone(), dns("web.example"), SanType::Rfc822Name("a@b".try_into().unwrap())],
    ] {
        let refused = check(&signed(&ca, &key, &names, |_| {}));
        assert!(matches!(refused, Err(IssuedError::Names { .. })), "{names:?}: {refused:?}");
    }
    let names = [own, dns("web.example")];
    let other = KeyPair::generate().unwrap();
    assert!(matches!(check(&signed(&ca, &other, &names, |_| {})), Err(IssuedError::Key)));
    let authority = signed(&ca, &key, &names, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert!(matches!(check(&authority), Err(IssuedError::Authority)));
    let usage = signed(&ca, &key, &names, |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    });
    assert!(matches!(check(&usage), Err(IssuedError::Usage("servers"))));
    let expired = signed(&ca, &key, &names, |params| params.not_after = date_time_ymd(2021, 1, 1));
    assert!(matches!(check(&expired), Err(IssuedError::NotNow)));
    assert!(matches!(check(&signed(&Ca::root(), &key, &names, |_| {})), Err(IssuedError::Path(_))));
    assert!(matches!(check("no certificate"), Err(IssuedError::Malformed)));

    let mut named = CertificateParams::default();
    named.subject_alt_names = vec![uri("spiffe://elsewhere/x".to_owned())];
    let named = named.serialize_request(&key).unwrap();
    assert!(CertificateRequest::nameless(named.der()).is_err(), "a role might believe it");
}
