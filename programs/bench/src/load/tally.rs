//! What came of the requests: counted by each thread for itself, and merged at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::failure::Failure;
use crate::histogram::Distribution;

/// What one thread, or all of them together, have seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Requests that were answered, whatever the answer.
    pub(crate) answered: u64,
    /// Answers that say that something is wrong, and requests without one.
    pub(crate) errors: u64,
    /// Answers by status.
    pub(crate) status: BTreeMap<u16, u64>,
    /// Errors by what was wrong.
    pub(crate) failures: BTreeMap<String, u64>,
    /// From when a request was due until its answer was read; of those that succeeded.
    pub(crate) latency: Distribution,
    /// From when a request was sent until its answer was read, as other generators count it; of those that succeeded.
    pub(crate) from_send: Distribution,
    /// How much later than due the generator itself was.
    pub(crate) slip: Distribution,
    /// How many of those that succeeded were answered after the planned end: a server that is behind has many of them.
    pub(crate) late: u64,
    /// Each request, if that was asked for.
    pub(crate) each: Option<Vec<Each>>,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Each {
    /// When it was due.
    pub(crate) due: Instant,
    /// How long it took from then; `None` if it failed.
    pub(crate) latency: Option<Duration>,
}

impl Tally {
    /// Counts what came of a request that was due at `due` and sent at `sent`, of a run that ends at `end` if that is known.
    pub(super) fn record(
        &mut self,
        (due, sent): (Instant, Instant),
        end: Option<Instant>,
        outcome: Result<u16, Failure>,
    ) {
        match outcome {
            Ok(status) => {
                self.answered += 1;
                *self.status.entry(status).or_default() += 1;
                let now = Instant::now();
                let latency = now - due;
                self.late += u64::from(end.is_some_and(|end| now > end));
                self.latency.record(latency);
                self.from_send.record(now - sent);
                self.keep(due, Some(latency));
            }
            Err(failure) => {
                if let Some(status) = failure.status() {
                    self.answered += 1;
                    *self.status.entry(status).or_default() += 1;
                }
                self.keep(due, None);
                self.fail(&failure, 1);
            }
        }
    }

    /// Keeps a request, if each is kept.
    pub(super) fn keep(&mut self, due: Instant, latency: Option<Duration>) {
        if let Some(each) = &mut self.each {
            each.push(Each { due, latency });
        }
    }

    /// Counts so many requests that failed for the same reason.
    pub(super) fn fail(&mut self, failure: &Failure, count: u64) {
        if count > 0 {
            self.errors += count;
            *self.failures.entry(failure.to_string()).or_default() += count;
        }
    }

    /// Requests, with those that were not answered.
    pub(crate) fn requests(&self) -> u64 {
        self.latency.count() + self.errors
    }

    /// Adds what another thread has seen.
    pub(crate) fn merge(&mut self, other: Self) {
        self.answered += other.answered;
        self.errors += other.errors;
        for (status, count) in other.status {
            *self.status.entry(status).or_default() += count;
        }
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        self.latency.merge(&other.latency);
        self.from_send.merge(&other.from_send);
        self.slip.merge(&other.slip);
        self.late += other.late;
        if let Some(each) = other.each {
            self.each.get_or_insert_default().extend(each);
        }
    }
}
