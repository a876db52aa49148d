//! Runs that never were: each promise broken in one of them.

use super::*;
use crate::faults::{Fault, Target};
use crate::history::Findings;
use crate::run::Folder;

fn key(kind: Kind) -> Arc<Key> {
    Arc::new(Key { kind, name: "k".to_owned() })
}

fn event(mode: Mode, (called, returned): (u64, u64), call: Call, answer: Answer, index: u64) -> Event {
    let outcome = Outcome::Answered { answer, index };
    Event { client: "c".into(), server: 0, mode, key: key(Kind::ServiceDefaults), call, called, returned, outcome }
}

fn written(times: (u64, u64), value: u64, index: u64) -> Event {
    event(Mode::Write, times, Call::Write(value), Answer::Written(index), index)
}

fn found(mode: Mode, times: (u64, u64), value: u64, modified: u64) -> Event {
    event(mode, times, Call::Read, Answer::Found { value, modified }, modified)
}

fn remains(events: Vec<Event>) -> Remains {
    let dump = vec![(7, r#"[{"Node": "a"}, {"Node": "b"}]"#.to_owned()), (8, "[]".to_owned())];
    let entered = |called| Entered { index: 5, called, returned: called + 1 };
    Remains {
        events,
        faults: Vec::new(),
        ledger: [("a".to_owned(), entered(1)), ("b".to_owned(), entered(2))].into(),
        dumps: vec![dump; 3],
        findings: Findings::default(),
        ended_by_themselves: Vec::new(),
        read_anew: 0,
        healed_in: Duration::ZERO,
        folder: Folder::of_nothing(),
    }
}

fn broken(mut remains: Remains) -> Vec<Promise> {
    judge(&mut remains);
    remains.findings.first.iter().map(|finding| finding.promise).collect()
}

#[test]
fn a_sound_run_breaks_nothing_and_is_counted() {
    let unknown = Event { outcome: Outcome::Unknown("500".to_owned()), ..written((30, 40), 3, 0) };
    let read = found(Mode::Consistent, (3, 4), 1, 10);
    let mut sound = remains(vec![written((1, 2), 1, 10), read, unknown, found(Mode::Stale, (5, 6), 1, 10)]);
    let figures = judge(&mut sound);
    assert!(sound.findings.first.is_empty(), "{:?}", sound.findings.first);
    assert_eq!((figures.acknowledged, figures.unknown, figures.keys, figures.operations), (3, 1, 1, 3));
    assert_eq!(figures.reads[&Mode::Stale], 1);
    assert_eq!(sound.events.len(), 4, "the history is still there");
}

#[test]
fn a_consistent_read_of_the_past_is_not_linearizable_and_a_stale_one_may_be() {
    let with = |mode| vec![written((1, 2), 1, 10), written((3, 4), 2, 11), found(mode, (5, 6), 1, 10)];
    assert_eq!(broken(remains(with(Mode::Consistent))), [Promise::Linearizable]);
    assert_eq!(broken(remains(with(Mode::Stale))), []);
}

#[test]
fn two_values_of_one_index_are_found_whoever_reads_them() {
    let events = vec![written((1, 2), 1, 10), found(Mode::Stale, (3, 4), 1, 10), found(Mode::Default, (5, 6), 2, 10)];
    assert_eq!(broken(remains(events)), [Promise::OneContent]);
}

#[test]
fn a_registration_that_a_server_lacks_is_lost_and_servers_that_differ_are_told() {
    let mut one = remains(Vec::new());
    one.dumps[2][0].1 = r#"[{"Node": "a"}]"#.to_owned();
    assert_eq!(broken(one), [Promise::NothingLost, Promise::Agreement]);
    let mut behind = remains(Vec::new());
    behind.dumps[1][1].0 = 6;
    assert_eq!(broken(behind), [Promise::Agreement]);
}

#[test]
fn after_a_leaders_death_only_a_write_that_is_new_counts() {
    let seconds = |seconds: u64| seconds * 1_000_000;
    let death = |role, begun| {
        let fault = Fault { harm: Harm::Kill, target: Target::This(role), held: Duration::ZERO };
        Struck { fault, role, was_leader: role == Role::Member(0), begun, ended: begun + 1 }
    };
    // The same value again changes nothing, and needs no etcd; the next new one comes after six seconds.
    let events = || {
        let again = written((seconds(10) + 1, seconds(10) + 2), 1, 10);
        vec![written((1, 2), 1, 10), again, written((seconds(16) - 1, seconds(16)), 2, 11)]
    };
    let mut slow = remains(events());
    slow.faults = vec![death(Role::Member(0), seconds(10))];
    let figures = judge(&mut slow);
    assert_eq!(figures.leader_deaths, [(Duration::from_secs(6), true)]);
    assert_eq!(slow.findings.of(Promise::WritesAreBack), 1);
    let mut beside = remains(events());
    beside.faults = vec![death(Role::Member(0), seconds(10)), death(Role::Member(1), seconds(12))];
    assert_eq!(judge(&mut beside).leader_deaths, [(Duration::from_secs(6), false)]);
    assert_eq!(beside.findings.of(Promise::WritesAreBack), 0, "too few members are left for that");
    let with_servers = |servers: &[usize]| {
        let mut remains = remains(events());
        remains.faults = servers.iter().map(|server| death(Role::Server(*server), seconds(11))).collect();
        remains.faults.push(death(Role::Member(0), seconds(10)));
        judge(&mut remains);
        remains.findings.of(Promise::WritesAreBack)
    };
    assert_eq!((with_servers(&[1]), with_servers(&[1, 2])), (1, 0), "there are two other servers, or one that starts");
}

#[test]
fn a_panic_is_told() {
    let mut panicked = remains(Vec::new());
    panicked.ended_by_themselves = vec![(Role::Server(1), "thread 'main' panicked at x.rs:1:1".to_owned())];
    assert_eq!(broken(panicked), [Promise::NoPanic]);
}
