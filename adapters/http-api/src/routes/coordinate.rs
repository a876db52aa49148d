//! Network coordinates: <https://developer.hashicorp.com/consul/api-docs/coordinate>. Agents here measure none; whoever does may tell them.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use starling_model::{Access, NodeName, Resource};

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::{FieldError, Fields};
use crate::relay::ASKING_NODE;
use crate::router::{Api, Outcome};
use crate::volatile::{COORDINATES_MAX, Coordinate, DIMENSIONS};

/// Whom others ask for, the first of them first.
const FORWARDED_FOR: &str = "x-forwarded-for";

pub(super) async fn datacenters(api: Arc<Api>, _: Call) -> Outcome {
    let datacenter = api.catalog.authority().datacenter;
    Ok(Answer::json(json!([{"Datacenter": datacenter.as_str(), "AreaID": "wan", "Coordinates": []}])))
}

fn form(node: &NodeName, segment: &str, at: &Coordinate) -> Value {
    let Coordinate { vector, error, adjustment, height } = at;
    let coordinate = json!({"Vec": vector, "Error": error, "Adjustment": adjustment, "Height": height});
    json!({"Node": node.as_str(), "Segment": segment, "Coord": coordinate})
}

/// Of nodes that are there.
pub(super) async fn nodes(api: Arc<Api>, call: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let segment = call.query.get("segment");
    let fits = |node: &NodeName, of: &str| snapshot.node(node).is_some() && segment.is_none_or(|segment| segment == of);
    let all = api.coordinates.all().into_iter().filter(|(node, of, _)| fits(node, of));
    let forms: Vec<_> = all.map(|(node, segment, at)| form(&node, &segment, &at)).collect();
    Ok(Answer::json(forms.into()).read_at(snapshot.revision()))
}

pub(super) async fn node(api: Arc<Api>, call: Call) -> Outcome {
    let (name, snapshot) = (call.node_name()?, api.catalog.snapshot());
    match api.coordinates.of(&name).filter(|_| snapshot.node(&name).is_some()) {
        Some((segment, at)) => Ok(Answer::json(json!([form(&name, &segment, &at)])).read_at(snapshot.revision())),
        None => Err(ApiError::not_found(format!("no coordinate of node {name} is known here")).at(snapshot.revision())),
    }
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let (node, segment, at) = {
        let context = Call::context(&api.catalog.authority());
        parse(call.fields(&context)?)?
    };
    call.bearer().require(Resource::Node, node.as_str(), Access::Write)?;
    if api.catalog.snapshot().node(&node).is_none() {
        return Err(ApiError::bad_request(format!("Node: unknown node {node}")));
    }
    if !api.coordinates.put(node, segment, at) {
        return Err(ApiError::bad_request(format!("coordinates of {COORDINATES_MAX} nodes are known; no more may be")));
    }
    Ok(Answer::json(json!(true)))
}

fn parse(mut fields: Fields<'_>) -> Result<(NodeName, String, Coordinate), FieldError> {
    let node = fields.required_text("Node")?.parse().map_err(|error| fields.error("Node", error))?;
    let segment = fields.text("Segment")?.unwrap_or_default();
    fields.tenancy()?;
    let mut inner = fields.object("Coord")?.ok_or_else(|| fields.missing("Coord", "must be given"))?;
    let mut vector = [0.0; DIMENSIONS];
    let items = inner.list("Vec")?;
    if items.len() != DIMENSIONS {
        return Err(inner.error("Vec", format!("has {} numbers, not {DIMENSIONS}", items.len())));
    }
    for (place, item) in vector.iter_mut().zip(items) {
        *place = number(&item.path, &item.value)?;
    }
    let mut take = |name: &str| inner.take(name).map_or(Ok(0.0), |field| number(&field.path, &field.value));
    let at = Coordinate { vector, error: take("Error")?, adjustment: take("Adjustment")?, height: take("Height")? };
    inner.finish()?;
    fields.finish()?;
    Ok((node, segment, at))
}

/// JSON has no infinite numbers.
fn number(path: &str, value: &Value) -> Result<f64, FieldError> {
    value.as_f64().ok_or_else(|| FieldError::new(path, "must be a number"))
}

/// The node that a list is to begin next to, of `?near`.
pub(crate) fn near(api: &Api, query: &crate::call::Query, headers: &http::HeaderMap) -> Option<NodeName> {
    near_of(api, query.text("near")?, headers)
}

/// The same of a text that stands elsewhere.
pub(crate) fn near_of(api: &Api, text: &str, headers: &http::HeaderMap) -> Option<NodeName> {
    match text {
        "_agent" => Some(asked_agent(api, headers)),
        "_ip" => {
            // Who asks through nobody is at the agent's own machine, or calls for what is near there.
            let Some(forwarded) = headers.get(FORWARDED_FOR) else { return Some(asked_agent(api, headers)) };
            let first = forwarded.to_str().ok()?.split(',').next()?.trim();
            let caller: IpAddr = first.parse().ok()?;
            let snapshot = api.catalog.snapshot();
            let mut nodes = snapshot.nodes().map(|node| &node.value);
            nodes.find(|node| node.address.parse() == Ok(caller)).map(|node| node.name.clone())
        }
        name => name.parse().ok(),
    }
}

/// The node of the agent that somebody has asked.
fn asked_agent(api: &Api, headers: &http::HeaderMap) -> NodeName {
    let asking = headers.get(ASKING_NODE).and_then(|node| node.to_str().ok()).and_then(|node| node.parse().ok());
    asking.unwrap_or_else(|| api.catalog.authority().node_name)
}

/// Sorts rows by how near their nodes are to `node`, its own first; those of which that is not known come last, as they were.
pub(crate) fn sort(api: &Api, node: &NodeName, rows: &mut [Value]) {
    let here = api.coordinates.of(node).map(|(_, here)| here);
    let name = |row: &Value| -> Option<NodeName> {
        let node = row["Node"].as_str().or_else(|| row["Node"]["Node"].as_str());
        node?.parse().ok()
    };
    rows.sort_by_cached_key(|row| {
        let own = name(row);
        let there = own.as_ref().and_then(|own| api.coordinates.of(own)).map(|(_, there)| there);
        let distance = here.as_ref().zip(there).map(|(here, there)| here.distance_to(&there));
        // Not below zero, so that their bits are in the order of the numbers.
        (own.as_ref() != Some(node), distance.map_or(u64::MAX, |distance| distance.max(0.0).to_bits()))
    });
}
