//! The store on etcd: as durable and as available as its members, and shared by as many servers as wanted.
//!
//! Everything is under one prefix, see [`space`]. A transaction is one of etcd's; its revision is etcd's, so that servers
//! agree on the number of a change. While etcd cannot be reached nothing can be written, watches wait, and all goes on by
//! itself when it is back. Nothing here writes to the data outside of [`Store::commit`], but for the description of a store
//! that is made.

mod connection;
mod door;
mod filling;
mod lease;
mod load;
mod numbering;
mod space;
mod transaction;
mod trouble;
mod watching;
mod wire;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, watch};

use self::connection::{Connections, Failed};
use self::door::{Description, Memory};
use self::numbering::Numbering;
use self::space::Space;
use self::transaction::Verdict;
use self::watching::Watcher;
use self::wire::{RangeRequest, RangeResponse, TxnResponse};
use crate::embedded::DirectoryLock;
use crate::lease::Lease;
use crate::store::{CommitError, LoadError, Store, StoreMember, Watch, WatchError};
use crate::transaction::{Revision, Snapshot, Transaction};
use crate::{Epoch, StoreId};

pub use self::door::EtcdOpenError;
pub use self::filling::FillingEtcd;
pub use self::space::{EtcdPrefix, EtcdPrefixError};
pub use self::trouble::EtcdTrouble;

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// What is wrong with an outdated release.
const OUTDATED: &str = "may say that a watch is current before it is, so that changes are missed: use 3.5.13 or later";

/// Transactions under way at once; past this, callers of `commit` wait. Enough for etcd to fill its own groups, and far below
/// what it refuses.
const UNDER_WAY_MAX: usize = 512;

/// Who asks, where etcd wants to know.
#[derive(Clone)]
pub struct EtcdCredentials {
    /// The user.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for EtcdCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How etcd is spoken to over TLS.
#[derive(Clone)]
pub struct EtcdTls {
    /// Whose certificates are believed, in PEM.
    pub ca_pem: Vec<u8>,
    /// What is shown to etcd, if it asks.
    pub identity: Option<EtcdIdentity>,
}

/// A client's certificate with its key.
#[derive(Clone)]
pub struct EtcdIdentity {
    /// The chain, in PEM.
    pub certificate_pem: Vec<u8>,
    /// The private key, in PEM.
    pub key_pem: Vec<u8>,
}

/// Where a store is, and how to get there.
#[derive(Clone)]
pub struct EtcdOptions {
    /// The members, each `HOST:PORT`; at least one.
    pub endpoints: Vec<String>,
    /// Where in etcd.
    pub prefix: EtcdPrefix,
    /// `None` for plaintext.
    pub tls: Option<EtcdTls>,
    /// `None` where etcd asks nobody.
    pub credentials: Option<EtcdCredentials>,
    /// The directory in which is remembered which store this is, which no other process may use meanwhile; `None` to take any.
    pub memory: Option<PathBuf>,
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = formatter.debug_struct("EtcdOptions");
        options.field("endpoints", &self.endpoints).field("prefix", &self.prefix);
        options.field("has_tls", &self.tls.is_some()).field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

impl EtcdOptions {
    /// These members, and everything else as usual.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self { endpoints, prefix: EtcdPrefix::default(), tls: None, credentials: None, memory: None }
    }
}

/// A [`Store`] on etcd. Dropping it ends its watches.
pub struct EtcdStore {
    /// Of the directory that remembers it.
    _lock: Option<DirectoryLock>,
    shared: Arc<Shared>,
    under_way: Semaphore,
    description: Description,
    cluster: u64,
}

/// What a store and its watches share.
struct Shared {
    connections: Arc<Connections>,
    space: Space,
    /// Which store it is.
    id: StoreId,
    numbering: Numbering,
    /// The highest revision that somebody waits for and no event will bring.
    wanted: watch::Sender<u64>,
    closed: watch::Sender<bool>,
}

impl Shared {
    /// Somebody waits for a revision that no event may bring.
    fn want(&self, revision: Revision) {
        self.wanted.send_if_modified(|wanted| {
            let is_news = revision.0 > *wanted;
            *wanted = revision.0.max(*wanted);
            is_news
        });
    }
}

/// A store on etcd that was found good, or missing, and in which nothing was written yet.
pub struct ExaminedEtcd {
    connections: Arc<Connections>,
    prefix: EtcdPrefix,
    space: Space,
    memory: Option<Memory>,
    lock: Option<DirectoryLock>,
    cluster: u64,
    /// `None` if there is no store yet.
    description: Option<Description>,
}

impl fmt::Debug for ExaminedEtcd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ExaminedEtcd").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl ExaminedEtcd {
    /// Everything in it.
    ///
    /// # Errors
    /// [`LoadError::Unavailable`] if etcd does not answer with it.
    pub async fn load(&self) -> Result<Snapshot, LoadError> {
        let numbering = self.description.as_ref().map(Description::numbering).unwrap_or_default();
        let loaded = load::load(&self.connections, &self.space, self.id(), numbering).await;
        loaded.map_err(|trouble| LoadError::Unavailable(Arc::new(trouble)))
    }

    /// Opens it, making it if there is none.
    ///
    /// # Errors
    /// [`EtcdOpenError`]; [`EtcdOpenError::JustMade`] if there was none and now there is.
    pub async fn adopt(self) -> Result<EtcdStore, EtcdOpenError> {
        self.refuse_unfinished()?;
        let Self { connections, prefix, space, memory, lock, cluster, description } = self;
        let description = match description {
            Some(description) => description,
            None => door::make(&connections, &prefix, &space, Description::new()).await?,
        };
        if let Some(memory) = memory {
            memory.remember(cluster, description.id)?;
        }
        let version = connections.version().await?;
        if is_outdated(&version) {
            tracing::warn!(%version, "this etcd {OUTDATED}");
        }
        tracing::info!(%prefix, %version, cluster = format!("{cluster:016x}"), store = %description.id, "store on etcd opened");
        Ok(EtcdStore::of(connections, space, description, cluster, lock))
    }
}

impl EtcdStore {
    fn of(
        connections: Arc<Connections>,
        space: Space,
        description: Description,
        cluster: u64,
        lock: Option<DirectoryLock>,
    ) -> Self {
        let (wanted, closed) = (watch::Sender::new(0), watch::Sender::new(false));
        let (id, numbering) = (description.id, description.numbering());
        let shared = Arc::new(Shared { connections, space, id, numbering, wanted, closed });
        Self { _lock: lock, shared, under_way: Semaphore::new(UNDER_WAY_MAX), description, cluster }
    }

    /// Whether `directory` remembers a store on etcd.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub fn is_remembered(directory: &Path) -> io::Result<bool> {
        Memory::new(directory).exists()
    }

    /// Finds out what is there, without writing.
    ///
    /// # Errors
    /// [`EtcdOpenError`].
    pub async fn examine(options: EtcdOptions) -> Result<ExaminedEtcd, EtcdOpenError> {
        let connections = Arc::new(Connections::new(&options)?);
        let space = Space::new(&options.prefix);
        let lock = options.memory.as_deref().map(DirectoryLock::take_or_make).transpose()?;
        let memory = options.memory.as_deref().map(Memory::new);
        let (cluster, description) = door::look(&connections, &options.prefix, &space).await?;
        if let Some(memory) = &memory {
            memory.verify(cluster, description.as_ref())?;
        }
        Ok(ExaminedEtcd { connections, prefix: options.prefix, space, memory, lock, cluster, description })
    }

    /// Opens the store, making it if there is none.
    ///
    /// # Errors
    /// [`EtcdOpenError`].
    pub async fn open(options: EtcdOptions) -> Result<Self, EtcdOpenError> {
        Self::examine(options).await?.adopt().await
    }

    /// Which store this is.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.description.id
    }

    /// What tells the store's past from any other's: one for as long as the store lives in this cluster, whichever server
    /// asks.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch { id: (self.description.id.fold() ^ self.cluster).max(1), after: Revision::ZERO }
    }

    /// Ends all watches. Closing twice is fine.
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }

    fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Whether a watch can begin after `from`: one that cannot is told so by etcd some time later, if ever.
    async fn refuse_start(&self, from: Revision) -> Result<(), WatchError> {
        match self.at(from).await {
            Ok(_) => Ok(()),
            Err(EtcdTrouble::Other { message, .. }) if message.contains("future revision") => {
                let latest = self.at(Revision::ZERO).await.map_err(unavailable)?;
                if latest < from { Err(WatchError::Ahead { from, latest }) } else { Ok(()) }
            }
            Err(EtcdTrouble::Other { message, .. }) if message.contains("has been compacted") => {
                // The events of the revision to which etcd is compacted are there, but not what was before it.
                match self.at(from.next()).await {
                    Err(EtcdTrouble::Other { message, .. }) if message.contains("has been compacted") => {
                        // The watch itself is told from where one can begin.
                        let (first, _) = watching::advance(Some(self.watcher(from))).await.unzip();
                        first.unwrap_or(Err(WatchError::Closed)).map(|_| ())
                    }
                    Ok(_) => Ok(()),
                    Err(trouble) => Err(unavailable(trouble)),
                }
            }
            Err(trouble) => Err(unavailable(trouble)),
        }
    }

    /// Looks at etcd as it was at `revision`, or as it is for 0, and answers at which it is.
    async fn at(&self, revision: Revision) -> Result<Revision, EtcdTrouble> {
        let (key, revision) = (self.shared.space.meta.clone(), self.shared.numbering.theirs(revision));
        let one = RangeRequest { key, revision, ..RangeRequest::default() };
        let found: RangeResponse = self.shared.connections.read(RANGE, one).await?;
        Ok(self.shared.numbering.ours(found.header.unwrap_or_default().revision))
    }

    fn watcher(&self, from: Revision) -> Watcher {
        Watcher::new(Arc::clone(&self.shared), from)
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdStore").field("id", &self.description.id).finish_non_exhaustive()
    }
}

/// What a member complains of, or is to be complained of.
fn trouble(said: &wire::StatusResponse) -> Option<String> {
    let outdated = is_outdated(&said.version).then(|| format!("etcd {} {OUTDATED}", said.version));
    let all: Vec<_> = said.errors.iter().cloned().chain(outdated).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Whether a release may tell a watch that it has sent everything before it has: set right in 3.4.31 and 3.5.13
/// (etcd's issues 15220 and 17507). A version that cannot be read is taken for a good one.
fn is_outdated(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor), Some(patch)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return false;
    };
    match (major, minor) {
        (3, 4) => patch < 31,
        (3, 5) => patch < 13,
        other => other < (3, 4),
    }
}

fn unavailable(trouble: EtcdTrouble) -> WatchError {
    WatchError::Unavailable(Arc::new(trouble))
}

#[async_trait]
impl Store for EtcdStore {
    fn id(&self) -> StoreId {
        self.description.id
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        transaction.check()?;
        let _place = self.under_way.acquire().await.map_err(|_closed| CommitError::Closed)?;
        if self.is_closed() {
            return Err(CommitError::Closed);
        }
        let described = self.description.modified;
        let numbering = self.shared.numbering;
        let request = transaction::request(&self.shared.space, numbering, described, &transaction);
        let answered = self.shared.connections.write::<_, TxnResponse>(TXN, request).await;
        let answer = answered.map_err(|Failed { trouble, is_refusal }| match is_refusal {
            true => CommitError::Refused(Arc::new(trouble)),
            false => CommitError::Unavailable(Arc::new(trouble)),
        })?;
        match transaction::verdict(numbering, described, &transaction, &answer) {
            Ok(Verdict::Done(revision)) => Ok(revision),
            Ok(Verdict::Nothing(revision)) => {
                self.shared.want(revision);
                Ok(revision)
            }
            Ok(Verdict::Conflict(conflict)) => Err(conflict),
            Err(trouble) => Err(CommitError::Failed(Arc::new(trouble))),
        }
    }

    async fn load(&self) -> Result<Snapshot, LoadError> {
        if self.is_closed() {
            return Err(LoadError::Closed);
        }
        let Shared { connections, space, id, numbering, .. } = &*self.shared;
        load::load(connections, space, Some(*id), *numbering).await.map_err(|trouble| {
            let will_not_heal = trouble == EtcdTrouble::Replaced;
            let failure = Arc::new(trouble);
            if will_not_heal { LoadError::Failed(failure) } else { LoadError::Unavailable(failure) }
        })
    }

    async fn watch(&self, from: Revision) -> Result<Watch, WatchError> {
        if self.is_closed() {
            return Err(WatchError::Closed);
        }
        self.refuse_start(from).await?;
        Ok(Watch::new(futures::stream::unfold(Some(self.watcher(from)), watching::advance)))
    }

    async fn barrier(&self) -> Result<Revision, LoadError> {
        // Reads of etcd's are linearisable: this one is answered by a quorum.
        let at = self.at(Revision::ZERO).await.map_err(|trouble| LoadError::Unavailable(Arc::new(trouble)))?;
        self.shared.want(at);
        Ok(at)
    }

    async fn lease(&self, ttl: Duration) -> Result<Option<Lease>, LoadError> {
        let taken_out = lease::take_out(&self.shared.connections, ttl).await;
        taken_out.map(Some).map_err(|trouble| LoadError::Unavailable(Arc::new(trouble)))
    }

    async fn members(&self) -> Vec<StoreMember> {
        let statuses = self.shared.connections.statuses().await.into_iter();
        let member = |(address, said): (String, Result<wire::StatusResponse, EtcdTrouble>)| match said {
            Ok(said) => {
                let own = said.header.unwrap_or_default().member_id;
                StoreMember {
                    address,
                    leads: own != 0 && own == said.leader,
                    bytes: u64::try_from(said.db_size).unwrap_or_default(),
                    trouble: trouble(&said),
                    version: said.version,
                }
            }
            Err(trouble) => StoreMember { address, trouble: Some(trouble.to_string()), ..StoreMember::default() },
        };
        statuses.map(member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::is_outdated;

    #[test]
    fn releases_whose_watches_may_be_ahead_of_themselves_are_known() {
        for old in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.5.0-rc.1"] {
            assert!(is_outdated(old), "{old}");
        }
        for good in ["3.4.31", "3.5.13", "3.6.0", "3.6.14", "4.0.0", "", "main", "3.x"] {
            assert!(!is_outdated(good), "{good}");
        }
    }
}
