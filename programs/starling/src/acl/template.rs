//! `starling acl templated-policy`.

use serde_json::{Value, json};

use super::{ListArgs, shown};
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::definition::{Document, field};
use crate::outcome::usage;
use crate::print::{self, Format, OutputArgs};

/// Show the templates of policies, and what they come to
#[derive(Debug, clap::Args)]
pub(super) struct TemplateArgs {
    #[command(subcommand)]
    command: TemplateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TemplateCommand {
    /// List the templates
    List(ListArgs),
    Read(ReadArgs),
    Preview(PreviewArgs),
}

/// Print a template
#[derive(Debug, clap::Args)]
struct ReadArgs {
    /// Its name, such as builtin/service
    #[arg(long, value_name = "NAME")]
    name: String,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Print the policy that a template comes to
#[derive(Debug, clap::Args)]
struct PreviewArgs {
    /// Its name, such as builtin/service
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    name: Option<String>,

    /// What stands for a variable of the template, such as name:web
    #[arg(long, value_name = "VARIABLE:VALUE")]
    var: Vec<String>,

    /// Read both from a file of HCL or JSON, as in a role: `TemplatedPolicies = { "builtin/service" = { Name = "web" } }`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "var"])]
    file: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(super) async fn run(args: TemplateArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    match args.command {
        TemplateCommand::List(args) => {
            let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/acl/templated-policies")).await?;
            match args.output.format {
                Format::Json => print::json(&found),
                Format::Table => found.as_object().into_iter().flatten().try_for_each(|(name, _)| print::line(name)),
            }
        }
        TemplateCommand::Read(args) => {
            let call = Call::get("/v1/acl/templated-policy/name").path(&args.name);
            let found: Value = surroundings.client(&args.api)?.read(call).await?;
            shown::template(&found, args.output.format)
        }
        TemplateCommand::Preview(args) => {
            let (name, body) = wanted(&args)?;
            let call = Call::post("/v1/acl/templated-policy/preview").path(&name).json(&body);
            let policy: Value = surroundings.client(&args.api)?.read(call).await?;
            shown::policy(&policy, args.output.format)
        }
    }
}

/// The template's name, and what its variables stand for.
fn wanted(args: &PreviewArgs) -> anyhow::Result<(String, Value)> {
    if let Some(file) = &args.file {
        let document = Document::read(file)?;
        let none = || usage(format!("{}: there is no template in it", document.name));
        let Value::Object(given) = document.value()? else { return Err(none()) };
        let templates = field(&given, "templatedpolicies").ok_or_else(none)?;
        let templates = templates.as_array().and_then(|list| list.first()).unwrap_or(templates);
        let (name, variables) = templates.as_object().and_then(|all| all.iter().next()).ok_or_else(none)?;
        let variables = variables.as_array().and_then(|list| list.first()).unwrap_or(variables);
        let value = variables.as_object().and_then(|variables| field(variables, "name"));
        return Ok((name.clone(), value.map_or_else(|| json!({}), |value| json!({"Name": value}))));
    }
    let mut body = json!({});
    for variable in &args.var {
        let value = variable.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("name"));
        let (_, value) = value.ok_or_else(|| usage(format!("--var {variable:?} is not of the form name:VALUE")))?;
        body["Name"] = value.into();
    }
    Ok((args.name.clone().unwrap_or_default(), body))
}
