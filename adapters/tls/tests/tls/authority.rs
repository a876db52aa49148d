//! The CA on disk: made once, opened again, and refused when anything is wrong with it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use starling_identity::Identity;
use starling_model::TrustDomain;
use starling_tls::{AuthorityError, CertificateAuthority, CreateError, OpenError, TrustRoots};
use x509_parser::pem::parse_x509_pem;

use crate::mesh::{DAY, Mesh, now, trust_domain};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_new_root_says_what_consul_says() {
    let mesh = Mesh::new();
    let root = mesh.authority.root();
    let (_, pem) = parse_x509_pem(root.certificate_pem.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();

    assert!(certificate.is_ca());
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign());
    assert!(!usage.value.digital_signature());
    assert_eq!(root.trust_domain, trust_domain());
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let uri = Identity::Authority(trust_domain()).to_uri();
    assert_eq!(names.value.general_names, vec![x509_parser::extensions::GeneralName::URI(&uri)]);

    assert_eq!(root.id.len(), 59);
    assert_eq!(root.signing_key_id.len(), 59);
    let short = root.signing_key_id.replace(':', "")[..8].to_owned();
    assert_eq!(root.name, format!("Starling CA {short}"));
    assert_eq!(certificate.serial, root.serial.into());
    assert_eq!(root.not_after.since(now()), 3_650 * DAY - now().since(root.not_before) + 300);
    assert!(root.active);
}

#[test]
fn the_key_is_for_its_owner_alone_and_nothing_is_left_over() {
    let mesh = Mesh::new();
    assert_eq!(mode(&mesh.key_path()), 0o600);
    assert_eq!(mode(&mesh.folder.path().join("ca")), 0o700);
    let entries: Vec<_> = fs::read_dir(mesh.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(entries, ["ca"]);
}

#[test]
fn opening_finds_the_same_root() {
    let mesh = Mesh::new();
    let opened = CertificateAuthority::open(mesh.folder.path()).unwrap();
    assert_eq!(opened.root(), mesh.authority.root());
    let again = CertificateAuthority::open_or_create(mesh.folder.path(), &trust_domain(), now()).unwrap();
    assert_eq!(again.root(), mesh.authority.root());
}

#[test]
fn a_ca_is_made_only_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(CertificateAuthority::open(folder.path()), Err(OpenError::Absent { .. })));
    let dir = folder.path().join("data/below");
    let made = CertificateAuthority::open_or_create(&dir, &trust_domain(), now()).unwrap();
    let before = fs::read(dir.join("ca/root.key")).unwrap();
    assert!(matches!(CertificateAuthority::create(&dir, &trust_domain(), now()), Err(CreateError::Exists { .. })));
    assert_eq!(fs::read(dir.join("ca/root.key")).unwrap(), before);
    assert_eq!(CertificateAuthority::open(&dir).unwrap().root(), made.root());
}

#[test]
fn remains_of_a_crash_do_not_stand_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("ca.partial")).unwrap();
    fs::write(folder.path().join("ca.partial/root.key"), "half a k").unwrap();
    CertificateAuthority::open_or_create(folder.path(), &trust_domain(), now()).unwrap();
    assert!(!folder.path().join("ca.partial").exists());
}

#[test]
fn remains_of_a_removal_are_removed_and_said() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!CertificateAuthority::remove_remains(folder.path()).unwrap());
    CertificateAuthority::open_or_create(folder.path(), &trust_domain(), now()).unwrap();
    // As a removal leaves it that is interrupted after its first step.
    fs::rename(folder.path().join("ca"), folder.path().join("ca.partial")).unwrap();
    assert!(CertificateAuthority::remove_remains(folder.path()).unwrap());
    assert!(!folder.path().join("ca.partial").exists());
}

#[test]
fn the_ca_of_another_cluster_is_refused() {
    let mesh = Mesh::new();
    let other = TrustDomain::new("other.consul").unwrap();
    assert!(matches!(
        CertificateAuthority::open_or_create(mesh.folder.path(), &other, now()),
        Err(AuthorityError::TrustDomain { .. })
    ));
}

/// Spoils the folder, expects a refusal by both ways of opening, and that no byte has changed.
fn refused_and_untouched(mesh: &Mesh, spoil: impl FnOnce(&Mesh)) -> OpenError {
    spoil(mesh);
    let state = || [fs::read(mesh.key_path()).ok(), fs::read(mesh.certificate_path()).ok()];
    let before = state();
    let refusal = CertificateAuthority::open(mesh.folder.path()).unwrap_err();
    assert!(CertificateAuthority::open_or_create(mesh.folder.path(), &trust_domain(), now()).is_err());
    assert!(CertificateAuthority::create(mesh.folder.path(), &trust_domain(), now()).is_err());
    assert_eq!(state(), before, "a refused CA must stay as it is");
    refusal
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    for open_mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
        let refusal = refused_and_untouched(&Mesh::new(), |mesh| {
            fs::set_permissions(mesh.key_path(), Permissions::from_mode(open_mode)).unwrap();
        });
        assert!(matches!(refusal, OpenError::Permissions { mode, .. } if mode == open_mode), "{refusal:?}");
        assert!(refusal.to_string().contains(&format!("{open_mode:04o}")), "{refusal}");
    }
}

#[test]
fn a_damaged_key_is_refused() {
    for damage in ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        let refusal = refused_and_untouched(&Mesh::new(), |mesh| fs::write(mesh.key_path(), damage).unwrap());
        assert!(matches!(refusal, OpenError::Key { .. }), "{refusal:?}");
    }
    let refusal = refused_and_untouched(&Mesh::new(), |mesh| fs::write(mesh.key_path(), [0xff, 0xfe]).unwrap());
    assert!(matches!(refusal, OpenError::Key { .. }), "{refusal:?}");
    let refusal = refused_and_untouched(&Mesh::new(), |mesh| fs::write(mesh.key_path(), vec![b'A'; 70_000]).unwrap());
    assert!(matches!(refusal, OpenError::TooLong { .. }), "{refusal:?}");
}

#[test]
fn a_damaged_certificate_is_refused() {
    let refusal = refused_and_untouched(&Mesh::new(), |mesh| fs::write(mesh.certificate_path(), "").unwrap());
    assert!(matches!(refusal, OpenError::Certificate { .. }), "{refusal:?}");
    // One changed bit anywhere in the certificate breaks its encoding, its signature or its match with the key.
    let mesh = Mesh::new();
    let good = fs::read(mesh.certificate_path()).unwrap();
    let (_, pem) = parse_x509_pem(&good).unwrap();
    for index in 0..pem.contents.len() {
        let mut der = pem.contents.clone();
        der[index] ^= 0x10;
        let text = pem_of("CERTIFICATE", &der);
        assert!(TrustRoots::from_pem([text.as_str()]).is_err(), "byte {index}");
    }
}

/// PEM with the whole body in one line, which readers take as well.
fn pem_of(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut body = String::new();
    for group in der.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for position in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * position) & 0x3f) as usize];
            body.push(if position <= group.len() { char::from(digit) } else { '=' });
        }
    }
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

#[test]
fn a_missing_file_is_not_made_anew() {
    let refusal = refused_and_untouched(&Mesh::new(), |mesh| fs::remove_file(mesh.key_path()).unwrap());
    assert!(matches!(refusal, OpenError::Read { .. }), "{refusal:?}");
    let refusal = refused_and_untouched(&Mesh::new(), |mesh| fs::remove_file(mesh.certificate_path()).unwrap());
    assert!(matches!(refusal, OpenError::Read { .. }), "{refusal:?}");
}

#[test]
fn a_key_of_another_root_is_refused() {
    let other = Mesh::new();
    let refusal = refused_and_untouched(&Mesh::new(), |mesh| {
        fs::write(mesh.key_path(), fs::read(other.key_path()).unwrap()).unwrap();
    });
    assert!(matches!(refusal, OpenError::Mismatch { .. }), "{refusal:?}");
}

#[test]
fn roots_of_two_meshes_are_not_trusted_together() {
    let (one, two) = (Mesh::new(), Mesh::new());
    // Two roots of one trust domain are: that is how a root is rotated.
    TrustRoots::new([one.authority.root(), two.authority.root()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let foreign = TrustDomain::new("other.consul").unwrap();
    let foreign = CertificateAuthority::create(folder.path(), &foreign, now()).unwrap();
    assert!(TrustRoots::new([one.authority.root(), foreign.root()]).is_err());
    assert!(TrustRoots::new([]).is_err());
    let both = format!("{}{}", one.authority.root().certificate_pem, two.authority.root().certificate_pem);
    assert!(TrustRoots::from_pem([both.as_str()]).is_err());
}
