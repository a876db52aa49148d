//! Leases of etcd's: taken out, and kept up by one question each third of their time to live.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::Connections;
use super::trouble::EtcdTrouble;
use super::wire::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseRevokeResponse,
};
use crate::lease::{Lease, LeaseId};

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

/// Pause after a question that was not answered.
const PAUSE: Duration = Duration::from_millis(200);

/// Takes out a lease of `ttl`, whole seconds.
pub(super) async fn take_out(connections: &Arc<Connections>, ttl: Duration) -> Result<Lease, EtcdTrouble> {
    let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
    let begun = Instant::now();
    // One that was granted and not heard of ends by itself: nothing is under it.
    let granted: LeaseGrantResponse = connections.read(GRANT, LeaseGrantRequest { ttl: seconds, id: 0 }).await?;
    if granted.id == 0 {
        return Err(EtcdTrouble::Malformed(format!("a lease without a name: {}", granted.error)));
    }
    let id = LeaseId(granted.id);
    let ended = watch::Sender::new(false);
    let seen = ended.subscribe();
    let ttl = Duration::from_secs(granted.ttl.max(1).unsigned_abs());
    let keeper = tokio::spawn(keep(Arc::clone(connections), id, ttl, begun + ttl, ended));
    let connections = Arc::clone(connections);
    let revoke = async move {
        let revoked = connections.read::<_, LeaseRevokeResponse>(REVOKE, LeaseRevokeRequest { id: id.0 }).await;
        if let Err(trouble) = revoked {
            tracing::debug!(lease = %id, %trouble, "a lease is left to end by itself");
        }
    };
    Ok(Lease::new(id, seen, keeper.abort_handle(), Box::pin(revoke)))
}

/// Keeps a lease that is good until `good_until`, until it has ended or may have.
async fn keep(
    connections: Arc<Connections>,
    id: LeaseId,
    ttl: Duration,
    mut good_until: Instant,
    ended: watch::Sender<bool>,
) {
    loop {
        tokio::time::sleep(ttl / 3).await;
        loop {
            let asked = Instant::now();
            match connections.keep_alive(LeaseKeepAliveRequest { id: id.0 }, ttl / 3).await {
                Ok(answer) if answer.ttl > 0 => {
                    good_until = asked + Duration::from_secs(answer.ttl.unsigned_abs());
                    break;
                }
                Ok(_) => {
                    tracing::warn!(lease = %id, "etcd has let the lease end");
                    ended.send_replace(true);
                    return;
                }
                // etcd stops the clock of leases while it has no leader, so one that is late may still be good; it alone
                // says so.
                Err(trouble) if Instant::now() >= good_until => {
                    tracing::debug!(lease = %id, %trouble, "the lease may have ended");
                }
                Err(trouble) => tracing::debug!(lease = %id, %trouble, "the lease could not be kept yet"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
