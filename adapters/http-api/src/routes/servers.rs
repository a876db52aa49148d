//! The servers of the mesh, and how it stands with the one that answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use starling_catalog::{Snapshot, Subject};
use starling_model::{ServerId, ServerRecord};

use crate::answer::Answer;
use crate::blocking::view;
use crate::call::Call;
use crate::ports::{LostServer, StoreMember};
use crate::router::{Api, Outcome};

/// Every server, the leader first. The only one of its store is told by what it says of itself.
pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Servers]).await?;
    let own = api.catalog.own_server();
    let servers = match own {
        Some(own) => members(&view.snapshot, own),
        None => vec![alone(&api)],
    };
    let mut store = store(&api);
    if call.query.switch("members")? {
        let members = call.wait_for(&api, api.catalog.store_members()).await?.unwrap_or_default();
        store["members"] = members.iter().map(store_member).collect();
    }
    let lost: Vec<_> = api.catalog.lost_servers().iter().map(lost_server).collect();
    Ok(Answer::json(json!({"servers": servers, "lost": lost, "store": store})).read_at(view.index))
}

fn lost_server(lost: &LostServer) -> Value {
    json!({"name": lost.name.as_str(), "http": lost.http, "gone_s": lost.gone_for.as_secs()})
}

fn store_member(member: &StoreMember) -> Value {
    let StoreMember { address, leads, version, bytes, trouble } = member;
    json!({"address": address, "leads": leads, "version": version, "bytes": bytes, "trouble": trouble})
}

fn members(snapshot: &Snapshot, own: ServerId) -> Vec<Value> {
    let mut nodes: BTreeMap<ServerId, usize> = BTreeMap::new();
    for attachment in snapshot.attachments() {
        *nodes.entry(attachment.value.server).or_default() += 1;
    }
    let mut servers: Vec<_> = snapshot.servers().map(|server| &server.value).collect();
    servers.sort_by_key(|server| (!snapshot.is_led_by(server.id), server.name.clone()));
    let form = |server: &&ServerRecord| {
        json!({
            "id": server.id.to_string(),
            "name": server.name.as_str(),
            "http": server.http,
            "agents": server.agents,
            "version": server.version,
            "since": server.since.0,
            "leaving": server.leaving,
            "leads": snapshot.is_led_by(server.id),
            "asked": server.id == own,
            "nodes": nodes.get(&server.id).copied().unwrap_or_default(),
        })
    };
    servers.iter().map(form).collect()
}

fn alone(api: &Api) -> Value {
    let facts = api.catalog.authority();
    let nodes = api.catalog.nodes().iter().filter(|(node, _)| node.connected).count();
    json!({
        "id": null,
        "name": facts.node_name.as_str(),
        "http": facts.leader_address,
        "agents": null,
        "version": facts.version,
        "since": null,
        "leaving": false,
        "leads": true,
        "asked": true,
        "nodes": nodes,
    })
}

fn store(api: &Api) -> Value {
    let currency = api.catalog.currency();
    let last_contact_ms = u64::try_from(currency.last_contact.as_millis()).unwrap_or(u64::MAX);
    json!({
        "shared": api.catalog.own_server().is_some(),
        "takes_writes": currency.takes_writes,
        "last_contact_ms": last_contact_ms,
    })
}

/// Whether this server follows its store: 503 once it never will again, and has to be started anew.
pub(super) async fn live(api: Arc<Api>, _: Call) -> Outcome {
    Ok(judged(!api.catalog.has_halted(), json!({"live": !api.catalog.has_halted()})))
}

/// Whether this server is to be sent requests: 503 while it is about to end, or follows its store no longer; with `writes`
/// also while its store takes none.
pub(super) async fn ready(api: Arc<Api>, call: Call) -> Outcome {
    let is_leaving = api.catalog.leaving(false).is_some_and(|leaving| leaving.begun);
    let takes_writes = api.catalog.currency().takes_writes;
    let ready = !api.catalog.has_halted() && !is_leaving && (takes_writes || !call.query.switch("writes")?);
    let quarantined = api.catalog.snapshot().quarantined().len();
    let form = json!({"ready": ready, "leaving": is_leaving, "quarantined": quarantined, "store": store(&api)});
    Ok(judged(ready, form))
}

fn judged(good: bool, form: Value) -> Answer {
    Answer::json(form).status(if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}
