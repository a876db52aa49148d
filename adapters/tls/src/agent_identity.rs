//! What an agent is known by, on disk: `agent/identity/{cert.pem,key.pem,roots.pem}` below its data directory.
//!
//! The three belong together, so the folder is replaced as a whole: the new one is written beside it, the old one is moved
//! away, and the new one takes its place. A crash in between leaves the old one, which is good until it expires.

use std::path::{Path, PathBuf};
use std::{fs, io};

use starling_identity::Identity;
use zeroize::Zeroizing;

use crate::credentials::{Credentials, CredentialsError};
use crate::disk::{self, FILE_BYTES_MAX, PRIVATE_MODE, ReadError};
use crate::key::{KeyError, LeafKey};
use crate::roots::{RootError, TrustRoots};

const PARENT_FOLDER: &str = "agent";
const FOLDER: &str = "agent/identity";
const PARTIAL_FOLDER: &str = "agent/identity.partial";
const OLD_FOLDER: &str = "agent/identity.old";
const CERTIFICATE_FILE: &str = "cert.pem";
const KEY_FILE: &str = "key.pem";
const ROOTS_FILE: &str = "roots.pem";

/// Why an agent has no identity to use.
#[derive(Debug, thiserror::Error)]
pub enum AgentIdentityError {
    /// It has not joined.
    #[error("this agent has not joined: there is no {}; start it with --join-token", path.display())]
    Absent {
        /// The folder.
        path: PathBuf,
    },
    /// A file is missing or cannot be read.
    #[error("cannot read {}; make it readable, or remove its folder and join again with a new join token", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The files are open to others than their owner.
    #[error(
        "{} has mode {mode:04o}: others than its owner may pose as this node; set it to 0600, or, if somebody may have read \
         it, remove its folder and join again with a new join token",
        path.display()
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// What was read cannot be used.
    #[error("the identity in {} is damaged; remove the folder and join again with a new join token", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        source: MaterialError,
    },
    /// What was to be kept cannot be used; nothing was written.
    #[error("the identity is not kept")]
    Unfit(#[from] MaterialError),
    /// A file or folder cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why certificate, key and roots are not an agent's identity.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// A file is far larger than its contents can be.
    #[error("{file} is larger than {FILE_BYTES_MAX} bytes")]
    TooLong {
        /// The file's name.
        file: &'static str,
    },
    /// The key cannot be used.
    #[error("the private key cannot be used")]
    Key(#[from] KeyError),
    /// The certificate cannot be used, or is of another key.
    #[error("the certificate cannot be used")]
    Credentials(#[from] CredentialsError),
    /// The roots cannot be used.
    #[error("the roots cannot be used")]
    Roots(#[from] RootError),
    /// The certificate is a good one, but not an agent's.
    #[error("the certificate is that of {0}, which is no agent and no relay")]
    NotAnAgent(Box<Identity>),
}

/// What an agent is known by, and whom it trusts. The certificate may have expired since it was written.
#[derive(Debug, Clone)]
pub struct AgentIdentity {
    /// The certificate with its key; it names an [`Identity::Agent`] or an [`Identity::Relay`] of the roots' trust domain.
    pub credentials: Credentials,
    /// The roots of the mesh.
    pub roots: TrustRoots,
}

impl AgentIdentity {
    /// Reads the identity below the data directory `dir`.
    ///
    /// # Errors
    /// [`AgentIdentityError`] if there is none, it cannot be used, or others may read it. Nothing is repaired.
    pub fn load(dir: &Path) -> Result<Self, AgentIdentityError> {
        let folder = present_folder(dir)?;
        let certificate = read(&folder, CERTIFICATE_FILE)?;
        let key = read(&folder, KEY_FILE)?;
        let roots = read(&folder, ROOTS_FILE)?;
        let identity = LeafKey::from_pem(text(&key)).map_err(MaterialError::from);
        let identity = identity.and_then(|key| Self::new(text(&certificate), &key, text(&roots)));
        identity.map_err(|source| AgentIdentityError::Damaged { path: folder, source })
    }

    /// Keeps an identity below the data directory `dir` in place of the one that is there. It is on disk when this
    /// returns.
    ///
    /// `roots_pem` is all roots in one text.
    ///
    /// # Errors
    /// [`AgentIdentityError::Unfit`] if it could not be loaded again, [`AgentIdentityError::Write`] if it cannot be
    /// written; the one that is there stays.
    pub fn save(dir: &Path, chain_pem: &str, key: &LeafKey, roots_pem: &str) -> Result<Self, AgentIdentityError> {
        let identity = Self::new(chain_pem, key, roots_pem)?;
        let key_pem = key.private_key_pem().map_err(MaterialError::from)?;
        let [folder, partial, old] = [FOLDER, PARTIAL_FOLDER, OLD_FOLDER].map(|name| dir.join(name));
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| AgentIdentityError::Write { path, source }
        };
        disk::remove_folder(&partial).map_err(at(&partial))?;
        disk::make_folder(&partial).map_err(at(&partial))?;
        for (name, text) in [(CERTIFICATE_FILE, chain_pem), (KEY_FILE, key_pem.expose()), (ROOTS_FILE, roots_pem)] {
            let path = partial.join(name);
            disk::write_new(&path, PRIVATE_MODE, text).map_err(at(&path))?;
        }
        disk::sync(&partial).map_err(at(&partial))?;
        // The old folder may go once there is a current one beside it, and only then.
        match present_folder(dir) {
            Ok(_) => {
                disk::remove_folder(&old).map_err(at(&old))?;
                fs::rename(&folder, &old).map_err(at(&folder))?;
            }
            Err(AgentIdentityError::Absent { .. }) => {}
            Err(error) => return Err(error),
        }
        fs::rename(&partial, &folder).map_err(at(&folder))?;
        let parent = dir.join(PARENT_FOLDER);
        disk::sync(&parent).map_err(at(&parent))?;
        disk::remove_folder(&old).map_err(at(&old))?;
        Ok(identity)
    }

    /// The key that is kept below the data directory `dir`, whether its certificate is good or not. The servers know the
    /// node by it.
    ///
    /// # Errors
    /// As [`AgentIdentity::load`], except for a missing identity.
    pub fn kept_key(dir: &Path) -> Result<Option<LeafKey>, AgentIdentityError> {
        let folder = match present_folder(dir) {
            Err(AgentIdentityError::Absent { .. }) => return Ok(None),
            folder => folder?,
        };
        let key = LeafKey::from_pem(text(&read(&folder, KEY_FILE)?)).map_err(MaterialError::from);
        key.map(Some).map_err(|source| AgentIdentityError::Damaged { path: folder, source })
    }

    /// Trusts other roots, on disk too; certificate and key stay.
    ///
    /// # Errors
    /// As [`AgentIdentity::load`] and [`AgentIdentity::save`]; the ones that are there stay.
    pub fn trust(dir: &Path, roots_pem: &str) -> Result<Self, AgentIdentityError> {
        let folder = present_folder(dir)?;
        let certificate = read(&folder, CERTIFICATE_FILE)?;
        let key = read(&folder, KEY_FILE)?;
        let key = LeafKey::from_pem(text(&key)).map_err(MaterialError::from);
        let key = key.map_err(|source| AgentIdentityError::Damaged { path: folder, source })?;
        Self::save(dir, text(&certificate), &key, roots_pem)
    }

    fn new(chain_pem: &str, key: &LeafKey, roots_pem: &str) -> Result<Self, MaterialError> {
        let credentials = Credentials::new(chain_pem, key)?;
        let roots = TrustRoots::from_bundle(credentials.identity().trust_domain(), roots_pem)?;
        match credentials.identity() {
            Identity::Agent { .. } | Identity::Relay { .. } => Ok(Self { credentials, roots }),
            other @ (Identity::Workload(_) | Identity::Server { .. } | Identity::Authority(_)) => {
                Err(MaterialError::NotAnAgent(Box::new(other.clone())))
            }
        }
    }
}

/// The folder, put back if a crash came between moving it away and its replacement.
fn present_folder(dir: &Path) -> Result<PathBuf, AgentIdentityError> {
    let path = dir.join(FOLDER);
    match path.try_exists() {
        Ok(true) => return Ok(path),
        Ok(false) => {}
        Err(source) => return Err(AgentIdentityError::Read { path, source }),
    }
    match fs::rename(dir.join(OLD_FOLDER), &path) {
        Ok(()) => Ok(path),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Err(AgentIdentityError::Absent { path }),
        Err(source) => Err(AgentIdentityError::Read { path, source }),
    }
}

fn read(folder: &Path, file: &'static str) -> Result<Zeroizing<Vec<u8>>, AgentIdentityError> {
    let path = folder.join(file);
    disk::read_private(&path).map_err(|error| match error {
        ReadError::Io(source) => AgentIdentityError::Read { path, source },
        ReadError::Permissions(mode) => AgentIdentityError::Permissions { path, mode },
        ReadError::TooLong => {
            let path = folder.to_owned();
            AgentIdentityError::Damaged { path, source: MaterialError::TooLong { file } }
        }
    })
}

/// Bytes as text. What is not text is no PEM either, and is refused as such.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
