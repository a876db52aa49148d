//! Committing a command: decide, write under what was seen, and decide again if somebody else was faster.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use starling_catalog::{Command, Decision, Refusal, Seen, Snapshot, decide, decide_again, ground};
use starling_model::{Change, NodeName, RECORD_LEVEL, Revision};
use starling_store::{
    CommitError, Condition, Expected, Key, LoadError, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS,
    MAX_TRANSACTION_OPERATIONS, Transaction, Write,
};

use tokio::time::timeout;

use crate::server::Server;

/// Times a command is decided anew because another write was faster. Each conflict means that somebody else made
/// progress, so this many in a row are a fault.
const ATTEMPTS_MAX: usize = 64;

/// How long one who was beaten waits for those who were before it. Where the store does not answer they take long, and nobody
/// is to be refused later than they are.
const TURN_WITHIN: Duration = Duration::from_secs(2);

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CommitFailure {
    /// It breaks a rule; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Other writers kept changing what it depends on; nothing was changed.
    #[error("gave up after {ATTEMPTS_MAX} conflicts with other writers")]
    Contended,
    /// A server on the store does not read a kind of record that it writes. Nothing was changed.
    #[error("server {server} does not read records such as {key} yet: upgrade every server, then try again")]
    Gated {
        /// The server.
        server: NodeName,
        /// The record's key.
        key: String,
    },
    /// No store will ever take it: a record is over the size of a transaction, what it depends on is over the number of
    /// conditions, or it changes a record twice. Nothing was changed.
    #[error("the store can never take it")]
    Invalid(#[source] CommitError),
    /// The catalog no longer follows the store: what was written, if anything, is durable but not visible here.
    #[error("the catalog no longer follows the store: {0}")]
    Halted(Arc<str>),
    /// The store cannot be written to now, and may heal by itself. As with [`CommitFailure::Store`], it may have been carried
    /// out in part, or as a whole.
    #[error("No cluster leader")]
    Unavailable(#[source] CommitError),
    /// It is durable, or was beaten by what is, but the store has not told so by its watch in time: it is gone since.
    #[error("No cluster leader: the store answered, and its watch is silent since; the write may be durable")]
    Behind,
    /// The store does not say how far it is, so nobody knows whether the catalog is current. Nothing was changed.
    #[error("No cluster leader")]
    Cut(#[source] LoadError),
    /// The store cannot write. Of a command larger than one transaction the first ones may be durable; of the one that
    /// failed it is not known.
    #[error("the store did not take the write")]
    Store(#[source] CommitError),
}

/// Why a command that was judged was not carried out.
#[derive(Debug)]
pub enum Unmade<D> {
    /// The judge was against it; nothing was changed.
    Denied(D),
    /// It could not be.
    Failed(CommitFailure),
}

impl<D> From<CommitFailure> for Unmade<D> {
    fn from(failure: CommitFailure) -> Self {
        Self::Failed(failure)
    }
}

impl Server {
    /// Carries out a command and returns the revision at which it is durable and visible as a whole. A command that
    /// changes nothing returns the current revision. One that is larger than a transaction of the store may be is
    /// written in several, in the order of its changes, and readers see the earlier ones first; the revision is that of
    /// the last, whose receipt speaks of all of them.
    ///
    /// # Errors
    /// [`CommitFailure`].
    pub async fn commit(&self, command: &Command) -> Result<Revision, CommitFailure> {
        match self.transact(command, |_| Ok::<_, Infallible>(())).await {
            Ok((revision, _)) => Ok(revision),
            Err(Unmade::Failed(failure)) => Err(failure),
        }
    }

    /// The same, where `judge` finds it allowed in the very catalog on which it is decided. Also answers with that catalog, nothing of
    /// which the command depends on was changed before the revision.
    ///
    /// # Errors
    /// [`Unmade`]. Of a command larger than one transaction the first ones are durable where the later ones failed, and those are not
    /// judged again.
    pub async fn transact<D>(
        &self,
        command: &Command,
        judge: impl Fn(&Snapshot) -> Result<(), D>,
    ) -> Result<(Revision, Arc<Snapshot>), Unmade<D>> {
        let mut written = Vec::new();
        let (mut turn, mut is_current) = (None, self.id().is_none());
        let mut conflicts = 0;
        while conflicts < ATTEMPTS_MAX {
            let snapshot = self.snapshot();
            let decided = match written.first() {
                Some(first) => decide_again(&snapshot, command, *first),
                None => {
                    judge(&snapshot).map_err(Unmade::Denied)?;
                    decide(&snapshot, command)
                }
            };
            let decision = match decided {
                Ok(decision) if !decision.changes.is_empty() => decision,
                // Of what writes nothing the store does not say whether it was decided on what holds: another server may
                // have written what is not seen here yet.
                _ if !is_current => {
                    self.catch_up().await?;
                    is_current = true;
                    continue;
                }
                decided => {
                    decided.map_err(CommitFailure::from)?;
                    let revision = self.completed(&written).unwrap_or_else(|| snapshot.revision());
                    return Ok((revision, snapshot));
                }
            };
            refuse_unknown_to_others(&snapshot, &decision)?;
            match self.write(&decision, &mut written).await {
                Ok(revision) => {
                    self.published(revision).await?;
                    if !decision.again {
                        return Ok((self.completed(&written).unwrap_or(revision), snapshot));
                    }
                }
                Err(CommitError::Conflict { found, .. }) => {
                    conflicts += 1;
                    // Those who were beaten once go one after the other, in the order in which they were: many writers
                    // of what hangs together would otherwise beat one another without end.
                    if turn.is_none() {
                        turn = timeout(TURN_WITHIN, self.beaten().lock()).await.ok();
                    }
                    self.caught_up(&snapshot, found).await?;
                }
                Err(failure) => return Err(CommitFailure::from(failure).into()),
            }
        }
        Err(CommitFailure::Contended.into())
    }

    /// Writes what was decided, adds the revision of each transaction to `written` and returns that of the last.
    async fn write(&self, decision: &Decision, written: &mut Vec<Revision>) -> Result<Revision, CommitError> {
        let (mut last, mut own) = (Revision(0), BTreeMap::new());
        let mut all = transactions(decision)?.into_iter();
        while let Some(mut transaction) = all.next() {
            for condition in &mut transaction.conditions {
                if let Some(expected) = own.get(&condition.key) {
                    condition.expected = *expected;
                }
            }
            // Most commands take one transaction, behind which there is nothing to guard.
            let writes = if all.len() > 0 { transaction.writes.clone() } else { Vec::new() };
            let revision = self.store_transaction(transaction).await?;
            own.extend(writes.into_iter().map(|write| left_by(write, revision)));
            last = Revision(revision.0);
            written.push(last);
        }
        Ok(last)
    }

    /// The revision by which a command that was written as `written` is known from now on.
    fn completed(&self, written: &[Revision]) -> Option<Revision> {
        let (last, earlier) = written.split_last()?;
        if !earlier.is_empty() {
            self.hub().join(*last, &earlier.iter().copied().collect());
        }
        Some(*last)
    }

    /// Deletes a quarantined record from the store; `None` if there is none under `key`.
    ///
    /// # Errors
    /// [`CommitFailure`] if the record changed meanwhile, or the store takes no write.
    pub async fn delete_quarantined(&self, key: &str) -> Result<Option<Revision>, CommitFailure> {
        let snapshot = self.snapshot();
        let found = snapshot.quarantined().find(|(known, _)| *known == key);
        let Some((modified, key)) = found.map(|(_, record)| record.modified).zip(Key::new(key.to_owned()).ok()) else {
            return Ok(None);
        };
        let as_seen = Expected::ModifiedAt(starling_store::Revision(modified.0));
        let revision = self.store().commit(Transaction::new().require(key.clone(), as_seen).delete(key)).await?;
        self.published(Revision(revision.0)).await?;
        Ok(Some(Revision(revision.0)))
    }

    /// Waits until the catalog has what the store found instead of what was seen.
    async fn caught_up(&self, seen: &Snapshot, found: starling_store::Revision) -> Result<(), CommitFailure> {
        let target = Revision(found.0).max(Revision(seen.revision().0 + 1));
        self.published(target).await
    }
}

impl From<CommitError> for CommitFailure {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Empty | CommitError::DuplicateKey { .. } | CommitError::TooLarge { .. } => {
                Self::Invalid(error)
            }
            CommitError::Refused(_) | CommitError::Unavailable(_) => Self::Unavailable(error),
            CommitError::Conflict { .. } | CommitError::Failed(_) | CommitError::Closed => Self::Store(error),
        }
    }
}

/// An older server would quarantine the record, and so not act on it.
fn refuse_unknown_to_others(snapshot: &Snapshot, decision: &Decision) -> Result<(), CommitFailure> {
    if snapshot.servers().all(|server| server.value.level >= RECORD_LEVEL) {
        return Ok(());
    }
    for change in &decision.changes {
        let key = change.key();
        if let Some(server) = snapshot.servers_before(&key).next() {
            return Err(CommitFailure::Gated { server: server.clone(), key: key.encode() });
        }
    }
    Ok(())
}

/// What is to be found of a key after a write of our own.
fn left_by(write: Write, revision: starling_store::Revision) -> (Key, Expected) {
    match write {
        Write::Put { key, .. } => (key, Expected::ModifiedAt(revision)),
        Write::Delete { key } => (key, Expected::Absent),
    }
}

/// The transactions that a decision takes, in the order of its changes and each as large as may be. What was seen guards
/// every one of them: a conflict in the first means that nothing was written, and in a later one that it is to be decided
/// [again](decide_again), as when the node is gone meanwhile to which the rest belongs.
///
/// # Errors
/// What [`Transaction::check`] finds in any of them: a decision that the store would refuse in part is not begun.
pub(crate) fn transactions(decision: &Decision) -> Result<Vec<Transaction>, CommitError> {
    let conditions: Vec<_> = decision.seen.iter().map(condition).collect();
    let guarded = Transaction { conditions, writes: Vec::new() };
    let (mut current, mut bytes) = (guarded.clone(), 0);
    let (mut all, mut written, mut own) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for change in &decision.changes {
        let write = write(change);
        // Also refused where the two would go apart: whether a command is taken must not hang on its size.
        if !written.insert(write.key().clone()) {
            return Err(CommitError::DuplicateKey { key: write.key().clone() });
        }
        // What was written by an earlier one may be gone again.
        let ground = ground(change).map(|key| store_key(&key)).filter(|key| written.contains(key));
        let more = usize::from(ground.as_ref().is_some_and(|key| !own.contains(key)));
        let full = current.writes.len() == MAX_TRANSACTION_OPERATIONS
            || current.conditions.len() + more > MAX_TRANSACTION_CONDITIONS
            || bytes + write.size() > MAX_TRANSACTION_BYTES;
        if full && !current.writes.is_empty() {
            all.push(mem::replace(&mut current, guarded.clone()));
            own.clear();
            bytes = 0;
        }
        if let Some(key) = ground.filter(|key| own.insert(key.clone())) {
            current.conditions.push(Condition { key, expected: Expected::Present });
        }
        own.insert(write.key().clone());
        bytes += write.size();
        current.writes.push(write);
    }
    all.push(current);
    all.iter().try_for_each(Transaction::check)?;
    Ok(all)
}

fn condition(seen: &Seen) -> Condition {
    let expected = match seen.modified {
        Some(revision) => Expected::ModifiedAt(starling_store::Revision(revision.0)),
        None => Expected::Absent,
    };
    Condition { key: store_key(&seen.key), expected }
}

pub(crate) fn write(change: &Change) -> Write {
    let key = store_key(&change.key());
    match change {
        Change::Put(record) => Write::Put { key, value: record.encode().into(), lease: None },
        Change::Delete(_) => Write::Delete { key },
    }
}

/// The key of a record that is in the catalog or about to be, or of a config entry beside it.
pub(crate) fn store_key(key: &starling_model::RecordKey) -> Key {
    Key::new(key.encode()).expect("invariant: the names of records are far shorter than a key may be")
}
