//! Operations on entries, carried out one after the other on a copy of what is there.

use std::collections::BTreeSet;
use std::sync::Arc;

use starling_model::{KvEntry, KvKey, KvValue, LockDelay, Revision, Uuid, Versioned};

use super::{ANSWERED_BYTES_MAX, KvAnswer, KvFailure, KvOperation, KvWrite, TXN_OPERATIONS_MAX};
use crate::coordination::{Entries, under};
use crate::snapshot::Snapshot;

/// Operations that are carried out.
pub(in crate::command) struct Run<'s> {
    snapshot: &'s Snapshot,
    at: Revision,
    pub(in crate::command) entries: Entries,
    /// Keys on which it depends or which are written.
    pub(in crate::command) named: BTreeSet<KvKey>,
    pub(in crate::command) sessions: BTreeSet<Uuid>,
    pub(in crate::command) answers: Vec<KvAnswer>,
    answered_bytes: usize,
}

impl<'s> Run<'s> {
    pub(super) fn new(
        snapshot: &'s Snapshot,
        operations: &[KvOperation],
        at: Revision,
    ) -> Result<Self, Vec<(usize, KvFailure)>> {
        let mut run = Self::begin(snapshot, at);
        let is_sole = operations.len() == 1;
        let done = operations.iter().map(|operation| run.one(operation, is_sole)).enumerate();
        let failed: Vec<_> = done.filter_map(|(place, done)| Some((place, done.err()?))).collect();
        if failed.is_empty() { Ok(run) } else { Err(failed) }
    }

    /// None yet.
    pub(in crate::command) fn begin(snapshot: &'s Snapshot, at: Revision) -> Self {
        let entries = snapshot.coordination.entries.clone();
        let (named, sessions, answers) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        Self { snapshot, at, entries, named, sessions, answers, answered_bytes: 0 }
    }

    /// Carries out one more, which may be the only one.
    pub(in crate::command) fn one(&mut self, operation: &KvOperation, is_sole: bool) -> Result<(), KvFailure> {
        match operation {
            KvOperation::Set(write) => {
                let (lock_index, session) = self.lock_of(&write.key);
                self.write(write, lock_index, session);
            }
            KvOperation::Cas(write, expected) => {
                self.check_index("set", &write.key, *expected)?;
                let (lock_index, session) = self.lock_of(&write.key);
                self.write(write, lock_index, session);
            }
            KvOperation::Lock { write, session, now_ms } => {
                self.lock(write, session.ok_or(KvFailure::MissingSession)?, *now_ms)?;
            }
            KvOperation::Unlock(write, session) => {
                let session = session.ok_or(KvFailure::MissingSession)?;
                self.sessions.insert(session);
                let (lock_index, held_by) = self.lock_of(&write.key);
                if held_by != Some(session) {
                    return Err(KvFailure::NotHeld(write.key.clone()));
                }
                self.write(write, lock_index, None);
            }
            KvOperation::Delete(key) => self.remove(key.clone()),
            KvOperation::DeleteCas(key, expected) => {
                if self.entries.contains_key(key) {
                    self.check_index("delete", key, *expected)?;
                }
                self.remove(key.clone());
            }
            KvOperation::DeleteTree(prefix) => self.remove_under(prefix, is_sole)?,
            KvOperation::Get(key) => {
                let entry = self.existing(key)?;
                self.answer(entry, true);
            }
            KvOperation::GetOrEmpty(key) => {
                self.named.insert(key.clone());
                let entry = self.entries.get(key).cloned().unwrap_or_else(|| Arc::new(absent(key.clone())));
                self.answer(entry, true);
            }
            KvOperation::GetTree(prefix) => self.read_under(prefix)?,
            KvOperation::CheckIndex(key, expected) => {
                let entry = self.existing(key)?;
                if entry.modified != *expected {
                    return Err(KvFailure::Stale { verb: "check", key: key.clone() });
                }
                self.answer(entry, false);
            }
            KvOperation::CheckSession(key, session) => {
                let entry = self.existing(key)?;
                if entry.value.session != Some(session.ok_or(KvFailure::MissingSession)?) {
                    return Err(KvFailure::SessionDiffers(key.clone()));
                }
                self.answer(entry, false);
            }
            KvOperation::CheckNotExists(key) => {
                self.named.insert(key.clone());
                if self.entries.contains_key(key) {
                    return Err(KvFailure::Exists(key.clone()));
                }
            }
        }
        Ok(())
    }

    fn lock(&mut self, write: &KvWrite, session: Uuid, now_ms: u64) -> Result<(), KvFailure> {
        let key = &write.key;
        let (lock_index, held_by) = self.lock_of(key);
        self.sessions.insert(session);
        if self.snapshot.session(session).is_none() {
            return Err(KvFailure::NoSession(session));
        }
        // A delay comes with a change of the entry, on which this depends.
        let is_over = |delay: &LockDelay| delay.until_ms.is_some_and(|until| until <= now_ms);
        let is_delayed = self.snapshot.lock_delay(key).is_some_and(|delay| !is_over(delay));
        // One whose session is gone has yet to be unlocked.
        match held_by.filter(|holder| self.snapshot.session(*holder).is_some()) {
            Some(holder) if holder == session => self.write(write, lock_index, held_by),
            Some(_) => return Err(KvFailure::Locked(key.clone())),
            None if is_delayed => return Err(KvFailure::Locked(key.clone())),
            None => self.write(write, lock_index + 1, Some(session)),
        }
        Ok(())
    }

    /// How often an entry was locked, and by whom it is.
    fn lock_of(&mut self, key: &KvKey) -> (u64, Option<Uuid>) {
        self.named.insert(key.clone());
        self.entries.get(key).map_or((0, None), |entry| (entry.value.lock_index, entry.value.session))
    }

    fn existing(&mut self, key: &KvKey) -> Result<Arc<Versioned<KvEntry>>, KvFailure> {
        self.named.insert(key.clone());
        self.entries.get(key).cloned().ok_or_else(|| KvFailure::Missing(key.clone()))
    }

    fn check_index(&mut self, verb: &'static str, key: &KvKey, expected: Revision) -> Result<(), KvFailure> {
        self.named.insert(key.clone());
        let actual = self.entries.get(key).map_or(Revision(0), |entry| entry.modified);
        if actual == expected { Ok(()) } else { Err(KvFailure::Stale { verb, key: key.clone() }) }
    }

    fn write(&mut self, write: &KvWrite, lock_index: u64, session: Option<Uuid>) {
        let KvWrite { key, value, flags } = write.clone();
        let value = KvEntry { key: key.clone(), value, flags, lock_index, session };
        let entry = match self.entries.get(&key) {
            // What is as it was keeps its index.
            Some(before) if before.value == value => Arc::clone(before),
            before => {
                let created = before.map_or(self.at, |before| before.created);
                Arc::new(Versioned { value, created, modified: self.at })
            }
        };
        self.entries.insert(key, Arc::clone(&entry));
        self.answer(entry, false);
    }

    fn remove(&mut self, key: KvKey) {
        self.entries.remove(&key);
        self.named.insert(key);
    }

    fn read_under(&mut self, prefix: &str) -> Result<(), KvFailure> {
        let entries: Vec<_> = under(&self.entries, prefix).cloned().collect();
        for entry in entries {
            self.named.insert(entry.value.key.clone());
            self.answer(entry, true);
            if self.answered_bytes > ANSWERED_BYTES_MAX {
                return Err(KvFailure::TooLarge);
            }
        }
        Ok(())
    }

    fn remove_under(&mut self, prefix: &str, is_sole: bool) -> Result<(), KvFailure> {
        let keys: Vec<_> = under(&self.entries, prefix).map(|entry| entry.value.key.clone()).collect();
        if !is_sole && keys.len() + self.named.len() > TXN_OPERATIONS_MAX {
            return Err(KvFailure::TooMany { prefix: prefix.to_owned(), entries: keys.len() });
        }
        keys.into_iter().for_each(|key| self.remove(key));
        Ok(())
    }

    fn answer(&mut self, entry: Arc<Versioned<KvEntry>>, with_value: bool) {
        self.answered_bytes += entry.value.key.as_str().len();
        self.answered_bytes += if with_value { entry.value.value.as_bytes().len() } else { 0 };
        self.answers.push(KvAnswer { entry, with_value });
    }
}

/// How an entry is answered that is not there.
fn absent(key: KvKey) -> Versioned<KvEntry> {
    let value = KvEntry { key, value: KvValue::default(), flags: 0, lock_index: 0, session: None };
    Versioned { value, created: Revision(0), modified: Revision(0) }
}
