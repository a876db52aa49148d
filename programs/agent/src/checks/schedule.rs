//! The loop that runs the timetable: it starts what is due and hands on what comes out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use starling_model::{CheckId, CheckKind};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use super::timetable::{First, Job, Plan, Timetable};
use super::{Prober, alias};
use crate::link::ServerLink;
use crate::registrations::Health;

/// Takes the results of checks.
pub(crate) trait Sink: Send + Sync + 'static {
    /// A run has ended so.
    fn observed(&self, check: &CheckId, health: Health);
    /// An alias of another node, which knows no thresholds, reads so.
    fn reported(&self, check: &CheckId, health: Health);
    /// A TTL check's time was up. It may have been heard of since: see [`Schedule::is_silent`].
    fn lapsed(&self, check: &CheckId);
}

/// The handle through which checks are started and stopped.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    timetable: Timetable,
    /// Runs under way, by generation.
    running: BTreeMap<u64, AbortHandle>,
}

impl Schedule {
    /// Sets how a check runs; `None` ends it, a run under way included.
    pub(crate) fn set(&self, check: &CheckId, plan: Option<Plan>, first: First) {
        let mut state = self.lock();
        let ended = state.timetable.set(check, plan, first, Instant::now(), fastrand::f64());
        if let Some(run) = ended.and_then(|generation| state.running.remove(&generation)) {
            run.abort();
        }
        self.wake.notify_one();
    }

    /// A TTL check was heard of.
    pub(crate) fn heard(&self, check: &CheckId) {
        self.lock().timetable.heard(check, Instant::now());
        self.wake.notify_one();
    }

    /// Whether a TTL check's time is up, and it was not heard of since.
    pub(crate) fn is_silent(&self, check: &CheckId) -> bool {
        self.lock().timetable.is_silent(check)
    }

    /// Lets a check run now.
    pub(crate) fn run_now(&self, check: &CheckId) {
        self.lock().timetable.run_now(check, Instant::now());
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs checks until dropped.
    pub(crate) async fn run(&self, prober: Arc<Prober>, link: Arc<dyn ServerLink>, sink: Arc<dyn Sink>) {
        // A run that learned nothing has no health to tell.
        let mut runs: JoinSet<(Job, Option<Health>)> = JoinSet::new();
        loop {
            let next = self.start_due(&mut runs, &prober, &link, &sink);
            let sleep = async {
                match next {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep => {}
                Some(ended) = runs.join_next() => {
                    // An aborted run has no slot any more and needs no result.
                    if let Ok((job, health)) = ended {
                        self.finish(&job, health, sink.as_ref());
                    }
                }
            }
        }
    }

    fn start_due(
        &self,
        runs: &mut JoinSet<(Job, Option<Health>)>,
        prober: &Arc<Prober>,
        link: &Arc<dyn ServerLink>,
        sink: &Arc<dyn Sink>,
    ) -> Option<Instant> {
        let mut lapsed = Vec::new();
        let mut state = self.lock();
        while let Some(job) = state.timetable.take_due(Instant::now()) {
            let generation = job.generation;
            let handle = match job.plan.kind.clone() {
                CheckKind::Ttl { .. } => {
                    lapsed.push(job.check);
                    continue;
                }
                CheckKind::Alias { node: Some(node), service } => {
                    let (link, sink) = (Arc::clone(link), Arc::clone(sink));
                    runs.spawn(async move {
                        let report = |health| sink.reported(&job.check, health);
                        alias::follow(link.as_ref(), &node, service.as_ref(), report).await;
                        (job, None)
                    })
                }
                CheckKind::Alias { node: None, .. } | CheckKind::Maintenance => continue,
                kind @ (CheckKind::Http { .. }
                | CheckKind::Tcp { .. }
                | CheckKind::Udp { .. }
                | CheckKind::H2Ping { .. }
                | CheckKind::Grpc { .. }
                | CheckKind::Docker { .. }
                | CheckKind::Script { .. }) => {
                    let prober = Arc::clone(prober);
                    runs.spawn(async move {
                        let health = prober.run(&kind, job.plan.source, job.plan.timeout).await;
                        (job, health)
                    })
                }
            };
            state.running.insert(generation, handle);
        }
        let next = state.timetable.next_due();
        drop(state);
        for check in lapsed {
            sink.lapsed(&check);
        }
        next
    }

    fn finish(&self, job: &Job, health: Option<Health>, sink: &dyn Sink) {
        let mut state = self.lock();
        state.running.remove(&job.generation);
        let status = health.as_ref().map(|health| health.status);
        let counts = state.timetable.finished(job, status, Instant::now(), fastrand::f64());
        drop(state);
        if let Some(health) = health.filter(|_| counts) {
            sink.observed(&job.check, health);
        }
    }
}
