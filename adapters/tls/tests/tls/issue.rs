//! What is in a leaf, and which requests get one.

use std::collections::BTreeSet;
use std::time::Duration;

use rcgen::{CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData, SanType};
use starling_identity::{Identity, IssuanceError, IssuanceRules, Layout, SpiffeId};
use starling_model::{Datacenter, Namespace, NodeName, ServiceName, TrustDomain};
use starling_tls::{Credentials, CredentialsError, IssueError, IssuedLeaf, LeafKey, RequestError};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::{Pem, parse_x509_pem};

use crate::mesh::{DAY, Mesh, datacenter, now, trust_domain, workload};

fn pem(leaf: &IssuedLeaf) -> Pem {
    parse_x509_pem(leaf.certificate_pem.as_bytes()).unwrap().1
}

fn issue(mesh: &Mesh, csr_der: &[u8]) -> Result<IssuedLeaf, IssueError> {
    mesh.authority.issue_leaf(csr_der, &workload("web"), &IssuanceRules::default(), now(), None)
}

fn refused(mesh: &Mesh, csr_der: &[u8]) -> RequestError {
    match issue(mesh, csr_der) {
        Err(IssueError::Request(error)) => error,
        other => panic!("expected a refused request, got {other:?}"),
    }
}

#[test]
fn a_leaf_has_one_name_and_only_the_usages_of_a_leaf() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let leaf = mesh.issue(&key, "web", now(), None);
    let pem = pem(&leaf);
    let certificate = pem.parse_x509().unwrap();

    assert_eq!(certificate.subject().iter().count(), 0);
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical, "RFC 5280 section 4.1.2.6: critical when the subject is empty");
    assert_eq!(names.value.general_names, vec![GeneralName::URI(&workload("web").to_uri())]);
    let constraints = certificate.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && !constraints.value.ca);
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.critical);
    assert_eq!(usage.value.flags, 1, "digitalSignature and nothing else");
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any && extended.other.is_empty());

    let (_, root) = parse_x509_pem(mesh.authority.root().certificate_pem.as_bytes()).unwrap();
    let root = root.parse_x509().unwrap();
    assert_eq!(certificate.issuer(), root.subject());
    certificate.verify_signature(Some(root.public_key())).unwrap();
    let text = format!("{:?}", certificate.extensions());
    assert!(text.contains("AuthorityKeyIdentifier") && text.contains("SubjectKeyIdentifier"));

    assert_eq!(leaf.serial, certificate.raw_serial_as_string());
    assert_eq!(leaf.serial.len(), 16 * 3 - 1);
    assert_eq!(certificate.validity().not_before.timestamp(), i64::try_from(leaf.not_before.0).unwrap());
    assert_eq!(certificate.validity().not_after.timestamp(), i64::try_from(leaf.not_after.0).unwrap());
    assert_eq!(leaf.chain_pem, leaf.certificate_pem);
}

#[test]
fn serials_do_not_repeat() {
    let mesh = Mesh::new();
    let request = LeafKey::generate().unwrap().csr_der().unwrap();
    let serials: BTreeSet<String> = (0..100).map(|_| issue(&mesh, &request).unwrap().serial).collect();
    assert_eq!(serials.len(), 100);
}

#[test]
fn servers_and_agents_get_their_own_identity() {
    let mesh = Mesh::new();
    let rules = IssuanceRules::default();
    let key = LeafKey::generate().unwrap();
    let request = key.csr_der().unwrap();
    let node = NodeName::new("node-7").unwrap();

    let leaf = mesh.authority.issue_agent(&request, &datacenter(), &node, &rules, now()).unwrap();
    let identity = Identity::Agent { trust_domain: trust_domain(), datacenter: datacenter(), node };
    assert_eq!(Credentials::new(&leaf.chain_pem, &key).unwrap().identity(), &identity);
    assert_eq!(leaf.chain_pem, leaf.certificate_pem);
    assert_eq!(leaf.not_after.since(leaf.not_before), 3 * DAY + 300, "72 hours, back-dated by five minutes");
    let agent = pem(&leaf);
    let agent = agent.parse_x509().unwrap();
    let extended = agent.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.client_auth && !extended.server_auth);

    let addresses = ["10.0.0.1".parse().unwrap()];
    let leaf = mesh.authority.issue_server(&request, &datacenter(), &addresses, &rules, now()).unwrap();
    let server = pem(&leaf);
    let server = server.parse_x509().unwrap();
    let root = &mesh.authority.root().certificate_pem;
    assert_eq!(leaf.chain_pem, format!("{}{root}", leaf.certificate_pem), "one that joins has no root yet");
    let identity = Identity::Server { trust_domain: trust_domain(), datacenter: datacenter() };
    assert_eq!(
        server.subject_alternative_name().unwrap().unwrap().value.general_names,
        vec![
            GeneralName::URI(&identity.to_uri()),
            GeneralName::DNSName("localhost"),
            GeneralName::DNSName("server.dc1.consul"),
            GeneralName::IPAddress(&[10, 0, 0, 1]),
        ]
    );
}

#[test]
fn names_in_a_request_are_ignored() {
    let mesh = Mesh::new();
    let mut params = CertificateParams::new(vec!["evil.example".to_owned(), "10.0.0.9".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "root of all");
    for uri in [workload("db").to_uri(), Identity::Authority(trust_domain()).to_uri()] {
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
    }
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();

    let leaf = pem(&issue(&mesh, request.der()).unwrap());
    let certificate = leaf.parse_x509().unwrap();
    assert!(!certificate.is_ca());
    assert_eq!(certificate.subject().iter().count(), 0);
    assert_eq!(certificate.key_usage().unwrap().unwrap().value.flags, 1);
    assert_eq!(
        certificate.subject_alternative_name().unwrap().unwrap().value.general_names,
        vec![GeneralName::URI(&workload("web").to_uri())]
    );
}

#[test]
fn the_requester_must_hold_the_key() {
    let mesh = Mesh::new();
    let good = LeafKey::generate().unwrap().csr_der().unwrap();
    issue(&mesh, &good).unwrap();

    // Somebody else's public key in an otherwise good request.
    let own = KeyPair::generate().unwrap();
    let victim = KeyPair::generate().unwrap();
    let mut stolen = CertificateParams::default().serialize_request(&own).unwrap().der().to_vec();
    let at = stolen.windows(65).position(|window| window == own.der_bytes()).unwrap();
    stolen[at..at + 65].copy_from_slice(victim.der_bytes());
    assert_eq!(refused(&mesh, &stolen), RequestError::Signature);

    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(refused(&mesh, &changed), RequestError::Signature);
}

#[test]
fn no_changed_byte_of_a_request_passes() {
    /// The OID of ecdsa-with-SHA256 with its tag and length; the one part that is neither signed nor the signature.
    const ALGORITHM: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let mesh = Mesh::new();
    let good = LeafKey::generate().unwrap().csr_der().unwrap();
    let algorithm = good.windows(ALGORITHM.len()).position(|window| window == ALGORITHM).unwrap();
    for index in 0..good.len() {
        let mut changed = good.clone();
        changed[index] ^= 0x04;
        // The parser does not look at the tag of that OID.
        let passes = issue(&mesh, &changed).is_ok();
        assert!(!passes || index == algorithm, "byte {index} of {good:02x?}");
        refused(&mesh, &good[..index]);
    }
    let mut longer = good;
    longer.push(0);
    assert_eq!(refused(&mesh, &longer), RequestError::Malformed);
    assert_eq!(refused(&mesh, &vec![0x30; 9_000]), RequestError::TooLong { len: 9_000 });
    assert_eq!(refused(&mesh, &[]), RequestError::Malformed);
}

#[test]
fn only_the_two_curves_are_signed_for() {
    let mesh = Mesh::new();
    let request = |algorithm| {
        let key = KeyPair::generate_for(algorithm).unwrap();
        CertificateParams::default().serialize_request(&key).unwrap().der().to_vec()
    };
    issue(&mesh, &request(&rcgen::PKCS_ECDSA_P256_SHA256)).unwrap();
    issue(&mesh, &request(&rcgen::PKCS_ECDSA_P384_SHA384)).unwrap();
    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P521_SHA512, &rcgen::PKCS_RSA_SHA256] {
        assert_eq!(refused(&mesh, &request(algorithm)), RequestError::KeyType);
    }
}

#[test]
fn lifetimes_follow_the_rules_and_the_root() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let start = now();
    let leaf = mesh.issue(&key, "web", start, None);
    assert_eq!(leaf.not_after, start.plus(3 * DAY));
    let leaf = mesh.issue(&key, "web", start, Some(Duration::from_secs(7_200)));
    assert_eq!(leaf.not_after, start.plus(7_200));

    let root_end = mesh.authority.root().not_after;
    let late = starling_model::UnixSeconds(root_end.0 - 60);
    assert_eq!(mesh.issue(&key, "web", late, None).not_after, root_end);

    let request = key.csr_der().unwrap();
    let at = |now, ttl| mesh.authority.issue_leaf(&request, &workload("web"), &IssuanceRules::default(), now, ttl);
    assert!(matches!(at(root_end, None), Err(IssueError::Rules(IssuanceError::RootExpired { .. }))));
    assert!(matches!(at(now(), Some(Duration::from_secs(60))), Err(IssueError::Rules(IssuanceError::Ttl { .. }))));
}

#[test]
fn a_gateway_bears_dns_names_beside_its_identity() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let names = ["*.example.com", "a.example.com"].map(str::to_owned).into();
    let (id, rules) = (workload("ingress"), IssuanceRules::default());
    let request = key.csr_der().unwrap();
    let leaf = mesh.authority.issue_gateway_leaf(&request, (&id, &names), &rules, now(), None).unwrap();
    assert_eq!(starling_tls::dns_names(&leaf.chain_pem), names);
    assert_eq!(Credentials::new(&leaf.chain_pem, &key).unwrap().identity(), &Identity::Workload(id));
    assert_eq!(starling_tls::dns_names(&mesh.issue(&key, "web", now(), None).chain_pem), BTreeSet::new());
}

#[test]
fn identities_of_another_mesh_are_not_signed() {
    let mesh = Mesh::new();
    let foreign = SpiffeId::new(
        Layout::Consul,
        TrustDomain::new("other.consul").unwrap(),
        Namespace::new("default").unwrap(),
        Datacenter::new("dc1").unwrap(),
        ServiceName::new("web").unwrap(),
    );
    let request = LeafKey::generate().unwrap().csr_der().unwrap();
    let refusal = mesh.authority.issue_leaf(&request, &foreign, &IssuanceRules::default(), now(), None);
    assert!(matches!(refusal, Err(IssueError::TrustDomain { .. })));
}

#[test]
fn a_chain_and_a_foreign_key_are_no_credentials() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let leaf = mesh.issue(&key, "web", now(), None);
    let other = LeafKey::generate().unwrap();
    assert_eq!(Credentials::new(&leaf.chain_pem, &other).unwrap_err(), CredentialsError::Mismatch);
    assert!(Credentials::new("", &key).is_err());
    assert!(Credentials::new(&mesh.authority.root().certificate_pem, &key).is_err());
}
