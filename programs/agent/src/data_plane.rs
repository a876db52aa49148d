//! The native data plane of this node: every sidecar that has no proxy of its own is served in the agent's process.
//!
//! One task a sidecar: it takes each newer state of the sidecar's feed, puts it in force in the engine, and reports that.
//! Whoever attaches from outside for a sidecar, an Envoy or a proxy process, takes it over until the agent ends, or the sidecar
//! is deregistered and nobody is attached for it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use starling_model::{InstanceId, Revision};
use starling_proxy::{Engine, LeafPem, Serving};
use starling_rpc::AttachError;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::agent::Agent;
use crate::proxies::{NativeFeed, Proxies};

/// After a certificate that could not be had, or a listener that somebody else holds.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// After a feed that has ended, or never began: another stream came, or the sidecar has another identity now. Doubled after
/// each that never began.
const AGAIN_FIRST: Duration = Duration::from_millis(10);

/// Serves the sidecars of this node; returns when the agent does not change any more.
pub async fn run(agent: Arc<Agent>, proxies: Proxies, engine: Arc<Engine>) {
    let mut changes = agent.service_changes();
    let mut outside = proxies.outside().subscribe();
    let mut served: BTreeMap<InstanceId, Sidecar> = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        proxies.outside().forget_gone(|id| agent.has_service(id));
        let taken: BTreeSet<_> = outside.borrow_and_update().keys().cloned().collect();
        let sidecars = agent.services().into_iter().filter(|local| local.instance.sidecar().is_some());
        let wanted: BTreeSet<_> =
            sidecars.map(|local| local.instance.key.id).filter(|id| !taken.contains(id)).collect();
        let gone: Vec<_> = served.keys().filter(|id| !wanted.contains(*id)).cloned().collect();
        for id in gone {
            if let Some(mut sidecar) = served.remove(&id) {
                sidecar.0.abort();
                // Or it could still give an order after the one below. That it was aborted is what is waited for.
                let _ = (&mut sidecar.0).await;
            }
            engine.remove(&id).await;
        }
        for id in wanted {
            served.entry(id.clone()).or_insert_with(|| Sidecar::start(id, &agent, &proxies, &engine));
        }
        let more = tokio::select! {
            changed = changes.changed() => changed,
            changed = outside.changed() => changed,
        };
        if more.is_err() {
            return;
        }
    }
}

/// The task that serves one sidecar; it ends with this.
struct Sidecar(JoinHandle<()>);

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sidecar {
    fn start(id: InstanceId, agent: &Arc<Agent>, proxies: &Proxies, engine: &Arc<Engine>) -> Self {
        let (agent, proxies, engine) = (Arc::clone(agent), proxies.clone(), Arc::clone(engine));
        Self(tokio::spawn(async move {
            let mut pause = AGAIN_FIRST;
            loop {
                match proxies.attach_native(&id).await {
                    Ok(feed) => {
                        follow(&id, &agent, feed, &engine).await;
                        pause = AGAIN_FIRST;
                    }
                    // Deregistered meanwhile.
                    Err(AttachError::Unknown { .. } | AttachError::Refused { .. } | AttachError::Occupied { .. }) => {}
                    Err(error @ AttachError::Unavailable { .. }) => {
                        tracing::warn!(sidecar = %id, %error, "a sidecar cannot be served yet; trying again");
                        pause = AGAIN_AFTER;
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AFTER);
            }
        }))
    }
}

/// Puts each state of a feed in force, until there is none to come.
async fn follow(id: &InstanceId, agent: &Agent, mut feed: NativeFeed, engine: &Engine) {
    let mut serving = Serving::default();
    let mut checked = false;
    // Up to where everything was put in force, and what was last told of what was not.
    let (mut since, mut told) = (Revision(0), None);
    loop {
        let form = Arc::clone(&feed.states.borrow_and_update());
        let leaf = LeafPem {
            certificate_chain: &form.leaf.certificate_chain_pem,
            private_key: form.leaf.private_key_pem.expose(),
        };
        let again = match serving.put_in_force(id, form.plan.clone(), leaf, engine).await {
            Ok(()) => {
                feed.applied(form.plan.revision);
                (since, told) = (form.plan.revision, None);
                if !std::mem::replace(&mut checked, true) {
                    // Its listeners are up now: the check of them need not wait for its interval.
                    agent.check_now(id);
                }
                false
            }
            Err(error) => {
                let said = Some((form.plan.revision, format!("{error:#}")));
                if told != said {
                    let text = format!("{error:#}");
                    tracing::warn!(sidecar = %id, error = text, "a sidecar is not served as planned");
                    feed.rejected(form.plan.revision, since, vec![id.to_string()], text);
                    told = said;
                }
                true
            }
        };
        tokio::select! {
            changed = feed.states.changed() => if changed.is_err() {
                return;
            },
            () = sleep(AGAIN_AFTER), if again => {}
        }
    }
}
