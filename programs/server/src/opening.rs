//! Opening a data directory: what must be there together, and that nothing is written before all of it was found good.
//!
//! Each part is verified by whoever owns it. What is held here is one part against another: the store, the CA and what an
//! agent keeps beside them each say of the others that they were there. A part that is gone is never made anew in silence,
//! since the rest would then be brought into line with nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_attach::{Epoch, Lineage};
use starling_catalog::Snapshot;
use starling_model::{NodeName, Revision};
use starling_store::{
    CommitError, EmbeddedOptions, EmbeddedStore, EtcdOpenError, EtcdOptions, EtcdStore, ExaminedEtcd, ExaminedStore,
    LoadError, Store, WatchError,
};
use starling_telemetry::Registry;
use starling_tls::{CertificateAuthority, OpenError};

use crate::server::{Server, ServerConfig, StoreKind};
use crate::turn;

mod authority;

/// How long an etcd is waited for that does not answer, or has no leader; and the pause between two looks.
const ETCD_PATIENCE: Duration = Duration::from_secs(60);
const ETCD_PAUSE: Duration = Duration::from_secs(1);

/// The store's folder in the data directory.
const STORE: &str = "store";
/// In the store's folder: what is remembered of one on etcd.
const ETCD: &str = "etcd";
/// The CA's.
const AUTHORITY: &str = authority::FOLDER;
/// The agent's journal.
const JOURNAL: &str = "agent/journal.jsonl";
/// The node's UUID.
const NODE_ID: &str = "node-id";

/// Why the parts of a data directory do not go together. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    /// There is no store beside parts that are made after it.
    #[error(
        "{} is there, but there is no store in {}: every service, intention and config entry is missing; nothing was changed: restore the store from a backup, or begin anew with another data directory",
        beside.display(), path.display()
    )]
    StoreMissing {
        /// The store's folder.
        path: PathBuf,
        /// What is there.
        beside: PathBuf,
    },
    /// The directory is one of a server whose store is of the other kind.
    #[error(
        "{} is there, but --store says otherwise: the catalog would be another one; nothing was changed: start with the store that this directory goes with, or name another data directory",
        beside.display()
    )]
    OtherKind {
        /// What there is of the other kind.
        beside: PathBuf,
    },
    /// There is no CA beside a store that knows one.
    #[error(
        "{} does not exist, but the store trusts the CA {root}; nothing was changed: restore it from a backup, or begin anew with another data directory",
        path.display()
    )]
    AuthorityMissing {
        /// The CA's folder.
        path: PathBuf,
        /// The id of the root in the store.
        root: String,
    },
    /// Several servers issue under one CA, whose key each of them has to have.
    #[error(
        "a store on etcd needs --seal-key-file: every server issues under one CA, whose key is in the store, sealed; nothing was changed: make a file of seal keys once with `starling ca new-seal-key FILE`, give the same one to every server, and keep a copy in a safe place"
    )]
    SealKeyRequired,
    /// The CA's key is sealed, and there is nothing to open it with.
    #[error(
        "the key of the CA {root} is in the store, sealed with the seal key {seal_key}; nothing was changed: give the file that holds it by --seal-key-file"
    )]
    Sealed {
        /// The id of the root.
        root: String,
        /// The id of the seal key.
        seal_key: String,
    },
    /// The CA signs elsewhere.
    #[error(
        "under the CA {root} a Vault signs, at the mount {mount}; nothing was changed: say in [ca.vault] of the file of --config how it is reached"
    )]
    InVault {
        /// The id of the root.
        root: String,
        /// The mount.
        mount: String,
    },
    /// There is no key of the CA, neither in the store nor beside it.
    #[error(
        "the store trusts the CA {root}, and the key of it is neither there nor in {}; nothing was changed: start, with this seal key, the server that has it in its data directory, and it moves to the store; or restore the store from a backup",
        path.display()
    )]
    KeyMissing {
        /// The CA's folder.
        path: PathBuf,
        /// The id of the root.
        root: String,
    },
    /// The CA is another than the store's.
    #[error(
        "the CA in {} is {found}, but the store trusts {root}; nothing was changed: restore that CA from a backup, or begin anew with another data directory",
        path.display()
    )]
    AuthorityForeign {
        /// The CA's folder.
        path: PathBuf,
        /// The id of its root.
        found: String,
        /// The id of the root in the store.
        root: String,
    },
    /// The records of the CA cannot be read, so this server would create a second CA beside the first.
    #[error(
        "the store holds the CA record {key}, which this release cannot read ({reason}), and no other root signs; nothing was changed: start the release that wrote it, or restore the store from a backup"
    )]
    AuthorityUnreadable {
        /// The record's key.
        key: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// There is no UUID for a node that the store knows by one.
    #[error(
        "{} does not exist, but the store knows the node {node} by the id {id}; nothing was changed: restore it, or write that id to it",
        path.display()
    )]
    NodeIdMissing {
        /// The file.
        path: PathBuf,
        /// The node.
        node: NodeName,
        /// Its id in the store.
        id: String,
    },
    /// There is no journal for a node that the store knows.
    #[error(
        "{} does not exist, but the store has {instances} services of the node {node}, which the agent would remove; nothing was changed: restore it from a backup, or, to go on without them, make it with the one line {{\"format\":\"starling-agent-journal\",\"version\":1}}",
        path.display()
    )]
    JournalMissing {
        /// The file.
        path: PathBuf,
        /// The node.
        node: NodeName,
        /// How many instances of it the store has.
        instances: usize,
    },
}

/// A data directory that was found good so far, and in which nothing was written yet.
///
/// The store is locked; dropping this gives that up and leaves everything as it was.
#[derive(Debug)]
pub struct Opening {
    config: ServerConfig,
    store: Examined,
    catalog: Snapshot,
    /// The CA in the data directory, if there is one.
    authority: Option<CertificateAuthority>,
}

/// A store that was found good.
#[derive(Debug)]
enum Examined {
    Embedded(ExaminedStore),
    Etcd(Box<ExaminedEtcd>),
}

impl Opening {
    /// Verifies the store and the CA, and that they belong together.
    ///
    /// # Errors
    /// When one of them is damaged or in use, or [`Inconsistent`].
    pub async fn examine(config: ServerConfig) -> anyhow::Result<Self> {
        let (store, stored) = match &config.store {
            StoreKind::Embedded => examine_embedded(&config.data_dir).await?,
            StoreKind::Etcd(options) => examine_etcd(&config.data_dir, options).await?,
        };
        let catalog = turn::catalog(&stored);
        let in_files = match CertificateAuthority::open(&config.data_dir) {
            Err(OpenError::Absent { .. }) => None,
            opened => Some(opened?),
        };
        authority::examine(&config, &catalog, in_files.as_ref())?;
        Ok(Self { config, store, catalog, authority: in_files })
    }

    /// Holds what the agent of `node`, which lives in the same directory, keeps there against the catalog.
    ///
    /// # Errors
    /// [`Inconsistent`] if the catalog knows the node, and its id or its journal is not there.
    pub fn verify_agent(&self, node: &NodeName, has_id: bool, has_journal: bool) -> Result<(), Inconsistent> {
        let Some(known) = self.catalog.node(node) else { return Ok(()) };
        if !has_id {
            let (path, id) = (self.config.data_dir.join(NODE_ID), known.value.id.clone());
            return Err(Inconsistent::NodeIdMissing { path, node: node.clone(), id });
        }
        if !has_journal {
            let (path, instances) = (self.config.data_dir.join(JOURNAL), self.catalog.instances_on(node).count());
            return Err(Inconsistent::JournalMissing { path, node: node.clone(), instances });
        }
        Ok(())
    }

    /// Opens everything for writing, and starts the server. Where etcd ceases to answer meanwhile, or another server has made
    /// the store at the same moment, everything is examined anew.
    ///
    /// # Errors
    /// When the disk does not take what is to be written, or etcd nothing for a minute.
    pub async fn start(self, registry: &Registry) -> anyhow::Result<Arc<Server>> {
        let begun = Instant::now();
        let mut opening = self;
        loop {
            let config = opening.config.clone();
            match opening.open(registry).await {
                Err(reason) if may_pass(&reason) && begun.elapsed() < ETCD_PATIENCE => {
                    let reason = format!("{reason:#}");
                    tracing::warn!(reason, "this server could not start on its store yet, and looks at it anew");
                    tokio::time::sleep(ETCD_PAUSE).await;
                    opening = Self::examine(config).await?;
                }
                opened => return opened,
            }
        }
    }

    async fn open(self, registry: &Registry) -> anyhow::Result<Arc<Server>> {
        let Self { config, store, catalog, authority: in_files } = self;
        let (store, lineage): (Arc<dyn Store>, _) = match store {
            Examined::Embedded(store) => {
                let store = tokio::task::spawn_blocking(move || store.adopt()).await??;
                let lineage = lineage(store.epochs());
                (Arc::new(store), lineage)
            }
            Examined::Etcd(store) => {
                let store = store.adopt().await?;
                let lineage = lineage(&[store.epoch()]);
                (Arc::new(store), lineage)
            }
        };
        let (catalog, signer) = authority::establish(&config, &store, catalog, in_files).await?;
        Server::run(config, store, catalog, lineage, signer, registry).await
    }
}

/// The store's openings, as agents are told of them.
fn lineage(epochs: &[starling_store::Epoch]) -> Lineage {
    let epoch = |epoch: &starling_store::Epoch| Epoch { id: epoch.id, after: Revision(epoch.after.0) };
    Lineage::new(epochs.iter().map(epoch).collect())
}

async fn examine_embedded(data_dir: &Path) -> anyhow::Result<(Examined, starling_store::Snapshot)> {
    let directory = data_dir.join(STORE);
    if EtcdStore::is_remembered(&directory)? {
        return Err(Inconsistent::OtherKind { beside: directory.join(ETCD) }.into());
    }
    refuse_missing_store(data_dir, &directory)?;
    let examined = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
        let store = EmbeddedStore::examine(&directory, EmbeddedOptions::default())?;
        let stored = store.load()?;
        Ok((Examined::Embedded(store), stored))
    });
    examined.await?
}

/// Of a store on etcd nothing need be in the directory: another server may have made it.
async fn examine_etcd(data_dir: &Path, options: &EtcdOptions) -> anyhow::Result<(Examined, starling_store::Snapshot)> {
    let directory = data_dir.join(STORE);
    if EmbeddedStore::exists(&directory)? {
        return Err(Inconsistent::OtherKind { beside: directory }.into());
    }
    let options = EtcdOptions { memory: Some(directory), ..options.clone() };
    let begun = Instant::now();
    loop {
        match look_at_etcd(&options).await {
            // It is being started itself, or has no leader now.
            Err(reason) if may_pass(&reason) && begun.elapsed() < ETCD_PATIENCE => {
                let (left, reason) = (ETCD_PATIENCE.saturating_sub(begun.elapsed()).as_secs(), format!("{reason:#}"));
                tracing::warn!(reason, gives_up_in_s = left, "waiting for the etcd of --store");
                tokio::time::sleep(ETCD_PAUSE).await;
            }
            looked => return looked,
        }
    }
}

async fn look_at_etcd(options: &EtcdOptions) -> anyhow::Result<(Examined, starling_store::Snapshot)> {
    let store = EtcdStore::examine(options.clone()).await?;
    store.refuse_unfinished()?;
    let stored = store.load().await?;
    Ok((Examined::Etcd(Box::new(store)), stored))
}

/// Whether a start that failed so may go well a moment later.
fn may_pass(error: &anyhow::Error) -> bool {
    // The store of a first start of several may be another's, and so is what it holds by now.
    let opened = error.downcast_ref().is_some_and(|error| {
        matches!(error, EtcdOpenError::JustMade { .. })
            || matches!(error, EtcdOpenError::Trouble(trouble) if trouble.may_pass())
    });
    let loaded = error.downcast_ref().is_some_and(|error| matches!(error, LoadError::Unavailable(_)));
    let written = error.downcast_ref().is_some_and(|error| matches!(error, CommitError::Unavailable(_)));
    // etcd may forget what came between a look and the watch from there on.
    let watched = error
        .downcast_ref()
        .is_some_and(|error| matches!(error, WatchError::Unavailable(_) | WatchError::Compacted { .. }));
    opened || loaded || written || watched
}

/// The store is made first of all, so that a start that was interrupted never leaves the others without it.
fn refuse_missing_store(data_dir: &Path, store: &Path) -> anyhow::Result<()> {
    if EmbeddedStore::exists(store)? {
        return Ok(());
    }
    let others = [AUTHORITY, JOURNAL, NODE_ID].map(|name| data_dir.join(name));
    match others.into_iter().find(|other| other.symlink_metadata().is_ok()) {
        Some(beside) => Err(Inconsistent::StoreMissing { path: store.to_owned(), beside }.into()),
        None => Ok(()),
    }
}
