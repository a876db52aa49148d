//! Virtual addresses: who gets one, and that it is his alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "one kind of record is looked at")]

#[path = "support/records.rs"]
mod records;

use records::*;
use starling_catalog::command::GUARDED_CHANGES_MAX;
use starling_catalog::{Command, Decision, Snapshot, decide};
use starling_model::*;

/// The virtual addresses that a decision gives out.
fn given(decision: &Decision) -> Vec<VirtualAddress> {
    let records = decision.changes.iter().filter_map(|change| match change {
        Change::Put(Record::VirtualAddress(given)) => Some(given.clone()),
        _ => None,
    });
    records.collect()
}

fn with(instances: Vec<ServiceInstance>) -> Command {
    Command::Register { name: "n1".parse().unwrap(), node: None, instances, checks: Vec::new() }
}

fn mesh_of(records: Vec<Record>) -> Snapshot {
    let changes: Vec<_> = records.into_iter().map(Change::Put).collect();
    Snapshot::default().apply(Revision(1), &changes).snapshot
}

#[test]
fn a_service_of_the_mesh_gets_one_address_for_ever() {
    let mesh = mesh_of(vec![node("n1", "10.0.0.1")]);
    let sidecar = sidecar("n1", "w1-proxy", "web-sidecar-proxy", "web", 21_000);
    let plain = decide(&mesh, &with(vec![instance("n1", "w1", "web", 80)])).unwrap();
    assert_eq!(given(&plain), [], "what nobody reaches in the mesh needs none");
    for command in [
        with(vec![sidecar.clone()]),
        Command::of_node("n1".parse().unwrap(), vec![Change::Put(Record::Instance(sidecar.clone()))]),
        with(vec![ServiceInstance { native: true, ..instance("n1", "w1", "web", 80) }]),
    ] {
        let decision = decide(&mesh, &command).unwrap();
        let address = virtual_address("web");
        assert_eq!(given(&decision), std::slice::from_ref(&address));
        let key = RecordKey::VirtualAddress(address.address);
        assert!(decision.seen.contains(&starling_catalog::Seen { key, modified: None }), "nobody else may have it");
        let mesh = mesh.apply(Revision(9), &decision.changes).snapshot;
        assert_eq!(mesh.virtual_address(&"web".parse().unwrap()), Some(address.address));
        let gone = decide(&mesh, &Command::DeregisterNode("n1".parse().unwrap())).unwrap();
        let mesh = mesh.apply(Revision(10), &gone.changes).snapshot;
        assert_eq!(mesh.virtual_address(&"web".parse().unwrap()), Some(address.address));
        let back =
            decide(&mesh.apply(Revision(11), &[Change::Put(node("n1", "10.0.0.1"))]).snapshot, &command).unwrap();
        assert_eq!(given(&back), []);
    }
}

#[test]
fn an_address_that_another_has_is_left_to_it() {
    let first = virtual_address("web");
    let taken = VirtualAddress { service: "api".parse().unwrap(), ..first.clone() };
    let mesh = mesh_of(vec![node("n1", "10.0.0.1"), Record::VirtualAddress(taken)]);
    let sidecar = sidecar("n1", "w1-proxy", "web-sidecar-proxy", "web", 21_000);
    let decision = decide(&mesh, &with(vec![sidecar])).unwrap();
    let second = VirtualAddress::candidates(&"web".parse().unwrap()).nth(1).unwrap();
    assert_ne!(second.address, first.address);
    assert_eq!(given(&decision), [second]);
}

#[test]
fn many_services_at_once_get_theirs_in_several_steps() {
    let sidecars = (0..100).map(|n| sidecar("n1", &format!("s{n}"), "proxy", &format!("service-{n}"), 21_000 + n));
    let command = with(sidecars.collect());
    let mut mesh = mesh_of(vec![node("n1", "10.0.0.1")]);
    let mut revision = 2;
    loop {
        let decision = decide(&mesh, &command).unwrap();
        assert!(decision.seen.len() <= GUARDED_CHANGES_MAX);
        let (guarded, rest) = decision.changes.split_at(decision.changes.len().min(128));
        let unguarded = Decision { changes: rest.to_vec(), ..Decision::default() };
        assert_eq!(given(&unguarded), [], "nobody could tell if another had it");
        assert!(!guarded.is_empty());
        mesh = mesh.apply(Revision(revision), &decision.changes).snapshot;
        revision += 1;
        if !decision.again {
            break;
        }
    }
    assert_eq!(mesh.virtual_addresses(), 100);
}
