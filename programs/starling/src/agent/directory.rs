//! The agent's data directory, used by one agent at a time.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// What is locked in it.
const LOCK: &str = "agent.lock";

/// A directory that is this process's until this is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    _lock: Flock<File>,
}

impl Directory {
    /// Locks the directory.
    ///
    /// # Errors
    /// If another process has it.
    pub(super) fn lock(path: PathBuf) -> anyhow::Result<Self> {
        let file = path.join(LOCK);
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&file);
        let opened = opened.with_context(|| format!("opening {}", file.display()))?;
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err((_, Errno::EWOULDBLOCK)) => bail!("another agent uses the data directory {}", path.display()),
            Err((_, error)) => Err(error).with_context(|| format!("locking {}", file.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_agents_never_share_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = Directory::lock(directory.path().to_owned()).unwrap();
        let error = Directory::lock(directory.path().to_owned()).expect_err("in use").to_string();
        assert!(error.contains("another agent uses"), "{error}");
        drop(first);
        Directory::lock(directory.path().to_owned()).expect("free again");
    }
}
