//! What is particular to the embedded store: its window of recent transactions, its directory, its end.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use starling_store::{
    CommitError, EmbeddedOptions, EmbeddedStore, Key, LoadError, Revision, Store, Transaction, WatchError,
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
