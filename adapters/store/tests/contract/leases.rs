//! What goes by itself when its holder is gone, and how current a reader can be.

use std::time::{Duration, Instant};

use starling_store::{EmbeddedOptions, EmbeddedStore, Revision, Store, Transaction, Write};

use super::cases::{key, put};
use super::etcd_process::{DEADLINE, Etcd};
use super::{Bed, base};

/// The shortest that etcd gives by default.
const TTL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn what_is_written_under_a_lease_stays_while_it_is_held_and_goes_at_once_when_it_ends() {
    let etcd = Etcd::start();
    let (holder, other) = (etcd.open().await, etcd.open().await);
    let mut watch = other.watch(Revision(base(&other).await)).await.unwrap();
    let lease = holder.lease(TTL).await.unwrap().expect("others share this store");
    let held = Transaction::new().put_leased(key("a"), "mine", lease.id()).put_leased(key("b"), "mine", lease.id());
    holder.commit(held.put(key("c"), "stays")).await.unwrap();
    let seen = watch.next().await.unwrap();
    let leased = seen.writes.iter().filter(|write| matches!(write, Write::Put { lease: Some(_), .. }));
    assert_eq!(leased.count(), 2);
    // Far past its time to live it is still there: somebody keeps it.
    let early = tokio::time::timeout(2 * TTL, watch.next()).await;
    assert!(early.is_err(), "{early:?}");
    let entries = other.load().await.unwrap().entries;
    assert_eq!(entries.iter().map(|entry| entry.leased).collect::<Vec<_>>(), [true, true, false]);
    drop(lease);
    let gone = tokio::time::timeout(DEADLINE, watch.next()).await.expect("in time").unwrap();
    assert_eq!(gone.writes.to_vec(), [Write::Delete { key: key("a") }, Write::Delete { key: key("b") }]);
}

#[tokio::test]
async fn a_lease_that_is_given_up_takes_its_keys_along_and_one_that_ended_says_so() {
    let mut etcd = Etcd::start();
    let store = etcd.open().await;
    let lease = store.lease(60 * TTL).await.unwrap().expect("a lease");
    store.commit(Transaction::new().put_leased(key("a"), "x", lease.id())).await.unwrap();
    lease.revoke(DEADLINE).await;
    assert!(store.load().await.unwrap().entries.is_empty());

    let lease = store.lease(TTL).await.unwrap().expect("a lease");
    store.commit(Transaction::new().put_leased(key("a"), "x", lease.id())).await.unwrap();
    etcd.post(
        "/v3/lease/revoke",
        &format!(r#"{{"ID":"{}"}}"#, i64::from_str_radix(&lease.id().to_string(), 16).unwrap()),
    );
    tokio::time::timeout(DEADLINE, lease.ended()).await.expect("it is told");
    // A member that is away for a while ends no lease: its clock stands still.
    let lease = store.lease(TTL).await.unwrap().expect("a lease");
    store.commit(Transaction::new().put_leased(key("b"), "x", lease.id())).await.unwrap();
    etcd.kill9();
    assert!(tokio::time::timeout(2 * TTL, lease.ended()).await.is_err(), "nobody says that it has ended");
    let _etcd = etcd.restart();
    let begun = Instant::now();
    while store.barrier().await.is_err() {
        assert!(begun.elapsed() < DEADLINE);
    }
    assert!(tokio::time::timeout(2 * TTL, lease.ended()).await.is_err(), "it is kept on");
    assert_eq!(store.load().await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn a_barrier_is_not_before_what_anybody_was_acknowledged() {
    let etcd = Etcd::start();
    let (writer, reader) = (etcd.open().await, etcd.open().await);
    let mut watch = reader.watch(Revision(base(&reader).await)).await.unwrap();
    let written = writer.commit(put("a", "x")).await.unwrap();
    let barrier = reader.barrier().await.unwrap();
    assert!(barrier >= written);
    let mut seen = Revision::ZERO;
    while seen < barrier {
        seen = tokio::time::timeout(DEADLINE, watch.next()).await.expect("watches come to it").unwrap().revision;
    }

    let directory = tempfile::tempdir().unwrap();
    let alone = EmbeddedStore::open(directory.path(), EmbeddedOptions::default()).unwrap();
    let written = alone.commit(put("a", "x")).await.unwrap();
    assert_eq!(alone.barrier().await.unwrap(), written);
    assert!(alone.lease(TTL).await.unwrap().is_none(), "nobody would take note");
}
