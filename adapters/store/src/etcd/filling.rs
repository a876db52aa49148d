//! Filling a store on etcd from another one: until that is done no server opens it.
//!
//! What is filled says so in its description, so that a copy that was interrupted is never served as if it were whole. The
//! description of a store that is replaced is exchanged first: servers that still have it open can write nothing more.

use std::path::PathBuf;

use bytes::Bytes;

use super::connection::Connections;
use super::door::{self, Description, EtcdOpenError};
use super::space::{EtcdPrefix, Space};
use super::transaction::{is_absent, is_modified_at, put};
use super::wire::{DeleteRangeRequest, RangeRequest, RangeResponse, Request, RequestOp, TxnRequest, TxnResponse};
use super::{EtcdStore, ExaminedEtcd, Memory, RANGE, TXN};
use crate::transaction::Revision;

/// Keys that are removed at once: etcd answers in well under a second.
const REMOVED_AT_ONCE: i64 = 10_000;

/// A store on etcd that is being filled. Dropping it leaves it unfinished, for another attempt.
#[derive(Debug)]
pub struct FillingEtcd {
    store: EtcdStore,
    prefix: EtcdPrefix,
    memory: Option<Memory>,
}

impl ExaminedEtcd {
    /// Whether there is a store, finished or not.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.description.is_some()
    }

    /// Whether somebody began to fill it, and did not come to an end.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.description.as_ref().is_some_and(|description| description.is_unfinished)
    }

    /// Refuses one that is not whole.
    ///
    /// # Errors
    /// [`EtcdOpenError::Unfinished`].
    pub fn refuse_unfinished(&self) -> Result<(), EtcdOpenError> {
        if self.is_unfinished() { Err(EtcdOpenError::Unfinished { prefix: self.prefix.clone() }) } else { Ok(()) }
    }

    /// The same, to be remembered in a directory once it is filled.
    #[must_use]
    pub fn remembered_in(self, directory: Option<PathBuf>) -> Self {
        Self { memory: directory.as_deref().map(Memory::new), ..self }
    }

    /// Which store it is; `None` if there is none.
    #[must_use]
    pub fn id(&self) -> Option<crate::StoreId> {
        self.description.as_ref().map(|description| description.id)
    }

    /// Makes an empty store, in place of the one that is there if there is one, whose revisions are all beyond `after`.
    ///
    /// # Errors
    /// [`EtcdOpenError`]; what was there is gone, or will be, if only the removal of its entries failed.
    pub async fn begin(self, after: Revision) -> Result<FillingEtcd, EtcdOpenError> {
        let Self { connections, prefix, space, memory, cluster, description, .. } = self;
        let at = door::revision(&connections, &space).await?;
        // Beyond those of the store that is there, too: its clients know them.
        let present = description.as_ref().map_or(0, Description::offset);
        let fresh = Description::unfinished(after.0.saturating_sub(at).max(present));
        let fresh = exchange(&connections, &prefix, &space, description.as_ref(), fresh).await?;
        remove_entries(&connections, &prefix, &space, &fresh).await?;
        let store = EtcdStore::of(connections, space, fresh, cluster, None);
        Ok(FillingEtcd { store, prefix, memory })
    }
}

impl FillingEtcd {
    /// To write to.
    #[must_use]
    pub fn store(&self) -> &EtcdStore {
        &self.store
    }

    /// Says that everything is in it, and remembers it where it was asked to.
    ///
    /// # Errors
    /// [`EtcdOpenError`]; it is unfinished then, unless only what is remembered could not be written.
    pub async fn finish(self) -> Result<EtcdStore, EtcdOpenError> {
        let Self { mut store, prefix, memory } = self;
        let (shared, filled) = (&store.shared, &store.description);
        store.description =
            exchange(&shared.connections, &prefix, &shared.space, Some(filled), filled.finished()).await?;
        if let Some(memory) = memory {
            memory.remember(store.cluster, store.description.id)?;
        }
        Ok(store)
    }
}

/// Puts one description in the place of another; the answer knows when that was.
async fn exchange(
    connections: &Connections,
    prefix: &EtcdPrefix,
    space: &Space,
    old: Option<&Description>,
    new: Description,
) -> Result<Description, EtcdOpenError> {
    let expected = match old {
        Some(old) => is_modified_at(space.meta.clone(), old.modified),
        None => is_absent(space.meta.clone()),
    };
    let writes = vec![put(space.meta.clone(), new.bytes.clone())];
    let request = TxnRequest { compare: vec![expected], success: writes, failure: Vec::new() };
    Ok(new.written(&write(connections, prefix, request).await?))
}

async fn write(
    connections: &Connections,
    prefix: &EtcdPrefix,
    request: TxnRequest,
) -> Result<TxnResponse, EtcdOpenError> {
    let done: TxnResponse = connections.write(TXN, request).await.map_err(|failed| failed.trouble)?;
    if done.succeeded { Ok(done) } else { Err(EtcdOpenError::Changed { prefix: prefix.clone() }) }
}

async fn remove_entries(
    connections: &Connections,
    prefix: &EtcdPrefix,
    space: &Space,
    description: &Description,
) -> Result<(), EtcdOpenError> {
    loop {
        let page = RangeRequest {
            key: space.records.clone(),
            range_end: space.records_end.clone(),
            limit: REMOVED_AT_ONCE,
            keys_only: true,
            ..RangeRequest::default()
        };
        let page: RangeResponse = connections.read(RANGE, page).await?;
        let Some(last) = page.kvs.last() else { return Ok(()) };
        let range_end: Bytes = [&last.key[..], &[0]].concat().into();
        let remove = DeleteRangeRequest { key: space.records.clone(), range_end };
        let request = TxnRequest {
            compare: vec![is_modified_at(space.meta.clone(), description.modified)],
            success: vec![RequestOp { request: Some(Request::DeleteRange(remove)) }],
            failure: Vec::new(),
        };
        write(connections, prefix, request).await?;
    }
}
