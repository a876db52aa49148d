//! The catalog: nodes, services, and registrations without an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use starling_catalog::{Refusal, Snapshot, Subject};
use starling_model::{NodeName, ServiceInstance, ServiceName, Versioned};

use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::{Call, Query, log_notices};
use crate::error::ApiError;
use crate::parse::catalog::{parse_deregister, parse_register};
use crate::ports::CommitFailure;
use crate::router::{Api, Outcome};

pub(super) async fn register(api: Arc<Api>, call: Call) -> Outcome {
    let command = {
        let context = Call::context(&api.catalog.authority());
        let command = parse_register(call.fields(&context)?, &api.catalog.snapshot())?;
        log_notices(&context);
        command
    };
    match api.commit(&call, command).await {
        Ok(revision) => Ok(Answer::json(json!(true)).written_at(revision)),
        Err(CommitFailure::Refused(refusal @ Refusal::PortTaken { .. })) => {
            Err(ApiError::bad_request(format!("Service.Port: {refusal}")))
        }
        Err(failure) => Err(failure.into()),
    }
}

pub(super) async fn deregister(api: Arc<Api>, call: Call) -> Outcome {
    let command = {
        let context = Call::context(&api.catalog.authority());
        parse_deregister(call.fields(&context)?)?
    };
    let revision = api.commit(&call, command).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn datacenters(api: Arc<Api>, _: Call) -> Outcome {
    Ok(Answer::json(json!([api.catalog.authority().datacenter.as_str()])))
}

pub(super) async fn nodes(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::NodeList]).await?;
    let facts = api.catalog.authority();
    let nodes = view.snapshot.nodes().filter(|node| meta_fits(&call.query, &node.value.meta));
    let nodes: Vec<Value> = nodes.map(|node| forms::node(node, &facts)).collect();
    Ok(Answer::json(Value::Array(nodes)).read_at(view.index))
}

/// Whether metadata has every `?node-meta=KEY:VALUE` that is asked for.
pub(super) fn meta_fits(query: &Query, meta: &BTreeMap<String, String>) -> bool {
    query.all("node-meta").all(|pair| {
        let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
        meta.get(key).is_some_and(|found| found == value)
    })
}

/// Whether an instance and its node have every tag and all metadata that is asked for.
pub(super) fn fits(query: &Query, snapshot: &Snapshot, instance: &ServiceInstance) -> bool {
    let has_tag = |wanted: &str| instance.tags.iter().any(|tag| tag.eq_ignore_ascii_case(wanted));
    let tags = query.all("tag").filter(|tag| !tag.is_empty()).all(has_tag);
    tags && match snapshot.node(&instance.key.node) {
        Some(node) => meta_fits(query, &node.value.meta),
        None => !query.has("node-meta"),
    }
}

pub(super) async fn services(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::ServiceList]).await?;
    let facts = api.catalog.authority();
    let mut services = Map::new();
    for name in view.snapshot.service_names() {
        let is_wanted = |entry: &&Arc<Versioned<ServiceInstance>>| {
            fits(&call.query, &view.snapshot, &entry.value)
                && call.filter.as_ref().is_none_or(|it| it.admits(&forms::catalog_row(entry, &view.snapshot, &facts)))
        };
        let instances = view.snapshot.instances_of(name).filter(is_wanted);
        let mut any = false;
        let mut tags = BTreeSet::new();
        for entry in instances {
            any = true;
            tags.extend(entry.value.tags.iter().map(String::as_str));
        }
        if any {
            services.insert(name.to_string(), tags.into_iter().collect::<Vec<_>>().into());
        }
    }
    Ok(Answer::json(Value::Object(services)).read_at(view.index))
}

pub(super) async fn service(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.service_name()?;
    let view = view(&api, &mut call, &[Subject::Service(name.clone())]).await?;
    let rows = rows(&api, &call, &view.snapshot, view.snapshot.instances_of(&name));
    Ok(Answer::json(rows).read_at(view.index))
}

pub(super) async fn connect(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.service_name()?;
    let view = view(&api, &mut call, &[Subject::Endpoints(name.clone())]).await?;
    let rows = rows(&api, &call, &view.snapshot, mesh_instances(&view.snapshot, &name));
    Ok(Answer::json(rows).read_at(view.index))
}

/// Where a service is reached in the mesh: its sidecars, then its native instances, then gateways that stand for it.
pub(super) fn mesh_instances<'s>(
    snapshot: &'s Snapshot,
    name: &ServiceName,
) -> impl Iterator<Item = &'s Arc<Versioned<ServiceInstance>>> {
    let native = snapshot.instances_of(name).filter(|entry| entry.value.native);
    snapshot.sidecars_of(name).chain(native).chain(snapshot.stand_ins_of(name))
}

fn rows<'s>(
    api: &Api,
    call: &Call,
    snapshot: &'s Snapshot,
    instances: impl Iterator<Item = &'s Arc<Versioned<ServiceInstance>>>,
) -> Value {
    let facts = api.catalog.authority();
    let fitting = instances.filter(|entry| fits(&call.query, snapshot, &entry.value));
    Value::Array(fitting.map(|entry| forms::catalog_row(entry, snapshot, &facts)).collect())
}

pub(super) async fn node(api: Arc<Api>, call: Call) -> Outcome {
    let by_id = |list: Vec<(String, Value)>| Value::Object(list.into_iter().collect());
    node_with(api, call, Value::Null, by_id).await
}

pub(super) async fn node_services(api: Arc<Api>, call: Call) -> Outcome {
    let as_list = |list: Vec<(String, Value)>| Value::Array(list.into_iter().map(|(_, form)| form).collect());
    // A pointer in Consul's other answer, this one is a structure in its, which is never null itself.
    node_with(api, call, json!({"Node": null, "Services": null}), as_list).await
}

async fn node_with(api: Arc<Api>, mut call: Call, unknown: Value, shape: fn(Vec<(String, Value)>) -> Value) -> Outcome {
    let name: NodeName = call.node_name()?;
    let view = view(&api, &mut call, &[Subject::Node(name.clone())]).await?;
    let Some(node) = view.snapshot.node(&name) else {
        return Ok(Answer::json(unknown).read_at(view.index));
    };
    let form = |entry: &Arc<Versioned<ServiceInstance>>| {
        (entry.value.key.id.to_string(), forms::node_service(entry, &view.snapshot))
    };
    let services = view.snapshot.instances_on(&name).map(form).collect();
    let node = forms::node(node, &api.catalog.authority());
    Ok(Answer::json(json!({"Node": node, "Services": shape(services)})).read_at(view.index))
}
