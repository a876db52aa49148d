//! `starling snapshot`: the catalog saved to a file, looked at, and set back.

mod inspect;
pub(crate) mod notes;
pub(crate) mod progress;
mod reading;
mod restore;
mod save;

use std::path::PathBuf;

use crate::arguments::Surroundings;
use crate::client::ApiArgs;
use crate::offline::Place;
use crate::outcome::Outcome;
use crate::print::OutputArgs;
use crate::server::etcd::EtcdArgs;

/// Save the catalog to a file, look at such a file, and set a catalog back to it
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SnapshotCommand {
    Save(Box<SaveArgs>),
    Inspect(InspectArgs),
    Restore(Box<RestoreArgs>),
}

/// Save everything that the servers know, as it is at one revision
///
/// Asks a server; with --from, reads a store that no server need run on. The file is put in place once it is whole and was
/// verified, and is readable by its owner alone. What speaks of servers and agents that run is not in it, nor is a private
/// key of the CA that is in files: keep a copy of DATA_DIR/ca, or let servers seal it into the store.
#[derive(Debug, clap::Args)]
struct SaveArgs {
    /// Where to; a file that is there is replaced
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Read this store and ask no server: embedded:DATA_DIR or etcd://HOST:PORT,HOST:PORT/PREFIX
    #[arg(long, value_name = "STORE")]
    from: Option<Place>,

    #[command(flatten)]
    etcd: EtcdArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Verify a snapshot, and say what is in it
#[derive(Debug, clap::Args)]
struct InspectArgs {
    /// The snapshot
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// Set a running mesh back to a snapshot, or fill an empty store with it
///
/// On a running mesh, config entries, intentions, and the nodes and services that no living agent answers for become what they
/// were, by ordinary changes: indexes rise, watchers are woken, and no call is allowed meanwhile that is denied before and
/// after. Left are what agents that are attached answer for, the CA, join tokens, and virtual addresses that are taken. What
/// others write meanwhile stays, and is named. One that is interrupted has made a part of its changes: run it again.
///
/// With --to, everything in the snapshot is put into a store that no server runs on; its revisions begin far beyond those of
/// the snapshot, and agents begin anew.
#[derive(Debug, clap::Args)]
struct RestoreArgs {
    /// The snapshot
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Fill this store and ask no server: embedded:DATA_DIR or etcd://HOST:PORT,HOST:PORT/PREFIX
    #[arg(long, value_name = "STORE")]
    to: Option<Place>,

    /// With --to: put aside, or on etcd remove, what the store holds
    #[arg(long, requires = "to")]
    replace: bool,

    #[command(flatten)]
    etcd: EtcdArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: SnapshotArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        SnapshotCommand::Save(args) => save::run(*args, surroundings).await,
        SnapshotCommand::Inspect(args) => inspect::run(args),
        SnapshotCommand::Restore(args) => restore::run(*args, surroundings).await,
    }
}
