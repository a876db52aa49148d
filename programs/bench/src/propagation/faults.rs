//! The scenario of hard conditions: nodes that read a kilobyte a second beside all others, and a network that loses packets
//! and connections. One after the other, with the same fleet.
//!
//! | Module | Owns |
//! |---|---|
//! | [`slow`] | changes beside nodes that read slowly, in turn with changes while nobody does |
//! | [`restless`] | the service that these nodes watch besides, so that they have too much to read |
//! | [`network`], [`loss`] | changes while connections are reset and packets are lost |
//! | [`findings`] | the bars, and the table |

pub(super) mod findings;
mod loss;
mod network;
mod restless;
mod slow;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::process::ExitCode;

use anyhow::ensure;
use clap::value_parser;

use super::{Args, Run, Subject};
use crate::fleet_report::{Faults, FleetChange, FleetReport};
use crate::percentiles::Percentiles;
use loss::Nft;

/// One node in so many reads slowly unless told otherwise: a hundred of ten thousand.
const SLOW_READER_OF: u32 = 100;

/// Percent, unless told otherwise.
const LOSS_DEFAULT: f64 = 1.0;
const RESETS_DEFAULT: f64 = 5.0;

/// Arguments of the scenario.
#[derive(Debug, clap::Args)]
#[command(after_long_help = super::findings::JSON_HELP)]
pub(crate) struct FaultArgs {
    #[command(flatten)]
    fleet: Args,
    /// Nodes that read slowly [default: one in 100; none if --loss or --resets is given]
    #[arg(long, value_name = "NODES", value_parser = value_parser!(u32).range(0..=10_000))]
    slow_readers: Option<u32>,
    /// Bytes that each of them reads in a second
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = rate)]
    slow_rate: NonZeroU32,
    /// Percent of the packets between nodes and server that are lost, both ways; needs the program nft, and root
    /// [default: 1; 0 if --slow-readers or --resets is given]
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| percent(text, LOSS_MAX))]
    loss: Option<f64>,
    /// Percent of the nodes' connections that are reset during each change [default: 5; 0 if --slow-readers or --loss is
    /// given]
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| percent(text, 100.0))]
    resets: Option<f64>,
}

/// Percent; with more nobody would come up to a connection.
const LOSS_MAX: f64 = 30.0;

fn percent(text: &str, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=most).contains(&number) { Ok(number) } else { Err(format!("not between 0 and {most}")) }
}

fn rate(text: &str) -> Result<NonZeroU32, String> {
    let number: NonZeroU32 = text.parse().map_err(|_| "not a positive number".to_owned())?;
    if (64..=1_000_000).contains(&number.get()) { Ok(number) } else { Err("not between 64 and 1000000".to_owned()) }
}

/// What is done to a fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Conditions {
    slow_readers: u32,
    loss_percent: f64,
    resets_percent: f64,
}

impl FaultArgs {
    /// What was asked for: everything, or what is named and nothing else.
    fn conditions(&self) -> anyhow::Result<Conditions> {
        let Self { fleet, slow_readers, loss, resets, .. } = self;
        let some_are_named =
            slow_readers.is_some_and(|it| it > 0) || [loss, resets].iter().any(|it| it.is_some_and(|it| it > 0.0));
        let unless_named = |default: f64| if some_are_named { 0.0 } else { default };
        let slow_default = if some_are_named { 0 } else { (fleet.nodes / SLOW_READER_OF).max(1) };
        let asked = Conditions {
            slow_readers: slow_readers.unwrap_or(slow_default),
            loss_percent: loss.unwrap_or(unless_named(LOSS_DEFAULT)),
            resets_percent: resets.unwrap_or(unless_named(RESETS_DEFAULT)),
        };
        ensure!(
            asked.slow_readers > 0 || asked.is_bad_network(),
            "nothing is to be hard: give one of --slow-readers, --loss and --resets"
        );
        ensure!(
            asked.slow_readers == 0 || asked.slow_readers < fleet.nodes.min(fleet.workloads),
            "{} slow readers of {} nodes with {} workloads leave nobody to look at beside them",
            asked.slow_readers,
            fleet.nodes,
            fleet.workloads
        );
        Ok(asked)
    }
}

impl Conditions {
    fn is_bad_network(self) -> bool {
        self.loss_percent > 0.0 || self.resets_percent > 0.0
    }

    /// The slow readers by number, spread over the nodes that have a workload.
    fn slow_nodes(self, args: &Args) -> BTreeSet<u32> {
        let nodes = u64::from(args.nodes.min(args.workloads));
        let place = |reader: u32| u64::from(reader) * nodes / u64::from(self.slow_readers);
        (0..self.slow_readers).filter_map(|reader| u32::try_from(place(reader)).ok()).collect()
    }
}

/// Runs the scenario. The exit code is a failure, too, when a workload was not reached.
///
/// # Errors
/// When the fleet cannot be brought up or breaks, a call is refused, or packets are to be lost and cannot.
pub(crate) async fn run(args: FaultArgs) -> anyhow::Result<ExitCode> {
    let asked = args.conditions()?;
    // Before a fleet is brought up in vain.
    let nft = (asked.loss_percent > 0.0).then(Nft::find).transpose()?;
    let slow_nodes = asked.slow_nodes(&args.fleet);
    let changes_of_each = args.fleet.changes.unwrap_or_else(|| Subject::Faults.changes());
    let servers = Subject::Faults.servers(args.fleet.servers)?;
    let mut run = Run::begin(args.fleet, servers, &slow_nodes).await?;
    let restless = if slow_nodes.is_empty() { None } else { Some(restless::Restless::register(&mut run.api).await?) };
    let start = run.come_up().await?;
    let mut changes = Vec::new();
    let mut faults = Faults { slow_readers: None, bad_network: None };
    if let Some(restless) = restless {
        let readers = slow::Readers { nodes: asked.slow_readers, rate: args.slow_rate };
        let measured = slow::measure(&mut run, readers, restless, changes_of_each).await;
        let (found, measured) = measured.map_err(|error| run.because(error))?;
        faults.slow_readers = Some(found);
        changes.extend(measured);
    }
    if asked.is_bad_network() {
        let measured = network::measure(&mut run, asked, nft, changes_of_each).await;
        let (found, measured) = measured.map_err(|error| run.because(error))?;
        faults.bad_network = Some(found);
        changes.extend(measured);
    }
    let report = run.report(Subject::Faults.scenario(), start, changes).await?;
    let report = FleetReport { faults: Some(faults), ..report };
    super::findings::deliver(Subject::Faults, &report, &run.args.output)
}

/// What is quoted of several changes together.
fn together(changes: &[FleetChange]) -> Option<Percentiles> {
    let each: Vec<Percentiles> = changes.iter().filter_map(|change| change.latency_ms).collect();
    Percentiles::over_changes(&each)
}

#[cfg(test)]
mod tests;
