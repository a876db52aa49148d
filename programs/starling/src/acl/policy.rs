//! `starling acl policy`.

use serde_json::{Value, json};

use super::identifier::Kind;
use super::{DeleteArgs, ListArgs, ReadArgs, id_of, shown, text_or_file};
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::print::{self, OutputArgs};

/// Make, read, change and delete policies
#[derive(Debug, clap::Args)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyCommand {
    Create(CreateArgs),
    Update(UpdateArgs),
    /// Print a policy
    Read(ReadArgs),
    /// List policies
    List(ListArgs),
    /// Delete a policy; tokens and roles no longer have it
    Delete(DeleteArgs),
}

/// Make a policy
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: String,

    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    /// The rules in HCL or JSON; @FILE reads them from a file, - from standard input
    #[arg(long, value_name = "RULES", default_value = "")]
    rules: String,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Change a policy: what is given replaces what it had
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

    /// The rules, as for create
    #[arg(long, value_name = "RULES")]
    rules: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const POLICY: &str = "/v1/acl/policy";

pub(super) async fn run(args: PolicyArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    match args.command {
        PolicyCommand::Create(args) => {
            let body = json!({"Name": args.name, "Description": args.description, "Rules": text_or_file(&args.rules)?});
            let made: Value = surroundings.client(&args.api)?.read(Call::put(POLICY).json(&body)).await?;
            shown::policy(&made, args.output.format)
        }
        PolicyCommand::Update(args) => {
            let client = surroundings.client(&args.api)?;
            let id = id_of(&client, Kind::Policy, args.id.as_ref(), args.name.as_ref()).await?;
            let mut body: Value = client.read(Call::get(POLICY).segment(&id)).await?;
            let rules = args.rules.as_deref().map(text_or_file).transpose()?;
            for (field, value) in [("Name", args.name), ("Description", args.description), ("Rules", rules)] {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            let made: Value = client.read(Call::put(POLICY).segment(&id).json(&body)).await?;
            shown::policy(&made, args.output.format)
        }
        PolicyCommand::Read(args) => {
            let client = surroundings.client(&args.api)?;
            let id = args.which.id(&client, Kind::Policy).await?;
            let found: Value = client.read(Call::get(POLICY).segment(&id)).await?;
            shown::policy(&found, args.output.format)
        }
        PolicyCommand::List(args) => {
            let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/acl/policies")).await?;
            shown::list(&found, args.output.format, &["ID", "Name", "Description"])
        }
        PolicyCommand::Delete(args) => {
            let client = surroundings.client(&args.api)?;
            let id = args.which.id(&client, Kind::Policy).await?;
            client.send(Call::delete(POLICY).segment(&id)).await?;
            print::line(&format!("Policy {id} deleted"))
        }
    }
}
