//! `starling acl token`.

use std::time::Duration;

use serde_json::{Value, json};

use super::grants::{self, GrantArgs, How};
use super::identifier::Kind;
use super::{ListArgs, shown};
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
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
    /// A role, by its ID or what it alone begins with; may be given several times
    #[arg(long, value_name = "ID")]
    role_id: Vec<String>,

    /// A role, by its name; may be given several times
    #[arg(long, value_name = "NAME")]
    role_name: Vec<String>,
}

/// Change a token: of each kind, what is given replaces what it had
#[derive(Debug, clap::Args)]
struct UpdateArgs {
    #[command(flatten)]
    which: Which,

    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    #[command(flatten)]
    merging: MergeArgs,
    #[command(flatten)]
    roles: RoleArgs,
    #[command(flatten)]
    grants: GrantArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// What is added to what a token has
#[derive(Debug, clap::Args)]
struct MergeArgs {
    /// Add the policies, roles and identities to those that it has
    #[arg(long)]
    merge: bool,

    /// The same of policies alone; Consul calls this and its like deprecated
    #[arg(long, hide = true)]
    merge_policies: bool,

    /// Of roles alone
    #[arg(long, hide = true)]
    merge_roles: bool,

    /// Of service identities alone
    #[arg(long, hide = true)]
    merge_service_identities: bool,

    /// Of node identities alone
    #[arg(long, hide = true)]
    merge_node_identities: bool,

    /// Add a policy to those that it has, by its ID; may be given several times
    #[arg(long, value_name = "ID", conflicts_with_all = ["policy_id", "policy_name"])]
    append_policy_id: Vec<String>,

    /// Add a policy, by its name; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with_all = ["policy_id", "policy_name"])]
    append_policy_name: Vec<String>,

    /// Add a role to those that it has, by its ID; may be given several times
    #[arg(long, value_name = "ID", conflicts_with_all = ["role_id", "role_name"])]
    append_role_id: Vec<String>,

    /// Add a role, by its name; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with_all = ["role_id", "role_name"])]
    append_role_name: Vec<String>,

    /// Add the identity of a service, NAME or NAME:DATACENTER,…; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "service_identity")]
    append_service_identity: Vec<String>,

    /// Add the identity of a node, NAME:DATACENTER; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "node_identity")]
    append_node_identity: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// ID of the token's accessor, or what it alone begins with
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

    /// With the rules of its policies and those of its roles, and with what holds where they say nothing
    #[arg(long)]
    expanded: bool,

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
    async fn accessor(&self, client: &Client) -> anyhow::Result<String> {
        let id = self.accessor_id.as_deref().ok_or_else(|| usage("name the token by --accessor-id"))?;
        if id == "anonymous" { Ok(ANONYMOUS.to_owned()) } else { Kind::Token.whole(client, id).await }
    }
}

impl RoleArgs {
    async fn put_into(&self, client: &Client, body: &mut Value, how: How) -> anyhow::Result<()> {
        let links = grants::links(client, Kind::Role, &self.role_id, &self.role_name).await?;
        grants::put(body, "Roles", links, how);
        Ok(())
    }
}

impl MergeArgs {
    /// What becomes of the list of this name.
    fn how(&self, field: &str) -> How {
        let adds = match field {
            "Policies" => self.merge_policies,
            "Roles" => self.merge_roles,
            "ServiceIdentities" => self.merge_service_identities,
            "NodeIdentities" => self.merge_node_identities,
            _ => false,
        };
        if self.merge || adds { How::Add } else { How::ReplaceIfGiven }
    }

    async fn put_into(&self, client: &Client, body: &mut Value) -> anyhow::Result<()> {
        let policies = grants::links(client, Kind::Policy, &self.append_policy_id, &self.append_policy_name).await?;
        grants::put(body, "Policies", policies, How::Add);
        let roles = grants::links(client, Kind::Role, &self.append_role_id, &self.append_role_name).await?;
        grants::put(body, "Roles", roles, How::Add);
        grants::put(body, "ServiceIdentities", grants::services(&self.append_service_identity), How::Add);
        let nodes = grants::nodes("--append-node-identity", &self.append_node_identity)?;
        grants::put(body, "NodeIdentities", nodes, How::Add);
        Ok(())
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
            let client = surroundings.client(&args.api)?;
            let id = if args.own { "self".to_owned() } else { args.which.accessor(&client).await? };
            let call = Call::get(TOKEN).segment(&id);
            let found: Value = client.read(if args.expanded { call.query("expanded", "true") } else { call }).await?;
            shown::token(&found, args.output.format)?;
            if args.expanded { shown::expanded(&found, args.output.format) } else { Ok(()) }
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
            let client = surroundings.client(&args.api)?;
            let call = Call::put(TOKEN).segment(&args.which.accessor(&client).await?).segment("clone");
            let made: Value = client.read(call.json(&json!({"Description": args.description}))).await?;
            shown::token(&made, args.output.format)
        }
        TokenCommand::Delete(args) => {
            let client = surroundings.client(&args.api)?;
            let id = args.which.accessor(&client).await?;
            client.send(Call::delete(TOKEN).segment(&id)).await?;
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
    let client = surroundings.client(&args.api)?;
    args.grants.put_into(&client, &mut body, |_| How::Replace).await?;
    args.roles.put_into(&client, &mut body, How::Replace).await?;
    let made: Value = client.read(Call::put(TOKEN).json(&body)).await?;
    shown::token(&made, args.output.format)
}

async fn update(args: UpdateArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    let client = surroundings.client(&args.api)?;
    let id = args.which.accessor(&client).await?;
    let mut body: Value = client.read(Call::get(TOKEN).segment(&id)).await?;
    if let Some(description) = args.description {
        body["Description"] = description.into();
    }
    args.grants.put_into(&client, &mut body, |field| args.merging.how(field)).await?;
    args.roles.put_into(&client, &mut body, args.merging.how("Roles")).await?;
    args.merging.put_into(&client, &mut body).await?;
    let made: Value = client.read(Call::put(TOKEN).segment(&id).json(&body)).await?;
    shown::token(&made, args.output.format)
}
