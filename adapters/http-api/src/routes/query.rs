//! Prepared queries: <https://developer.hashicorp.com/consul/api-docs/query>.
//!
//! They are kept with what else nothing acts on, and carried out on the catalog of the server that is asked.

mod definition;

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Command, Snapshot, Subject};
use starling_model::{
    CheckStatus, ConfigEntry, ConfigEntryKey, ConfigKind, KeptEntry, KeptKind, ServiceInstance, ServiceName, Uuid,
    Versioned,
};

use super::catalog::mesh_instances;
use super::{coordinate, health};
use crate::acl::Visible;
use crate::answer::Answer;
use crate::blocking::{View, view};
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::router::{Api, Outcome};
use definition::Definition;

/// Queries at a time: each is looked at when one is asked for by name.
const QUERIES_MAX: usize = 4_096;

const KIND: ConfigKind = ConfigKind::Kept(KeptKind::PreparedQuery);

/// A query with its identifier.
struct Stored {
    id: Uuid,
    definition: Definition,
    created: u64,
    modified: u64,
}

impl Stored {
    fn form(&self) -> Value {
        let mut form = self.definition.form();
        form["ID"] = self.id.to_string().into();
        form["CreateIndex"] = self.created.into();
        form["ModifyIndex"] = self.modified.into();
        form
    }
}

fn stored(entry: &Versioned<ConfigEntry>) -> Option<Stored> {
    let ConfigEntry::Kept(kept) = &entry.value else { return None };
    let (id, definition) = (kept.name.as_str().parse().ok()?, Definition::of_settings(&kept.settings)?);
    Some(Stored { id, definition, created: entry.created.0, modified: entry.modified.0 })
}

fn all(snapshot: &Snapshot) -> impl Iterator<Item = Stored> {
    snapshot.configs(KIND).filter_map(|entry| stored(entry))
}

fn not_found() -> ApiError {
    ApiError::not_found("Query not found")
}

async fn of_all(api: &Api, call: &Call) -> Result<View, ApiError> {
    view(&*api.catalog, call, &[Subject::ConfigList(KIND)]).await
}

pub(super) async fn list(api: Arc<Api>, call: Call) -> Outcome {
    let view = of_all(&api, &call).await?;
    let forms: Vec<_> = all(&view.snapshot).map(|query| query.form()).collect();
    Ok(Answer::json(forms.into()).read_at(view.index))
}

fn id_of(call: &Call) -> Result<Uuid, ApiError> {
    call.param("query").parse().map_err(|error| ApiError::bad_request(format!("query: {error}")))
}

pub(super) async fn read(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call)?;
    let view = of_all(&api, &call).await?;
    match all(&view.snapshot).find(|query| query.id == id) {
        Some(query) => Ok(Answer::json(json!([query.form()])).read_at(view.index)),
        None => Err(not_found().at(view.index)),
    }
}

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let id = Uuid::from_random(fastrand::u128(..));
    if api.catalog.snapshot().configs(KIND).count() >= QUERIES_MAX {
        return Err(ApiError::bad_request(format!("there are {QUERIES_MAX} queries, and no more may be; remove some")));
    }
    let answer = put(&api, &call, id).await?;
    Ok(answer)
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call)?;
    if !all(&api.catalog.snapshot()).any(|query| query.id == id) {
        return Err(not_found());
    }
    put(&api, &call, id).await
}

async fn put(api: &Api, call: &Call, id: Uuid) -> Outcome {
    let definition = {
        let context = Call::context(&api.catalog.authority());
        let definition = Definition::parse(call.fields(&context)?, id)?;
        log_notices(&context);
        definition
    };
    let snapshot = api.catalog.snapshot();
    let is_same = |query: &Stored| query.id != id && query.definition.has_name_of(&definition);
    if let Some(other) = all(&snapshot).find(is_same) {
        return Err(ApiError::bad_request(format!("Name: {:?} is the name of query {}", definition.name, other.id)));
    }
    let name = ServiceName::new(&id.to_string()).expect("invariant: a UUID is a name");
    let entry = KeptEntry { kind: KeptKind::PreparedQuery, name, settings: definition.into_settings().into() };
    let revision =
        api.commit(call, Command::PutConfig { entry: ConfigEntry::Kept(Box::new(entry)), cas: None }).await?;
    Ok(Answer::json(json!({"ID": id.to_string()})).written_at(revision))
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let key = ConfigEntryKey { kind: KIND, name: id_of(&call)?.to_string() };
    let revision = api.commit(&call, Command::DeleteConfig { key, cas: None }).await?;
    Ok(Answer::empty().written_at(revision))
}

/// The query that is meant: by its identifier, by its name, or by the template with the longest beginning of it.
fn meant(snapshot: &Snapshot, text: &str) -> Result<Stored, ApiError> {
    let id: Option<Uuid> = text.parse().ok();
    let mut best: Option<Stored> = None;
    for query in all(snapshot) {
        if Some(query.id) == id || (query.definition.template.is_none() && query.definition.name == text) {
            return Ok(query);
        }
        let fits = query.definition.template.is_some() && text.starts_with(&query.definition.name);
        let length = |query: &Stored| query.definition.name.len();
        if fits && best.as_ref().is_none_or(|best| length(best) < length(&query)) {
            best = Some(query);
        }
    }
    best.ok_or_else(not_found)
}

fn rendered(snapshot: &Snapshot, text: &str) -> Result<Stored, ApiError> {
    let mut query = meant(snapshot, text)?;
    let name = if text.parse::<Uuid>().is_ok() { "" } else { text };
    query.definition = query.definition.rendered(name).map_err(ApiError::bad_request)?;
    Ok(query)
}

pub(super) async fn explain(api: Arc<Api>, call: Call) -> Outcome {
    let query = rendered(&api.catalog.snapshot(), call.param("query"))?;
    Ok(Answer::json(json!({"Query": query.form()})))
}

pub(super) async fn execute(api: Arc<Api>, call: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let facts = api.catalog.authority();
    let definition = rendered(&snapshot, call.param("query"))?.definition;
    let service = &definition.service;
    let name =
        ServiceName::new(&service.service).map_err(|error| ApiError::bad_request(format!("Service: {error}")))?;
    let limit = call.query.count("limit", usize::MAX)?.filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let connect = call.query.switch("connect")? || service.connect;
    let found: Vec<_> =
        if connect { mesh_instances(&snapshot, &name).collect() } else { snapshot.instances_of(&name).collect() };
    let fits = |entry: &&Arc<Versioned<ServiceInstance>>| {
        definition.admits(&entry.value, snapshot.node(&entry.value.key.node).map(|node| &node.value))
            && is_well(&snapshot, &entry.value, &definition)
    };
    let mut rows: Vec<_> =
        found.into_iter().filter(fits).filter_map(|entry| health::row(entry, &snapshot, &facts)).collect();
    rows.retain(|row| Visible::Health.is_seen("", row, &call.bearer));
    fastrand::shuffle(&mut rows);
    if !call.query.has("near")
        && let Some(near) = coordinate::near_of(&api, &service.near, &call.headers)
    {
        coordinate::sort(&api, &near, &mut rows);
    } else if let Some(near) = coordinate::near(&api, &call.query, &call.headers) {
        coordinate::sort(&api, &near, &mut rows);
    }
    rows.truncate(limit);
    Ok(Answer::json(json!({
        "Service": name.as_str(),
        "Nodes": rows,
        "DNS": {"TTL": definition.dns_ttl},
        "Datacenter": facts.datacenter.as_str(),
        // There is no other datacentre that could be asked.
        "Failovers": 0,
    })))
}

fn is_well(snapshot: &Snapshot, instance: &ServiceInstance, definition: &Definition) -> bool {
    let counts = |id: &str| !definition.service.ignore_check_ids.iter().any(|ignored| ignored == id);
    let checks = snapshot.checks_of(&instance.key).filter(|check| counts(check.value.id.as_str()));
    let worst = checks.map(|check| check.value.status).max().unwrap_or(CheckStatus::Passing);
    if definition.service.only_passing { worst == CheckStatus::Passing } else { worst != CheckStatus::Critical }
}
