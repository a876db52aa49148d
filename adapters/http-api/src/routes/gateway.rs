//! Which services stand behind which gateways, by what was written.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use starling_catalog::{Snapshot, Subject};
use starling_model::{ConfigEntry, ConfigKind, HostPattern, IngressGateway, LinkedService, ServiceName};

use super::health;
use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::Call;
use crate::router::{Api, Outcome};

pub(super) async fn services(api: Arc<Api>, mut call: Call) -> Outcome {
    let gateway: ServiceName = call.param_name("gateway")?;
    let subjects = [Subject::Routing(gateway.clone()), Subject::ServicesOutside];
    let view = view(&api, &mut call, &subjects).await?;
    let mut rows = Vec::new();
    if let Some(entry) = view.snapshot.ingress_gateway(&gateway) {
        rows.extend(let_in(&gateway, entry));
    }
    rows.extend(let_out(&gateway, &view.snapshot));
    Ok(Answer::json(rows.into()).read_at(view.index))
}

fn let_in(gateway: &ServiceName, entry: &IngressGateway) -> Vec<Value> {
    let mut rows = Vec::new();
    for listener in &entry.listeners {
        for service in listener.services() {
            let own = HostPattern::of_service(service.service.as_str());
            let hosts: Vec<_> = service.hosts.iter().filter(|host| **host != own).map(ToString::to_string).collect();
            let mut row = row(gateway, "ingress-gateway", service.service.as_str());
            row.insert("Port".to_owned(), listener.port.get().into());
            row.insert("Protocol".to_owned(), listener.protocol.as_str().into());
            if !hosts.is_empty() {
                row.insert("Hosts".to_owned(), hosts.into());
            }
            rows.push(row.into());
        }
    }
    rows
}

fn row(gateway: &ServiceName, kind: &str, service: &str) -> Map<String, Value> {
    Map::from_iter([
        ("Gateway".to_owned(), json!({"Name": gateway.as_str()})),
        ("Service".to_owned(), json!({"Name": service})),
        ("GatewayKind".to_owned(), kind.into()),
    ])
}

/// Those that it stands for: the ones that its entry names, then, for `*`, all others that are outside.
fn let_out(gateway: &ServiceName, snapshot: &Snapshot) -> Vec<Value> {
    let Some(entry) = snapshot.terminating_gateway(gateway) else { return Vec::new() };
    let of = |service: &str, link: &LinkedService, from_wildcard: bool| {
        let mut row = row(gateway, "terminating-gateway", service);
        row.extend(forms::terminating::files(link));
        if from_wildcard {
            row.insert("FromWildcard".to_owned(), true.into());
        }
        Value::Object(row)
    };
    let named = entry.named().filter_map(|service| Some(of(service.as_str(), entry.link(service)?, false)));
    let mut rows: Vec<_> = named.collect();
    if let Some(link) = entry.link_of_any() {
        let others = snapshot.services_outside().filter(|service| entry.link(service).is_none());
        rows.extend(others.map(|service| of(service.as_str(), link, true)));
    }
    rows
}

/// The instances of gateways that let a service in.
pub(super) async fn ingress(api: Arc<Api>, mut call: Call) -> Outcome {
    let service = call.service_name()?;
    let passing = call.query.switch("passing")?;
    let lists = Subject::ConfigList(ConfigKind::IngressGateway);
    let gateways = |snapshot: &Snapshot| -> Vec<ServiceName> {
        let entries = snapshot.configs(ConfigKind::IngressGateway);
        let lets_in = |entry: &IngressGateway| {
            entry.listeners.iter().flat_map(|listener| listener.services()).any(|let_in| let_in.service == service)
        };
        entries
            .filter_map(|entry| {
                let ConfigEntry::IngressGateway(entry) = &entry.value else { return None };
                lets_in(entry).then(|| entry.gateway.clone())
            })
            .collect()
    };
    let now = gateways(&api.catalog.snapshot()).into_iter().map(Subject::Service);
    let subjects: Vec<_> = now.chain([lists]).collect();
    let view = view(&api, &mut call, &subjects).await?;
    let names = gateways(&view.snapshot);
    let instances = names.iter().flat_map(|name| view.snapshot.instances_of(name));
    let entries = health::entries(&api, &call, &view.snapshot, instances, passing);
    Ok(Answer::json(entries).read_at(view.index))
}
