//! A store that is read: locked, or seen to have no servers.

use anyhow::{Context, bail, ensure};
use starling_store::{EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, ExaminedEtcd, ExaminedStore};

use super::{Content, STORE, Way};

/// A store that is read. That of a data directory is locked for as long as this lives.
pub(crate) enum Source {
    /// In a data directory.
    Embedded(Box<ExaminedStore>),
    /// On etcd.
    Etcd(Box<ExaminedEtcd>),
}

impl Source {
    /// Opens what is there for reading.
    ///
    /// # Errors
    /// When there is nothing, or it is in use, damaged or not whole.
    pub(crate) async fn open(way: &Way) -> anyhow::Result<Self> {
        match way {
            Way::Embedded(directory) => {
                let folder = directory.join(STORE);
                ensure!(EmbeddedStore::exists(&folder)?, "there is no store in {}", folder.display());
                let examine = move || EmbeddedStore::examine(&folder, EmbeddedOptions::default());
                let store = Box::new(tokio::task::spawn_blocking(examine).await??);
                Ok(Self::Embedded(store))
            }
            Way::Etcd(options) => {
                let store = EtcdStore::examine(EtcdOptions::clone(options)).await?;
                ensure!(store.is_made(), "there is no store under {} in that etcd", options.prefix);
                store.refuse_unfinished()?;
                Ok(Self::Etcd(Box::new(store)))
            }
        }
    }

    /// Everything in it that is to be kept.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) async fn read(&self) -> anyhow::Result<Content> {
        match self {
            Self::Embedded(store) => Ok(Content::of(store.id().to_string(), store.load()?)),
            Self::Etcd(store) => {
                let id = store.id().map(|id| id.to_string()).unwrap_or_default();
                Ok(Content::of(id, store.load().await?))
            }
        }
    }

    /// The same, if nobody writes to it meanwhile.
    ///
    /// # Errors
    /// When it cannot be read, or servers are running on it.
    pub(crate) async fn read_alone(&self) -> anyhow::Result<Content> {
        let content = self.read().await.context("cannot read the store that is copied")?;
        refuse_servers(&content)?;
        Ok(content)
    }
}

/// Refuses a store on which servers are running.
pub(super) fn refuse_servers(content: &Content) -> anyhow::Result<()> {
    if content.servers.is_empty() {
        return Ok(());
    }
    bail!(
        "{} servers are running on that store ({}); stop them: what they write meanwhile would be lost. One that was killed \
         counts for some seconds",
        content.servers.len(),
        content.servers.join(", ")
    )
}
