//! The certificates of services for which a gateway of this node stands: each is asked for when the plan names the service,
//! and let go with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use starling_model::ServiceName;
use starling_plan::Plan;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::leaves::{Leaf, Leaves};

/// How long what is in force already waits for certificates of what is new. A service whose certificate has not come by then is
/// left out, and asked for again.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// After certificates that could not be had.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Certificates asked for at once.
const ASKED_MAX: usize = 64;

/// Certificates by service.
pub(super) type ByService = BTreeMap<ServiceName, Arc<Leaf>>;

/// Those that one gateway has.
#[derive(Default)]
pub(super) struct Certificates {
    held: BTreeMap<ServiceName, Held>,
    /// Told when one was renewed.
    renewed: Arc<Notify>,
    /// Services whose certificate could not be had, each with the reason.
    missing: BTreeMap<ServiceName, String>,
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
    /// Has the certificates of everything that the plan stands for, and of nothing else.
    pub(super) async fn follow(&mut self, leaves: &Leaves, plan: &Plan) {
        let wanted: BTreeSet<&ServiceName> = plan.exits.iter().map(|exit| &exit.service).collect();
        self.held.retain(|service, _| wanted.contains(service));
        let fresh: Vec<_> = wanted.into_iter().filter(|service| !self.held.contains_key(*service)).cloned().collect();
        let asked = stream::iter(fresh).map(async |service| {
            let leaf = timeout(WAIT_MAX, leaves.leaf(&service)).await;
            let leaf = leaf.map_err(|_| "no answer in time".to_owned());
            (service, leaf.and_then(|leaf| leaf.map_err(|error| error.to_string())))
        });
        let answers: Vec<_> = asked.buffer_unordered(ASKED_MAX).collect().await;
        let before = std::mem::take(&mut self.missing);
        for (service, leaf) in answers {
            match leaf {
                Ok(leaf) => {
                    let task = tokio::spawn(tell(leaf.clone(), Arc::clone(&self.renewed)));
                    self.held.insert(service, Held { leaf, task });
                }
                Err(reason) => {
                    if before.get(&service) != Some(&reason) {
                        tracing::warn!(%service, reason, "a gateway has no certificate of a service that it stands for");
                    }
                    self.missing.insert(service, reason);
                }
            }
        }
    }

    /// They, as they are now.
    pub(super) fn current(&self) -> ByService {
        self.held.iter().map(|(service, held)| (service.clone(), Arc::clone(&held.leaf.borrow()))).collect()
    }

    /// Waits until one was renewed, or what could not be had is to be asked for again.
    pub(super) async fn changed(&self) {
        tokio::select! {
            () = self.renewed.notified() => {}
            () = sleep(AGAIN_AFTER), if !self.missing.is_empty() => {}
        }
    }
}

async fn tell(mut leaf: watch::Receiver<Arc<Leaf>>, renewed: Arc<Notify>) {
    while leaf.changed().await.is_ok() {
        renewed.notify_one();
    }
}
