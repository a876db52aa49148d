//! The program nft, which speaks to the kernel's packet filter.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};

use crate::redirect::rules::TABLE;

/// Where nft is, also for users whose search path is without the administrators' programs.
const PROGRAMS: [&str; 2] = ["nft", "/usr/sbin/nft"];

/// What the kernel says to those who may not filter packets, as nft has it.
const NOT_PERMITTED: &str = "Operation not permitted";

/// What nft says of a table that is not there.
const NOT_THERE: &str = "No such file or directory";

/// Runs a script, which is in force as a whole or not at all.
///
/// # Errors
/// When nft or the right to use it is missing, or the kernel cannot do what it is told.
pub(crate) fn run(script: &str) -> anyhow::Result<()> {
    let output = ask(&["-f", "-"], script)?;
    if output.status.success() { Ok(()) } else { bail!(refusal(&output)) }
}

/// What is in the table, as JSON; `None` if there is no such table.
///
/// # Errors
/// When nft or the right to use it is missing.
pub(crate) fn list() -> anyhow::Result<Option<String>> {
    let output = ask(&["-n", "-j", "list", "table", "inet", TABLE], "")?;
    if output.status.success() {
        return Ok(Some(String::from_utf8(output.stdout).context("nft printed something that is no text")?));
    }
    if String::from_utf8_lossy(&output.stderr).contains(NOT_THERE) { Ok(None) } else { bail!(refusal(&output)) }
}

fn ask(arguments: &[&str], input: &str) -> anyhow::Result<Output> {
    let mut missing = None;
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its messages are compared below.
        command.env("LC_ALL", "C");
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing = Some(error),
            Err(error) => return Err(error).with_context(|| format!("cannot run {program}")),
            Ok(mut child) => {
                if let Some(mut stdin) = child.stdin.take() {
                    // One that refuses to read says why by itself.
                    let _ = stdin.write_all(input.as_bytes());
                }
                return child.wait_with_output().with_context(|| format!("cannot run {program}"));
            }
        }
    }
    let missing = missing.context("nft has no place to be looked for")?;
    Err(missing).context("the program nft is needed and not installed (Debian and Ubuntu: apt-get install nftables)")
}

fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    if said.contains(NOT_PERMITTED) {
        return format!(
            "this needs the right to filter packets: run it as root, or with CAP_NET_ADMIN; nft said: {said}"
        );
    }
    format!("nft said: {said}")
}
