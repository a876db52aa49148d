//! When each check runs next: a state machine without clock, tasks or ambient randomness.
//!
//! A check that is new runs at once, so that nobody waits an interval for a service that is up already. A check that was
//! restored at start runs at a random moment of its interval, for its last status stands until then. The second run comes
//! at a random moment of the interval's second half, which pulls apart checks that were registered together; from then
//! on the interval is kept exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use starling_model::{CheckId, CheckKind, CheckStatus};

/// Runs under way at once; what is due beyond this waits its turn, oldest first.
pub(crate) const RUNS_MAX: usize = 256;

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

#[derive(Debug)]
struct Slot {
    plan: Plan,
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
    due: BTreeSet<(Instant, CheckId)>,
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
        let slot =
            Slot { plan, generation, due: None, running: false, again: false, runs: 0, born: now, passed: false };
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

    /// Lets a check that is run by asking run now.
    pub(crate) fn run_now(&mut self, check: &CheckId, now: Instant) {
        let Some(slot) = self.slots.get_mut(check) else { return };
        if matches!(slot.plan.kind, CheckKind::Ttl { .. } | CheckKind::Alias { .. }) {
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
        if self.running >= RUNS_MAX || self.due.first().is_none_or(|(due, _)| *due > now) {
            return None;
        }
        let (_, check) = self.due.pop_first()?;
        let slot = self.slots.get_mut(&check)?;
        slot.due = None;
        if occupies(&slot.plan) {
            slot.running = true;
            self.running += 1;
        }
        Some(Job { generation: slot.generation, plan: slot.plan.clone(), check })
    }

    /// When something is due next, if there is room for it.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due).filter(|_| self.running < RUNS_MAX)
    }

    /// A run has ended. Whether its result still counts; if so, the next run has its moment. `spread` is a random number
    /// of 0.0 to 1.0.
    pub(crate) fn finished(&mut self, job: &Job, status: CheckStatus, now: Instant, spread: f64) -> bool {
        let Some(slot) = self.slots.get_mut(&job.check).filter(|slot| slot.generation == job.generation) else {
            return false;
        };
        if !slot.running {
            return true;
        }
        slot.running = false;
        slot.runs += 1;
        slot.passed |= status != CheckStatus::Critical;
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
        self.running -= 1;
        self.schedule(&job.check, now + delay);
        true
    }

    fn schedule(&mut self, check: &CheckId, due: Instant) {
        let Some(slot) = self.slots.get_mut(check) else { return };
        if let Some(old) = slot.due.replace(due) {
            self.due.remove(&(old, check.clone()));
        }
        self.due.insert((due, check.clone()));
    }

    fn remove(&mut self, check: &CheckId) {
        let Some(slot) = self.slots.remove(check) else { return };
        if let Some(due) = slot.due {
            self.due.remove(&(due, check.clone()));
        }
        self.running -= usize::from(slot.running);
    }
}

/// Whether a run of this plan takes one of the places: a TTL's end is no run, and following never ends.
fn occupies(plan: &Plan) -> bool {
    !matches!(plan.kind, CheckKind::Ttl { .. } | CheckKind::Alias { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tcp(seconds: u32, impatient: bool) -> Plan {
        let kind = CheckKind::Tcp { address: "127.0.0.1:1".to_owned() };
        Plan { kind, interval: SECOND * seconds, timeout: SECOND, impatient }
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
        assert!(table.finished(&job, CheckStatus::Passing, start, 0.5));
        assert_eq!(table.next_due(), Some(start + Duration::from_millis(7_500)));
        let job = table.take_due(start + SECOND * 8).unwrap();
        assert!(table.finished(&job, CheckStatus::Passing, start + SECOND * 9, 0.5));
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
        assert!(!table.finished(&job, CheckStatus::Passing, start, 0.0));
        let job = table.take_due(start).unwrap();
        table.set(&id("a"), None, First::AtOnce, start, 0.0);
        assert!(!table.finished(&job, CheckStatus::Passing, start, 0.0));
        assert_eq!(table.next_due(), None);
        assert_eq!(table.running, 0);
    }

    #[test]
    fn places_are_limited_and_freed() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        for number in 0..=RUNS_MAX {
            table.set(&id(&format!("c{number}")), Some(tcp(10, false)), First::AtOnce, start, 0.0);
        }
        let jobs: Vec<Job> = std::iter::from_fn(|| table.take_due(start)).collect();
        assert_eq!(jobs.len(), RUNS_MAX);
        assert_eq!(table.next_due(), None, "nothing to wake up for without room");
        table.finished(&jobs[0], CheckStatus::Passing, start, 0.0);
        assert!(table.take_due(start).is_some());
    }

    #[test]
    fn a_ttl_is_due_when_nobody_was_heard_for_that_long() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        let plan = Plan { kind: CheckKind::Ttl { ttl: SECOND * 5 }, ..tcp(0, false) };
        table.set(&id("t"), Some(plan), First::AtOnce, start, 0.0);
        table.heard(&id("t"), start + SECOND * 4);
        assert!(table.take_due(start + SECOND * 6).is_none());
        let job = table.take_due(start + SECOND * 9).unwrap();
        assert!(table.finished(&job, CheckStatus::Critical, start + SECOND * 9, 0.0));
        assert_eq!(table.next_due(), None, "it lapses once");
        table.heard(&id("t"), start + SECOND * 20);
        assert_eq!(table.next_due(), Some(start + SECOND * 25));
    }

    #[test]
    fn an_impatient_check_runs_often_until_it_passes_or_grows_old() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, true)), First::AtOnce, start, 0.0);
        let job = table.take_due(start).unwrap();
        table.finished(&job, CheckStatus::Critical, start, 0.0);
        assert_eq!(table.next_due(), Some(start + IMPATIENT_INTERVAL));
        let now = start + IMPATIENT_INTERVAL;
        let job = table.take_due(now).unwrap();
        table.finished(&job, CheckStatus::Passing, now, 0.0);
        assert_eq!(table.next_due(), Some(now + SECOND * 10));
    }

    #[test]
    fn a_run_asked_for_during_a_run_follows_it() {
        let (mut table, start) = (Timetable::default(), Instant::now());
        table.set(&id("a"), Some(tcp(10, false)), First::AtOnce, start, 0.0);
        let job = table.take_due(start).unwrap();
        table.run_now(&id("a"), start);
        assert!(table.take_due(start).is_none());
        table.finished(&job, CheckStatus::Passing, start, 0.0);
        assert_eq!(table.next_due(), Some(start));
    }
}
