//! `starling intention create`.

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use super::{EXACT, Intention, pair};
use crate::client::{ApiArgs, Call, Client};
use crate::definition::{self, Document, field};
use crate::outcome::{Outcome, usage};
use crate::print;

/// Fields of a file that say which intention it is; the API takes them from the query.
const NAMING: &[&str] = &["sourcename", "destinationname", "sourcens", "destinationns"];

/// Create intentions: allow unless --deny is given
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "starling intention create [OPTIONS] SRC DST\n       starling intention create [OPTIONS] --file FILE..."
)]
pub(super) struct CreateArgs {
    /// Source and destination: services, or * for every one; with --file, the files
    #[arg(value_name = "SRC DST|FILE", required = true, num_args = 1..)]
    operands: Vec<String>,

    /// Allow what matches
    #[arg(long, conflicts_with_all = ["deny", "file"])]
    allow: bool,

    /// Deny what matches
    #[arg(long, conflicts_with = "file")]
    deny: bool,

    /// Read the intentions from files of HCL or JSON, - for standard input
    #[arg(long, conflicts_with = "meta")]
    file: bool,

    /// Metadata of the destination's intentions, KEY=VALUE; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,

    /// Replace an intention of the same source and destination; without it, one that is there is an error
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Attempts to add metadata while others write the same entry.
const META_ATTEMPTS: usize = 5;

/// One intention to be written.
struct Wanted {
    source: String,
    destination: String,
    body: Map<String, Value>,
    /// Of the destination's config entry, which is where intentions keep metadata.
    meta: Map<String, Value>,
}

pub(super) async fn run(client: &Client, args: CreateArgs) -> anyhow::Result<Outcome> {
    for wanted in wanted(&args)? {
        write(client, wanted, args.replace).await?;
    }
    Ok(Outcome::Done)
}

/// Everything that is to be written, before anything is.
fn wanted(args: &CreateArgs) -> anyhow::Result<Vec<Wanted>> {
    if args.file {
        return args.operands.iter().map(|file| from_file(file)).collect();
    }
    let [source, destination] = args.operands.as_slice() else {
        return Err(usage("intention create takes two names, SRC and DST; files need --file"));
    };
    let action = if args.deny { "deny" } else { "allow" };
    let body = Map::from_iter([("Action".to_owned(), action.into())]);
    let meta = definition::pairs("--meta", &args.meta)?;
    Ok(vec![Wanted { source: source.clone(), destination: destination.clone(), body, meta }])
}

fn from_file(file: &str) -> anyhow::Result<Wanted> {
    let document = Document::read(file)?;
    let Value::Object(fields) = document.value()? else { return Err(usage(format!("{file}: no object"))) };
    let name = |wanted: &str| -> anyhow::Result<String> {
        let text = field(&fields, &wanted.to_ascii_lowercase()).and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| usage(format!("{}: {wanted} must be given as text", document.name)))
    };
    let (source, destination) = (name("SourceName")?, name("DestinationName")?);
    let mut meta = Map::new();
    let mut body = Map::new();
    for (name, value) in fields {
        match (definition::plain(&name).as_str(), value) {
            (name, _) if NAMING.contains(&name) => {}
            ("meta", Value::Object(pairs)) => meta = pairs,
            (_, value) => {
                body.insert(name, value);
            }
        }
    }
    Ok(Wanted { source, destination, body, meta })
}

async fn write(client: &Client, wanted: Wanted, replace: bool) -> anyhow::Result<()> {
    let Wanted { source, destination, body, meta } = wanted;
    let cannot = || format!("cannot create the intention {source} => {destination}");
    let exact = |call| pair(call, &source, &destination);
    let there: Option<Intention> = client.find(exact(Call::get(EXACT))).await.with_context(cannot)?;
    if let Some(there) = there.as_ref().filter(|_| !replace) {
        bail!("{}: there is one already, {there}; --replace replaces it", cannot());
    }
    client.send(exact(Call::put(EXACT).json(&Value::Object(body)))).await.with_context(cannot)?;
    if !meta.is_empty() {
        let cannot = || format!("the intention {source} => {destination} is written, but its metadata is not");
        add_meta(client, &destination, &meta).await.with_context(cannot)?;
    }
    // As the API understood it: a file may spell fields in many ways.
    let written: Intention = client.read(exact(Call::get(EXACT))).await.with_context(cannot)?;
    print::line(&format!("{}: {written}", if there.is_some() { "Replaced" } else { "Created" }))
}

/// Adds metadata to the config entry that holds the intentions for a destination.
async fn add_meta(client: &Client, destination: &str, meta: &Map<String, Value>) -> anyhow::Result<()> {
    for _ in 0..META_ATTEMPTS {
        let call = Call::get("/v1/config/service-intentions").segment(destination);
        let mut entry: Value = client.read(call).await?;
        let modified = entry["ModifyIndex"].as_u64().unwrap_or_default().to_string();
        let mut all = entry["Meta"].as_object().cloned().unwrap_or_default();
        all.extend(meta.clone());
        entry["Meta"] = all.into();
        let call = Call::put("/v1/config").query("cas", &modified).json(&entry);
        if client.read::<bool>(call).await? {
            return Ok(());
        }
    }
    bail!("service-intentions/{destination} is being changed by others; try again")
}
