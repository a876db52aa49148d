//! Health: instances with their checks, and checks by themselves.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Snapshot, Subject};
use starling_model::{CheckStatus, ServiceInstance, Versioned};

use super::catalog::{fits, mesh_instances, meta_fits};
use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::ports::MeshFacts;
use crate::router::{Api, Outcome};

pub(super) async fn service(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.service_name()?;
    let passing = call.query.switch("passing")?;
    let view = view(&api, &mut call, &[Subject::Service(name.clone())]).await?;
    let entries = entries(&api, &call, &view.snapshot, view.snapshot.instances_of(&name), passing);
    Ok(Answer::json(entries).read_at(view.index))
}

pub(super) async fn connect(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.service_name()?;
    let passing = call.query.switch("passing")?;
    let view = view(&api, &mut call, &[Subject::Endpoints(name.clone())]).await?;
    let entries = entries(&api, &call, &view.snapshot, mesh_instances(&view.snapshot, &name), passing);
    Ok(Answer::json(entries).read_at(view.index))
}

pub(super) fn entries<'s>(
    api: &Api,
    call: &Call,
    snapshot: &'s Snapshot,
    instances: impl Iterator<Item = &'s Arc<Versioned<ServiceInstance>>>,
    passing: bool,
) -> Value {
    let facts = api.catalog.authority();
    let mut entries = Vec::new();
    for entry in instances.filter(|entry| fits(&call.query, snapshot, &entry.value)) {
        let key = &entry.value.key;
        if passing && snapshot.health(key).0 != CheckStatus::Passing {
            continue;
        }
        entries.extend(row(entry, snapshot, &facts));
    }
    Value::Array(entries)
}

/// An instance with its node and checks. Without its node it is about to go; Consul never shows one without the other.
pub(super) fn row(entry: &Versioned<ServiceInstance>, snapshot: &Snapshot, facts: &MeshFacts) -> Option<Value> {
    let key = &entry.value.key;
    let node = snapshot.node(&key.node)?;
    let checks: Vec<Value> = snapshot.checks_of(key).map(|check| forms::catalog_check(check)).collect();
    Some(json!({
        "Node": forms::node(node, facts),
        "Service": forms::node_service(entry, snapshot),
        "Checks": checks,
    }))
}

pub(super) async fn checks(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.service_name()?;
    let view = view(&api, &mut call, &[Subject::Service(name.clone())]).await?;
    let snapshot = &view.snapshot;
    let mut checks = Vec::new();
    for entry in snapshot.instances_of(&name).filter(|entry| fits(&call.query, snapshot, &entry.value)) {
        let own = snapshot.checks_of(&entry.value.key).filter(|check| check.value.service.is_some());
        checks.extend(own.map(|check| forms::catalog_check(check)));
    }
    Ok(Answer::json(Value::Array(checks)).read_at(view.index))
}

pub(super) async fn node(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.node_name()?;
    let view = view(&api, &mut call, &[Subject::Node(name.clone())]).await?;
    let checks: Vec<Value> = view.snapshot.checks_on(&name).map(|check| forms::catalog_check(check)).collect();
    Ok(Answer::json(Value::Array(checks)).read_at(view.index))
}

pub(super) async fn state(api: Arc<Api>, mut call: Call) -> Outcome {
    let wanted = match call.param("state") {
        "any" => None,
        text => Some(text.parse::<CheckStatus>().map_err(|error| ApiError::bad_request(error.to_string()))?),
    };
    let view = view(&api, &mut call, &[Subject::CheckList]).await?;
    let snapshot = &view.snapshot;
    let node_fits = |node| snapshot.node(node).is_some_and(|node| meta_fits(&call.query, &node.value.meta));
    let filtered = call.query.has("node-meta");
    let checks = snapshot.checks().filter(|check| wanted.is_none_or(|wanted| check.value.status == wanted));
    let checks = checks.filter(|check| !filtered || node_fits(&check.value.node));
    let checks: Vec<Value> = checks.map(|check| forms::catalog_check(check)).collect();
    Ok(Answer::json(Value::Array(checks)).read_at(view.index))
}
