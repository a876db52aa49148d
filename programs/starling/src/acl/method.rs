//! `starling acl auth-method`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ListArgs, shown};
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::usage;
use crate::print::{self, OutputArgs};
use crate::receipt::duration;

/// Say who else may say who a caller is
#[derive(Debug, clap::Args)]
pub(super) struct MethodArgs {
    #[command(subcommand)]
    command: MethodCommand,
}

#[derive(Debug, clap::Subcommand)]
enum MethodCommand {
    Create(Box<CreateArgs>),
    Update(Box<UpdateArgs>),
    /// Print an auth method
    Read(NamedArgs),
    /// List auth methods
    List(ListArgs),
    /// Delete an auth method, with its binding rules and the tokens of those who have logged in by it
    Delete(NamedArgs),
}

#[derive(Debug, clap::Args)]
struct NamedArgs {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// Its name for people
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,

    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    /// How long tokens are good that come of it, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_token_ttl: Option<Duration>,

    /// local or global
    #[arg(long, value_name = "LOCALITY")]
    token_locality: Option<String>,

    /// Its settings in JSON: the text, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
}

/// Make an auth method
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: String,

    /// jwt, by which one logs in; others are kept
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,

    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Change an auth method
#[derive(Debug, clap::Args)]
struct UpdateArgs {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: String,

    /// Replace what is not given, too
    #[arg(long)]
    no_merge: bool,

    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const METHOD: &str = "/v1/acl/auth-method";

impl Settings {
    fn put_into(&self, body: &mut Value) -> anyhow::Result<()> {
        for (field, value) in [
            ("DisplayName", &self.display_name),
            ("Description", &self.description),
            ("TokenLocality", &self.token_locality),
        ] {
            if let Some(value) = value {
                body[field] = value.as_str().into();
            }
        }
        if let Some(ttl) = self.max_token_ttl {
            body["MaxTokenTTL"] = format!("{}s", ttl.as_secs()).into();
        }
        if let Some(config) = &self.config {
            let text = super::text_or_file(config)?;
            body["Config"] =
                serde_json::from_str(&text).map_err(|error| usage(format!("--config: is no JSON: {error}")))?;
        }
        Ok(())
    }
}

pub(super) async fn run(args: MethodArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    match args.command {
        MethodCommand::Create(args) => {
            let mut body = json!({"Name": args.name, "Type": args.kind});
            args.settings.put_into(&mut body)?;
            let made: Value = surroundings.client(&args.api)?.read(Call::put(METHOD).json(&body)).await?;
            shown::method(&made, args.output.format)
        }
        MethodCommand::Update(args) => {
            let client = surroundings.client(&args.api)?;
            let before: Value = client.read(Call::get(METHOD).segment(&args.name)).await?;
            let mut body = match args.no_merge {
                true => json!({"Name": before["Name"], "Type": before["Type"]}),
                false => before,
            };
            args.settings.put_into(&mut body)?;
            let made: Value = client.read(Call::put(METHOD).segment(&args.name).json(&body)).await?;
            shown::method(&made, args.output.format)
        }
        MethodCommand::Read(args) => {
            let found: Value = surroundings.client(&args.api)?.read(Call::get(METHOD).segment(&args.name)).await?;
            shown::method(&found, args.output.format)
        }
        MethodCommand::List(args) => {
            let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/acl/auth-methods")).await?;
            shown::list(&found, args.output.format, &["Name", "Type", "DisplayName", "Description"])
        }
        MethodCommand::Delete(args) => {
            surroundings.client(&args.api)?.send(Call::delete(METHOD).segment(&args.name)).await?;
            print::line(&format!("Auth method {:?} deleted", args.name))
        }
    }
}
