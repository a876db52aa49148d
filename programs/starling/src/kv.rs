//! `starling kv`: the key-value store, with Consul's flags and output.

mod read;
mod transfer;

use std::io::Read;

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Bytes;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print;

const KV: &str = "/v1/kv";

/// Read and write the key-value store
#[derive(Debug, clap::Args)]
pub(crate) struct KvArgs {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KvCommand {
    Get(read::GetArgs),
    Put(PutArgs),
    Delete(DeleteArgs),
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
}

/// Write a value
#[derive(Debug, clap::Args)]
struct PutArgs {
    /// The key
    #[arg(value_name = "KEY")]
    key: String,

    /// The value; @FILE reads it from a file, - from standard input, and without it the value is empty
    #[arg(value_name = "DATA", allow_hyphen_values = true)]
    data: Option<String>,

    /// DATA is in Base64
    #[arg(long)]
    base64: bool,

    /// A number that is kept with the value
    #[arg(long, value_name = "N")]
    flags: Option<u64>,

    /// Write only if the key was last modified at --modify-index
    #[arg(long, requires = "modify_index")]
    cas: bool,

    /// For --cas; 0 means only if there is no such key
    #[arg(long, value_name = "INDEX", requires = "cas")]
    modify_index: Option<u64>,

    /// Lock the key for --session
    #[arg(long, requires = "session", conflicts_with = "release")]
    acquire: bool,

    /// Unlock the key, which --session holds
    #[arg(long, requires = "session")]
    release: bool,

    /// ID of a session
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    #[command(flatten)]
    api: ApiArgs,
}

/// Delete a key, or all keys that begin so
#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// The key, or with --recurse what keys begin with
    #[arg(value_name = "KEY", required_unless_present = "recurse")]
    key: Option<String>,

    /// Delete every key that begins so
    #[arg(long, conflicts_with = "cas")]
    recurse: bool,

    /// Delete only if the key was last modified at --modify-index
    #[arg(long, requires = "modify_index")]
    cas: bool,

    /// For --cas
    #[arg(long, value_name = "INDEX", requires = "cas")]
    modify_index: Option<u64>,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: KvArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        KvCommand::Get(args) => read::run(&surroundings.client(&args.api)?, args).await,
        KvCommand::Put(args) => put(&surroundings.client(&args.api)?, args).await,
        KvCommand::Delete(args) => delete(&surroundings.client(&args.api)?, args).await,
        KvCommand::Export(args) => transfer::export(&surroundings.client(&args.api)?, args).await,
        KvCommand::Import(args) => transfer::import(&surroundings.client(&args.api)?, args).await,
    }
}

async fn put(client: &Client, args: PutArgs) -> anyhow::Result<Outcome> {
    let key = bare(&args.key);
    if key.is_empty() {
        return Err(usage("KEY must not be empty"));
    }
    let mut value = match &args.data {
        Some(data) => data_of(data)?,
        None => Vec::new(),
    };
    if args.base64 {
        value = BASE64_STANDARD.decode(value.trim_ascii()).map_err(|error| usage(format!("DATA: {error}")))?;
    }
    let mut call = Call::put(KV).path(key).body(Bytes::from(value));
    if let Some(flags) = args.flags {
        call = call.query("flags", &flags.to_string());
    }
    if let Some(index) = args.modify_index {
        call = call.query("cas", &index.to_string());
    }
    if let Some(session) = &args.session {
        call = match (args.acquire, args.release) {
            (true, _) => call.query("acquire", session),
            (_, true) => call.query("release", session),
            (false, false) => return Err(usage("--session goes with --acquire or --release")),
        };
    }
    let why = match (args.cas, args.acquire || args.release) {
        (true, _) => "CAS failed",
        (_, true) => "the lock is another's, or the session is not there",
        (false, false) => "the store did not take it",
    };
    if client.read::<bool>(call).await? {
        print::line(&format!("Success! Data written to: {key}"))?;
        return Ok(Outcome::Done);
    }
    print::note(&format!("error: did not write to {key}: {why}"));
    Ok(Outcome::No)
}

async fn delete(client: &Client, args: DeleteArgs) -> anyhow::Result<Outcome> {
    let key = args.key.as_deref().map(bare).unwrap_or_default();
    let mut call = Call::delete(KV).path(key);
    if args.recurse {
        call = call.query("recurse", "true");
    }
    if let Some(index) = args.modify_index {
        call = call.query("cas", &index.to_string());
    }
    if !client.read::<bool>(call).await? {
        print::note(&format!("error: did not delete {key}: CAS failed"));
        return Ok(Outcome::No);
    }
    let what = if args.recurse { "keys with prefix" } else { "key" };
    print::line(&format!("Success! Deleted {what}: {key}"))?;
    Ok(Outcome::Done)
}

/// A key as it stands in a path, which begins with a slash itself.
fn bare(key: &str) -> &str {
    key.trim_start_matches('/')
}

/// What `@FILE`, `-` or the text itself holds.
fn data_of(data: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match data.strip_prefix('@') {
        Some(file) => {
            return std::fs::read(file).map_err(|error| usage(format!("cannot read {file}: {error}")));
        }
        None if data == "-" => {
            std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        }
        None => bytes.extend_from_slice(data.as_bytes()),
    }
    Ok(bytes)
}
