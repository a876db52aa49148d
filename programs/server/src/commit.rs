//! Committing a command: decide, write under what was seen, and decide again if somebody else was faster.

use starling_catalog::{Command, Decision, Refusal, Seen, Snapshot, decide};
use starling_model::{Change, Revision};
use starling_store::{CommitError, Condition, Expected, Key, MAX_TRANSACTION_OPERATIONS, Transaction, Write};

use crate::server::Server;

/// Times a command is decided anew because another write was faster. Each conflict means that somebody else made
/// progress, so this many in a row are a fault.
const ATTEMPTS_MAX: usize = 64;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CommitFailure {
    /// It breaks a rule; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Other writers kept changing what it depends on; nothing was changed.
    #[error("gave up after {ATTEMPTS_MAX} conflicts with other writers")]
    Contended,
    /// The store cannot write; see its source for whether it is known that nothing was changed.
    #[error("the store did not take the write")]
    Store(#[source] CommitError),
}

impl Server {
    /// Carries out a command and returns the revision at which it is durable and visible. A command that changes
    /// nothing returns the current revision.
    ///
    /// # Errors
    /// [`CommitFailure`].
    pub async fn commit(&self, command: &Command) -> Result<Revision, CommitFailure> {
        for _ in 0..ATTEMPTS_MAX {
            let snapshot = self.snapshot();
            let decision = decide(&snapshot, command)?;
            if decision.changes.is_empty() {
                return Ok(snapshot.revision());
            }
            match self.write(decision).await {
                Ok(revision) => {
                    self.published(revision).await;
                    return Ok(revision);
                }
                Err(CommitError::Conflict { found, .. }) => self.caught_up(&snapshot, found).await,
                Err(failure) => return Err(CommitFailure::Store(failure)),
            }
        }
        Err(CommitFailure::Contended)
    }

    /// Writes a decision, in several transactions if it is larger than one may be. What was seen guards the first.
    async fn write(&self, decision: Decision) -> Result<Revision, CommitError> {
        let mut conditions: Vec<Condition> = decision.seen.iter().filter_map(condition).collect();
        let mut revision = starling_store::Revision::ZERO;
        for chunk in decision.changes.chunks(MAX_TRANSACTION_OPERATIONS) {
            let writes = chunk.iter().filter_map(write).collect();
            let transaction = Transaction { conditions: std::mem::take(&mut conditions), writes };
            revision = self.store().commit(transaction).await?;
        }
        Ok(Revision(revision.0))
    }

    /// Waits until the catalog has what the store found instead of what was seen.
    async fn caught_up(&self, seen: &Snapshot, found: starling_store::Revision) {
        let target = Revision(found.0).max(Revision(seen.revision().0 + 1));
        self.published(target).await;
    }
}

fn condition(seen: &Seen) -> Option<Condition> {
    let expected = match seen.modified {
        Some(revision) => Expected::ModifiedAt(starling_store::Revision(revision.0)),
        None => Expected::Absent,
    };
    Some(Condition { key: key(&seen.key)?, expected })
}

fn write(change: &Change) -> Option<Write> {
    let key = key(&change.key())?;
    Some(match change {
        Change::Put(record) => Write::Put { key, value: record.encode().into() },
        Change::Delete(_) => Write::Delete { key },
    })
}

/// Names are far shorter than a key may be, so there always is one.
fn key(key: &starling_model::RecordKey) -> Option<Key> {
    Key::new(key.encode()).ok()
}
