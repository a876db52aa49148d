//! The key-value store and sessions: what is done, what is refused, and what becomes of locks.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/records.rs"]
mod records;

use records::{check, node, session};
use starling_catalog::command::GUARDED_CHANGES_MAX;
use starling_catalog::{
    Command, CoordinationCommand, CoordinationRefusal, KvFailure, KvOperation, KvWrite, Refusal, Snapshot, decide,
    kv_answers,
};
use starling_model::*;

const ONE: Uuid = Uuid::from_random(1);
const TWO: Uuid = Uuid::from_random(2);

/// A catalog with a node that is well, and what is done to it.
struct Store(Snapshot);

impl Store {
    fn new() -> Self {
        let records = [node("n1", "10.0.0.1"), check("n1", "alive", None, CheckStatus::Passing)];
        Self(Snapshot::default().apply(Revision(1), &records.map(Change::Put)).snapshot)
    }

    /// Carries a command out until nothing is left to do; answers with the number of changes.
    fn run(&mut self, command: &Command) -> Result<usize, Refusal> {
        let mut changed = 0;
        loop {
            let decision = decide(&self.0, command)?;
            assert!(decision.seen.len() <= GUARDED_CHANGES_MAX, "{} seen", decision.seen.len());
            changed += decision.changes.len();
            if !decision.changes.is_empty() {
                self.0 = self.0.apply(Revision(self.0.revision().0 + 1), &decision.changes).snapshot;
            }
            if !decision.again || decision.changes.is_empty() {
                return Ok(changed);
            }
        }
    }

    fn ask(&mut self, command: CoordinationCommand) -> Result<usize, CoordinationRefusal> {
        match self.run(&Command::Coordination(command)) {
            Ok(changed) => Ok(changed),
            Err(Refusal::Coordination(refusal)) => Err(refusal),
            Err(other) => panic!("{other}"),
        }
    }

    fn kv(&mut self, operation: KvOperation) -> Result<usize, KvFailure> {
        match self.ask(CoordinationCommand::Kv(vec![operation])) {
            Ok(changed) => Ok(changed),
            Err(CoordinationRefusal::Operations(mut failures)) => Err(failures.remove(0).1),
            Err(other) => panic!("{other}"),
        }
    }

    fn open(&mut self, id: Uuid, lock_delay_ms: u64, change: impl FnOnce(&mut Session)) {
        let Record::Coordination(CoordinationRecord::Session(mut session)) = session(id, "n1", lock_delay_ms) else {
            panic!("no session");
        };
        change(&mut session);
        self.ask(CoordinationCommand::CreateSession { session, now_ms: 1_000 }).unwrap();
    }

    fn lock(&mut self, name: &str, session: Uuid, now_ms: u64) -> Result<usize, KvFailure> {
        self.kv(KvOperation::Lock { write: write(name, 0), session: Some(session), now_ms })
    }

    fn entry(&self, name: &str) -> Option<&Versioned<KvEntry>> {
        self.0.kv(&key(name)).map(|entry| &**entry)
    }

    fn holder(&self, name: &str) -> Option<Uuid> {
        self.entry(name)?.value.session
    }

    fn sweep(&mut self, now_ms: u64) {
        self.ask(CoordinationCommand::Sweep { by: None, now_ms }).unwrap();
    }
}

fn key(name: &str) -> KvKey {
    name.parse().unwrap()
}

fn write(name: &str, flags: u64) -> KvWrite {
    KvWrite { key: key(name), value: KvValue::new(b"value").unwrap(), flags }
}

#[test]
fn an_entry_is_written_if_its_index_is_the_one_expected_and_keeps_it_if_nothing_changes() {
    let mut store = Store::new();
    store.kv(KvOperation::Cas(write("a", 0), Revision(0))).unwrap();
    let made = store.entry("a").unwrap().modified;
    assert!(store.kv(KvOperation::Cas(write("a", 1), Revision(0))).unwrap_err().is_condition());
    assert_eq!(store.kv(KvOperation::Set(write("a", 0))), Ok(0), "it is so already");
    store.kv(KvOperation::Cas(write("a", 1), made)).unwrap();
    let entry = store.entry("a").unwrap();
    assert!(entry.created == made && entry.modified > made && entry.value.flags == 1, "{entry:?}");
    assert!(store.kv(KvOperation::DeleteCas(key("a"), made)).unwrap_err().is_condition());
    let modified = store.entry("a").unwrap().modified;
    assert_eq!(store.kv(KvOperation::DeleteCas(key("a"), modified)), Ok(1));
    assert_eq!(store.kv(KvOperation::Delete(key("a"))), Ok(0), "what is not there is removed already");
}

#[test]
fn one_session_has_a_lock_at_a_time_and_counts_it_once() {
    let mut store = Store::new();
    assert_eq!(store.lock("l", ONE, 0), Err(KvFailure::NoSession(ONE)));
    let nobody = KvOperation::Lock { write: write("l", 0), session: None, now_ms: 0 };
    assert_eq!(store.kv(nobody), Err(KvFailure::MissingSession));
    store.open(ONE, 0, |_| {});
    store.open(TWO, 0, |_| {});
    store.lock("l", ONE, 0).unwrap();
    assert_eq!(store.lock("l", ONE, 0), Ok(0), "it has it");
    assert_eq!(store.lock("l", TWO, 0), Err(KvFailure::Locked(key("l"))));
    store.kv(KvOperation::Set(write("l", 7))).unwrap();
    assert_eq!((store.holder("l"), store.entry("l").unwrap().value.lock_index), (Some(ONE), 1), "a lock is advisory");
    assert_eq!(store.kv(KvOperation::Unlock(write("l", 0), Some(TWO))), Err(KvFailure::NotHeld(key("l"))));
    store.kv(KvOperation::Unlock(write("l", 0), Some(ONE))).unwrap();
    store.lock("l", TWO, 0).unwrap();
    assert_eq!((store.holder("l"), store.entry("l").unwrap().value.lock_index), (Some(TWO), 2));
}

#[test]
fn a_transaction_is_done_as_a_whole_or_not_at_all_and_names_all_that_fails() {
    let mut store = Store::new();
    store.kv(KvOperation::Set(write("there", 0))).unwrap();
    let before = store.0.revision();
    let failing = vec![
        KvOperation::Set(write("a", 0)),
        KvOperation::Get(key("nowhere")),
        KvOperation::CheckNotExists(key("there")),
        KvOperation::CheckNotExists(key("a")),
    ];
    let refusal = store.ask(CoordinationCommand::Kv(failing)).unwrap_err();
    let expected = vec![
        (1, KvFailure::Missing(key("nowhere"))),
        (2, KvFailure::Exists(key("there"))),
        (3, KvFailure::Exists(key("a"))),
    ];
    assert_eq!(refusal, CoordinationRefusal::Operations(expected), "each sees what those before it did");
    assert_eq!(store.0.revision(), before);

    let operations = vec![
        KvOperation::Set(write("a/1", 1)),
        KvOperation::GetTree("a/".to_owned()),
        KvOperation::Delete(key("there")),
        KvOperation::GetOrEmpty(key("there")),
    ];
    let answers = kv_answers(&store.0, &operations, Revision(9)).unwrap();
    let read: Vec<_> =
        answers.iter().map(|it| (it.entry.value.key.as_str(), it.entry.modified.0, it.with_value)).collect();
    assert_eq!(read, [("a/1", 9, false), ("a/1", 9, true), ("there", 0, true)]);
    assert_eq!(store.ask(CoordinationCommand::Kv(operations)), Ok(2));
}

#[test]
fn a_folder_of_any_size_is_removed_and_nothing_beside_it() {
    let mut store = Store::new();
    for number in 0..300 {
        store.kv(KvOperation::Set(write(&format!("a/{number}"), 0))).unwrap();
    }
    store.kv(KvOperation::Set(write("ab", 0))).unwrap();
    assert_eq!(store.kv(KvOperation::DeleteTree("a/".to_owned())), Ok(300));
    assert_eq!(store.0.kv_under("").map(|entry| entry.value.key.as_str()).collect::<Vec<_>>(), ["ab"]);

    for number in 0..GUARDED_CHANGES_MAX {
        store.kv(KvOperation::Set(write(&format!("a/{number}"), 0))).unwrap();
    }
    let with_another = vec![KvOperation::Delete(key("ab")), KvOperation::DeleteTree("a/".to_owned())];
    let refusal = store.ask(CoordinationCommand::Kv(with_another)).unwrap_err();
    assert!(refusal.to_string().contains("at most 128"), "{refusal}");
}

#[test]
fn what_a_session_has_locked_is_free_when_it_ends_after_its_delay() {
    let mut store = Store::new();
    store.open(ONE, 5_000, |_| {});
    store.open(TWO, 0, |_| {});
    store.lock("l", ONE, 0).unwrap();
    store.ask(CoordinationCommand::EndSession(ONE)).unwrap();
    assert_eq!(store.holder("l"), None);
    assert_eq!(store.lock("l", TWO, 10_000), Err(KvFailure::Locked(key("l"))), "nobody knows yet since when");
    store.sweep(20_000);
    assert_eq!(store.lock("l", TWO, 24_999), Err(KvFailure::Locked(key("l"))));
    store.lock("l", TWO, 25_000).unwrap();
    store.sweep(25_000);
    assert_eq!(store.0.lock_delays().count(), 0);

    // Without a delay at once; and gone where that is wanted.
    store.open(ONE, 0, |session| session.behavior = SessionBehavior::Delete);
    store.lock("m", ONE, 0).unwrap();
    store.ask(CoordinationCommand::EndSession(ONE)).unwrap();
    assert!(store.entry("m").is_none());
    assert_eq!(store.ask(CoordinationCommand::EndSession(ONE)), Ok(0));
}

/// Locked anew when the delay was over, and the sweep comes to both at once.
#[test]
fn a_delay_that_is_over_and_one_that_begins_do_not_stand_in_each_others_way() {
    let mut store = Store::new();
    store.open(ONE, 5_000, |_| {});
    store.lock("l", ONE, 0).unwrap();
    store.ask(CoordinationCommand::EndSession(ONE)).unwrap();
    store.sweep(1_000);
    store.open(TWO, 5_000, |session| (session.ttl, session.ttl_ms) = ("10s".to_owned(), Some(10_000)));
    store.lock("l", TWO, 7_000).unwrap();
    let sweep = Command::Coordination(CoordinationCommand::Sweep { by: None, now_ms: 90_000 });
    let decision = decide(&store.0, &sweep).unwrap();
    let keys: Vec<_> = decision.changes.iter().map(Change::key).collect();
    let different: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(different.len(), keys.len(), "{keys:?}");
    store.sweep(90_000);
    assert_eq!((store.holder("l"), store.0.lock_delays().count()), (None, 1));
}

#[test]
fn a_session_ends_with_its_checks_its_node_and_its_time() {
    let ended = |change: &dyn Fn(&mut Store)| {
        let mut store = Store::new();
        store.open(ONE, 0, |session| (session.ttl, session.ttl_ms) = ("10s".to_owned(), Some(10_000)));
        store.lock("l", ONE, 0).unwrap();
        change(&mut store);
        assert_eq!(store.0.session(ONE).is_none(), store.holder("l").is_none());
        store.0.session(ONE).is_none()
    };
    let says = |status| {
        let Record::Check(check) = check("n1", "alive", None, status) else { panic!("no check") };
        let name = "n1".parse().unwrap();
        Command::Register { name, node: None, instances: Vec::new(), checks: vec![check] }
    };
    assert!(!ended(&|store| assert!(store.run(&says(CheckStatus::Warning)).unwrap() > 0)));
    assert!(ended(&|store| assert!(store.run(&says(CheckStatus::Critical)).unwrap() > 0)));
    let no_check = Command::DeregisterCheck("n1".parse().unwrap(), "alive".parse().unwrap());
    assert!(ended(&|store| assert!(store.run(&no_check).unwrap() > 0)));
    let no_node = Command::DeregisterNode("n1".parse().unwrap());
    assert!(ended(&|store| assert!(store.run(&no_node).unwrap() > 0)));
    assert!(!ended(&|store| store.sweep(20_999)));
    assert!(ended(&|store| store.sweep(21_000)));
    assert!(!ended(&|store| {
        store.ask(CoordinationCommand::RenewSession { id: ONE, now_ms: 15_000 }).unwrap();
        store.sweep(34_999);
    }));
    // Turned critical by another server while the session was made here.
    assert!(ended(&|store| {
        let critical = Change::Put(check("n1", "alive", None, CheckStatus::Critical));
        store.0 = store.0.apply(Revision(store.0.revision().0 + 1), &[critical]).snapshot;
        store.sweep(1_000);
    }));
}

#[test]
fn who_has_locked_more_than_a_transaction_holds_loses_all_of_it() {
    let mut store = Store::new();
    store.open(ONE, 1_000, |_| {});
    for number in 0..200 {
        store.lock(&format!("l/{number}"), ONE, 0).unwrap();
    }
    store.ask(CoordinationCommand::EndSession(ONE)).unwrap();
    assert!(store.0.session(ONE).is_none());
    assert!(store.0.kv_under("l/").all(|entry| entry.value.session.is_none()));
    assert_eq!(store.0.lock_delays().count(), 200);
    store.sweep(1_000);
    store.sweep(2_000);
    assert_eq!(store.0.lock_delays().count(), 0);
}

#[test]
fn a_lock_of_a_session_that_is_gone_is_none() {
    let mut store = Store::new();
    store.open(ONE, 0, |_| {});
    store.lock("l", ONE, 0).unwrap();
    store.lock("m", ONE, 0).unwrap();
    let gone = Change::Delete(RecordKey::Coordination(CoordinationKey::Session(ONE)));
    store.0 = store.0.apply(Revision(store.0.revision().0 + 1), &[gone]).snapshot;
    store.open(TWO, 0, |_| {});
    store.lock("l", TWO, 0).unwrap();
    store.sweep(0);
    assert_eq!((store.holder("l"), store.holder("m")), (Some(TWO), None));
}

#[test]
fn a_session_needs_a_node_and_checks_that_are_well() {
    let mut store = Store::new();
    let create = |change: &dyn Fn(&mut Session)| {
        let Record::Coordination(CoordinationRecord::Session(mut session)) = session(ONE, "n1", 0) else {
            panic!("no session");
        };
        change(&mut session);
        CoordinationCommand::CreateSession { session, now_ms: 0 }
    };
    let of_nobody = create(&|session| session.node = "n9".parse().unwrap());
    assert_eq!(store.ask(of_nobody).unwrap_err().to_string(), "Missing node registration");
    let unknown = create(&|session| session.node_checks = vec!["other".parse().unwrap()]);
    assert_eq!(store.ask(unknown).unwrap_err().to_string(), "Missing check 'other' registration");
    let critical = Change::Put(check("n1", "alive", None, CheckStatus::Critical));
    store.0 = store.0.apply(Revision(2), &[critical]).snapshot;
    assert_eq!(store.ask(create(&|_| {})).unwrap_err().to_string(), "Check 'alive' is in critical state");
    store.ask(create(&|session| session.node_checks = Vec::new())).unwrap();
    let nobody = CoordinationCommand::RenewSession { id: TWO, now_ms: 0 };
    assert_eq!(store.ask(nobody), Err(CoordinationRefusal::UnknownSession(TWO)));
}

#[test]
fn who_does_not_lead_ends_nobodys_session() {
    let mut store = Store::new();
    store.open(ONE, 0, |session| (session.ttl, session.ttl_ms) = ("10s".to_owned(), Some(10_000)));
    let by = Some("00000000000000ab".parse().unwrap());
    assert_eq!(store.ask(CoordinationCommand::Sweep { by, now_ms: 1_000_000 }), Ok(0));
}
