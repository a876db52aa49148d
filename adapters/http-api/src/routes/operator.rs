//! What operators of Consul ask of its servers: who they are, how they fare, and how much there is.
//!
//! Servers of this mesh vote on nothing: what is kept is in a store beside them, so every one that is there counts as a voter, and
//! the one that has the duties of a leader as that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};
use starling_catalog::{Command, Refusal, Snapshot, Subject};
use starling_model::{
    CONSUL_SERVICE, ConfigEntry, ConfigEntryKey, ConfigKind, InstanceKind, KeptEntry, KeptKind, Revision,
    ServiceInstance, UnixSeconds,
};

use super::agent::CONSUL_VERSION;
use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::{FieldError, Fields};
use crate::ports::CommitFailure;
use crate::router::{Api, Outcome};

/// A server as Consul would tell of it.
struct Told {
    id: String,
    name: String,
    address: String,
    leads: bool,
    leaving: bool,
    since: UnixSeconds,
}

fn servers(api: &Api, snapshot: &Snapshot) -> Vec<Told> {
    let facts = api.catalog.authority();
    if api.catalog.own_server().is_none() {
        let since = UnixSeconds(0);
        let (id, name, address) = (facts.node_id, facts.node_name.to_string(), facts.leader_address);
        return vec![Told { id, name, address, leads: true, leaving: false, since }];
    }
    let told = |server: &starling_model::ServerRecord| Told {
        id: server.id.to_string(),
        name: server.name.to_string(),
        address: server.agents.clone(),
        leads: snapshot.is_led_by(server.id),
        leaving: server.leaving,
        since: server.since,
    };
    snapshot.servers().map(|server| told(&server.value)).collect()
}

pub(super) async fn raft(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Servers]).await?;
    let form = |server: Told| {
        json!({
            "ID": server.id,
            "Node": server.name,
            "Address": server.address,
            "Leader": server.leads,
            "ProtocolVersion": "3",
            "Voter": true,
            "LastIndex": view.snapshot.revision().0,
        })
    };
    let servers: Vec<_> = servers(&api, &view.snapshot).into_iter().map(form).collect();
    Ok(Answer::json(json!({"Servers": servers, "Index": view.index.0})))
}

/// How many servers may be lost with one left; what is kept has a tolerance of its own, which the store's operator knows.
fn tolerance(healthy: usize) -> usize {
    healthy.saturating_sub(1)
}

fn is_healthy(api: &Api, server: &Told) -> bool {
    !server.leaving && !api.catalog.has_halted()
}

pub(super) async fn health(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Servers]).await?;
    let last_contact = api.catalog.currency().last_contact;
    let servers = servers(&api, &view.snapshot);
    let healthy = servers.iter().filter(|server| is_healthy(&api, server)).count();
    let form = |server: &Told| {
        json!({
            "ID": server.id,
            "Name": server.name,
            "Address": server.address,
            "SerfStatus": if server.leaving { "leaving" } else { "alive" },
            "Version": CONSUL_VERSION,
            "Leader": server.leads,
            "LastContact": format!("{}ms", last_contact.as_millis()),
            "LastTerm": 1,
            "LastIndex": view.snapshot.revision().0,
            "Healthy": is_healthy(&api, server),
            "Voter": true,
            "StableSince": forms::time(server.since),
        })
    };
    let all = healthy == servers.len();
    let form = json!({
        "Healthy": all,
        "FailureTolerance": tolerance(healthy),
        "Servers": servers.iter().map(form).collect::<Vec<_>>(),
    });
    Ok(Answer::json(form).status(if all { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }))
}

pub(super) async fn state(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Servers]).await?;
    let last_contact = api.catalog.currency().last_contact;
    let servers = servers(&api, &view.snapshot);
    let healthy = servers.iter().filter(|server| is_healthy(&api, server)).count();
    let form = |server: &Told| {
        let form = json!({
            "ID": server.id,
            "Name": server.name,
            "Address": server.address,
            "NodeStatus": if server.leaving { "leaving" } else { "alive" },
            "Version": CONSUL_VERSION,
            "LastContact": format!("{}ms", last_contact.as_millis()),
            "LastTerm": 1,
            "LastIndex": view.snapshot.revision().0,
            "Healthy": is_healthy(&api, server),
            "StableSince": forms::time(server.since),
            "ReadReplica": false,
            "Status": if server.leads { "leader" } else { "voter" },
            "Meta": {},
            "NodeType": "voter",
        });
        (server.id.clone(), form)
    };
    let leader = servers.iter().find(|server| server.leads).map_or("", |server| server.id.as_str());
    Ok(Answer::json(json!({
        "Healthy": healthy == servers.len(),
        "FailureTolerance": tolerance(healthy),
        "OptimisticFailureTolerance": tolerance(healthy),
        "Servers": servers.iter().map(form).collect::<Map<_, _>>(),
        "Leader": leader,
        "Voters": servers.iter().map(|server| server.id.as_str()).collect::<Vec<_>>(),
    })))
}

fn autopilot_key() -> ConfigEntryKey {
    ConfigEntryKey { kind: ConfigKind::Kept(KeptKind::Autopilot), name: KeptKind::Autopilot.as_str().to_owned() }
}

/// Settings of Consul's autopilot, and what they are where nobody has written any. Servers here come and go by the store's leases, so
/// nothing acts on them.
fn autopilot_defaults() -> Map<String, Value> {
    let defaults = json!({
        "CleanupDeadServers": true,
        "LastContactThreshold": "200ms",
        "MaxTrailingLogs": 250,
        "MinQuorum": 0,
        "ServerStabilizationTime": "10s",
        "RedundancyZoneTag": "",
        "DisableUpgradeMigration": false,
        "UpgradeVersionTag": "",
    });
    if let Value::Object(defaults) = defaults { defaults } else { Map::new() }
}

pub(super) async fn autopilot(api: Arc<Api>, _: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let written = snapshot.config(&autopilot_key());
    let mut form = autopilot_defaults();
    if let Some(ConfigEntry::Kept(entry)) = written.map(|entry| &entry.value) {
        form.extend(entry.settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    let (created, modified) = written.map_or((Revision(1), Revision(1)), |entry| (entry.created, entry.modified));
    form.insert("CreateIndex".to_owned(), created.0.into());
    form.insert("ModifyIndex".to_owned(), modified.0.into());
    Ok(Answer::json(form.into()))
}

pub(super) async fn write_autopilot(api: Arc<Api>, call: Call) -> Outcome {
    let settings = {
        let context = Call::context(&api.catalog.authority());
        autopilot_settings(call.fields(&context)?)?
    };
    // What nobody has written yet is told with index 1.
    let cas = call.query.cas()?.map(|cas| if cas == Revision(1) { Revision(0) } else { cas });
    let is_first = api.catalog.snapshot().config(&autopilot_key()).is_none();
    if call.query.text("cas") == Some("0") && is_first {
        return Ok(Answer::json(json!(false)));
    }
    let name = KeptKind::Autopilot.as_str().parse().expect("invariant: a name");
    let entry = KeptEntry { kind: KeptKind::Autopilot, name, settings: settings.into() };
    match api.catalog.commit(Command::PutConfig { entry: ConfigEntry::Kept(Box::new(entry)), cas }).await {
        Ok(revision) => Ok(Answer::json(json!(true)).written_at(revision)),
        Err(CommitFailure::Refused(Refusal::Cas { .. })) => Ok(Answer::json(json!(false))),
        Err(failure) => Err(failure.into()),
    }
}

fn autopilot_settings(mut fields: Fields<'_>) -> Result<Map<String, Value>, FieldError> {
    let mut settings = autopilot_defaults();
    for name in ["CleanupDeadServers", "DisableUpgradeMigration"] {
        settings.insert(name.to_owned(), fields.flag(name)?.into());
    }
    for name in ["MaxTrailingLogs", "MinQuorum"] {
        settings.extend(fields.count(name)?.map(|count| (name.to_owned(), count.into())));
    }
    for name in ["LastContactThreshold", "ServerStabilizationTime"] {
        let written = fields.duration(name)?.map(crate::parse::duration_text);
        settings.extend(written.map(|text| (name.to_owned(), text.into())));
    }
    for name in ["RedundancyZoneTag", "UpgradeVersionTag"] {
        settings.extend(fields.text(name)?.map(|text| (name.to_owned(), text.into())));
    }
    fields.ignored(&["CreateIndex", "ModifyIndex"]);
    fields.finish()?;
    Ok(settings)
}

/// Kinds of instances in the mesh, in Consul's words.
const MESH_KINDS: [&str; 6] =
    ["api-gateway", "connect-native", "connect-proxy", "ingress-gateway", "mesh-gateway", "terminating-gateway"];

pub(super) async fn usage(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::ServiceList, Subject::NodeList]).await?;
    let mut kinds: BTreeMap<&str, usize> = MESH_KINDS.into_iter().map(|kind| (kind, 0)).collect();
    let (mut names, mut instances, mut billable) = (BTreeSet::new(), 0_usize, 0_usize);
    for instance in view.snapshot.nodes().flat_map(|node| view.snapshot.instances_on(&node.value.name)) {
        let instance = &instance.value;
        instances += 1;
        names.insert(&instance.name);
        let kind = forms::kind_text(instance);
        if let Some(count) = kinds.get_mut(kind) {
            *count += 1;
        }
        if instance.native {
            *kinds.entry("connect-native").or_default() += 1;
        }
        billable += usize::from(is_billable(instance));
    }
    let datacenter = api.catalog.authority().datacenter;
    let usage = json!({
        "Nodes": view.snapshot.nodes().count(),
        "Services": names.len(),
        "ServiceInstances": instances,
        "ConnectServiceInstances": kinds,
        "BillableServiceInstances": billable,
    });
    Ok(Answer::json(json!({"Usage": {datacenter.as_str(): usage}})).read_at(view.index))
}

fn is_billable(instance: &ServiceInstance) -> bool {
    instance.name.as_str() != CONSUL_SERVICE && matches!(instance.kind, InstanceKind::Typical)
}

/// Servers vote on nothing, so there is nobody to be taken out and nothing to be handed on.
pub(super) async fn without_raft(_: Arc<Api>, _: Call) -> Outcome {
    Err(ApiError::bad_request(
        "servers vote on nothing here: stop a server, or PUT /starling/v1/server/leave, and it is a member no more",
    ))
}
