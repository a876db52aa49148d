//! Scenarios with a fleet: it comes up from nothing, and then one change after the other concerns every workload of it;
//! alone, among many others that concern none, just after the server was killed, or while one of several is.
//!
//! The latency of a workload is the time from just before the API call until the snapshot is swapped from which its next
//! request would be served, on the one clock of the machine. Every workload counts; one that is not reached fails the run.

mod beside;
pub(crate) mod changes;
mod churn;
mod envoys;
pub(crate) mod failover;
pub(crate) mod faults;
mod findings;
mod memory;
mod receipts;
mod traffic;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::value_parser;
use tempfile::TempDir;

use crate::api::{Api, Call, Written};
use crate::fleet::crew::{Size, Step};
use crate::fleet::server::Counters;
use crate::fleet::usage::Usage;
use crate::fleet::{Among, Crew, Moment, Servers};
use crate::fleet_report::{
    self, FleetChange, FleetCost, FleetReport, Further, Growth, Restarts, Rollout, ServerCost, mean,
};
use crate::machine::Machine;
use crate::mesh::{self, Envoy};
use crate::process;
use crate::progress::Progress;
use crate::receipt;
use crate::report::{OutputArgs, Versions};
use crate::shape::{NODES_DEFAULT, WORKLOADS_DEFAULT};
use beside::Beside;
use changes::{Change, Upstream};
use churn::Churn;
use envoys::Envoys;
use failover::{FailoverArgs, Kill};
use traffic::Traffic;

/// Time for which CPU is looked at while nothing changes.
const IDLE: Duration = Duration::from_secs(5);

/// Time between two changes of a common upstream among many others.
const CHURN_INTERVAL: Duration = Duration::from_secs(1);

/// Servers of which one is killed, unless told otherwise.
const SERVERS_OF_FAILOVER: u32 = 3;

/// Time for the servers to hear of everybody that a change is applied.
const RECEIPT_DEADLINE: Duration = Duration::from_secs(30);

/// With growth, one node in so many is there first.
const FEW: u32 = 10;

/// Changes with these, at most.
const FEW_CHANGES_MAX: u32 = 10;

/// Arguments of a scenario with a fleet.
#[derive(Debug, clap::Args)]
#[command(after_long_help = findings::JSON_HELP)]
pub(crate) struct ScenarioArgs {
    #[command(flatten)]
    fleet: Args,
    #[command(flatten)]
    beside: Beside,
}

/// Arguments of a fleet and its changes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Simulated nodes
    #[arg(long, default_value_t = NODES_DEFAULT, value_parser = value_parser!(u32).range(1..=60_000))]
    nodes: u32,
    /// Workloads on them, each with a sidecar
    #[arg(long, default_value_t = WORKLOADS_DEFAULT, value_parser = value_parser!(u32).range(1..=2_000_000))]
    workloads: u32,
    /// Changes to make, the kinds in turn [default: 20; rollout 2, reconnect 4, failover 6, churn 60, faults 10 of each
    /// condition]
    #[arg(long, value_parser = value_parser!(u32).range(1..=10_000))]
    changes: Option<u32>,
    /// Servers that the nodes are attached to; several share three members of etcd, which are started with them, and each
    /// node has a stream in reserve [default: 1; failover 3]
    #[arg(long, value_parser = value_parser!(u32).range(1..=9))]
    servers: Option<u32>,
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
    /// A server or a member of etcd that is killed in the middle of a change.
    Failover(Kill),
    /// One change among many that concern nobody.
    Churn,
    /// Slow readers beside all others, and a network that loses packets and connections.
    Faults,
}

impl Subject {
    /// Its name on the command line.
    fn scenario(self) -> &'static str {
        match self {
            Self::Endpoints => "propagation",
            Self::Intention => "intention",
            Self::Rollout => "rollout",
            Self::Reconnect => "reconnect",
            Self::Failover(_) => "failover",
            Self::Churn => "churn",
            Self::Faults => "faults",
        }
    }

    /// How many changes are made unless told otherwise: of a rollout and a reconnection enough to see that everybody is
    /// there, of a churn one a second for a minute, of faults as many under each condition.
    fn changes(self) -> u32 {
        match self {
            Self::Endpoints | Self::Intention => 20,
            Self::Rollout => 2,
            Self::Reconnect => 4,
            Self::Failover(_) => 6,
            Self::Churn => 60,
            Self::Faults => 10,
        }
    }

    /// How many servers there are.
    fn servers(self, asked: Option<u32>) -> anyhow::Result<u32> {
        let count = asked.unwrap_or(if let Self::Failover(_) = self { SERVERS_OF_FAILOVER } else { 1 });
        match self {
            Self::Endpoints | Self::Intention | Self::Rollout | Self::Churn => {}
            Self::Failover(_) => ensure!(count > 1, "failover needs two servers at least: one is killed"),
            Self::Reconnect | Self::Faults => ensure!(
                count == 1,
                "{} is of nodes with one server; `starling bench failover` kills one of several",
                self.scenario()
            ),
        }
        Ok(count)
    }
}

/// Runs one of the scenarios. The exit code is a failure, too, when a workload was not reached.
///
/// # Errors
/// When the fleet cannot be brought up or breaks, or a call is refused.
pub(crate) async fn run(subject: Subject, args: ScenarioArgs) -> anyhow::Result<ExitCode> {
    let ScenarioArgs { fleet, beside } = args;
    let (growth, further) = (beside.growth(subject)?, beside.further(subject, fleet.workloads));
    let envoys = beside.envoys(&fleet, &Progress::new())?;
    let servers = subject.servers(fleet.servers)?;
    let mut run = Run::begin(fleet, servers, &BTreeSet::new()).await?;
    let count = run.args.changes.unwrap_or_else(|| subject.changes());
    let few = if growth { Some(run.few(subject, count, envoys.as_ref()).await?) } else { None };
    let mut start = run.come_up().await?;
    match &few {
        Some((rollout, ..)) => start.rollout = start.rollout.and(*rollout),
        None => run.accompany(envoys.as_ref()).await?,
    }
    start.counters = run.servers.counters().await?;
    let changes = run.changes(subject, count).await?;
    let growth = few.map(|(_, nodes, few)| Growth::new(nodes, few, &changes));
    let mut report = run.report(subject.scenario(), start, changes).await?;
    report.growth = growth;
    report.probes = run.traffic.as_ref().map(Traffic::probes);
    report.versions = Versions::of(envoys.as_ref().map(|(envoy, _)| envoy));
    if further > 0 {
        report.server.further = Some(run.further(further).await?);
        report.samples = run.usage.samples();
    }
    findings::deliver(subject, &report, &run.args.output)
}

/// Runs the scenario of what dies in the middle of a change.
///
/// # Errors
/// As for [`run`].
pub(crate) async fn run_failover(args: FailoverArgs) -> anyhow::Result<ExitCode> {
    run(Subject::Failover(args.kill), args.scenario).await
}

/// A fleet that is being measured. Fields are in the order in which they end.
struct Run {
    servers: Servers,
    api: Api,
    crew: Crew,
    usage: Usage,
    args: Args,
    progress: Progress,
    restarts: Option<Restarts>,
    /// Whether one of the servers was killed, so that what they have counted says nothing.
    failed_over: bool,
    upstream: Upstream,
    /// Those that are there.
    nodes: u32,
    /// Through the Envoys beside the fleet, if there are any.
    traffic: Option<Traffic>,
    directory: TempDir,
    _disks: TempDir,
}

/// What was found before the first change.
struct Start {
    rollout: Rollout,
    idle_cpu_percent: f64,
    counters: Counters,
}

impl Run {
    /// Starts so many servers and the processes of a fleet, whose nodes are not yet started. Those of `slow` can be made to
    /// read slowly.
    async fn begin(args: Args, servers: u32, slow: &BTreeSet<u32>) -> anyhow::Result<Self> {
        ensure!(
            args.workloads >= args.nodes,
            "--workloads {} are too few for --nodes {}: each node has one at least, or nothing would tell whether it was reached",
            args.workloads,
            args.nodes
        );
        args.output.verify()?;
        let progress = Progress::new();
        let (directory, disks) = (mesh::folder(args.output.keep)?, mesh::disks(args.output.keep)?);
        if args.output.keep {
            let (directory, disks) = (directory.path().display(), disks.path().display());
            progress.say(&format!("data and logs are in {directory}, what nodes keep on their disks in {disks}"));
        }
        progress.say(&match servers {
            1 => "starting a server".to_owned(),
            several => format!("starting {several} servers on three members of etcd"),
        });
        let servers = Servers::start(directory.path(), servers).await?;
        let mut api = servers.first().api();
        let upstream = Upstream::of(args.payload_endpoints);
        for call in upstream.calls() {
            write(&mut api, &call).await?;
        }
        let size = Size { nodes: args.nodes, workloads: args.workloads, seed: args.seed };
        let crew = Crew::muster(size, slow, &servers, &mesh::logs(directory.path()), disks.path()).await?;
        let usage = Usage::watch(servers.pids(), crew.pids());
        Ok(Self {
            servers,
            api,
            crew,
            usage,
            args,
            progress,
            restarts: None,
            failed_over: false,
            upstream,
            nodes: 0,
            traffic: None,
            directory,
            _disks: disks,
        })
    }

    /// Has the whole fleet come up and to rest.
    async fn come_up(&mut self) -> anyhow::Result<Start> {
        let rollout = self.roll_out(1).await?;
        let idle_cpu_percent = self.idle().await?;
        Ok(Start { rollout, idle_cpu_percent, counters: self.servers.counters().await? })
    }

    /// What was found in all.
    async fn report(&self, scenario: &str, start: Start, changes: Vec<FleetChange>) -> anyhow::Result<FleetReport> {
        // A server that was killed has counted from nothing.
        let before = if self.restarts.is_some() { Counters::default() } else { start.counters };
        let each = match self.failed_over {
            true => Counters::default(),
            false => self.servers.counters().await?.since(before).divided_by(changes.len()),
        };
        Ok(FleetReport {
            schema: fleet_report::SCHEMA.to_owned(),
            scenario: scenario.to_owned(),
            nodes: self.args.nodes,
            workloads: self.args.workloads,
            servers: u32::try_from(self.servers.pids().len())?,
            payload_endpoints: self.args.payload_endpoints,
            server: ServerCost {
                rss_bytes: self.servers.resident()?,
                cpu_ms_per_change: mean(changes.iter().map(|change| change.server_cpu_ms)).unwrap_or(0.0),
                receipts_ms_per_change: receipts::milliseconds_per_change(self.nodes)?,
                idle_cpu_percent: start.idle_cpu_percent,
                frames_encoded_per_change: each.frames_encoded,
                bytes_sent_per_change: each.bytes_sent,
                restarts: self.restarts,
                further: None,
            },
            changes,
            fleet: FleetCost { rss_bytes: self.fleet_resident()? },
            rollout: start.rollout,
            growth: None,
            probes: None,
            faults: None,
            samples: self.usage.samples(),
            machine: Machine::read(),
            versions: Versions::of(None),
        })
    }

    /// Has one in so many nodes come up, of those who have not.
    async fn roll_out(&mut self, one_in: u32) -> anyhow::Result<Rollout> {
        let before = std::mem::replace(&mut self.nodes, self.crew.part(one_in).await?);
        let more = self.nodes - before;
        let join_seconds = self.step("nodes joined", more, Step::Join).await?;
        let register_seconds = self.step("nodes that registered all they have", more, Step::Register).await?;
        let leaves_seconds = self.step("nodes with all certificates", more, Step::Certify).await?;
        let seconds = join_seconds + register_seconds + leaves_seconds;
        Ok(Rollout { seconds, join_seconds, register_seconds, leaves_seconds })
    }

    /// Has so many nodes take a step; how many seconds it took them.
    async fn step(&mut self, text: &str, nodes: u32, step: Step) -> anyhow::Result<f64> {
        let mut phase = self.progress.phase(text, u64::from(nodes));
        let begun = Instant::now();
        match self.crew.step(step, &mut phase).await {
            Ok(()) => Ok(begun.elapsed().as_secs_f64()),
            Err(error) => Err(self.because(error)),
        }
    }

    /// Has a tenth of the fleet come up, and makes changes, after which all is as before; tells how many nodes there were.
    async fn few(
        &mut self,
        subject: Subject,
        count: u32,
        envoys: Option<&(Envoy, u32)>,
    ) -> anyhow::Result<(Rollout, u32, Vec<FleetChange>)> {
        let rollout = self.roll_out(FEW).await?;
        self.accompany(envoys).await?;
        if envoys.is_none() {
            self.rest().await;
        }
        let changes = self.changes(subject, count.min(FEW_CHANGES_MAX).next_multiple_of(2)).await?;
        Ok((rollout, self.nodes, changes))
    }

    /// Starts Envoys beside the fleet, if there are to be any, and lets it come to rest; from now on one of them is what
    /// comes and goes.
    async fn accompany(&mut self, envoys: Option<&(Envoy, u32)>) -> anyhow::Result<()> {
        let Some((envoy, count)) = envoys else { return Ok(()) };
        let envoys = Envoys::start(envoy, *count, self.servers.first(), self.directory.path(), &self.progress).await?;
        self.upstream = Upstream { last: Some(envoys.fickle), others: envoys::CALLED, ..self.upstream };
        write(&mut self.api, &Change::Registration.call(&self.upstream)).await?;
        self.traffic = Some(Traffic::through(envoys));
        self.rest().await;
        Ok(())
    }

    /// Makes so many further registrations.
    async fn further(&mut self, registrations: u32) -> anyhow::Result<Further> {
        let server = self.servers.first();
        let found = memory::of_further_registrations(server, registrations, self.args.workloads, &self.progress).await;
        found.map_err(|error| self.because(error))
    }

    /// A server's own end, if that is what an error comes from.
    fn because(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.servers.ended() {
            Some(how) => error.context(how),
            None => error,
        }
    }

    /// Waits as long as between two changes.
    async fn rest(&self) {
        self.progress.say("letting the fleet come to rest");
        tokio::time::sleep(self.pause()).await;
    }

    /// CPU of the servers while nothing changes, in percent of a core.
    async fn idle(&mut self) -> anyhow::Result<f64> {
        self.rest().await;
        let (begun, before) = (Instant::now(), self.servers.cpu_time()?);
        tokio::time::sleep(IDLE).await;
        let used = self.servers.cpu_time()?.saturating_sub(before);
        Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
    }

    fn pause(&self) -> Duration {
        Duration::from_secs(self.args.pause)
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(self.args.deadline)
    }

    /// Makes all changes.
    async fn changes(&mut self, subject: Subject, count: u32) -> anyhow::Result<Vec<FleetChange>> {
        if let Some(traffic) = &mut self.traffic {
            traffic.begin().await?;
        }
        let mut phase = self.progress.phase("changes", u64::from(count));
        let churn = (subject == Subject::Churn).then(|| Churn::begin(self.servers.first(), self.args.workloads));
        let mut changes = Vec::new();
        for change in Change::there_and_back(subject).into_iter().cycle().take(usize::try_from(count)?) {
            if !changes.is_empty() && churn.is_none() {
                tokio::time::sleep(self.pause()).await;
            }
            let begun = Instant::now();
            let measured = match subject {
                Subject::Reconnect => self.restart(change).await,
                Subject::Failover(kill) => self.fail_over(change, kill).await,
                Subject::Endpoints | Subject::Intention | Subject::Rollout | Subject::Churn | Subject::Faults => {
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
        if let Some(traffic) = &mut self.traffic {
            traffic.end();
        }
        Ok(changes)
    }

    /// Kills the server, and makes a change as soon as it is back; latencies are from the moment of its end.
    async fn restart(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        let steady_rss_bytes = self.servers.resident()?;
        let begun = Instant::now();
        self.servers.first_mut().restart().await?;
        self.usage.servers_are(self.servers.pids());
        let measured = self.measure(change, Some(begun)).await?;
        let peak_rss_bytes = process::resident_peak(self.servers.first().pid())?;
        let found = self.restarts.get_or_insert(Restarts { steady_rss_bytes, peak_rss_bytes });
        found.peak_rss_bytes = found.peak_rss_bytes.max(peak_rss_bytes);
        Ok(measured)
    }

    /// Makes one change and waits until it is in force everywhere; latencies are from `since`, or from just before the call.
    async fn measure(&mut self, change: Change, since: Option<Instant>) -> anyhow::Result<FleetChange> {
        self.crew.watch().await?;
        let cpu_before = self.servers.cpu_time()?;
        let called = Called::now(&mut self.api, change, &self.upstream).await?;
        let since = since.unwrap_or(called.written.called);
        let called = Called { since: Moment::of(since)?, ..called };
        let measured = self.outcome(called, change.name(), Among::All).await?;
        self.hear_receipt(called.revision).await?;
        let server_cpu = self.servers.cpu_time()?.saturating_sub(cpu_before);
        let deadline = self.deadline();
        let traffic_ms = match &mut self.traffic {
            Some(traffic) => Some(traffic.changed(change.turn(), called.written, since, deadline).await?),
            None => None,
        };
        Ok(FleetChange { server_cpu_ms: server_cpu.as_secs_f64() * 1e3, traffic_ms, ..measured })
    }

    /// Waits until a change is in force everywhere among some.
    async fn outcome(&mut self, called: Called, kind: &str, among: Among) -> anyhow::Result<FleetChange> {
        let Called { change, revision, since, .. } = called;
        let expected = change.expected(&self.upstream);
        let collected = self.crew.collect(revision, expected, among, self.deadline()).await?;
        if collected.amiss > 0 {
            let examples = collected.examples.join("; ");
            self.progress.say(&format!("revision {revision} is amiss at {} nodes: {examples}", collected.amiss));
        }
        Ok(FleetChange::new(revision, kind, collected.workloads, &collected.latencies_us(since)))
    }

    /// Waits until the server has heard of every node that it has applied a change.
    async fn hear_receipt(&mut self, revision: u64) -> anyhow::Result<()> {
        let receipt = receipt::wait(&mut self.api, revision, RECEIPT_DEADLINE).await?;
        // The agents of the Envoys beside the fleet are further ones.
        let is_whole = match self.traffic {
            Some(_) => receipt.is_applied_by_at_least(self.nodes),
            None => receipt.is_applied_by(self.nodes),
        };
        if !is_whole {
            self.progress.say(&format!("the receipt of revision {revision} is not whole: {receipt}"));
        }
        Ok(())
    }

    fn fleet_resident(&self) -> anyhow::Result<u64> {
        self.crew.pids().into_iter().map(process::resident).sum()
    }
}

/// A change that was called for.
#[derive(Debug, Clone, Copy)]
struct Called {
    change: Change,
    revision: u64,
    written: Written,
    /// Just before the call.
    since: Moment,
}

impl Called {
    /// Calls for a change.
    async fn now(api: &mut Api, change: Change, upstream: &Upstream) -> anyhow::Result<Self> {
        let call = change.call(upstream);
        let written = api.write(call.method, &call.target, &call.body).await?;
        let since = Moment::of(written.called)?;
        let Some(revision) = written.revision else { bail!("{} answered without a revision", call.target) };
        Ok(Self { change, revision, written, since })
    }
}

async fn write(api: &mut Api, call: &Call) -> anyhow::Result<()> {
    let written = api.write(call.method.clone(), &call.target, &call.body).await?;
    ensure!(written.revision.is_some(), "{} answered without a revision", call.target);
    Ok(())
}
