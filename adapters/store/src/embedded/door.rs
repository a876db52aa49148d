//! Opening a data directory: the one place where its bytes are not yet trusted.
//!
//! A directory is either taken whole or refused whole. The database is opened on trial (see
//! [`Disk`]): redb repairs what an unclean shutdown left, every checksum in the tree is verified,
//! the format is recognised, and the revision is held against the high-water mark. Only then does
//! the first byte reach the file. Creating goes through a temporary name, so that a database
//! either exists complete or not at all.

use std::any::Any;
use std::cell::Cell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Once;

use redb::{Database, DatabaseError, ReadableDatabase, StorageBackend, TableDefinition, TableError};

use super::acknowledged::{self, Acknowledged};
use super::disk::Disk;
use super::epochs::{self, Epoch};
use super::lock::{DirectoryLock, Holder};
use super::{DIRECTORY_MODE, FILE_MODE, sync_directory};
use crate::StoreId;
use crate::transaction::Revision;

/// Name of the database in the data directory.
pub(super) const FILE_NAME: &str = "store.redb";

/// Keys to encoded entries.
pub(super) const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");

/// What the database says about itself.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// In [`META`]: always [`FORMAT_NAME`].
const FORMAT: &str = "format";
/// In [`META`]: the layout of both tables, `u32`, little endian.
const SCHEMA: &str = "schema";
/// In [`META`]: 16 random bytes, made with the database.
const STORE_ID: &str = "store-id";
/// In [`META`]: the last revision, `u64`, little endian.
pub(super) const REVISION: &str = "revision";

/// Says that a redb file is one of ours.
const FORMAT_NAME: &[u8] = b"starling-store";

/// The layout written and understood here.
const SCHEMA_VERSION: u32 = 1;

/// First bytes of every redb file.
const REDB_MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";

/// Why a data directory was refused; its database is as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path leads to something else.
    #[error("{} is not a directory; choose another data directory", path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory is open already.
    #[error(
        "data directory {} is in use by {holder}; stop it, or choose another data directory",
        path.display()
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// Who uses it.
        holder: Holder,
    },
    /// There is a file in place of the database that was not made by a store.
    #[error(
        "{} is not a starling database: {reason}; it was left as it is: move it away, or choose \
         another data directory",
        path.display()
    )]
    Foreign {
        /// The database file.
        path: PathBuf,
        /// What gave it away.
        reason: String,
    },
    /// The database is damaged beyond what an interrupted write explains.
    #[error(
        "database {} is corrupt: {reason}; it was left as it is: restore it from a backup, or \
         move it away to start empty",
        path.display()
    )]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A later release wrote the database.
    #[error(
        "database {} has schema {found}, this release understands up to {supported}; it was left \
         as it is: use the release that wrote it, or a later one",
        path.display()
    )]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// Its schema version.
        found: u32,
        /// The newest version understood here.
        supported: u32,
    },
    /// The database is gone, or older than what was acknowledged.
    #[error(
        "database {} {state}, but revision {acknowledged} was acknowledged; nothing was changed: \
         restore the database, or, to go on without what is missing, remove {} beside it",
        path.display(),
        acknowledged::FILE_NAME
    )]
    Lost {
        /// The database file.
        path: PathBuf,
        /// What was found in its place.
        state: LostState,
        /// The last revision acknowledged to a caller.
        acknowledged: Revision,
    },
    /// There is one where one is to be made.
    #[error("there is a database, or what is left of one, in {}; name another directory", path.display())]
    Exists {
        /// The database file.
        path: PathBuf,
    },
    /// The high-water mark cannot be read.
    #[error(
        "{} is damaged; it guards against the loss of acknowledged data: to go without it, \
         remove it",
        path.display()
    )]
    BadMark {
        /// The mark's file.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// How a database falls short of what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostState {
    /// There is no file.
    #[error("does not exist")]
    Missing,
    /// Its last revision is this one.
    #[error("ends at revision {0}")]
    Behind(Revision),
}

impl OpenError {
    pub(super) fn io(path: &Path, action: &'static str, source: io::Error) -> OpenError {
        OpenError::Io { path: path.to_path_buf(), action, source }
    }
}

/// A directory whose content is good, and in which nothing was written yet but the lock. Fields drop in order: the lock
/// outlives the database.
pub(super) struct Examined {
    pub(super) database: Database,
    disk: Disk,
    lock: DirectoryLock,
    directory: PathBuf,
    id: StoreId,
    revision: Revision,
}

/// A directory that was taken. Fields drop in order: the lock outlives the database.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) acknowledged: Acknowledged,
    pub(super) lock: DirectoryLock,
    pub(super) directory: PathBuf,
    pub(super) id: StoreId,
    pub(super) revision: Revision,
    pub(super) epochs: Vec<Epoch>,
}

/// Whether a directory has a database, good or not.
pub(super) fn exists(directory: &Path) -> Result<bool, OpenError> {
    let path = directory.join(FILE_NAME);
    match fs::symlink_metadata(&path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(OpenError::io(&path, "inspect", source)),
    }
}

/// Examines the directory, making it and an empty database if they do not exist.
///
/// `backend` may wrap the disk that redb will use.
pub(super) fn examine<B: StorageBackend>(
    directory: &Path,
    cache_bytes: usize,
    backend: impl FnOnce(Disk) -> B,
) -> Result<Examined, OpenError> {
    let lock = DirectoryLock::take_or_make(directory)?;
    let path = directory.join(FILE_NAME);
    let mark = Acknowledged::read(directory)?.unwrap_or_default();
    if !path.try_exists().map_err(|source| OpenError::io(&path, "inspect", source))? {
        if mark > Revision::ZERO {
            return Err(OpenError::Lost { path, state: LostState::Missing, acknowledged: mark });
        }
        create(&path, Revision::ZERO)?;
    }
    let file = open_file(&path)?;
    let disk = Disk::on_trial(file).map_err(|source| OpenError::io(&path, "inspect", source))?;
    let database = verify(&path, backend(disk.clone()), cache_bytes)?;
    let (id, revision) = identify(&path, &database)?;
    if revision < mark {
        let state = LostState::Behind(revision);
        return Err(OpenError::Lost { path, state, acknowledged: mark });
    }
    Ok(Examined { database, disk, lock, directory: directory.to_path_buf(), id, revision })
}

/// Makes an empty database at `revision`, and the directory if it does not exist, where there is none.
pub(super) fn make(directory: &Path, revision: Revision) -> Result<(), OpenError> {
    make_directory(directory)?;
    let _lock = DirectoryLock::take(directory)?;
    let path = directory.join(FILE_NAME);
    if exists(directory)? || Acknowledged::read(directory)?.is_some() {
        return Err(OpenError::Exists { path });
    }
    create(&path, revision)
}

impl Examined {
    /// The name of the database, and its last revision.
    pub(super) fn identity(&self) -> (StoreId, Revision) {
        (self.id, self.revision)
    }

    /// Takes the directory: the first byte reaches the database now.
    pub(super) fn adopt(self) -> Result<Opened, OpenError> {
        let Examined { database, disk, lock, directory, id, revision } = self;
        disk.adopt().map_err(|source| OpenError::io(&directory.join(FILE_NAME), "write", source))?;
        let epochs = epochs::begin(&database, revision)
            .map_err(|error| OpenError::io(&directory.join(FILE_NAME), "write", io::Error::other(error)))?;
        let acknowledged = Acknowledged::open(&directory, revision)?;
        Ok(Opened { database, acknowledged, lock, directory, id, revision, epochs })
    }
}

pub(super) fn make_directory(directory: &Path) -> Result<(), OpenError> {
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(OpenError::NotADirectory { path: directory.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new()
                .recursive(true)
                .mode(DIRECTORY_MODE)
                .create(directory)
                .map_err(|source| OpenError::io(directory, "create", source))?;
            // The new name must outlive a power cut just as the data below it.
            directory
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .map_or(Ok(()), |parent| sync_directory(parent).map_err(|source| OpenError::io(parent, "sync", source)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(OpenError::NotADirectory { path: directory.to_path_buf() })
        }
        Err(source) => Err(OpenError::io(directory, "inspect", source)),
    }
}

/// Makes an empty database under a temporary name and moves it into place.
fn create(path: &Path, revision: Revision) -> Result<(), OpenError> {
    let fresh = path.with_extension("redb.new");
    let failed = |source: io::Error| OpenError::io(&fresh, "create", source);
    // What an interrupted creation left was never used.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(&fresh)
        .map_err(failed)?;
    let synced = file.try_clone().map_err(failed)?;
    initialise(file, revision).map_err(|error| failed(io::Error::other(error)))?;
    synced.sync_all().map_err(failed)?;
    fs::rename(&fresh, path).map_err(|source| OpenError::io(path, "create", source))?;
    path.parent().map_or(Ok(()), sync_directory).map_err(|source| OpenError::io(path, "sync", source))
}

fn initialise(file: File, revision: Revision) -> Result<(), redb::Error> {
    let database = Database::builder().create_file(file)?;
    let transaction = database.begin_write()?;
    {
        transaction.open_table(ENTRIES)?;
        let mut meta = transaction.open_table(META)?;
        meta.insert(FORMAT, FORMAT_NAME)?;
        meta.insert(SCHEMA, &SCHEMA_VERSION.to_le_bytes()[..])?;
        meta.insert(STORE_ID, &StoreId::random().to_le_bytes()[..])?;
        meta.insert(REVISION, &revision.0.to_le_bytes()[..])?;
    }
    transaction.commit()?;
    Ok(())
}

/// Opens the file and looks at its first bytes, which need no trust in the rest.
fn open_file(path: &Path) -> Result<File, OpenError> {
    let foreign = |reason: &str| OpenError::Foreign { path: path.to_path_buf(), reason: reason.to_string() };
    // Before opening: a named pipe would keep us waiting for its other end.
    let metadata = fs::metadata(path).map_err(|source| OpenError::io(path, "inspect", source))?;
    if !metadata.is_file() {
        return Err(foreign("it is not a regular file"));
    }
    if metadata.len() == 0 {
        let reason = "the file is empty".to_string();
        return Err(OpenError::Corrupt { path: path.to_path_buf(), reason });
    }
    let mut file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|source| OpenError::io(path, "open", source))?;
    let mut magic = Vec::new();
    (&mut file)
        .take(REDB_MAGIC.len() as u64)
        .read_to_end(&mut magic)
        .map_err(|source| OpenError::io(path, "read", source))?;
    if magic != REDB_MAGIC {
        return Err(foreign("it does not begin like one"));
    }
    Ok(file)
}

/// Lets redb open and recover the file, and verifies every checksum in it.
fn verify(path: &Path, backend: impl StorageBackend, cache_bytes: usize) -> Result<Database, OpenError> {
    // The backend and the database live and die inside; nothing half-changed is seen afterwards.
    let opened = catch_quietly(|| recover(backend, cache_bytes));
    let reason = match opened {
        Ok(Ok((database, recovery))) => {
            report(path, recovery);
            return Ok(database);
        }
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(source))))
            if source.kind() != io::ErrorKind::UnexpectedEof && source.kind() != io::ErrorKind::InvalidData =>
        {
            return Err(OpenError::io(path, "read", source));
        }
        Ok(Err(DatabaseError::UpgradeRequired(version))) => {
            let reason = format!("it is in redb's file format {version}");
            return Err(OpenError::Foreign { path: path.to_path_buf(), reason });
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("reading it failed ({})", panic_text(panic.as_ref())),
    };
    Err(OpenError::Corrupt { path: path.to_path_buf(), reason })
}

/// What had to be done to a file whose content is whole.
#[derive(Clone, Copy, Debug)]
enum Recovery {
    None,
    /// It was not shut down: an unfinished commit, if any, was rolled back.
    UncleanShutdown,
    /// It was shut down, yet structures that hold no entries were damaged.
    Rebuilt,
}

fn recover(backend: impl StorageBackend, cache_bytes: usize) -> Result<(Database, Recovery), DatabaseError> {
    let unclean = Rc::new(Cell::new(false));
    let seen = Rc::clone(&unclean);
    let mut database = Database::builder()
        .set_cache_size(cache_bytes)
        .set_repair_callback(move |_| seen.set(true))
        .create_with_backend(backend)?;
    // Recovery from an unclean shutdown has verified every checksum already.
    let recovery = if unclean.get() {
        Recovery::UncleanShutdown
    } else if database.check_integrity()? {
        Recovery::None
    } else {
        Recovery::Rebuilt
    };
    Ok((database, recovery))
}

fn report(path: &Path, recovery: Recovery) {
    let path = path.display();
    match recovery {
        Recovery::None => {}
        Recovery::UncleanShutdown => {
            tracing::info!(%path, "database was not shut down cleanly and has been recovered");
        }
        Recovery::Rebuilt => {
            tracing::warn!(%path, "database had damage outside its data, which has been rebuilt; check the disk");
        }
    }
}

thread_local! {
    /// Whether a panic of this thread is caught and told as an error.
    static PANIC_IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Catches a panic of `attempt` that is told as an error, and therefore printed by nobody. Panics elsewhere, of other
/// threads in the meantime too, are printed as ever.
fn catch_quietly<T>(attempt: impl FnOnce() -> T) -> std::thread::Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !PANIC_IS_TOLD.get() {
                print(panic);
            }
        }));
    });
    PANIC_IS_TOLD.set(true);
    let caught = catch_unwind(AssertUnwindSafe(attempt));
    PANIC_IS_TOLD.set(false);
    caught
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic without a message")
}

/// Reads what the database says about itself.
fn identify(path: &Path, database: &Database) -> Result<(StoreId, Revision), OpenError> {
    let foreign = |reason: &str| OpenError::Foreign { path: path.to_path_buf(), reason: reason.to_string() };
    let corrupt = |reason: String| OpenError::Corrupt { path: path.to_path_buf(), reason };
    let read = database.begin_read().map_err(|error| corrupt(error.to_string()))?;
    let table_missing = |error: TableError| {
        if let TableError::Storage(error) = error {
            return corrupt(error.to_string());
        }
        foreign(&error.to_string())
    };
    let meta = read.open_table(META).map_err(table_missing)?;
    let field = |name: &str| -> Result<Vec<u8>, OpenError> {
        let value = meta.get(name).map_err(|error| corrupt(error.to_string()))?;
        Ok(value.map(|guard| guard.value().to_vec()).unwrap_or_default())
    };
    if field(FORMAT)? != FORMAT_NAME {
        return Err(foreign("it does not name its format"));
    }
    let malformed = |name: &str| corrupt(format!("its {name} is malformed"));
    let found = field(SCHEMA)?.try_into().map(u32::from_le_bytes).map_err(|_| malformed(SCHEMA))?;
    if found > SCHEMA_VERSION {
        let path = path.to_path_buf();
        return Err(OpenError::NewerSchema { path, found, supported: SCHEMA_VERSION });
    }
    if found < SCHEMA_VERSION {
        return Err(malformed(SCHEMA));
    }
    read.open_table(ENTRIES).map_err(table_missing)?;
    let id = field(STORE_ID)?.try_into().map(StoreId::from_le_bytes).map_err(|_| malformed(STORE_ID))?;
    let revision = field(REVISION)?.try_into().map(u64::from_le_bytes).map_err(|_| malformed(REVISION))?;
    Ok((id, Revision(revision)))
}
