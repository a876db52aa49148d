//! Roots come, sign and go: what each step asks for, and what two servers that take one at once come to.

use std::collections::BTreeSet;

use starling_catalog::{AuthorityCommand, AuthorityRefusal, Command, Decision, Refusal, Snapshot, decide};
use starling_model::{
    CaKeyPlace, CaKeyRecord, CaRootRecord, Fence, RecordKey, Revision, RootOverlap, TrustDomain, TrustReport,
    UnixSeconds,
};

const NOW: UnixSeconds = UnixSeconds(1_000);

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
    let until = UnixSeconds(5_000);
    let snapshot = run(&snapshot, AuthorityCommand::Activate { root: "bb".to_owned(), until });
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
    let snapshot = introduced();
    let step = || AuthorityCommand::Activate { root: "bb".to_owned(), until: UnixSeconds(9) };
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
    let snapshot = run(&snapshot, AuthorityCommand::GiveUp { root: "bb".to_owned(), nodes: nodes.clone() });
    let report = TrustReport { as_of: snapshot.coming_root().expect("coming").modified, missing: nodes.clone() };
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
    assert_eq!(overlap, Some(RootOverlap::Coming { since: NOW, asked: 1, given_up: nodes }));
}
