//! Tasks that take nobody with them: one that panics ends its own connection or stream, and is told of.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::task::AbortHandle;

/// Starts a task on this worker; the result ends it.
pub(crate) fn spawn(what: &'static str, task: impl Future<Output = ()> + 'static) -> AbortHandle {
    let spawned = tokio::task::spawn_local(async move {
        // What it held is let go of by its drops; cells borrowed are given back as the stack unwinds.
        if AssertUnwindSafe(task).catch_unwind().await.is_err() {
            tracing::error!("{what} has panicked and was closed");
        }
    });
    spawned.abort_handle()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::sync::oneshot;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_task_that_panics_is_alone_in_it() {
        let tasks = LocalSet::new();
        let outcome = tasks.run_until(async {
            let held = Rc::new(());
            let (done, other) = oneshot::channel();
            spawn("the other", async move {
                for _ in 0..10 {
                    yield_now().await;
                }
                let _ = done.send("finished");
            });
            let own = Rc::clone(&held);
            spawn("a bad one", async move {
                yield_now().await;
                let _own = own;
                panic!("for the test");
            });
            (other.await, Rc::strong_count(&held))
        });
        assert_eq!(outcome.await, (Ok("finished"), 1), "the other goes on, and what was held is free");
    }
}
