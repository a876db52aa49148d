//! Requests to end: Ctrl-C, a request to terminate, and the terminal that closes.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for an orderly end, in which clients are told and answered; each door takes less.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(5);

/// By what the end is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// SIGTERM: whoever runs the process ends it.
    Terminate,
    /// SIGINT, which Ctrl-C sends.
    CtrlC,
    /// The terminal closes.
    Hangup,
}

/// Requests to end, heard from the time that this is made; none is lost, whoever listens when.
pub(crate) struct Interrupts {
    ends: Vec<(Interrupt, Signal)>,
    /// Heard, so that it does not end the process, and acted upon by somebody else.
    _hangup: Option<Signal>,
}

impl Interrupts {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        // Under nohup the closing of the terminal is to be survived.
        let hangup = (!is_ignored(SignalKind::hangup())).then_some(Interrupt::Hangup);
        Self::of([Interrupt::CtrlC, Interrupt::Terminate].into_iter().chain(hangup), None)
    }

    /// The same where SIGHUP asks for something else than the end.
    pub(crate) fn listen_but_for_hangup() -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup()).context("listening for signals")?;
        Self::of([Interrupt::CtrlC, Interrupt::Terminate].into_iter(), Some(hangup))
    }

    fn of(kinds: impl Iterator<Item = Interrupt>, hangup: Option<Signal>) -> anyhow::Result<Self> {
        let ends: std::io::Result<_> = kinds.map(|kind| Ok((kind, signal(kind.signal())?))).collect();
        Ok(Self { ends: ends.context("listening for signals")?, _hangup: hangup })
    }

    /// Returns at the next request to end.
    pub(crate) async fn next(&mut self) -> Interrupt {
        poll_fn(|cx| {
            let mut asked =
                self.ends.iter_mut().filter_map(|(kind, signal)| signal.poll_recv(cx).is_ready().then_some(*kind));
            asked.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Lets something end in order, unless it takes too long or is asked again to end.
    pub(crate) async fn bound(&mut self, stop_within: Duration, ending: impl Future) {
        tokio::select! {
            ended = tokio::time::timeout(stop_within, ending) => if ended.is_err() {
                tracing::warn!("no orderly end within {stop_within:?}; ending at once");
            },
            _ = self.next() => tracing::warn!("asked again to end; ending at once"),
        }
    }
}

impl Interrupt {
    fn signal(self) -> SignalKind {
        match self {
            Self::Terminate => SignalKind::terminate(),
            Self::CtrlC => SignalKind::interrupt(),
            Self::Hangup => SignalKind::hangup(),
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
