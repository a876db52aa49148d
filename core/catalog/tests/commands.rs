//! Commands: what they change, and what they refuse.

#[path = "support/records.rs"]
mod records;

use records::*;
use starling_catalog::{Command, Refusal, Snapshot, decide};
use starling_model::*;

fn run(snapshot: &Snapshot, command: Command) -> Result<Snapshot, Refusal> {
    let decision = decide(snapshot, &command)?;
    Ok(snapshot.apply(Revision(snapshot.revision().0 + 1), &decision.changes).snapshot)
}

fn put(entry: ConfigEntry) -> Command {
    Command::PutConfig { entry, cas: None }
}

fn passing(id: &str, service: &str) -> Check {
    let Record::Check(check) = check("n1", id, Some((service, "web")), CheckStatus::Passing) else {
        unreachable!("a check")
    };
    check
}

fn registered() -> Snapshot {
    let Record::Node(n1) = node("n1", "10.0.0.1") else { unreachable!("a node") };
    let web = Command::Register {
        name: n1.name.clone(),
        node: Some(n1),
        instances: vec![instance("n1", "web-1", "web", 80)],
        checks: vec![passing("c1", "web-1")],
    };
    run(&Snapshot::default(), web).expect("registers")
}

#[test]
fn registering_the_same_again_changes_nothing() {
    let snapshot = registered();
    let again = Command::Node {
        name: "n1".parse().expect("a name"),
        changes: snapshot.records().map(|record| Change::Put(record.value)).collect(),
    };
    assert_eq!(decide(&snapshot, &again).expect("decided").changes, vec![]);
}

#[test]
fn an_instance_takes_its_checks_with_it_and_a_node_takes_everything() {
    let without_web = run(&registered(), Command::DeregisterInstance(key("n1", "web-1"))).expect("deregisters");
    assert_eq!(without_web.checks().count(), 0);
    assert!(without_web.node(&"n1".parse().expect("a name")).is_some());
    let empty = run(&registered(), Command::DeregisterNode("n1".parse().expect("a name"))).expect("deregisters");
    assert_eq!(empty.records().count(), 0);
}

#[test]
fn a_check_for_a_service_that_is_not_there_is_refused() {
    let command = Command::Register {
        name: "n1".parse().expect("a name"),
        node: None,
        instances: vec![],
        checks: vec![passing("c2", "gone")],
    };
    let refusal = run(&registered(), command).expect_err("refused");
    assert_eq!(refusal.to_string(), "check c2 is for service id gone, which is not registered on node n1");
}

#[test]
fn a_node_may_not_write_what_is_not_its_own() {
    let foreign = Change::Put(Record::Instance(instance("n2", "web-1", "web", 80)));
    let command = Command::Node { name: "n1".parse().expect("a name"), changes: vec![foreign] };
    assert!(matches!(run(&registered(), command), Err(Refusal::ForeignRecord { .. })));
}

#[test]
fn l7_permissions_need_an_l7_protocol_whichever_comes_first() {
    let l7 = || put(intentions("web", vec![requests("api", Action::Allow, "/v1")]));
    assert!(matches!(run(&registered(), l7()), Err(Refusal::ProtocolConflict { .. })));

    let http = run(&registered(), put(defaults("web", Protocol::Http))).expect("written");
    let guarded = run(&http, l7()).expect("written");
    assert!(matches!(run(&guarded, put(defaults("web", Protocol::Tcp))), Err(Refusal::ProtocolConflict { .. })));
    let removal = Command::DeleteConfig { key: defaults("web", Protocol::Http).key(), cas: None };
    assert!(matches!(run(&guarded, removal.clone()), Err(Refusal::ProtocolConflict { .. })));

    let mesh_wide = ProxyDefaults { protocol: Some(Protocol::Http), ..ProxyDefaults::default() };
    let both = run(&guarded, put(ConfigEntry::ProxyDefaults(mesh_wide))).expect("written");
    let fallback = run(&both, removal).expect("proxy-defaults still say http");
    let global = put(ConfigEntry::ProxyDefaults(ProxyDefaults::default()));
    assert!(matches!(run(&fallback, global), Err(Refusal::ProtocolConflict { .. })));
}

#[test]
fn a_check_and_set_holds_only_at_its_revision() {
    let snapshot = run(&registered(), put(defaults("web", Protocol::Http))).expect("written");
    let at = snapshot.config(&defaults("web", Protocol::Http).key()).expect("there").modified;
    let with = |cas| Command::PutConfig { entry: defaults("web", Protocol::Grpc), cas: Some(cas) };
    assert!(matches!(run(&snapshot, with(Revision(0))), Err(Refusal::Cas { .. })));
    assert!(matches!(run(&snapshot, with(Revision(at.0 + 1))), Err(Refusal::Cas { .. })));
    let written = run(&snapshot, with(at)).expect("written");
    assert_eq!(written.protocol(&"web".parse().expect("a name")), Protocol::Grpc);
}

#[test]
fn intentions_are_kept_one_per_source_and_leave_no_empty_entry() {
    let web: IntentionSubject = "web".parse().expect("a name");
    let set = |source: &str, action| Command::PutIntention {
        destination: web.clone(),
        intention: connection(source, action),
    };
    let mut snapshot = run(&registered(), set("*", Action::Deny)).expect("written");
    snapshot = run(&snapshot, set("api", Action::Allow)).expect("written");
    snapshot = run(&snapshot, set("api", Action::Deny)).expect("written");
    let entry = snapshot.intentions_covering(&"web".parse().expect("a name")).next().expect("there").clone();
    assert_eq!(entry.sources, vec![connection("api", Action::Deny), connection("*", Action::Deny)]);
    for source in ["api", "*", "never-there"] {
        let delete = Command::DeleteIntention { destination: web.clone(), source: source.parse().expect("a subject") };
        snapshot = run(&snapshot, delete).expect("deleted");
    }
    assert!(snapshot.intentions(&web).is_none());
}
