//! `starling acl token`.

use std::time::Duration;

use serde_json::{Value, json};

use super::grants::{self, GrantArgs};
use super::{ListArgs, shown};
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::usage;
use crate::print::{self, OutputArgs};
use crate::receipt::duration;

/// Make, read, change and delete tokens
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    Create(Box<CreateArgs>),
    Update(Box<UpdateArgs>),
    Read(ReadArgs),
    /// List tokens
    List(ListArgs),
    Clone(CloneArgs),
    Delete(DeleteArgs),
}

/// Make a token; its secret is printed
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    /// Its accessor's ID, in place of one that is made
    #[arg(long, value_name = "UUID")]
    accessor: Option<String>,

    /// Its secret, in place of one that is made
    #[arg(long, value_name = "UUID")]
    secret: Option<String>,

    /// How long it is good, such as 24h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires_ttl: Option<Duration>,

    /// For this datacentre alone
    #[arg(long)]
    local: bool,

    #[command(flatten)]
    roles: RoleArgs,
    #[command(flatten)]
    grants: GrantArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct RoleArgs {
    /// A role, by its ID; may be given several times
    #[arg(long, value_name = "ID")]
    role_id: Vec<String>,

    /// A role, by its name; may be given several times
    #[arg(long, value_name = "NAME")]
    role_name: Vec<String>,
}

/// Change a token: what is given replaces what it had
#[derive(Debug, clap::Args)]
struct UpdateArgs {
    #[command(flatten)]
    which: Which,

    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    /// Add the policies, roles and identities to those that it has
    #[arg(long, alias = "merge-policies", alias = "merge-roles")]
    merge: bool,

    #[command(flatten)]
    roles: RoleArgs,
    #[command(flatten)]
    grants: GrantArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// ID of the token's accessor
    #[arg(long, alias = "id", value_name = "UUID")]
    accessor_id: Option<String>,
}

/// Print a token
#[derive(Debug, clap::Args)]
struct ReadArgs {
    #[command(flatten)]
    which: Which,

    /// The token that is shown with the request
    #[arg(long = "self", conflicts_with = "accessor_id")]
    own: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Make another token that may the same
#[derive(Debug, clap::Args)]
struct CloneArgs {
    #[command(flatten)]
    which: Which,

    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Delete a token
#[derive(Debug, clap::Args)]
struct DeleteArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    api: ApiArgs,
}

impl Which {
    fn accessor(&self) -> anyhow::Result<&str> {
        let id = self.accessor_id.as_deref().ok_or_else(|| usage("name the token by --accessor-id"))?;
        Ok(if id == "anonymous" { ANONYMOUS } else { id })
    }
}

impl RoleArgs {
    fn put_into(&self, body: &mut Value, replace: bool) {
        let ids = self.role_id.iter().map(|id| json!({"ID": id}));
        let names = self.role_name.iter().map(|name| json!({"Name": name}));
        grants::add(body, "Roles", ids.chain(names).collect(), replace);
    }
}

/// The accessor of the token of those who show none.
const ANONYMOUS: &str = "00000000-0000-0000-0000-000000000002";

const TOKEN: &str = "/v1/acl/token";

pub(super) async fn run(args: TokenArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    match args.command {
        TokenCommand::Create(args) => create(*args, surroundings).await,
        TokenCommand::Update(args) => update(*args, surroundings).await,
        TokenCommand::Read(args) => {
            let id = if args.own { "self" } else { args.which.accessor()? };
            let found: Value = surroundings.client(&args.api)?.read(Call::get(TOKEN).segment(id)).await?;
            shown::token(&found, args.output.format)
        }
        TokenCommand::List(args) => {
            let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/acl/tokens")).await?;
            shown::list(
                &found,
                args.output.format,
                &["AccessorID", "Description", "Policies", "Roles", "ExpirationTime"],
            )
        }
        TokenCommand::Clone(args) => {
            let call = Call::put(TOKEN).segment(args.which.accessor()?).segment("clone");
            let call = call.json(&json!({"Description": args.description}));
            let made: Value = surroundings.client(&args.api)?.read(call).await?;
            shown::token(&made, args.output.format)
        }
        TokenCommand::Delete(args) => {
            let id = args.which.accessor()?;
            surroundings.client(&args.api)?.send(Call::delete(TOKEN).segment(id)).await?;
            print::line(&format!("Token {id} deleted"))
        }
    }
}

async fn create(args: CreateArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    let mut body = json!({"Description": args.description, "Local": args.local});
    for (field, value) in [("AccessorID", &args.accessor), ("SecretID", &args.secret)] {
        if let Some(value) = value {
            body[field] = value.as_str().into();
        }
    }
    if let Some(ttl) = args.expires_ttl {
        body["ExpirationTTL"] = format!("{}s", ttl.as_secs()).into();
    }
    args.grants.put_into(&mut body, true)?;
    args.roles.put_into(&mut body, true);
    let made: Value = surroundings.client(&args.api)?.read(Call::put(TOKEN).json(&body)).await?;
    shown::token(&made, args.output.format)
}

async fn update(args: UpdateArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    let (client, id) = (surroundings.client(&args.api)?, args.which.accessor()?);
    let mut body: Value = client.read(Call::get(TOKEN).segment(id)).await?;
    if let Some(description) = args.description {
        body["Description"] = description.into();
    }
    if !args.grants.is_empty() {
        args.grants.put_into(&mut body, !args.merge)?;
    }
    if !args.roles.role_id.is_empty() || !args.roles.role_name.is_empty() {
        args.roles.put_into(&mut body, !args.merge);
    }
    let made: Value = client.read(Call::put(TOKEN).segment(id).json(&body)).await?;
    shown::token(&made, args.output.format)
}
