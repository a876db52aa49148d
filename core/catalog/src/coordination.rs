//! What applications coordinate themselves by: the key-value store, sessions, and the locks that these hold.
//!
//! Cost model: a persistent B-tree by key, so that a folder is a range; a session's locks and a node's sessions are short sets. A write
//! touches its key, and a subject for each folder that it is in.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use starling_model::{
    CoordinationKey, CoordinationRecord, KvEntry, KvKey, LockDelay, NodeName, Record, Revision, Session,
    SessionRenewal, Uuid, Versioned,
};

use crate::snapshot::Snapshot;
use crate::subject::Subject;

pub(crate) type Entries = OrdMap<KvKey, Arc<Versioned<KvEntry>>>;

/// All of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coordination {
    pub(crate) entries: Entries,
    sessions: OrdMap<Uuid, Arc<Versioned<Session>>>,
    renewals: OrdMap<Uuid, Arc<Versioned<SessionRenewal>>>,
    lock_delays: OrdMap<KvKey, Arc<Versioned<LockDelay>>>,
    /// The sessions of each node.
    by_node: OrdMap<NodeName, OrdSet<Uuid>>,
    /// The keys that each session has locked.
    locked: OrdMap<Uuid, OrdSet<KvKey>>,
}

impl Coordination {
    pub(crate) fn insert(&mut self, record: CoordinationRecord, created: Revision, modified: Revision) {
        match record {
            CoordinationRecord::Kv(value) => {
                self.unlock(&value.key);
                if let Some(session) = value.session {
                    self.locked.entry(session).or_default().insert(value.key.clone());
                }
                self.entries.insert(value.key.clone(), Arc::new(Versioned { value, created, modified }));
            }
            CoordinationRecord::Session(value) => {
                self.leave_node(value.id);
                self.by_node.entry(value.node.clone()).or_default().insert(value.id);
                self.sessions.insert(value.id, Arc::new(Versioned { value, created, modified }));
            }
            CoordinationRecord::Renewal(value) => {
                self.renewals.insert(value.session, Arc::new(Versioned { value, created, modified }));
            }
            CoordinationRecord::LockDelay(value) => {
                self.lock_delays.insert(value.key.clone(), Arc::new(Versioned { value, created, modified }));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &CoordinationKey) {
        match key {
            CoordinationKey::Kv(key) => {
                self.unlock(key);
                self.entries.remove(key);
            }
            CoordinationKey::Session(id) => {
                self.leave_node(*id);
                self.sessions.remove(id);
            }
            CoordinationKey::Renewal(id) => {
                self.renewals.remove(id);
            }
            CoordinationKey::LockDelay(key) => {
                self.lock_delays.remove(key);
            }
        }
    }

    /// Takes an entry, as it stands now, out of what its session has locked.
    fn unlock(&mut self, key: &KvKey) {
        let Some(session) = self.entries.get(key).and_then(|entry| entry.value.session) else { return };
        drop_from(&mut self.locked, &session, key);
    }

    fn leave_node(&mut self, id: Uuid) {
        let Some(node) = self.sessions.get(&id).map(|session| session.value.node.clone()) else { return };
        drop_from(&mut self.by_node, &node, &id);
    }

    /// When a record was made and last changed.
    pub(crate) fn revisions(&self, key: &CoordinationKey) -> Option<(Revision, Revision)> {
        fn of<T>(record: &Arc<Versioned<T>>) -> (Revision, Revision) {
            (record.created, record.modified)
        }
        match key {
            CoordinationKey::Kv(key) => self.entries.get(key).map(of),
            CoordinationKey::Session(id) => self.sessions.get(id).map(of),
            CoordinationKey::Renewal(id) => self.renewals.get(id).map(of),
            CoordinationKey::LockDelay(key) => self.lock_delays.get(key).map(of),
        }
    }

    pub(crate) fn holds(&self, record: &CoordinationRecord) -> bool {
        match record {
            CoordinationRecord::Kv(value) => self.entries.get(&value.key).is_some_and(|r| r.value == *value),
            CoordinationRecord::Session(value) => self.sessions.get(&value.id).is_some_and(|r| r.value == *value),
            CoordinationRecord::Renewal(value) => self.renewals.get(&value.session).is_some_and(|r| r.value == *value),
            CoordinationRecord::LockDelay(value) => self.lock_delays.get(&value.key).is_some_and(|r| r.value == *value),
        }
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Versioned<Record>> {
        fn wrap<T: Clone>(record: &Arc<Versioned<T>>, kind: fn(T) -> CoordinationRecord) -> Versioned<Record> {
            let value = Record::Coordination(kind(record.value.clone()));
            Versioned { value, created: record.created, modified: record.modified }
        }
        let entries = self.entries.values().map(|r| wrap(r, CoordinationRecord::Kv));
        let sessions = self.sessions.values().map(|r| wrap(r, CoordinationRecord::Session));
        let renewals = self.renewals.values().map(|r| wrap(r, CoordinationRecord::Renewal));
        let delays = self.lock_delays.values().map(|r| wrap(r, CoordinationRecord::LockDelay));
        entries.chain(sessions).chain(renewals).chain(delays)
    }

    /// The subjects that a record under `key`, as it stands now, belongs to.
    pub(crate) fn touch(&self, key: &CoordinationKey, subjects: &mut BTreeSet<Subject>) {
        match key {
            CoordinationKey::Kv(key) => {
                subjects.extend(key.folders().map(|folder| Subject::KvFolder(folder.to_owned())));
                subjects.insert(Subject::Kv(key.clone()));
            }
            CoordinationKey::Session(id) => {
                subjects.insert(Subject::Session(*id));
                subjects.insert(Subject::SessionList);
                let session = self.sessions.get(id);
                subjects.extend(session.map(|session| Subject::NodeSessions(session.value.node.clone())));
            }
            // Nobody waits for these: a lock is tried again when its delay is over, by whoever wants it.
            CoordinationKey::Renewal(_) | CoordinationKey::LockDelay(_) => {}
        }
    }
}

fn drop_from<K: Ord + Clone, V: Ord + Clone>(sets: &mut OrdMap<K, OrdSet<V>>, of: &K, value: &V) {
    let Some(set) = sets.get_mut(of) else { return };
    set.remove(value);
    if set.is_empty() {
        sets.remove(of);
    }
}

/// The entries whose keys begin with `prefix`, in order.
pub(crate) fn under<'e>(entries: &'e Entries, prefix: &str) -> impl Iterator<Item = &'e Arc<Versioned<KvEntry>>> {
    let prefix = prefix.to_owned();
    let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    let range = entries.range::<_, str>(from);
    range.map(|(_, entry)| entry).take_while(move |entry| entry.value.key.as_str().starts_with(&prefix))
}

impl Snapshot {
    /// An entry of the key-value store.
    #[must_use]
    pub fn kv(&self, key: &KvKey) -> Option<&Arc<Versioned<KvEntry>>> {
        self.coordination.entries.get(key)
    }

    /// The entries whose keys begin with `prefix`, in order.
    pub fn kv_under(&self, prefix: &str) -> impl Iterator<Item = &Arc<Versioned<KvEntry>>> {
        under(&self.coordination.entries, prefix)
    }

    /// A session.
    #[must_use]
    pub fn session(&self, id: Uuid) -> Option<&Arc<Versioned<Session>>> {
        self.coordination.sessions.get(&id)
    }

    /// Every session, by identifier.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = &Arc<Versioned<Session>>> {
        self.coordination.sessions.values()
    }

    /// The sessions of a node, by identifier.
    pub fn sessions_on(&self, node: &NodeName) -> impl Iterator<Item = &Arc<Versioned<Session>>> {
        let ids = self.coordination.by_node.get(node);
        ids.into_iter().flatten().filter_map(|id| self.coordination.sessions.get(id))
    }

    /// The keys that a session has locked, in order.
    pub fn locked_by(&self, session: Uuid) -> impl Iterator<Item = &KvKey> {
        self.coordination.locked.get(&session).into_iter().flatten()
    }

    /// The keys that were locked by sessions that are gone.
    pub(crate) fn locked_by_nobody(&self) -> impl Iterator<Item = &KvKey> {
        let locked = self.coordination.locked.iter().filter(|(session, _)| self.session(**session).is_none());
        locked.flat_map(|(_, keys)| keys)
    }

    /// When a session was last renewed.
    #[must_use]
    pub fn renewal(&self, session: Uuid) -> Option<&SessionRenewal> {
        self.coordination.renewals.get(&session).map(|renewal| &renewal.value)
    }

    /// Whether nobody may lock a key for a while.
    #[must_use]
    pub fn lock_delay(&self, key: &KvKey) -> Option<&LockDelay> {
        self.coordination.lock_delays.get(key).map(|delay| &delay.value)
    }

    /// Every key that nobody may lock for a while.
    pub fn lock_delays(&self) -> impl Iterator<Item = &LockDelay> {
        self.coordination.lock_delays.values().map(|delay| &delay.value)
    }
}
