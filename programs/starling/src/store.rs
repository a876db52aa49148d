//! `starling store`: moves what a mesh knows from one store to another, while no server runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::json;

use crate::arguments::Surroundings;
use crate::offline::{Filled, Place, Source, Target, put_aside};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};
use crate::server::etcd::{EtcdArgs, TargetEtcdArgs};
use crate::snapshot::notes;
use crate::snapshot::progress::Progress;

/// Move what a mesh knows from one store to another
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    Copy(Box<CopyArgs>),
}

/// Copy a store that no server runs on to an empty one, and compare the two
///
/// A store is embedded:DATA_DIR, or etcd://HOST:PORT,HOST:PORT/PREFIX. Everything is copied but what speaks of servers and
/// agents that run. Both are read back and compared by SHA-256 before the copy is put in place. Its revisions go on where
/// those of the source end, so that no index that a client has heard of goes back; agents begin anew.
///
/// Where a data directory's store is copied to an etcd, its folder is put aside, so that a server with this data directory
/// starts with --store etcd://…, and none starts on what is out of date; --keep-source leaves it.
#[derive(Debug, clap::Args)]
struct CopyArgs {
    /// What is copied
    #[arg(value_name = "SOURCE")]
    source: Place,

    /// Where to
    #[arg(value_name = "TARGET")]
    target: Place,

    /// Put aside, or on etcd remove, what the target holds
    #[arg(long)]
    replace: bool,

    /// Leave the data directory that is copied as it is, ready to be served again
    #[arg(long)]
    keep_source: bool,

    #[command(flatten)]
    etcd: EtcdArgs,
    #[command(flatten)]
    target_etcd: TargetEtcdArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: StoreArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        StoreCommand::Copy(args) => copy(*args, surroundings).await,
    }
}

async fn copy(args: CopyArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let CopyArgs { source, target, replace, keep_source, etcd, target_etcd, output } = args;
    if source == target {
        return Err(usage("the two stores are one"));
    }
    let environment = &surroundings.environment;
    let (from, to) = (source.way(&etcd, environment)?, target.way(&target_etcd.given().unwrap_or(etcd), environment)?);
    let open = Source::open(&from).await.context("the source")?;
    let content = open.read_alone().await?;
    // A server of this data directory goes on with the copy.
    let moved = match (&source, &target) {
        (Place::Embedded(directory), Place::Etcd(_)) if !keep_source => Some(directory.as_path()),
        (Place::Embedded(_) | Place::Etcd(_), _) => None,
    };
    let filling = Target::open(&to, moved, replace).await.context("the target")?;
    let progress = Progress::of_records("copying");
    let mut put_away = None;
    let check = async |copied| {
        let again = open.read_alone().await?.fingerprint();
        ensure!(again == copied, "the source was written to meanwhile: {again} in place of {copied}; copy it again");
        put_away = moved.map(put_aside).transpose()?.flatten();
        Ok(())
    };
    let filled = filling.fill(&content, content.revision, &|done, all| progress.set(done, all), check).await;
    let filled = match filled {
        Ok(filled) => filled,
        Err(error) => {
            put_back(moved, put_away.as_deref());
            return Err(error);
        }
    };
    progress.done();
    let mut notes = notes::of_copy(&content, &source, &target);
    notes.extend(put_away.iter().map(|path| format!("the store that was copied is in {}", path.display())));
    tell(&content, &filled, notes, output.format)
}

/// Nothing was moved after all.
fn put_back(directory: Option<&Path>, aside: Option<&Path>) {
    let (Some(directory), Some(aside)) = (directory, aside) else { return };
    let folder = directory.join("store");
    // What is there by now is what is remembered of an etcd that was not filled.
    let _ = std::fs::remove_dir_all(&folder);
    if let Err(error) = std::fs::rename(aside, &folder) {
        tracing::error!(%error, "the store is in {}, and was to be put back to {}", aside.display(), folder.display());
    }
}

/// Says what was filled, of either command that fills a store.
pub(crate) fn tell(
    content: &crate::offline::Content,
    filled: &Filled,
    mut notes: Vec<String>,
    format: Format,
) -> anyhow::Result<Outcome> {
    let summary = content.summary();
    let aside: Option<&PathBuf> = filled.aside.as_ref();
    notes.extend(aside.map(|path| format!("the store that was there before is in {}", path.display())));
    match format {
        Format::Json => print::json(&json!({
            "store": filled.store,
            "revision": filled.revision.0,
            "of_store": content.store,
            "of_revision": content.revision.0,
            "records": summary.records,
            "bytes": summary.bytes,
            "sha256": filled.fingerprint.to_string(),
            "notes": notes,
        }))?,
        Format::Table => {
            let (records, bytes) = (summary.records, summary.bytes);
            print::line(&format!(
                "{records} records, {bytes} bytes, the same on both sides: sha256 {}",
                filled.fingerprint
            ))?;
            print::line(&format!("Revision {} in place of {}", filled.revision, content.revision))?;
            notes.iter().try_for_each(|note| print::line(&format!("Note: {note}")))?;
        }
    }
    Ok(Outcome::Done)
}
