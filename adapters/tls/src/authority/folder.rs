//! The CA's files: `ca/root.key` and `ca/root.pem` below a data directory.
//!
//! The folder is written under another name and renamed when it is whole, so it is never seen half made, and an existing
//! one is never replaced.

use std::path::{Path, PathBuf};
use std::{fs, io};

use starling_identity::IssuanceError;

use crate::disk::{self, FILE_BYTES_MAX, PRIVATE_MODE, PUBLIC_MODE, ReadError};
use crate::key::{KeyError, P256Key, SecretPem};
use crate::roots::{RootCertificate, RootError};

const FOLDER: &str = "ca";
const PARTIAL_FOLDER: &str = "ca.partial";
const KEY_FILE: &str = "root.key";
const CERTIFICATE_FILE: &str = "root.pem";

/// Why no CA is made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// There is one, or something else in its place.
    #[error("{} exists already; a CA is never overwritten", path.display())]
    Exists {
        /// The CA's folder.
        path: PathBuf,
    },
    /// The clock shows an impossible time.
    #[error(transparent)]
    Clock(#[from] IssuanceError),
    /// No key can be generated.
    #[error("the root key cannot be made")]
    Key(#[from] KeyError),
    /// The system has no randomness to give.
    #[error("no random serial number can be drawn")]
    Random,
    /// The certificate cannot be encoded or signed.
    #[error("the root certificate cannot be signed")]
    Sign(#[from] rcgen::Error),
    /// The new certificate does not pass the checks made on every start.
    #[error("the new root certificate is unusable")]
    Root(#[from] RootError),
    /// A file or folder cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why the CA on disk is not used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("there is no CA at {}", path.display())]
    Absent {
        /// The CA's folder.
        path: PathBuf,
    },
    /// A file is missing or cannot be read.
    #[error("cannot read {}; restore it from a backup, a CA is never replaced by a new one", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is far larger than a key or certificate.
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The private key is open to others than its owner.
    #[error("{} has mode {mode:04o}: others than its owner may use the CA's key; set it to 0600", path.display())]
    Permissions {
        /// The key's file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key's file does not hold a key.
    #[error("{} is damaged", path.display())]
    Key {
        /// The key's file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyError,
    },
    /// The certificate's file does not hold a root certificate.
    #[error("{} is damaged", path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong with it.
        source: RootError,
    },
    /// Each file is good, but they belong to different roots.
    #[error("key and certificate in {} do not belong together", path.display())]
    Mismatch {
        /// The CA's folder.
        path: PathBuf,
    },
    /// The certificate cannot be used to sign.
    #[error("the certificate in {} cannot be used to sign", path.display())]
    Issuer {
        /// The CA's folder.
        path: PathBuf,
        /// What is wrong with it.
        source: rcgen::Error,
    },
}

/// The CA's folder below a data directory.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(FOLDER)
}

/// Writes a new folder; it is whole and on disk when this returns.
pub(super) fn write(dir: &Path, key: &SecretPem, certificate_pem: &str) -> Result<(), CreateError> {
    let (folder, partial) = (path(dir), dir.join(PARTIAL_FOLDER));
    match fs::symlink_metadata(&folder) {
        Ok(_) => return Err(CreateError::Exists { path: folder }),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(CreateError::Write { path: folder, source }),
    }
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| CreateError::Write { path, source }
    };
    disk::make_folder(dir).map_err(at(dir))?;
    // What a crash left behind was never in use: no certificate can have been signed with it.
    disk::remove_folder(&partial).map_err(at(&partial))?;
    disk::make_folder(&partial).map_err(at(&partial))?;
    for (name, mode, text) in [(KEY_FILE, PRIVATE_MODE, key.expose()), (CERTIFICATE_FILE, PUBLIC_MODE, certificate_pem)]
    {
        let path = partial.join(name);
        disk::write_new(&path, mode, text).map_err(at(&path))?;
    }
    disk::sync(&partial).map_err(at(&partial))?;
    // The rename fails if another process has made the folder meanwhile, because that one is not empty.
    fs::rename(&partial, &folder).map_err(at(&folder))?;
    disk::sync(dir).map_err(at(dir))
}

/// Removes the folder. It is moved away first, so that what a crash leaves is none.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    let (folder, partial) = (path(dir), dir.join(PARTIAL_FOLDER));
    disk::remove_folder(&partial)?;
    fs::rename(&folder, &partial)?;
    disk::sync(dir)?;
    disk::remove_folder(&partial)
}

/// Removes what [`remove`] left when it was interrupted, a key among it; whether there was anything.
pub(super) fn remove_remains(dir: &Path) -> io::Result<bool> {
    let partial = dir.join(PARTIAL_FOLDER);
    let is_there = fs::symlink_metadata(&partial).is_ok();
    disk::remove_folder(&partial)?;
    Ok(is_there)
}

/// Reads the folder and checks that its parts are good and belong together.
pub(super) fn read(dir: &Path) -> Result<(P256Key, RootCertificate), OpenError> {
    let folder = path(dir);
    match fs::symlink_metadata(&folder) {
        Ok(_) => {}
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Err(OpenError::Absent { path: folder }),
        Err(source) => return Err(OpenError::Read { path: folder, source }),
    }
    let key = read_key(&folder.join(KEY_FILE))?;
    let root = read_certificate(&folder.join(CERTIFICATE_FILE))?;
    if key.public_point() != root.public_point {
        return Err(OpenError::Mismatch { path: folder });
    }
    Ok((key, root))
}

fn read_key(path: &Path) -> Result<P256Key, OpenError> {
    let bytes = disk::read_private(path).map_err(|error| refused(path, error))?;
    let damaged = |source| OpenError::Key { path: path.to_owned(), source };
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged(KeyError::Malformed))?;
    P256Key::from_pem(text).map_err(damaged)
}

fn read_certificate(path: &Path) -> Result<RootCertificate, OpenError> {
    let bytes = disk::read_public(path).map_err(|error| refused(path, error))?;
    let damaged = |source| OpenError::Certificate { path: path.to_owned(), source };
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged(RootError::Malformed))?;
    RootCertificate::from_pem(text, None).map_err(damaged)
}

fn refused(path: &Path, error: ReadError) -> OpenError {
    let path = path.to_owned();
    match error {
        ReadError::Io(source) => OpenError::Read { path, source },
        ReadError::TooLong => OpenError::TooLong { path },
        ReadError::Permissions(mode) => OpenError::Permissions { path, mode },
    }
}
