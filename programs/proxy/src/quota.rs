//! How much may be under way towards one service: connections, calls, and calls that wait for a connection; counted by all
//! workers together. A service without limits counts nothing here.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use starling_plan::plan::Limits;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// What is under way towards one service that has limits.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    connections: AtomicU32,
    calls: AtomicU32,
    pending: AtomicU32,
    /// A connection can be had, perhaps.
    freed: Notify,
}

/// The limits of a service, and what is under way.
pub(crate) struct Quota {
    limits: Limits,
    usage: Arc<Usage>,
}

/// Counted until it is dropped.
pub(crate) struct Counted {
    usage: Arc<Usage>,
    count: fn(&Usage) -> &AtomicU32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.count)(&self.usage).fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that counts until this is dropped.
pub(crate) struct Opened {
    usage: Arc<Usage>,
    to_host: Rc<Cell<u32>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.usage.connections.fetch_sub(1, Ordering::Relaxed);
        self.to_host.set(self.to_host.get() - 1);
        self.usage.freed.notify_waiters();
    }
}

impl Quota {
    pub(crate) fn new(limits: Limits, usage: Arc<Usage>) -> Self {
        Self { limits, usage }
    }

    /// A call begins; `None` if there are as many as there may be.
    pub(crate) fn call(&self) -> Option<Counted> {
        self.count(|usage| &usage.calls, self.limits.concurrent_requests)
    }

    /// A call waits for a connection; `None` if as many wait as may.
    pub(crate) fn wait(&self) -> Option<Counted> {
        self.count(|usage| &usage.pending, self.limits.pending_requests)
    }

    /// A connection is opened to an endpoint that has so many; `None` if there are as many as there may be. An endpoint without
    /// any may always have one, or whoever chose it would wait for others' for ever; as with Envoy.
    pub(crate) fn open(&self, to_host: &Rc<Cell<u32>>) -> Option<Opened> {
        let max = self.limits.connections.filter(|_| to_host.get() > 0);
        add(&self.usage.connections, max)?;
        to_host.set(to_host.get() + 1);
        Some(Opened { usage: Arc::clone(&self.usage), to_host: Rc::clone(to_host) })
    }

    /// Ends when a connection can be had, perhaps.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.usage.freed.notified()
    }

    /// A connection can be had.
    pub(crate) fn free(&self) {
        self.usage.freed.notify_waiters();
    }

    fn count(&self, count: fn(&Usage) -> &AtomicU32, max: Option<u32>) -> Option<Counted> {
        add(count(&self.usage), max)?;
        Some(Counted { usage: Arc::clone(&self.usage), count })
    }
}

fn add(count: &AtomicU32, max: Option<u32>) -> Option<()> {
    let max = max.unwrap_or(u32::MAX);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < max).then_some(now + 1)).ok().map(|_| ())
}
