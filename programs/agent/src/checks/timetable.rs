//! When each check runs next: a state machine without clock, tasks or ambient randomness.
//!
//! Probes, which ask somebody, take places of which there are few, and few of them for any one target: an application that
//! hangs holds up nobody's checks but its own. What only watches the clock or the catalog needs no place.
//!
//! A check that is new runs at once, so that nobody waits an interval for a service that is up already. A check that was
//! restored at start runs at a random moment of its interval, for its last status stands until then. The second run comes
//! at a random moment of the interval's second half, which pulls apart checks that were registered together; from then
//! on the interval is kept exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use http::Uri;
use starling_model::{CheckId, CheckKind, CheckStatus};

use crate::registrations::Source;

/// Probes under way at once; what is due beyond this waits its turn, oldest first. Each holds a file descriptor or a few.
pub(crate) const RUNS_MAX: usize = 256;

/// Probes of one target under way at once: enough for an application with many checks that answers, and a small part of
/// [`RUNS_MAX`] for one that hangs.
const RUNS_PER_TARGET_MAX: usize = 16;

/// How long the agent's own look at a new sidecar's listener is impatient, and its interval meanwhile: whoever starts an
/// Envoy right after registering it should not wait for a check that has just found nobody.
const IMPATIENT_FOR: Duration = Duration::from_secs(60);
const IMPATIENT_INTERVAL: Duration = Duration::from_millis(500);

/// How a check is run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) kind: CheckKind,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    /// Where it was registered, which decides whether it may run programs.
    pub(crate) source: Source,
    /// Whether it is impatient while new.
    pub(crate) impatient: bool,
}

/// When a check runs for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    AtOnce,
    Spread,
}

/// A run that is due.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) check: CheckId,
    pub(crate) generation: u64,
    pub(crate) plan: Plan,
}

/// Whom a probe asks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// An application, by host and port.
    Address(String),
    /// This node, by a process of it or of a container: all scripts together.
    Script,
}

/// The probes of one target, while any is under way.
#[derive(Debug, Default)]
struct Lane {
    running: usize,
    /// Due, but without room.
    waiting: BTreeSet<(Instant, CheckId)>,
}

#[derive(Debug)]
struct Slot {
    plan: Plan,
    /// Whom it asks; `None` if it takes no place, for a TTL's end is no run, and following never ends.
    target: Option<Target>,
    generation: u64,
    due: Option<Instant>,
    running: bool,
    /// Somebody asked for a run while one was under way.
    again: bool,
    runs: u64,
    born: Instant,
    passed: bool,
}

/// The checks and their next runs.
#[derive(Debug, Default)]
pub(crate) struct Timetable {
    slots: BTreeMap<CheckId, Slot>,
    /// What takes no place.
    deadlines: BTreeSet<(Instant, CheckId)>,
    /// What takes a place, unless it waits in its target's lane.
    probes: BTreeSet<(Instant, CheckId)>,
    lanes: BTreeMap<Target, Lane>,
    generations: u64,
    running: usize,
}

impl Timetable {
    /// Sets how a check runs; `None` ends it. `spread` is a random number of 0.0 to 1.0. Returns the generation whose run,
    /// if one is under way, has become pointless.
    pub(crate) fn set(
        &mut self,
        check: &CheckId,
        plan: Option<Plan>,
        first: First,
        now: Instant,
        spread: f64,
    ) -> Option<u64> {
        let old = self.slots.get(check);
        if old.is_some_and(|old| Some(&old.plan) == plan.as_ref()) {
            return None;
        }
        let ended = old.map(|old| old.generation);
        self.remove(check);
        let Some(plan) = plan else { return ended };
        self.generations += 1;
        let delay = match (&plan.kind, first) {
            // A TTL check is due when its time is up, not before.
            (CheckKind::Ttl { ttl }, _) => *ttl,
            (CheckKind::Alias { .. }, _) | (_, First::AtOnce) => Duration::ZERO,
            (_, First::Spread) => plan.interval.mul_f64(spread),
        };
        let generation = self.generations;
        let target = target(&plan.kind);
        let slot = Slot {
            plan,
            target,
            generation,
            due: None,
            running: false,
            again: false,
            runs: 0,
            born: now,
            passed: false,
        };
        self.slots.insert(check.clone(), slot);
        self.schedule(check, now + delay);
        ended
    }

    /// A TTL check was heard of: its time begins anew.
    pub(crate) fn heard(&mut self, check: &CheckId, now: Instant) {
        if let Some(CheckKind::Ttl { ttl }) = self.slots.get(check).map(|slot| &slot.plan.kind) {
            let due = now + *ttl;
            self.schedule(check, due);
        }
    }

    /// Whether a TTL check's time is up: nobody was heard since it was taken as due.
    pub(crate) fn is_silent(&self, check: &CheckId) -> bool {
        let slot = self.slots.get(check);
        slot.is_some_and(|slot| matches!(slot.plan.kind, CheckKind::Ttl { .. }) && slot.due.is_none())
    }

    /// Lets a check that is run by asking run now.
    pub(crate) fn run_now(&mut self, check: &CheckId, now: Instant) {
        let Some(slot) = self.slots.get_mut(check) else { return };
        if slot.target.is_none() {
            return;
        }
        if slot.running {
            slot.again = true;
        } else {
            self.schedule(check, now);
        }
    }

    /// The next run that is due by `now` and has room.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Job> {
        if let Some(check) = pop_due(&mut self.deadlines, now).map(|(_, check)| check) {
            let slot = self.slots.get_mut(&check)?;
            slot.due = None;
            return Some(Job { generation: slot.generation, plan: slot.plan.clone(), check });
        }
        while self.running < RUNS_MAX {
            let (due, check) = pop_due(&mut self.probes, now)?;
            let slot = self.slots.get_mut(&check)?;
            let lane = self.lanes.entry(slot.target.clone()?).or_default();
            if lane.running >= RUNS_PER_TARGET_MAX {
                lane.waiting.insert((due, check));
                continue;
            }
            lane.running += 1;
            self.running += 1;
            slot.due = None;
            slot.running = true;
            return Some(Job { generation: slot.generation, plan: slot.plan.clone(), check });
        }
        None
    }

    /// When something is due next, if there is room for it.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let probe = self.probes.first().filter(|_| self.running < RUNS_MAX);
        self.deadlines.first().into_iter().chain(probe).map(|(due, _)| *due).min()
    }

    /// A run has ended, with `status` if it learned anything. Whether its result still counts; if so, the next run has its
    /// moment. `spread` is a random number of 0.0 to 1.0.
    pub(crate) fn finished(&mut self, job: &Job, status: Option<CheckStatus>, now: Instant, spread: f64) -> bool {
        let Some(slot) = self.slots.get_mut(&job.check).filter(|slot| slot.generation == job.generation) else {
            return false;
        };
        if !slot.running {
            return true;
        }
        slot.running = false;
        slot.runs += 1;
        slot.passed |= status.is_some_and(|status| status != CheckStatus::Critical);
        let young = now.saturating_duration_since(slot.born) < IMPATIENT_FOR;
        let delay = if std::mem::take(&mut slot.again) {
            Duration::ZERO
        } else if slot.plan.impatient && !slot.passed && young {
            IMPATIENT_INTERVAL.min(slot.plan.interval)
        } else if slot.runs == 1 {
            slot.plan.interval.mul_f64(0.5 + spread / 2.0)
        } else {
            slot.plan.interval
        };
        let target = slot.target.clone();
        self.release(target);
        self.schedule(&job.check, now + delay);
        true
    }

    fn schedule(&mut self, check: &CheckId, due: Instant) {
        self.unschedule(check);
        let Some(slot) = self.slots.get_mut(check) else { return };
        slot.due = Some(due);
        let queue = if slot.target.is_some() { &mut self.probes } else { &mut self.deadlines };
        queue.insert((due, check.clone()));
    }

    fn unschedule(&mut self, check: &CheckId) {
        let Some(slot) = self.slots.get_mut(check) else { return };
        let Some(due) = slot.due.take() else { return };
        let entry = (due, check.clone());
        match &slot.target {
            None => drop(self.deadlines.remove(&entry)),
            Some(target) => {
                let target = target.clone();
                self.probes.remove(&entry);
                if let Some(lane) = self.lanes.get_mut(&target) {
                    lane.waiting.remove(&entry);
                }
                // It may have been let out of the lane for a place that it leaves to the next then.
                self.let_next(&target);
            }
        }
    }

    fn remove(&mut self, check: &CheckId) {
        self.unschedule(check);
        let Some(slot) = self.slots.remove(check) else { return };
        if slot.running {
            self.release(slot.target);
        }
    }

    /// Frees a place.
    fn release(&mut self, target: Option<Target>) {
        let Some(target) = target else { return };
        let Some(lane) = self.lanes.get_mut(&target) else { return };
        self.running -= 1;
        lane.running -= 1;
        self.let_next(&target);
    }

    /// Lets whoever waits first in a lane try again.
    fn let_next(&mut self, target: &Target) {
        let Some(lane) = self.lanes.get_mut(target) else { return };
        self.probes.extend(lane.waiting.pop_first());
        if lane.running == 0 && lane.waiting.is_empty() {
            self.lanes.remove(target);
        }
    }
}

/// Takes what is due first, if it is due by `now`.
fn pop_due(queue: &mut BTreeSet<(Instant, CheckId)>, now: Instant) -> Option<(Instant, CheckId)> {
    let (due, _) = queue.first()?;
    if *due <= now { queue.pop_first() } else { None }
}

fn target(kind: &CheckKind) -> Option<Target> {
    let address = match kind {
        CheckKind::Ttl { .. } | CheckKind::Alias { .. } | CheckKind::Maintenance => return None,
        CheckKind::Script { .. } | CheckKind::Docker { .. } => return Some(Target::Script),
        CheckKind::Tcp { address, .. }
        | CheckKind::Udp { address }
        | CheckKind::H2Ping { address, .. }
        | CheckKind::Grpc { address, .. } => address.clone(),
        CheckKind::Http { url, .. } => {
            let authority = url.parse().ok().and_then(|url: Uri| url.authority().map(ToString::to_string));
            authority.unwrap_or_else(|| url.clone())
        }
    };
    Some(Target::Address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tcp(seconds: u32, impatient: bool) -> Plan {
        let kind = CheckKind::tcp("127.0.0.1:1");
        Plan { kind, interval: SECOND * seconds, timeout: SECOND, source: Source::Caller, impatient }
    }

    fn tcp_to(address: String) -> Plan {
        Plan { kind: CheckKind::tcp(address), ..tcp(10, false) }
    }

    fn ttl(seconds: u32) -> Plan {
        Plan { kind: CheckKind::Ttl { ttl: SECOND * seconds }, ..tcp(0, false) }
    }

    fn taken(table: &mut Timetable, now: Instant) -> Vec<Job> {
        std::iter::from_fn(|| table.take_due(now)).collect()
    }

    fn id(text: &str) -> CheckId {
        CheckId::new(text).unwrap()
    }

    #[test]
    fn a_new_check_runs_at_once_then_somewhere_in_the_interval_then_regularly() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, false)), First::AtOnce, start, 0.9);
        let job = table.take_due(start).unwrap();
        assert!(table.take_due(start + SECOND * 60).is_none(), "one run of a check at a time");
        assert!(table.finished(&job, Some(CheckStatus::Passing), start, 0.5));
        assert_eq!(table.next_due(), Some(start + Duration::from_millis(7_500)));
        let job = table.take_due(start + SECOND * 8).unwrap();
        assert!(table.finished(&job, Some(CheckStatus::Passing), start + SECOND * 9, 0.5));
        assert_eq!(table.next_due(), Some(start + SECOND * 19), "counted from the end of the run");
    }

    #[test]
    fn a_restored_check_waits_its_turn() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, false)), First::Spread, start, 0.25);
        assert_eq!(table.next_due(), Some(start + Duration::from_millis(2_500)));
    }

    #[test]
    fn a_result_of_a_replaced_check_does_not_count() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, false)), First::AtOnce, start, 0.0);
        let job = table.take_due(start).unwrap();
        assert_eq!(table.set(&id("a"), Some(tcp(10, false)), First::AtOnce, start, 0.0), None, "the same is no change");
        assert_eq!(table.set(&id("a"), Some(tcp(20, false)), First::AtOnce, start, 0.0), Some(job.generation));
        assert!(!table.finished(&job, Some(CheckStatus::Passing), start, 0.0));
        let job = table.take_due(start).unwrap();
        table.set(&id("a"), None, First::AtOnce, start, 0.0);
        assert!(!table.finished(&job, Some(CheckStatus::Passing), start, 0.0));
        assert_eq!(table.next_due(), None);
        assert_eq!(table.running, 0);
    }

    #[test]
    fn places_are_limited_and_freed() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        for number in 0..=RUNS_MAX {
            let plan = tcp_to(format!("127.0.0.1:{number}"));
            table.set(&id(&format!("c{number}")), Some(plan), First::AtOnce, start, 0.0);
        }
        let jobs = taken(&mut table, start);
        assert_eq!(jobs.len(), RUNS_MAX);
        assert_eq!(table.next_due(), None, "nothing to wake up for without room");
        table.finished(&jobs[0], Some(CheckStatus::Passing), start, 0.0);
        assert!(table.take_due(start).is_some());
    }

    #[test]
    fn a_ttl_lapses_while_every_place_is_taken() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("t"), Some(ttl(5)), First::AtOnce, start, 0.0);
        for number in 0..=RUNS_MAX {
            let plan = tcp_to(format!("127.0.0.1:{number}"));
            table.set(&id(&format!("c{number}")), Some(plan), First::AtOnce, start, 0.0);
        }
        assert_eq!(taken(&mut table, start).len(), RUNS_MAX);
        assert_eq!(table.next_due(), Some(start + SECOND * 5), "there is something to wake up for");
        let jobs = taken(&mut table, start + SECOND * 5);
        assert_eq!(jobs.iter().map(|job| job.check.as_str()).collect::<Vec<_>>(), ["t"]);
    }

    #[test]
    fn a_target_that_hangs_leaves_places_for_others() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        for number in 0..RUNS_MAX * 2 {
            table.set(&id(&format!("hangs{number:04}")), Some(tcp(10, false)), First::AtOnce, start, 0.0);
        }
        let other = tcp_to("127.0.0.1:2".to_owned());
        table.set(&id("other"), Some(other), First::AtOnce, start + SECOND, 0.0);
        let jobs = taken(&mut table, start + SECOND);
        assert_eq!(jobs.len(), RUNS_PER_TARGET_MAX + 1);
        assert_eq!(jobs[RUNS_PER_TARGET_MAX].check, id("other"));
        assert_eq!(table.next_due(), None, "those without room are woken by a run's end");
        // Whoever waits gets the place that is freed, however it is freed.
        assert!(table.finished(&jobs[0], Some(CheckStatus::Critical), start + SECOND, 0.0));
        assert_eq!(table.take_due(start + SECOND).map(|job| job.check), Some(id("hangs0016")));
        table.set(&id("hangs0001"), None, First::AtOnce, start + SECOND, 0.0);
        assert_eq!(table.take_due(start + SECOND).map(|job| job.check), Some(id("hangs0017")));
        // One that waits can be ended, too.
        for number in 0..RUNS_MAX * 2 {
            table.set(&id(&format!("hangs{number:04}")), None, First::AtOnce, start + SECOND, 0.0);
        }
        assert!(table.take_due(start + SECOND * 60).is_none());
        assert_eq!((table.running, table.lanes.len()), (1, 1), "the other one's");
    }

    #[test]
    fn a_heartbeat_after_the_deadline_was_taken_ends_the_silence() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("t"), Some(ttl(5)), First::AtOnce, start, 0.0);
        assert!(!table.is_silent(&id("t")));
        table.take_due(start + SECOND * 5).unwrap();
        assert!(table.is_silent(&id("t")));
        table.heard(&id("t"), start + SECOND * 5);
        assert!(!table.is_silent(&id("t")));
    }

    #[test]
    fn a_ttl_is_due_when_nobody_was_heard_for_that_long() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("t"), Some(ttl(5)), First::AtOnce, start, 0.0);
        table.heard(&id("t"), start + SECOND * 4);
        assert!(table.take_due(start + SECOND * 6).is_none());
        let job = table.take_due(start + SECOND * 9).unwrap();
        assert!(table.finished(&job, Some(CheckStatus::Critical), start + SECOND * 9, 0.0));
        assert_eq!(table.next_due(), None, "it lapses once");
        table.heard(&id("t"), start + SECOND * 20);
        assert_eq!(table.next_due(), Some(start + SECOND * 25));
    }

    #[test]
    fn an_impatient_check_runs_often_until_it_passes_or_grows_old() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, true)), First::AtOnce, start, 0.0);
        let job = table.take_due(start).unwrap();
        table.finished(&job, Some(CheckStatus::Critical), start, 0.0);
        assert_eq!(table.next_due(), Some(start + IMPATIENT_INTERVAL));
        let now = start + IMPATIENT_INTERVAL;
        let job = table.take_due(now).unwrap();
        table.finished(&job, Some(CheckStatus::Passing), now, 0.0);
        assert_eq!(table.next_due(), Some(now + SECOND * 10));
    }

    #[test]
    fn a_run_asked_for_during_a_run_follows_it() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, false)), First::AtOnce, start, 0.0);
        let job = table.take_due(start).unwrap();
        table.run_now(&id("a"), start);
        assert!(table.take_due(start).is_none());
        table.finished(&job, Some(CheckStatus::Passing), start, 0.0);
        assert_eq!(table.next_due(), Some(start));
    }
}
