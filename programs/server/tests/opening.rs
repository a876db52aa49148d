//! Data directories of which a part is not there: what an interrupted first start leaves is taken, a loss is not.

use std::fs;
use std::path::Path;

use starling_catalog::Command;
use starling_model::Node;
use starling_server::{Inconsistent, Opening, Server, ServerConfig, StoreKind};
use starling_store::{EmbeddedOptions, EmbeddedStore, EtcdOptions};
use starling_telemetry::Registry;
use tempfile::TempDir;

fn config(directory: &Path) -> ServerConfig {
    ServerConfig::new(directory.to_owned(), "dc1".parse().expect("a name"))
}

async fn refused(directory: &Path) -> Inconsistent {
    let error = Opening::examine(config(directory)).await.expect_err("must be refused");
    error.downcast().expect("for being inconsistent")
}

/// A copy of what a server that knows a node leaves on disk.
async fn left() -> TempDir {
    let (directory, copy) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let server = Server::start(config(directory.path()), &Registry::default()).await.expect("the server starts");
    let node = Node {
        name: "n1".parse().expect("a name"),
        id: "0f0e0d0c-0b0a-0908-0706-050403020100".to_owned(),
        address: "127.0.0.1".to_owned(),
        tagged_addresses: [].into(),
        meta: [].into(),
    };
    let register =
        Command::Register { name: node.name.clone(), node: Some(node), instances: Vec::new(), checks: Vec::new() };
    server.commit(&register).await.expect("committed");
    for folder in ["store", "ca"] {
        fs::create_dir(copy.path().join(folder)).expect("a folder");
        for file in fs::read_dir(directory.path().join(folder)).expect("a folder") {
            let file = file.expect("an entry");
            fs::copy(file.path(), copy.path().join(folder).join(file.file_name())).expect("copied");
        }
    }
    copy
}

#[tokio::test]
async fn what_an_interrupted_first_start_leaves_is_taken() {
    let other = left().await;
    for has_authority in [false, true] {
        let directory = TempDir::new().expect("a directory");
        drop(EmbeddedStore::open(&directory.path().join("store"), EmbeddedOptions::default()).expect("a store"));
        if has_authority {
            fs::rename(other.path().join("ca"), directory.path().join("ca")).expect("movable");
        }
        let opening = Opening::examine(config(directory.path())).await.expect("taken");
        opening.verify_agent(&"n1".parse().expect("a name"), false, false).expect("the catalog knows nobody");
        opening.start(&Registry::default()).await.expect("the server starts");
    }
}

#[tokio::test]
async fn a_directory_goes_with_one_kind_of_store() {
    let directory = left().await;
    // Nobody is there; it is not asked either.
    let etcd = EtcdOptions::new(vec!["127.0.0.1:1".to_owned()]);
    let on_etcd = ServerConfig { store: StoreKind::Etcd(Box::new(etcd)), ..config(directory.path()) };
    let error = Opening::examine(on_etcd).await.expect_err("must be refused");
    assert!(matches!(error.downcast_ref(), Some(Inconsistent::OtherKind { .. })), "{error:#}");
    fs::remove_dir_all(directory.path().join("store")).expect("removable");
    fs::create_dir(directory.path().join("store")).expect("makable");
    fs::write(directory.path().join("store/etcd"), "").expect("writable");
    assert!(matches!(refused(directory.path()).await, Inconsistent::OtherKind { .. }));
}

#[tokio::test]
async fn a_part_that_the_others_know_is_missed() {
    let directory = left().await;
    let path = |part: &str| directory.path().join(part);
    let opening = Opening::examine(config(directory.path())).await.expect("all is there");
    let (n1, n2) = ("n1".parse().expect("a name"), "n2".parse().expect("a name"));
    assert_eq!(opening.verify_agent(&n1, true, true), Ok(()));
    assert_eq!(opening.verify_agent(&n2, false, false), Ok(()), "a node that is new has neither");
    let no_id = opening.verify_agent(&n1, false, true);
    assert!(matches!(no_id, Err(Inconsistent::NodeIdMissing { id, .. }) if id.starts_with("0f0e")));
    let no_journal = opening.verify_agent(&n1, true, false);
    assert!(matches!(no_journal, Err(Inconsistent::JournalMissing { instances: 0, .. })));
    drop(opening);

    fs::rename(path("ca"), path("aside")).expect("movable");
    assert!(matches!(refused(directory.path()).await, Inconsistent::AuthorityMissing { .. }));
    fs::rename(left().await.path().join("ca"), path("ca")).expect("movable");
    assert!(matches!(refused(directory.path()).await, Inconsistent::AuthorityForeign { .. }));

    fs::remove_dir_all(path("store")).expect("removable");
    assert!(
        matches!(refused(directory.path()).await, Inconsistent::StoreMissing { beside, .. } if beside == path("ca"))
    );
    fs::remove_dir_all(path("ca")).expect("removable");
    fs::write(path("node-id"), "").expect("writable");
    assert!(matches!(refused(directory.path()).await, Inconsistent::StoreMissing { .. }));
    assert!(!path("store").exists(), "a store was made anew");
}
