//! A program that is started, killed, stopped and started again, and that ends with the run.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Bytes of the end of a log that are shown.
const SHOWN_BYTES_MAX: usize = 1500;

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it, in a group of its own, so that Ctrl-C in the terminal is not for it. What it writes is added to the log.
    pub(crate) fn spawn(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| format!("cannot write {}", log.display()))?;
        let errors = output.try_clone().context("cannot share a log")?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("a process id")?);
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {pid}"))
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill9(&mut self) {
        // It may have ended, and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// How it ended by itself, with the end of its log; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("{status}; its log ends with: {}", tail(&self.log)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    text[text.ceil_char_boundary(text.len().saturating_sub(SHOWN_BYTES_MAX))..].trim().to_owned()
}
