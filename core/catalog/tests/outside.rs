//! Services outside the mesh: who stands for whom, and which node may bear whose identity for it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/records.rs"]
mod records;

use std::collections::BTreeMap;

use records::{instance, key, node, sidecar};
use starling_catalog::Snapshot;
use starling_model::*;

fn gateway(node: &str, name: &str) -> Record {
    let kind = InstanceKind::TerminatingGateway(OpaqueSettings::default());
    Record::Instance(ServiceInstance { kind, ..instance(node, name, name, 8443) })
}

fn entry(gateway: &str, services: &[&str]) -> Record {
    let link = |name: &&str| LinkedService {
        service: if *name == "*" { LinkedName::Any } else { LinkedName::Service(name.parse().unwrap()) },
        tls: None,
        keeps_host: false,
        allows_local: false,
    };
    Record::Config(ConfigEntry::TerminatingGateway(Box::new(TerminatingGateway {
        gateway: gateway.parse().unwrap(),
        services: services.iter().map(link).collect(),
        meta: BTreeMap::new(),
    })))
}

fn snapshot(records: impl IntoIterator<Item = Record>) -> Snapshot {
    let changes: Vec<_> = records.into_iter().map(Change::Put).collect();
    Snapshot::default().apply(Revision(1), &changes).snapshot
}

/// Two services outside, one of which has an instance inside, too; and one that is inside.
fn mesh() -> Vec<Record> {
    let mut inside = sidecar("n1", "web-1-sidecar", "web-sidecar-proxy", "web", 21000);
    if let InstanceKind::Sidecar(proxy) = &mut inside.kind {
        proxy.destination_id = Some("web-1".parse().unwrap());
    }
    let mut mixed = sidecar("n1", "mixed-1-sidecar", "mixed-sidecar-proxy", "mixed", 21001);
    if let InstanceKind::Sidecar(proxy) = &mut mixed.kind {
        proxy.destination_id = Some("mixed-1".parse().unwrap());
    }
    vec![
        node("n1", "10.0.0.1"),
        node("n2", "10.0.0.2"),
        node("edge", "10.0.0.9"),
        Record::Instance(instance("n1", "web-1", "web", 80)),
        Record::Instance(inside),
        Record::Instance(instance("n1", "mixed-1", "mixed", 80)),
        Record::Instance(mixed),
        Record::Instance(instance("n2", "mixed-2", "mixed", 80)),
        Record::Instance(instance("n2", "legacy", "legacy", 80)),
        gateway("edge", "egress"),
    ]
}

fn stands_for(snapshot: &Snapshot, service: &str) -> Vec<String> {
    let service: ServiceName = service.parse().unwrap();
    let stand_ins: Vec<_> = snapshot.stand_ins_of(&service).map(|it| it.value.key.to_string()).collect();
    for it in snapshot.stand_ins_of(&service) {
        assert!(snapshot.stand_in(&service, &it.value.key).is_some_and(|front| front.stands_in));
    }
    stand_ins
}

#[test]
fn a_gateway_stands_for_what_it_links_as_far_as_that_is_outside() {
    let linked = snapshot(mesh().into_iter().chain([entry("egress", &["legacy", "mixed", "web", "gone"])]));
    assert_eq!(stands_for(&linked, "legacy"), ["edge/egress"]);
    assert_eq!(stands_for(&linked, "mixed"), ["edge/egress"], "one of its instances is outside");
    assert_eq!(stands_for(&linked, "web"), [""; 0], "all of it is inside");
    assert_eq!(stands_for(&linked, "gone"), [""; 0]);
    let mixed = "mixed".parse().unwrap();
    let mixed = linked.instances_outside(&mixed);
    assert_eq!(mixed.map(|it| it.value.key.to_string()).collect::<Vec<_>>(), ["n2/mixed-2"]);
    let all = snapshot(mesh().into_iter().chain([entry("egress", &["*"])]));
    assert_eq!(stands_for(&all, "legacy"), ["edge/egress"]);
    assert_eq!(stands_for(&all, "mixed"), [""; 0], "it has somebody in the mesh");
    assert_eq!(all.services_outside().map(ServiceName::as_str).collect::<Vec<_>>(), ["legacy"]);
}

#[test]
fn a_node_bears_the_identity_of_what_a_gateway_on_it_stands_for_and_of_nothing_else() {
    let may = |snapshot: &Snapshot, node: &str, service: &str| {
        snapshot.is_stood_for_on(&node.parse().unwrap(), &service.parse().unwrap())
    };
    let named = snapshot(mesh().into_iter().chain([entry("egress", &["legacy"]), entry("other", &["web"])]));
    assert!(may(&named, "edge", "legacy"));
    assert!(!may(&named, "n1", "legacy"), "no gateway is there");
    assert!(!may(&named, "edge", "web"), "it is linked by a gateway of another name");
    assert!(!may(&named, "edge", "mixed"), "nobody links it");
    let all = snapshot(mesh().into_iter().chain([entry("egress", &["*"])]));
    assert!(may(&all, "edge", "legacy"));
    assert!(!may(&all, "edge", "web") && !may(&all, "edge", "mixed"), "they have somebody in the mesh");
    let gone = all.apply(Revision(2), &[Change::Delete(RecordKey::Instance(key("edge", "egress")))]).snapshot;
    assert!(!may(&gone, "edge", "legacy"));
}

#[test]
fn what_an_earlier_release_kept_is_obeyed_when_it_is_read() {
    let kept = r#"{"kept":{"kind":"terminating-gateway","name":"egress","settings":{"Services":[{"Name":"legacy"}]}}}"#;
    let key = RecordKey::decode("config/terminating-gateway/egress").unwrap();
    let read = Record::decode(&key, kept.as_bytes()).unwrap();
    assert_eq!(read.key(), key);
    assert_eq!(stands_for(&snapshot(mesh().into_iter().chain([read])), "legacy"), ["edge/egress"]);
    let instance = r#"{"key":{"node":"edge","id":"egress"},"name":"egress","kind":{"other-gateway":{"kind":"terminating-gateway","config":{"bind_port":1}}},"port":8443}"#;
    let key = RecordKey::decode("instance/edge/egress").unwrap();
    let read = Record::decode(&key, instance.as_bytes()).unwrap();
    let Record::Instance(read) = read else { panic!("an instance") };
    assert!(matches!(&read.kind, InstanceKind::TerminatingGateway(config) if config["bind_port"] == 1), "{read:?}");
}
