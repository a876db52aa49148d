//! What is exported to others: <https://developer.hashicorp.com/consul/api-docs/exported-services>.
//!
//! Nobody is served by it, for there are neither peers nor partitions; it is what the `exported-services` entry comes to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Snapshot, Subject};
use starling_model::{ConfigEntry, ConfigKind, KeptKind};

use crate::answer::Answer;
use crate::blocking::view;
use crate::call::Call;
use crate::router::{Api, Outcome};

const KIND: ConfigKind = ConfigKind::Kept(KeptKind::ExportedServices);

/// The service of Consul's servers, which is never exported.
const SERVERS: &str = "consul";

/// Peers, and partitions.
type Consumers = (BTreeSet<String>, BTreeSet<String>);

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let mut subjects = vec![Subject::ConfigList(KIND)];
    // Only then does it change with what is registered.
    subjects.extend(exports(&api.catalog.snapshot()).any(|(name, ..)| name == "*").then_some(Subject::ServiceList));
    let view = view(&api, &mut call, &subjects).await?;
    let consumed = resolved(&view.snapshot);
    let row = |(service, (peers, partitions)): (&String, &Consumers)| {
        let sides = [("Peers", peers), ("Partitions", partitions)].into_iter().filter(|(_, names)| !names.is_empty());
        let consumers: serde_json::Map<_, _> = sides.map(|(side, names)| (side.to_owned(), json!(names))).collect();
        json!({"Service": service, "Consumers": consumers})
    };
    Ok(Answer::json(Value::Array(consumed.iter().map(row).collect())).read_at(view.index))
}

/// There are no peers from which anything could be imported.
pub(super) async fn imported(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[]).await?;
    Ok(Answer::json(json!([])).read_at(view.index))
}

/// By service; `*` stands for each that is registered.
fn resolved(snapshot: &Snapshot) -> BTreeMap<String, Consumers> {
    let mut consumed = BTreeMap::<_, Consumers>::new();
    for (name, peer, partition) in exports(snapshot) {
        let names: Vec<_> = match name {
            "*" => snapshot.service_names().map(|name| name.as_str()).filter(|name| *name != SERVERS).collect(),
            name => vec![name],
        };
        for name in names {
            let (peers, partitions) = consumed.entry(name.to_owned()).or_default();
            peers.extend(peer.map(str::to_owned));
            partitions.extend(partition.map(str::to_owned));
        }
    }
    consumed.retain(|_, (peers, partitions)| !peers.is_empty() || !partitions.is_empty());
    consumed
}

/// Each service that is named with each of its consumers: the peer, or the partition.
fn exports(snapshot: &Snapshot) -> impl Iterator<Item = (&str, Option<&str>, Option<&str>)> {
    let entries = snapshot.configs(KIND).filter_map(|entry| {
        let ConfigEntry::Kept(entry) = &entry.value else { return None };
        Some(entry)
    });
    entries.flat_map(|entry| entry.settings.get("Services").and_then(Value::as_array).into_iter().flatten()).flat_map(
        |service| {
            let name = service["Name"].as_str().unwrap_or_default();
            service["Consumers"].as_array().into_iter().flatten().map(move |consumer| {
                let text = |field: &str| consumer[field].as_str().filter(|text| !text.is_empty());
                (name, text("Peer"), text("Partition"))
            })
        },
    )
}
