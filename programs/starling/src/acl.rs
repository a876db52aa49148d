//! `starling acl`: tokens, policies and roles, with Consul's flags.

mod grants;
mod identifier;
mod method;
mod policy;
mod role;
mod rule;
mod shown;
mod template;
mod token;

use anyhow::Context;
use serde_json::{Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::definition::Document;
use crate::outcome::{Outcome, usage};
use crate::print::{self, OutputArgs};
use identifier::Kind;

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
    AuthMethod(method::MethodArgs),
    BindingRule(rule::RuleArgs),
    TemplatedPolicy(template::TemplateArgs),
    SetAgentToken(AgentTokenArgs),
}

/// Make the first token, which may everything; this works once
#[derive(Debug, clap::Args)]
struct BootstrapArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Give the agent that is asked a token of its own, until it ends
#[derive(Debug, clap::Args)]
struct AgentTokenArgs {
    /// What it is for: default, agent, recovery, config_file_service_registration, replication or dns
    #[arg(value_name = "KIND")]
    kind: String,

    /// Its secret; empty for none
    #[arg(value_name = "TOKEN")]
    given: String,

    #[command(flatten)]
    api: ApiArgs,
}

/// A policy or a role.
#[derive(Debug, clap::Args)]
struct Which {
    /// Its ID, or what it alone begins with
    #[arg(long, value_name = "UUID")]
    id: Option<String>,

    /// Its name
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    name: Option<String>,
}

impl Which {
    async fn id(&self, client: &Client, kind: Kind) -> anyhow::Result<String> {
        id_of(client, kind, self.id.as_ref(), self.name.as_ref()).await
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
        AclCommand::AuthMethod(args) => method::run(args, surroundings).await?,
        AclCommand::BindingRule(args) => rule::run(args, surroundings).await?,
        AclCommand::TemplatedPolicy(args) => template::run(args, surroundings).await?,
        AclCommand::SetAgentToken(args) => {
            let call = Call::put("/v1/agent/token").segment(&args.kind).json(&json!({"Token": args.given}));
            surroundings.client(&args.api)?.send(call).await?;
            print::line(&format!("ACL token {:?} set successfully", args.kind))?;
        }
    }
    Ok(Outcome::Done)
}

/// The identifier that is given, or the one behind a name.
async fn id_of(client: &Client, kind: Kind, id: Option<&String>, name: Option<&String>) -> anyhow::Result<String> {
    let what = kind.what();
    let found: Value = match (id, name) {
        (Some(id), _) => return kind.whole(client, id).await,
        (None, Some(name)) => client.read(Call::get(&format!("/v1/acl/{what}/name")).segment(name)).await?,
        (None, None) => return Err(usage(format!("name the {what} by --id or --name"))),
    };
    found["ID"].as_str().map(str::to_owned).ok_or_else(|| usage(format!("the {what} has no ID")))
}

/// What `@FILE`, `-` or the text itself holds.
fn text_or_file(text: &str) -> anyhow::Result<String> {
    let file = match text.strip_prefix('@') {
        Some(file) => file,
        None if text == "-" => "-",
        None => return Ok(text.to_owned()),
    };
    let Document { name, bytes } = Document::read(file)?;
    String::from_utf8(bytes).with_context(|| format!("{name} is no UTF-8 text"))
}
