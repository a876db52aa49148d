//! An agent's identity on disk: kept whole, read back, and refused when anything is wrong with it.

use std::error::Error as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use starling_tls::{AgentIdentity, AgentIdentityError, Credentials, LeafKey};
use tempfile::TempDir;

use crate::mesh::{Mesh, agent, days_ago, now};

const FILES: [&str; 3] = ["cert.pem", "key.pem", "roots.pem"];

fn folder(dir: &Path) -> PathBuf {
    dir.join("agent/identity")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn save(dir: &Path, mesh: &Mesh, node: &str) -> AgentIdentity {
    let key = LeafKey::generate().unwrap();
    let chain = mesh.issue_agent(&key, node, now()).chain_pem;
    AgentIdentity::save(dir, &chain, &key, &mesh.authority.root().certificate_pem).unwrap()
}

/// A mesh, and the identity of node `n1` in it.
fn joined() -> (TempDir, Mesh) {
    let (dir, mesh) = (tempfile::tempdir().unwrap(), Mesh::new());
    save(dir.path(), &mesh, "n1");
    (dir, mesh)
}

/// Expects that the identity is refused with advice, and nothing on disk has changed.
fn refused(dir: &Path) -> AgentIdentityError {
    let state = || FILES.map(|file| fs::read(folder(dir).join(file)).ok());
    let before = state();
    let refusal = AgentIdentity::load(dir).unwrap_err();
    assert_eq!(state(), before);
    assert!(refusal.to_string().contains("join again with a new join token"), "{refusal}");
    refusal
}

#[test]
fn what_was_saved_is_loaded_and_is_the_owners_alone() {
    let (dir, mesh) = (tempfile::tempdir().unwrap(), Mesh::new());
    let saved = save(dir.path(), &mesh, "n1");
    let loaded = AgentIdentity::load(dir.path()).unwrap();
    assert_eq!(loaded.credentials.identity(), &agent("n1"));
    assert_eq!(loaded.credentials.validity(), saved.credentials.validity());
    assert_eq!(loaded.roots.trust_domain(), mesh.authority.trust_domain());
    assert_eq!(names(&dir.path().join("agent")), ["identity"]);
    assert_eq!(names(&folder(dir.path())), FILES);
    for (path, mode) in
        FILES.map(|file| (folder(dir.path()).join(file), 0o600)).into_iter().chain([(folder(dir.path()), 0o700)])
    {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode, "{}", path.display());
    }
}

#[test]
fn an_agent_that_has_not_joined_is_told_how() {
    let dir = tempfile::tempdir().unwrap();
    let absent = AgentIdentity::load(dir.path()).unwrap_err();
    assert!(matches!(absent, AgentIdentityError::Absent { .. }), "{absent:?}");
    assert!(absent.to_string().contains("--join-token"), "{absent}");
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_renewal_takes_the_place_of_what_was_there() {
    let (dir, mesh) = joined();
    let before = fs::read(folder(dir.path()).join("key.pem")).unwrap();
    save(dir.path(), &mesh, "n1");
    assert_ne!(fs::read(folder(dir.path()).join("key.pem")).unwrap(), before);
    AgentIdentity::load(dir.path()).unwrap();
    assert_eq!(names(&dir.path().join("agent")), ["identity"]);
}

#[test]
fn a_crash_while_saving_leaves_an_identity_at_every_step() {
    let (dir, mesh) = joined();
    let at = |name: &str| dir.path().join("agent").join(name);
    let kept = |expected: &str| {
        assert_eq!(AgentIdentity::load(dir.path()).unwrap().credentials.identity(), &agent(expected));
        fs::read(at("identity/cert.pem")).unwrap()
    };
    let first = kept("n1");

    // While the new one was written.
    fs::create_dir(at("identity.partial")).unwrap();
    fs::write(at("identity.partial/cert.pem"), "half a c").unwrap();
    assert_eq!(kept("n1"), first);
    save(dir.path(), &mesh, "n1");
    assert_eq!(names(&dir.path().join("agent")), ["identity"]);

    // After the old one was moved away.
    let second = kept("n1");
    fs::create_dir(at("identity.partial")).unwrap();
    fs::rename(at("identity"), at("identity.old")).unwrap();
    assert_eq!(kept("n1"), second);
    fs::rename(at("identity"), at("identity.old")).unwrap();
    save(dir.path(), &mesh, "n1");
    assert_eq!(names(&dir.path().join("agent")), ["identity"]);

    // Before the old one was removed.
    fs::create_dir(at("identity.old")).unwrap();
    fs::write(at("identity.old/cert.pem"), "long gone").unwrap();
    let third = kept("n1");
    save(dir.path(), &mesh, "n1");
    assert_ne!(kept("n1"), third);
    assert_eq!(names(&dir.path().join("agent")), ["identity"]);
}

#[test]
fn damage_to_any_file_is_refused_with_advice() {
    for file in FILES {
        for damage in [&b""[..], b"nonsense", &[0xff, 0xfe], &[b'A'; 70_000]] {
            let (dir, _mesh) = joined();
            fs::write(folder(dir.path()).join(file), damage).unwrap();
            let refusal = refused(dir.path());
            assert!(matches!(refusal, AgentIdentityError::Damaged { .. }), "{file}: {refusal:?}");
            assert!(refusal.source().is_some());
        }
        let (dir, _mesh) = joined();
        fs::remove_file(folder(dir.path()).join(file)).unwrap();
        assert!(matches!(refused(dir.path()), AgentIdentityError::Read { .. }), "{file}");
    }
}

#[test]
fn files_that_others_may_read_are_refused() {
    for file in FILES {
        let (dir, _mesh) = joined();
        fs::set_permissions(folder(dir.path()).join(file), Permissions::from_mode(0o640)).unwrap();
        let refusal = refused(dir.path());
        assert!(matches!(refusal, AgentIdentityError::Permissions { mode: 0o640, .. }), "{file}: {refusal:?}");
    }
}

#[test]
fn parts_of_different_identities_are_refused() {
    let ((dir, _mesh), (other, _other_mesh)) = (joined(), joined());
    for file in ["cert.pem", "key.pem"] {
        let path = folder(dir.path()).join(file);
        let own = fs::read(&path).unwrap();
        fs::write(&path, fs::read(folder(other.path()).join(file)).unwrap()).unwrap();
        assert!(matches!(refused(dir.path()), AgentIdentityError::Damaged { .. }), "{file}");
        fs::write(&path, own).unwrap();
    }
    AgentIdentity::load(dir.path()).unwrap();
}

#[test]
fn what_could_not_be_loaded_is_not_saved() {
    let (dir, mesh) = joined();
    let before = fs::read(folder(dir.path()).join("cert.pem")).unwrap();
    let (key, root) = (LeafKey::generate().unwrap(), &mesh.authority.root().certificate_pem);
    let workload = mesh.issue(&key, "web", now(), None).chain_pem;
    let others = mesh.issue_agent(&LeafKey::generate().unwrap(), "n1", now()).chain_pem;
    let good = mesh.issue_agent(&key, "n1", now()).chain_pem;
    for (chain, roots) in
        [(&workload, root.as_str()), (&others, root), (&good, ""), (&good, "nonsense"), (&String::new(), root)]
    {
        let refusal = AgentIdentity::save(dir.path(), chain, &key, roots).unwrap_err();
        assert!(matches!(refusal, AgentIdentityError::Unfit(_)), "{refusal:?}");
    }
    assert_eq!(fs::read(folder(dir.path()).join("cert.pem")).unwrap(), before);
    // Several roots are trusted while they are rotated.
    let both = root.clone() + &Mesh::new().authority.root().certificate_pem;
    AgentIdentity::save(dir.path(), &good, &key, &both).unwrap();
    AgentIdentity::load(dir.path()).unwrap();
}

#[test]
fn an_expired_certificate_loads_and_says_so() {
    let (dir, mesh) = (tempfile::tempdir().unwrap(), Mesh::born(days_ago(30)));
    let key = LeafKey::generate().unwrap();
    let chain = mesh.issue_agent(&key, "n1", days_ago(10)).chain_pem;
    AgentIdentity::save(dir.path(), &chain, &key, &mesh.authority.root().certificate_pem).unwrap();
    let loaded: Credentials = AgentIdentity::load(dir.path()).unwrap().credentials;
    assert!(loaded.validity().not_after() < now());
}
