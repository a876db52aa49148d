//! Histories of which it is known whether they are linearizable, and random ones against a checker that tries every order.

use super::*;
use crate::register::{Answer, Call, Register};

const LIMIT: Duration = Duration::from_secs(20);
const EXACT: Register = Register { has_exact_indexes: true };

fn done(called: u64, returned: u64, call: Call, answer: Answer) -> Operation<Call, Answer> {
    Operation { called, call, returned: Some((returned, answer)) }
}

fn open(called: u64, call: Call) -> Operation<Call, Answer> {
    Operation { called, call, returned: None }
}

fn wrote(called: u64, returned: u64, value: u64, index: u64) -> Operation<Call, Answer> {
    done(called, returned, Call::Write(value), Answer::Written(index))
}

fn found(called: u64, returned: u64, value: u64, modified: u64) -> Operation<Call, Answer> {
    done(called, returned, Call::Read, Answer::Found { value, modified })
}

fn swapped(called: u64, returned: u64, (expected, value): (u64, u64), answer: Answer) -> Operation<Call, Answer> {
    done(called, returned, Call::CompareAndSet { expected, value }, answer)
}

fn is_linearizable(history: &[Operation<Call, Answer>]) -> bool {
    match check(&EXACT, history, LIMIT) {
        Verdict::Linearizable => true,
        Verdict::NotLinearizable { .. } => false,
        Verdict::TimedOut => panic!("a history of {} operations takes too long", history.len()),
    }
}

#[test]
fn nothing_and_one_after_the_other_are_linearizable() {
    assert!(is_linearizable(&[]));
    assert!(is_linearizable(&[open(0, Call::Write(1))]));
    assert!(is_linearizable(&[wrote(0, 1, 1, 10), found(2, 3, 1, 10), wrote(4, 5, 2, 11), found(6, 7, 2, 11)]));
}

#[test]
fn reads_beside_a_write_see_it_or_do_not_but_never_go_back() {
    let write = [wrote(0, 1, 1, 10), wrote(2, 9, 2, 11)];
    let with = |reads: &[Operation<Call, Answer>]| is_linearizable(&[&write[..], reads].concat());
    assert!(with(&[found(3, 4, 1, 10), found(5, 6, 2, 11)]));
    assert!(!with(&[found(3, 4, 2, 11), found(5, 6, 1, 10)]), "the later read is older");
    assert!(with(&[found(3, 6, 2, 11), found(4, 5, 1, 10)]), "they overlap");
}

#[test]
fn a_read_after_an_acknowledged_write_sees_it() {
    let stale = [wrote(0, 1, 1, 10), wrote(2, 3, 2, 11), found(4, 5, 1, 10)];
    assert!(!is_linearizable(&stale));
    let Verdict::NotLinearizable { longest } = check(&EXACT, &stale, LIMIT) else { panic!("a stale read") };
    assert_eq!(longest, [0, 1], "what can be explained is told");
}

#[test]
fn an_acknowledged_write_that_nobody_finds_is_lost() {
    assert!(!is_linearizable(&[wrote(0, 1, 1, 10), done(2, 3, Call::Read, Answer::Absent)]));
    // The same value twice, the second one acknowledged without effect, because its server did not know of another.
    let lost = [wrote(0, 1, 1, 10), wrote(2, 3, 2, 11), wrote(4, 5, 1, 10), found(6, 7, 2, 11)];
    assert!(!is_linearizable(&lost));
}

#[test]
fn what_is_not_known_may_have_happened_at_any_time_or_never() {
    let begin = [wrote(0, 1, 1, 10), open(2, Call::Write(2))];
    let with = |rest: &[Operation<Call, Answer>]| is_linearizable(&[&begin[..], rest].concat());
    assert!(with(&[found(3, 4, 1, 10), found(100, 101, 1, 10)]));
    assert!(with(&[found(3, 4, 1, 10), found(100, 101, 2, 55)]), "late");
    assert!(with(&[found(3, 4, 2, 11), wrote(5, 6, 3, 12), found(7, 8, 3, 12)]));
    assert!(!with(&[found(3, 4, 2, 11), found(5, 6, 1, 10)]), "once it has it cannot be undone");
    assert!(!with(&[found(3, 4, 2, 11), wrote(5, 6, 3, 12), found(7, 8, 2, 13)]), "nor happen twice");
    assert!(!with(&[found(3, 4, 2, 11), found(5, 6, 2, 12)]), "its index is one, whichever");
}

#[test]
fn of_two_conditional_writes_on_one_index_one_wins() {
    let write = wrote(0, 1, 1, 10);
    let both = |first: Answer, second: Answer| {
        is_linearizable(&[write.clone(), swapped(2, 9, (10, 2), first), swapped(3, 8, (10, 3), second)])
    };
    assert!(both(Answer::Written(11), Answer::Mismatch));
    assert!(both(Answer::Mismatch, Answer::Written(11)));
    assert!(!both(Answer::Written(11), Answer::Written(12)));
    assert!(!both(Answer::Mismatch, Answer::Mismatch), "nobody was faster");
}

#[test]
fn a_refusal_from_an_old_state_is_found() {
    // The writer has index 11 from an acknowledgement, and is refused by a server that is still at 10.
    let history = [wrote(0, 1, 1, 10), wrote(2, 3, 2, 11), swapped(4, 5, (11, 3), Answer::Mismatch)];
    assert!(!is_linearizable(&history));
}

#[test]
fn what_is_deleted_is_absent_and_made_by_the_index_0() {
    let deleted = |called| done(called, called + 1, Call::Delete, Answer::Written(called + 10));
    let absent = |called| done(called, called + 1, Call::Read, Answer::Absent);
    let history = [wrote(0, 1, 1, 10), deleted(2), absent(4), swapped(6, 7, (0, 2), Answer::Written(20))];
    assert!(is_linearizable(&history));
    assert!(!is_linearizable(&[wrote(0, 1, 1, 10), deleted(2), found(4, 5, 1, 10)]), "it is back");
    assert!(!is_linearizable(&[wrote(0, 1, 1, 10), deleted(2), wrote(4, 5, 1, 11)]), "the index goes back");
}

#[test]
fn many_writers_at_once_are_checked_in_time() {
    // Twelve writes that all overlap and a read of each, in an order that only one way explains.
    let mut history: Vec<_> = (0..12).map(|n| wrote(0, 1000, n, 10 + (n * 7) % 12)).collect();
    let order = |value: u64| (value * 7) % 12;
    history.extend((0..12).map(|n| found(100 + order(n) * 10, 105 + order(n) * 10, n, 10 + order(n))));
    assert!(is_linearizable(&history));
    history.push(found(990, 995, 3, 10 + order(3)));
    assert!(!is_linearizable(&history));
}

/// Every order of the rest that real time allows; those without an answer may be left out.
fn by_brute_force(history: &[Operation<Call, Answer>], left: &mut Vec<usize>, state: crate::register::State) -> bool {
    if left.iter().all(|number| history[*number].returned.is_none()) {
        return true;
    }
    (0..left.len()).any(|place| {
        let number = left[place];
        let called = history[number].called;
        // Whoever returned before this one was called comes first.
        let is_due = left.iter().all(|other| history[*other].returned.as_ref().is_none_or(|(time, _)| *time >= called));
        let answer = history[number].returned.as_ref().map(|(_, answer)| answer);
        let Some(next) = EXACT.step(&state, &history[number].call, answer).filter(|_| is_due) else { return false };
        left.remove(place);
        let works = by_brute_force(history, left, next);
        left.insert(place, number);
        works
    })
}

/// A history of a real register, by operations that take effect somewhere between call and return; then, half the time, one
/// answer is falsified.
fn random_history(random: &mut fastrand::Rng) -> Vec<Operation<Call, Answer>> {
    let count = random.usize(2..8);
    let mut effects: Vec<(u64, u64, u64)> = (0..count)
        .map(|_| {
            let effect = random.u64(10..60);
            (effect, effect - random.u64(0..10), effect + random.u64(0..10))
        })
        .collect();
    effects.sort_unstable();
    let (mut value, mut modified, mut index) = (None, 0, 100);
    let mut history = Vec::new();
    for (_, called, returned) in effects {
        let call = match random.u8(0..10) {
            0..4 => Call::Read,
            4..7 => Call::Write(random.u64(0..3)),
            7..9 => {
                let expected = if random.bool() { modified } else { random.u64(100..104) };
                Call::CompareAndSet { expected, value: random.u64(0..3) }
            }
            _ => Call::Delete,
        };
        let current = modified;
        let mut set = |to: Option<u64>| {
            if value != to {
                index += 1;
                (value, modified) = (to, if to.is_some() { index } else { 0 });
            }
            Answer::Written(index)
        };
        let answer = match call {
            Call::Read => value.map_or(Answer::Absent, |value| Answer::Found { value, modified }),
            Call::Write(to) => set(Some(to)),
            Call::Delete => set(None),
            Call::CompareAndSet { expected, value: to } if expected == current => set(Some(to)),
            Call::CompareAndSet { .. } => Answer::Mismatch,
        };
        let is_lost = random.u8(0..6) == 0;
        history.push(Operation { called, call, returned: (!is_lost).then_some((returned, answer)) });
    }
    if random.bool() {
        falsify(random, &mut history);
    }
    random.shuffle(&mut history);
    history
}

fn falsify(random: &mut fastrand::Rng, history: &mut [Operation<Call, Answer>]) {
    let number = random.usize(0..history.len());
    let call = history[number].call;
    if let Some((_, answer)) = &mut history[number].returned {
        *answer = match call {
            Call::Read if random.bool() => Answer::Absent,
            Call::Read => Answer::Found { value: random.u64(0..3), modified: random.u64(100..106) },
            Call::CompareAndSet { .. } if random.bool() => Answer::Mismatch,
            Call::CompareAndSet { .. } | Call::Write(_) | Call::Delete => Answer::Written(random.u64(100..106)),
        };
    }
}

#[test]
fn it_says_what_trying_every_order_says() {
    let (mut linearizable, mut not) = (0, 0);
    for seed in 0..20_000 {
        let history = random_history(&mut fastrand::Rng::with_seed(seed));
        let expected = by_brute_force(&history, &mut (0..history.len()).collect(), EXACT.initial());
        assert_eq!(is_linearizable(&history), expected, "seed {seed}: {history:#?}");
        *(if expected { &mut linearizable } else { &mut not }) += 1;
    }
    assert!(linearizable > 5000 && not > 3000, "both kinds are tried: {linearizable}, {not}");
}

#[test]
fn a_register_as_it_is_never_fails_while_nothing_is_falsified() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let one_key: Vec<_> = (0..60_u64)
            .flat_map(|round| {
                // Three writers at once, whose order the indexes tell.
                let (from, index) = (round * 100, round * 3 + 1);
                let value = |n| round * 3 + n;
                let write = |n, called, returned| wrote(from + called, from + returned, value(n), index + n);
                let read = found(from + 60, from + 61, value(2), index + 2);
                [
                    write(0, random.u64(0..10), 40),
                    write(1, random.u64(0..10), 50),
                    write(2, random.u64(0..10), 50),
                    read,
                ]
            })
            .collect();
        assert!(is_linearizable(&one_key), "seed {seed}");
    }
}
