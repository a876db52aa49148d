//! What callers may rely on, whichever store it is: conditions, revisions, watches, limits.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use starling_store::{
    CommitError, Expected, Key, KeyError, MAX_KEY_BYTES, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS,
    MAX_TRANSACTION_OPERATIONS, Quantity, Revision, Store, Transaction, WatchError, Write,
};

use super::{Bed, base};

pub(crate) fn key(text: &str) -> Key {
    Key::new(text.to_string()).unwrap()
}

pub(crate) fn put(name: &str, value: &'static str) -> Transaction {
    Transaction::new().put(key(name), value)
}

pub(crate) async fn entries_remember_when_they_were_created_and_modified(bed: &impl Bed) {
    let store = bed.open().await;
    let base = base(&store).await;
    assert_eq!(store.commit(put("a", "one")).await.unwrap(), Revision(base + 1));
    assert_eq!(store.commit(put("b", "two")).await.unwrap(), Revision(base + 2));
    assert_eq!(store.commit(put("a", "three")).await.unwrap(), Revision(base + 3));
    let again = Transaction::new().delete(key("b"));
    assert_eq!(store.commit(again).await.unwrap(), Revision(base + 4));
    assert_eq!(store.commit(put("b", "")).await.unwrap(), Revision(base + 5));
    drop(store);

    let store = bed.open().await;
    let snapshot = store.load().await.unwrap();
    assert_eq!(snapshot.revision, Revision(base + 5));
    let since = |revision: Revision| revision.0 - base;
    let found: Vec<_> = snapshot
        .entries
        .iter()
        .map(|e| (e.key.to_string(), e.value.to_vec(), since(e.created), since(e.modified)))
        .collect();
    assert_eq!(found, [("a".to_string(), b"three".to_vec(), 1, 3), ("b".to_string(), b"".to_vec(), 5, 5)]);
}

pub(crate) async fn a_condition_that_fails_leaves_no_trace_and_says_what_it_found(bed: &impl Bed) {
    let store = bed.open().await;
    let base = base(&store).await;
    store.commit(put("a", "one")).await.unwrap();
    store.commit(put("b", "one")).await.unwrap();
    let cases = [
        ("a", Expected::Absent, Some(base + 1)),
        ("a", Expected::Present, None),
        ("a", Expected::ModifiedAt(Revision(base + 1)), None),
        ("a", Expected::ModifiedAt(Revision(base + 2)), Some(base + 1)),
        ("b", Expected::NotModifiedSince(Revision(base + 1)), Some(base + 2)),
        ("b", Expected::NotModifiedSince(Revision(base + 2)), None),
        ("c", Expected::Absent, None),
        ("c", Expected::Present, Some(0)),
        ("c", Expected::ModifiedAt(Revision::ZERO), None),
        ("c", Expected::ModifiedAt(Revision(base + 1)), Some(0)),
        ("c", Expected::NotModifiedSince(Revision::ZERO), None),
    ];
    let mut revision = base + 2;
    for (name, expected, conflict) in cases {
        let outcome = store.commit(put("other", "x").require(key(name), expected)).await;
        match (outcome, conflict) {
            (Ok(found), None) => {
                revision += 1;
                assert_eq!(found, Revision(revision));
            }
            (Err(CommitError::Conflict { key, expected: e, found }), Some(at)) => {
                assert_eq!((key.to_string().as_str(), e, found), (name, expected, Revision(at)));
            }
            (outcome, _) => panic!("{name} {expected}: {outcome:?}"),
        }
    }
    assert_eq!(store.load().await.unwrap().revision, Revision(revision));
}

pub(crate) async fn of_concurrent_creators_exactly_one_wins(bed: &impl Bed) {
    let store = bed.open().await;
    let base = base(&store).await;
    let attempts = (0..64).map(|_| store.commit(put("lock", "mine").require(key("lock"), Expected::Absent)));
    let outcomes = futures::future::join_all(attempts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert_eq!(store.load().await.unwrap().revision, Revision(base + 1));
}

pub(crate) async fn deleting_what_is_absent_is_not_a_change(bed: &impl Bed) {
    let store = bed.open().await;
    let base = base(&store).await;
    store.commit(put("a", "one")).await.unwrap();
    let nothing = Transaction::new().delete(key("b"));
    assert_eq!(store.commit(nothing).await.unwrap(), Revision(base + 1));
    let mixed = Transaction::new().delete(key("b")).delete(key("a")).put(key("c"), "x");
    assert_eq!(store.commit(mixed).await.unwrap(), Revision(base + 2));
    let mut watch = store.watch(Revision(base + 1)).await.unwrap();
    let seen = watch.next().await.unwrap();
    let expected = [Write::Delete { key: key("a") }, Write::Put { key: key("c"), value: "x".into(), lease: None }];
    assert_eq!((seen.revision, &seen.writes[..]), (Revision(base + 2), &expected[..]));
}

pub(crate) async fn transactions_over_a_limit_are_refused(bed: &impl Bed) {
    let store = bed.open().await;
    let base = base(&store).await;
    assert!(matches!(store.commit(Transaction::new()).await, Err(CommitError::Empty)));
    let twice = put("a", "one").delete(key("a"));
    assert!(matches!(store.commit(twice).await, Err(CommitError::DuplicateKey { .. })));

    let many = |count: usize| (0..count).fold(Transaction::new(), |t, n| t.put(key(&format!("k{n}")), "v"));
    let conditional =
        |count: usize| (0..count).fold(put("a", "one"), |t, n| t.require(key(&format!("c{n}")), Expected::Absent));
    let big = |bytes: usize| Transaction::new().put(key("k"), Bytes::from(vec![7; bytes - 1]));
    store.commit(many(MAX_TRANSACTION_OPERATIONS)).await.unwrap();
    store.commit(conditional(MAX_TRANSACTION_CONDITIONS)).await.unwrap();
    store.commit(big(MAX_TRANSACTION_BYTES)).await.unwrap();
    let over = [
        (many(MAX_TRANSACTION_OPERATIONS + 1), Quantity::Writes),
        (conditional(MAX_TRANSACTION_CONDITIONS + 1), Quantity::Conditions),
        (big(MAX_TRANSACTION_BYTES + 1), Quantity::Bytes),
    ];
    for (transaction, expected) in over {
        match store.commit(transaction).await {
            Err(CommitError::TooLarge { quantity, found, limit }) => {
                assert_eq!((quantity, found), (expected, limit + 1));
            }
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(store.load().await.unwrap().revision, Revision(base + 3));

    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert!(Key::new(vec![0; MAX_KEY_BYTES]).is_ok());
    let length = MAX_KEY_BYTES + 1;
    assert_eq!(Key::new(vec![0; length]), Err(KeyError::TooLong { length }));
}

pub(crate) async fn a_watch_yields_everything_after_its_start_and_waits_for_more(bed: &impl Bed) {
    let store = Arc::new(bed.open().await);
    let base = base(&*store).await;
    for revision in 1..=300 {
        assert_eq!(store.commit(put("a", "x")).await.unwrap(), Revision(base + revision));
    }
    let mut watch = store.watch(Revision(base + 20)).await.unwrap();
    for revision in 21..=300 {
        assert_eq!(watch.next().await.unwrap().revision, Revision(base + revision));
    }
    assert!(watch.next().now_or_never().is_none(), "nothing new yet");
    let writing = Arc::clone(&store);
    let commit = tokio::spawn(async move { writing.commit(put("b", "y")).await });
    let seen = watch.next().await.unwrap();
    assert_eq!((seen.revision, commit.await.unwrap().unwrap()), (Revision(base + 301), Revision(base + 301)));

    let ahead = store.watch(Revision(base + 302)).await;
    let Err(WatchError::Ahead { from, latest }) = ahead else { panic!("{ahead:?}") };
    assert_eq!((from.0, latest.0), (base + 302, base + 301));
}
