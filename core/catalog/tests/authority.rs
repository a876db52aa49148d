//! Roots come, sign and go: what each step asks for, and what two servers that take one at once come to.

use std::collections::BTreeSet;

use starling_catalog::{AuthorityCommand, AuthorityRefusal, Command, Decision, Refusal, Snapshot, decide};
use starling_catalog::{LivenessCommand, OVERLAP_MIN, Said, reports_as};
use starling_model::{
    CaKeyPlace, CaKeyRecord, CaRootRecord, Change, Fence, LeaderRecord, NodeName, Record, RecordKey, Revision,
    RootOverlap, SealedKey, ServerId, ServerRecord, TrustDomain, TrustReport, UnixSeconds,
};

#[path = "support/records.rs"]
mod records;

use records::node;

const NOW: UnixSeconds = UnixSeconds(1_000);

/// When a root that came at [`NOW`] may sign.
fn due() -> UnixSeconds {
    NOW.plus(OVERLAP_MIN.as_secs())
}

fn root(id: &str) -> CaRootRecord {
    CaRootRecord {
        id: id.to_owned(),
        name: String::new(),
        certificate_pem: String::new(),
        serial: 1,
        signing_key_id: String::new(),
        trust_domain: TrustDomain::new("test.consul").expect("a trust domain"),
        not_before: UnixSeconds(0),
        not_after: UnixSeconds(1),
        active: true,
        overlap: None,
        renew_within_s: 0,
    }
}

fn key(root: &str) -> CaKeyRecord {
    CaKeyRecord {
        root: root.to_owned(),
        chain_pem: String::new(),
        bridge_pem: String::new(),
        trusted: std::collections::BTreeMap::new(),
        place: CaKeyPlace::Vault { mount: "pki".to_owned() },
    }
}

fn decided(snapshot: &Snapshot, command: AuthorityCommand) -> Result<Decision, Refusal> {
    decide(snapshot, &Command::Authority(command))
}

fn run(snapshot: &Snapshot, command: AuthorityCommand) -> Snapshot {
    let decision = decided(snapshot, command).expect("allowed");
    if decision.changes.is_empty() {
        return snapshot.clone();
    }
    snapshot.apply(Revision(snapshot.revision().0 + 1), &decision.changes).snapshot
}

fn refused(snapshot: &Snapshot, command: AuthorityCommand) -> AuthorityRefusal {
    match decided(snapshot, command) {
        Err(Refusal::Authority(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn roots(snapshot: &Snapshot) -> Vec<(&str, bool)> {
    snapshot.roots().into_iter().map(|root| (root.value.id.as_str(), root.value.active)).collect()
}

fn founded() -> Snapshot {
    run(&Snapshot::default(), AuthorityCommand::Found { root: root("aa"), key: Some(key("aa")) })
}

fn introduced() -> Snapshot {
    run(&founded(), AuthorityCommand::Introduce { root: root("bb"), key: key("bb"), now: NOW })
}

#[test]
fn where_nobody_has_a_leaf_another_root_signs_at_once_and_the_one_before_stays_trusted() {
    let replace = |id: &str| AuthorityCommand::Replace { root: root(id), key: key(id), now: NOW, until: NOW.plus(60) };
    let founded = founded();
    let decision = decided(&founded, replace("bb")).unwrap();
    assert!(decision.changes.len() <= 4 && !decision.again, "one transaction: {decision:?}");
    let replaced = run(&founded, replace("bb"));
    assert_eq!(roots(&replaced), [("bb", true), ("aa", false)]);
    let before = AuthorityCommand::Remove { root: "aa".to_owned(), now: Some(NOW) };
    assert!(matches!(refused(&replaced, before), AuthorityRefusal::InUse { .. }));
    assert_eq!(refused(&replaced, replace("bb")), AuthorityRefusal::Trusted("bb".to_owned()));
    assert_eq!(refused(&introduced(), replace("cc")), AuthorityRefusal::UnderWay("bb".to_owned()));
}

/// A server says which of its nodes do not trust the coming root.
fn say(snapshot: &Snapshot, server: Option<ServerId>, missing: &[&str], unnamed: usize) -> Snapshot {
    let missing = missing.iter().map(|name| name.parse().expect("a name")).collect();
    let as_of = snapshot.coming_root().expect("coming").modified;
    let report = TrustReport {
        as_of,
        at: snapshot.revision(),
        missing,
        unnamed,
        unnamed_least: unnamed,
        relays: BTreeSet::new(),
    };
    run(snapshot, AuthorityCommand::Report { root: "bb".to_owned(), server: reports_as(server), report })
}

fn activate(by: Option<ServerId>, now: UnixSeconds) -> AuthorityCommand {
    AuthorityCommand::Activate { root: "bb".to_owned(), by, now, until: UnixSeconds(5_000) }
}

fn not_yet(snapshot: &Snapshot, by: Option<ServerId>) {
    assert_eq!(refused(snapshot, activate(by, due())), AuthorityRefusal::NotYet("bb".to_owned()));
}

#[test]
fn of_two_first_roots_one_prevails_and_the_other_changes_nothing() {
    let empty = Snapshot::default();
    let one = decided(&empty, AuthorityCommand::Found { root: root("aa"), key: Some(key("aa")) }).expect("allowed");
    let other = decided(&empty, AuthorityCommand::Found { root: root("bb"), key: Some(key("bb")) }).expect("allowed");
    let fence = RecordKey::Fence(Fence::Authority);
    for decision in [&one, &other] {
        // Both demand that nobody has founded one, of the same record, and write it.
        assert!(decision.seen.iter().any(|seen| seen.key == fence && seen.modified.is_none()), "{decision:?}");
        assert!(decision.changes.iter().any(|change| change.key() == fence), "{decision:?}");
    }
    let after = empty.apply(Revision(1), &one.changes).snapshot;
    let again = decided(&after, AuthorityCommand::Found { root: root("bb"), key: Some(key("bb")) }).expect("allowed");
    assert_eq!(again, Decision::default());
    assert_eq!(roots(&after), [("aa", true)]);
    assert!(after.ca_key("aa").is_some() && after.ca_key("bb").is_none());
}

#[test]
fn a_root_is_trusted_before_it_signs_and_after_another_does() {
    let snapshot = introduced();
    assert_eq!(roots(&snapshot), [("aa", true), ("bb", false)]);
    not_yet(&snapshot, None);
    let snapshot = say(&snapshot, None, &["n1"], 0);
    not_yet(&snapshot, None);
    let snapshot = say(&snapshot, None, &[], 0);
    let early = activate(None, UnixSeconds(due().0 - 1));
    assert_eq!(refused(&snapshot, early), AuthorityRefusal::NotYet("bb".to_owned()));
    let until = UnixSeconds(5_000);
    let snapshot = run(&snapshot, activate(None, due()));
    assert_eq!(roots(&snapshot), [("bb", true), ("aa", false)]);
    assert!(snapshot.coming_root().is_none());

    let early = AuthorityCommand::Remove { root: "aa".to_owned(), now: Some(until) };
    assert_eq!(refused(&snapshot, early), AuthorityRefusal::InUse { root: "aa".to_owned(), until });
    let late = AuthorityCommand::Remove { root: "aa".to_owned(), now: Some(UnixSeconds(5_001)) };
    let snapshot = run(&snapshot, late);
    assert_eq!(roots(&snapshot), [("bb", true)]);
    assert!(snapshot.ca_key("aa").is_none(), "the key goes with its root");
    let signing = AuthorityCommand::Remove { root: "bb".to_owned(), now: None };
    assert_eq!(refused(&snapshot, signing), AuthorityRefusal::Active("bb".to_owned()));
}

#[test]
fn two_servers_that_take_the_same_step_exclude_each_other() {
    let snapshot = say(&introduced(), None, &[], 0);
    let step = || activate(None, due());
    let decision = decided(&snapshot, step()).expect("allowed");
    let fence = RecordKey::Fence(Fence::Authority);
    let seen = decision.seen.iter().find(|seen| seen.key == fence).expect("the fence is seen");
    assert_eq!(seen.modified, snapshot.modified(&fence));
    assert!(seen.modified.is_some() && decision.changes.iter().any(|change| change.key() == fence));
    let after = snapshot.apply(Revision(9), &decision.changes).snapshot;
    assert_eq!(refused(&after, step()), AuthorityRefusal::NotUnderWay);
}

#[test]
fn one_rotation_at_a_time_and_it_can_be_taken_back() {
    let snapshot = introduced();
    let third = || AuthorityCommand::Introduce { root: root("cc"), key: key("cc"), now: NOW };
    assert_eq!(refused(&snapshot, third()), AuthorityRefusal::UnderWay("bb".to_owned()));
    let snapshot = run(&snapshot, AuthorityCommand::Remove { root: "bb".to_owned(), now: Some(NOW) });
    assert_eq!(roots(&snapshot), [("aa", true)]);
    let foreign = CaRootRecord { trust_domain: TrustDomain::new("other.consul").expect("a name"), ..root("cc") };
    let foreign = AuthorityCommand::Introduce { root: foreign, key: key("cc"), now: NOW };
    assert!(matches!(refused(&snapshot, foreign), AuthorityRefusal::TrustDomain { .. }));
    assert_eq!(roots(&run(&snapshot, third())), [("aa", true), ("cc", false)]);
}

#[test]
fn nodes_are_asked_again_and_given_up_by_name() {
    let snapshot = introduced();
    let before = snapshot.coming_root().expect("coming").modified;
    let snapshot = run(&snapshot, AuthorityCommand::AskAgain { root: "bb".to_owned() });
    assert!(snapshot.coming_root().expect("coming").modified > before, "it is a change of its own, with a receipt");
    let nodes: BTreeSet<_> = ["n1", "n2"].map(|name| name.parse().expect("a name")).into();
    let give_up =
        AuthorityCommand::GiveUp { root: "bb".to_owned(), nodes: nodes.clone(), unnamed: 3, relays: BTreeSet::new() };
    let snapshot = run(&snapshot, give_up);
    let as_of = snapshot.coming_root().expect("coming").modified;
    let (at, missing, relays) = (snapshot.revision(), nodes.clone(), BTreeSet::new());
    let report = TrustReport { as_of, at, missing, unnamed: 0, unnamed_least: 0, relays };
    let say = |report: &TrustReport| AuthorityCommand::Report {
        root: "bb".to_owned(),
        server: "s".to_owned(),
        report: report.clone(),
    };
    let reported = run(&snapshot, say(&report));
    assert_eq!(reported.ca_key("bb").expect("a key").value.trusted["s"], report);
    assert_eq!(reported.coming_root().expect("coming").modified, report.as_of, "a report asks nobody again");
    assert_eq!(decided(&reported, say(&report)).expect("allowed"), Decision::default());
    let overlap = snapshot.coming_root().expect("coming").value.overlap.clone();
    let (asked, given_up_unnamed, given_up_relays, until) = (1, 3, BTreeSet::new(), None);
    let expected = RootOverlap::Coming { since: NOW, asked, given_up: nodes, given_up_unnamed, given_up_relays, until };
    assert_eq!(overlap, Some(expected));
}

#[test]
fn a_relay_that_has_not_said_that_it_trusts_the_root_is_waited_for_and_given_up_by_name() {
    let relays: BTreeSet<NodeName> = ["n1", "r1"].map(|name| name.parse().expect("a name")).into();
    let say = |snapshot: &Snapshot, relays: &BTreeSet<NodeName>| {
        let as_of = snapshot.coming_root().expect("coming").modified;
        let (missing, relays) = (BTreeSet::new(), relays.clone());
        let report = TrustReport { as_of, at: snapshot.revision(), missing, unnamed: 0, unnamed_least: 0, relays };
        run(snapshot, AuthorityCommand::Report { root: "bb".to_owned(), server: reports_as(None), report })
    };
    let snapshot = say(&introduced(), &relays);
    assert_eq!(snapshot.rotation_waits(None).relays, relays);
    not_yet(&snapshot, None);
    // A node by the name of a relay is another, and given up for itself.
    let give_up = |nodes, relays| AuthorityCommand::GiveUp { root: "bb".to_owned(), nodes, unnamed: 0, relays };
    let snapshot = say(&run(&snapshot, give_up(relays.clone(), BTreeSet::new())), &relays);
    not_yet(&snapshot, None);
    let given_up = run(&snapshot, give_up(BTreeSet::new(), relays.clone()));
    assert!(say(&given_up, &relays).rotation_waits(None).is_over());
    // Or it says so at last.
    assert!(say(&snapshot, &BTreeSet::new()).rotation_waits(None).is_over());
}

#[test]
fn those_that_no_server_names_are_waited_for_and_given_up_by_their_count() {
    let snapshot = say(&introduced(), None, &["n1"], 5);
    let waits = snapshot.rotation_waits(None);
    assert_eq!((waits.nodes.len(), waits.unnamed), (1, 5));
    let give_up =
        |nodes, unnamed| AuthorityCommand::GiveUp { root: "bb".to_owned(), nodes, unnamed, relays: BTreeSet::new() };
    let snapshot = say(&run(&snapshot, give_up(waits.nodes, 0)), None, &["n1"], 5);
    not_yet(&snapshot, None);
    let snapshot = say(&run(&snapshot, give_up(BTreeSet::new(), 5)), None, &["n1"], 5);
    assert!(snapshot.rotation_waits(None).is_over());
    let _ = run(&snapshot, activate(None, due()));
    // The count stands for those who have been missing ever since: who comes to be missed later is no one of them.
    let fewer = say(&snapshot, None, &["n1"], 2);
    assert!(fewer.rotation_waits(None).is_over());
    let others = say(&fewer, None, &["n1"], 4);
    assert_eq!(others.rotation_waits(None).unnamed, 2);
    not_yet(&others, None);
    let snapshot = say(&run(&others, give_up(BTreeSet::new(), 2)), None, &["n1"], 4);
    assert!(snapshot.rotation_waits(None).is_over());
}

#[test]
fn a_root_that_is_taken_back_goes_no_sooner_than_it_would_have() {
    let until = UnixSeconds(5_000);
    let snapshot = run(&say(&introduced(), None, &[], 0), activate(None, due()));
    let again = AuthorityCommand::Introduce { root: root("aa"), key: key("aa"), now: NOW };
    let snapshot = run(&snapshot, again);
    let take_back = |now| AuthorityCommand::Remove { root: "aa".to_owned(), now };
    let taken_back = run(&snapshot, take_back(Some(until)));
    let aa = taken_back.roots().into_iter().find(|root| root.value.id == "aa").expect("it is trusted still");
    assert_eq!(aa.value.overlap, Some(RootOverlap::Going { until }));
    assert!(taken_back.coming_root().is_none());
    assert_eq!(roots(&run(&snapshot, take_back(None))), [("bb", true)], "at once, who says so");
    assert_eq!(roots(&run(&snapshot, take_back(Some(UnixSeconds(5_001))))), [("bb", true)]);
}

#[test]
fn a_key_is_sealed_anew_only_if_it_is_the_same_still() {
    let sealed = |by: &str| {
        let (seal_key, nonce, sealed) = (by.to_owned(), String::new(), by.to_owned());
        CaKeyPlace::Sealed(SealedKey { version: 1, seal_key, nonce, sealed })
    };
    let with = |place| CaKeyRecord { place, chain_pem: "chain".to_owned(), ..key("aa") };
    let found = AuthorityCommand::Found { root: root("aa"), key: Some(with(sealed("old"))) };
    let snapshot = run(&Snapshot::default(), found);
    let reseal = || AuthorityCommand::Reseal { root: "aa".to_owned(), was: sealed("old"), place: sealed("new") };
    let resealed = run(&snapshot, reseal());
    assert_eq!(resealed.ca_key("aa").expect("a key").value, with(sealed("new")));
    let imported = run(&snapshot, AuthorityCommand::Keep(with(sealed("imported"))));
    assert_eq!(refused(&imported, reseal()), AuthorityRefusal::Rewritten("aa".to_owned()));
}

fn server(bits: u64) -> ServerId {
    ServerId::from_random(bits)
}

fn runs(bits: u64) -> Change {
    Change::Put(Record::Server(ServerRecord {
        id: server(bits),
        name: "s".parse().expect("a name"),
        http: "127.0.0.1:1".to_owned(),
        agents: "127.0.0.1:2".to_owned(),
        version: "0".to_owned(),
        since: UnixSeconds(0),
        leaving: false,
        level: starling_model::RECORD_LEVEL,
    }))
}

fn apply(snapshot: &Snapshot, changes: &[Change]) -> Snapshot {
    snapshot.apply(Revision(snapshot.revision().0 + 1), changes).snapshot
}

/// A node attaches to a server, or is said to be lost by it.
fn liveness(snapshot: &Snapshot, by: u64, said: Said) -> Snapshot {
    let nodes = vec![("n1".parse::<NodeName>().expect("a name"), said)];
    let command = Command::Liveness(LivenessCommand { by: Some(server(by)), nodes });
    apply(snapshot, &decide(snapshot, &command).expect("allowed").changes)
}

/// Servers 1, which leads, and 2; n1 is attached to 1.
fn two_servers() -> Snapshot {
    let leads = Change::Put(Record::Leader(LeaderRecord { server: server(1) }));
    let changes = [runs(1), runs(2), leads, Change::Put(node("n1", "10.0.0.1"))];
    liveness(&apply(&introduced(), &changes), 1, Said::Attached)
}

#[test]
fn a_node_that_moves_between_two_reports_is_waited_for() {
    let (one, two) = (Some(server(1)), Some(server(2)));
    let snapshot = say(&two_servers(), two, &[], 0);
    not_yet(&snapshot, one);
    let snapshot = say(&snapshot, one, &["n1"], 0);
    not_yet(&snapshot, one);
    // It comes to the second, and the first has none that it misses any more.
    let moved = say(&liveness(&snapshot, 2, Said::Attached), one, &[], 0);
    let waits = moved.rotation_waits(one);
    assert!(waits.servers.is_empty() && waits.nodes.iter().map(NodeName::as_str).eq(["n1"]), "{waits:?}");
    not_yet(&moved, one);
    let spoken = moved.ca_key("bb").expect("a key").value.trusted[&reports_as(two)].at;
    assert!(moved.has_come_since(server(2), spoken), "so the second speaks again");
    let told = say(&moved, two, &[], 0);
    assert!(!told.has_come_since(server(2), told.ca_key("bb").expect("a key").value.trusted[&reports_as(two)].at));
    assert!(told.rotation_waits(one).is_over());

    // Of a node whose server has ended nobody speaks.
    let orphaned = apply(&told, &[Change::Delete(RecordKey::Server(server(2)))]);
    not_yet(&orphaned, one);
    assert!(liveness(&orphaned, 1, Said::Lost).rotation_waits(one).is_over());
}

#[test]
fn what_a_root_signs_by_is_seen_and_the_leader_alone_takes_the_step() {
    let (one, two) = (Some(server(1)), Some(server(2)));
    let told = say(&say(&two_servers(), one, &[], 0), two, &[], 0);
    assert_eq!(refused(&told, activate(two, due())), AuthorityRefusal::NotLeader);
    let decision = decided(&told, activate(one, due())).expect("allowed");
    let seen: BTreeSet<_> = decision.seen.iter().map(|seen| seen.key.clone()).collect();
    let fence = RecordKey::Fence(Fence::Authority);
    for key in [RecordKey::Leader, RecordKey::Server(server(1)), RecordKey::Server(server(2)), fence] {
        assert!(seen.contains(&key), "{key:?} in {seen:?}");
    }
    // A server that has come since has nothing said yet.
    not_yet(&apply(&told, &[runs(3)]), one);
}
