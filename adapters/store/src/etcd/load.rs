//! Reading everything at one revision, page by page.

use std::sync::Arc;

use super::connection::Connections;
use super::numbering::Numbering;
use super::space::Space;
use super::trouble::EtcdTrouble;
use super::wire::{KeyValue, RangeRequest, RangeResponse};
use super::{RANGE, door};
use crate::StoreId;
use crate::transaction::{Entry, Revision, Snapshot};

/// Entries asked for at once. etcd counts all that are left for every page, so pages are large; what is over the size of an
/// answer is asked for in smaller ones.
const PAGE_ENTRIES: i64 = 16_384;

/// Times that reading begins anew because the revision was compacted away meanwhile.
const BEGINNINGS_MAX: usize = 3;

/// Reads every entry.
///
/// # Errors
/// [`EtcdTrouble::Replaced`] if it is another store than `id` by now.
pub(super) async fn load(
    connections: &Arc<Connections>,
    space: &Space,
    id: Option<StoreId>,
    numbering: Numbering,
) -> Result<Snapshot, EtcdTrouble> {
    for _ in 1..BEGINNINGS_MAX {
        match load_once(connections, space, id, numbering).await {
            Err(EtcdTrouble::Other { message, .. }) if message.contains("has been compacted") => {}
            outcome => return outcome,
        }
    }
    load_once(connections, space, id, numbering).await
}

async fn load_once(
    connections: &Arc<Connections>,
    space: &Space,
    id: Option<StoreId>,
    numbering: Numbering,
) -> Result<Snapshot, EtcdTrouble> {
    let (mut entries, mut is_described) = (Vec::new(), false);
    let mut request = RangeRequest {
        // It comes before every entry.
        key: space.meta.clone(),
        range_end: space.records_end.clone(),
        limit: PAGE_ENTRIES,
        ..RangeRequest::default()
    };
    let mut revision = Revision::ZERO;
    loop {
        let page: RangeResponse = match connections.read(RANGE, request.clone()).await {
            Err(EtcdTrouble::Other { message, .. })
                if message.contains("message length too large") && request.limit > 1 =>
            {
                request.limit /= 2;
                continue;
            }
            answered => answered?,
        };
        if revision == Revision::ZERO {
            // The first page is as of now, and says when that was; the others are as of then.
            request.revision = page.header.unwrap_or_default().revision;
            revision = numbering.ours(request.revision);
        }
        let Some(last) = page.kvs.last() else { break };
        request.key = [&last.key[..], &[0]].concat().into();
        for kv in page.kvs {
            if kv.key == space.meta {
                id.map_or(Ok(()), |id| door::is_of(id, &kv.value))?;
                is_described = true;
            } else {
                entries.extend(entry(space, numbering, &kv));
            }
        }
        if !page.more {
            break;
        }
    }
    if id.is_some() && !is_described {
        return Err(EtcdTrouble::Replaced);
    }
    Ok(Snapshot { revision, entries })
}

/// Key and value with memory of their own: in etcd's answer they would keep the whole page. `None` for a key that no server
/// has written: it stays where it is.
fn entry(space: &Space, numbering: Numbering, kv: &KeyValue) -> Option<Entry> {
    let key = space.entry(&kv.key).or_else(|| space.warn_of_foreign(&kv.key))?;
    let mut bytes = Vec::with_capacity(key.as_bytes().len() + kv.value.len());
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(&kv.value);
    let mut bytes = bytes::Bytes::from(bytes);
    let value = bytes.split_off(key.as_bytes().len());
    let key = crate::Key::new(bytes).ok()?;
    let (created, modified) = (numbering.ours(kv.create_revision), numbering.ours(kv.mod_revision));
    Some(Entry { key, value, created, modified, leased: kv.lease != 0 })
}
