//! The certificates of services for which a gateway of this node stands: each is asked for when the plan names the service,
//! and let go with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use starling_model::ServiceName;
use starling_plan::Plan;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::agent::Agent;
use crate::leaves::Leaf;

/// How long what is in force already waits for certificates of what is new. A service whose certificate has not come by then is
/// left out until it has: whatever else changes, an intention that denies above all, waits for none.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Time for one certificate, and until it is asked for again if it could not be had.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Certificates asked for at once.
const ASKED_MAX: usize = 64;

/// Certificates by service.
pub(super) type ByService = BTreeMap<ServiceName, Arc<Leaf>>;

/// Those that one gateway has.
pub(super) struct Certificates {
    held: BTreeMap<ServiceName, Held>,
    /// Told when one was renewed.
    renewed: Arc<Notify>,
    /// Services whose certificate is being asked for.
    asked: BTreeSet<ServiceName>,
    answers: JoinSet<(ServiceName, Answer)>,
    places: Arc<Semaphore>,
    /// Services whose certificate could not be had, each with the reason.
    missing: BTreeMap<ServiceName, String>,
    ask_again: Instant,
}

type Answer = Result<watch::Receiver<Arc<Leaf>>, String>;

impl Default for Certificates {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            renewed: Arc::default(),
            asked: BTreeSet::new(),
            answers: JoinSet::new(),
            places: Arc::new(Semaphore::new(ASKED_MAX)),
            missing: BTreeMap::new(),
            ask_again: Instant::now(),
        }
    }
}

struct Held {
    leaf: watch::Receiver<Arc<Leaf>>,
    task: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Certificates {
    /// Has the certificates of everything that the plan stands for, and of nothing else; those that take long come later.
    pub(super) async fn follow(&mut self, agent: &Arc<Agent>, plan: &Plan) {
        let wanted: BTreeSet<&ServiceName> = plan.exits.iter().map(|exit| &exit.service).collect();
        self.held.retain(|service, _| wanted.contains(service));
        self.missing.retain(|service, _| wanted.contains(service));
        let is_time = self.ask_again <= Instant::now();
        let mut news = BTreeSet::new();
        for service in wanted {
            let is_missing = self.missing.contains_key(service);
            if self.held.contains_key(service) || self.asked.contains(service) || (is_missing && !is_time) {
                continue;
            }
            if !is_missing {
                news.insert(service.clone());
            }
            self.ask(agent, service);
        }
        let by = Instant::now() + WAIT_MAX;
        while news.iter().any(|service| self.asked.contains(service)) {
            match timeout_at(by, self.answers.join_next()).await {
                Ok(Some(answer)) => self.take(answer),
                Ok(None) | Err(_) => break,
            }
        }
        self.take_ready();
    }

    fn ask(&mut self, agent: &Arc<Agent>, service: &ServiceName) {
        self.asked.insert(service.clone());
        let (agent, places, service) = (Arc::clone(agent), Arc::clone(&self.places), service.clone());
        self.answers.spawn(async move {
            let asked = async {
                let _place = places.acquire().await.map_err(|error| error.to_string())?;
                let leaf = timeout(ANSWER_MAX, agent.leaves().leaf(&service)).await;
                leaf.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())
            };
            let answer = asked.await;
            (service, answer)
        });
    }

    fn take(&mut self, answer: Result<(ServiceName, Answer), JoinError>) {
        // A task that panicked has said so; what it asked for is asked for again with the next plan.
        let Ok((service, leaf)) = answer else { return self.asked.clear() };
        self.asked.remove(&service);
        match leaf {
            Ok(leaf) => {
                let task = tokio::spawn(tell(leaf.clone(), Arc::clone(&self.renewed)));
                self.missing.remove(&service);
                self.held.insert(service, Held { leaf, task });
            }
            Err(reason) => {
                if self.missing.get(&service) != Some(&reason) {
                    tracing::warn!(%service, reason, "a gateway has no certificate of a service that it stands for");
                }
                self.missing.insert(service, reason);
                self.ask_again = Instant::now() + AGAIN_AFTER;
            }
        }
    }

    fn take_ready(&mut self) {
        while let Some(answer) = self.answers.try_join_next() {
            self.take(answer);
        }
    }

    /// They, as they are now.
    pub(super) fn current(&self) -> ByService {
        self.held.iter().map(|(service, held)| (service.clone(), Arc::clone(&held.leaf.borrow()))).collect()
    }

    /// Waits until one was renewed or has come, or what could not be had is to be asked for again.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.renewed.notified() => {}
            Some(answer) = self.answers.join_next() => {
                self.take(answer);
                self.take_ready();
            }
            () = sleep_until(self.ask_again), if self.missing.keys().any(|service| !self.asked.contains(service)) => {}
        }
    }
}

async fn tell(mut leaf: watch::Receiver<Arc<Leaf>>, renewed: Arc<Notify>) {
    while leaf.changed().await.is_ok() {
        renewed.notify_one();
    }
}
