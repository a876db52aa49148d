//! `chaos`: three members of etcd and three servers under faults and load, and a judgement.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use starling_chaos::history::write_lines;
use starling_chaos::judgement::judge;
use starling_chaos::{report, run};

/// Exit code of a run that was interrupted, as shells tell it.
const INTERRUPTED: u8 = 130;

/// Kill, stop and cut off servers and members of etcd at random, under load, and judge what clients were answered
///
/// Needs root, for network namespaces and nftables. Nothing of it is left when it ends; of a run that breaks a promise logs,
/// data and history are kept.
#[derive(Debug, Parser)]
#[command(name = "chaos")]
struct Args {
    /// How many faults
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    faults: usize,

    /// What the faults are drawn from; without one, a new one, which is told
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// No new fault after so many minutes
    #[arg(long, value_name = "MINUTES")]
    duration: Option<u64>,

    /// Where the history goes, as JSON lines; without it, kept only if a promise is broken
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    begin(&args).unwrap_or_else(|error| {
        eprintln!("chaos: {error:#}");
        ExitCode::FAILURE
    })
}

fn begin(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("a runtime")?;
    runtime.block_on(async {
        // Dropping the run ends the cluster: whatever way it ends, nothing of it is left.
        tokio::select! {
            done = whole(args) => done,
            signal = interrupted() => signal.map(|()| ExitCode::from(INTERRUPTED)),
        }
    })
}

async fn interrupted() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("a signal handler")?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.context("a signal handler"),
        _ = terminate.recv() => Ok(()),
    }
}

async fn whole(args: &Args) -> anyhow::Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(1..1_000_000));
    println!("seed {seed}, {} faults", args.faults);
    let duration = args.duration.map(|minutes| Duration::from_secs(minutes * 60));
    let options = run::Options { faults: args.faults, seed, programs: starling_chaos::programs()?, duration };
    let mut remains = run::run(&options).await?;
    println!("judging {} operations", remains.events.len());
    let figures = tokio::task::block_in_place(|| judge(&mut remains));
    println!("{}", report::table(&remains, &figures));
    let is_kept = !remains.findings.first.is_empty() || figures.undecided > 0;
    if let Some(path) = &args.history {
        write_lines(path, &remains.events)?;
    }
    if !is_kept {
        return Ok(ExitCode::SUCCESS);
    }
    let folder = remains.folder.keep();
    write_lines(&folder.join("history.jsonl"), &remains.events)?;
    write_lines(&folder.join("faults.jsonl"), &remains.faults)?;
    println!("seed {seed}: a promise is broken; history, faults, logs and data are in {}", folder.display());
    Ok(ExitCode::FAILURE)
}
