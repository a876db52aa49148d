//! The turn: from a committed transaction to everyone who is concerned. The path whose length users feel.
//!
//! Nothing waits here: decode, apply, publish the snapshot, wake. No timer, no batching; a transaction that arrives
//! while another is being applied is applied right after it. Cost model: that of [`Snapshot::apply`] plus one wake-up per
//! subscriber of a touched subject.

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use starling_catalog::{Applied, Snapshot};
use starling_model::{Change, Record, RecordKey, Revision, Versioned};
use starling_store::{Committed, Failure, LoadError, Watch, WatchError, Write};

use crate::server::Server;

/// Pause before a store that could not be read is read again.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// The catalog that is in a store.
pub(crate) fn catalog(stored: &starling_store::Snapshot) -> anyhow::Result<Snapshot> {
    let mut records = Vec::with_capacity(stored.entries.len());
    for entry in &stored.entries {
        let key = decode_key(entry.key.as_bytes())?;
        let value = Record::decode(&key, &entry.value)?;
        let (created, modified) = (Revision(entry.created.0), Revision(entry.modified.0));
        records.push(Versioned { value, created, modified });
    }
    Ok(Snapshot::load(Revision(stored.revision.0), records))
}

/// Follows the store until the server is dropped.
///
/// # Errors
/// When the store's watch fails; the catalog stays as it was then.
pub(crate) async fn follow(server: &Weak<Server>, mut watch: Watch) -> anyhow::Result<()> {
    loop {
        let next = watch.next().await;
        let Some(server) = server.upgrade() else { return Ok(()) };
        match next {
            Ok(committed) => turn(&server, &committed)?,
            Err(WatchError::Compacted { from, oldest }) => {
                tracing::warn!(%from, %oldest, "the store no longer has all that this server missed: it is read anew");
                watch = reload(&server).await.context("falling behind the store, and reloading it failed")?;
            }
            Err(ended) => return Err(ended).context("the store's watch ended"),
        }
    }
}

fn turn(server: &Server, committed: &Committed) -> anyhow::Result<()> {
    if committed.writes.is_empty() {
        progress(server, Revision(committed.revision.0));
        return Ok(());
    }
    let changes = committed.writes.iter().map(decode).collect::<anyhow::Result<Vec<_>>>()?;
    let before = server.snapshot();
    let applied = before.apply(Revision(committed.revision.0), &changes);
    publish(server, &before, applied, &changes);
    Ok(())
}

/// Makes `applied`, to which `changes` have led from `before`, what everybody sees.
fn publish(server: &Server, before: &Snapshot, applied: Applied, changes: &[Change]) {
    let snapshot = Arc::new(applied.snapshot);
    // Whoever hears of another root asks for another leaf at once.
    server.signer().follow(&snapshot);
    server.advance(Arc::clone(&snapshot));
    server.agents().publish(&snapshot, &applied.events, changes);
    server.members_changed(before, &snapshot, changes);
    server.enrolments_changed(changes);
    server.count_change();
    server.announce(snapshot.revision());
}

/// The store has come to `revision` with nothing for the catalog: whoever waits for it need not wait longer, and nobody else
/// hears of it.
fn progress(server: &Server, revision: Revision) {
    let applied = server.snapshot().apply(revision, &[]);
    server.advance(Arc::new(applied.snapshot));
    server.announce(revision);
}

/// Reads everything anew and publishes the difference as one change. A store that cannot be asked is asked again.
async fn reload(server: &Server) -> anyhow::Result<Watch> {
    loop {
        let stored = match server.store().load().await {
            Err(LoadError::Unavailable(reason)) => {
                again(&reason).await;
                continue;
            }
            loaded => loaded.context("the store could not be read")?,
        };
        let fresh = catalog(&stored)?;
        let before = server.snapshot();
        let (applied, changes) = before.catch_up(&fresh);
        publish(server, &before, applied, &changes);
        match server.store().watch(stored.revision).await {
            Err(WatchError::Unavailable(reason)) => again(&reason).await,
            Err(WatchError::Compacted { .. }) => {}
            watch => return Ok(watch?),
        }
    }
}

async fn again(reason: &Failure) {
    tracing::warn!(%reason, "what was missed of the store cannot be read yet");
    tokio::time::sleep(RELOAD_PAUSE).await;
}

fn decode(write: &Write) -> anyhow::Result<Change> {
    Ok(match write {
        Write::Put { key, value, .. } => Change::Put(Record::decode(&decode_key(key.as_bytes())?, value)?),
        Write::Delete { key } => Change::Delete(decode_key(key.as_bytes())?),
    })
}

fn decode_key(bytes: &[u8]) -> anyhow::Result<RecordKey> {
    let text = std::str::from_utf8(bytes).context("the store holds a key that is not UTF-8")?;
    Ok(RecordKey::decode(text)?)
}

#[cfg(test)]
mod tests {
    use starling_catalog::Command;
    use starling_store::{Key, Transaction};
    use starling_telemetry::Registry;

    use super::*;
    use crate::commit::CommitFailure;
    use crate::server::ServerConfig;

    /// What another, newer program might write into a store that both share.
    #[tokio::test]
    async fn a_write_that_it_does_not_understand_halts_the_server_instead_of_being_passed_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let before = server.snapshot().revision();
        let key = Key::new("hologram/h1").expect("a key");
        let write = Write::Put { key, value: b"{}".to_vec().into(), lease: None };
        server.store().commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.expect("durable");
        let reason = server.halted().await;
        assert!(reason.contains("hologram"), "{reason}");
        assert_eq!(server.snapshot().revision(), before, "readers keep what was understood");
        let name = "n1".parse().expect("a name");
        let refused = server.commit(&Command::DeregisterNode(name)).await;
        assert!(refused.is_ok(), "nothing to do is no write: {refused:?}");
        let entry = starling_model::ServiceDefaults::bare("web".parse().expect("a name"));
        let entry = starling_model::ConfigEntry::ServiceDefaults(entry);
        let refused = server.commit(&Command::PutConfig { entry, cas: None }).await;
        assert!(matches!(refused, Err(CommitFailure::Halted(_))), "{refused:?}");
    }
}
