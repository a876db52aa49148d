//! Random histories, checked step by step against a map that a child could follow.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

use std::collections::BTreeMap;

use futures::future::join_all;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use starling_store::{
    CommitError, Committed, Condition, EmbeddedOptions, EmbeddedStore, Entry, Expected, Key, Revision, Snapshot, Store,
    Transaction, Write,
};

#[derive(Default)]
struct Model {
    revision: u64,
    /// Key to value, creation, last modification.
    entries: BTreeMap<Key, (Vec<u8>, u64, u64)>,
    history: Vec<Committed>,
}

impl Model {
    /// The revision, or the key of the condition that failed.
    fn commit(&mut self, transaction: &Transaction) -> Result<u64, Key> {
        for Condition { key, expected } in &transaction.conditions {
            let modified = self.entries.get(key).map(|(_, _, modified)| *modified);
            let holds = match expected {
                Expected::Absent => modified.is_none(),
                Expected::Present => modified.is_some(),
                Expected::ModifiedAt(at) => modified.unwrap_or(0) == at.0,
                Expected::NotModifiedSince(at) => modified.is_none_or(|m| m <= at.0),
            };
            if !holds {
                return Err(key.clone());
            }
        }
        let next = self.revision + 1;
        let mut effective = Vec::new();
        for write in &transaction.writes {
            match write {
                Write::Put { key, value } => {
                    let created = self.entries.get(key).map_or(next, |(_, created, _)| *created);
                    self.entries.insert(key.clone(), (value.to_vec(), created, next));
                    effective.push(write.clone());
                }
                Write::Delete { key } => {
                    if self.entries.remove(key).is_some() {
                        effective.push(write.clone());
                    }
                }
            }
        }
        if !effective.is_empty() {
            self.revision = next;
            let writes = effective.into();
            self.history.push(Committed { revision: Revision(next), writes });
        }
        Ok(self.revision)
    }

    fn snapshot(&self) -> Snapshot {
        let entries = self.entries.iter().map(|(key, (value, created, modified))| Entry {
            key: key.clone(),
            value: value.clone().into(),
            created: Revision(*created),
            modified: Revision(*modified),
        });
        Snapshot { revision: Revision(self.revision), entries: entries.collect() }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Submitted at once, so that several share a group.
    Commit(Vec<Transaction>),
    Reopen,
}

fn key() -> impl Strategy<Value = Key> {
    (0..12_u8).prop_map(|n| Key::new(vec![b'a' + n % 4; 1 + usize::from(n / 4)]).unwrap())
}

fn write(key: Key) -> impl Strategy<Value = Write> {
    let deleted = key.clone();
    prop_oneof![
        3 => vec(any::<u8>(), 0..40)
            .prop_map(move |value| Write::Put { key: key.clone(), value: value.into() }),
        1 => Just(Write::Delete { key: deleted }),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let expected = prop_oneof![
        Just(Expected::Absent),
        Just(Expected::Present),
        (0..30_u64).prop_map(|r| Expected::ModifiedAt(Revision(r))),
        (0..30_u64).prop_map(|r| Expected::NotModifiedSince(Revision(r))),
    ];
    (key(), expected).prop_map(|(key, expected)| Condition { key, expected })
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let writes =
        btree_set(key(), 1..5).prop_flat_map(|keys| keys.into_iter().map(write).collect::<Vec<_>>()).prop_shuffle();
    (vec(condition(), 0..2), writes).prop_map(|(conditions, writes)| Transaction { conditions, writes })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(transaction(), 1..8).prop_map(Step::Commit),
        1 => Just(Step::Reopen),
    ]
}

async fn follows_the_model(steps: Vec<Step>) {
    let directory = tempfile::tempdir().unwrap();
    let open = || EmbeddedStore::open(directory.path(), EmbeddedOptions::default()).unwrap();
    let mut store = open();
    let mut model = Model::default();
    let mut opened_at = 0;
    for step in steps {
        match step {
            Step::Reopen => {
                drop(store);
                store = open();
                opened_at = model.revision;
            }
            Step::Commit(transactions) => {
                let outcomes = join_all(transactions.iter().map(|t| store.commit(t.clone()))).await;
                for (transaction, outcome) in transactions.iter().zip(outcomes) {
                    match (outcome, model.commit(transaction)) {
                        (Ok(found), Ok(expected)) => assert_eq!(found, Revision(expected)),
                        (Err(CommitError::Conflict { key, .. }), Err(expected)) => {
                            assert_eq!(key, expected);
                        }
                        (found, expected) => panic!("{found:?} where {expected:?} was due"),
                    }
                }
            }
        }
        assert_eq!(store.load().await.unwrap(), model.snapshot());
    }
    for from in opened_at..=model.revision {
        let mut watch = store.watch(Revision(from)).await.unwrap();
        for expected in &model.history[usize::try_from(from).unwrap()..] {
            assert_eq!(&watch.next().await.unwrap(), expected);
        }
    }
    if opened_at > 0 {
        assert!(store.watch(Revision(opened_at - 1)).await.is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_transactions_behave_as_on_a_plain_map(steps in vec(step(), 1..12)) {
        // One thread, so that transactions submitted together are queued in the order written.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(follows_the_model(steps));
    }
}
