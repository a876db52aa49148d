//! `starling kv get`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::{KV, bare};
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::Outcome;
use crate::print;

/// Print a value, or what begins with a prefix
#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    /// The key, or what keys begin with
    #[arg(value_name = "KEY", required_unless_present_any = ["recurse", "keys"])]
    key: Option<String>,

    /// Print values in Base64
    #[arg(long)]
    base64: bool,

    /// Print what is known of the entry besides
    #[arg(long)]
    detailed: bool,

    /// Print keys that begin so, and no values
    #[arg(long, conflicts_with = "recurse")]
    keys: bool,

    /// Print every entry whose key begins so
    #[arg(long)]
    recurse: bool,

    /// With --keys: what divides keys into levels, of which one is printed
    #[arg(long, value_name = "TEXT", default_value = "/")]
    separator: String,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// An entry as the API has it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    pub(super) key: String,
    /// In Base64; `null` for an empty one.
    pub(super) value: Option<String>,
    pub(super) flags: u64,
    create_index: u64,
    modify_index: u64,
    lock_index: u64,
    session: Option<String>,
}

impl Entry {
    pub(super) fn bytes(&self) -> anyhow::Result<Vec<u8>> {
        Ok(BASE64_STANDARD.decode(self.value.as_deref().unwrap_or_default())?)
    }
}

pub(super) async fn run(client: &Client, args: GetArgs) -> anyhow::Result<Outcome> {
    let key = args.key.as_deref().map(bare).unwrap_or_default();
    let call = Call::get(KV).path(key);
    if args.keys {
        let call = call.query("keys", "true").query("separator", &args.separator);
        let keys: Vec<String> = client.find(call).await?.unwrap_or_default();
        keys.iter().try_for_each(|key| print::line(key))?;
        return Ok(Outcome::Done);
    }
    let call = if args.recurse { call.query("recurse", "true") } else { call };
    let entries: Vec<Entry> = client.find(call).await?.unwrap_or_default();
    if entries.is_empty() && !args.recurse {
        print::note(&format!("error: no key exists at: {key}"));
        return Ok(Outcome::No);
    }
    for (number, one) in entries.iter().enumerate() {
        let value = if args.base64 { one.value.clone().unwrap_or_default().into_bytes() } else { one.bytes()? };
        if args.detailed {
            if number > 0 {
                print::line("")?;
            }
            detailed(one, &value)?;
        } else if args.recurse {
            print::bytes_line(&[one.key.as_bytes(), b":", &value].concat())?;
        } else {
            print::bytes_line(&value)?;
        }
    }
    Ok(Outcome::Done)
}

fn detailed(entry: &Entry, value: &[u8]) -> anyhow::Result<()> {
    let rows = [
        ("CreateIndex", Value::from(entry.create_index)),
        ("Flags", entry.flags.into()),
        ("Key", entry.key.as_str().into()),
        ("LockIndex", entry.lock_index.into()),
        ("ModifyIndex", entry.modify_index.into()),
        ("Session", entry.session.as_deref().unwrap_or("-").into()),
    ];
    for (name, value) in rows {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        print::line(&format!("{name:<16} {text}"))?;
    }
    print::bytes_line(&[format!("{:<16} ", "Value").as_bytes(), value].concat())
}
