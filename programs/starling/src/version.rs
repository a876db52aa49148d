//! `starling version`.

use serde_json::json;

use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// The release of this binary.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version of Consul whose API and files are understood.
const CONSUL_SHAPE: &str = "1.22";

/// Print the version
#[derive(Debug, clap::Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: VersionArgs) -> anyhow::Result<Outcome> {
    let (os, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
    match args.output.format {
        Format::Table => print::line(&format!(
            "Starling {VERSION} ({os}/{architecture})\nAPI in the shape of Consul {CONSUL_SHAPE}"
        ))?,
        Format::Json => print::json(&json!({
            "version": VERSION,
            "os": os,
            "architecture": architecture,
            "consul_api": CONSUL_SHAPE,
        }))?,
    }
    Ok(Outcome::Done)
}
