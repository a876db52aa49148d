//! Leaves: shared, renewed, rotated, retried, and never shown.

use std::sync::Arc;

use starling_model::ServiceName;
use starling_tls::{Credentials, LeafKey};

use crate::build::start;
use crate::fake_server::{DEADLINE, FakeServer, Mode};

fn web() -> ServiceName {
    ServiceName::new("web").unwrap()
}

#[tokio::test]
async fn everybody_gets_one_leaf_whose_key_is_its_own() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let (one, web) = (web(), web());
    let (one, two) = tokio::join!(agent.leaves().leaf(&one), agent.leaves().leaf(&web));
    let (one, two) = (one.unwrap().borrow().clone(), two.unwrap().borrow().clone());
    assert!(Arc::ptr_eq(&one, &two));
    assert_eq!(server.look(|state| state.leaves_issued), 1);
    let key = LeafKey::from_pem(one.private_key_pem.expose()).unwrap();
    let credentials = Credentials::new(&one.certificate_chain_pem, &key).unwrap();
    assert_eq!(credentials.identity().to_uri(), "spiffe://test.consul/ns/default/dc/dc1/svc/web");
    let shown = format!("{one:?} {:?}", agent.leaves());
    assert!(!shown.contains("PRIVATE") && !shown.contains("BEGIN"), "{shown}");
}

#[tokio::test]
async fn a_leaf_is_renewed_with_a_new_key_before_it_expires() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    server.with(|state| state.leaf_seconds = 3);
    let agent = start(directory.path(), &server).await;
    let mut leaf = agent.leaves().leaf(&web()).await.unwrap();
    let first = Arc::clone(&leaf.borrow_and_update());
    tokio::time::timeout(DEADLINE, leaf.changed()).await.unwrap().unwrap();
    let second = Arc::clone(&leaf.borrow());
    assert_eq!((first.generation, second.generation), (1, 2));
    assert_ne!(first.private_key_pem.expose(), second.private_key_pem.expose());
    assert!(second.not_before < first.not_after, "in time");
}

#[tokio::test]
async fn a_rotation_issues_anew_and_gives_up_on_no_outage() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let mut leaf = agent.leaves().leaf(&web()).await.unwrap();
    let first = Arc::clone(&leaf.borrow_and_update());
    server.with(|state| state.mode = Mode::Down);
    agent.leaves().rotate();
    assert!(agent.leaves().leaf(&ServiceName::new("api").unwrap()).await.is_err(), "a first leaf is not retried");
    assert!(Arc::ptr_eq(&first, &leaf.borrow()), "the old one serves meanwhile");
    server.with(|state| state.mode = Mode::Up);
    tokio::time::timeout(DEADLINE, leaf.changed()).await.unwrap().unwrap();
    assert_ne!(leaf.borrow().serial, first.serial);
    agent.leaves().leaf(&ServiceName::new("api").unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_leaf_that_nobody_holds_is_not_renewed() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let held = agent.leaves().leaf(&web()).await.unwrap();
    drop(agent.leaves().leaf(&ServiceName::new("api").unwrap()).await.unwrap());
    assert_eq!(server.look(|state| state.leaves_issued), 2);
    agent.leaves().rotate();
    let mut renewed = held.clone();
    drop(held);
    tokio::time::timeout(DEADLINE, renewed.wait_for(|leaf| leaf.generation == 2)).await.unwrap().unwrap();
    assert_eq!(server.look(|state| state.leaves_issued), 3);
    // Whoever asks again gets a new one.
    let again = agent.leaves().leaf(&ServiceName::new("api").unwrap()).await.unwrap();
    assert_eq!(again.borrow().generation, 1);
    assert_eq!(server.look(|state| state.leaves_issued), 4);
}

#[tokio::test]
async fn a_restart_has_its_leaves_without_any_server_and_passes_over_damage() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let first = agent.leaves().leaf(&web()).await.unwrap().borrow().clone();
    drop(agent);
    let file = directory.path().join("agent/leaves/web.pem");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    server.with(|state| state.mode = Mode::Down);
    let agent = start(directory.path(), &server).await;
    let again = agent.leaves().leaf(&web()).await.unwrap().borrow().clone();
    assert_eq!((&again.serial, &again.certificate_chain_pem), (&first.serial, &first.certificate_chain_pem));
    assert_eq!(again.private_key_pem.expose(), first.private_key_pem.expose());
    drop(agent);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::copy(&file, file.with_file_name("api.pem")).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let agent = start(directory.path(), &server).await;
    assert!(agent.leaves().leaf(&web()).await.is_err(), "half a leaf is none, and no server is there");
    assert!(agent.leaves().leaf(&ServiceName::new("api").unwrap()).await.is_err(), "another's leaf is none");
    server.with(|state| state.mode = Mode::Up);
    let renewed = agent.leaves().leaf(&web()).await.unwrap().borrow().clone();
    assert_ne!(renewed.serial, first.serial);
}
