//! What an agent does when another root signs: its leaves are issued anew, spread over a while, so that the root before it
//! can go in time.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::Agent;
use crate::proxies::MeshView;

/// Time over which the leaves of a mesh are issued anew unless the rotation names another: 178,000 of them are then 600 a
/// second, of some 13,000 that a server signs on one core.
pub(crate) const RENEWAL_SPREAD: Duration = Duration::from_secs(300);

/// How often the root that signs is looked at. Nothing waits for it: the root before stays trusted for days.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Has the leaves of an agent issued anew whenever another root signs. Runs until dropped.
pub async fn follow_roots(agent: Arc<Agent>, view: Arc<dyn MeshView>) {
    let mut signed_by = None;
    loop {
        if let Some(root) = view.mesh().signing_root() {
            match &signed_by {
                Some(known) if *known == root.id => {}
                None => signed_by = Some(root.id.clone()),
                Some(_) => {
                    let within = spread(root.renew_within_s);
                    tracing::info!(root = root.id, ?within, "another root signs: leaves are issued anew");
                    agent.leaves().rotate_within(within);
                    signed_by = Some(root.id.clone());
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The time that a root names, or else the usual one.
pub(crate) fn spread(named_s: u32) -> Duration {
    match named_s {
        0 => RENEWAL_SPREAD,
        named => Duration::from_secs(u64::from(named)),
    }
}
