//! Blocking queries: a read that waits until what it reads has changed.
//!
//! The index of an answer is the newest revision among the subjects it was made from, so a write to one service does not
//! wake a reader of another. It is never 0, since a client that sends 0 back does not wait.

use std::sync::Arc;
use std::time::Duration;

use starling_catalog::{Snapshot, Subject};
use starling_model::Revision;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::call::Call;
use crate::error::ApiError;
use crate::limits::{CATCH_UP_MAX, WAIT_JITTER_FRACTION};
use crate::ports::{CatalogPort, CommitFailure};
use crate::router::Api;

/// The catalog to answer from, and the index of the answer.
pub(crate) struct View {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) index: Revision,
}

/// Waits as the request asks, judges it again, and gives the catalog as it is then.
pub(crate) async fn view(api: &Api, call: &mut Call, subjects: &[Subject]) -> Result<View, ApiError> {
    let asked = call.query.index()?;
    let wait = call.query.wait()?;
    let Some(asked) = asked else { return Ok(answer(api.catalog.snapshot(), subjects)) };
    let view = waited(&*api.catalog, call.stopping(), (asked, wait), subjects).await?;
    Box::pin(call.judge_again(api)).await?;
    Ok(view)
}

async fn waited(
    catalog: &dyn CatalogPort,
    stopping: &Stopping,
    (asked, wait): (Revision, Duration),
    subjects: &[Subject],
) -> Result<View, ApiError> {
    let mut snapshot = catalog.snapshot();
    let begun = Instant::now();
    if asked > snapshot.revision() {
        // Another server may be ahead of this one, and what it answered must not be taken back: a server that cannot find
        // that out leaves the answer to others.
        let catching_up = timeout(CATCH_UP_MAX, catalog.catch_up());
        let late = || CommitFailure::NoLeader(format!("No cluster leader: index {asked} is not known here yet"));
        let caught_up = stopping.cuts_short(catching_up).await.unwrap_or(Ok(Ok(())));
        caught_up.unwrap_or_else(|_elapsed| Err(late()))?;
        snapshot = catalog.snapshot();
    }
    // An index from the future is from another history of this store: the client must start over.
    let from_future = asked > snapshot.revision().max(Revision(1));
    if from_future || index_of(&snapshot, subjects) > asked {
        return Ok(answer(snapshot, subjects));
    }
    // The time that catching up took is part of the wait.
    let left = jittered(wait).saturating_sub(begun.elapsed());
    let waited = stopping.cuts_short(catalog.wait(subjects, asked, left)).await;
    let view = answer(waited.unwrap_or_else(|| catalog.snapshot()), subjects);
    // A server that was started anew no longer knows when what is gone has gone, and gives a later index than others do for
    // the same. Everything up to what was asked is in this answer, too.
    Ok(View { index: view.index.max(asked), ..view })
}

/// The end of serving, at which nobody waits any longer. By default it never comes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stopping(Option<watch::Receiver<bool>>);

impl Stopping {
    /// The end that comes when the value turns true.
    pub(crate) fn new(stopping: watch::Receiver<bool>) -> Self {
        Self(Some(stopping))
    }

    /// What `waiting` gives, or `None` if serving ends before.
    pub(crate) async fn cuts_short<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        let Some(mut stopping) = self.0.clone() else { return Some(waiting.await) };
        tokio::select! {
            waited = waiting => Some(waited),
            // A dropped sender is the end, too.
            _ = stopping.wait_for(|stopping| *stopping) => None,
        }
    }
}

fn answer(snapshot: Arc<Snapshot>, subjects: &[Subject]) -> View {
    let index = index_of(&snapshot, subjects);
    View { snapshot, index }
}

fn index_of(snapshot: &Snapshot, subjects: &[Subject]) -> Revision {
    subjects.iter().map(|subject| snapshot.subject_revision(subject)).fold(Revision(1), Revision::max)
}

/// `wait` and up to a sixteenth of it.
pub(crate) fn jittered(wait: Duration) -> Duration {
    wait + (wait / WAIT_JITTER_FRACTION).mul_f64(fastrand::f64())
}
