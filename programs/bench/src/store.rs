//! Scenario `store`: durable writes through three members of etcd, ours beside those of etcd's own benchmark.
//!
//! All write the same number of values of the same size under keys of the same length, from as many callers, into the same
//! cluster, one after the other, round by round, so that what else the machine does falls on all. What differs is told: a
//! commit of Starling's is a transaction with a condition, and goes over one connection to one member; etcd's benchmark
//! puts without a condition, over one connection or one to each member, and its transactions have no conditions. At the end a
//! server is killed and started again with many entries in its store.

mod commits;
mod findings;
mod restart;
mod tool;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::value_parser;

use crate::etcd::Members;
use crate::machine::Machine;
use crate::mesh::{Ports, folder};
use crate::progress::Progress;
use crate::report::Versions;
use findings::Findings;
use tool::Tool;

/// Arguments of `starling bench store`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = findings::JSON_HELP)]
pub(crate) struct Args {
    /// How often each of them writes, in turn; the median counts
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Writes of each in each round
    #[arg(long, default_value_t = 20_000, value_parser = value_parser!(u32).range(100..=10_000_000))]
    writes: u32,
    /// Callers that write at the same time
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u32).range(3..=512))]
    callers: u32,
    /// Entries of the store with which a server is killed and started again, once all have written; 0 for none
    #[arg(long, default_value_t = 356_000, value_parser = value_parser!(u32).range(0..=5_000_000))]
    entries: u32,
    /// Bytes of a value; a registration has some 350
    #[arg(long, default_value_t = 350, value_parser = value_parser!(u32).range(1..=100_000))]
    value_bytes: u32,
    /// Members of an etcd, HOST:PORT each, in place of three of the benchmark's own; what is written there stays
    ///
    /// It must hold nothing that is needed: etcd's benchmark writes under keys that begin with zeros, Starling under
    /// /starling-bench/, and both leave what they wrote.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    etcd: Vec<String>,
    /// Write the report to this file
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Leave the folder with data and logs behind, and say where it is
    #[arg(long)]
    keep: bool,
}

/// What is written by everybody.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    writes: u32,
    callers: u32,
    value_bytes: u32,
}

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Writer {
    /// etcd's benchmark: puts, over one connection to one member.
    PutOneConnection,
    /// The same over one connection to each member.
    PutEachMember,
    /// The same with transactions of one put each.
    TxnEachMember,
    /// Starling's commits: transactions of one condition and one put, over one connection.
    Commits,
    /// Registrations by the HTTP API of one server.
    Api,
}

impl Writer {
    const ALL: [Self; 5] = [Self::PutOneConnection, Self::PutEachMember, Self::TxnEachMember, Self::Commits, Self::Api];
}

/// Runs the scenario.
///
/// # Errors
/// When etcd or its benchmark is not there, or the cluster cannot be brought up, or breaks.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let tool = Tool::find()?;
    let directory = folder(args.keep)?;
    if args.keep {
        progress.say(&format!("data and logs: {}", directory.path().display()));
    }
    let mut ports = Ports::new();
    let members = match args.etcd.is_empty() {
        true => Members::start(directory.path(), &mut ports).await?,
        false => Members::given(&args.etcd),
    };
    let load = Load { writes: args.writes, callers: args.callers, value_bytes: args.value_bytes };
    let mut writes = writes::Writes::start(tool, &members, directory.path(), &mut ports, load).await?;
    let mut rounds = Vec::new();
    let mut phase = progress.phase("store", u64::from(args.rounds) * Writer::ALL.len() as u64);
    for round in 0..args.rounds {
        // In another order each time: whoever comes first finds the smaller database.
        for offset in 0..Writer::ALL.len() {
            let writer = Writer::ALL[(offset + round as usize) % Writer::ALL.len()];
            rounds.push((writer, writes.round(writer, round).await?));
            phase.step();
        }
    }
    drop(phase);
    let mut findings = Findings::new(&rounds, load, args.rounds, Machine::read(), Versions::of(None));
    if args.entries > 0 {
        let present = args.rounds.saturating_mul(args.writes);
        findings.restart = Some(restart::measure(writes.server(), args.entries, present, &progress).await?);
    }
    crate::said::text(&findings.text());
    if let Some(path) = &args.json {
        let mut json = serde_json::to_string_pretty(&findings)?;
        json.push('\n');
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if findings.is_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
