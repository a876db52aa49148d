//! The turn: from a committed transaction to everyone who is concerned. The path whose length users feel.
//!
//! Nothing waits here: decode, apply, publish the snapshot, wake. No timer, no batching; a transaction that arrives
//! while another is being applied is applied right after it. Cost model: that of [`Snapshot::apply`] plus one wake-up per
//! subscriber of a touched subject.

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use starling_catalog::{Applied, Interpreted, Quarantined, Snapshot, StoredRecord, StoredWrite};
use starling_model::{Change, Revision};
use starling_store::{Committed, Failure, LoadError, Watch, WatchError, Write};

use crate::server::Server;

/// Pause before the store is read again: after a failure, and when it forgot what came next while it was read.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// The catalog that is in a store.
///
/// Records that this release cannot use are quarantined; see [`starling_catalog::quarantine`].
pub(crate) fn catalog(stored: &starling_store::Snapshot) -> Snapshot {
    let entries = stored.entries.iter().map(|entry| StoredRecord {
        key: entry.key.as_bytes(),
        value: &entry.value,
        created: Revision(entry.created.0),
        modified: Revision(entry.modified.0),
    });
    let catalog = Snapshot::load_stored(Revision(stored.revision.0), entries);
    for (key, record) in catalog.quarantined() {
        warn(key, &record.value);
    }
    catalog
}

fn warn(key: &str, record: &Quarantined) {
    tracing::warn!(
        key,
        reason = record.reason,
        bytes = record.bytes,
        "quarantined a stored record that this release cannot use; see /starling/v1/quarantine"
    );
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
            Ok(committed) => turn(&server, &committed),
            Err(WatchError::Compacted { from, oldest }) => {
                tracing::warn!(%from, %oldest, "the store no longer has all that this server missed: it is read anew");
                watch = reload(&server).await.context("falling behind the store, and reloading it failed")?;
            }
            Err(ended) => return Err(ended).context("the store's watch ended"),
        }
    }
}

fn turn(server: &Server, committed: &Committed) {
    if committed.writes.is_empty() {
        progress(server, Revision(committed.revision.0));
        return;
    }
    let interpreted = Interpreted::of(committed.writes.iter().map(stored));
    for (key, record) in interpreted.quarantined() {
        warn(key, record);
    }
    let before = server.snapshot();
    let applied = before.apply_stored(Revision(committed.revision.0), &interpreted);
    publish(server, &before, applied, &interpreted.changes);
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
    server.count_quarantined(&snapshot);
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
        let fresh = catalog(&stored);
        let before = server.snapshot();
        let (applied, changes) = before.catch_up(&fresh);
        publish(server, &before, applied, &changes);
        match server.store().watch(stored.revision).await {
            Err(WatchError::Unavailable(reason)) => again(&reason).await,
            // What was read is forgotten already. Without a pause, servers that fall behind would read everything without end.
            Err(WatchError::Compacted { .. }) => tokio::time::sleep(RELOAD_PAUSE).await,
            watch => return Ok(watch?),
        }
    }
}

async fn again(reason: &Failure) {
    tracing::warn!(%reason, "what was missed of the store cannot be read yet");
    tokio::time::sleep(RELOAD_PAUSE).await;
}

fn stored(write: &Write) -> StoredWrite<'_> {
    match write {
        Write::Put { key, value, .. } => StoredWrite { key: key.as_bytes(), value: Some(value) },
        Write::Delete { key } => StoredWrite { key: key.as_bytes(), value: None },
    }
}

#[cfg(test)]
mod tests;
