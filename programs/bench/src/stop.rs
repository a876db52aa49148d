//! The signals that end a run.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

/// One of them came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped {
    /// For people.
    pub(crate) how: &'static str,
    /// As shells report it: 128 and the signal's number.
    code: u8,
}

impl Stop {
    /// Takes them from now on.
    ///
    /// # Errors
    /// When the system does not have it.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    /// Waits for the next.
    pub(crate) async fn came(&mut self) -> Stopped {
        tokio::select! {
            _ = self.interrupt.recv() => Stopped { how: "interrupted", code: 130 },
            _ = self.terminate.recv() => Stopped { how: "terminated", code: 143 },
        }
    }
}

impl Stopped {
    /// What the program ends with.
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// Tells that it came, and what the program ends with.
    pub(crate) fn tell(self) -> ExitCode {
        crate::said::note(&format!("{}; the mesh is taken down", self.how));
        self.code()
    }
}
