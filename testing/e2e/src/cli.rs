//! Commands of the binary, run to their end.

use std::time::Duration;

use serde_json::Value;

/// Longest a command may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(40);

/// What came of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub line: String,
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Itself, if the exit code is 0.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(self.code, 0, "{self}");
        self
    }

    /// Standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self}"))
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` exited {}\n{}{}", self.line, self.code, self.stdout, self.stderr)
    }
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started, or does not end in time.
pub async fn run(command: std::process::Command) -> Output {
    run_within(command, COMMAND_TIME_MAX).await
}

/// Runs a command to its end, which has to come in time.
///
/// # Panics
/// As [`run`].
pub async fn run_within(mut command: std::process::Command, limit: Duration) -> Output {
    command.stdin(std::process::Stdio::null());
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut command = tokio::process::Command::from(command);
    let done = tokio::time::timeout(limit, command.kill_on_drop(true).output()).await;
    let output = done.unwrap_or_else(|_| panic!("`{line}` still runs after {limit:?}"));
    let output = output.unwrap_or_else(|error| panic!("cannot start `{line}`: {error}"));
    Output {
        line,
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
