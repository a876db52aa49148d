//! Opening a store on etcd: what is found there is not yet trusted.
//!
//! The store describes itself under one key: the format, its version, and an id drawn at random when it was made. A server
//! that has once opened a store remembers it, with etcd's own id for the cluster, in its data directory; so one that is
//! pointed at another etcd, or whose etcd was set up anew, refuses to serve an empty catalog as if it were the true one.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::connection::Connections;
use super::numbering::Numbering;
use super::space::{EtcdPrefix, Space};
use super::transaction::{is_absent, put};
use super::trouble::EtcdTrouble;
use super::wire::{KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use super::{RANGE, TXN};
use crate::StoreId;
use crate::embedded::OpenError;

/// Name of what a server remembers.
const FILE_NAME: &str = "etcd";

/// First line of the description, and of what a server remembers.
const FORMAT: &str = "starling-store";

/// The layout written and understood here.
const SCHEMA_VERSION: u32 = 2;

/// In the description, before a number: what is added to etcd's revisions.
const OFFSET: &str = "offset ";

/// In the description of a store that is not whole yet.
const UNFINISHED: &str = "unfinished";

/// Mode of the directory, and of the file in it.
const MODES: (u32, u32) = (0o700, 0o600);

/// Why a store on etcd was refused; nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdOpenError {
    /// etcd did not do what it was asked.
    #[error("the etcd store cannot be opened")]
    Trouble(#[from] EtcdTrouble),
    /// The directory in which is remembered which store this is cannot be used, as while another server runs with it.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// Something else is under the prefix.
    #[error(
        "there are keys under {prefix} in etcd that no starling wrote, such as {key}; nothing was changed: choose another \
         prefix, as in etcd://HOST:PORT/PREFIX"
    )]
    Foreign {
        /// The prefix.
        prefix: EtcdPrefix,
        /// One of the keys.
        key: String,
    },
    /// A later release wrote it.
    #[error(
        "the data under {prefix} in etcd have schema {found}, this release understands up to {supported}; nothing was \
         changed: use the release that wrote them, or a later one"
    )]
    NewerSchema {
        /// The prefix.
        prefix: EtcdPrefix,
        /// Its schema version.
        found: u32,
        /// The newest version understood here.
        supported: u32,
    },
    /// It is not the store that this server knows.
    #[error(
        "{} says that this server's store is {expected}, but {found}; nothing was changed: name the right endpoints and \
         prefix, restore etcd from a backup, or begin with another data directory",
        path.display()
    )]
    OtherStore {
        /// What the server remembers it by.
        path: PathBuf,
        /// What is remembered.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Another server made the store in this moment.
    #[error("another server has just made the store under {prefix} in etcd; start again to join it")]
    JustMade {
        /// The prefix.
        prefix: EtcdPrefix,
    },
    /// It is not whole.
    #[error(
        "the store under {prefix} in etcd is being filled by `starling store copy` or `starling snapshot restore`, or was \
         when that was interrupted; nothing was changed: let that end, or run it again with --replace"
    )]
    Unfinished {
        /// The prefix.
        prefix: EtcdPrefix,
    },
    /// Somebody else changed it while it was being made or filled.
    #[error("the store under {prefix} in etcd was changed by somebody else meanwhile: look who, and begin again")]
    Changed {
        /// The prefix.
        prefix: EtcdPrefix,
    },
    /// What is remembered cannot be read.
    #[error("{} is damaged; it says which etcd has the data: restore it from a backup, or, if you are sure of the etcd, remove it", path.display())]
    BadMemory {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// A store, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) id: StoreId,
    offset: u64,
    /// Whether it is still being filled, or was when that was interrupted.
    pub(super) is_unfinished: bool,
    /// The description's very bytes.
    pub(super) bytes: Bytes,
    /// The revision of etcd's that wrote it; 0 until it is written.
    pub(super) modified: i64,
}

impl Description {
    pub(super) fn new() -> Self {
        Self::of(StoreId::random(), 0, false)
    }

    /// Of a store that is about to be filled, whose revisions are `offset` beyond etcd's.
    pub(super) fn unfinished(offset: u64) -> Self {
        Self::of(StoreId::random(), offset, true)
    }

    /// The same, once it is filled.
    pub(super) fn finished(&self) -> Self {
        Self::of(self.id, self.offset, false)
    }

    fn of(id: StoreId, offset: u64, is_unfinished: bool) -> Self {
        // The first release knew neither, and must not take such a store for one of its own.
        let schema = if offset > 0 || is_unfinished { SCHEMA_VERSION } else { 1 };
        let mut text = format!("{FORMAT}\nschema {schema}\nid {id}\n");
        if offset > 0 {
            text.push_str(&format!("{OFFSET}{offset}\n"));
        }
        if is_unfinished {
            text.push_str(&format!("{UNFINISHED}\n"));
        }
        Self { id, offset, is_unfinished, bytes: text.into(), modified: 0 }
    }

    /// The same, once a transaction has written it.
    pub(super) fn written(self, by: &TxnResponse) -> Self {
        Self { modified: by.header.unwrap_or_default().revision, ..self }
    }

    /// How far its revisions are beyond etcd's.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn numbering(&self) -> Numbering {
        Numbering { offset: self.offset }
    }

    fn read(prefix: &EtcdPrefix, kv: KeyValue) -> Result<Self, EtcdOpenError> {
        let KeyValue { key, value: bytes, mod_revision: modified, .. } = kv;
        let foreign =
            || EtcdOpenError::Foreign { prefix: prefix.clone(), key: String::from_utf8_lossy(&key).into_owned() };
        let text = std::str::from_utf8(&bytes).map_err(|_| foreign())?;
        let mut lines = text.lines();
        if lines.next() != Some(FORMAT) {
            return Err(foreign());
        }
        let schema = lines.next().and_then(|line| line.strip_prefix("schema ")?.parse().ok()).ok_or_else(foreign)?;
        if schema > SCHEMA_VERSION {
            let prefix = prefix.clone();
            return Err(EtcdOpenError::NewerSchema { prefix, found: schema, supported: SCHEMA_VERSION });
        }
        let id = lines.next().and_then(|line| StoreId::parse(line.strip_prefix("id ")?)).ok_or_else(foreign)?;
        let (mut offset, mut is_unfinished) = (0, false);
        for line in lines {
            match line.strip_prefix(OFFSET) {
                Some(number) => offset = number.parse().map_err(|_| foreign())?,
                None if line == UNFINISHED => is_unfinished = true,
                None => return Err(foreign()),
            }
        }
        Ok(Self { id, offset, is_unfinished, bytes, modified })
    }
}

/// Refuses what is at the key of a store's description if that is not the description of this one.
pub(super) fn is_of(id: StoreId, description: &[u8]) -> Result<(), EtcdTrouble> {
    let text = std::str::from_utf8(description).ok();
    let found = text.and_then(|text| text.lines().find_map(|line| StoreId::parse(line.strip_prefix("id ")?)));
    if found == Some(id) { Ok(()) } else { Err(EtcdTrouble::Replaced) }
}

/// etcd's own revision now.
pub(super) async fn revision(connections: &Connections, space: &Space) -> Result<u64, EtcdTrouble> {
    let one = RangeRequest { key: space.meta.clone(), ..RangeRequest::default() };
    let found: RangeResponse = connections.read(RANGE, one).await?;
    Ok(u64::try_from(found.header.unwrap_or_default().revision).unwrap_or_default())
}

/// What is in etcd: its cluster, and the store's description if there is a store.
pub(super) async fn look(
    connections: &Arc<Connections>,
    prefix: &EtcdPrefix,
    space: &Space,
) -> Result<(u64, Option<Description>), EtcdOpenError> {
    // The description sorts before the records, but others may have keys before it.
    let one = RangeRequest { key: space.meta.clone(), ..RangeRequest::default() };
    let any = RangeRequest {
        key: space.all.clone(),
        range_end: space.end.clone(),
        limit: 1,
        keys_only: true,
        ..RangeRequest::default()
    };
    loop {
        let found: RangeResponse = connections.read(RANGE, one.clone()).await?;
        let cluster = found.header.unwrap_or_default().cluster_id;
        connections.expect_cluster(cluster);
        if let Some(kv) = found.kvs.into_iter().next() {
            return Ok((cluster, Some(Description::read(prefix, kv)?)));
        }
        let found: RangeResponse = connections.read(RANGE, any.clone()).await?;
        match found.kvs.first() {
            // It has been made between the two looks.
            Some(kv) if kv.key == space.meta => {}
            Some(kv) => {
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                return Err(EtcdOpenError::Foreign { prefix: prefix.clone(), key });
            }
            None => return Ok((cluster, None)),
        }
    }
}

/// Makes the store, unless somebody else has just done so.
pub(super) async fn make(
    connections: &Arc<Connections>,
    prefix: &EtcdPrefix,
    space: &Space,
    description: Description,
) -> Result<Description, EtcdOpenError> {
    let request = TxnRequest {
        compare: vec![is_absent(space.meta.clone())],
        success: vec![put(space.meta.clone(), description.bytes.clone())],
        failure: Vec::new(),
    };
    let made: TxnResponse = connections.write(TXN, request).await.map_err(|failed| failed.trouble)?;
    if made.succeeded {
        Ok(description.written(&made))
    } else {
        Err(EtcdOpenError::JustMade { prefix: prefix.clone() })
    }
}

/// What a server remembers of its store, in a file of its data directory.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
}

impl Memory {
    pub(super) fn new(directory: &Path) -> Self {
        Self { path: directory.join(FILE_NAME) }
    }

    pub(super) fn exists(&self) -> io::Result<bool> {
        self.path.try_exists()
    }

    /// Holds what was found against what is remembered, if anything is.
    pub(super) fn verify(&self, cluster: u64, found: Option<&Description>) -> Result<(), EtcdOpenError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(self.damaged()),
            Err(source) => return Err(self.io("read", source)),
        };
        let lines: Vec<_> = text.lines().collect();
        let [FORMAT, expected_cluster, expected_store] = lines[..] else { return Err(self.damaged()) };
        let is_cluster = expected_cluster == cluster_line(cluster);
        let other = |found: String| {
            let (path, expected) = (self.path.clone(), format!("{expected_store} in {expected_cluster}"));
            Err(EtcdOpenError::OtherStore { path, expected, found })
        };
        match found {
            Some(found) if is_cluster && expected_store == store_line(found.id) => Ok(()),
            Some(found) => other(format!("{} in {} answers", store_line(found.id), cluster_line(cluster))),
            None => other(format!("{}, which answers, has none under the prefix", cluster_line(cluster))),
        }
    }

    /// Remembers a store, durably.
    pub(super) fn remember(&self, cluster: u64, store: StoreId) -> Result<(), EtcdOpenError> {
        if self.path.exists() {
            return Ok(());
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new()
            .recursive(true)
            .mode(MODES.0)
            .create(directory)
            .map_err(|source| self.io("make the directory of", source))?;
        let fresh = self.path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODES.1).open(&fresh)?;
            file.write_all(format!("{FORMAT}\n{}\n{}\n", cluster_line(cluster), store_line(store)).as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)?;
            fs::File::open(directory)?.sync_all()
        };
        write().map_err(|source| self.io("write", source))
    }

    fn damaged(&self) -> EtcdOpenError {
        EtcdOpenError::BadMemory { path: self.path.clone() }
    }

    fn io(&self, action: &'static str, source: io::Error) -> EtcdOpenError {
        EtcdOpenError::Io { path: self.path.clone(), action, source }
    }
}

fn cluster_line(cluster: u64) -> String {
    format!("etcd cluster {cluster:016x}")
}

fn store_line(store: StoreId) -> String {
    format!("store {store}")
}
