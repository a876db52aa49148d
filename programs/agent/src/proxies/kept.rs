//! Which proxies are attached from outside, on disk: an agent that is restarted knows whom to expect back.
//!
//! Written when one attaches that is not there yet, before it is told anything. What ends stays until its sidecar is
//! deregistered; the agent that reads it waits for it in vain, for a while. A machine that dies takes its proxies with it, so
//! nothing here is worth an fsync.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use starling_model::InstanceId;

/// Name of the file below the agent's directory.
const FILE: &str = "proxies";

/// The proxies that are kept.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    ids: Mutex<BTreeSet<InstanceId>>,
}

impl Kept {
    /// Those of the agent whose data is there; none if they cannot be read.
    pub(crate) fn read(data_dir: &Path) -> Self {
        let path = data_dir.join("agent").join(FILE);
        let ids = match fs::read(&path).map(|bytes| serde_json::from_slice(&bytes)) {
            Ok(Ok(ids)) => ids,
            Ok(Err(_)) => {
                tracing::warn!(path = %path.display(), "which proxies were attached is damaged; nobody is expected back");
                BTreeSet::new()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "which proxies were attached cannot be read");
                BTreeSet::new()
            }
        };
        Self { path, ids: Mutex::new(ids) }
    }

    /// The proxies.
    pub(crate) fn ids(&self) -> BTreeSet<InstanceId> {
        self.lock().clone()
    }

    /// One attaches.
    pub(super) fn add(&self, id: &InstanceId) {
        let mut ids = self.lock();
        if ids.insert(id.clone()) {
            self.write(&ids);
        }
    }

    /// Forgets those that are not registered.
    pub(super) fn forget_gone(&self, is_registered: impl Fn(&InstanceId) -> bool) {
        let mut ids = self.lock();
        let before = ids.len();
        ids.retain(is_registered);
        if ids.len() != before {
            self.write(&ids);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<InstanceId>> {
        // A panic while holding the lock leaves a plain set.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, ids: &BTreeSet<InstanceId>) {
        let partial = self.path.with_extension("partial");
        let written = serde_json::to_vec(ids).map_err(io::Error::other).and_then(|bytes| {
            fs::write(&partial, bytes)?;
            fs::rename(&partial, &self.path)
        });
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "which proxies are attached cannot be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_attached_is_there_after_a_restart_until_it_is_deregistered() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("agent")).unwrap();
        let id = |name: &str| InstanceId::new(name).unwrap();
        let kept = Kept::read(folder.path());
        assert!(kept.ids().is_empty());
        kept.add(&id("web"));
        kept.add(&id("api"));
        assert_eq!(Kept::read(folder.path()).ids(), BTreeSet::from([id("api"), id("web")]));
        kept.forget_gone(|registered| *registered == id("api"));
        assert_eq!(Kept::read(folder.path()).ids(), BTreeSet::from([id("api")]));
        fs::write(folder.path().join("agent/proxies"), "[").unwrap();
        assert!(Kept::read(folder.path()).ids().is_empty());
    }
}
