//! `starling intention`: who may call whom, with Consul's flags and output.

mod create;

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use starling_model::Uuid;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};

/// Where one intention is, by source and destination.
const EXACT: &str = "/v1/connect/intentions/exact";

/// Say who may call whom, and ask
#[derive(Debug, clap::Args)]
pub(crate) struct IntentionArgs {
    #[command(subcommand)]
    command: IntentionCommand,
}

#[derive(Debug, clap::Subcommand)]
enum IntentionCommand {
    Create(create::CreateArgs),
    /// Delete an intention
    #[command(
        override_usage = "starling intention delete [OPTIONS] SRC DST\n       starling intention delete [OPTIONS] ID"
    )]
    Delete(NamedArgs),
    /// List every intention, the deciding ones first
    List(ListArgs),
    /// Tell whether a connection is allowed: exits 0 if it is, 1 if not
    Check(PairArgs),
    /// Show one intention
    #[command(override_usage = "starling intention get [OPTIONS] SRC DST\n       starling intention get [OPTIONS] ID")]
    Get(NamedArgs),
    Match(MatchArgs),
}

/// A source and a destination.
#[derive(Debug, clap::Args)]
struct PairArgs {
    /// Source: a service, or * for every one
    #[arg(value_name = "SRC")]
    source: String,

    /// Destination: a service, or * for every one
    #[arg(value_name = "DST")]
    destination: String,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// A source and a destination, as [`PairArgs`], where Consul also takes an ID.
#[derive(Debug, clap::Args)]
struct NamedArgs {
    /// Source: a service, or * for every one; alone, the ID of the intention
    #[arg(value_name = "SRC|ID")]
    source: String,

    /// Destination: a service, or * for every one
    #[arg(value_name = "DST")]
    destination: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

impl NamedArgs {
    /// Source and destination: as given, or, by the form that Consul calls deprecated, those of the intention of this ID.
    async fn names(&self, client: &Client) -> anyhow::Result<(String, String)> {
        let Self { source, destination, .. } = self;
        if let Some(destination) = destination {
            return Ok((source.clone(), destination.clone()));
        }
        if source.parse::<Uuid>().is_err() {
            return Err(usage(format!("{source:?} alone names no intention: give SRC and DST, or the ID of one")));
        }
        let found: Option<Intention> = client.find(Call::get("/v1/connect/intentions").segment(source)).await?;
        let found = found.ok_or_else(|| anyhow::anyhow!("there is no intention with the ID {source}"))?;
        Ok((found.source_name, found.destination_name))
    }
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// List the intentions that cover a service, in the order in which they are tried
#[derive(Debug, clap::Args)]
struct MatchArgs {
    /// The service
    #[arg(value_name = "SRC|DST")]
    name: String,

    /// Those with the service as source
    #[arg(long, conflicts_with = "destination")]
    source: bool,

    /// Those with the service as destination, which is what is meant without a flag
    #[arg(long)]
    destination: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// An intention as the API gives it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Intention {
    source_name: String,
    destination_name: String,
    #[serde(default)]
    action: String,
    #[serde(default)]
    permissions: Vec<Value>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    meta: BTreeMap<String, String>,
    #[serde(default)]
    precedence: u32,
}

impl Intention {
    /// The verdict, or how many rules there are for single requests.
    fn verdict(&self) -> String {
        match self.permissions.len() {
            0 => self.action.clone(),
            1 => "1 permission".to_owned(),
            many => format!("{many} permissions"),
        }
    }
}

impl fmt::Display for Intention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} => {} ({})", self.source_name, self.destination_name, self.verdict())
    }
}

pub(crate) async fn run(args: IntentionArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        IntentionCommand::Create(args) => create::run(&surroundings.client(&args.api)?, args).await,
        IntentionCommand::Delete(args) => delete(&surroundings.client(&args.api)?, &args).await,
        IntentionCommand::List(args) => list(&surroundings.client(&args.api)?, args.output.format).await,
        IntentionCommand::Check(args) => check(&surroundings.client(&args.api)?, &args).await,
        IntentionCommand::Get(args) => get(&surroundings.client(&args.api)?, &args).await,
        IntentionCommand::Match(args) => matching(&surroundings.client(&args.api)?, &args).await,
    }
}

fn pair(call: Call, source: &str, destination: &str) -> Call {
    call.query("source", source).query("destination", destination)
}

async fn delete(client: &Client, args: &NamedArgs) -> anyhow::Result<Outcome> {
    let (source, destination) = &args.names(client).await?;
    let cannot = || format!("cannot delete the intention {source} => {destination}");
    // The API takes the deletion of what is not there for done, as Consul does; a typing error deserves better.
    let there: Option<Value> = client.find(pair(Call::get(EXACT), source, destination)).await.with_context(cannot)?;
    if there.is_none() {
        return Ok(missing(source, destination));
    }
    client.send(pair(Call::delete(EXACT), source, destination)).await.with_context(cannot)?;
    match args.output.format {
        Format::Table => print::line("Intention deleted.")?,
        Format::Json => print::json(&serde_json::json!({"deleted": true}))?,
    }
    Ok(Outcome::Done)
}

fn missing(source: &str, destination: &str) -> Outcome {
    print::note(&format!(
        "error: there is no intention {source} => {destination}; `starling intention list` shows what there is"
    ));
    Outcome::No
}

async fn list(client: &Client, format: Format) -> anyhow::Result<Outcome> {
    let value: Value = client.read(Call::get("/v1/connect/intentions")).await.context("cannot list the intentions")?;
    show(&value, format)?;
    Ok(Outcome::Done)
}

fn show(value: &Value, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return print::json(value);
    }
    let intentions = Vec::<Intention>::deserialize(value).context("the API lists intentions in an unknown form")?;
    if intentions.is_empty() {
        print::note("There are no intentions.");
        return Ok(());
    }
    let mut table = print::table(&["Source", "Action", "Destination", "Precedence"]);
    for intention in intentions {
        let (verdict, precedence) = (intention.verdict(), intention.precedence.to_string());
        table.add_row([intention.source_name, verdict, intention.destination_name, precedence]);
    }
    print::rows(&table)
}

async fn check(client: &Client, args: &PairArgs) -> anyhow::Result<Outcome> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Verdict {
        allowed: bool,
    }
    let PairArgs { source, destination, .. } = args;
    let call = pair(Call::get("/v1/connect/intentions/check"), source, destination);
    let Verdict { allowed } =
        client.read(call).await.with_context(|| format!("cannot check {source} => {destination}"))?;
    match args.output.format {
        Format::Table => print::line(if allowed { "Allowed" } else { "Denied" })?,
        Format::Json => print::json(&serde_json::json!({"Allowed": allowed}))?,
    }
    Ok(if allowed { Outcome::Done } else { Outcome::No })
}

async fn get(client: &Client, args: &NamedArgs) -> anyhow::Result<Outcome> {
    let (source, destination) = &args.names(client).await?;
    let call = pair(Call::get(EXACT), source, destination);
    let found: Option<Value> =
        client.find(call).await.with_context(|| format!("cannot read the intention {source} => {destination}"))?;
    let Some(value) = found else { return Ok(missing(source, destination)) };
    if args.output.format == Format::Json {
        print::json(&value)?;
        return Ok(Outcome::Done);
    }
    let intention = Intention::deserialize(&value).context("the API gives intentions in an unknown form")?;
    let mut rows = vec![("Source", intention.source_name), ("Destination", intention.destination_name)];
    if !intention.action.is_empty() {
        rows.push(("Action", intention.action));
    }
    if !intention.description.is_empty() {
        rows.push(("Description", intention.description));
    }
    rows.push(("Precedence", intention.precedence.to_string()));
    let width = rows.iter().map(|(name, _)| name.len() + 1).max().unwrap_or_default();
    for (name, text) in rows {
        print::line(&format!("{:width$}  {text}", format!("{name}:")))?;
    }
    for (key, text) in intention.meta {
        print::line(&format!("{:width$}  {text}", format!("Meta[{key}]:")))?;
    }
    if !intention.permissions.is_empty() {
        print::line("Permissions:")?;
        print::json(&intention.permissions)?;
    }
    Ok(Outcome::Done)
}

async fn matching(client: &Client, args: &MatchArgs) -> anyhow::Result<Outcome> {
    let by = if args.source { "source" } else { "destination" };
    let call = Call::get("/v1/connect/intentions/match").query("by", by).query("name", &args.name);
    let mut matches: BTreeMap<String, Option<Value>> =
        client.read(call).await.with_context(|| format!("cannot match {}", args.name))?;
    let value = matches.remove(&args.name).flatten().unwrap_or_else(|| Value::Array(Vec::new()));
    if args.output.format == Format::Json {
        print::json(&value)?;
        return Ok(Outcome::Done);
    }
    for intention in Vec::<Intention>::deserialize(&value).context("the API lists intentions in an unknown form")? {
        print::line(&intention.to_string())?;
    }
    Ok(Outcome::Done)
}
