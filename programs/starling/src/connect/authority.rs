//! `starling connect ca`: how the CA is configured, in Consul's words. What it can beyond that is in `starling ca`.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::definition::{Document, field};
use crate::outcome::{Outcome, usage};
use crate::print;

const CONFIGURATION: &str = "/v1/connect/ca/configuration";

/// Show how the CA is configured, and bring it a root
#[derive(Debug, clap::Args)]
pub(super) struct CaArgs {
    #[command(subcommand)]
    command: CaCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CaCommand {
    GetConfig(GetArgs),
    SetConfig(SetArgs),
}

/// Print how the CA is configured
#[derive(Debug, clap::Args)]
struct GetArgs {
    #[command(flatten)]
    api: ApiArgs,
}

/// Bring a root with its key, which signs once everybody trusts it; whatever else cannot be obeyed is refused
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// The configuration, in JSON or HCL: `Provider = "consul"` and a `Config` with `RootCert` and `PrivateKey`; - for standard input
    #[arg(long, value_name = "FILE")]
    config_file: PathBuf,

    /// Refused: a root is never put in the place of another before everybody trusts it
    #[arg(long)]
    force_without_cross_signing: bool,

    #[command(flatten)]
    api: ApiArgs,
}

pub(super) async fn run(args: CaArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        CaCommand::GetConfig(args) => {
            print::json(&surroundings.client(&args.api)?.read::<Value>(Call::get(CONFIGURATION)).await?)?;
        }
        CaCommand::SetConfig(args) => {
            let mut body = configuration(&args)?;
            if args.force_without_cross_signing {
                body.insert("ForceWithoutCrossSigning".to_owned(), true.into());
            }
            surroundings.client(&args.api)?.send(Call::put(CONFIGURATION).json(&body.into())).await?;
            print::line("Configuration updated!")?;
        }
    }
    Ok(Outcome::Done)
}

/// What a file says; HCL makes a list of its block.
fn configuration(args: &SetArgs) -> anyhow::Result<Map<String, Value>> {
    let document = Document::read(&args.config_file.to_string_lossy())?;
    let Value::Object(given) = document.value()? else {
        return Err(usage(format!("{}: has to be an object of Provider and Config", document.name)));
    };
    let mut body = Map::new();
    for name in ["Provider", "Config", "State", "ForceWithoutCrossSigning"] {
        match field(&given, &name.to_ascii_lowercase()) {
            Some(Value::Array(list)) if list.len() == 1 => body.extend([(name.to_owned(), list[0].clone())]),
            Some(value) => body.extend([(name.to_owned(), value.clone())]),
            None => {}
        }
    }
    Ok(body)
}
