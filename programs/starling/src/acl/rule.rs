//! `starling acl binding-rule`.

use serde_json::{Value, json};

use super::identifier::Kind;
use super::shown;
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::usage;
use crate::print::{self, OutputArgs};

/// Say what those have who log in by an auth method
#[derive(Debug, clap::Args)]
pub(super) struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RuleCommand {
    Create(Box<CreateArgs>),
    Update(Box<UpdateArgs>),
    /// Print a binding rule
    Read(IdArgs),
    List(ListArgs),
    /// Delete a binding rule; who has logged in keeps what it has
    Delete(IdArgs),
}

#[derive(Debug, clap::Args)]
struct IdArgs {
    /// Its ID, or what it alone begins with
    #[arg(long, value_name = "UUID")]
    id: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// List binding rules
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Those of this auth method
    #[arg(long, value_name = "NAME")]
    method: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// service, node, role, policy or templated-policy
    #[arg(long, value_name = "TYPE")]
    bind_type: Option<String>,

    /// The name of what they have, in which ${value.NAME} stands for what is known of a caller
    #[arg(long, value_name = "NAME")]
    bind_name: Option<String>,

    /// What a template is filled with
    #[arg(long, value_name = "Name=VALUE")]
    bind_vars: Option<String>,

    /// Which callers: value.NAME == x, "x" in list.NAME, and what and, or and not make of these
    #[arg(long, value_name = "FILTER")]
    selector: Option<String>,

    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// Make a binding rule
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// The auth method
    #[arg(long, value_name = "NAME")]
    method: String,

    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Change a binding rule
#[derive(Debug, clap::Args)]
struct UpdateArgs {
    /// Its ID, or what it alone begins with
    #[arg(long, value_name = "UUID")]
    id: String,

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

const RULE: &str = "/v1/acl/binding-rule";

impl Settings {
    fn put_into(&self, body: &mut Value) -> anyhow::Result<()> {
        for (field, value) in [
            ("BindType", &self.bind_type),
            ("BindName", &self.bind_name),
            ("Selector", &self.selector),
            ("Description", &self.description),
        ] {
            if let Some(value) = value {
                body[field] = value.as_str().into();
            }
        }
        if let Some(pair) = &self.bind_vars {
            let (name, value) = pair.split_once('=').ok_or_else(|| usage("--bind-vars is of the form Name=VALUE"))?;
            body["BindVars"] = json!({name: value});
        }
        Ok(())
    }
}

pub(super) async fn run(args: RuleArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    match args.command {
        RuleCommand::Create(args) => {
            let mut body = json!({"AuthMethod": args.method});
            args.settings.put_into(&mut body)?;
            let made: Value = surroundings.client(&args.api)?.read(Call::put(RULE).json(&body)).await?;
            shown::rule(&made, args.output.format)
        }
        RuleCommand::Update(args) => {
            let client = surroundings.client(&args.api)?;
            let id = Kind::BindingRule.whole(&client, &args.id).await?;
            let before: Value = client.read(Call::get(RULE).segment(&id)).await?;
            let mut body = match args.no_merge {
                true => json!({"ID": before["ID"], "AuthMethod": before["AuthMethod"]}),
                false => before,
            };
            args.settings.put_into(&mut body)?;
            let made: Value = client.read(Call::put(RULE).segment(&id).json(&body)).await?;
            shown::rule(&made, args.output.format)
        }
        RuleCommand::Read(args) => {
            let client = surroundings.client(&args.api)?;
            let id = Kind::BindingRule.whole(&client, &args.id).await?;
            let found: Value = client.read(Call::get(RULE).segment(&id)).await?;
            shown::rule(&found, args.output.format)
        }
        RuleCommand::List(args) => {
            let call = Call::get("/v1/acl/binding-rules");
            let call = args.method.iter().fold(call, |call, method| call.query("authmethod", method));
            let found: Value = surroundings.client(&args.api)?.read(call).await?;
            shown::list(&found, args.output.format, &["ID", "AuthMethod", "BindType", "BindName", "Selector"])
        }
        RuleCommand::Delete(args) => {
            let client = surroundings.client(&args.api)?;
            let id = Kind::BindingRule.whole(&client, &args.id).await?;
            client.send(Call::delete(RULE).segment(&id)).await?;
            print::line(&format!("Binding rule {id} deleted"))
        }
    }
}
