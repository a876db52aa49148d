//! Leases: what is written under one goes from the store by itself, some time after its holder is gone.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;

/// Names a lease. One can be had from [`Store::lease`](crate::Store::lease) only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(pub(crate) i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "LeaseId({self})")
    }
}

/// A lease that is kept up by a task of its own until this is dropped; what is written under it stays for at most its time to
/// live after that, and goes as one transaction.
pub struct Lease {
    id: LeaseId,
    ended: watch::Receiver<bool>,
    keeper: AbortHandle,
    /// What gives it up; in a lock so that it may be held anywhere.
    revoke: Mutex<BoxFuture<'static, ()>>,
}

impl Lease {
    pub(crate) fn new(
        id: LeaseId,
        ended: watch::Receiver<bool>,
        keeper: AbortHandle,
        revoke: BoxFuture<'static, ()>,
    ) -> Self {
        Self { id, ended, keeper, revoke: Mutex::new(revoke) }
    }

    /// Its name, to be written under.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Returns once the store has said that the lease has ended; what was written under it is gone then. One of which the store
    /// cannot be asked may have ended, too: what hangs on it has to be a condition of what is written.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // A keeper that is gone keeps nothing.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Gives it up, and with it what was written under it, now; `within` that time, or else by itself.
    pub async fn revoke(self, within: Duration) {
        self.keeper.abort();
        let mut revoke = self.revoke.lock().await;
        // It ends by itself otherwise.
        let _ = tokio::time::timeout(within, revoke.as_mut()).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}
