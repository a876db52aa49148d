//! The server may go and come back; traffic does not notice.

use std::collections::BTreeMap;

use serde_json::Value;
use starling_e2e::{Mesh, MeshOptions, Sidecar, Traffic, Workload, eventually, http};

/// What the control plane has sent to a proxy, as the proxy tells it.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    /// Version of every resource, and when Envoy last took it.
    versions: BTreeMap<String, String>,
    /// Responses that Envoy applied, by kind of subscription, and what it changed for them.
    updates: BTreeMap<String, u64>,
}

/// Counters that rise when a response arrives, or when it changes something.
const UPDATE_COUNTERS: [&str; 7] = [
    "update_success",
    "update_rejected",
    "config_reload",
    "listener_modified",
    "listener_added",
    "cluster_modified",
    "cluster_added",
];

async fn received(sidecar: &Sidecar) -> Received {
    let mut versions = BTreeMap::new();
    let dump = sidecar.config_dump().await;
    for section in dump["configs"].as_array().expect("sections") {
        collect_versions(section, &mut versions);
    }
    assert!(!versions.is_empty(), "no resource has a version: {dump:#}");
    let stats = sidecar.get("/stats").await.text();
    let updates = stats.lines().filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let counted = UPDATE_COUNTERS.iter().any(|counter| name.ends_with(&format!(".{counter}")));
        counted.then(|| Some((name.to_owned(), value.parse().ok()?)))?
    });
    Received { versions, updates: updates.collect() }
}

/// Every object below `value` that has a version, by its name.
fn collect_versions(value: &Value, versions: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            let version = fields.get("version_info").and_then(Value::as_str).filter(|version| !version.is_empty());
            if let Some(version) = version {
                let taken = fields.get("last_updated").and_then(Value::as_str).unwrap_or_default();
                let named =
                    [fields.get("name"), fields.get("cluster"), fields.get("listener"), fields.get("route_config")];
                let name = named.into_iter().flatten().map(|part| part["name"].as_str().or(part.as_str()));
                let name = name.flatten().next().unwrap_or_default();
                versions.insert(format!("{} {name}", versions.len()), format!("{version} of {taken}"));
            }
            fields.values().for_each(|value| collect_versions(value, versions));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_versions(value, versions)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

async fn connection(sidecars: [&Sidecar; 2], expected: bool) {
    for sidecar in sidecars {
        eventually(&format!("connected to the control plane: {expected}"), async || {
            let connected = sidecar.is_connected().await;
            anyhow::ensure!(connected == expected, "{connected}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_survives_a_killed_server_and_nothing_is_resent() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
    let api_status = async |expected: u16| {
        eventually(&format!("api answers {expected}"), async || {
            let answer = http::get(&web.upstream("api"), "/").await?;
            anyhow::ensure!(answer.status == expected, "{}", answer.status);
            Ok(())
        })
        .await;
    };
    api_status(200).await;
    // The sidecars' own checks turn passing a moment after their listeners are up.
    eventually("every check passes", async || {
        let critical = mesh.get("/v1/health/state/critical").await.success().json();
        anyhow::ensure!(critical == Value::Array(Vec::new()), "{critical:#}");
        Ok(())
    })
    .await;
    let revision = mesh.revision().await;
    mesh.settled(revision).await;
    let sidecars = [&web.sidecar, &api.sidecar];
    let before = [received(sidecars[0]).await, received(sidecars[1]).await];

    let traffic = Traffic::start(&web.upstream("api"), "/");
    traffic.requests(50).await;
    mesh.kill9();
    connection(sidecars, false).await;
    traffic.requests(200).await;
    mesh.restart().await;
    connection(sidecars, true).await;
    traffic.requests(200).await;

    for (sidecar, before) in sidecars.into_iter().zip(before) {
        assert_eq!(received(sidecar).await, before, "{} was sent something again", sidecar.admin);
    }
    let requests = traffic.stop_without_failure().await;
    assert!(requests >= 450, "{requests}");

    let change = mesh.intention("web", "api", "deny").await.index();
    mesh.settled(change).await;
    api_status(403).await;
}
