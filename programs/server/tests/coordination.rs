//! The key-value store on a real store: what one transaction takes, and that larger work is done all the same.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use starling_catalog::{Command, CoordinationCommand, KvOperation, KvWrite};
use starling_model::{KV_KEY_BYTES_MAX, KvValue, Node, Session, SessionBehavior, Uuid};
use starling_server::{Server, ServerConfig};
use starling_telemetry::Registry;

fn kv(operations: Vec<KvOperation>) -> Command {
    Command::Coordination(CoordinationCommand::Kv(operations))
}

fn write(key: &str, bytes: usize) -> KvWrite {
    KvWrite { key: key.parse().unwrap(), value: KvValue::new(&vec![b'v'; bytes]).unwrap(), flags: 0 }
}

#[tokio::test]
async fn folders_long_names_and_locks_of_any_size_are_within_what_the_store_takes() {
    let directory = tempfile::tempdir().unwrap();
    let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().unwrap());
    let server = Server::start(config, &Registry::default()).await.unwrap();
    let sets = |from: usize, to: usize| -> Vec<_> {
        (from..to).map(|number| KvOperation::Set(write(&format!("a/{number}"), 1))).collect()
    };
    server.commit(&kv(sets(0, 127))).await.unwrap();
    let refused = server.commit(&kv(sets(0, 128).into_iter().map(changed).collect())).await.unwrap_err();
    assert!(refused.to_string().contains("more than 127 entries"), "{refused}");
    server.commit(&kv(sets(127, 250))).await.unwrap();
    server.commit(&kv(sets(250, 300))).await.unwrap();
    server.commit(&kv(vec![KvOperation::DeleteTree("a/".to_owned())])).await.unwrap();
    assert_eq!(server.snapshot().kv_under("").count(), 0);

    // A session that holds large entries, and one of the longest name.
    let node = "n1".parse().unwrap();
    let record = Node {
        name: node,
        id: String::new(),
        address: "10.0.0.1".to_owned(),
        tagged_addresses: std::collections::BTreeMap::new(),
        meta: std::collections::BTreeMap::new(),
    };
    let register = Command::Register {
        name: record.name.clone(),
        node: Some(record.clone()),
        instances: Vec::new(),
        checks: Vec::new(),
    };
    let id = Uuid::from_random(7);
    let session = Session {
        id,
        name: String::new(),
        node: record.name,
        node_checks: Vec::new(),
        service_checks: Vec::new(),
        lock_delay_ms: 15_000,
        behavior: SessionBehavior::Release,
        ttl: String::new(),
        ttl_ms: None,
    };
    server.commit(&register).await.unwrap();
    server.commit(&Command::Coordination(CoordinationCommand::CreateSession { session, now_ms: 0 })).await.unwrap();
    let longest = "k".repeat(KV_KEY_BYTES_MAX);
    let names = (0..20).map(|number| format!("l/{number}")).chain([longest]);
    for name in names {
        let lock = KvOperation::Lock { write: write(&name, 100 * 1024), session: Some(id), now_ms: 0 };
        server.commit(&kv(vec![lock])).await.unwrap();
    }
    server.commit(&Command::Coordination(CoordinationCommand::EndSession(id))).await.unwrap();
    let snapshot = server.snapshot();
    assert!(snapshot.kv_under("").all(|entry| entry.value.session.is_none()));
    assert_eq!((snapshot.sessions().len(), snapshot.lock_delays().count()), (0, 21));
}

/// The same operation with another value.
fn changed(operation: KvOperation) -> KvOperation {
    let KvOperation::Set(before) = operation else { panic!("no set") };
    KvOperation::Set(KvWrite { flags: 1, ..before })
}
