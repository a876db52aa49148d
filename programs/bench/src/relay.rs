//! Scenario `relay`: what one change costs fleets of several sizes, attached to one server and behind relays.
//!
//! For each size and way a server of its own, and relays where there are to be any, come up, and a fleet of simulated nodes attaches:
//! half of it to each of two relays, and so on. Then an endpoint of an upstream that all workloads have comes and goes. A change is
//! over when it is in force at every workload, and told when the server's receipt says so of every node.

mod findings;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::value_parser;
use serde::Deserialize;
use serde_json::json;

use crate::fleet::crew::{Size, Step};
use crate::fleet::{Among, Crew, Moment, Server};
use crate::mesh::{self, Child, Ports, command, is_ready, own_program};
use crate::process;
use crate::progress::Progress;
use crate::propagation::Subject;
use crate::propagation::changes::{Change, Upstream};
use crate::receipt;
use crate::report::{OutputArgs, Versions};
use findings::{Findings, Measured, Row, Way};

/// Time for the server to hear of everybody that a change is applied.
const RECEIPT_DEADLINE: Duration = Duration::from_secs(60);

/// The limit of descriptors of one process here: what a relay holds of streams is some 500 fewer.
const RELAY_NODES_MAX: u32 = 19_488;

/// Agents that one server takes by the same limit.
const SERVER_NODES_MAX: u32 = 15_000;

/// Arguments of `starling bench relay`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = findings::JSON_HELP)]
pub(crate) struct Args {
    /// Simulated nodes, in all, of each run; sizes that a server alone cannot hold are measured behind relays only
    #[arg(long, value_delimiter = ',', default_values_t = [2_500, 5_000, 10_000], value_parser = value_parser!(u32).range(2..=200_000))]
    nodes: Vec<u32>,
    /// Relays that share the nodes; a process with 20,000 descriptors holds some 19,500 of them
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..=64))]
    relays: u32,
    /// Workloads of each node, each with a sidecar
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=100))]
    workloads_per_node: u32,
    /// Changes of each run
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(2..=1_000))]
    changes: u32,
    /// Leave out the runs without relays
    #[arg(long)]
    relays_only: bool,
    /// Seconds between two changes: nodes write what they have heard to their disks meanwhile
    #[arg(long, default_value_t = 7, value_parser = value_parser!(u64).range(0..=600))]
    pause: u64,
    /// Seconds after which a workload that has not heard of a change counts as not reached
    #[arg(long, default_value_t = 60, value_parser = value_parser!(u64).range(1..=3600))]
    deadline: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the scenario. The exit code is a failure, too, when a workload was not reached or a receipt is not whole.
///
/// # Errors
/// When the fleet cannot be brought up or breaks, or a call is refused.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.output.verify()?;
    let progress = Progress::new();
    let largest = args.relays.saturating_mul(RELAY_NODES_MAX);
    for nodes in &args.nodes {
        ensure!(
            *nodes <= largest,
            "--nodes {nodes}: {} relays hold {largest} nodes with 20,000 descriptors each",
            args.relays
        );
    }
    let runs = args.nodes.iter().flat_map(|nodes| {
        let direct = (!args.relays_only && *nodes <= SERVER_NODES_MAX).then_some(Way::Direct);
        direct.into_iter().chain([Way::Relays(args.relays)]).map(|way| (*nodes, way))
    });
    let (mut rows, mut broken) = (Vec::new(), None);
    for (nodes, way) in runs {
        progress.say(&format!("{nodes} nodes, {way}"));
        match measure(&args, nodes, way, &progress).await {
            Ok(row) => rows.push(row),
            // What the runs before it found took a quarter of an hour: it is reported.
            Err(error) if !rows.is_empty() => {
                broken = Some(format!("{nodes} nodes, {way}: {error:#}"));
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let findings = Findings::new(rows, broken, args.changes, args.workloads_per_node, Versions::of(None));
    findings.deliver(&args.output)
}

/// A relay that runs; it is killed when dropped.
struct Relay {
    child: Child,
    agents: SocketAddr,
}

#[derive(Debug, Deserialize)]
struct CreatedToken {
    token: String,
}

impl Relay {
    async fn start(
        number: u32,
        server: &Server,
        token: &str,
        directory: &Path,
        ports: &mut Ports,
    ) -> anyhow::Result<Self> {
        let (http, agents) = (ports.loopback()?, ports.loopback()?);
        let name = format!("relay-{number}");
        let mut command = command(&own_program()?);
        command.env("STARLING_JOIN_TOKEN", token);
        command.args(["relay", "--node-name", &name, "--join", &server.agents().to_string()]);
        command.arg("--data-dir").arg(directory.join(&name));
        command.args(["--http-addr", &http.to_string(), "--grpc-tls-addr", &agents.to_string()]);
        let mut child = Child::spawn(&name, &mut command, &mesh::logs(directory))?;
        mesh::ready(&mut child, || async move { is_ready(http, "/starling/v1/health/ready").await }).await?;
        Ok(Self { child, agents })
    }
}

/// CPU time of all of them.
fn cpu_time(relays: &[Relay]) -> anyhow::Result<Duration> {
    relays.iter().map(|relay| process::cpu_time(relay.child.pid())).sum()
}

async fn measure(args: &Args, nodes: u32, way: Way, progress: &Progress) -> anyhow::Result<Row> {
    let (directory, disks) = (mesh::folder(args.output.keep)?, mesh::disks(args.output.keep)?);
    let mut server = Server::alone(directory.path()).await?;
    let mut api = server.api();
    let upstream = Upstream::of(1);
    for call in upstream.calls() {
        api.write(call.method, &call.target, &call.body).await?;
    }
    let relays = relays(way, &server, directory.path()).await?;
    let at: Vec<_> = match way {
        Way::Direct => vec![vec![server.agents().to_string()]],
        Way::Relays(_) => relays.iter().map(|relay| vec![relay.agents.to_string()]).collect(),
    };
    let size = Size { nodes, workloads: nodes.saturating_mul(args.workloads_per_node), seed: 1 };
    let logs = mesh::logs(directory.path());
    let mut crew = Crew::muster_at(size, &BTreeSet::new(), &server, &at, &logs, disks.path()).await?;
    let begun = Instant::now();
    let steps = [
        ("nodes joined", Step::Join),
        ("nodes that registered all they have", Step::Register),
        ("nodes with all certificates", Step::Certify),
    ];
    for (text, step) in steps {
        let mut phase = progress.phase(text, u64::from(nodes));
        if let Err(error) = crew.step(step, &mut phase).await {
            return Err(match server.ended() {
                Some(how) => error.context(how),
                None => error,
            });
        }
    }
    let rollout = begun.elapsed();
    let mut row = Row::new(way, nodes, rollout);
    let mut phase = progress.phase("changes", u64::from(args.changes));
    for change in Change::there_and_back(Subject::Endpoints).into_iter().cycle().take(usize::try_from(args.changes)?) {
        tokio::time::sleep(Duration::from_secs(args.pause)).await;
        crew.watch().await?;
        let (server_before, relays_before) = (server.cpu_time()?, cpu_time(&relays)?);
        let call = change.call(&upstream);
        let written = api.write(call.method, &call.target, &call.body).await?;
        let since = Moment::of(written.called)?;
        let revision = written.revision.with_context(|| format!("{} answered without a revision", call.target))?;
        let (expected, within) = (change.expected(&upstream), Duration::from_secs(args.deadline));
        let collected = crew.collect(revision, expected, Among::All, within).await?;
        let receipt = receipt::wait(&mut api, revision, RECEIPT_DEADLINE).await?;
        if !receipt.is_applied_by(nodes) {
            progress.say(&format!("the receipt of revision {revision} is not whole: {receipt}"));
        }
        row.add(Measured {
            latencies_us: collected.latencies_us(since),
            workloads: collected.workloads,
            receipt: receipt.since_commit().filter(|_| receipt.is_applied_by(nodes)),
            server_cpu: server.cpu_time()?.saturating_sub(server_before),
            relays_cpu: cpu_time(&relays)?.saturating_sub(relays_before),
        });
        phase.step();
    }
    row.server_rss_bytes = process::resident(server.pid())?;
    row.relay_rss_bytes =
        relays.iter().map(|relay| process::resident(relay.child.pid())).sum::<anyhow::Result<u64>>()?;
    Ok(row)
}

async fn relays(way: Way, server: &Server, directory: &Path) -> anyhow::Result<Vec<Relay>> {
    let Way::Relays(count) = way else { return Ok(Vec::new()) };
    let body = json!({ "ForRelays": true, "Reusable": true, "TTL": "24h", "Description": "starling bench" });
    let CreatedToken { token } = server.api().make("/starling/v1/tokens/join", &body).await?;
    let mut ports = Ports::new();
    let mut relays = Vec::new();
    for number in 0..count {
        relays.push(Relay::start(number, server, &token, directory, &mut ports).await?);
    }
    Ok(relays)
}
