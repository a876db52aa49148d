//! Enrolments: who holds a name, who takes it over, and what its holder registers.

#[path = "support/records.rs"]
mod records;

use records::*;
use starling_catalog::{
    Command, Decision, EnrolmentCommand, EnrolmentRefusal, JoinRequest, JoinTokenCommand, JoinTokenRefusal, NameHolder,
    Refusal, Registers, Snapshot, decide, reusable_token_of,
};
use starling_model::*;

const NOW: UnixSeconds = UnixSeconds(1_500);
const SECRET: SecretHash = SecretHash([7; 32]);
const OLD: KeyFingerprint = KeyFingerprint([1; 32]);
const NEW: KeyFingerprint = KeyFingerprint([2; 32]);

fn n1() -> Member {
    Member::Node("n1".parse().expect("a name"))
}

fn commit(snapshot: &Snapshot, decision: &Decision) -> Option<Snapshot> {
    let holds = decision.seen.iter().all(|seen| snapshot.modified(&seen.key) == seen.modified);
    holds.then(|| snapshot.apply(Revision(snapshot.revision().0 + 1), &decision.changes).snapshot)
}

fn run(snapshot: &Snapshot, command: &Command) -> Snapshot {
    commit(snapshot, &decide(snapshot, command).expect("allowed")).expect("nobody was in between")
}

fn refusal(snapshot: &Snapshot, command: &Command) -> EnrolmentRefusal {
    match decide(snapshot, command) {
        Err(Refusal::Enrolment(refusal) | Refusal::JoinToken(JoinTokenRefusal::Enrolment(refusal))) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A mesh with the reusable join token `number`, which covers `services`.
fn with_token(snapshot: &Snapshot, number: u64, services: Option<&[&str]>) -> Snapshot {
    let services = services.map(|names| names.iter().map(|name| name.parse().expect("a pattern")).collect());
    let token = JoinTokenRecord {
        id: JoinTokenId::from_random(number),
        secret_hash: SECRET,
        description: None,
        for_relays: false,
        services,
        uses: JoinTokenUses::Reusable,
        created_at: UnixSeconds(1_000),
        expires_at: UnixSeconds(9_000),
    };
    run(snapshot, &Command::JoinToken(JoinTokenCommand::Create(token)))
}

fn join(number: u64, key: KeyFingerprint) -> Command {
    join_as(number, key, NameHolder::Nobody)
}

fn join_as(number: u64, key: KeyFingerprint, holder: NameHolder) -> Command {
    Command::JoinToken(JoinTokenCommand::Use(JoinRequest {
        token: JoinTokenId::from_random(number),
        secret_hash: SECRET,
        node: "n1".parse().expect("a name"),
        node_id: String::new(),
        relay: false,
        key,
        holder,
        now: NOW,
    }))
}

/// The node's own registration of itself and of instances of `services`.
fn registers(services: &[&str], key: KeyFingerprint, registers: Registers) -> Command {
    let own = Change::Put(node("n1", "10.0.0.1"));
    let instances = services.iter().map(|service| Change::Put(Record::Instance(instance("n1", service, service, 80))));
    let changes = std::iter::once(own).chain(instances).collect();
    Command::Node { name: "n1".parse().expect("a name"), changes, key: Some(key), registers }
}

fn evict() -> Command {
    Command::Enrolment(EnrolmentCommand::Evict { member: n1(), now: NOW })
}

fn release() -> Command {
    Command::Enrolment(EnrolmentCommand::Release { member: n1(), now: NOW })
}

fn joined(services: Option<&[&str]>) -> Snapshot {
    run(&with_token(&Snapshot::default(), 1, services), &join(1, OLD))
}

#[test]
fn a_name_with_records_is_taken_over_by_its_key_or_after_a_release() {
    let joined = run(&joined(None), &registers(&["web"], OLD, Registers::AnythingUnlessNamed));
    assert_eq!(refusal(&joined, &join(1, NEW)), EnrolmentRefusal::Held(n1()));
    // The holder may join again, also while its old connection counts as open.
    for holder in [NameHolder::Nobody, NameHolder::Away, NameHolder::Attached] {
        let again = run(&joined, &join_as(1, OLD, holder));
        assert_eq!(again.enrolment(&n1()).expect("enrolled").value.epoch, 1);
    }
    let released = run(&joined, &release());
    assert_eq!(released.admit(&n1(), Some(&OLD)), Err(EnrolmentRefusal::Released(n1())));
    let taken = run(&released, &join(1, NEW));
    assert_eq!(taken.admit(&n1(), Some(&OLD)), Err(EnrolmentRefusal::OtherKey(n1())));
    assert_eq!(taken.admit(&n1(), Some(&NEW)), Ok(()));
    assert_eq!(taken.enrolment(&n1()).expect("enrolled").value.epoch, 3, "released, then taken");
}

#[test]
fn a_name_without_records_is_free() {
    let taken = run(&joined(None), &join(1, NEW));
    assert_eq!(taken.admit(&n1(), Some(&OLD)), Err(EnrolmentRefusal::OtherKey(n1())));
}

#[test]
fn an_evicted_node_is_out_with_its_records_until_a_newer_token_lets_it_in() {
    let joined = run(&joined(None), &registers(&["web"], OLD, Registers::AnythingUnlessNamed));
    let evicted = run(&joined, &evict());
    assert!(evicted.node(n1().name()).is_none() && evicted.instances_on(n1().name()).next().is_none());
    assert_eq!(evicted.admit(&n1(), Some(&OLD)), Err(EnrolmentRefusal::Evicted(n1())));
    assert_eq!(evicted.admit(&n1(), None), Err(EnrolmentRefusal::Evicted(n1())));
    let write = registers(&["web"], OLD, Registers::AnythingUnlessNamed);
    assert_eq!(refusal(&evicted, &write), EnrolmentRefusal::Evicted(n1()));
    assert_eq!(reusable_token_of(&evicted, &n1()), Some(JoinTokenId::from_random(1)));

    for key in [OLD, NEW] {
        let refused = refusal(&evicted, &join(1, key));
        assert!(matches!(refused, EnrolmentRefusal::TokenBeforeEviction { .. }), "{refused}");
    }
    let back = run(&with_token(&evicted, 2, None), &join(2, NEW));
    assert_eq!(back.admit(&n1(), Some(&NEW)), Ok(()));
    assert_eq!(back.admit(&n1(), Some(&OLD)), Err(EnrolmentRefusal::OtherKey(n1())));
}

#[test]
fn a_second_eviction_changes_nothing_and_that_of_a_stranger_is_refused() {
    let evicted = run(&joined(None), &evict());
    assert_eq!(decide(&evicted, &evict()).expect("allowed").changes, []);
    assert_eq!(refusal(&Snapshot::default(), &evict()), EnrolmentRefusal::Unknown(n1()));
}

#[test]
fn a_write_decided_before_an_eviction_is_not_committed_after_it() {
    let joined = joined(None);
    let write = registers(&["web"], OLD, Registers::AnythingUnlessNamed);
    let decided = decide(&joined, &write).expect("allowed");
    let evicted = run(&joined, &evict());
    assert!(commit(&evicted, &decided).is_none());
}

#[test]
fn a_renewal_over_any_open_connection_keeps_the_keys_in_use() {
    let renew =
        |shown, key| Command::Enrolment(EnrolmentCommand::Renew { member: n1(), shown: Some(shown), key, now: NOW });
    let keys = [3, 4, 5, 6].map(|byte| KeyFingerprint([byte; 32]));
    let renewed = run(&joined(None), &renew(OLD, NEW));
    assert!([OLD, NEW].iter().all(|key| renewed.admit(&n1(), Some(key)).is_ok()));
    assert_eq!(renewed.enrolment(&n1()).expect("enrolled").value.epoch, 1, "a renewal is no change of hands");
    // The next one goes over a connection that was opened under the oldest key: the one on disk counts on.
    let next = run(&renewed, &renew(OLD, keys[0]));
    assert!([OLD, NEW, keys[0]].iter().all(|key| next.admit(&n1(), Some(key)).is_ok()));
    // Keys that are neither new nor shown are left behind in time.
    let mut last = next;
    for pair in keys.windows(2) {
        last = run(&last, &renew(pair[0], pair[1]));
    }
    assert_eq!(
        [OLD, NEW, keys[2], keys[3]].map(|key| last.admit(&n1(), Some(&key)).is_ok()),
        [false, false, true, true]
    );
    assert_eq!(refusal(&last, &renew(OLD, NEW)), EnrolmentRefusal::OtherKey(n1()));
}

#[test]
fn a_node_from_before_enrolments_keeps_its_services_and_gets_no_others() {
    let before = run(&Snapshot::default(), &registers(&["web"], OLD, Registers::AnythingUnlessNamed));
    for services in [&["web"][..], &["web", "payments"][..]] {
        let decided = decide(&before, &registers(services, OLD, Registers::Named));
        assert_eq!(decided.is_ok(), services.len() == 1, "{decided:?}");
    }
}

#[test]
fn a_member_from_before_enrolments_gets_one_when_it_shows_its_key() {
    let show = Command::Enrolment(EnrolmentCommand::Show { member: n1(), key: OLD, now: NOW });
    let shown = run(&Snapshot::default(), &show);
    assert_eq!(
        (shown.admit(&n1(), Some(&OLD)), shown.admit(&n1(), Some(&NEW))),
        (Ok(()), Err(EnrolmentRefusal::OtherKey(n1())))
    );
    assert_eq!(decide(&shown, &show).expect("allowed").changes, [], "and no further write");
}

#[test]
fn a_node_registers_what_its_join_token_covers() {
    let (open, named) = (Registers::AnythingUnlessNamed, Registers::Named);
    for (services, by, allowed) in [
        (None, open, &["web", "payments", "api-1", "api"][..]),
        (None, named, &[]),
        (Some(&["web", "api-*"][..]), open, &["web", "api-1"]),
        (Some(&["web", "api-*"][..]), named, &["web", "api-1"]),
        (Some(&["*"][..]), named, &["web", "payments", "api-1", "api"]),
        (Some(&[][..]), open, &[]),
    ] {
        let joined = joined(services);
        for service in ["web", "payments", "api-1", "api"] {
            let decided = decide(&joined, &registers(&[service], OLD, by));
            assert_eq!(decided.is_ok(), allowed.contains(&service), "{services:?} {by:?} {service}: {decided:?}");
        }
        assert!(decide(&joined, &registers(&[], OLD, by)).is_ok(), "a node may always register itself");
    }
}

#[test]
fn a_sidecar_registers_under_its_services_name_only() {
    let joined = joined(Some(&["web"]));
    let registered = |name: &str, of: &str| {
        let changes =
            vec![Change::Put(node("n1", "10.0.0.1")), Change::Put(Record::Instance(sidecar("n1", name, name, of, 80)))];
        let name = "n1".parse().expect("a name");
        decide(&joined, &Command::Node { name, changes, key: Some(OLD), registers: Registers::Named })
    };
    assert!(registered("web-sidecar-proxy", "web").is_ok());
    for (name, of) in [("payments-sidecar-proxy", "payments"), ("web-sidecar-proxy", "payments"), ("payments", "web")] {
        assert!(registered(name, of).is_err(), "{name} of {of}");
    }
}

#[test]
fn a_refusal_names_node_service_and_what_is_covered() {
    let refused = refusal(&joined(Some(&["web", "api-*"])), &registers(&["payments"], OLD, Registers::Named));
    let text = refused.to_string();
    assert!(["n1", "payments", "web, api-*", "--services payments"].iter().all(|part| text.contains(part)), "{text}");
}
