//! One process per data directory: an advisory lock on a file that names its holder.
//!
//! The kernel drops the lock with the process, however it ends, so a lock file that is merely
//! there means nothing; the process id in it is only for the message to whoever comes second.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::FILE_MODE;
use super::door::{OpenError, make_directory};

/// Name of the lock file in the data directory.
pub(super) const FILE_NAME: &str = "store.lock";

/// Bytes read from a lock file in search of a process id: more than its longest decimal form.
const MAX_HOLDER_BYTES: u64 = 32;

/// Held for as long as the value lives.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

/// Who holds a data directory, as far as its lock file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process with this id.
    Process(u32),
    /// A process that has not written its id.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Process(id) => write!(formatter, "process {id}"),
            Holder::Unknown => write!(formatter, "another process"),
        }
    }
}

impl DirectoryLock {
    /// Takes the directory, making it if it is not there, or says who has it.
    ///
    /// # Errors
    /// [`OpenError::InUse`], or if the directory cannot be made.
    pub fn take_or_make(directory: &Path) -> Result<DirectoryLock, OpenError> {
        make_directory(directory)?;
        Self::take(directory)
    }

    /// Takes the directory, or says who has it.
    pub(super) fn take(directory: &Path) -> Result<DirectoryLock, OpenError> {
        let path = directory.join(FILE_NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(|source| OpenError::io(&path, "open", source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = directory.to_path_buf();
                return Err(OpenError::InUse { path, holder: holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(OpenError::io(&path, "lock", source)),
        }
        write_own_id(&mut file).map_err(|source| OpenError::io(&path, "write", source))?;
        Ok(DirectoryLock { _file: file })
    }
}

fn write_own_id(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

fn holder(file: &mut File) -> Holder {
    let mut text = String::new();
    match file.take(MAX_HOLDER_BYTES).read_to_string(&mut text) {
        Ok(_) => text.trim().parse().map_or(Holder::Unknown, Holder::Process),
        Err(_) => Holder::Unknown,
    }
}
