//! The CA of a server: where its key is from one start to the next, what is refused, and how another root comes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use starling_model::RootOverlap;
use starling_server::{AuthorityConfig, Inconsistent, NotSealed, Server, ServerConfig};
use starling_store::{EmbeddedOptions, EmbeddedStore, Key, Store, Transaction, Write};
use starling_telemetry::Registry;
use starling_tls::{CertificateAuthority, LeafKey, SealKeys, TrustRoots};

const DEADLINE: Duration = Duration::from_secs(30);

fn seal(folder: &Path, name: &str) -> Arc<SealKeys> {
    let file = folder.join(name);
    let keys = if file.exists() { SealKeys::read(&file) } else { SealKeys::create(&file, None) };
    Arc::new(keys.expect("seal keys"))
}

fn config(directory: &Path, seal: Option<Arc<SealKeys>>) -> ServerConfig {
    let authority = AuthorityConfig { seal, vault: None };
    ServerConfig { authority, ..ServerConfig::new(directory.to_owned(), "dc1".parse().expect("a name")) }
}

/// Starts a server as soon as the one before it has given up the store.
async fn start(directory: &Path, seal: Option<Arc<SealKeys>>) -> anyhow::Result<Arc<Server>> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        match Server::start(config(directory, seal.clone()), &Registry::default()).await {
            Err(error) if format!("{error:#}").contains("in use") && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            started => return started,
        }
    }
}

fn inconsistent(started: anyhow::Result<Arc<Server>>) -> Inconsistent {
    started.err().expect("refused").downcast().expect("a refusal of what does not go together")
}

/// The identifier of the root under which a leaf of a server is.
async fn issues_under(server: &Server) -> String {
    let csr = LeafKey::generate().expect("a key").csr_der().expect("a request");
    let leaf = server.issue_leaf(&"web".parse().expect("a name"), csr).await.expect("a leaf");
    let root = server.root();
    assert!(leaf.chain_pem.contains("BEGIN CERTIFICATE") && TrustRoots::new([&root]).is_ok());
    root.id
}

#[tokio::test]
async fn a_ca_in_files_moves_to_the_store_and_is_found_there_with_the_seal_key_alone() {
    let (directory, keys) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let (one, other) = (seal(keys.path(), "one"), seal(keys.path(), "other"));
    let server = start(directory.path(), None).await.expect("it starts");
    let root = issues_under(&server).await;
    let refused = server.rotate_authority(0, false).await.expect_err("its key is in files");
    assert!(refused.is::<NotSealed>(), "{refused:#}");
    drop(server);

    let server = start(directory.path(), Some(Arc::clone(&one))).await.expect("it starts");
    assert_eq!(issues_under(&server).await, root);
    assert!(!directory.path().join("ca").exists());
    drop(server);
    let refused = inconsistent(start(directory.path(), None).await);
    assert!(matches!(&refused, Inconsistent::Sealed { seal_key, .. } if seal_key == one.id()), "{refused}");
    let refused = start(directory.path(), Some(Arc::clone(&other))).await.err().expect("another key");
    let said = format!("{refused:#}");
    assert!(said.contains(one.id()) && said.contains(other.id()), "both are named: {said}");
    // A crash between keeping the key and removing the files leaves both.
    let server = start(directory.path(), Some(Arc::clone(&one))).await.expect("it starts");
    let trust_domain = server.trust_domain().clone();
    drop(server);
    CertificateAuthority::create(directory.path(), &trust_domain, starling_model::UnixSeconds(2_000_000_000))
        .expect("a CA");
    let refused = inconsistent(start(directory.path(), Some(Arc::clone(&one))).await);
    assert!(matches!(refused, Inconsistent::AuthorityForeign { .. }), "{refused}");
    assert!(directory.path().join("ca/root.key").exists(), "nothing was changed");
}

#[tokio::test]
async fn a_root_without_a_key_is_refused_and_nothing_is_made_in_its_place() {
    let (directory, keys) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let one = seal(keys.path(), "one");
    let server = start(directory.path(), Some(Arc::clone(&one))).await.expect("it starts");
    let root = issues_under(&server).await;
    drop(server);
    // The lock is given up with the last task of the server.
    let store = loop {
        match EmbeddedStore::examine(&directory.path().join("store"), EmbeddedOptions::default()) {
            Ok(store) => break store.adopt().expect("a store"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let write = Write::Delete { key: Key::new(format!("ca-key/{root}")).expect("a key") };
    store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.expect("deleted");
    drop(store);
    let refused = inconsistent(start(directory.path(), Some(Arc::clone(&one))).await);
    assert!(matches!(&refused, Inconsistent::KeyMissing { root: missing, .. } if *missing == root), "{refused}");
    let refused = inconsistent(start(directory.path(), None).await);
    assert!(matches!(refused, Inconsistent::AuthorityMissing { .. }), "{refused}");
}

#[tokio::test]
async fn a_rotation_goes_on_after_a_restart_and_the_server_signs_under_the_new_root() {
    let (directory, keys) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let one = seal(keys.path(), "one");
    let server = start(directory.path(), Some(Arc::clone(&one))).await.expect("it starts");
    let old = issues_under(&server).await;
    let (new, revision) = server.rotate_authority(7, false).await.expect("begun");
    assert!(server.snapshot().revision() >= revision);
    assert_eq!(issues_under(&server).await, old, "trusted, and not signing yet");
    let again = server.rotate_authority(0, false).await.expect_err("one at a time");
    assert!(format!("{again:#}").contains(&new.id), "{again:#}");
    drop(server);

    let server = start(directory.path(), Some(one)).await.expect("it starts");
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while server.root().id != new.id {
        assert!(tokio::time::Instant::now() < deadline, "the rotation does not go on: {:?}", server.snapshot().roots());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(issues_under(&server).await, new.id);
    let snapshot = server.snapshot();
    let active = snapshot.active_root().expect("a root");
    assert_eq!((active.value.renew_within_s, &active.value.overlap), (7, &None));
    let before = snapshot.roots().into_iter().find(|root| root.value.id == old).expect("trusted still");
    assert!(matches!(before.value.overlap, Some(RootOverlap::Going { .. })));
    assert_eq!(server.reseal_authority().await.expect("nothing to do"), 0);
}
