//! `starling bench`: scenarios that tell whether a mesh keeps its promises, measured from outside.
//!
//! A scenario brings up a real mesh from this program's own executable (server, sidecars in Envoy, applications), drives
//! it through its public API, and watches it through its traffic. Nothing here shares code with what it measures. The
//! parts that every scenario uses are `mesh` (processes), `api` (calls), `probe` (traffic), `histogram`,
//! `report` and `table`; a scenario is one module beside them. For scenarios with a simulated fleet there are [`shape`],
//! [`percentiles`], [`fleet_report`] and [`html`].
//!
//! What it does not own: the wording of the command line outside `bench`, and the installation of Envoy.

mod api;
mod connection;
pub mod fleet_report;
mod histogram;
pub mod html;
mod latency_of_change;
mod machine;
mod mesh;
pub mod percentiles;
mod probe;
mod process;
mod progress;
mod published;
mod receipt;
mod report;
mod scale;
pub mod shape;
mod table;

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

pub use machine::Machine;
pub use report::Versions;

/// Exit code after SIGINT, as shells report it: 128 and the signal's number.
const EXIT_INTERRUPTED: u8 = 130;

/// Exit code after SIGTERM.
const EXIT_TERMINATED: u8 = 143;

/// Measure what a mesh promises, on this machine.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, clap::Subcommand)]
enum Scenario {
    /// Measure the time from the API's answer to changed traffic, for one lone change at a time
    LatencyOfChange(latency_of_change::Args),
    /// Register many services, attach many sidecars, and measure memory and the cost of one change
    Scale(scale::Args),
}

/// Runs the chosen scenario until it is over, or until SIGINT or SIGTERM; either way nothing that it started is left.
///
/// The exit code is 0 when everything could be measured, and 1 when it could not, or when `--strict` was given and a bar
/// was missed.
/// # Errors
/// When the mesh cannot be brought up, or something in it fails that the scenario does not measure.
pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let scenario = async {
        match args.scenario {
            Scenario::LatencyOfChange(args) => latency_of_change::run(args).await,
            Scenario::Scale(args) => scale::run(args).await,
        }
    };
    // Dropping the scenario ends its processes and removes its files.
    tokio::select! {
        outcome = scenario => outcome,
        _ = interrupt.recv() => Ok(stopped("interrupted", EXIT_INTERRUPTED)),
        _ = terminate.recv() => Ok(stopped("terminated", EXIT_TERMINATED)),
    }
}

fn stopped(how: &str, code: u8) -> ExitCode {
    eprintln!("{how}; the mesh is taken down");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests;
