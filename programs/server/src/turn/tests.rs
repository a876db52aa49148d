use starling_catalog::Command;
use starling_model::{ConfigEntry, IntentionSubject, ServiceDefaults};
use starling_store::{Key, Transaction};
use starling_telemetry::Registry;
use tempfile::TempDir;

use super::*;
use crate::server::ServerConfig;

async fn start(directory: &TempDir) -> Arc<Server> {
    let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
    Server::start(config, &Registry::default()).await.expect("the server starts")
}

/// Writes to the store behind the server's back, as an operator or a newer release may.
async fn write(server: &Server, writes: &[(&str, &[u8])]) -> Revision {
    let put = |(key, value): &(&str, &[u8])| Write::Put {
        key: Key::new(key.as_bytes().to_vec()).expect("a key"),
        value: value.to_vec().into(),
        lease: None,
    };
    let transaction = Transaction { conditions: Vec::new(), writes: writes.iter().map(put).collect() };
    let revision = Revision(server.store().commit(transaction).await.expect("durable").0);
    server.published(revision).await.expect("the server follows its store");
    revision
}

fn defaults(service: &str) -> Command {
    let entry = ConfigEntry::ServiceDefaults(ServiceDefaults::bare(service.parse().expect("a name")));
    Command::PutConfig { entry, cas: None }
}

fn quarantined(server: &Server) -> Vec<String> {
    server.snapshot().quarantined().map(|(key, _)| key.to_owned()).collect()
}

#[tokio::test]
async fn unreadable_records_are_quarantined_and_the_server_runs_and_restarts() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory).await;
    write(&server, &[("hologram/h1", b"{}"), ("node/n1", b"{"), ("fence/protocols", b"{}")]).await;
    assert_eq!(quarantined(&server), ["fence/protocols", "hologram/h1", "node/n1"]);
    assert!(!server.is_halted());
    server.commit(&defaults("web")).await.expect("writes go on, also over an unreadable fence");
    let saved: Vec<u8> =
        server.save().await.expect("saved").flat_map(|piece| piece.expect("a piece").to_vec()).collect();
    for kept in ["hologram/h1", "node/n1"] {
        assert!(contains(&saved, kept), "a snapshot file keeps {kept}");
    }
    let left = quarantined(&server);
    let (server, _copy) = restarted(&directory).await;
    let server = server.expect("the server starts");
    assert_eq!(quarantined(&server), left);
    server.commit(&defaults("api")).await.expect("and after a restart");
    let deleted = server.delete_quarantined("node/n1").await.expect("deleted");
    assert!(deleted.is_some() && server.delete_quarantined("node/n1").await.expect("nothing to do").is_none());
    assert_eq!(quarantined(&server), ["hologram/h1"]);
    // The bytes are still there.
    let stored = server.store().load().await.expect("loaded");
    let hologram = stored.entries.iter().find(|entry| entry.key.as_bytes() == b"hologram/h1").expect("kept");
    assert_eq!(&hologram.value[..], b"{}");
}

#[tokio::test]
async fn unreadable_intentions_deny_until_they_are_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory).await;
    let destination: IntentionSubject = "web".parse().expect("a name");
    let denies = |server: &Server| {
        let snapshot = server.snapshot();
        let entry = snapshot.intentions(&destination).expect("a stand-in").value.clone();
        let ConfigEntry::ServiceIntentions(entry) = entry else { panic!("{entry:?}") };
        assert_eq!(entry.sources.len(), 1);
        !entry.sources[0].decision.may_allow() && entry.sources[0].source == IntentionSubject::Any
    };
    write(&server, &[("config/service-intentions/web", br#"{"kind":"of tomorrow"}"#)]).await;
    assert!(denies(&server));
    let (server, _copy) = restarted(&directory).await;
    let server = server.expect("the server starts");
    assert!(denies(&server), "also after a restart");
    let snapshot = server.snapshot();
    let entry = snapshot.intentions(&destination).expect("a stand-in").value.clone();
    server.commit(&Command::PutConfig { entry, cas: None }).await.expect("an operator replaces it");
    assert_eq!(quarantined(&server), Vec::<String>::new());
}

#[tokio::test]
async fn a_record_under_the_key_of_another_is_quarantined() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory).await;
    server.commit(&defaults("web")).await.expect("committed");
    let stored = server.store().load().await.expect("loaded");
    let web = stored.entries.iter().find(|entry| entry.key.as_bytes().ends_with(b"/web")).expect("stored");
    write(&server, &[("config/service-defaults/api", &web.value)]).await;
    assert_eq!(quarantined(&server), ["config/service-defaults/api"]);
    assert!(server.snapshot().service_defaults(&"api".parse().expect("a name")).is_none());
    let snapshot = server.snapshot();
    let (_, record) = snapshot.quarantined().next().expect("quarantined");
    assert!(record.value.reason.contains("config/service-defaults/web"), "{}", record.value.reason);
    server.commit(&defaults("api")).await.expect("an ordinary write replaces it");
    assert_eq!(quarantined(&server), Vec::<String>::new());
}

#[tokio::test]
async fn an_unreadable_root_stays_trusted_while_the_server_runs_and_refuses_a_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory).await;
    let root = server.root().id;
    let key = format!("ca-root/{root}");
    write(&server, &[(&key, b"{}")]).await;
    assert_eq!(server.snapshot().active_root().expect("the last readable version").value.id, root);
    let (refused, _copy) = restarted(&directory).await;
    let refused = refused.err().expect("a second CA is never created").to_string();
    assert!(refused.contains(&key) && refused.contains("nothing was changed"), "{refused}");
}

/// Starts a server on what `directory` holds now.
async fn restarted(directory: &TempDir) -> (anyhow::Result<Arc<Server>>, TempDir) {
    let copy = tempfile::tempdir().expect("a directory");
    for folder in ["store", "ca"] {
        std::fs::create_dir(copy.path().join(folder)).expect("a folder");
        for file in std::fs::read_dir(directory.path().join(folder)).expect("a folder") {
            let file = file.expect("an entry");
            std::fs::copy(file.path(), copy.path().join(folder).join(file.file_name())).expect("copied");
        }
    }
    let config = ServerConfig::new(copy.path().to_owned(), "dc1".parse().expect("a name"));
    (Server::start(config, &Registry::default()).await, copy)
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
