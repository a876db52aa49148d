//! `starling apply`: config entries from files, and the wait until they are in effect.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::config::Entry;
use crate::definition::{Document, STANDARD_INPUT, field, listed};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};
use crate::receipt::{self, Receipt, WaitArgs};

/// Endings of files that are read from a folder.
const ENDINGS: &[&str] = &["hcl", "json"];

/// Write the config entries in files of HCL or JSON, and wait until they are in effect
///
/// A file holds one entry; a list of entries, in JSON; or several under config_entries and bootstrap, as in Consul's
/// own configuration. Every file is read before anything is written. With --wait or --until, exits 0 when what was
/// waited for holds for each entry, 1 if for one it never will because someone refused the change, and 4 if the time
/// is over and someone has yet to apply one.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// A file, a folder with files that end in .hcl or .json, or - for standard input; may be given again
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<String>,

    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// An entry on its way.
struct Written {
    entry: Entry,
    /// That of the change that made the entry what it is.
    revision: u64,
    /// If it was waited for and is remembered.
    receipt: Option<Value>,
}

pub(crate) async fn run(args: ApplyArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let entries = entries(&args.files)?;
    let mut all = Vec::new();
    for (entry, value) in entries {
        let written = write(&client, entry, &value).await?;
        if args.output.format == Format::Table {
            print::line(&format!("Config entry applied: {} (revision {})", written.entry, written.revision))?;
        }
        all.push(written);
    }
    let outcome = wait(&client, &mut all, &args).await?;
    if args.output.format == Format::Json {
        let form = |written: &Written| json!({"entry": written.entry.to_string(), "revision": written.revision, "receipt": written.receipt});
        print::json(&all.iter().map(form).collect::<Vec<_>>())?;
    }
    Ok(outcome)
}

/// Waits for every entry; all of them share the time.
async fn wait(client: &Client, all: &mut [Written], args: &ApplyArgs) -> anyhow::Result<Outcome> {
    let Some(wait) = args.wait.wait() else { return Ok(Outcome::Done) };
    let (deadline, until) = (Instant::now() + wait, args.wait.until());
    let mut outcome = Outcome::Done;
    for written in all {
        let left = deadline.saturating_duration_since(Instant::now());
        written.receipt = receipt::wait(client, written.revision, &until, left).await?;
        // What was written so long ago that it is forgotten is not waited for.
        let Some(value) = &written.receipt else { continue };
        let receipt = Receipt::of(value)?;
        if args.output.format == Format::Table {
            print::line(&receipt.summary())?;
            receipt.show_refusals()?;
        }
        outcome = match (outcome, receipt.outcome()) {
            (Outcome::No, _) | (_, Outcome::No) => Outcome::No,
            (Outcome::StillOutstanding, _) => Outcome::StillOutstanding,
            (Outcome::Done, next) => next,
        };
    }
    Ok(outcome)
}

async fn write(client: &Client, entry: Entry, value: &Value) -> anyhow::Result<Written> {
    let cannot = || format!("cannot apply {entry}");
    client.send(Call::put("/v1/config").json(value)).await.with_context(cannot)?;
    // The answer to a write that changes nothing names the catalog's revision; the entry knows its own.
    let now: Value = client.read(entry.at(Call::get("/v1/config"))).await.with_context(cannot)?;
    let revision =
        now["ModifyIndex"].as_u64().with_context(|| format!("the API gives {entry} without a ModifyIndex"))?;
    Ok(Written { entry, revision, receipt: None })
}

/// The entries of every file, in the order of the files.
fn entries(files: &[String]) -> anyhow::Result<Vec<(Entry, Value)>> {
    let mut entries = Vec::new();
    for file in files {
        for document in documents(file)? {
            for value in split(document.values()?) {
                entries.push((Entry::described(&document, &value)?, value));
            }
        }
    }
    if entries.is_empty() {
        return Err(usage(format!("{}: there is no config entry", files.join(", "))));
    }
    Ok(entries)
}

fn documents(file: &str) -> anyhow::Result<Vec<Document>> {
    if file == STANDARD_INPUT || !Path::new(file).is_dir() {
        return Ok(vec![Document::read(file)?]);
    }
    let cannot = |error: std::io::Error| usage(format!("cannot read {file}: {error}"));
    let mut paths = Vec::<PathBuf>::new();
    for item in std::fs::read_dir(file).map_err(cannot)? {
        let path = item.map_err(cannot)?.path();
        if path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ENDINGS.contains(&ending)) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| Document::read(&path.to_string_lossy())).collect()
}

/// Takes the entries out of `config_entries { bootstrap … }`.
fn split(values: Vec<Value>) -> Vec<Value> {
    let below = |value: &Value, name: &str| field(value.as_object()?, name).cloned();
    values
        .into_iter()
        .flat_map(|value| match below(&value, "configentries") {
            None => vec![value],
            Some(groups) => {
                listed(groups).iter().filter_map(|group| below(group, "bootstrap")).flat_map(listed).collect()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, text: &str) -> Vec<String> {
        let document = Document { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
        let values = split(document.values().unwrap());
        values.iter().map(|value| Entry::described(&document, value).unwrap().to_string()).collect()
    }

    #[test]
    fn a_file_holds_one_entry_or_several() {
        let one = "Kind = \"service-defaults\"\nName = \"web\"";
        assert_eq!(names("one.hcl", one), ["service-defaults/web"]);
        let several = r#"config_entries {
            bootstrap { kind = "proxy-defaults" }
            bootstrap { kind = "service-defaults" name = "web" }
        }"#;
        assert_eq!(names("several.hcl", several), ["proxy-defaults/global", "service-defaults/web"]);
        let single = r#"config_entries { bootstrap = [{ kind = "service-defaults", name = "api" }] }"#;
        assert_eq!(names("single.hcl", single), ["service-defaults/api"]);
        let list = r#"[{"Kind": "service-defaults", "Name": "a"}, {"Kind": "service-intentions", "Name": "b"}]"#;
        assert_eq!(names("list.json", list), ["service-defaults/a", "service-intentions/b"]);
    }
}
