//! Scenario `proxy`: what two hops through Starling's own data plane cost, held against the same through Envoy.
//!
//! Both planes are up at the same time, each a mesh of its own: a server and two agents, a caller on one node and the
//! application on the other. Both hops speak mutual TLS, the second authorises by path, metrics are counted, and each proxy
//! has one worker. Every figure is measured on one plane after the other, round by round, so that what else the machine
//! does falls on both.

mod bulk;
mod change;
mod figure;
pub(crate) mod findings;
mod idle;
mod measure;
pub(crate) mod services;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{ValueEnum, value_parser};

use crate::machine::Machine;
use crate::mesh::{Envoy, Ports, folder};
use crate::plane::{Application, Kind, Plane, Setting};
use crate::progress::Progress;
use crate::report::Versions;
pub(crate) use findings::{FIGURES_HEADER, Findings, SCHEMA};
use measure::Bench;

/// Arguments of `starling bench proxy`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = findings::JSON_HELP)]
pub(crate) struct Args {
    /// How often each figure is measured on each plane, in turn; the median counts
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each measurement under load takes
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = seconds)]
    seconds: f64,
    /// Measure these rows alone
    #[arg(long, value_enum, value_name = "ROW", value_delimiter = ',')]
    only: Vec<Row>,
    /// Idle connections of mutual TLS; Envoy as Starling starts it takes 10,000 in all
    #[arg(long, default_value_t = 9000, value_parser = value_parser!(u32).range(10..=100_000))]
    idle_connections: u32,
    /// Services of the plan whose memory is measured
    #[arg(long, default_value_t = 5000, value_parser = value_parser!(u32).range(10..=20_000))]
    services: u32,
    /// Write the report to this file
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Leave the folder with data and logs behind, and say where it is
    #[arg(long)]
    keep: bool,
}

/// A tenth of a second shows that all works; figures to be believed take longer.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.1..=600.0).contains(&seconds) { Ok(seconds) } else { Err("it is 0.1 to 600".to_owned()) }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Row {
    /// Resident memory, idle and under load
    Memory,
    /// Most requests a second over 64 HTTP/1.1 connections, and the CPU time of each
    Throughput,
    /// What both hops add at 1,000 requests a second of 1 KB over 16 connections
    Latency,
    /// HTTP/2, 16 streams on each of 4 connections
    Http2,
    /// gRPC unary calls, 16 streams on each of 4 connections
    Grpc,
    /// Bytes of one TCP stream
    Bulk,
    /// New connections of mutual TLS
    Handshakes,
    /// One endpoint that comes and goes under 10,000 requests a second
    Change,
    /// Memory of idle connections of mutual TLS
    Connections,
    /// Memory of a plan with 5,000 services
    Services,
}

/// Runs the scenario.
///
/// # Errors
/// When a mesh cannot be brought up, or breaks.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let envoy = Envoy::find()?;
    let directory = folder(args.keep)?;
    if args.keep {
        progress.say(&format!("data and logs: {}", directory.path().display()));
    }
    let mut ports = Ports::new();
    let application = Application { http: ports.loopback()?, tcp: ports.loopback()? };
    let _echo = application.start("application", directory.path()).await?;
    progress.say("bringing up a mesh on each data plane");
    let setting = Setting::plain();
    let native = Plane::start(Kind::Native, application, &setting, directory.path(), &mut ports).await?;
    let envoys = Plane::start(Kind::Envoy(envoy.clone()), application, &setting, directory.path(), &mut ports).await?;
    let rows = if args.only.is_empty() { Row::value_variants().to_vec() } else { args.only.clone() };
    let mut bench = Bench {
        native,
        envoy: envoys,
        application,
        seconds: Duration::from_secs_f64(args.seconds),
        idle_connections: args.idle_connections,
        services: args.services,
        readings: Vec::new(),
        problems: Vec::new(),
    };
    // In this order: idle memory is that of proxies that have done nothing, and what is left behind disturbs nobody.
    for row in Row::value_variants().iter().filter(|row| rows.contains(row)) {
        let rounds = if row.is_once() { 1 } else { args.rounds };
        let mut phase = progress.phase(row.name(), rounds.into());
        for round in 0..rounds {
            bench.measure(*row, round).await;
            phase.step();
        }
    }
    let versions = Versions::of(Some(&envoy));
    let findings = Findings::new(&bench, &rows, args.rounds, args.seconds, Machine::read(), versions);
    crate::said::text(&findings.text());
    if let Some(path) = &args.json {
        let mut json = serde_json::to_string_pretty(&findings)?;
        json.push('\n');
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if findings.is_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Row {
    /// Whether it leaves something behind that a second round would meet, or is exact enough.
    fn is_once(self) -> bool {
        matches!(self, Self::Memory | Self::Connections | Self::Services)
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
