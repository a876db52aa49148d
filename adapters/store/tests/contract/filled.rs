//! Stores that take the place of others: they keep the contract, begin beyond what the others had, and are opened by nobody
//! before they are whole.

use starling_store::{
    CommitError, EmbeddedOptions, EmbeddedStore, Entry, EtcdOpenError, EtcdStore, Expected, LoadError, OpenError,
    Revision, Store, Transaction, WatchError, fill,
};

use super::cases::{key, put};
use super::etcd_process::Etcd;
use super::{Bed, Directory};

/// A revision that no test comes to by itself.
const BEYOND: Revision = Revision(1_000_000_000_000);

/// A directory whose store began at [`BEYOND`].
pub(crate) struct DirectoryBeyond(Directory);

impl DirectoryBeyond {
    pub(crate) fn start() -> Self {
        let directory = Directory::start();
        EmbeddedStore::make(directory.0.path(), BEYOND, EmbeddedOptions::default()).unwrap();
        Self(directory)
    }
}

impl Bed for DirectoryBeyond {
    type Store = EmbeddedStore;

    async fn open(&self) -> EmbeddedStore {
        self.0.open().await
    }
}

/// An etcd whose store began at [`BEYOND`].
pub(crate) struct EtcdBeyond(Etcd);

impl EtcdBeyond {
    pub(crate) async fn start() -> Self {
        let etcd = Etcd::start();
        let filling = EtcdStore::examine(etcd.options()).await.unwrap().begin(BEYOND).await.unwrap();
        filling.finish().await.unwrap();
        Self(etcd)
    }
}

impl Bed for EtcdBeyond {
    type Store = EtcdStore;

    async fn open(&self) -> EtcdStore {
        self.0.open().await
    }
}

fn entry(name: &str, created: u64, modified: u64) -> Entry {
    let (created, modified) = (Revision(created), Revision(modified));
    Entry { key: key(name), value: format!("value of {name}").into(), created, modified, leased: false }
}

/// What a store holds, with the order of its revisions in place of these.
async fn content(store: &dyn Store) -> Vec<(String, Vec<u8>)> {
    let entries = store.load().await.unwrap().entries;
    entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_vec())).collect()
}

async fn is_filled_in_order(store: &dyn Store) {
    let mut entries: Vec<_> = (0..300).map(|n| entry(&format!("k{n:03}"), 400 - n, 400 + (n * 7) % 300)).collect();
    entries.push(entry("z", 1, 1));
    let last = fill(store, &entries, &|_, _| {}).await.unwrap();
    let filled = store.load().await.unwrap();
    assert!(filled.revision == last && filled.entries.iter().all(|entry| entry.created > BEYOND));
    assert_eq!(content(store).await.len(), entries.len());
    for (old, new) in entries.iter().zip(&filled.entries) {
        assert_eq!((&old.key, &old.value), (&new.key, &new.value));
        for (other_old, other_new) in entries.iter().zip(&filled.entries) {
            assert!(old.created >= other_old.created || new.created <= other_new.created, "{old:?} {other_old:?}");
            assert!(old.modified >= other_old.modified || new.modified <= other_new.modified, "{old:?} {other_old:?}");
        }
    }
}

#[tokio::test]
async fn what_was_written_later_still_is() {
    is_filled_in_order(&DirectoryBeyond::start().open().await).await;
    is_filled_in_order(&EtcdBeyond::start().await.open().await).await;
}

#[tokio::test]
async fn numbers_of_the_store_before_are_of_no_key() {
    async fn case(bed: &impl Bed) {
        let store = bed.open().await;
        let old = Revision(77);
        let absent = Transaction::new().put(key("new"), "x").require(key("a"), Expected::ModifiedAt(old));
        let refused = store.commit(absent).await;
        assert!(matches!(refused, Err(CommitError::Conflict { found: Revision::ZERO, .. })), "{refused:?}");
        let first = store.commit(put("a", "x")).await.unwrap();
        assert!(first > BEYOND && first < Revision(BEYOND.0 + 100), "{first}");
        let since = Transaction::new().put(key("a"), "y").require(key("a"), Expected::NotModifiedSince(BEYOND));
        let refused = store.commit(since).await;
        assert!(matches!(refused, Err(CommitError::Conflict { found, .. }) if found == first), "{refused:?}");
    }
    case(&DirectoryBeyond::start()).await;
    case(&EtcdBeyond::start().await).await;
}

/// A watcher of the store before is not left waiting for what will never come.
#[tokio::test]
async fn a_watch_from_before_begins_or_is_told() {
    let bed = EtcdBeyond::start().await;
    let store = bed.open().await;
    let mut watch = store.watch(Revision(77)).await.unwrap();
    let first = store.commit(put("a", "x")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, first);
    let beyond = DirectoryBeyond::start().open().await;
    assert!(matches!(beyond.watch(Revision(77)).await, Err(WatchError::Compacted { .. })));
}

#[tokio::test]
async fn nobody_opens_what_is_not_whole() {
    let etcd = Etcd::start();
    let filling = EtcdStore::examine(etcd.options()).await.unwrap().begin(BEYOND).await.unwrap();
    filling.store().commit(put("a", "x")).await.unwrap();
    let refused = EtcdStore::open(etcd.options()).await.unwrap_err();
    assert!(matches!(refused, EtcdOpenError::Unfinished { .. }), "{refused}");
    drop(filling);
    // Another attempt takes what the first one left away.
    let examined = EtcdStore::examine(etcd.options()).await.unwrap();
    assert!(examined.is_made() && examined.is_unfinished());
    let again = examined.begin(BEYOND).await.unwrap();
    again.store().commit(put("b", "x")).await.unwrap();
    again.finish().await.unwrap();
    assert_eq!(content(&etcd.open().await).await, [("b".to_owned(), b"x".to_vec())]);
}

#[tokio::test]
async fn who_has_a_replaced_store_open_writes_nothing_more() {
    let etcd = Etcd::start();
    let old = etcd.open().await;
    old.commit(put("a", "old")).await.unwrap();
    let filling = EtcdStore::examine(etcd.options()).await.unwrap().begin(Revision::ZERO).await.unwrap();
    let refused = old.commit(put("b", "late")).await;
    assert!(matches!(refused, Err(CommitError::Failed(_))), "{refused:?}");
    let new = filling.finish().await.unwrap();
    assert!(old.id() != new.id() && old.epoch() != new.epoch(), "agents begin anew");
    assert_eq!(content(&new).await, []);
}

/// One that was frozen meanwhile is not told of an empty store: it is told that this is none of its own.
#[tokio::test]
async fn who_follows_a_replaced_store_is_told_so_before_anything_of_it() {
    let etcd = Etcd::start();
    let old = etcd.open().await;
    let first = old.commit(put("a", "old")).await.unwrap();
    let (mut follows, mut later) = (old.watch(first).await.unwrap(), old.watch(Revision(first.0 - 1)).await.unwrap());
    assert_eq!(later.next().await.unwrap().revision, first);
    let filling = EtcdStore::examine(etcd.options()).await.unwrap().begin(Revision::ZERO).await.unwrap();
    filling.store().commit(put("b", "new")).await.unwrap();
    for watch in [&mut follows, &mut later] {
        let ended = watch.next().await.unwrap_err();
        assert!(matches!(&ended, WatchError::Failed(_)), "{ended:?}");
    }
    let refused = old.load().await.unwrap_err();
    assert!(matches!(&refused, LoadError::Failed(_)), "{refused:?}");
    filling.finish().await.unwrap();
    assert!(old.load().await.is_err());
}

#[test]
fn a_store_is_not_made_where_one_is() {
    let directory = DirectoryBeyond::start();
    let again = EmbeddedStore::make(directory.0.0.path(), BEYOND, EmbeddedOptions::default());
    assert!(matches!(again, Err(OpenError::Exists { .. })), "{again:?}");
}
