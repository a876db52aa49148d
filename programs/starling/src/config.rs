//! `starling config`: config entries, with Consul's flags and output.

use std::fmt;

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

    /// Form of the output
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORMAT")]
    format: EntryFormat,

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
    /// The kind, such as service-defaults
    #[arg(long, value_name = "KIND", required_unless_present = "filename")]
    kind: Option<String>,

    /// The name: a service, *, or global
    #[arg(long, value_name = "NAME", required_unless_present = "filename")]
    name: Option<String>,

    /// A file that describes the entry, in place of kind and name; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "name"])]
    filename: Option<String>,

    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    api: ApiArgs,
}

/// The form of one entry, which no table could hold.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum EntryFormat {
    /// One JSON document.
    #[default]
    Json,
}

/// Names an entry.
#[derive(Debug, clap::Args)]
pub(crate) struct Entry {
    /// The kind, such as service-defaults
    #[arg(long, value_name = "KIND")]
    kind: String,

    /// The name: a service, *, or global
    #[arg(long, value_name = "NAME")]
    name: String,
}

impl Entry {
    /// The entry that a file describes. The one whose name may be left out is `proxy-defaults/global`.
    pub(crate) fn described(document: &Document, value: &Value) -> anyhow::Result<Self> {
        let text = |name: &str| field(value.as_object()?, name)?.as_str().map(str::to_owned);
        let kind = text("kind")
            .ok_or_else(|| usage(format!("{}: Kind must be given, such as \"service-defaults\"", document.name)))?;
        Ok(Self { kind, name: text("name").unwrap_or_else(|| "global".to_owned()) })
    }

    pub(crate) fn at(&self, call: Call) -> Call {
        call.segment(&self.kind).segment(&self.name)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
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
        ConfigCommand::Read(args) => read(&surroundings.client(&args.api)?, &args).await,
        ConfigCommand::List(args) => list(&surroundings.client(&args.api)?, &args).await,
        ConfigCommand::Delete(args) => delete(&surroundings.client(&args.api)?, args).await,
    }
}

async fn write(client: &Client, args: &WriteArgs) -> anyhow::Result<Outcome> {
    let document = Document::read(&args.file)?;
    let value = document.value()?;
    let entry = Entry::described(&document, &value)?;
    let call = args.condition.on(Call::put("/v1/config").json(&value));
    let written: bool =
        client.read(call).await.with_context(|| format!("cannot write {entry} from {}", document.name))?;
    if !written {
        bail!("config entry not updated: {entry}: its ModifyIndex is another by now");
    }
    print::line(&format!("Config entry written: {entry}"))?;
    Ok(Outcome::Done)
}

async fn read(client: &Client, args: &ReadArgs) -> anyhow::Result<Outcome> {
    let entry = &args.entry;
    let value: Value =
        client.read(entry.at(Call::get("/v1/config"))).await.with_context(|| format!("cannot read {entry}"))?;
    match args.format {
        EntryFormat::Json => print::json(&value)?,
    }
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

async fn delete(client: &Client, args: DeleteArgs) -> anyhow::Result<Outcome> {
    let DeleteArgs { kind, name, filename, condition, .. } = args;
    let entry = match (kind, name, filename) {
        (Some(kind), Some(name), _) => Entry { kind, name },
        (_, _, Some(file)) => {
            let document = Document::read(&file)?;
            Entry::described(&document, &document.value()?)?
        }
        (_, _, None) => return Err(usage("either --kind and --name must be given, or --filename")),
    };
    let call = condition.on(entry.at(Call::delete("/v1/config")));
    // `{}` without a condition, and whether it held with one.
    let answer: Value = client.read(call).await.with_context(|| format!("cannot delete {entry}"))?;
    if answer == Value::Bool(false) {
        bail!("config entry not deleted: {entry}: its ModifyIndex is another by now");
    }
    print::line(&format!("Config entry deleted: {entry}"))?;
    Ok(Outcome::Done)
}
