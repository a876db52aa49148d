//! `starling kv export` and `import`: entries in a form that Consul's own command reads and writes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};

use super::read::Entry;
use super::{KV, bare, data_of};
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print;

/// Print every entry whose key begins so as JSON, for `kv import`
#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// What keys begin with; without it, all
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Write the entries that `kv export` has printed
#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The JSON; @FILE reads it from a file, - from standard input
    #[arg(value_name = "DATA", allow_hyphen_values = true)]
    data: String,

    /// What is put in front of each key
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    key: String,
    #[serde(default)]
    flags: u64,
    /// In Base64.
    #[serde(default)]
    value: String,
}

pub(super) async fn export(client: &Client, args: ExportArgs) -> anyhow::Result<Outcome> {
    let prefix = args.prefix.as_deref().map(bare).unwrap_or_default();
    let call = Call::get(KV).path(prefix).query("recurse", "true");
    let entries: Vec<Entry> = client.find(call).await?.unwrap_or_default();
    let kept = entries.into_iter().map(|entry| {
        let Entry { key, flags, value, .. } = entry;
        Kept { key, flags, value: value.unwrap_or_default() }
    });
    print::json(&kept.collect::<Vec<_>>())?;
    Ok(Outcome::Done)
}

pub(super) async fn import(client: &Client, args: ImportArgs) -> anyhow::Result<Outcome> {
    let text = data_of(&args.data)?;
    let kept: Vec<Kept> = serde_json::from_slice(&text).map_err(|error| usage(format!("DATA: {error}")))?;
    // Nothing is written of what cannot be read as a whole.
    let mut entries = Vec::new();
    for Kept { key, flags, value } in kept {
        let value = BASE64_STANDARD.decode(&value).map_err(|error| usage(format!("value of {key}: {error}")))?;
        let key = bare(&format!("{}{key}", args.prefix)).to_owned();
        if key.is_empty() {
            return Err(usage("DATA: an entry has no key"));
        }
        entries.push((key, flags, value));
    }
    for (key, flags, value) in entries {
        let call = Call::put(KV).path(&key).query("flags", &flags.to_string()).body(Bytes::from(value));
        if !client.read::<bool>(call).await? {
            print::note(&format!("error: did not write to {key}"));
            return Ok(Outcome::No);
        }
        print::line(&format!("Imported: {key}"))?;
    }
    Ok(Outcome::Done)
}
