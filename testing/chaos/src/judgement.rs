//! What a run proves, and what it disproves.

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Role;
use crate::faults::Harm;
use crate::history::{Event, Key, Kind, Mode, Outcome, Promise};
use crate::linearizability::{Operation, Verdict, check};
use crate::register::{Answer, Call, Register};
use crate::run::{Entered, Remains, Struck, node_names};

/// Longest search for an order of one key's operations.
const CHECK_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest time from the death of etcd's leader to the next write that is taken: the bar.
const WRITES_BACK: Duration = Duration::from_secs(5);

/// Time in which a server is back after a fault: it may have ended for want of etcd and be started again.
const SERVER_STARTS: Duration = Duration::from_secs(10);

/// Operations of one key that are told when there is no order of them.
const TOLD_OPERATIONS: usize = 6;

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Writes that were acknowledged, those of the ledger included.
    pub acknowledged: usize,
    /// Writes of which it is not known.
    pub unknown: usize,
    /// Reads that were judged, by mode.
    pub reads: BTreeMap<Mode, usize>,
    /// Keys whose history was checked.
    pub keys: usize,
    /// Operations in those histories.
    pub operations: usize,
    /// Keys of which it was not found out in time.
    pub undecided: usize,
    /// From each death of etcd's leader to the first acknowledgement of a write that was begun after it; `false` where
    /// other faults stood against it, too.
    pub leader_deaths: Vec<(Duration, bool)>,
}

/// Judges what is left of a run; what is broken is added to its findings.
pub fn judge(remains: &mut Remains) -> Figures {
    let mut figures = Figures::default();
    let events = std::mem::take(&mut remains.events);
    count(&events, remains, &mut figures);
    judge_histories(&events, remains, &mut figures);
    judge_contents(&events, remains);
    judge_ledger(remains);
    judge_agreement(remains);
    judge_leader_deaths(&events, remains, &mut figures);
    for (role, why) in remains.ended_by_themselves.clone() {
        if why.contains("panicked at") {
            remains.findings.add(Promise::NoPanic, format!("{role} ended by itself: {why}"));
        }
    }
    remains.events = events;
    figures
}

fn count(events: &[Event], remains: &Remains, figures: &mut Figures) {
    figures.acknowledged = remains.ledger.len();
    for event in events {
        match (&event.outcome, event.mode) {
            (Outcome::Answered { answer: Answer::Written(_), .. }, Mode::Write) => figures.acknowledged += 1,
            (Outcome::Unknown(_), Mode::Write) => figures.unknown += 1,
            (Outcome::Answered { .. }, mode) => *figures.reads.entry(mode).or_default() += 1,
            (Outcome::Unknown(_), _) => {}
        }
    }
}

fn judge_histories(events: &[Event], remains: &mut Remains, figures: &mut Figures) {
    let mut by_key: BTreeMap<&Arc<Key>, Vec<&Event>> = BTreeMap::new();
    for event in events.iter().filter(|event| matches!(event.mode, Mode::Write | Mode::Consistent)) {
        by_key.entry(&event.key).or_default().push(event);
    }
    for (key, events) in by_key {
        let history: Vec<_> = events.iter().filter_map(|event| operation(event)).collect();
        figures.keys += 1;
        figures.operations += history.len();
        // A registration is written again though it is there already, where the server has not heard of it.
        let model = Register { has_exact_indexes: key.kind != Kind::Node };
        match check(&model, &history, CHECK_TIME_MAX) {
            Verdict::Linearizable => {}
            Verdict::TimedOut => figures.undecided += 1,
            Verdict::NotLinearizable { longest } => {
                let history: Vec<_> = events.iter().filter(|event| operation(event).is_some()).collect();
                remains.findings.add(Promise::Linearizable, explain(key, &history, &longest));
            }
        }
    }
}

fn operation(event: &Event) -> Option<Operation<Call, Answer>> {
    let returned = match &event.outcome {
        Outcome::Answered { answer, .. } => Some((event.returned, *answer)),
        Outcome::Unknown(_) if event.call == Call::Read => return None,
        Outcome::Unknown(_) => None,
    };
    Some(Operation { called: event.called, call: event.call, returned })
}

/// The end of what can be explained, and what cannot.
fn explain(key: &Key, history: &[&&Event], longest: &[usize]) -> String {
    let told = |number: &usize| {
        let Event { client, server, call, called, returned, outcome, .. } = history[*number];
        let (called, returned) = (*called as f64 / 1e6, *returned as f64 / 1e6);
        format!("  {called:.3} to {returned:.3} s, {client} at server {server}: {call:?} {outcome:?}")
    };
    let explained = &longest[longest.len().saturating_sub(TOLD_OPERATIONS)..];
    let mut rest: Vec<usize> = (0..history.len())
        .filter(|number| !longest.contains(number) && matches!(history[*number].outcome, Outcome::Answered { .. }))
        .collect();
    rest.sort_by_key(|number| history[*number].returned);
    rest.truncate(TOLD_OPERATIONS);
    let lines = |numbers: &[usize]| numbers.iter().map(told).collect::<Vec<_>>().join("\n");
    format!(
        "{key:?}: in an order that goes farthest comes last\n{}\n and then none of\n{}",
        lines(explained),
        lines(&rest)
    )
}

/// One index of a key is one content, whoever tells of it and how.
fn judge_contents(events: &[Event], remains: &mut Remains) {
    let mut contents: BTreeMap<(&Arc<Key>, u64), (u64, &Event)> = BTreeMap::new();
    for event in events {
        let content = match (&event.outcome, event.call) {
            (Outcome::Answered { answer: Answer::Found { value, modified }, .. }, _) => (*modified, *value),
            _ => continue,
        };
        match contents.entry((&event.key, content.0)) {
            Entry::Vacant(entry) => {
                entry.insert((content.1, event));
            }
            Entry::Occupied(entry) if entry.get().0 != content.1 && event.key.kind != Kind::Node => {
                let text = format!("{:?} is two things at one index: {:?} and {event:?}", event.key, entry.get().1);
                remains.findings.add(Promise::OneContent, text);
            }
            Entry::Occupied(_) => {}
        }
    }
}

fn judge_ledger(remains: &mut Remains) {
    for server in 0..remains.dumps.len() {
        match node_names(&remains.dumps[server][0].1) {
            Err(error) => remains.findings.add(Promise::NothingLost, format!("server {server}: {error:#}")),
            Ok(names) => {
                let lost: Vec<_> = remains.ledger.iter().filter(|(name, _)| !names.contains(*name)).collect();
                if let Some((name, entered)) = lost.first() {
                    let text = format!(
                        "server {server} lacks {} registrations that were acknowledged, such as {name}: {entered:?}",
                        lost.len()
                    );
                    remains.findings.add(Promise::NothingLost, text);
                }
            }
        }
    }
}

fn judge_agreement(remains: &mut Remains) {
    for server in 1..remains.dumps.len() {
        let indexes = |server: usize| remains.dumps[server].iter().map(|(index, _)| *index).collect::<Vec<_>>();
        if remains.dumps[server] != remains.dumps[0] {
            let same_index = if indexes(server) == indexes(0) { "of the same index" } else { "of another index" };
            let (mine, first) = (indexes(server), indexes(0));
            let text = format!("server {server} has {same_index} than server 0 something else: {mine:?} and {first:?}");
            remains.findings.add(Promise::Agreement, text);
        }
    }
}

fn judge_leader_deaths(events: &[Event], remains: &mut Remains, figures: &mut Figures) {
    let written = events.iter().filter_map(|event| match (&event.outcome, event.mode) {
        (Outcome::Answered { answer: Answer::Written(index), .. }, Mode::Write) => {
            Some(Entered { index: *index, called: event.called, returned: event.returned })
        }
        _ => None,
    });
    let mut acknowledged: Vec<_> = written.chain(remains.ledger.values().copied()).collect();
    acknowledged.sort_unstable_by_key(|entered| entered.returned);
    let deaths: Vec<_> =
        remains.faults.iter().filter(|struck| struck.was_leader && struck.fault.harm == Harm::Kill).cloned().collect();
    for death in deaths {
        // What changes nothing is taken without etcd: a write counts if it made a new index.
        let before = acknowledged.iter().filter(|entered| entered.returned < death.begun);
        let newest = before.map(|entered| entered.index).max().unwrap_or_default();
        let next = acknowledged.iter().find(|entered| entered.called > death.begun && entered.index > newest);
        let Some(Entered { returned, .. }) = next else { continue };
        let back = Duration::from_micros(returned - death.begun);
        let is_alone = is_alone(&remains.faults, &death, *returned);
        figures.leader_deaths.push((back, is_alone));
        if is_alone && back > WRITES_BACK {
            let seconds = death.begun as f64 / 1e6;
            let text = format!("after the leader's death at {seconds:.1} s the first write was taken {back:.1?} later");
            remains.findings.add(Promise::WritesAreBack, text);
        }
    }
}

/// Whether nothing else stands against writes between a death and that time: no other fault of a member, and no more than one
/// server that is hit, or starts after it was.
fn is_alone(faults: &[Struck], death: &Struck, until: u64) -> bool {
    let overlaps = |other: &Struck, since: u64| other.begun < until && other.ended > since;
    let is_member = |other: &Struck| matches!(other.role, Role::Member(_));
    let others = faults.iter().filter(|other| (other.role, other.begun) != (death.role, death.begun));
    let starting = death.begun.saturating_sub(micros(SERVER_STARTS));
    let servers: BTreeSet<_> =
        others.clone().filter(|other| !is_member(other) && overlaps(other, starting)).map(|other| other.role).collect();
    servers.len() < 2 && !others.filter(|other| is_member(other)).any(|other| overlaps(other, death.begun))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
