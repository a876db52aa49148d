//! What operators are shown.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use starling_identity::Validity;
use starling_model::InstanceId;
use starling_plan::{Plan, describe};

use crate::snapshot::{CertificateSnapshot, ConnectionSnapshot, HostSnapshot, WorkerSnapshot, WorkloadSnapshot};
use crate::workload::Workload;

/// Every workload once, as the first worker that serves it does.
fn workloads(workers: &[WorkerSnapshot]) -> BTreeMap<&InstanceId, &WorkloadSnapshot> {
    let all = workers.iter().rev().flat_map(|worker| &worker.workloads);
    all.map(|workload| (&workload.id, workload)).collect()
}

/// The plan in force: endpoints as they are in their slots.
fn plan(workload: &Workload) -> Plan {
    let endpoints = workload.endpoints.iter().map(|slot| slot.load()).collect();
    Plan { endpoints, ..workload.plan.clone() }
}

/// Every plan in force. Plans hold no keys.
pub(super) fn config_text(workers: &[WorkerSnapshot]) -> String {
    let text = |(id, shown): (&InstanceId, &WorkloadSnapshot)| {
        let plan = plan(&shown.workload);
        format!("# {id} at revision {}\n{}", plan.revision, describe(&plan))
    };
    workloads(workers).into_iter().map(text).collect::<Vec<_>>().join("\n")
}

pub(super) fn config(workers: &[WorkerSnapshot]) -> Value {
    let shown = |(id, shown): (&InstanceId, &WorkloadSnapshot)| {
        let plan = plan(&shown.workload);
        (id.to_string(), json!({"revision": plan.revision.0, "service": plan.service.as_str(), "parts": parts(&plan)}))
    };
    Value::Object(workloads(workers).into_iter().map(shown).collect())
}

/// The parts of a plan by name, each in lines.
fn parts(plan: &Plan) -> Map<String, Value> {
    let (mut parts, mut current) = (Map::new(), String::new());
    for line in describe(plan).lines() {
        match line.strip_prefix("  ") {
            None => {
                line.clone_into(&mut current);
                parts.insert(current.clone(), json!([]));
            }
            Some(line) => {
                if let Some(Value::Array(lines)) = parts.get_mut(&current) {
                    lines.push(json!(line));
                }
            }
        }
    }
    parts
}

/// Sums over all workers.
#[derive(Default)]
struct Sums {
    weight: u32,
    calls: u32,
    /// Workers that leave it out for a while.
    ejected: u32,
    idle: usize,
    shared: usize,
}

/// Endpoints by workload and upstream.
pub(super) fn clusters(workers: &[WorkerSnapshot]) -> Value {
    let mut all = BTreeMap::<String, BTreeMap<&str, (&str, u32, BTreeMap<String, Sums>)>>::new();
    for workload in workers.iter().flat_map(|worker| &worker.workloads) {
        let upstreams = all.entry(workload.id.to_string()).or_default();
        for upstream in &workload.upstreams {
            let (_, calls, hosts) =
                upstreams.entry(&upstream.name).or_insert((upstream.protocol.as_str(), 0, BTreeMap::new()));
            *calls += upstream.calls;
            for host in &upstream.hosts {
                add(hosts, host);
            }
        }
    }
    let host = |(address, sums): (&String, &Sums)| {
        json!({
            "address": address, "weight": sums.weight, "calls": sums.calls, "ejected_by": sums.ejected,
            "idle_connections": sums.idle, "shared_connections": sums.shared,
        })
    };
    let upstreams = all.iter().map(|(id, upstreams)| {
        let upstream = |(name, (protocol, calls, hosts)): (&&str, &(&str, u32, BTreeMap<String, Sums>))| {
            let hosts: Vec<_> = hosts.iter().map(host).collect();
            ((*name).to_owned(), json!({"protocol": protocol, "calls": calls, "endpoints": hosts}))
        };
        (id.clone(), Value::Object(upstreams.iter().map(upstream).collect()))
    });
    Value::Object(upstreams.collect())
}

fn add(hosts: &mut BTreeMap<String, Sums>, host: &HostSnapshot) {
    let address = host.address.map_or_else(|| "by name".to_owned(), |address| address.to_string());
    let sums = hosts.entry(address).or_default();
    sums.weight = host.weight;
    sums.calls += host.calls;
    sums.ejected += u32::from(host.ejected);
    sums.idle += host.idle_connections;
    sums.shared += host.shared_connections;
}

/// What each workload shows, and whom it believes.
pub(super) fn certificates(workers: &[WorkerSnapshot]) -> Value {
    let shown = |(id, shown): (&InstanceId, &WorkloadSnapshot)| {
        let credentials = shown.keys.credentials();
        let root = |root: &starling_tls::RootSummary| json!({"id": root.id, "name": root.name, "serial": root.serial, "valid": valid(root.validity)});
        let mut value = json!({
            "identity": credentials.identity().to_uri(),
            "serial": credentials.serial(),
            "valid": valid(credentials.validity()),
            "roots": shown.keys.roots().summaries().iter().map(root).collect::<Vec<_>>(),
        });
        for listener in shown.listeners.iter().filter(|listener| !listener.certificates.is_empty()) {
            let of_file = |it: &CertificateSnapshot| json!({"names": it.names, "valid": it.validity.map(valid)});
            let files: Vec<_> = listener.certificates.iter().map(of_file).collect();
            value["files"][listener.address.to_string()] = files.into();
            if let Some(reason) = &listener.files_refused {
                value["files_refused"][listener.address.to_string()] = reason.as_str().into();
            }
        }
        (id.to_string(), value)
    };
    Value::Object(workloads(workers).into_iter().map(shown).collect())
}

/// Units: seconds since 1970.
fn valid(validity: Validity) -> Value {
    json!({"from_unix_seconds": validity.not_before().0, "to_unix_seconds": validity.not_after().0})
}

/// Connections of clients by listener, and how many stand.
pub(super) fn connections(workers: &[WorkerSnapshot]) -> Value {
    let connection = |worker: usize, it: &ConnectionSnapshot| {
        json!({
            "worker": worker, "remote": it.remote.to_string(), "identity": it.identity,
            "age_seconds": it.age.as_secs(), "requests": it.requests,
        })
    };
    let mut listeners = BTreeMap::<String, (Value, usize, Vec<Value>)>::new();
    for (number, worker) in workers.iter().enumerate() {
        for workload in &worker.workloads {
            for listener in &workload.listeners {
                let head = || {
                    json!({
                        "workload": workload.id.to_string(),
                        "upstream": listener.upstream.as_ref().map(ToString::to_string),
                        "protocol": listener.protocol.as_str(),
                    })
                };
                let (_, standing, connections) =
                    listeners.entry(listener.address.to_string()).or_insert_with(|| (head(), 0, Vec::new()));
                *standing += listener.standing;
                connections.extend(listener.connections.iter().map(|it| connection(number, it)));
            }
        }
    }
    let shown = |(address, (mut head, standing, connections)): (String, (Value, usize, Vec<Value>))| {
        head["standing"] = json!(standing);
        head["connections"] = json!(connections);
        (address, head)
    };
    Value::Object(listeners.into_iter().map(shown).collect())
}
