//! Join tokens: who is let in, and who is not.

#[path = "support/records.rs"]
mod records;

use records::*;
use starling_catalog::command::{GUARDED_CHANGES_MAX, JOIN_TOKENS_MAX, KEPT_EXPIRED_S};
use starling_catalog::{
    Command, Decision, JoinRequest, JoinTokenCommand, JoinTokenRefusal, NameHolder, Refusal, Snapshot, decide,
};
use starling_model::*;

const MADE: UnixSeconds = UnixSeconds(1_000);
const EXPIRES: UnixSeconds = UnixSeconds(2_000);
const SECRET: SecretHash = SecretHash([7; 32]);

fn id(number: u64) -> JoinTokenId {
    JoinTokenId::from_random(number)
}

fn token(number: u64, uses: JoinTokenUses) -> JoinTokenRecord {
    JoinTokenRecord {
        id: id(number),
        secret_hash: SECRET,
        description: None,
        for_relays: false,
        services: None,
        uses,
        created_at: MADE,
        expires_at: EXPIRES,
    }
}

fn one_time() -> JoinTokenUses {
    JoinTokenUses::OneTime { used: None }
}

fn create(token: JoinTokenRecord) -> Command {
    Command::JoinToken(JoinTokenCommand::Create(token))
}

fn request(number: u64, node: &str) -> JoinRequest {
    let node = node.parse().expect("a name");
    JoinRequest {
        token: id(number),
        secret_hash: SECRET,
        node,
        node_id: String::new(),
        relay: false,
        key: KeyFingerprint([1; 32]),
        holder: NameHolder::Nobody,
        now: UnixSeconds(1_500),
    }
}

fn join(request: JoinRequest) -> Command {
    Command::JoinToken(JoinTokenCommand::Use(request))
}

fn commit(snapshot: &Snapshot, decision: &Decision) -> Option<Snapshot> {
    let holds = decision.seen.iter().all(|seen| snapshot.modified(&seen.key) == seen.modified);
    holds.then(|| snapshot.apply(Revision(snapshot.revision().0 + 1), &decision.changes).snapshot)
}

fn run(snapshot: &Snapshot, command: Command) -> Snapshot {
    commit(snapshot, &decide(snapshot, &command).expect("allowed")).expect("nobody was in between")
}

fn refusal(snapshot: &Snapshot, command: Command) -> JoinTokenRefusal {
    match decide(snapshot, &command) {
        Err(Refusal::JoinToken(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_one_time_token_lets_one_node_in() {
    let made = run(&Snapshot::default(), create(token(1, one_time())));
    let used = run(&made, join(request(1, "n1")));
    let by_n1 = JoinTokenUse { node: "n1".parse().expect("a name"), at: UnixSeconds(1_500) };
    assert_eq!(used.join_token(&id(1)).expect("kept").value.uses, JoinTokenUses::OneTime { used: Some(by_n1.clone()) });
    for node in ["n1", "n2"] {
        let again = refusal(&used, join(request(1, node)));
        assert_eq!(again, JoinTokenRefusal::Used { id: id(1), used: by_n1.clone() });
        assert!(again.to_string().contains("node n1 has used it"), "{again}");
    }
}

#[test]
fn of_two_uses_at_the_same_moment_one_is_decided_again_and_refused() {
    let made = run(&Snapshot::default(), create(token(1, one_time())));
    let [first, second] = ["n1", "n2"].map(|node| decide(&made, &join(request(1, node))).expect("allowed"));
    let used = commit(&made, &first).expect("nobody was in between");
    assert!(commit(&used, &second).is_none(), "the token would let two nodes in");
    assert!(matches!(refusal(&used, join(request(1, "n2"))), JoinTokenRefusal::Used { .. }));
}

#[test]
fn a_use_decided_before_a_revocation_is_not_committed_after_it() {
    let made = run(&Snapshot::default(), create(token(1, one_time())));
    let used = decide(&made, &join(request(1, "n1"))).expect("allowed");
    let revoked = run(&made, Command::JoinToken(JoinTokenCommand::Revoke(id(1))));
    assert!(commit(&revoked, &used).is_none());
    assert_eq!(refusal(&revoked, join(request(1, "n1"))), JoinTokenRefusal::Unknown);
}

#[test]
fn a_reusable_token_lets_any_number_in_and_writes_enrolments_alone() {
    let mut snapshot = run(&Snapshot::default(), create(token(1, JoinTokenUses::Reusable)));
    for node in ["n1", "n2", "n1"] {
        let decision = decide(&snapshot, &join(request(1, node))).expect("allowed");
        assert!(
            decision.changes.iter().all(|change| matches!(change, Change::Put(Record::Enrolment(_)))),
            "{decision:?}"
        );
        snapshot = commit(&snapshot, &decision).expect("nobody was in between");
    }
    assert_eq!(snapshot.enrolments().count(), 2);
}

#[test]
fn a_token_ends_with_its_time() {
    for uses in [one_time(), JoinTokenUses::Reusable] {
        let made = run(&Snapshot::default(), create(token(1, uses)));
        let at = |now| join(JoinRequest { now: UnixSeconds(now), ..request(1, "n1") });
        assert!(decide(&made, &at(1_999)).is_ok());
        for now in [2_000, 2_001, u64::MAX] {
            assert_eq!(refusal(&made, at(now)), JoinTokenRefusal::Expired { id: id(1), expired_at: EXPIRES });
        }
    }
}

#[test]
fn a_wrong_secret_is_not_told_from_a_wrong_name() {
    let made = run(&Snapshot::default(), create(token(1, one_time())));
    let wrong = JoinRequest { secret_hash: SecretHash([8; 32]), ..request(1, "n1") };
    assert_eq!(refusal(&made, join(wrong)), JoinTokenRefusal::Unknown);
    assert_eq!(refusal(&made, join(request(2, "n1"))), JoinTokenRefusal::Unknown);
    // Not even when its time is over or it was used.
    let used = run(&made, join(request(1, "n1")));
    let late = JoinRequest { secret_hash: SecretHash([8; 32]), now: UnixSeconds(3_000), ..request(1, "n1") };
    assert_eq!(refusal(&used, join(late)), JoinTokenRefusal::Unknown);
}

#[test]
fn the_name_of_a_living_node_is_taken_and_that_of_a_lost_one_is_not() {
    let made = run(&Snapshot::default(), create(token(1, one_time())));
    let Record::Node(n1) = node("n1", "10.0.0.1") else { unreachable!("a node") };
    let node_id = "11111111-2222-3333-4444-555555555555";
    let n1 = Node { id: node_id.to_owned(), ..n1 };
    let name = n1.name.clone();
    let registered = Command::Register { name, node: Some(n1), instances: vec![], checks: vec![] };
    let registered = run(&made, registered);

    let taken = refusal(&registered, join(JoinRequest { holder: NameHolder::Attached, ..request(1, "n1") }));
    assert!(matches!(&taken, JoinTokenRefusal::NodeTaken { id, .. } if id == node_id), "{taken:?}");
    assert!(taken.to_string().contains("n1") && taken.to_string().contains(node_id), "{taken}");
    // A refusal uses nothing up; nor does it need the node to be registered.
    let unregistered = refusal(&made, join(JoinRequest { holder: NameHolder::Attached, ..request(1, "n1") }));
    assert!(matches!(&unregistered, JoinTokenRefusal::NodeTaken { id, .. } if id.is_empty()), "{unregistered:?}");
    run(&registered, join(request(1, "n1")));

    // Who is away for a moment may come back, by the identifier under which it is registered; nobody else meanwhile.
    let away =
        |node_id: &str| join(JoinRequest { node_id: node_id.to_owned(), holder: NameHolder::Away, ..request(1, "n1") });
    for other in ["", "99999999-2222-3333-4444-555555555555"] {
        let refused = refusal(&registered, away(other));
        assert!(matches!(&refused, JoinTokenRefusal::NodeAway { id, .. } if id == node_id), "{other:?}: {refused:?}");
    }
    let nameless = refusal(&made, away(""));
    assert!(matches!(&nameless, JoinTokenRefusal::NodeAway { .. }), "no identifier is no proof: {nameless:?}");
    run(&registered, away(node_id));
}

#[test]
fn making_a_token_sweeps_expired_ones_and_no_others() {
    let living = JoinTokenRecord { expires_at: UnixSeconds(9_000), ..token(1, JoinTokenUses::Reusable) };
    let mut snapshot = run(&Snapshot::default(), create(living));
    for number in 2..202 {
        snapshot = run(&snapshot, create(token(number, one_time())));
    }
    let late =
        |number| JoinTokenRecord { created_at: EXPIRES, expires_at: UnixSeconds(9_000), ..token(number, one_time()) };
    let decision = decide(&snapshot, &create(late(300))).expect("allowed");
    assert_eq!(decision.changes.len(), GUARDED_CHANGES_MAX, "one transaction, so that all of it is guarded");
    let snapshot = run(&snapshot, create(late(300)));
    let snapshot = run(&snapshot, create(late(301)));
    let left: Vec<_> = snapshot.join_tokens().map(|token| token.value.id).collect();
    assert_eq!(left, [id(1), id(300), id(301)]);
}

#[test]
fn a_name_stands_for_one_token() {
    let made = run(&Snapshot::default(), create(token(1, one_time())));
    assert_eq!(refusal(&made, create(token(1, JoinTokenUses::Reusable))), JoinTokenRefusal::Exists(id(1)));
    // Nor can two be made of one name at the same moment.
    let decision = decide(&Snapshot::default(), &create(token(1, JoinTokenUses::Reusable))).expect("allowed");
    assert!(commit(&made, &decision).is_none());
}

#[test]
fn tokens_are_limited_in_number() {
    let limit = u64::try_from(JOIN_TOKENS_MAX).expect("a small number");
    let tokens = (0..limit).map(|number| Change::Put(Record::JoinToken(token(number, one_time())))).collect::<Vec<_>>();
    let full = Snapshot::default().apply(Revision(1), &tokens).snapshot;
    assert_eq!(refusal(&full, create(token(limit, one_time()))), JoinTokenRefusal::TooMany);
    // Expired ones do not count.
    let late = JoinTokenRecord { created_at: EXPIRES, ..token(limit, one_time()) };
    assert!(decide(&full, &create(late)).is_ok());
    assert!(
        decide(&run(&full, Command::JoinToken(JoinTokenCommand::Revoke(id(5)))), &create(token(limit, one_time())))
            .is_ok()
    );
}

#[test]
fn tokens_are_stored_wake_nobody_and_no_node_may_write_them() {
    let put = Change::Put(Record::JoinToken(token(1, one_time())));
    let applied = Snapshot::default().apply(Revision(3), std::slice::from_ref(&put));
    assert_eq!(applied.events, vec![]);
    let stored: Vec<_> = applied.snapshot.records().collect();
    assert_eq!(stored.len(), 1);
    let loaded = Snapshot::load(Revision(3), stored);
    assert_eq!(loaded.join_token(&id(1)), applied.snapshot.join_token(&id(1)));
    assert_eq!(Snapshot::default().catch_up(&loaded).1, vec![put.clone()]);
    let by_node = Command::of_node("n1".parse().expect("a name"), vec![put]);
    assert!(matches!(decide(&loaded, &by_node), Err(Refusal::ForeignRecord { .. })));
}

#[test]
fn the_leader_alone_sweeps_tokens_that_expired_a_while_ago() {
    let (one, two) = (ServerId::from_random(1), ServerId::from_random(2));
    let leads = [Change::Put(Record::Leader(LeaderRecord { server: one }))];
    let mut snapshot = Snapshot::default().apply(Revision(1), &leads).snapshot;
    for number in 0..300 {
        snapshot = run(&snapshot, create(token(number, one_time())));
    }
    snapshot = run(&snapshot, create(JoinTokenRecord { expires_at: EXPIRES.plus(1), ..token(300, one_time()) }));
    let due = EXPIRES.plus(KEPT_EXPIRED_S);
    let sweep = |by, now| Command::JoinToken(JoinTokenCommand::Sweep { by, now });
    assert_eq!(decide(&snapshot, &sweep(Some(two), due)), Ok(Decision::default()), "it does not lead");
    assert_eq!(decide(&snapshot, &sweep(Some(one), UnixSeconds(due.0 - 1))), Ok(Decision::default()));
    let first = decide(&snapshot, &sweep(Some(one), due)).expect("allowed");
    assert!(first.again && first.changes.len() < GUARDED_CHANGES_MAX, "as many as fit into a transaction");
    // Another has come to lead meanwhile.
    let deposed = snapshot.apply(Revision(999), &[Change::Put(Record::Leader(LeaderRecord { server: two }))]).snapshot;
    assert!(commit(&deposed, &first).is_none());
    let mut rounds = 0;
    loop {
        let decision = decide(&snapshot, &sweep(Some(one), due)).expect("allowed");
        snapshot = commit(&snapshot, &decision).expect("it leads");
        rounds += 1;
        if !decision.again {
            break;
        }
    }
    assert_eq!((rounds, snapshot.join_tokens().count()), (3, 1));
}
