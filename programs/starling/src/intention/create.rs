//! `starling intention create`.

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{EXACT, Intention, pair};
use crate::client::{ApiArgs, Call, Client};
use crate::definition::{Document, field};
use crate::outcome::{Outcome, usage};
use crate::print;

/// Fields of a file that say which intention it is; the API takes them from the query.
const NAMING: &[&str] = &["SourceName", "DestinationName", "SourceNS", "DestinationNS"];

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

    /// Metadata, KEY=VALUE; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,

    /// Replace an intention of the same source and destination; without it, one that is there is an error
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// One intention to be written.
struct Wanted {
    source: String,
    destination: String,
    body: Value,
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
    let mut body = json!({"Action": if args.deny { "deny" } else { "allow" }});
    if !args.meta.is_empty() {
        let mut meta = Map::new();
        for text in &args.meta {
            let (key, value) =
                text.split_once('=').ok_or_else(|| usage(format!("--meta {text:?} is not of the form KEY=VALUE")))?;
            meta.insert(key.to_owned(), value.into());
        }
        body["Meta"] = meta.into();
    }
    Ok(vec![Wanted { source: source.clone(), destination: destination.clone(), body }])
}

fn from_file(file: &str) -> anyhow::Result<Wanted> {
    let document = Document::read(file)?;
    let Value::Object(mut fields) = document.value()? else { return Err(usage(format!("{file}: no object"))) };
    let name = |wanted: &str| -> anyhow::Result<String> {
        let text = field(&fields, &wanted.to_ascii_lowercase()).and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| usage(format!("{}: {wanted} must be given as text", document.name)))
    };
    let (source, destination) = (name("SourceName")?, name("DestinationName")?);
    let names: Vec<String> = NAMING.iter().map(|name| name.to_ascii_lowercase()).collect();
    fields.retain(|key, _| !names.contains(&key.replace('_', "").to_ascii_lowercase()));
    Ok(Wanted { source, destination, body: Value::Object(fields) })
}

async fn write(client: &Client, wanted: Wanted, replace: bool) -> anyhow::Result<()> {
    let Wanted { source, destination, body } = wanted;
    let cannot = || format!("cannot create the intention {source} => {destination}");
    let exact = |call| pair(call, &source, &destination);
    let there: Option<Intention> = client.find(exact(Call::get(EXACT))).await.with_context(cannot)?;
    if let Some(there) = there.as_ref().filter(|_| !replace) {
        bail!("{}: there is one already, {there}; --replace replaces it", cannot());
    }
    client.send(exact(Call::put(EXACT).json(&body))).await.with_context(cannot)?;
    let mut shown = body;
    shown["SourceName"] = source.as_str().into();
    shown["DestinationName"] = destination.as_str().into();
    let verb = if there.is_some() { "Replaced" } else { "Created" };
    match Intention::deserialize(&shown) {
        Ok(intention) => print::line(&format!("{verb}: {intention}")),
        // A file may spell the fields in another way; the API has understood it.
        Err(_) => print::line(&format!("{verb}: {source} => {destination}")),
    }
}
