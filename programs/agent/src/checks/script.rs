//! Script checks: exit 0 passes, 1 warns, everything else is critical.
//!
//! The command gets a process group of its own, so that a timeout ends its children with it, and no shell.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use starling_model::CheckStatus;
use starling_model::check::OUTPUT_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::critical;
use super::failure::Failure;
use crate::registrations::Health;

/// Time for reading what is left in the pipes after the command has ended.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Variables of the agent's environment that a command gets. The others may hold tokens, as `STARLING_JOIN_TOKEN` does.
const INHERITED: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];

/// Bytes read from a pipe at once.
const READ_BYTES: usize = 4096;

/// Ends the process group when dropped: a check that is deregistered takes its running command with it.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // ESRCH is the usual case: everybody has gone.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

pub(super) async fn run(args: &[String], timeout: Duration) -> Result<Health, Failure> {
    let Some((program, rest)) = args.split_first() else {
        return Ok(critical("no command was given".to_owned()));
    };
    let mut command = Command::new(program);
    command.env_clear().envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| Failure::from(error).of(&format!("cannot run {program:?}")))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(|id| Group(Pid::from_raw(id)));
    let mut output = Tail::default();
    let ended = watch(&mut child, &mut output, timeout, group).await;
    let text = output.text();
    Ok(match ended {
        Ok(Some(status)) => Health { status: verdict(status.code().map(i64::from)), output: text },
        Ok(None) => critical(format!("Timed out ({timeout:?}) running check\n{text}")),
        Err(error) => critical(format!("cannot wait for {program:?}: {error}")),
    })
}

/// Waits for the end or the timeout (`None`), reading all the while; the process has been reaped when this returns.
async fn watch(
    child: &mut Child,
    output: &mut Tail,
    timeout: Duration,
    group: Option<Group>,
) -> std::io::Result<Option<ExitStatus>> {
    let mut out = child.stdout.take();
    let mut err = child.stderr.take();
    let deadline = Instant::now() + timeout;
    let (mut out_buffer, mut err_buffer) = ([0; READ_BYTES], [0; READ_BYTES]);
    let mut ended: Option<ExitStatus> = None;
    let mut drain_until = deadline;
    while ended.is_none() || out.is_some() || err.is_some() {
        tokio::select! {
            // What was written before the end is read before the end is seen.
            biased;
            read = read_some(&mut out, &mut out_buffer), if out.is_some() => output.push(&out_buffer[..read]),
            read = read_some(&mut err, &mut err_buffer), if err.is_some() => output.push(&err_buffer[..read]),
            status = child.wait(), if ended.is_none() => {
                ended = Some(status?);
                drain_until = Instant::now() + DRAIN_MAX;
                // Children left behind must not hold the pipes open.
                if let Some(group) = &group {
                    let _ = killpg(group.0, Signal::SIGKILL);
                }
            }
            () = tokio::time::sleep_until(drain_until) => break,
        }
    }
    if ended.is_none() {
        drop(group);
        child.kill().await?;
    } else {
        // The group is gone, and its number may soon be somebody else's.
        std::mem::forget(group);
    }
    Ok(ended)
}

/// Reads once; the end of the pipe, or an error, closes it.
async fn read_some(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> usize {
    let Some(reader) = pipe else { return std::future::pending().await };
    match reader.read(buffer).await {
        Ok(read) if read > 0 => read,
        Ok(_) | Err(_) => {
            *pipe = None;
            0
        }
    }
}

/// What an exit code means; `None` for a command that was ended by a signal.
pub(super) fn verdict(code: Option<i64>) -> CheckStatus {
    match code {
        Some(0) => CheckStatus::Passing,
        Some(1) => CheckStatus::Warning,
        Some(_) | None => CheckStatus::Critical,
    }
}

/// The last bytes of an output: what a script says last is the verdict.
#[derive(Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    seen: usize,
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.seen += bytes.len();
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(OUTPUT_BYTES_MAX);
        self.bytes.drain(..over);
    }

    pub(super) fn text(self) -> String {
        let kept = self.bytes.len();
        let bytes: Vec<u8> = self.bytes.into();
        let text = String::from_utf8_lossy(&bytes);
        match self.seen > kept {
            true => format!("Captured {kept} of {} bytes\n...\n{text}", self.seen),
            false => text.into_owned(),
        }
    }
}
