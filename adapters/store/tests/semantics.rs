//! What callers may rely on: conditions, revisions, watches, limits.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use starling_store::{
    CommitError, EmbeddedOptions, EmbeddedStore, Expected, Key, KeyError, LoadError, MAX_KEY_BYTES,
    MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OPERATIONS, Quantity, Revision, Store, Transaction, WatchError, Write,
};

fn open(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(directory, EmbeddedOptions::default()).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text.to_string()).unwrap()
}

fn put(name: &str, value: &'static str) -> Transaction {
    Transaction::new().put(key(name), value)
}

#[tokio::test]
async fn entries_remember_when_they_were_created_and_modified() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(store.commit(put("a", "one")).await.unwrap(), Revision(1));
    assert_eq!(store.commit(put("b", "two")).await.unwrap(), Revision(2));
    assert_eq!(store.commit(put("a", "three")).await.unwrap(), Revision(3));
    let again = Transaction::new().delete(key("b"));
    assert_eq!(store.commit(again).await.unwrap(), Revision(4));
    assert_eq!(store.commit(put("b", "")).await.unwrap(), Revision(5));
    let id = store.id();
    drop(store);

    let store = open(directory.path());
    let snapshot = store.load().await.unwrap();
    assert_eq!((snapshot.revision, store.revision(), store.id()), (Revision(5), Revision(5), id));
    let found: Vec<_> =
        snapshot.entries.iter().map(|e| (e.key.to_string(), e.value.to_vec(), e.created.0, e.modified.0)).collect();
    assert_eq!(found, [("a".to_string(), b"three".to_vec(), 1, 3), ("b".to_string(), b"".to_vec(), 5, 5)]);
}

#[tokio::test]
async fn a_condition_that_fails_leaves_no_trace_and_says_what_it_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.commit(put("a", "one")).await.unwrap();
    store.commit(put("b", "one")).await.unwrap();
    let cases = [
        ("a", Expected::Absent, Some(1)),
        ("a", Expected::Present, None),
        ("a", Expected::ModifiedAt(Revision(1)), None),
        ("a", Expected::ModifiedAt(Revision(2)), Some(1)),
        ("b", Expected::NotModifiedSince(Revision(1)), Some(2)),
        ("b", Expected::NotModifiedSince(Revision(2)), None),
        ("c", Expected::Absent, None),
        ("c", Expected::Present, Some(0)),
        ("c", Expected::ModifiedAt(Revision::ZERO), None),
        ("c", Expected::ModifiedAt(Revision(1)), Some(0)),
        ("c", Expected::NotModifiedSince(Revision::ZERO), None),
    ];
    let mut revision = 2;
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
    assert_eq!(store.revision(), Revision(revision));
}

#[tokio::test]
async fn of_concurrent_creators_exactly_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let attempts = (0..64).map(|_| store.commit(put("lock", "mine").require(key("lock"), Expected::Absent)));
    let outcomes = futures::future::join_all(attempts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert_eq!(store.revision(), Revision(1));
}

#[tokio::test]
async fn deleting_what_is_absent_is_not_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.commit(put("a", "one")).await.unwrap();
    let nothing = Transaction::new().delete(key("b"));
    assert_eq!(store.commit(nothing).await.unwrap(), Revision(1));
    let mixed = Transaction::new().delete(key("b")).delete(key("a")).put(key("c"), "x");
    assert_eq!(store.commit(mixed).await.unwrap(), Revision(2));
    let mut watch = store.watch(Revision(1)).await.unwrap();
    let seen = watch.next().await.unwrap();
    let expected = [Write::Delete { key: key("a") }, Write::Put { key: key("c"), value: "x".into() }];
    assert_eq!((seen.revision, &seen.writes[..]), (Revision(2), &expected[..]));
}

#[tokio::test]
async fn transactions_over_a_limit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert!(matches!(store.commit(Transaction::new()).await, Err(CommitError::Empty)));
    let twice = put("a", "one").delete(key("a"));
    assert!(matches!(store.commit(twice).await, Err(CommitError::DuplicateKey { .. })));

    let many = |count: usize| (0..count).fold(Transaction::new(), |t, n| t.put(key(&format!("k{n}")), "v"));
    let conditional =
        |count: usize| (0..count).fold(put("a", "one"), |t, n| t.require(key(&format!("c{n}")), Expected::Absent));
    let big = |bytes: usize| Transaction::new().put(key("k"), Bytes::from(vec![7; bytes - 1]));
    store.commit(many(MAX_TRANSACTION_OPERATIONS)).await.unwrap();
    store.commit(conditional(MAX_TRANSACTION_OPERATIONS)).await.unwrap();
    store.commit(big(MAX_TRANSACTION_BYTES)).await.unwrap();
    let over = [
        (many(MAX_TRANSACTION_OPERATIONS + 1), Quantity::Writes),
        (conditional(MAX_TRANSACTION_OPERATIONS + 1), Quantity::Conditions),
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
    assert_eq!(store.revision(), Revision(3));

    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert!(Key::new(vec![0; MAX_KEY_BYTES]).is_ok());
    let length = MAX_KEY_BYTES + 1;
    assert_eq!(Key::new(vec![0; length]), Err(KeyError::TooLong { length }));
}

#[tokio::test]
async fn a_watch_yields_everything_after_its_start_and_waits_for_more() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(directory.path()));
    for _ in 0..1000 {
        if store.commit(put("a", "x")).await.unwrap() == Revision(300) {
            break;
        }
    }
    let mut watch = store.watch(Revision(20)).await.unwrap();
    for revision in 21..=300 {
        assert_eq!(watch.next().await.unwrap().revision, Revision(revision));
    }
    assert!(watch.next().now_or_never().is_none(), "nothing new yet");
    let writing = Arc::clone(&store);
    let commit = tokio::spawn(async move { writing.commit(put("b", "y")).await });
    let seen = watch.next().await.unwrap();
    assert_eq!((seen.revision, commit.await.unwrap().unwrap()), (Revision(301), Revision(301)));

    let ahead = store.watch(Revision(302)).await;
    assert!(matches!(ahead, Err(WatchError::Ahead { from: Revision(302), latest: Revision(301) })), "{ahead:?}");
}

#[tokio::test]
async fn a_watcher_that_falls_behind_is_told_and_delays_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { window_transactions: 10, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), options).unwrap();
    let mut slow = store.watch(Revision::ZERO).await.unwrap();
    for _ in 0..50 {
        store.commit(put("a", "x")).await.unwrap();
    }
    let told = slow.next().await;
    assert!(matches!(told, Err(WatchError::Compacted { from: Revision(0), oldest: Revision(40) })), "{told:?}");
    assert!(StreamExt::next(&mut slow).await.is_none(), "an ended watch stays ended");
    let late = store.watch(Revision(39)).await;
    assert!(matches!(late, Err(WatchError::Compacted { oldest: Revision(40), .. })));
    let mut exact = store.watch(Revision(40)).await.unwrap();
    assert_eq!(exact.next().await.unwrap().revision, Revision(41));
}

#[tokio::test]
async fn the_window_is_bounded_by_bytes_too() {
    let directory = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { window_bytes: 64 * 1024, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), options).unwrap();
    for _ in 0..20 {
        let transaction = Transaction::new().put(key("a"), Bytes::from(vec![1; 10_000]));
        store.commit(transaction).await.unwrap();
    }
    let Err(WatchError::Compacted { oldest, .. }) = store.watch(Revision::ZERO).await else {
        panic!("20 × 10 kB do not fit in 64 KiB");
    };
    assert_eq!(oldest, Revision(14));
}

#[tokio::test]
async fn the_window_is_bounded_by_time_too_but_for_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { window_age: Duration::ZERO, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), options).unwrap();
    for _ in 0..3 {
        store.commit(put("a", "x")).await.unwrap();
    }
    let late = store.watch(Revision(1)).await;
    assert!(matches!(late, Err(WatchError::Compacted { oldest: Revision(2), .. })), "{late:?}");
    let mut exact = store.watch(Revision(2)).await.unwrap();
    assert_eq!(exact.next().await.unwrap().revision, Revision(3));
}

#[tokio::test]
async fn after_a_restart_older_revisions_are_compacted_not_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.commit(put("a", "x")).await.unwrap();
    store.commit(put("a", "y")).await.unwrap();
    drop(store);
    let store = open(directory.path());
    let late = store.watch(Revision(1)).await;
    assert!(matches!(late, Err(WatchError::Compacted { from: Revision(1), oldest: Revision(2) })));
    let mut watch = store.watch(Revision(2)).await.unwrap();
    store.commit(put("a", "z")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, Revision(3));
}

#[tokio::test]
async fn closing_writes_what_is_queued_ends_watches_and_frees_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(directory.path()));
    let mut watch = store.watch(Revision::ZERO).await.unwrap();
    let commits: Vec<_> = (0..50)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.commit(put(&format!("k{n}"), "x")).await })
        })
        .collect();
    store.close().await;
    let mut acknowledged = 0;
    for commit in commits {
        match commit.await.unwrap() {
            Ok(_) => acknowledged += 1,
            Err(error) => assert!(matches!(error, CommitError::Closed), "{error:?}"),
        }
    }
    for revision in 1..=acknowledged {
        assert_eq!(watch.next().await.unwrap().revision, Revision(revision));
    }
    assert!(matches!(watch.next().await, Err(WatchError::Closed)));
    assert!(matches!(store.commit(put("a", "x")).await, Err(CommitError::Closed)));
    assert!(matches!(store.load().await, Err(LoadError::Closed)));
    store.close().await;

    let reopened = open(directory.path());
    assert_eq!(reopened.load().await.unwrap().entries.len() as u64, acknowledged);
}

#[tokio::test]
async fn the_directory_is_private() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("deep").join("data");
    let store = open(&directory);
    store.commit(put("a", "x")).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let mut files = 0;
    for file in directory.read_dir().unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
        files += 1;
    }
    assert_eq!(files, 3);
}
