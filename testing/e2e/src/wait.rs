//! Waiting for a condition with a deadline.

use std::time::{Duration, Instant};

/// How long a condition may take to come true. Far more than it should; a loaded machine is not a failed test.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Time between two looks: short against what is waited for, long against what a look costs.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Repeats `look` until it succeeds, and returns what it found.
///
/// # Panics
/// If it has not succeeded by the [`DEADLINE`]; the message is `what` and the last error.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> anyhow::Result<T>) -> T {
    eventually_within(DEADLINE, what, look).await
}

/// [`eventually`] with a deadline of its own.
///
/// # Panics
/// If `look` has not succeeded by then.
pub async fn eventually_within<T>(
    deadline: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<T>,
) -> T {
    let start = Instant::now();
    loop {
        let error = match look().await {
            Ok(found) => return found,
            Err(error) => error,
        };
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}; last: {error:#}");
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Waits until somebody listens on each of these ports of loopback.
///
/// # Panics
/// If nobody does in time.
pub async fn listens(ports: &[u16]) {
    eventually(&format!("somebody listens on {ports:?}"), async || {
        for port in ports {
            tokio::net::TcpStream::connect(("127.0.0.1", *port)).await?;
        }
        Ok(())
    })
    .await;
}
