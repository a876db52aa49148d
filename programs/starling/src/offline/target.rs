//! A store that is filled.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use starling_store::{
    DirectoryLock, EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, ExaminedEtcd, ExaminedStore, Revision,
    Store, fill,
};

use super::source::refuse_servers;
use super::{Content, Fingerprint, STORE, Way};

/// Beside the store's folder: a store that is being filled.
const FILLING: &str = "store.filling";

/// Beside the store's folder: one that was replaced or copied away, with the time of that.
const ASIDE: &str = "store.aside-";

/// Where a store is to be, with what is there now.
pub(crate) enum Target {
    /// In a data directory.
    Embedded {
        directory: PathBuf,
        /// The store that is there, locked.
        present: Option<Box<ExaminedStore>>,
        /// Of a folder in which there is none, as that of a server on etcd.
        lock: Option<DirectoryLock>,
    },
    /// On etcd.
    Etcd(Box<ExaminedEtcd>),
}

/// A store that was filled, read back, and found the same.
#[derive(Debug)]
pub(crate) struct Filled {
    /// Its id.
    pub(crate) store: String,
    /// Its last revision.
    pub(crate) revision: Revision,
    /// Of what was read back.
    pub(crate) fingerprint: Fingerprint,
    /// Where the store went that was there before.
    pub(crate) aside: Option<PathBuf>,
}

impl Target {
    /// Looks at what is there. Anything but an empty store is refused, unless it is to be replaced.
    ///
    /// `memory` is the data directory of the server that is to use a store on etcd.
    ///
    /// # Errors
    /// When there is something, or it is in use or damaged.
    pub(crate) async fn open(way: &Way, memory: Option<&Path>, replace: bool) -> anyhow::Result<Self> {
        match way {
            Way::Embedded(directory) => {
                let folder = directory.join(STORE);
                if !EmbeddedStore::exists(&folder)? {
                    let lock = if folder.try_exists()? { Some(DirectoryLock::take_or_make(&folder)?) } else { None };
                    return Ok(Self::Embedded { directory: directory.clone(), present: None, lock });
                }
                let examine = move || EmbeddedStore::examine(&folder, EmbeddedOptions::default());
                let store = Box::new(tokio::task::spawn_blocking(examine).await??);
                refuse_content(&Content::of(String::new(), store.load()?), replace, "puts it aside")?;
                Ok(Self::Embedded { directory: directory.clone(), present: Some(store), lock: None })
            }
            Way::Etcd(options) => {
                let memory = memory.map(|directory| directory.join(STORE));
                let store = EtcdStore::examine(EtcdOptions { memory: None, ..EtcdOptions::clone(options) }).await?;
                let content = Content::of(String::new(), store.load().await?);
                refuse_servers(&content)?;
                if !replace {
                    store.refuse_unfinished()?;
                }
                refuse_content(&content, replace, "removes it")?;
                Ok(Self::Etcd(Box::new(store.remembered_in(memory))))
            }
        }
    }

    /// Fills it with what was read, beyond `after`, and puts it in place once `is_same` says that it may be.
    ///
    /// # Errors
    /// When it cannot be written or read back, or holds something else then; it is not in place then.
    pub(crate) async fn fill(
        self,
        content: &Content,
        after: Revision,
        progress: &(dyn Fn(usize, usize) + Sync),
        before_in_place: impl AsyncFnOnce(Fingerprint) -> anyhow::Result<()>,
    ) -> anyhow::Result<Filled> {
        match self {
            Self::Embedded { directory, present, lock } => {
                // Beyond those of the store that is there, too: its clients know them.
                let after = present.as_ref().map_or(after, |present| after.max(present.revision()));
                let fresh = directory.join(FILLING);
                remove_remains(&fresh)?;
                let make = {
                    let fresh = fresh.clone();
                    move || EmbeddedStore::make(&fresh, after, EmbeddedOptions::default())
                };
                let store = Arc::new(tokio::task::spawn_blocking(make).await??);
                let mut filled = write(&*store, content, progress).await?;
                before_in_place(filled.fingerprint).await?;
                store.close().await;
                filled.aside = put_in_place(&directory, &fresh)?;
                // Until here nobody else could open what was there.
                drop((present, lock));
                Ok(filled)
            }
            Self::Etcd(store) => {
                let filling = store.begin(after).await?;
                let filled = write(filling.store(), content, progress).await?;
                before_in_place(filled.fingerprint).await?;
                filling.finish().await?;
                Ok(filled)
            }
        }
    }
}

fn refuse_content(content: &Content, replace: bool, by_replacing: &str) -> anyhow::Result<()> {
    let count = content.entries.len();
    ensure!(replace || count == 0, "the store that is to be filled holds {count} records; --replace {by_replacing}");
    Ok(())
}

/// Fills an empty store, and reads it back.
async fn write(
    store: &dyn Store,
    content: &Content,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Filled> {
    fill(store, &content.entries, progress).await.context("cannot write the store that is filled")?;
    let read_back = store.load().await.context("cannot read back what was written")?;
    let read_back = Content::of(store.id().to_string(), read_back);
    let fingerprint = read_back.fingerprint();
    ensure!(
        fingerprint == content.fingerprint(),
        "what was written does not read back as it was: {fingerprint} in place of {}",
        content.fingerprint()
    );
    Ok(Filled { store: read_back.store, revision: read_back.revision, fingerprint, aside: None })
}

/// What an attempt that was interrupted left was never used.
fn remove_remains(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Moves the store's folder of a data directory aside, if there is one; answers where to.
///
/// # Errors
/// When the file system refuses.
pub(crate) fn put_aside(directory: &Path) -> anyhow::Result<Option<PathBuf>> {
    let folder = directory.join(STORE);
    if !folder.try_exists()? {
        return Ok(None);
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let free = |number: &u64| !directory.join(format!("{ASIDE}{number}")).exists();
    let number = (seconds..).find(free).unwrap_or(seconds);
    let aside = directory.join(format!("{ASIDE}{number}"));
    fs::rename(&folder, &aside).with_context(|| format!("moving {} to {}", folder.display(), aside.display()))?;
    sync(directory)?;
    Ok(Some(aside))
}

fn put_in_place(directory: &Path, fresh: &Path) -> anyhow::Result<Option<PathBuf>> {
    let folder = directory.join(STORE);
    let aside = put_aside(directory)?;
    let placed = fs::rename(fresh, &folder);
    placed.with_context(|| format!("moving {} to {}", fresh.display(), folder.display()))?;
    sync(directory)?;
    Ok(aside)
}

fn sync(directory: &Path) -> anyhow::Result<()> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("making the names in {} durable", directory.display()))
}
