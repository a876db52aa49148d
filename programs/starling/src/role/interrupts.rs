//! Requests to end: Ctrl-C, a request to terminate, and the terminal that closes.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for an orderly end, in which clients are told and answered; each door takes less.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Requests to end, heard from the time that this is made; none is lost, whoever listens when.
pub(crate) struct Interrupts {
    ends: Vec<Signal>,
    /// Heard, so that it does not end the process, and acted upon by somebody else.
    _hangup: Option<Signal>,
}

impl Interrupts {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
        // Under nohup the closing of the terminal is to be survived.
        if !is_ignored(SignalKind::hangup()) {
            kinds.push(SignalKind::hangup());
        }
        Self::of(kinds, None)
    }

    /// The same where SIGHUP asks for something else than the end.
    pub(crate) fn listen_but_for_hangup() -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup()).context("listening for signals")?;
        Self::of(vec![SignalKind::interrupt(), SignalKind::terminate()], Some(hangup))
    }

    fn of(kinds: Vec<SignalKind>, hangup: Option<Signal>) -> anyhow::Result<Self> {
        let ends: Result<_, _> = kinds.into_iter().map(signal).collect();
        Ok(Self { ends: ends.context("listening for signals")?, _hangup: hangup })
    }

    /// Returns at the next request to end.
    pub(crate) async fn next(&mut self) {
        poll_fn(|cx| {
            let any = self.ends.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Lets something end in order, unless it takes too long or is asked again to end.
    pub(crate) async fn bound(&mut self, stop_within: Duration, ending: impl Future) {
        tokio::select! {
            ended = tokio::time::timeout(stop_within, ending) => if ended.is_err() {
                tracing::warn!("no orderly end within {stop_within:?}; ending at once");
            },
            () = self.next() => tracing::warn!("asked again to end; ending at once"),
        }
    }
}

/// Whether whoever started this process has it ignore a signal; always taken for no where Linux does not tell.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}
