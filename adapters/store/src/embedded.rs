//! The store on one machine's disk: a redb file, one writer thread, many readers.
//!
//! A data directory holds `store.redb` (the data), `store.acknowledged` (the high-water mark) and
//! `store.lock` (one process at a time). Only this module and the ones below it touch them.

mod acknowledged;
mod disk;
mod door;
mod epochs;
mod lock;
mod record;
#[cfg(test)]
mod tests;
mod window;
mod writer;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend};
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::disk::Disk;
use self::door::{ENTRIES, Examined, META, Opened, REVISION};
pub use self::lock::DirectoryLock;
use self::window::{Window, WindowLimits};
use self::writer::{Job, Writer};
use crate::StoreId;
use crate::lease::Lease;
use crate::store::{CommitError, Failure, LoadError, Store, Watch, WatchError};
use crate::transaction::{Entry, Key, Revision, Snapshot, Transaction};

pub use self::door::{LostState, OpenError};
pub use self::epochs::{EPOCHS_MAX, Epoch};
pub use self::lock::Holder;

/// Mode of a data directory that is made here: it will hold private keys.
const DIRECTORY_MODE: u32 = 0o700;

/// Mode of the files in it.
const FILE_MODE: u32 = 0o600;

/// Transactions that wait for the writer; past this, callers of `commit` wait. Four full groups,
/// so that the writer never runs dry while callers are there.
const QUEUE_TRANSACTIONS: usize = 4096;

/// Bytes that wait for the writer; past this, callers of `commit` wait. Many of the largest
/// transactions, and still little memory.
const QUEUE_BYTES: usize = 32 * 1024 * 1024;

/// Bytes counted for a transaction in the queue beside its keys and values.
const JOB_OVERHEAD_BYTES: usize = 256;

/// Recent transactions kept for watchers: 4 s at 4,000 a second. A watcher of this store lives in
/// its process and pauses for less; beyond, reloading is the cheaper way.
const WINDOW_TRANSACTIONS: usize = 16_384;

/// Bytes of recent transactions kept for watchers: four full groups, so that the writer may be ahead by some of them.
const WINDOW_BYTES: usize = 16 * 1024 * 1024;

/// Time for which recent transactions are kept, so that what a burst has filled does not stay. A watcher of this store that
/// is so far behind reloads.
const WINDOW_AGE: Duration = Duration::from_secs(10);

/// Bytes of database pages kept in memory. The catalog above holds everything anyway and the
/// kernel caches the file, so this only has to cover inner nodes and what is being written.
const CACHE_BYTES: usize = 4 * 1024 * 1024;

/// How an embedded store is sized.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedOptions {
    /// Recent transactions kept for watchers; at least one is.
    pub window_transactions: usize,
    /// Bytes of recent transactions kept for watchers.
    pub window_bytes: usize,
    /// Time for which recent transactions are kept for watchers, by when the next one comes.
    pub window_age: Duration,
    /// Bytes of database pages kept in memory.
    pub cache_bytes: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            window_transactions: WINDOW_TRANSACTIONS,
            window_bytes: WINDOW_BYTES,
            window_age: WINDOW_AGE,
            cache_bytes: CACHE_BYTES,
        }
    }
}

/// A [`Store`] in a directory of its own.
///
/// Dropping it closes it, and waits for the transactions already queued; [`close`] waits without
/// blocking the thread.
///
/// [`close`]: EmbeddedStore::close
pub struct EmbeddedStore {
    id: StoreId,
    epochs: Vec<Epoch>,
    window: Arc<Window>,
    space: Arc<Semaphore>,
    /// `None` once closed.
    running: RwLock<Option<Running>>,
}

struct Running {
    queue: mpsc::Sender<Job>,
    engine: Arc<Engine>,
    writer: JoinHandle<()>,
}

/// The open database. Fields drop in order: the lock outlives the database.
struct Engine {
    database: Database,
    _lock: DirectoryLock,
}

/// A store that was found good, and in which nothing was written yet: see [`EmbeddedStore::examine`].
///
/// Its directory is locked; dropping it gives that up and leaves the database as it was.
pub struct ExaminedStore {
    examined: Examined,
    options: EmbeddedOptions,
}

impl ExaminedStore {
    /// Which database this is.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.examined.identity().0
    }

    /// The last revision that it has given out.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.examined.identity().1
    }

    /// Everything in it.
    ///
    /// # Errors
    /// [`LoadError::Failed`] if it cannot be read.
    pub fn load(&self) -> Result<Snapshot, LoadError> {
        load(&self.examined.database).map_err(|error| LoadError::Failed(Arc::new(error)))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`OpenError::Io`] if the disk does not take what the database needs.
    pub fn adopt(self) -> Result<EmbeddedStore, OpenError> {
        EmbeddedStore::adopt(self.examined, self.options)
    }
}

impl fmt::Debug for ExaminedStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ExaminedStore").finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Whether there is a database in `directory`, good or not.
    ///
    /// # Errors
    /// [`OpenError::Io`] if that cannot be found out.
    pub fn exists(directory: &Path) -> Result<bool, OpenError> {
        door::exists(directory)
    }

    /// Makes an empty store in `directory`, which has none, whose revisions are all beyond `after`.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if there is one, and whatever [`EmbeddedStore::open`] says.
    pub fn make(directory: &Path, after: Revision, options: EmbeddedOptions) -> Result<EmbeddedStore, OpenError> {
        door::make(directory, after)?;
        Self::open(directory, options)
    }

    /// Locks and verifies the store in `directory` without writing to it, making both if they do not exist: for whoever
    /// has more to verify before the store may be opened.
    ///
    /// # Errors
    /// [`OpenError`]; the database is then exactly as it was before.
    pub fn examine(directory: &Path, options: EmbeddedOptions) -> Result<ExaminedStore, OpenError> {
        let examined = door::examine(directory, options.cache_bytes, |disk| disk)?;
        Ok(ExaminedStore { examined, options })
    }

    /// Opens the store in `directory`, making both if they do not exist.
    ///
    /// Reads and verifies the whole database, so it takes time in proportion to its size.
    ///
    /// # Errors
    /// [`OpenError`]; the database is then exactly as it was before.
    pub fn open(directory: &Path, options: EmbeddedOptions) -> Result<EmbeddedStore, OpenError> {
        Self::open_on(directory, options, |disk| disk)
    }

    fn open_on<B: StorageBackend>(
        directory: &Path,
        options: EmbeddedOptions,
        backend: impl FnOnce(Disk) -> B,
    ) -> Result<EmbeddedStore, OpenError> {
        Self::adopt(door::examine(directory, options.cache_bytes, backend)?, options)
    }

    fn adopt(examined: Examined, options: EmbeddedOptions) -> Result<EmbeddedStore, OpenError> {
        let Opened { database, acknowledged, lock, directory, id, revision, epochs } = examined.adopt()?;
        let engine = Arc::new(Engine { database, _lock: lock });
        let limits = WindowLimits {
            transactions: options.window_transactions,
            bytes: options.window_bytes,
            age: options.window_age,
        };
        let window = Arc::new(Window::new(limits, revision));
        let (sender, receiver) = mpsc::channel(QUEUE_TRANSACTIONS);
        let writer = Writer {
            engine: Arc::clone(&engine),
            acknowledged,
            window: Arc::clone(&window),
            queue: receiver,
            revision,
        };
        let writer = thread::Builder::new()
            .name("store-writer".to_string())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::io(&directory, "start the writer of", source))?;
        tracing::info!(directory = %directory.display(), store = %id, %revision, "store opened");
        let running = Running { queue: sender, engine, writer };
        Ok(EmbeddedStore {
            id,
            epochs,
            window,
            space: Arc::new(Semaphore::new(QUEUE_BYTES)),
            running: RwLock::new(Some(running)),
        })
    }

    /// Which database this is.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Its openings, the oldest first and this one last; at most [`EPOCHS_MAX`].
    #[must_use]
    pub fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// The last revision that watchers have been shown.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.window.published()
    }

    /// Writes what is queued, ends all watches and closes the database. Closing twice is fine.
    pub async fn close(&self) {
        let stopping = self.stop();
        if tokio::task::spawn_blocking(move || finish(stopping)).await.is_err() {
            tracing::error!("the store did not close cleanly");
        }
    }

    /// Takes the running parts away, so that nothing new is queued.
    fn stop(&self) -> Option<Running> {
        self.running.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn running<T>(&self, part: impl FnOnce(&Running) -> T) -> Option<T> {
        self.running.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(part)
    }
}

/// Waits for the writer and lets go of the database.
fn finish(stopping: Option<Running>) {
    let Some(Running { queue, engine, writer }) = stopping else { return };
    drop(queue);
    if writer.join().is_err() {
        tracing::error!("the store's writer panicked");
    }
    drop(engine);
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        finish(self.stop());
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EmbeddedStore")
            .field("id", &self.id)
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn id(&self) -> StoreId {
        self.id
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        transaction.check()?;
        let queue = self.running(|running| running.queue.clone()).ok_or(CommitError::Closed)?;
        // Never more than the queue's bytes, or the request could not be met at all.
        let weight = (transaction.size() + JOB_OVERHEAD_BYTES).min(QUEUE_BYTES);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let space = Arc::clone(&self.space).acquire_many_owned(weight).await.map_err(|_closed| CommitError::Closed)?;
        let (answer, verdict) = oneshot::channel();
        let job = Job { transaction, answer, _space: space };
        queue.send(job).await.map_err(|_closed| CommitError::Closed)?;
        // A caller waiting for its answer must not keep a closing store's queue open.
        drop(queue);
        verdict.await.unwrap_or(Err(CommitError::Closed))
    }

    async fn load(&self) -> Result<Snapshot, LoadError> {
        if let Some(failure) = self.window.failure() {
            return Err(LoadError::Failed(failure));
        }
        let engine = self.running(|running| Arc::clone(&running.engine)).ok_or(LoadError::Closed)?;
        let loaded = tokio::task::spawn_blocking(move || load(&engine.database)).await;
        let failed = |failure: Failure| Err(LoadError::Failed(failure));
        match loaded {
            Ok(Ok(snapshot)) => Ok(snapshot),
            Ok(Err(error)) => failed(Arc::new(error)),
            Err(error) => failed(Arc::new(error)),
        }
    }

    async fn watch(&self, from: Revision) -> Result<Watch, WatchError> {
        self.window.watch(from)
    }

    async fn barrier(&self) -> Result<Revision, LoadError> {
        match self.window.failure() {
            Some(failure) => Err(LoadError::Failed(failure)),
            // What is acknowledged was shown to watchers before.
            None => Ok(self.revision()),
        }
    }

    async fn lease(&self, _: Duration) -> Result<Option<Lease>, LoadError> {
        Ok(None)
    }
}

/// Why the database could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("reading the database failed")]
    Database(#[from] redb::Error),
    #[error("the entry of key {} is malformed", .0.escape_ascii())]
    Malformed(Vec<u8>),
    #[error("the revision is malformed")]
    Revision,
}

fn load(database: &Database) -> Result<Snapshot, ReadError> {
    let read = database.begin_read().map_err(redb::Error::from)?;
    let meta = read.open_table(META).map_err(redb::Error::from)?;
    let revision = meta.get(REVISION).map_err(redb::Error::from)?;
    let revision = revision
        .and_then(|found| found.value().try_into().ok().map(u64::from_le_bytes))
        .map(Revision)
        .ok_or(ReadError::Revision)?;
    let table = read.open_table(ENTRIES).map_err(redb::Error::from)?;
    let length = table.len().map_err(redb::Error::from)?;
    let mut entries = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    for item in table.iter().map_err(redb::Error::from)? {
        let (key, value) = item.map_err(redb::Error::from)?;
        entries.push(entry(key.value(), value.value())?);
    }
    Ok(Snapshot { revision, entries })
}

/// One allocation per entry: key and value are slices of the same bytes.
fn entry(key: &[u8], record: &[u8]) -> Result<Entry, ReadError> {
    let malformed = || ReadError::Malformed(key.to_vec());
    let (revisions, value) = record::decode(record).ok_or_else(malformed)?;
    let mut bytes = Vec::with_capacity(key.len() + value.len());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let mut bytes = Bytes::from(bytes);
    let value = bytes.split_off(key.len());
    Ok(Entry {
        key: Key::new(bytes).map_err(|_error| malformed())?,
        value,
        created: revisions.created,
        modified: revisions.modified,
        leased: false,
    })
}

/// Makes the names in a directory durable.
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
