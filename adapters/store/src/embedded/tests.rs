//! What the store does when the disk beneath it fails or forgets.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use redb::StorageBackend;

use super::acknowledged::Acknowledged;
use super::disk::Disk;
use super::{EmbeddedOptions, EmbeddedStore, door};
use crate::{CommitError, Key, LoadError, Revision, Store, Transaction, WatchError};

/// Linux's `EIO`: what a dying disk answers.
const INPUT_OUTPUT_ERROR: i32 = 5;

/// Bytes that a disk writes all or nothing.
const SECTOR: usize = 512;

fn key(text: &str) -> Key {
    Key::new(text.to_string()).unwrap()
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + usize::try_from(number % 90).unwrap())
}

fn put(number: u64) -> Transaction {
    Transaction::new().put(key(&format!("key/{number}")), value(number))
}

/// A disk whose writes, syncs and resizes begin to fail after a number of them.
#[derive(Debug)]
struct Failing {
    disk: Disk,
    left: Arc<AtomicI64>,
}

impl Failing {
    fn spend(&self) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(INPUT_OUTPUT_ERROR))
    }
}

impl StorageBackend for Failing {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.spend()?;
        self.disk.set_len(length)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.spend()?;
        self.disk.sync_data()
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.spend()?;
        self.disk.write(offset, bytes)
    }
}

#[tokio::test]
async fn after_a_disk_failure_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    for allowed in 0..60 {
        let directory = tempfile::tempdir().unwrap();
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let failing = |disk| Failing { disk, left: Arc::clone(&left) };
        let store = EmbeddedStore::open_on(directory.path(), EmbeddedOptions::default(), failing).unwrap();
        let mut watch = store.watch(Revision::ZERO).await.unwrap();
        left.store(allowed, Ordering::SeqCst);

        let mut acknowledged = 0;
        let failure = loop {
            match store.commit(put(acknowledged + 1)).await {
                Ok(revision) => acknowledged = revision.0,
                Err(error) => break error,
            }
        };
        assert!(matches!(failure, CommitError::Failed(_)), "{failure:?}");

        left.store(i64::MAX, Ordering::SeqCst);
        let later = store.commit(put(1000)).await;
        assert!(matches!(later, Err(CommitError::Failed(_))), "a failed store stays failed");
        assert!(matches!(store.load().await, Err(LoadError::Failed(_))));
        for revision in 1..=acknowledged {
            assert_eq!(watch.next().await.unwrap().revision, Revision(revision));
        }
        assert!(matches!(watch.next().await, Err(WatchError::Failed(_))));
        drop(store);

        let (revision, found) = content(directory.path()).await;
        assert!(revision >= acknowledged && revision <= acknowledged + 1, "{revision}");
        for number in 1..=acknowledged {
            assert!(found.contains(&(key(&format!("key/{number}")), value(number))));
        }
    }
}

async fn content(directory: &Path) -> (u64, Vec<(Key, Vec<u8>)>) {
    let store = EmbeddedStore::open(directory, EmbeddedOptions::default()).unwrap();
    let snapshot = store.load().await.unwrap();
    let entries = snapshot.entries.into_iter().map(|entry| (entry.key, entry.value.to_vec()));
    (snapshot.revision.0, entries.collect())
}

/// Everything that was asked of a disk.
#[derive(Clone, Debug)]
enum Asked {
    Write { offset: u64, bytes: Vec<u8> },
    SetLength(u64),
    Sync,
}

/// A disk that keeps a record of what it was asked, in order.
#[derive(Debug)]
struct Recording {
    disk: Disk,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl StorageBackend for Recording {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.asked.lock().unwrap().push(Asked::SetLength(length));
        self.disk.set_len(length)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync_data()?;
        self.asked.lock().unwrap().push(Asked::Sync);
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.asked.lock().unwrap().push(Asked::Write { offset, bytes: bytes.to_vec() });
        self.disk.write(offset, bytes)
    }
}

/// What the platter holds after a power cut: everything up to the last sync, and of what came
/// after it any sectors whatever. File lengths are the file system's, which keeps their order.
fn after_power_cut(original: &[u8], asked: &[Asked], random: &mut fastrand::Rng) -> Vec<u8> {
    let synced = asked.iter().rposition(|one| matches!(one, Asked::Sync)).unwrap_or(0);
    let mut image = original.to_vec();
    for (at, one) in asked.iter().enumerate() {
        match one {
            Asked::Sync => {}
            Asked::SetLength(length) => image.resize(usize::try_from(*length).unwrap(), 0),
            Asked::Write { offset, bytes } => {
                let offset = usize::try_from(*offset).unwrap();
                for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                    let from = offset + index * SECTOR;
                    if at < synced || random.bool() {
                        image[from..from + sector.len()].copy_from_slice(sector);
                    }
                }
            }
        }
    }
    image
}

#[tokio::test]
async fn a_power_cut_loses_nothing_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(directory.path(), EmbeddedOptions::default()).unwrap());
    let original = fs::read(directory.path().join(door::FILE_NAME)).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let recording = |disk| Recording { disk, asked: Arc::clone(&asked) };
    let store = EmbeddedStore::open_on(directory.path(), EmbeddedOptions::default(), recording).unwrap();
    // (operations recorded when the acknowledgement came, number)
    let acknowledged = Mutex::new(Vec::new());
    join_all((0..8_u64).map(|task| {
        let (store, acknowledged, asked) = (&store, &acknowledged, &asked);
        async move {
            for step in 0..25 {
                let number = task * 1000 + step;
                store.commit(put(number)).await.unwrap();
                let at = asked.lock().unwrap().len();
                acknowledged.lock().unwrap().push((at, number));
            }
        }
    }))
    .await;
    drop(store);

    let asked = asked.lock().unwrap().clone();
    let acknowledged = acknowledged.into_inner().unwrap();
    let mut random = fastrand::Rng::with_seed(20);
    for _ in 0..60 {
        let cut = random.usize(..=asked.len());
        let image = after_power_cut(&original, &asked[..cut], &mut random);
        let promised: Vec<u64> = acknowledged.iter().filter(|(at, _)| *at <= cut).map(|(_, number)| *number).collect();
        let remains = tempfile::tempdir().unwrap();
        fs::write(remains.path().join(door::FILE_NAME), image).unwrap();
        // The mark at its most demanding: every acknowledgement had reached the disk.
        Acknowledged::open(remains.path(), Revision(promised.len() as u64)).unwrap();
        let (revision, found) = content(remains.path()).await;
        assert!(revision >= promised.len() as u64);
        assert_eq!(found.len() as u64, revision, "each transaction has put one key of its own");
        for number in promised {
            assert!(
                found.contains(&(key(&format!("key/{number}")), value(number))),
                "cut at {cut} of {} lost {number}",
                asked.len()
            );
        }
    }
}
