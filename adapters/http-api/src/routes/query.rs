//! Prepared queries: <https://developer.hashicorp.com/consul/api-docs/query>.
//!
//! They are kept with what else nothing acts on, and carried out on the catalog of the server that is asked.

mod definition;

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Command, QUERY_KIND, Snapshot, StoredQuery, Subject};
use starling_model::{Access, ConfigEntry, ConfigEntryKey, KeptEntry, KeptKind, ServiceName, Uuid};

use super::{coordinate, health};
use crate::acl::Visible;
use crate::answer::Answer;
use crate::blocking::{View, view};
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::router::{Api, Outcome};

fn form(stored: &StoredQuery) -> Value {
    let mut form = definition::form(&stored.query);
    form["ID"] = stored.id.to_string().into();
    form["CreateIndex"] = stored.created.0.into();
    form["ModifyIndex"] = stored.modified.0.into();
    form
}

fn not_found() -> ApiError {
    ApiError::not_found("Query not found")
}

async fn of_all(api: &Api, call: &mut Call) -> Result<View, ApiError> {
    view(api, call, &[Subject::ConfigList(QUERY_KIND)]).await
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = of_all(&api, &mut call).await?;
    let forms: Vec<_> = view.snapshot.prepared_queries().map(|query| form(&query)).collect();
    Ok(Answer::json(forms.into()).read_at(view.index))
}

fn id_of(call: &Call) -> Result<Uuid, ApiError> {
    call.param("query").parse().map_err(|error| ApiError::bad_request(format!("query: {error}")))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = id_of(&call)?;
    let view = of_all(&api, &mut call).await?;
    match view.snapshot.prepared_queries().find(|query| query.id == id) {
        Some(query) => {
            call.bearer().may_query(&query.query, Access::Read)?;
            Ok(Answer::json(json!([form(&query)])).read_at(view.index))
        }
        None => Err(not_found().at(view.index)),
    }
}

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let id = Uuid::from_random(fastrand::u128(..));
    put(&api, &call, id).await
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call)?;
    if !api.catalog.snapshot().prepared_queries().any(|query| query.id == id) {
        return Err(not_found());
    }
    put(&api, &call, id).await
}

async fn put(api: &Api, call: &Call, id: Uuid) -> Outcome {
    let definition = {
        let context = Call::context(&api.catalog.authority());
        let definition = definition::parse(call.fields(&context)?, id)?;
        log_notices(&context);
        definition
    };
    let name = ServiceName::new(&id.to_string()).expect("invariant: a UUID is a name");
    let entry = KeptEntry { kind: KeptKind::PreparedQuery, name, settings: definition.into_settings().into() };
    let revision =
        api.commit(call, Command::PutConfig { entry: ConfigEntry::Kept(Box::new(entry)), cas: None }).await?;
    Ok(Answer::json(json!({"ID": id.to_string()})).written_at(revision))
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let key = ConfigEntryKey { kind: QUERY_KIND, name: id_of(&call)?.to_string() };
    let revision = api.commit(&call, Command::DeleteConfig { key, cas: None }).await?;
    Ok(Answer::empty().written_at(revision))
}

/// The query that is meant, as it stands.
fn meant(snapshot: &Snapshot, call: &Call) -> Result<StoredQuery, ApiError> {
    snapshot.prepared_query(call.param("query"), false).ok_or_else(not_found)
}

/// The query that is meant, as it is carried out.
fn rendered(mut found: StoredQuery, call: &Call) -> Result<StoredQuery, ApiError> {
    let text = call.param("query");
    // A template that is asked for by its identifier is for what its own name makes of it: libraries do so (py-consul).
    let name = if text.parse() == Ok(found.id) { found.query.name.clone() } else { text.to_owned() };
    found.query = found.query.rendered(&name).map_err(ApiError::bad_request)?;
    Ok(found)
}

pub(super) async fn explain(api: Arc<Api>, call: Call) -> Outcome {
    let meant = meant(&api.catalog.snapshot(), &call)?;
    call.bearer().may_query(&meant.query, Access::Read)?;
    Ok(Answer::json(json!({"Query": form(&rendered(meant, &call)?)})))
}

/// What is found is judged, not the query: who may see services finds them by whichever.
pub(super) async fn execute(api: Arc<Api>, call: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let facts = api.catalog.authority();
    let definition = rendered(meant(&snapshot, &call)?, &call)?.query;
    let service = &definition.service;
    let name =
        ServiceName::new(&service.service).map_err(|error| ApiError::bad_request(format!("Service: {error}")))?;
    let limit = call.query.count("limit", usize::MAX)?.filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let connect = call.query.switch("connect")? || service.connect;
    let found = snapshot.instances_meant(&definition, &name, connect).into_iter();
    let mut rows: Vec<_> = found.filter_map(|(entry, _)| health::row(entry, &snapshot, &facts)).collect();
    rows.retain(|row| Visible::Health.is_seen("", row, call.bearer()));
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
