//! Prepared queries of a snapshot, and what they find.

use std::sync::Arc;

use starling_model::{
    CheckStatus, ConfigEntry, ConfigKind, KeptKind, PreparedQuery, Revision, ServiceInstance, ServiceName, Uuid,
    Versioned,
};

use crate::snapshot::Snapshot;

/// Queries at a time: each is looked at when one is asked for by name.
pub const QUERIES_MAX: usize = 4_096;

/// The kind under which they are kept.
pub const QUERY_KIND: ConfigKind = ConfigKind::Kept(KeptKind::PreparedQuery);

/// A query with its identifier.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredQuery {
    /// Its identifier.
    pub id: Uuid,
    /// What it says.
    pub query: PreparedQuery,
    /// Consul's `CreateIndex`.
    pub created: Revision,
    /// Consul's `ModifyIndex`.
    pub modified: Revision,
}

impl StoredQuery {
    /// What an entry says, if it is one of a query.
    #[must_use]
    pub fn of_entry(entry: &ConfigEntry) -> Option<PreparedQuery> {
        let ConfigEntry::Kept(kept) = entry else { return None };
        (kept.kind == KeptKind::PreparedQuery).then(|| PreparedQuery::of_settings(&kept.settings))?
    }
}

/// Reads a query as it is kept.
pub(crate) fn stored(entry: &Versioned<ConfigEntry>) -> Option<StoredQuery> {
    let ConfigEntry::Kept(kept) = &entry.value else { return None };
    let (id, query) = (kept.name.as_str().parse().ok()?, PreparedQuery::of_settings(&kept.settings)?);
    Some(StoredQuery { id, query, created: entry.created, modified: entry.modified })
}

impl Snapshot {
    /// Every prepared query, by identifier.
    pub fn prepared_queries(&self) -> impl Iterator<Item = StoredQuery> {
        self.configs(QUERY_KIND).filter_map(|entry| stored(entry))
    }

    /// The query that is meant by a text: by its identifier, by its name, or as the template with the longest beginning of it; with
    /// `folded` upper and lower case are the same.
    #[must_use]
    pub fn prepared_query(&self, text: &str, folded: bool) -> Option<StoredQuery> {
        let id = text.parse::<Uuid>().ok().map(|id| id.to_string());
        let same = |one: &str, other: &str| if folded { one.eq_ignore_ascii_case(other) } else { one == other };
        let begins = |name: &str| text.get(..name.len()).is_some_and(|beginning| same(beginning, name));
        let mut best: Option<(usize, &Versioned<ConfigEntry>)> = None;
        // Anybody may ask by DNS: of all but the one that is meant no more is read than its name.
        for entry in self.configs(QUERY_KIND) {
            let ConfigEntry::Kept(kept) = &entry.value else { continue };
            let (name, is_template) = PreparedQuery::name_in(&kept.settings);
            if Some(kept.name.as_str()) == id.as_deref() || (!is_template && same(name, text)) {
                return stored(entry);
            }
            let is_better = best.is_none_or(|(length, _)| length < name.len());
            if is_template && begins(name) && is_better {
                best = Some((name.len(), entry));
            }
        }
        best.and_then(|(_, entry)| stored(entry))
    }

    /// The instances that a rendered query means, with their health as it counts for it.
    pub fn instances_meant<'s>(
        &'s self,
        query: &PreparedQuery,
        service: &ServiceName,
        connect: bool,
    ) -> Vec<(&'s Arc<Versioned<ServiceInstance>>, CheckStatus)> {
        let own = self.instances_of(service).filter(|entry| !connect || entry.value.native);
        let sidecars = connect.then(|| self.sidecars_of(service)).into_iter().flatten();
        let gateways = connect.then(|| self.stand_ins_of(service)).into_iter().flatten();
        let admitted = sidecars
            .chain(own)
            .chain(gateways)
            .filter(|entry| query.admits(&entry.value, self.node(&entry.value.key.node).map(|node| &node.value)));
        let with_health = admitted.map(|entry| (entry, self.health_for(query, &entry.value)));
        with_health.filter(|(_, status)| *status <= query.worst_served()).collect()
    }

    fn health_for(&self, query: &PreparedQuery, instance: &ServiceInstance) -> CheckStatus {
        let counts = |id: &str| !query.service.ignore_check_ids.iter().any(|ignored| ignored == id);
        let checks = self.checks_of(&instance.key).filter(|check| counts(check.value.id.as_str()));
        checks.map(|check| check.value.status).max().unwrap_or(CheckStatus::Passing)
    }
}
