//! The command that a command of ours runs.

use anyhow::Context;
use tokio::process::{Child, Command};

use crate::outcome::usage;

/// Starts `words`, one word by the shell if `by_shell`; it is killed if what is answered is dropped.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn spawn(
    words: &[String],
    by_shell: bool,
    set_up: impl FnOnce(&mut Command) -> &mut Command,
) -> anyhow::Result<Child> {
    let [program, rest @ ..] = words else { return Err(usage("COMMAND is missing")) };
    let mut command = if by_shell && rest.is_empty() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", program]);
        shell
    } else {
        let mut command = Command::new(program);
        command.args(rest);
        command
    };
    set_up(command.kill_on_drop(true)).spawn().with_context(|| format!("cannot run {program}"))
}
