//! `starling config`: config entries, with Consul's flags and output.

use anyhow::{Context, bail};
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::definition::{Document, field};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};

/// Write, read, list and delete config entries
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Write the config entry in a file of HCL or JSON
    Write(WriteArgs),
    /// Print a config entry as JSON
    Read(ReadArgs),
    /// List the names of the config entries of a kind
    List(ListArgs),
    /// Delete a config entry
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
struct WriteArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct ReadArgs {
    #[command(flatten)]
    entry: Entry,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// The kind, such as service-defaults
    #[arg(long, value_name = "KIND")]
    kind: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    #[command(flatten)]
    entry: Entry,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    api: ApiArgs,
}

/// Names an entry.
#[derive(Debug, clap::Args)]
struct Entry {
    /// The kind, such as service-defaults
    #[arg(long, value_name = "KIND")]
    kind: String,

    /// The name: a service, *, or global
    #[arg(long, value_name = "NAME")]
    name: String,
}

impl Entry {
    fn at(&self, call: Call) -> Call {
        call.segment(&self.kind).segment(&self.name)
    }
}

/// Compare and set.
#[derive(Debug, clap::Args)]
struct Condition {
    /// Only if the entry's ModifyIndex is as given; with 0, only if there is no such entry
    #[arg(long, requires = "modify_index")]
    cas: bool,

    /// The ModifyIndex for --cas
    #[arg(long, value_name = "N", requires = "cas")]
    modify_index: Option<u64>,
}

impl Condition {
    fn on(&self, call: Call) -> Call {
        match self.modify_index {
            Some(index) if self.cas => call.query("cas", &index.to_string()),
            Some(_) | None => call,
        }
    }
}

pub(crate) async fn run(args: ConfigArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        ConfigCommand::Write(args) => write(&surroundings.client(&args.api)?, &args).await,
        ConfigCommand::Read(args) => read(&surroundings.client(&args.api)?, &args.entry).await,
        ConfigCommand::List(args) => list(&surroundings.client(&args.api)?, &args).await,
        ConfigCommand::Delete(args) => delete(&surroundings.client(&args.api)?, &args).await,
    }
}

async fn write(client: &Client, args: &WriteArgs) -> anyhow::Result<Outcome> {
    let document = Document::read(&args.file)?;
    let value = document.value()?;
    let entry = described(&value)
        .ok_or_else(|| usage(format!("{}: Kind must be given, such as \"service-defaults\"", document.name)))?;
    let call = args.condition.on(Call::put("/v1/config").json(&value));
    let written: bool =
        client.read(call).await.with_context(|| format!("cannot write {entry} from {}", document.name))?;
    if !written {
        bail!("config entry not updated: {entry}: its ModifyIndex is another by now");
    }
    print::line(&format!("Config entry written: {entry}"))?;
    Ok(Outcome::Done)
}

/// `KIND/NAME`. The one entry whose name may be left out is `proxy-defaults/global`.
fn described(value: &Value) -> Option<String> {
    let fields = value.as_object()?;
    let kind = field(fields, "kind")?.as_str()?;
    let name = field(fields, "name").and_then(Value::as_str).unwrap_or("global");
    Some(format!("{kind}/{name}"))
}

async fn read(client: &Client, entry: &Entry) -> anyhow::Result<Outcome> {
    let Entry { kind, name } = entry;
    let value: Value =
        client.read(entry.at(Call::get("/v1/config"))).await.with_context(|| format!("cannot read {kind}/{name}"))?;
    print::json(&value)?;
    Ok(Outcome::Done)
}

async fn list(client: &Client, args: &ListArgs) -> anyhow::Result<Outcome> {
    let call = Call::get("/v1/config").segment(&args.kind);
    let entries: Vec<Value> = client.read(call).await.with_context(|| format!("cannot list {}", args.kind))?;
    match args.output.format {
        Format::Json => print::json(&entries)?,
        Format::Table => {
            for name in entries.iter().filter_map(|entry| entry["Name"].as_str()) {
                print::line(name)?;
            }
        }
    }
    Ok(Outcome::Done)
}

async fn delete(client: &Client, args: &DeleteArgs) -> anyhow::Result<Outcome> {
    let Entry { kind, name } = &args.entry;
    let call = args.condition.on(args.entry.at(Call::delete("/v1/config")));
    // `{}` without a condition, and whether it held with one.
    let answer: Value = client.read(call).await.with_context(|| format!("cannot delete {kind}/{name}"))?;
    if answer == Value::Bool(false) {
        bail!("config entry not deleted: {kind}/{name}: its ModifyIndex is another by now");
    }
    print::line(&format!("Config entry deleted: {kind}/{name}"))?;
    Ok(Outcome::Done)
}
