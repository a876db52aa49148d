//! Scenarios with a fleet: it comes up from nothing, and then one change after the other concerns every workload of it;
//! alone, among many others that concern none, or just after the server was killed.
//!
//! The latency of a workload is the time from just before the API call until the snapshot is swapped from which its next
//! request would be served, on the one clock of the machine. Every workload counts; one that is not reached fails the run.

mod changes;
mod churn;
mod findings;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::value_parser;

use crate::api::{Api, Call};
use crate::fleet::crew::{Size, Step};
use crate::fleet::server::Counters;
use crate::fleet::usage::Usage;
use crate::fleet::{Crew, Moment, Server};
use crate::fleet_report::{FleetChange, FleetCost, FleetReport, Restarts, Rollout, ServerCost};
use crate::machine::Machine;
use crate::mesh;
use crate::process;
use crate::progress::Progress;
use crate::receipt;
use crate::report::{OutputArgs, Versions};
use crate::shape::{NODES_DEFAULT, WORKLOADS_DEFAULT};
use changes::Change;
use churn::Churn;

/// Time for which CPU is looked at while nothing changes.
const IDLE: Duration = Duration::from_secs(5);

/// Time between two changes of a common upstream among many others.
const CHURN_INTERVAL: Duration = Duration::from_secs(1);

/// Time for the servers to hear of everybody that a change is applied.
const RECEIPT_DEADLINE: Duration = Duration::from_secs(30);

/// Arguments of the scenarios with a fleet.
#[derive(Debug, clap::Args)]
#[command(after_long_help = findings::JSON_HELP)]
pub(crate) struct Args {
    /// Simulated nodes
    #[arg(long, default_value_t = NODES_DEFAULT, value_parser = value_parser!(u32).range(1..=60_000))]
    nodes: u32,
    /// Workloads on them, each with a sidecar
    #[arg(long, default_value_t = WORKLOADS_DEFAULT, value_parser = value_parser!(u32).range(1..=2_000_000))]
    workloads: u32,
    /// Changes to make, the kinds in turn [default: 20; rollout 2, reconnect 4, churn 60]
    #[arg(long, value_parser = value_parser!(u32).range(1..=10_000))]
    changes: Option<u32>,
    /// Servers that the nodes are attached to
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1))]
    servers: u32,
    /// Endpoints of the upstream that every workload has, of which one comes and goes
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    payload_endpoints: u32,
    /// Decides which workload is on which node
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds after which a workload that has not heard of a change counts as not reached
    #[arg(long, default_value_t = 60, value_parser = value_parser!(u64).range(1..=3600))]
    deadline: u64,
    /// Seconds between two changes: nodes write what they have heard to their disks within 6.25 s, and ten thousand disks
    /// are one here
    #[arg(long, default_value_t = 7, value_parser = value_parser!(u64).range(0..=600))]
    pause: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// What a scenario is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Endpoints of a common upstream.
    Endpoints,
    /// A wildcard intention.
    Intention,
    /// The fleet's coming up.
    Rollout,
    /// A server that is killed and comes back.
    Reconnect,
    /// One change among many that concern nobody.
    Churn,
}

impl Subject {
    /// Its name on the command line.
    fn scenario(self) -> &'static str {
        match self {
            Self::Endpoints => "propagation",
            Self::Intention => "intention",
            Self::Rollout => "rollout",
            Self::Reconnect => "reconnect",
            Self::Churn => "churn",
        }
    }

    /// How many changes are made unless told otherwise: of a rollout and a reconnection enough to see that everybody is
    /// there, of a churn one a second for a minute.
    fn changes(self) -> u32 {
        match self {
            Self::Endpoints | Self::Intention => 20,
            Self::Rollout => 2,
            Self::Reconnect => 4,
            Self::Churn => 60,
        }
    }
}

/// Runs one of the scenarios. The exit code is a failure, too, when a workload was not reached.
///
/// # Errors
/// When the fleet cannot be brought up or breaks, or a call is refused.
pub(crate) async fn run(subject: Subject, args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let (directory, disks) = (mesh::folder(args.output.keep)?, mesh::disks(args.output.keep)?);
    if args.output.keep {
        let (directory, disks) = (directory.path().display(), disks.path().display());
        progress.say(&format!("data and logs are in {directory}, what nodes keep on their disks in {disks}"));
    }
    progress.say("starting a server");
    let server = Server::start(directory.path()).await?;
    let mut api = server.api();
    for call in changes::upstream(args.payload_endpoints) {
        write(&mut api, &call).await?;
    }
    let size = Size { nodes: args.nodes, workloads: args.workloads, seed: args.seed };
    let crew = Crew::muster(size, &server, &mesh::logs(directory.path()), disks.path()).await?;
    let usage = Usage::watch(server.pid(), crew.pids());
    let mut run = Run { server, api, crew, usage, args, progress, restarts: None };
    let rollout = run.roll_out().await?;
    let idle_cpu_percent = run.idle().await?;
    let before = run.server.counters().await?;
    let changes = run.changes(subject).await?;
    // A server that was killed has counted from nothing.
    let before = if subject == Subject::Reconnect { Counters::default() } else { before };
    let each = run.server.counters().await?.since(before).divided_by(changes.len());

    let report = FleetReport {
        scenario: subject.scenario().to_owned(),
        nodes: run.args.nodes,
        workloads: run.args.workloads,
        servers: run.args.servers,
        server: ServerCost {
            rss_bytes: process::resident(run.server.pid())?,
            cpu_ms_per_change: mean(changes.iter().map(|change| change.server_cpu_ms)),
            idle_cpu_percent,
            frames_encoded_per_change: each.frames_encoded,
            bytes_sent_per_change: each.bytes_sent,
            restarts: run.restarts,
        },
        changes,
        fleet: FleetCost { rss_bytes: run.fleet_resident()? },
        rollout,
        samples: run.usage.samples(),
        machine: Machine::read(),
        versions: Versions::of(None),
    };
    findings::deliver(subject, &report, &run.args.output)
}

/// A fleet that is being measured.
struct Run {
    server: Server,
    api: Api,
    crew: Crew,
    usage: Usage,
    args: Args,
    progress: Progress,
    restarts: Option<Restarts>,
}

impl Run {
    async fn roll_out(&mut self) -> anyhow::Result<Rollout> {
        let join_seconds = self.step("nodes joined", Step::Join).await?;
        let register_seconds = self.step("nodes that registered all they have", Step::Register).await?;
        let leaves_seconds = self.step("nodes with all certificates", Step::Certify).await?;
        let seconds = join_seconds + register_seconds + leaves_seconds;
        Ok(Rollout { seconds, join_seconds, register_seconds, leaves_seconds })
    }

    /// Has every node take a step; how many seconds it took them.
    async fn step(&mut self, text: &str, step: Step) -> anyhow::Result<f64> {
        let mut phase = self.progress.phase(text, u64::from(self.args.nodes));
        let begun = Instant::now();
        match self.crew.step(step, &mut phase).await {
            Ok(()) => Ok(begun.elapsed().as_secs_f64()),
            Err(error) => Err(self.because(error)),
        }
    }

    /// The server's own end, if that is what an error comes from.
    fn because(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.server.ended() {
            Some(how) => error.context(how),
            None => error,
        }
    }

    /// CPU of the server while nothing changes, in percent of a core.
    async fn idle(&mut self) -> anyhow::Result<f64> {
        self.progress.say("letting the fleet come to rest");
        tokio::time::sleep(self.pause()).await;
        let (begun, before) = (Instant::now(), self.server.cpu_time()?);
        tokio::time::sleep(IDLE).await;
        let used = self.server.cpu_time()?.saturating_sub(before);
        Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
    }

    fn pause(&self) -> Duration {
        Duration::from_secs(self.args.pause)
    }

    /// Makes all changes.
    async fn changes(&mut self, subject: Subject) -> anyhow::Result<Vec<FleetChange>> {
        let count = self.args.changes.unwrap_or_else(|| subject.changes());
        let mut phase = self.progress.phase("changes", u64::from(count));
        let churn = (subject == Subject::Churn).then(|| Churn::begin(&self.server, self.args.workloads));
        let mut changes = Vec::new();
        for change in Change::there_and_back(subject).into_iter().cycle().take(usize::try_from(count)?) {
            if !changes.is_empty() && churn.is_none() {
                tokio::time::sleep(self.pause()).await;
            }
            let begun = Instant::now();
            let measured = match subject {
                Subject::Reconnect => self.restart(change).await,
                Subject::Endpoints | Subject::Intention | Subject::Rollout | Subject::Churn => {
                    self.measure(change, None).await
                }
            };
            changes.push(measured.map_err(|error| self.because(error))?);
            phase.step();
            if churn.is_some() {
                tokio::time::sleep(CHURN_INTERVAL.saturating_sub(begun.elapsed())).await;
            }
        }
        if let Some(churn) = churn {
            let rate = churn.end().await?;
            self.progress.say(&format!("{rate:.0} other changes a second meanwhile"));
        }
        Ok(changes)
    }

    /// Kills the server, and makes a change as soon as it is back; latencies are from the moment of its end.
    async fn restart(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        let steady_rss_bytes = process::resident(self.server.pid())?;
        let begun = Moment::now()?;
        self.server.restart().await?;
        self.usage.server_is(self.server.pid());
        let measured = self.measure(change, Some(begun)).await?;
        let peak_rss_bytes = process::resident_peak(self.server.pid())?;
        let found = self.restarts.get_or_insert(Restarts { steady_rss_bytes, peak_rss_bytes });
        found.peak_rss_bytes = found.peak_rss_bytes.max(peak_rss_bytes);
        Ok(measured)
    }

    /// Makes one change and waits until it is in force everywhere; latencies are from `since`, or from just before the call.
    async fn measure(&mut self, change: Change, since: Option<Moment>) -> anyhow::Result<FleetChange> {
        let endpoints = self.args.payload_endpoints;
        self.crew.watch().await?;
        let cpu_before = self.server.cpu_time()?;
        let call = change.call(endpoints);
        let written = self.api.write(call.method, &call.target, &call.body).await?;
        let since = since.map_or_else(|| Moment::of(written.called), Ok)?;
        let Some(revision) = written.revision else { bail!("{} answered without a revision", call.target) };
        let deadline = Duration::from_secs(self.args.deadline);
        let collected = self.crew.collect(revision, change.expected(endpoints), deadline).await?;
        if collected.amiss > 0 {
            let examples = collected.examples.join("; ");
            self.progress.say(&format!("revision {revision} is amiss at {} nodes: {examples}", collected.amiss));
        }
        let receipt = receipt::wait(&mut self.api, revision, RECEIPT_DEADLINE).await?;
        if !receipt.is_applied_by(self.args.nodes) {
            self.progress.say(&format!("the receipt of revision {revision} is not whole: {receipt}"));
        }
        let server_cpu = self.server.cpu_time()?.saturating_sub(cpu_before);
        let latencies: Vec<u64> = collected
            .reached
            .iter()
            .flat_map(|(at, workloads)| std::iter::repeat_n(at.microseconds_since(since), *workloads as usize))
            .collect();
        let counted = FleetChange::new(revision, change.name(), u64::from(self.args.workloads), &latencies);
        Ok(FleetChange { server_cpu_ms: server_cpu.as_secs_f64() * 1e3, ..counted })
    }

    fn fleet_resident(&self) -> anyhow::Result<u64> {
        self.crew.pids().into_iter().map(process::resident).sum()
    }
}

async fn write(api: &mut Api, call: &Call) -> anyhow::Result<()> {
    let written = api.write(call.method.clone(), &call.target, &call.body).await?;
    ensure!(written.revision.is_some(), "{} answered without a revision", call.target);
    Ok(())
}

/// 0 of none.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0_f64), |(sum, count), value| (sum + value, count + 1.0));
    sum / count.max(1.0)
}
