//! `starling acl role`.

use serde_json::{Value, json};

use super::grants::{GrantArgs, How};
use super::identifier::Kind;
use super::{DeleteArgs, ListArgs, ReadArgs, id_of, shown};
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::print::{self, OutputArgs};

/// Make, read, change and delete roles
#[derive(Debug, clap::Args)]
pub(super) struct RoleArgs {
    #[command(subcommand)]
    command: RoleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RoleCommand {
    Create(Box<CreateArgs>),
    Update(Box<UpdateArgs>),
    /// Print a role
    Read(ReadArgs),
    /// List roles
    List(ListArgs),
    /// Delete a role; tokens no longer have it
    Delete(DeleteArgs),
}

/// Make a role
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: String,

    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    #[command(flatten)]
    grants: GrantArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Change a role: what is given is added to what it has
#[derive(Debug, clap::Args)]
struct UpdateArgs {
    /// Its ID, or what it alone begins with
    #[arg(long, value_name = "UUID")]
    id: Option<String>,

    /// Its name; beside --id the name that it gets
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    /// Replace what it has
    #[arg(long)]
    no_merge: bool,

    #[command(flatten)]
    grants: GrantArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const ROLE: &str = "/v1/acl/role";

pub(super) async fn run(args: RoleArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    match args.command {
        RoleCommand::Create(args) => {
            let mut body = json!({"Name": args.name, "Description": args.description});
            let client = surroundings.client(&args.api)?;
            args.grants.put_into(&client, &mut body, |_| How::Replace).await?;
            let made: Value = client.read(Call::put(ROLE).json(&body)).await?;
            shown::role(&made, args.output.format)
        }
        RoleCommand::Update(args) => {
            let client = surroundings.client(&args.api)?;
            let id = id_of(&client, Kind::Role, args.id.as_ref(), args.name.as_ref()).await?;
            let mut body: Value = client.read(Call::get(ROLE).segment(&id)).await?;
            for (field, value) in [("Name", args.name), ("Description", args.description)] {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            if !args.grants.is_empty() {
                let how = if args.no_merge { How::Replace } else { How::Add };
                args.grants.put_into(&client, &mut body, |_| how).await?;
            }
            let made: Value = client.read(Call::put(ROLE).segment(&id).json(&body)).await?;
            shown::role(&made, args.output.format)
        }
        RoleCommand::Read(args) => {
            let client = surroundings.client(&args.api)?;
            let id = args.which.id(&client, Kind::Role).await?;
            let found: Value = client.read(Call::get(ROLE).segment(&id)).await?;
            shown::role(&found, args.output.format)
        }
        RoleCommand::List(args) => {
            let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/acl/roles")).await?;
            shown::list(&found, args.output.format, &["ID", "Name", "Description", "Policies"])
        }
        RoleCommand::Delete(args) => {
            let client = surroundings.client(&args.api)?;
            let id = args.which.id(&client, Kind::Role).await?;
            client.send(Call::delete(ROLE).segment(&id)).await?;
            print::line(&format!("Role {id} deleted"))
        }
    }
}
