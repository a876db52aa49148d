//! Traffic without a pause, every failure of which is remembered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::http::Connection;
use crate::wait;

/// Pause between two requests of one connection: enough to leave the machine to what is tested.
const PAUSE: Duration = Duration::from_millis(5);

/// Requests after which the fresh kind of worker opens another connection.
const REQUESTS_PER_FRESH_CONNECTION: u64 = 10;

/// Requests to one address from several connections, until stopped.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Traffic {
    /// Sends GETs of `target` to `authority`: on one connection that is kept, and on one that is opened again and again.
    #[must_use]
    pub fn start(authority: &str, target: &str) -> Self {
        Self::answered_with(200, authority, target)
    }

    /// The same where each answer has to have that status; any other is a failure.
    #[must_use]
    pub fn answered_with(status: u16, authority: &str, target: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let workers = [u64::MAX, REQUESTS_PER_FRESH_CONNECTION].map(|lifetime| {
            let (authority, target, shared) = (authority.to_owned(), target.to_owned(), Arc::clone(&shared));
            tokio::spawn(async move { shared.work(status, &authority, &target, lifetime).await })
        });
        Self { shared, workers: workers.into() }
    }

    /// Waits until `count` more requests are answered, or have failed.
    pub async fn requests(&self, count: u64) {
        let until = self.shared.requests.load(Ordering::Relaxed) + count;
        wait::eventually(&format!("{count} more requests"), async || {
            let now = self.shared.requests.load(Ordering::Relaxed);
            anyhow::ensure!(now >= until, "{now} of {until}");
            Ok(())
        })
        .await;
    }

    /// Ends the traffic.
    ///
    /// # Panics
    /// If a request has failed.
    pub async fn stop_without_failure(mut self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.await.expect("a worker that does not panic");
        }
        let failures = self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = self.shared.requests.load(Ordering::Relaxed);
        assert!(failures.is_empty(), "{} of {requests} requests failed: {:?}", failures.len(), failures.first());
        requests
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    async fn work(&self, status: u16, authority: &str, target: &str, lifetime: u64) {
        let mut connection = None;
        let mut sent = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if sent % lifetime == 0 {
                connection = None;
            }
            sent += 1;
            if let Err(error) = Self::one(&mut connection, status, authority, target).await {
                connection = None;
                self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn one(
        connection: &mut Option<Connection>,
        status: u16,
        authority: &str,
        target: &str,
    ) -> anyhow::Result<()> {
        if let Some(kept) = connection
            && kept.is_over().await
        {
            // As every client of HTTP/1.1 must.
            *connection = None;
        }
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(Connection::open(authority).await?),
        };
        let answer = connection.get(target).await?;
        anyhow::ensure!(answer.status == status, "{}: {}", answer.status, answer.text());
        Ok(())
    }
}
