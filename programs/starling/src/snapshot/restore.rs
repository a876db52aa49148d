//! `starling snapshot restore`.

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use starling_store::Revision;

use super::RestoreArgs;
use super::notes;
use super::progress::Progress;
use super::reading::read;
use crate::arguments::Surroundings;
use crate::client::{Call, Client};
use crate::offline::{Content, Place, Target};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format};
use crate::store::tell;

/// Revisions that are passed over behind those of a snapshot. What was written after it was saved had some of them, which must
/// not be given to other changes: three days at the fastest that the embedded store writes. etcd's documentation says the same
/// number for its own restore.
const REVISIONS_PASSED_OVER: u64 = 1_000_000_000;

/// Keys that are shown; all are in `-o json`.
const SHOWN_MAX: usize = 20;

#[derive(Debug, Deserialize)]
struct Report {
    revision: u64,
    written: u64,
    removed: u64,
    younger: Younger,
    left: Left,
}

#[derive(Debug, Deserialize)]
struct Younger {
    count: u64,
    keys: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Left {
    attached_nodes: Vec<String>,
    ca_records: u64,
    join_tokens: u64,
    virtual_addresses: u64,
    /// Servers of earlier releases refuse such files.
    #[serde(default)]
    unreadable: u64,
}

pub(super) async fn run(args: RestoreArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match &args.to {
        None if args.etcd.is_given() => {
            Err(usage("--etcd-…: name the etcd by --to etcd://HOST:PORT; without it, a server is asked"))
        }
        None => onto_mesh(&args, &surroundings.client(&args.api)?).await,
        Some(place) => into_store(&args, place, surroundings).await,
    }
}

async fn onto_mesh(args: &RestoreArgs, client: &Client) -> anyhow::Result<Outcome> {
    // Said here already if it is no good, and not after all of it was sent.
    read(&args.file, drop)?;
    let length = std::fs::metadata(&args.file).map(|metadata| metadata.len()).ok();
    let progress = Progress::of_bytes("restoring", length);
    let moves = progress.clone();
    let answer = client.upload(Call::put("/v1/snapshot"), &args.file, move |sent| moves.at(sent)).await;
    let answer = answer.context("the snapshot was not restored, or not to its end")?;
    progress.done();
    let value: Value = serde_json::from_slice(&answer).context("the answer is not what a Starling API gives")?;
    match args.output.format {
        Format::Json => print::json(&value)?,
        Format::Table => show(&serde_json::from_value(value)?)?,
    }
    Ok(Outcome::Done)
}

fn show(report: &Report) -> anyhow::Result<()> {
    let Report { revision, written, removed, younger, left } = report;
    if *written + *removed == 0 {
        print::line(&format!("Nothing to set back: the mesh is as in the snapshot (revision {revision})"))?;
    } else {
        print::line(&format!("Restored at revision {revision}: {written} records written, {removed} removed"))?;
    }
    if younger.count > 0 {
        print::line(&format!("Written by others meanwhile, and left as they are: {}", younger.count))?;
        younger.keys.iter().take(SHOWN_MAX).try_for_each(|key| print::line(&format!("  {key}")))?;
    }
    let nodes = left.attached_nodes.len();
    let lefts = [
        (nodes as u64, "nodes whose agent is attached, and answers for them"),
        (left.ca_records, "roots and keys of the CA"),
        (left.join_tokens, "join tokens"),
        (left.virtual_addresses, "virtual addresses that are taken"),
        (left.unreadable, "records that this release cannot use"),
    ];
    lefts
        .iter()
        .filter(|(count, _)| *count > 0)
        .try_for_each(|(count, what)| print::line(&format!("Different from the snapshot, and left: {count} {what}")))
}

async fn into_store(args: &RestoreArgs, place: &Place, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let mut records = Vec::new();
    let verified = read(&args.file, |record| records.push(record))?;
    let content = Content::from_records(verified.header.store, verified.header.revision, records)?;
    let way = place.way(&args.etcd, &surroundings.environment)?;
    let target = Target::open(&way, None, args.replace).await?;
    let progress = Progress::of_records("restoring");
    let after = Revision(content.revision.0.saturating_add(REVISIONS_PASSED_OVER));
    let filled = target.fill(&content, after, &|done, all| progress.set(done, all), async |_| Ok(())).await?;
    progress.done();
    tell(&content, &filled, notes::of_filled(&content, place), args.output.format)
}
