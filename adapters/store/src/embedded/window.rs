//! The recent transactions, kept in memory for watchers.
//!
//! Watchers pull. Publishing appends once and rings one bell, whatever the number of watchers and
//! however slow they are: a watcher holds a position here and no queue of its own, and one that
//! falls behind the window is told so.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::store::{Failure, Watch, WatchError};
use crate::transaction::{Committed, Revision};

/// Transactions a watcher takes out of the window per visit. Enough to amortise the lock, few
/// enough that a watcher catching up does not hold it for long.
const TAKE_AT_ONCE: usize = 256;

/// Bytes counted for a transaction in the window beside its keys and values: its own struct, the
/// reference counts and one write.
const TRANSACTION_OVERHEAD_BYTES: usize = 160;

/// Most transactions and most bytes that a window keeps, and how long, whichever is reached first. The age is looked at when
/// something is published.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowLimits {
    pub(super) transactions: usize,
    pub(super) bytes: usize,
    pub(super) age: Duration,
}

#[derive(Debug)]
pub(super) struct Window {
    limits: WindowLimits,
    recent: Mutex<Recent>,
    /// Highest revision handed to the disk: a snapshot may show it a moment before it is published.
    assigned: AtomicU64,
    bell: watch::Sender<()>,
}

#[derive(Debug)]
struct Recent {
    /// Contiguous, the last one being `published`.
    kept: VecDeque<Kept>,
    bytes: usize,
    published: Revision,
    end: Option<End>,
}

#[derive(Debug)]
struct Kept {
    committed: Committed,
    since: Instant,
}

/// Why nothing more will be published.
#[derive(Clone, Debug)]
pub(super) enum End {
    Closed,
    Failed(Failure),
}

impl Recent {
    /// The oldest revision from which a watch can begin.
    fn oldest(&self) -> Revision {
        Revision(self.published.0 - self.kept.len() as u64)
    }
}

impl Window {
    pub(super) fn new(limits: WindowLimits, published: Revision) -> Window {
        let recent = Recent { kept: VecDeque::new(), bytes: 0, published, end: None };
        Window {
            limits,
            recent: Mutex::new(recent),
            assigned: AtomicU64::new(published.0),
            bell: watch::Sender::new(()),
        }
    }

    /// Notes the last revision of a group that is about to be written.
    pub(super) fn assign(&self, revision: Revision) {
        self.assigned.store(revision.0, Ordering::Release);
    }

    /// The last revision that is durable and visible to watchers.
    pub(super) fn published(&self) -> Revision {
        self.lock().published
    }

    /// Makes durable transactions visible.
    pub(super) fn publish(&self, group: Vec<Committed>) {
        let mut recent = self.lock();
        let now = Instant::now();
        for committed in group {
            debug_assert_eq!(committed.revision, recent.published.next());
            recent.published = committed.revision;
            recent.bytes += weight(&committed);
            recent.kept.push_back(Kept { committed, since: now });
        }
        while recent.kept.len() > 1 && self.is_over(&recent, now) {
            if let Some(dropped) = recent.kept.pop_front() {
                recent.bytes -= weight(&dropped.committed);
            }
        }
        drop(recent);
        self.bell.send_replace(());
    }

    fn is_over(&self, recent: &Recent, now: Instant) -> bool {
        let old = |oldest: &Kept| now.duration_since(oldest.since) > self.limits.age;
        recent.kept.len() > self.limits.transactions
            || recent.bytes > self.limits.bytes
            || recent.kept.front().is_some_and(old)
    }

    /// Ends all watches, once they have taken what is there. The first reason stands.
    pub(super) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.bell.send_replace(());
    }

    /// The failure, if that is what ended the store.
    pub(super) fn failure(&self) -> Option<Failure> {
        match &self.lock().end {
            Some(End::Failed(failure)) => Some(failure.clone()),
            Some(End::Closed) | None => None,
        }
    }

    /// Begins a watch of everything after `from`.
    pub(super) fn watch(self: &Arc<Self>, from: Revision) -> Result<Watch, WatchError> {
        {
            let recent = self.lock();
            let latest = Revision(self.assigned.load(Ordering::Acquire)).max(recent.published);
            if from > latest {
                return Err(WatchError::Ahead { from, latest });
            }
            let oldest = recent.oldest();
            if from < oldest {
                return Err(WatchError::Compacted { from, oldest });
            }
        }
        let cursor =
            Cursor { window: Arc::clone(self), bell: self.bell.subscribe(), seen: from, taken: VecDeque::new() };
        Ok(Watch::new(futures::stream::unfold(Some(cursor), advance)))
    }

    /// Moves transactions after `seen` into `taken`; `false` if there are none yet.
    fn take(&self, seen: Revision, taken: &mut VecDeque<Committed>) -> Result<bool, WatchError> {
        let recent = self.lock();
        let oldest = recent.oldest();
        if seen < oldest {
            return Err(WatchError::Compacted { from: seen, oldest });
        }
        // Not beyond the end: a watch may begin a moment before its revision is published.
        let skip = usize::try_from(seen.0 - oldest.0).unwrap_or(usize::MAX).min(recent.kept.len());
        taken.extend(recent.kept.range(skip..).take(TAKE_AT_ONCE).map(|kept| kept.committed.clone()));
        if taken.is_empty() {
            match &recent.end {
                Some(End::Closed) => return Err(WatchError::Closed),
                Some(End::Failed(failure)) => return Err(WatchError::Failed(failure.clone())),
                None => {}
            }
        }
        Ok(!taken.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        // Every critical section above leaves the state consistent even if it unwinds.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight(committed: &Committed) -> usize {
    committed.size() + TRANSACTION_OVERHEAD_BYTES
}

/// A watcher's place in the window.
struct Cursor {
    window: Arc<Window>,
    bell: watch::Receiver<()>,
    seen: Revision,
    taken: VecDeque<Committed>,
}

/// One step of a watch; `None` in place of the cursor once it has ended.
async fn advance(cursor: Option<Cursor>) -> Option<(Result<Committed, WatchError>, Option<Cursor>)> {
    let mut cursor = cursor?;
    loop {
        if let Some(committed) = cursor.taken.pop_front() {
            cursor.seen = committed.revision;
            return Some((Ok(committed), Some(cursor)));
        }
        // Before looking, so that whatever is published while looking rings again.
        cursor.bell.borrow_and_update();
        match cursor.window.take(cursor.seen, &mut cursor.taken) {
            Ok(true) => {}
            Ok(false) => {
                if cursor.bell.changed().await.is_err() {
                    return Some((Err(WatchError::Closed), None));
                }
            }
            Err(error) => return Some((Err(error), None)),
        }
    }
}
