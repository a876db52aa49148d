//! Prepared queries: of two that take a name at once one is decided anew, and finds it taken.

use starling_model::{Change, ConfigEntry, Fence, KeptEntry, KeptKind, PreparedQuery, Record, RecordKey, Uuid};

use super::Decision;
use crate::prepared_query::{QUERIES_MAX, QUERY_KIND};
use crate::snapshot::Snapshot;

/// Why a query is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreparedQueryRefusal {
    /// Another has the name.
    #[error("Name: {name:?} is the name of query {other}")]
    NameTaken {
        /// The name.
        name: String,
        /// The other.
        other: Uuid,
    },
    /// The limit is reached.
    #[error("there are {QUERIES_MAX} queries, and no more may be; remove some")]
    TooMany,
}

/// Refuses a query whose name is another's; every other entry may be called as it likes.
pub(super) fn take_name(
    snapshot: &Snapshot,
    entry: &ConfigEntry,
    decision: &mut Decision,
) -> Result<(), PreparedQueryRefusal> {
    let ConfigEntry::Kept(kept) = entry else { return Ok(()) };
    let KeptEntry { kind: KeptKind::PreparedQuery, name: id, settings } = &**kept else { return Ok(()) };
    let is_new = snapshot.modified(&RecordKey::Config(entry.key())).is_none();
    if is_new && snapshot.configs(QUERY_KIND).count() >= QUERIES_MAX {
        return Err(PreparedQueryRefusal::TooMany);
    }
    let Some(query) = PreparedQuery::of_settings(settings) else { return Ok(()) };
    let mut others = snapshot.prepared_queries().filter(|other| other.id.to_string() != id.as_str());
    if let Some(other) = others.find(|other| other.query.has_name_of(&query)) {
        return Err(PreparedQueryRefusal::NameTaken { name: query.name, other: other.id });
    }
    if !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Fence(Fence::QueryNames));
        decision.changes.push(Change::Put(Record::Fence(Fence::QueryNames)));
    }
    Ok(())
}
