//! Keys and certificates as files: written whole and for their owner, read within limits.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

/// Only the owner may enter a folder that holds a key.
const FOLDER_MODE: u32 = 0o700;

/// Only the owner may read or write.
pub(crate) const PRIVATE_MODE: u32 = 0o600;

/// Everyone may read.
pub(crate) const PUBLIC_MODE: u32 = 0o644;

/// The permission bits of group and others, none of which a key may have.
const OTHERS_MASK: u32 = 0o077;

/// Bytes in a file; a P-256 key or certificate has less than two thousand in PEM.
pub(crate) const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Why a file is not read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    /// Longer than [`FILE_BYTES_MAX`].
    TooLong,
    /// The mode of a file that is open to others than its owner.
    Permissions(u32),
}

/// Makes a folder for its owner alone, and what it stands in.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).recursive(true).create(path)
}

/// Removes a folder with what is in it; one that is not there is none to remove.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(source),
        _ => Ok(()),
    }
}

/// Writes a new file; its contents are on disk when this returns, its name is once the folder is [synced](sync).
pub(crate) fn write_new(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Makes the names in a folder outlive a crash.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Reads a file that everyone may read.
pub(crate) fn read_public(path: &Path) -> Result<Zeroizing<Vec<u8>>, ReadError> {
    read(File::open(path).map_err(ReadError::Io)?)
}

/// Reads a file if it is its owner's alone.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, ReadError> {
    let file = File::open(path).map_err(ReadError::Io)?;
    // Of the open file, not of the path: what is checked is what is read.
    let mode = file.metadata().map_err(ReadError::Io)?.permissions().mode() & 0o7777;
    if mode & OTHERS_MASK == 0 { read(file) } else { Err(ReadError::Permissions(mode)) }
}

fn read(file: File) -> Result<Zeroizing<Vec<u8>>, ReadError> {
    let capacity = usize::try_from(FILE_BYTES_MAX).expect("invariant: the limit fits the address space") + 1;
    // Allocated once, so that no copy of a key is left behind by growth.
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    let len = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(ReadError::Io)?;
    if len == capacity { Err(ReadError::TooLong) } else { Ok(bytes) }
}
