//! A proxy and its feed, as `programs/agent/src/proxies.rs` has it: sleeps until something changed, plans, subscribes to what
//! the plan was read from, and reports what it has applied.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use anyhow::{Result, ensure};
use starling_agent::remote::mirror::{Mirror, View};
use starling_agent::{MeshView, ProxyNext, ProxyWatch};
use starling_catalog::{MeshRead, Refused, Subject};
use starling_model::{InstanceKey, Revision};

use crate::seen::Seen;

/// Somebody who waits, and does not look again before being woken.
pub(crate) struct Sleep<T> {
    waits: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<T> Sleep<T> {
    pub(crate) fn new(waits: impl Future<Output = T> + 'static) -> Self {
        Self { waits: Box::pin(waits), woken: Arc::new(Woken(AtomicBool::new(true))) }
    }

    /// What was waited for, if it has come. Not to be called again after that.
    pub(crate) fn look(&mut self) -> Option<T> {
        if !self.woken.0.swap(false, Ordering::Relaxed) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.waits.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}

pub(crate) struct Proxy {
    mirror: Arc<Mirror>,
    key: InstanceKey,
    watch: Arc<dyn ProxyWatch>,
    /// What a planner would read.
    reads: BTreeSet<Subject>,
    subscribed: BTreeSet<Subject>,
    stage: Stage,
    /// Sent, and neither applied nor refused.
    planned: Option<Plan>,
    in_force: Option<Plan>,
    refuses: bool,
}

enum Stage {
    Plans,
    AwaitsKnown(Sleep<bool>),
    Waits(Sleep<ProxyNext>),
    Ended,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub revision: Revision,
    pub seen: BTreeMap<Subject, Seen>,
}

impl Proxy {
    pub(crate) fn new(mirror: &Arc<Mirror>, key: &InstanceKey, reads: BTreeSet<Subject>) -> Self {
        let watch: Arc<dyn ProxyWatch> = View(Arc::clone(mirror)).attach(key).into();
        Self {
            mirror: Arc::clone(mirror),
            key: key.clone(),
            watch,
            reads,
            subscribed: BTreeSet::new(),
            stage: Stage::Plans,
            planned: None,
            in_force: None,
            refuses: false,
        }
    }

    /// What its next plan is read from; a registration or a config entry may change that.
    pub(crate) fn read(&mut self, reads: BTreeSet<Subject>) {
        self.reads = reads;
        if matches!(self.stage, Stage::Waits(_)) {
            self.stage = Stage::Plans;
        }
    }

    /// Goes on by one stage; whether there was anything to do.
    pub(crate) fn step(&mut self) -> Result<bool> {
        match &mut self.stage {
            Stage::Ended => return Ok(false),
            Stage::AwaitsKnown(sleep) => match sleep.look() {
                None => return Ok(false),
                Some(true) => self.stage = Stage::Plans,
                Some(false) => self.await_registration(),
            },
            Stage::Waits(sleep) => match sleep.look() {
                None => return Ok(false),
                Some(ProxyNext::Changed) => self.stage = Stage::Plans,
                Some(ProxyNext::Deregistered) => self.await_registration(),
                Some(ProxyNext::Superseded) => self.stage = Stage::Ended,
            },
            Stage::Plans => self.plan()?,
        }
        Ok(true)
    }

    /// Its stream stays open, so that it is there at once when it is registered again. By what it serves until then is
    /// nobody's business.
    fn await_registration(&mut self) {
        self.watch = View(Arc::clone(&self.mirror)).attach(&self.key).into();
        self.subscribed = BTreeSet::new();
        (self.planned, self.in_force, self.refuses) = (None, None, false);
        self.stage = Stage::Plans;
    }

    fn plan(&mut self) -> Result<()> {
        let replica = self.mirror.replica();
        let is_registered = replica.instance(&self.key).is_some();
        let own = BTreeSet::from([Subject::Instance(self.key.clone())]);
        let reads = if is_registered { own.union(&self.reads).cloned().collect() } else { own };
        let watch = Arc::clone(&self.watch);
        if reads != self.subscribed {
            self.watch.resubscribe(replica.through(), reads.clone());
            // What it has of a subject that it leaves is nobody's business, also when it comes back to it.
            for plan in [&mut self.planned, &mut self.in_force].into_iter().flatten() {
                plan.seen.retain(|subject, _| reads.contains(subject));
            }
            self.subscribed = reads;
            self.stage = Stage::AwaitsKnown(Sleep::new(async move { watch.known().await }));
            return Ok(());
        }
        self.stage = Stage::Waits(Sleep::new(async move { watch.next().await }));
        if !is_registered {
            return Ok(());
        }
        for subject in &self.subscribed {
            ensure!(replica.knows(subject), "a plan is made from {subject}, which is unknown");
        }
        let seen = self.subscribed.iter().map(|subject| (subject.clone(), Seen::of(&*replica, subject))).collect();
        self.planned = Some(Plan { revision: replica.through(), seen });
        Ok(())
    }

    /// Takes the newest plan; whether there was one.
    pub(crate) fn apply(&mut self) -> bool {
        let Some(plan) = self.planned.take() else { return false };
        let revision = plan.revision;
        self.in_force = Some(plan);
        self.refuses = false;
        self.watch.applied(revision, false);
        true
    }

    /// Refuses the newest plan; whether there was one.
    pub(crate) fn refuse(&mut self) -> bool {
        let Some(plan) = self.planned.take() else { return false };
        let since = self.in_force.as_ref().map_or(Revision(0), |plan| plan.revision);
        self.refuses = true;
        self.watch.rejected(Refused {
            revision: plan.revision,
            since,
            proxy: None,
            type_url: "cds".to_owned(),
            resources: Vec::new(),
            text: "no".to_owned(),
        });
        self.watch.applied(plan.revision, true);
        true
    }

    /// Whatever made it refuse is mended: it is planned again.
    pub(crate) fn is_mended(&mut self) {
        if std::mem::take(&mut self.refuses) && matches!(self.stage, Stage::Waits(_)) {
            self.stage = Stage::Plans;
        }
    }

    /// What it serves by of what it has been subscribed to since; `None` if that is nothing, or not all that it was told to.
    pub(crate) fn in_force(&self) -> Option<impl Iterator<Item = (&Subject, &Seen)>> {
        let plan = self.in_force.as_ref().filter(|_| !self.refuses)?;
        Some(plan.seen.iter())
    }

    /// What it has in force, unless it refuses something.
    pub(crate) fn plan_in_force(&self) -> Option<Plan> {
        self.in_force.clone().filter(|_| !self.refuses)
    }

    /// It was there before its stream, and has that in force.
    pub(crate) fn runs_on_with(&mut self, plan: Option<Plan>) {
        self.in_force = plan;
    }

    /// Whether its watch tells it of changes: it is not over, and its node's agent has it registered.
    pub(crate) fn is_served(&self) -> bool {
        !matches!(self.stage, Stage::Ended) && self.mirror.replica().instance(&self.key).is_some()
    }

    /// What it is subscribed to.
    pub(crate) fn subjects(&self) -> &BTreeSet<Subject> {
        &self.subscribed
    }
}
