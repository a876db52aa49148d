//! `starling acl`: tokens, policies and roles, with Consul's flags.

mod grants;
mod policy;
mod role;
mod shown;
mod token;

use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print::OutputArgs;

/// Say who may do what: tokens, policies and roles
#[derive(Debug, clap::Args)]
pub(crate) struct AclArgs {
    #[command(subcommand)]
    command: AclCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AclCommand {
    Bootstrap(BootstrapArgs),
    Token(token::TokenArgs),
    Policy(policy::PolicyArgs),
    Role(role::RoleArgs),
}

/// Make the first token, which may everything; this works once
#[derive(Debug, clap::Args)]
struct BootstrapArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// A policy or a role.
#[derive(Debug, clap::Args)]
struct Which {
    /// Its ID
    #[arg(long, value_name = "UUID")]
    id: Option<String>,

    /// Its name
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    name: Option<String>,
}

impl Which {
    async fn id(&self, client: &Client, what: &str) -> anyhow::Result<String> {
        id_of(client, what, self.id.as_ref(), self.name.as_ref()).await
    }
}

#[derive(Debug, clap::Args)]
struct ReadArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: AclArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        AclCommand::Bootstrap(args) => {
            let client = surroundings.client(&args.api)?;
            let made: Value = client.read(Call::put("/v1/acl/bootstrap")).await?;
            shown::token(&made, args.output.format)?;
        }
        AclCommand::Token(args) => token::run(args, surroundings).await?,
        AclCommand::Policy(args) => policy::run(args, surroundings).await?,
        AclCommand::Role(args) => role::run(args, surroundings).await?,
    }
    Ok(Outcome::Done)
}

/// The identifier behind a name, as the API finds policies and roles by.
async fn id_of(client: &Client, what: &str, id: Option<&String>, name: Option<&String>) -> anyhow::Result<String> {
    let found: Value = match (id, name) {
        (Some(id), _) => return Ok(id.clone()),
        (None, Some(name)) => client.read(Call::get(&format!("/v1/acl/{what}/name")).segment(name)).await?,
        (None, None) => return Err(usage(format!("name the {what} by --id or --name"))),
    };
    found["ID"].as_str().map(str::to_owned).ok_or_else(|| usage(format!("the {what} has no ID")))
}
