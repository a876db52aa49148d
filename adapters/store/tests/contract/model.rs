//! Random histories, checked step by step against a map that a child could follow.

use std::collections::BTreeMap;

use futures::future::join_all;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use starling_store::{
    CommitError, Committed, Condition, Entry, EtcdStore, Expected, Key, Revision, Snapshot, Store, Transaction, Write,
};

use super::etcd_process::Etcd;
use super::{Bed, Directory, base};

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
                Write::Put { key, value, .. } => {
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
            leased: false,
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
            .prop_map(move |value| Write::Put { key: key.clone(), value: value.into(), lease: None }),
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

/// The steps with the revisions in their conditions counted from `base`.
fn since(base: u64, transaction: &Transaction) -> Transaction {
    let shift = |revision: Revision| if revision == Revision::ZERO { revision } else { Revision(base + revision.0) };
    let mut shifted = transaction.clone();
    for condition in &mut shifted.conditions {
        condition.expected = match condition.expected {
            Expected::ModifiedAt(revision) => Expected::ModifiedAt(shift(revision)),
            Expected::NotModifiedSince(revision) => Expected::NotModifiedSince(shift(revision)),
            as_it_is @ (Expected::Absent | Expected::Present) => as_it_is,
        };
    }
    shifted
}

/// Runs the steps; transactions of one step are submitted at once if `in_order`, since a store that is spoken to over a
/// network puts them in an order of its own. Returns the store, the model, and its revision when the store was last opened.
async fn follows_the_model<B: Bed>(bed: &B, steps: Vec<Step>, in_order: bool) -> (B::Store, Model, u64, u64) {
    let mut store = bed.open().await;
    let begun = base(&store).await;
    let mut model = Model { revision: begun, ..Model::default() };
    let mut opened_at = begun;
    for step in steps {
        match step {
            Step::Reopen => {
                drop(store);
                store = bed.open().await;
                opened_at = model.revision;
            }
            Step::Commit(transactions) => {
                let transactions: Vec<_> = transactions.iter().map(|transaction| since(begun, transaction)).collect();
                let mut outcomes = Vec::new();
                if in_order {
                    outcomes = join_all(transactions.iter().map(|t| store.commit(t.clone()))).await;
                } else {
                    for transaction in &transactions {
                        outcomes.push(store.commit(transaction.clone()).await);
                    }
                }
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
    (store, model, begun, opened_at)
}

/// Watches from every revision from `first` on, and finds all that the model remembers.
async fn watches_follow(store: &impl Store, model: &Model, begun: u64, first: u64) {
    for from in first..=model.revision {
        let mut watch = store.watch(Revision(from)).await.unwrap();
        for expected in &model.history[usize::try_from(from - begun).unwrap()..] {
            assert_eq!(&watch.next().await.unwrap(), expected);
        }
    }
}

/// One thread, so that transactions submitted together are queued in the order written.
fn run(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn random_transactions_behave_as_on_a_plain_map(steps in vec(step(), 1..12)) {
        run(async {
            let (store, model, begun, opened_at) = follows_the_model(&Directory::start(), steps, true).await;
            watches_follow(&store, &model, begun, opened_at).await;
            if opened_at > 0 {
                assert!(store.watch(Revision(opened_at - 1)).await.is_err());
            }
        });
    }
}

/// A prefix in an etcd, so that the cases share one.
struct Prefix<'a>(&'a Etcd, usize);

impl Bed for Prefix<'_> {
    type Store = EtcdStore;

    async fn open(&self) -> EtcdStore {
        let prefix = format!("case-{}", self.1).parse().unwrap();
        EtcdStore::open(starling_store::EtcdOptions { prefix, ..self.0.options() }).await.unwrap()
    }
}

#[test]
fn random_transactions_behave_as_on_a_plain_map_on_etcd_too() {
    let etcd = Etcd::start();
    let mut runner = proptest::test_runner::TestRunner::new(cases(24));
    let count = std::cell::Cell::new(0);
    let outcome = runner.run(&vec(step(), 1..12), |steps| {
        count.set(count.get() + 1);
        run(async {
            let bed = Prefix(&etcd, count.get());
            let (store, model, begun, _) = follows_the_model(&bed, steps, false).await;
            // etcd keeps what was before the store was opened, too.
            watches_follow(&store, &model, begun, begun).await;
        });
        Ok(())
    });
    outcome.unwrap();
}
