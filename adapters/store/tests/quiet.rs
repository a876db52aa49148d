//! Damage that makes redb panic is an error as any other: nothing is printed of it. One test, in a process of its own,
//! since what prints panics is the process's.

use std::fs;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use starling_store::{EmbeddedOptions, EmbeddedStore, Key, OpenError, Store, Transaction};

/// Panics that were printed.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of redb's pages.
const PAGE_BYTES: usize = 4096;

/// What a page is filled with: it begins as that of a branch does, whose lengths and offsets lead nowhere.
const MISLEADING: u8 = 2;

#[tokio::test]
async fn damage_is_told_and_not_printed_and_other_panics_are() {
    panic::set_hook(Box::new(|_| {
        PRINTED.fetch_add(1, Ordering::SeqCst);
    }));
    let directory = tempfile::tempdir().unwrap();
    let open = || EmbeddedStore::open(directory.path(), EmbeddedOptions::default());
    let store = open().unwrap();
    for number in 0..200 {
        let key = Key::new(format!("service/{number}")).unwrap();
        store.commit(Transaction::new().put(key, vec![7; 300])).await.unwrap();
    }
    store.close().await;
    let path = directory.path().join("store.redb");
    let whole = fs::read(&path).unwrap();
    let mut panics = 0;
    for page in 0..whole.len() / PAGE_BYTES {
        let mut damaged = whole.clone();
        damaged[page * PAGE_BYTES..][..PAGE_BYTES].fill(MISLEADING);
        fs::write(&path, damaged).unwrap();
        let opened = open();
        let told = matches!(&opened, Err(OpenError::Corrupt { reason, .. }) if reason.starts_with("reading it failed"));
        panics += usize::from(told);
    }
    assert!(panics > 0, "no damage made redb panic: nothing is tested");
    assert_eq!(PRINTED.load(Ordering::SeqCst), 0, "of {panics}");
    thread::spawn(|| panic!("of somebody else")).join().unwrap_err();
    assert_eq!(PRINTED.load(Ordering::SeqCst), 1);
}
