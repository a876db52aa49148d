//! A child process that does not outlive its owner.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Lines of a log that an error quotes: the last words, not the story.
const LOG_TAIL_LINES: usize = 15;

/// A process in a group of its own, with its output in a file. Dropping it kills the group and waits for its end.
pub(crate) struct Child {
    name: String,
    process: std::process::Child,
    log: PathBuf,
}

/// The ways to and from a child that is spoken to.
pub(crate) struct Pipes {
    pub(crate) input: ChildStdin,
    pub(crate) output: ChildStdout,
}

impl Child {
    /// Starts it. A group of its own keeps the terminal's Ctrl-C away, so that only the owner ends it.
    ///
    /// # Errors
    /// When the log cannot be made or the program cannot be started.
    pub(crate) fn spawn(name: &str, command: &mut Command, logs: &Path) -> anyhow::Result<Self> {
        let (log, output) = new_log(name, logs)?;
        let errors = output.try_clone().with_context(|| format!("cannot share {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        Self::start(name, command, log)
    }

    /// Starts it, and speaks with it over its standard input and output; only its standard error is its log.
    ///
    /// # Errors
    /// As for [`Child::spawn`].
    pub(crate) fn spawn_spoken_to(name: &str, command: &mut Command, logs: &Path) -> anyhow::Result<(Self, Pipes)> {
        let (log, errors) = new_log(name, logs)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = Self::start(name, command, log)?;
        let pipes = child.process.stdin.take().zip(child.process.stdout.take());
        let (input, output) = pipes.with_context(|| format!("there are no pipes to {name}"))?;
        Ok((child, Pipes { input, output }))
    }

    fn start(name: &str, command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        command.process_group(0);
        let program = command.get_program().to_owned();
        let process =
            command.spawn().with_context(|| format!("cannot start {} for {name}", Path::new(&program).display()))?;
        Ok(Self { name: name.to_owned(), process, log })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, with the end of its log; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok()??;
        Some(format!("{} ended by itself ({status}); {}", self.name, self.log_tail()))
    }

    /// Kills its group, and waits for its end.
    pub(crate) fn kill(&mut self) {
        // Once it has been waited for, its number may belong to somebody else.
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Ok(group) = i32::try_from(self.process.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.process.wait();
    }

    /// The end of its log, introduced.
    pub(crate) fn log_tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        match tail(&text) {
            "" => "it wrote nothing to its log".to_owned(),
            tail => format!("the end of its log:\n{tail}"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn new_log(name: &str, logs: &Path) -> anyhow::Result<(PathBuf, File)> {
    let log = logs.join(format!("{name}.log"));
    let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    Ok((log, file))
}

/// The last lines of a text, without blank ones at its end.
fn tail(text: &str) -> &str {
    let text = text.trim_end();
    let start = text.rmatch_indices('\n').nth(LOG_TAIL_LINES - 1).map_or(0, |(at, _)| at + 1);
    text.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_quotes_the_last_lines() {
        let text: String = (1..=40).map(|line| format!("line {line}\n")).collect();
        let lines: Vec<_> = tail(&text).lines().collect();
        assert_eq!(lines.len(), LOG_TAIL_LINES);
        assert_eq!(lines.last(), Some(&"line 40"));
        assert_eq!(tail("only\n\n"), "only");
        assert_eq!(tail(""), "");
    }

    #[test]
    fn a_dropped_child_takes_its_group_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let grandchild = directory.path().join("grandchild");
        let script = format!("sleep 1000 & echo $! > {}; mv {0} {0}.pid; wait", grandchild.display());
        let child = Child::spawn("sh", Command::new("sh").args(["-c", &script]), directory.path()).unwrap();
        let named = grandchild.with_extension("pid");
        within_deadline(|| named.exists());
        let pid: i32 = std::fs::read_to_string(&named).unwrap().trim().parse().unwrap();
        drop(child);
        // Nobody may be there to reap the orphan, so a zombie counts as gone.
        within_deadline(|| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }

    fn within_deadline(mut holds: impl FnMut() -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !holds() {
            assert!(std::time::Instant::now() < deadline, "not within ten seconds");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_that_ended_tells_how() {
        let directory = tempfile::tempdir().unwrap();
        let script = "echo no port for me >&2; exit 3";
        let mut child = Child::spawn("sh", Command::new("sh").args(["-c", script]), directory.path()).unwrap();
        child.process.wait().unwrap();
        let how = child.ended().unwrap();
        assert!(how.contains("sh ended by itself") && how.contains("exit status: 3"), "{how}");
        assert!(how.contains("no port for me"), "{how}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = Child::spawn("x", &mut Command::new("/nowhere/starling"), directory.path()).err().unwrap();
        assert!(error.to_string().contains("/nowhere/starling"), "{error:#}");
    }
}
