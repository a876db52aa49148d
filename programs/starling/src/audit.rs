//! `starling audit`: whether an audit log is whole.

use std::path::PathBuf;

use serde_json::json;
use starling_telemetry::{AuditEnd, verify_audit};

use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// Check audit logs
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AuditCommand {
    Verify(VerifyArgs),
}

/// Check that no line of an audit log was changed or removed
///
/// Prints the number of lines and the hash of the last one. Lines cut off at the end show only against a hash that was
/// kept elsewhere. Exits with 2 at the first line that does not follow from the one before it.
#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: AuditArgs) -> anyhow::Result<Outcome> {
    let AuditCommand::Verify(VerifyArgs { file, output }) = args.command;
    let AuditEnd { lines, hash } = verify_audit(&file)?;
    match output.format {
        Format::Json => print::json(&json!({"lines": lines, "hash": hash}))?,
        Format::Table => print::line(&format!("{lines} lines, last hash {hash}"))?,
    }
    Ok(Outcome::Done)
}
