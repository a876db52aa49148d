//! Commands: what they change, and what they refuse.

#[path = "support/records.rs"]
mod records;

use records::*;
use starling_catalog::command::GUARDED_CHANGES_MAX;
use starling_catalog::{Command, Decision, Refusal, Snapshot, Subject, decide, decide_again};
use starling_model::*;

fn run(snapshot: &Snapshot, command: Command) -> Result<Snapshot, Refusal> {
    let decision = decide(snapshot, &command)?;
    Ok(commit(snapshot, &decision).expect("nobody was in between"))
}

/// What the store does: writes if what was seen still holds.
fn commit(snapshot: &Snapshot, decision: &Decision) -> Option<Snapshot> {
    let holds = decision.seen.iter().all(|seen| snapshot.modified(&seen.key) == seen.modified);
    holds.then(|| snapshot.apply(Revision(snapshot.revision().0 + 1), &decision.changes).snapshot)
}

fn n1() -> NodeName {
    "n1".parse().expect("a name")
}

fn register(node: Option<Node>, instances: Vec<ServiceInstance>, checks: Vec<Check>) -> Command {
    Command::Register { name: n1(), node, instances, checks }
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
    let again = Command::of_node(
        "n1".parse().expect("a name"),
        snapshot.records().map(|record| Change::Put(record.value)).collect(),
    );
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
    let command = Command::of_node("n1".parse().expect("a name"), vec![foreign]);
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
fn routers_and_splitters_need_requests_whichever_comes_first() {
    let split = || put(splitter("web", "api"));
    let refused = |outcome| matches!(outcome, Err(Refusal::RoutingProtocol { .. }));
    assert!(refused(run(&registered(), split())));

    let http = run(&registered(), put(defaults("web", Protocol::Http))).expect("written");
    let guarded = run(&http, split()).expect("written");
    assert!(refused(run(&guarded, put(defaults("web", Protocol::Tcp)))));
    let removal = Command::DeleteConfig { key: defaults("web", Protocol::Http).key(), cas: None };
    assert!(refused(run(&guarded, removal.clone())));
    run(&guarded, put(defaults("web", Protocol::Grpc))).expect("another protocol of requests");

    let mesh_wide = ProxyDefaults { protocol: Some(Protocol::Http), ..ProxyDefaults::default() };
    let both = run(&guarded, put(ConfigEntry::ProxyDefaults(mesh_wide))).expect("written");
    let fallback = run(&both, removal).expect("proxy-defaults still say http");
    assert!(refused(run(&fallback, put(ConfigEntry::ProxyDefaults(ProxyDefaults::default())))));

    // A resolver tells instances apart, which connections need as well.
    run(&registered(), put(resolver("web", true))).expect("written");
    // Two of them that are decided on the same state exclude each other.
    let decision = decide(&http, &split()).expect("decided");
    assert!(decision.seen.iter().any(|seen| seen.key == RecordKey::Fence(Fence::Protocols)));
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

#[test]
fn what_is_registered_is_not_left_behind_by_a_removal_in_between() {
    let snapshot = registered();
    let Record::Node(record) = node("n1", "10.0.0.1") else { unreachable!("a node") };
    let another = || vec![instance("n1", "web-2", "web", 81)];
    let registrations = [
        (register(None, another(), vec![]), Command::DeregisterNode(n1())),
        (register(Some(record), another(), vec![]), Command::DeregisterNode(n1())),
        (register(None, vec![], vec![passing("c2", "web-1")]), Command::DeregisterInstance(key("n1", "web-1"))),
        (register(None, vec![], vec![passing("c1", "web-1"), passing("c2", "web-1")]), Command::DeregisterNode(n1())),
    ];
    for (registration, removal) in registrations {
        let registering = decide(&snapshot, &registration).expect("decided");
        let removing = decide(&snapshot, &removal).expect("decided");

        let removed = commit(&snapshot, &removing).expect("removed");
        assert!(commit(&removed, &registering).is_none(), "{registration:?}");
    }
}

#[test]
fn what_was_registered_while_a_removal_was_decided_goes_when_it_is_decided_again() {
    let snapshot = registered();
    let late = register(None, vec![instance("n1", "web-2", "web", 81)], vec![passing("c2", "web-1")]);
    for removal in [Command::DeregisterNode(n1()), Command::DeregisterInstance(key("n1", "web-1"))] {
        let removing = decide(&snapshot, &removal).expect("decided");
        assert!(removing.again);
        let between = run(&snapshot, late.clone()).expect("registers");
        let half = commit(&between, &removing).expect("nothing that it has seen was changed");
        assert!(half.check(&n1(), &"c2".parse().expect("an id")).is_some());
        let whole = run(&half, removal.clone()).expect("decided again");
        assert_eq!(whole.checks().count(), 0);
        assert!(whole.node(&n1()).is_some() || whole.records().count() == 0);
        let settled = decide(&whole, &removal).expect("decided once more");
        assert!(settled.changes.is_empty() && !settled.again);
    }
}

/// The node has come back meanwhile, and whoever brought it was told so: a removal is done once.
#[test]
fn what_came_after_a_removal_stays_when_that_is_decided_again() {
    let snapshot = registered();
    let removal = Command::DeregisterNode(n1());
    let removing = decide(&snapshot, &removal).expect("decided");
    let unseen =
        run(&snapshot, register(None, vec![instance("n1", "web-2", "web", 81)], Vec::new())).expect("registers");
    let removed = commit(&unseen, &removing).expect("nothing that it has seen was changed");
    let first = removed.revision();
    let Record::Node(node) = node("n1", "10.0.0.9") else { unreachable!("a node") };
    let back = register(Some(node), vec![instance("n1", "web-3", "web", 82)], Vec::new());
    let back = run(&removed, back).expect("registers");
    let again = decide_again(&back, &removal, first).expect("decided again");
    assert_eq!(again.changes, [Change::Delete(RecordKey::Instance(key("n1", "web-2")))]);
    let left = commit(&back, &again).expect("nothing that it has seen was changed");
    assert!(left.node(&n1()).is_some() && left.instance(&key("n1", "web-3")).is_some());
    assert!(decide_again(&left, &removal, first).expect("decided once more").changes.is_empty());
}

#[test]
fn a_removal_begins_with_what_others_rely_on() {
    let node = decide(&registered(), &Command::DeregisterNode(n1())).expect("decided");
    let kinds: Vec<_> = node.changes.iter().map(|change| change.key().encode()).collect();
    assert_eq!(kinds, ["node/n1", "instance/n1/web-1", "check/n1/c1"]);
}

#[test]
fn a_large_registration_sees_no_more_than_one_transaction_may() {
    let ids: Vec<_> = (0..2 * GUARDED_CHANGES_MAX).map(|number| format!("web-{number}")).collect();
    let instances = ids.iter().map(|id| instance("n1", id, "web", 80)).collect();
    let snapshot = run(&registered(), register(None, instances, vec![])).expect("registers");
    let checks = ids.iter().map(|id| passing(&format!("of-{id}"), id)).collect();
    let decision = decide(&snapshot, &register(None, vec![], checks)).expect("decided");
    assert_eq!(decision.changes.len(), 2 * GUARDED_CHANGES_MAX);
    assert_eq!(decision.seen.len(), GUARDED_CHANGES_MAX);
}

#[test]
fn an_identifier_may_stand_once_in_a_registration() {
    let twice = vec![instance("n1", "web-2", "web", 80), instance("n1", "web-2", "web", 81)];
    let refusal = run(&registered(), register(None, twice, vec![])).expect_err("refused");
    assert_eq!(refusal.to_string(), "service id web-2 is in the registration twice");
    let twice = vec![passing("c2", "web-1"), passing("c2", "web-1")];
    let refusal = run(&registered(), register(None, vec![], twice)).expect_err("refused");
    assert_eq!(refusal.to_string(), "check c2 is in the registration twice");
}

/// A mesh that speaks HTTP by proxy-defaults, with so many services whose requests are told apart.
fn l7_mesh(services: usize) -> Snapshot {
    let mesh_wide = ProxyDefaults { protocol: Some(Protocol::Http), ..ProxyDefaults::default() };
    let mut snapshot = run(&registered(), put(ConfigEntry::ProxyDefaults(mesh_wide))).expect("written");
    for number in 0..services {
        let guarded = intentions(&format!("s{number}"), vec![requests("api", Action::Allow, "/v1")]);
        snapshot = run(&snapshot, put(guarded)).expect("written");
    }
    snapshot
}

#[test]
fn mesh_wide_settings_see_few_records_however_many_rely_on_them() {
    let snapshot = l7_mesh(200);
    let grpc = ProxyDefaults { protocol: Some(Protocol::Grpc), ..ProxyDefaults::default() };
    let decision = decide(&snapshot, &put(ConfigEntry::ProxyDefaults(grpc))).expect("decided");
    assert_eq!(decision.seen.len(), 2, "the entry and the fence");
}

#[test]
fn writes_that_concern_protocols_exclude_each_other() {
    let snapshot = run(&l7_mesh(1), put(defaults("s1", Protocol::Http))).expect("written");
    let global = ConfigEntryKey { kind: ConfigKind::ProxyDefaults, name: "global".to_owned() };
    let l7 = |service| put(intentions(service, vec![requests("api", Action::Allow, "/v1")]));
    let remove = |key| Command::DeleteConfig { key, cas: None };
    let intend = Command::PutIntention {
        destination: "s2".parse().expect("a name"),
        intention: requests("api", Action::Allow, "/v1"),
    };
    // Either of a pair may come first; the other is then decided again.
    let without_s0 = run(&snapshot, remove(intentions("s0", vec![]).key())).expect("removed");
    for (first, second) in [
        (remove(global.clone()), l7("s2")),
        (l7("s2"), remove(global.clone())),
        (put(ConfigEntry::ProxyDefaults(ProxyDefaults::default())), intend),
        (put(defaults("s3", Protocol::Tcp)), l7("s3")),
        (remove(defaults("s1", Protocol::Http).key()), remove(global)),
    ] {
        let late = decide(&without_s0, &second).expect("allowed now");
        let changed = run(&without_s0, first).expect("allowed");
        assert!(commit(&changed, &late).is_none(), "{second:?}");
    }
    let l4 = decide(&snapshot, &put(intentions("s0", vec![connection("api", Action::Allow)]))).expect("decided");
    assert_eq!((l4.changes.len(), l4.seen.len()), (1, 1), "nothing hangs on what s0 speaks any more");
}

#[test]
fn a_fence_wakes_nobody_and_is_kept_by_whoever_reads_the_store() {
    let snapshot = l7_mesh(0);
    let fence = Record::Fence(Fence::Protocols);
    let applied = snapshot.apply(Revision(50), &[Change::Put(fence.clone())]);
    assert_eq!(applied.events, []);
    assert_eq!(applied.snapshot.modified(&fence.key()), Some(Revision(50)));
    let loaded = Snapshot::load(Revision(50), applied.snapshot.records());
    assert_eq!(loaded.modified(&fence.key()), Some(Revision(50)));
    let later = applied.snapshot.apply(Revision(60), &[Change::Put(node("late", "10.0.0.9"))]).snapshot;
    let caught_up = snapshot.catch_up(&later).0.snapshot;
    assert_eq!((caught_up.modified(&fence.key()), caught_up.revision()), (Some(Revision(50)), Revision(60)));
    let nothing =
        decide(&snapshot, &put(ConfigEntry::ProxyDefaults(snapshot.proxy_defaults().expect("there").clone())));
    assert_eq!(nothing.expect("decided").changes, [], "what changes nothing does not write the fence");
}

#[test]
fn an_instance_that_is_gone_has_a_revision_not_before_its_end() {
    let loaded = Snapshot::load(Revision(7), registered().records());
    let gone = run(&loaded, Command::DeregisterInstance(key("n1", "web-1"))).expect("deregisters");
    assert_eq!(gone.subject_revision(&Subject::Instance(key("n1", "web-1"))), gone.revision());
    assert_eq!(gone.subject_revision(&Subject::Instance(key("n2", "never"))), Revision(7));
}

#[test]
fn no_subject_goes_back_when_the_catalog_is_loaded_anew() {
    let snapshot = registered();
    let gone = run(&snapshot, Command::DeregisterInstance(key("n1", "web-1"))).expect("deregisters");
    let loaded = Snapshot::load(gone.revision(), gone.records());
    for subject in [Subject::Service("web".parse().expect("a name")), Subject::ServiceList, Subject::CheckList] {
        let before = gone.subject_revision(&subject);
        assert!(loaded.subject_revision(&subject) >= before, "{subject}: whoever waits since must look again");
    }
}

#[test]
fn two_sidecars_are_not_reached_at_one_port_of_one_address() {
    let at = |id: &str, port, address: Option<&str>| ServiceInstance {
        address: address.map(str::to_owned),
        ..sidecar("n1", id, "proxy", "web", port)
    };
    let put = |snapshot: &Snapshot, instances| run(snapshot, register(None, instances, vec![]));
    let first = put(&registered(), vec![at("first", 21_000, None)]).expect("registers");
    let refusal = put(&first, vec![at("second", 21_000, None)]).expect_err("refused");
    assert_eq!(refusal.to_string(), "port 21000 on node n1 is already that of sidecar first");
    // The node's own address, written out.
    assert!(put(&first, vec![at("second", 21_000, Some("10.0.0.1"))]).is_err());
    assert!(put(&registered(), vec![at("a", 21_000, None), at("b", 21_000, None)]).is_err());

    let tagged = ServiceInstance { tags: vec!["v2".to_owned()], ..at("first", 21_000, None) };
    let again = put(&first, vec![tagged]).expect("it stays where it is");
    let second = put(&again, vec![at("second", 21_001, None), at("third", 21_000, Some("10.0.0.7"))]);
    let swapped = vec![at("first", 21_001, None), at("second", 21_000, None)];
    let swapped = put(&second.expect("other places"), swapped).expect("both move at once");
    put(&swapped, vec![at("second", 21_002, None)]).expect("moves away");
    // Two plain services may share a port: one may be down while the other runs.
    put(&swapped, vec![instance("n1", "plain", "web", 21_000)]).expect("registers");
}
