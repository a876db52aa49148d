//! Commands about the key-value store and sessions.
//!
//! Operations of one transaction are carried out one after the other on a copy of the entries, which costs a few references; what
//! differs at the end is written. An operation that cannot be done refuses the whole, and every one that cannot is named.

mod run;

use std::collections::BTreeSet;
use std::sync::Arc;

use starling_model::{
    Change, CheckId, CheckStatus, CoordinationKey, CoordinationRecord, KvEntry, KvKey, KvValue, LockDelay, NodeName,
    Record, RecordKey, Revision, ServerId, Session, SessionBehavior, SessionRenewal, Uuid, Versioned,
};

use super::{Decision, GUARDED_CHANGES_MAX};
use crate::snapshot::Snapshot;
pub(super) use run::Run;

/// Operations of one transaction; Consul's, and as many as depend on one entry each and still fit into one of the store's.
pub const TXN_OPERATIONS_MAX: usize = GUARDED_CHANGES_MAX;

/// Entries and sessions that a transaction which writes may depend on: conditions of one transaction of the store.
pub(super) const CONDITIONS_MAX: usize = GUARDED_CHANGES_MAX - 1;

/// Bytes of values that a transaction may answer.
const ANSWERED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of entries that are unlocked in one transaction, the first aside: the store takes a megabyte, with keys and names.
const UNLOCKED_BYTES_MAX: usize = 256 * 1024;

/// Sessions at a time; each takes some 500 bytes.
pub const SESSIONS_MAX: usize = 65_536;

/// A session that has to be renewed ends after as many times its TTL without; Consul's.
const TTL_GRACE: u64 = 2;

/// What a door asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinationCommand {
    /// Carries out operations on entries, all or none.
    Kv(Vec<KvOperation>),
    /// Makes a session.
    CreateSession {
        /// The session.
        session: Session,
        /// When, in milliseconds since 1970.
        now_ms: u64,
    },
    /// A session is to go on.
    RenewSession {
        /// Which.
        id: Uuid,
        /// When.
        now_ms: u64,
    },
    /// Ends a session; nothing happens if it is not there.
    EndSession(Uuid),
    /// Ends sessions that were not renewed, or whose node or checks are gone, and forgets lock delays that are over.
    Sweep {
        /// The server that does so, which has to lead; `None` if there is no other.
        by: Option<ServerId>,
        /// When.
        now_ms: u64,
    },
}

/// What is written of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvWrite {
    /// Under which key.
    pub key: KvKey,
    /// The value.
    pub value: KvValue,
    /// The application's number.
    pub flags: u64,
}

/// An operation on entries. Words as in Consul's transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvOperation {
    /// Writes an entry; who has locked it keeps it.
    Set(KvWrite),
    /// The same if it was last modified at this revision; 0 means only if it is not there.
    Cas(KvWrite, Revision),
    /// Writes it and locks it for a session, unless another has it.
    Lock {
        /// What.
        write: KvWrite,
        /// For whom; it is refused without.
        session: Option<Uuid>,
        /// When, in milliseconds since 1970.
        now_ms: u64,
    },
    /// Writes it and unlocks it, if the session has it.
    Unlock(KvWrite, Option<Uuid>),
    /// Removes it, locked or not; nothing happens if it is not there.
    Delete(KvKey),
    /// Removes it if it was last modified at this revision; nothing happens if it is not there.
    DeleteCas(KvKey, Revision),
    /// Removes every entry whose key begins so.
    DeleteTree(String),
    /// Reads it; it has to be there.
    Get(KvKey),
    /// Reads it; if it is not there, an empty one with index 0.
    GetOrEmpty(KvKey),
    /// Reads every entry whose key begins so.
    GetTree(String),
    /// It has to have been modified last at this revision.
    CheckIndex(KvKey, Revision),
    /// This session has to have it.
    CheckSession(KvKey, Option<Uuid>),
    /// It must not be there.
    CheckNotExists(KvKey),
}

/// What an operation answers: an entry, with its value where it was to be read.
#[derive(Debug, Clone, PartialEq)]
pub struct KvAnswer {
    /// The entry.
    pub entry: Arc<Versioned<KvEntry>>,
    /// Whether its value was asked for.
    pub with_value: bool,
}

/// Why an operation cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvFailure {
    /// It was modified at another revision, or is or is not there.
    #[error("failed to {verb} key \"{key}\", index is stale")]
    Stale {
        /// What was to be done.
        verb: &'static str,
        /// Which.
        key: KvKey,
    },
    /// Another session has it, or had it until just now.
    #[error("failed to lock key \"{0}\", lock is already held")]
    Locked(KvKey),
    /// The session does not have it.
    #[error("failed to unlock key \"{0}\", lock isn't held, or is held by another session")]
    NotHeld(KvKey),
    /// No session was named.
    #[error("missing session")]
    MissingSession,
    /// There is no such session.
    #[error("invalid session \"{0}\"")]
    NoSession(Uuid),
    /// It is not there.
    #[error("key \"{0}\" doesn't exist")]
    Missing(KvKey),
    /// It is there.
    #[error("key \"{0}\" exists")]
    Exists(KvKey),
    /// Another session has it, or none.
    #[error("failed session check for key \"{0}\", current session differs")]
    SessionDiffers(KvKey),
    /// More entries than one transaction takes.
    #[error("{entries} entries are under {prefix:?}; at most {GUARDED_CHANGES_MAX} can be removed along with others")]
    TooMany {
        /// The prefix.
        prefix: String,
        /// How many there are.
        entries: usize,
    },
    /// It depends on more than one transaction may, or answers more.
    #[error(
        "the transaction depends on more than {CONDITIONS_MAX} entries and sessions, or answers more than {ANSWERED_BYTES_MAX} bytes"
    )]
    TooLarge,
}

impl KvFailure {
    /// Whether it is a condition that did not hold, which a single operation answers with `false`.
    #[must_use]
    pub fn is_condition(&self) -> bool {
        match self {
            Self::Stale { .. } | Self::Locked(_) | Self::NotHeld(_) => true,
            Self::MissingSession
            | Self::NoSession(_)
            | Self::Missing(_)
            | Self::Exists(_)
            | Self::SessionDiffers(_)
            | Self::TooMany { .. }
            | Self::TooLarge => false,
        }
    }
}

/// Why a command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationRefusal {
    /// These operations cannot be done; each with its place in the transaction.
    #[error("{}", .0.first().map(|(_, failure)| failure.to_string()).unwrap_or_default())]
    Operations(Vec<(usize, KvFailure)>),
    /// The node is not registered.
    #[error("Missing node registration")]
    UnknownNode(NodeName),
    /// The check is not on the node.
    #[error("Missing check '{0}' registration")]
    UnknownCheck(CheckId),
    /// The check is critical already.
    #[error("Check '{0}' is in critical state")]
    CriticalCheck(CheckId),
    /// More than one transaction depends on.
    #[error("a session has at most {CONDITIONS_MAX} checks")]
    TooManyChecks,
    /// There is no such session.
    #[error("Session id '{0}' not found")]
    UnknownSession(Uuid),
    /// The limit is reached.
    #[error("there are {SESSIONS_MAX} sessions, and no more may be; end some")]
    TooManySessions,
}

pub(super) fn decide(
    snapshot: &Snapshot,
    command: &CoordinationCommand,
    decision: &mut Decision,
) -> Result<(), CoordinationRefusal> {
    match command {
        CoordinationCommand::Kv(operations) => decide_kv(snapshot, operations, decision),
        CoordinationCommand::CreateSession { session, now_ms } => create(snapshot, session, *now_ms, decision),
        CoordinationCommand::RenewSession { id, now_ms } => {
            if snapshot.session(*id).is_none() {
                return Err(CoordinationRefusal::UnknownSession(*id));
            }
            decision.see(snapshot, RecordKey::Coordination(CoordinationKey::Session(*id)));
            put(snapshot, CoordinationRecord::Renewal(SessionRenewal { session: *id, at_ms: *now_ms }), decision);
            Ok(())
        }
        CoordinationCommand::EndSession(id) => {
            if let Some(session) = snapshot.session(*id) {
                decision.see(snapshot, RecordKey::Coordination(CoordinationKey::Session(*id)));
                end(snapshot, &session.value, decision);
            }
            Ok(())
        }
        CoordinationCommand::Sweep { by, now_ms } => {
            sweep(snapshot, *by, *now_ms, decision);
            Ok(())
        }
    }
}

fn put(snapshot: &Snapshot, record: CoordinationRecord, decision: &mut Decision) {
    decision.put(snapshot, Record::Coordination(record));
}

fn delete(snapshot: &Snapshot, key: CoordinationKey, decision: &mut Decision) {
    decision.delete(snapshot, RecordKey::Coordination(key));
}

fn decide_kv(
    snapshot: &Snapshot,
    operations: &[KvOperation],
    decision: &mut Decision,
) -> Result<(), CoordinationRefusal> {
    let next = Revision(snapshot.revision().0 + 1);
    let run = Run::new(snapshot, operations, next).map_err(CoordinationRefusal::Operations)?;
    let sole_tree = matches!(operations, [KvOperation::DeleteTree(_)]);
    decide_run(snapshot, run, sole_tree, decision);
    if decision.seen.len() > CONDITIONS_MAX && !decision.changes.is_empty() {
        let last = operations.len().saturating_sub(1);
        return Err(CoordinationRefusal::Operations(vec![(last, KvFailure::TooLarge)]));
    }
    // Others may have put more there meanwhile.
    decision.again = sole_tree && !decision.changes.is_empty();
    Ok(())
}

/// Writes what operations have come to. Of a tree that is removed alone no more is seen than one transaction takes.
pub(super) fn decide_run(snapshot: &Snapshot, run: Run<'_>, sole_tree: bool, decision: &mut Decision) {
    for key in run.named {
        let record = RecordKey::Coordination(CoordinationKey::Kv(key.clone()));
        if !sole_tree || decision.seen.len() < CONDITIONS_MAX {
            decision.see(snapshot, record.clone());
        }
        match run.entries.get(&key) {
            Some(entry) => put(snapshot, CoordinationRecord::Kv(entry.value.clone()), decision),
            None => decision.delete(snapshot, record),
        }
    }
    for session in run.sessions {
        decision.see(snapshot, RecordKey::Coordination(CoordinationKey::Session(session)));
    }
}

/// What the operations answer, in order, when they are done at `at` on what `snapshot` has; `None` if they cannot be.
#[must_use]
pub fn kv_answers(snapshot: &Snapshot, operations: &[KvOperation], at: Revision) -> Option<Vec<KvAnswer>> {
    Run::new(snapshot, operations, at).ok().map(|run| run.answers)
}

fn create(
    snapshot: &Snapshot,
    session: &Session,
    now_ms: u64,
    decision: &mut Decision,
) -> Result<(), CoordinationRefusal> {
    let node = &session.node;
    if snapshot.node(node).is_none() {
        return Err(CoordinationRefusal::UnknownNode(node.clone()));
    }
    if snapshot.sessions().len() >= SESSIONS_MAX {
        return Err(CoordinationRefusal::TooManySessions);
    }
    decision.see(snapshot, RecordKey::Node(node.clone()));
    let checks: BTreeSet<_> = session.node_checks.iter().chain(&session.service_checks).collect();
    if checks.len() >= CONDITIONS_MAX {
        return Err(CoordinationRefusal::TooManyChecks);
    }
    for id in checks {
        match snapshot.check(node, id).map(|check| check.value.status) {
            None => return Err(CoordinationRefusal::UnknownCheck(id.clone())),
            Some(CheckStatus::Critical) => return Err(CoordinationRefusal::CriticalCheck(id.clone())),
            Some(CheckStatus::Passing | CheckStatus::Warning) => {}
        }
        decision.see(snapshot, RecordKey::Check(node.clone(), id.clone()));
    }
    put(snapshot, CoordinationRecord::Session(session.clone()), decision);
    if session.ttl_ms.is_some() {
        put(snapshot, CoordinationRecord::Renewal(SessionRenewal { session: session.id, at_ms: now_ms }), decision);
    }
    Ok(())
}

/// Ends a session, and with it what it has locked; where that is more than one transaction takes, a part, and the rest when it is decided
/// again. A key that it locks meanwhile counts as unlocked without it, and is when the next sweep comes.
fn end(snapshot: &Snapshot, session: &Session, decision: &mut Decision) {
    let taken = decision.changes.len().max(decision.seen.len());
    let room = GUARDED_CHANGES_MAX.saturating_sub(taken + 2) / 2;
    let mut locked = snapshot.locked_by(session.id);
    let mut bytes = 0;
    for key in locked.by_ref().take(room) {
        bytes += snapshot.kv(key).map_or(0, |entry| entry.value.value.as_bytes().len() + 4 * key.as_str().len());
        unlock(snapshot, key, session.behavior, decision);
        if session.lock_delay_ms > 0 {
            let delay = LockDelay { key: key.clone(), delay_ms: session.lock_delay_ms, until_ms: None };
            put(snapshot, CoordinationRecord::LockDelay(delay), decision);
        }
        if bytes > UNLOCKED_BYTES_MAX {
            break;
        }
    }
    if room == 0 || locked.next().is_some() {
        decision.again = true;
        return;
    }
    delete(snapshot, CoordinationKey::Session(session.id), decision);
    delete(snapshot, CoordinationKey::Renewal(session.id), decision);
}

fn unlock(snapshot: &Snapshot, key: &KvKey, behavior: SessionBehavior, decision: &mut Decision) {
    let Some(entry) = snapshot.kv(key) else { return };
    decision.see(snapshot, RecordKey::Coordination(CoordinationKey::Kv(key.clone())));
    match behavior {
        SessionBehavior::Release => {
            let entry = KvEntry { session: None, ..entry.value.clone() };
            put(snapshot, CoordinationRecord::Kv(entry), decision);
        }
        SessionBehavior::Delete => delete(snapshot, CoordinationKey::Kv(key.clone()), decision),
    }
}

/// Ends the sessions that hang on what a decision removes or turns critical.
pub(super) fn end_what_hangs_on(snapshot: &Snapshot, decision: &mut Decision) {
    let ended: Vec<_> = decision.changes.iter().flat_map(|change| hanging_on(snapshot, change)).cloned().collect();
    let (mut done, again) = (BTreeSet::new(), decision.again);
    for session in ended {
        if done.insert(session.value.id) {
            end(snapshot, &session.value, decision);
        }
    }
    // The command itself is done with: what is left of a session is the leader's to end.
    decision.again = again;
}

fn hanging_on<'s>(snapshot: &'s Snapshot, change: &Change) -> Vec<&'s Arc<Versioned<Session>>> {
    let of_check = |node: &NodeName, id: &CheckId| {
        let id = id.clone();
        snapshot.sessions_on(node).filter(move |session| session.value.hangs_on(&id)).collect()
    };
    match change {
        Change::Put(Record::Check(check)) if check.status == CheckStatus::Critical => of_check(&check.node, &check.id),
        Change::Delete(RecordKey::Check(node, id)) => of_check(node, id),
        Change::Delete(RecordKey::Node(node)) => snapshot.sessions_on(node).collect(),
        Change::Put(_) | Change::Delete(_) => Vec::new(),
    }
}

/// Whether a session would end if it were looked at now.
fn is_over(snapshot: &Snapshot, session: &Session, now_ms: u64) -> bool {
    let renewed_ms = snapshot.renewal(session.id).map_or(now_ms, |renewal| renewal.at_ms);
    let is_late = session.ttl_ms.is_some_and(|ttl| renewed_ms.saturating_add(ttl * TTL_GRACE) <= now_ms);
    let is_ill = |id: &CheckId| {
        let check = snapshot.check(&session.node, id);
        check.is_none_or(|check| check.value.status == CheckStatus::Critical)
    };
    let mut checks = session.node_checks.iter().chain(&session.service_checks);
    is_late || snapshot.node(&session.node).is_none() || checks.any(is_ill)
}

/// Whoever does not lead sweeps nothing, also if it did when it decided to.
fn sweep(snapshot: &Snapshot, by: Option<ServerId>, now_ms: u64, decision: &mut Decision) {
    if by.is_some_and(|server| !snapshot.is_led_by(server)) {
        return;
    }
    let is_full = |decision: &Decision| decision.changes.len() >= GUARDED_CHANGES_MAX / 2;
    let ended = snapshot.sessions().filter(|session| is_over(snapshot, &session.value, now_ms));
    for session in ended {
        if is_full(decision) {
            break;
        }
        // It may be renewed meanwhile.
        decision.see(snapshot, RecordKey::Coordination(CoordinationKey::Renewal(session.value.id)));
        end(snapshot, &session.value, decision);
    }
    for key in snapshot.locked_by_nobody() {
        if is_full(decision) {
            break;
        }
        unlock(snapshot, key, SessionBehavior::Release, decision);
    }
    // Of what has ended just now another delay begins.
    let changed: BTreeSet<_> = decision.changes.iter().map(Change::key).collect();
    for delay in snapshot.lock_delays() {
        if is_full(decision) {
            break;
        }
        if changed.contains(&RecordKey::Coordination(CoordinationKey::LockDelay(delay.key.clone()))) {
            continue;
        }
        match delay.until_ms {
            Some(until) if until <= now_ms => delete(snapshot, CoordinationKey::LockDelay(delay.key.clone()), decision),
            Some(_) => {}
            None => {
                let until_ms = Some(now_ms.saturating_add(delay.delay_ms));
                put(snapshot, CoordinationRecord::LockDelay(LockDelay { until_ms, ..delay.clone() }), decision);
            }
        }
    }
    decision.again |= is_full(decision);
    if by.is_some() && !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Leader);
    }
}
