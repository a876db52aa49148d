//! The command line of the scenarios that measure what a mesh costs.

use std::time::Duration;

use anyhow::bail;
use clap::{ValueEnum, value_parser};

use super::churn;
use super::limits::Limit;
use super::measure::Timing;
use super::points;
use super::report::{CostScenario, Mode, Point, ProxyKind, Settings};
use super::target::TargetArgs;
use crate::report::OutputArgs;

/// Longest wait for an answer, but beyond the knee of a curve.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The same on a curve, whose last point is one that the mesh does not keep up with: nobody waits for what is queued.
const TIMEOUT_OF_CURVE: Duration = Duration::from_secs(2);

/// How long a measurement counts unless it is said.
const SECONDS: f64 = 5.0;

/// Connections of the published study of ingress gateways.
const INGRESS_CONNECTIONS: u32 = 100;

/// Exit codes and where the JSON is described.
pub(super) const AFTER_HELP: &str = "\
What --json writes is described in docs/reference/bench-report.md. The exit code is 1 when something that was to be
measured was not, or may not be believed; the report says what, and has the rest.";

/// The same of `ingress`, with what it takes.
const AFTER_HELP_OF_INGRESS: &str = "\
Proxies are limited by cgroups, version 1 or 2, for which it has to be root; without the right, what is limited is
missing. A gateway with a tenth of a core takes some ten seconds for 15,000 requests, and all of it some ten minutes.

What --json writes is described in docs/reference/bench-report.md. The exit code is 1 when something that was to be
measured was not, or may not be believed; the report says what, and has the rest.";

/// Arguments of `starling bench latency`, `cpu`, `throughput` and `memory`, and most of those of `ingress`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Whose proxies to measure, each against no mesh; `none` measures that alone
    #[arg(long, value_enum, default_value_t)]
    proxy: Proxy,
    /// Through which proxies: the caller's, the service's, or both [default: all of latency, else both]
    #[arg(long, value_enum, value_name = "MODE", value_delimiter = ',')]
    modes: Vec<ModeArgument>,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Intentions with permissions by path on the service, beside the one of its caller
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = value_parser!(u32).range(0..=1000))]
    policies: u32,
    /// Have every proxy write an access log
    #[arg(long)]
    access_log: bool,
    /// Have every proxy send a span of every request to a collector
    #[arg(long)]
    tracing: bool,
    /// Mutual TLS between sidecars; those of Starling have no other way
    #[arg(long, value_enum, default_value_t)]
    mtls: Switch,
    /// How often each is measured, all in random order each time; intervals take at least 2
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each measurement counts [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Sent before each measurement without counting
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    warm_up: f64,
    /// Bytes of each request's body, and of its answer's
    #[arg(long, default_value_t = 1024, value_name = "BYTES", value_parser = value_parser!(u32).range(0..=16_777_216))]
    payload: u32,
    /// Measure these numbers of connections, at 1,000 requests a second
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=100_000))]
    connections: Vec<u32>,
    /// Measure these rates, over 16 connections; throughput over 64, or over each of --connections
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = rate)]
    rates: Vec<f64>,
    /// Measure memory with these numbers of further services [default: 10,100,1000 if no other points are given]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=10_000))]
    services: Vec<u32>,
    /// Measure with so many changes of routes, endpoints and certificates a second, in turn [default: 0,10 of churn]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = changes)]
    changes_per_second: Vec<f64>,
    /// Threads of the generator
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Repeats the order of an earlier run, and its resampling [default: a random one, which the report names]
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    // Of `ingress`, which has arguments of its own for them.
    #[arg(skip)]
    requests: Option<u64>,
    #[arg(skip)]
    limits: Vec<Limit>,
}

/// Arguments of `starling bench ingress`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = AFTER_HELP_OF_INGRESS,
    mut_arg("modes", |modes| modes
        .help("Through which proxies: `server`, the service's sidecar alone, or `gateway`, before that [default: each]")
        .hide_possible_values(true)),
    mut_arg("connections", |connections| connections.help("Measure over these numbers of connections [default: 100]")),
    mut_arg("seconds", |seconds| seconds.hide(true)),
    mut_arg("rates", |rates| rates.hide(true)),
    mut_arg("services", |services| services.hide(true)),
    mut_arg("changes_per_second", |changes| changes.hide(true))
)]
pub(crate) struct IngressArgs {
    #[command(flatten)]
    args: Args,
    /// Requests of each measurement
    #[arg(long, default_value_t = 15_000, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    requests: u64,
    /// What is measured under which limits: `none`, or CPU time and memory of the gateway, or of all proxies each
    /// [default: none,gateway:0.1:100,all:0.25:500,all:2:1024]
    #[arg(long, value_name = "none|gateway:CORES:MIB|all:CORES:MIB", value_delimiter = ',')]
    limits: Vec<Limit>,
}

impl From<IngressArgs> for Args {
    fn from(IngressArgs { args, requests, limits }: IngressArgs) -> Self {
        Self { requests: Some(requests), limits, ..args }
    }
}

/// Whose proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Proxy {
    Native,
    Envoy,
    None,
    #[default]
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArgument {
    /// The caller's sidecar alone, in front of an application that speaks mutual TLS itself
    Client,
    /// The service's sidecar alone, called by a generator that speaks mutual TLS itself
    Server,
    /// The caller's sidecar, then the service's
    Both,
    /// An ingress gateway, then the service's sidecar
    #[value(hide = true)]
    Gateway,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Switch {
    #[default]
    On,
    Off,
}

/// A tenth of a second shows that all works; figures to be believed take longer.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("it is 0.1 to 3600".to_owned()) }
}

fn changes(text: &str) -> Result<f64, String> {
    let changes = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.0..=1000.0).contains(&changes) { Ok(changes) } else { Err("it is 0 to 1000".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (1.0..=10_000_000.0).contains(&rate) { Ok(rate) } else { Err("it is 1 to 10,000,000".to_owned()) }
}

impl Args {
    /// Refuses what a mesh cannot do, or a scenario does not ask.
    ///
    /// # Errors
    /// With what can be done instead.
    pub(super) fn verify(&self, scenario: CostScenario) -> anyhow::Result<()> {
        self.target.verify()?;
        if scenario == CostScenario::Memory && self.target.is_given() {
            bail!("memory of the proxies of a --target cannot be told from here: they are not processes of this run");
        }
        if !self.services.is_empty() && (scenario != CostScenario::Memory || self.target.is_given()) {
            bail!("--services is for `starling bench memory`, on a mesh that it brings up");
        }
        if !self.changes_per_second.is_empty() && scenario != CostScenario::Churn {
            bail!("--changes-per-second is for `starling bench churn --proxy ...`");
        }
        if scenario == CostScenario::Churn && self.kinds().is_empty() {
            bail!("churn changes the mesh, so it takes one that it brings up: --proxy native, envoy or all");
        }
        if scenario == CostScenario::Ingress {
            self.verify_ingress()?;
        } else if self.modes.contains(&ModeArgument::Gateway) {
            bail!("--modes gateway is for `starling bench ingress`");
        }
        if self.mtls == Switch::Off {
            bail!(
                "--mtls off: sidecars of Starling speak nothing but mutual TLS with each other. To measure a mesh that does \
                 otherwise, point at it with --target"
            );
        }
        self.output.verify()
    }

    fn verify_ingress(&self) -> anyhow::Result<()> {
        if self.seconds.is_some() || !self.rates.is_empty() {
            bail!(
                "`starling bench ingress` sends so many --requests as fast as they are answered: it has no --seconds or --rates"
            );
        }
        if self.modes.iter().any(|mode| !matches!(mode, ModeArgument::Server | ModeArgument::Gateway)) {
            bail!("`starling bench ingress` has the modes server and gateway");
        }
        if self.target.is_given() && self.limits.iter().any(|limit| !limit.is_none()) {
            bail!(
                "--limits are for proxies that `starling bench ingress` starts: those of a --target have whatever they were given"
            );
        }
        Ok(())
    }

    /// The kinds of proxies that are measured.
    pub(super) fn kinds(&self) -> Vec<ProxyKind> {
        match self.proxy {
            _ if self.target.is_given() => Vec::new(),
            Proxy::None => Vec::new(),
            Proxy::Native => vec![ProxyKind::Native],
            Proxy::Envoy => vec![ProxyKind::Envoy],
            Proxy::All => vec![ProxyKind::Native, ProxyKind::Envoy],
        }
    }

    /// Whether proxies of a kind were asked for by name, so that a run without them is none.
    pub(super) fn insists_on(&self, kind: ProxyKind) -> bool {
        self.proxy != Proxy::All && self.kinds() == [kind]
    }

    /// The modes that were asked for, or else the usual ones.
    pub(super) fn modes(&self, usual: Vec<Mode>) -> Vec<Mode> {
        let asked = |mode: &ModeArgument| match mode {
            ModeArgument::Client => Mode::Client,
            ModeArgument::Server => Mode::Server,
            ModeArgument::Both => Mode::Both,
            ModeArgument::Gateway => Mode::Gateway,
        };
        if self.modes.is_empty() { usual } else { self.modes.iter().map(asked).collect() }
    }

    pub(super) fn connections(&self) -> &[u32] {
        &self.connections
    }

    /// What `ingress` is measured at: by limits, over each number of connections.
    pub(super) fn points_of_ingress(&self) -> Vec<Point> {
        let connections =
            if self.connections.is_empty() { &[INGRESS_CONNECTIONS] } else { self.connections.as_slice() };
        let limits = match (self.limits.is_empty(), self.target.is_given()) {
            (false, _) => self.limits.clone(),
            (true, true) => vec![Limit::none()],
            (true, false) => Limit::usual(),
        };
        points::of_ingress(connections, self.requests, &limits)
    }

    pub(super) fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// The changes a second that churn is measured with.
    pub(super) fn changes(&self) -> &[f64] {
        if self.changes_per_second.is_empty() { &churn::CHANGES_PER_SECOND } else { &self.changes_per_second }
    }

    /// The numbers of services, ascending, that memory is measured with.
    pub(super) fn services(&self, scenario: CostScenario) -> Vec<u32> {
        let are_own = scenario == CostScenario::Memory && !self.target.is_given();
        let others = !self.connections.is_empty() || !self.rates.is_empty();
        let mut services = match (are_own, self.services.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) if others => Vec::new(),
            (true, true) => vec![10, 100, 1000],
            (true, false) => self.services.clone(),
        };
        services.sort_unstable();
        services.dedup();
        services
    }

    /// Whether services are all that was asked for.
    pub(super) fn asks_for_services_alone(&self) -> bool {
        !self.services.is_empty() && self.connections.is_empty() && self.rates.is_empty()
    }

    pub(super) fn timing(&self, scenario: CostScenario) -> Timing {
        Timing {
            warm_up: Duration::from_secs_f64(self.warm_up),
            length: Duration::from_secs_f64(self.seconds.unwrap_or(SECONDS)),
            timeout: if scenario == CostScenario::Throughput { TIMEOUT_OF_CURVE } else { TIMEOUT },
            threads: self.threads,
        }
    }

    pub(super) fn settings(&self, scenario: CostScenario) -> Settings {
        let is_own = !self.target.is_given();
        Settings {
            rounds: self.rounds,
            seconds: if scenario == CostScenario::Ingress { 0.0 } else { self.seconds.unwrap_or(SECONDS) },
            warm_up_seconds: self.warm_up,
            protocol: self.target.protocol().name().to_owned(),
            payload_bytes: self.payload,
            mtls: is_own,
            access_log: self.access_log,
            tracing: self.tracing,
            policies: self.policies,
            workers: is_own.then_some(1),
            generator_threads: self.threads,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..=u64::from(u32::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &[&str]) -> Result<Args, String> {
        let words = std::iter::once(&"x").chain(line);
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_mesh_without_mutual_tls_is_refused_with_what_can_be_done() {
        let refused = read(&["--mtls", "off"]).unwrap().verify(CostScenario::Cpu).unwrap_err();
        assert!(refused.to_string().contains("--target"), "{refused}");
        read(&["--mtls", "on"]).unwrap().verify(CostScenario::Cpu).unwrap();
    }

    #[test]
    fn a_target_has_no_proxies_of_ours() {
        let args = read(&["--target", "url=grpc://a:1/x,baseline=grpc://b:2/y"]).unwrap();
        let settings = args.settings(CostScenario::Cpu);
        assert_eq!((args.kinds(), settings.workers, settings.protocol.as_str()), (Vec::new(), None, "grpc"));
        assert!(read(&["--target", "url=http://a,baseline=http://b", "--policies", "3"]).is_err());
    }

    fn ingress(line: &[&str]) -> Result<Args, String> {
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            args: IngressArgs,
        }
        let words = std::iter::once(&"x").chain(line);
        Line::try_parse_from(words).map(|line| line.args.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_ingress_has_no_use_for_is_refused_and_so_is_what_it_alone_has() {
        let refused = |line: &[&str]| ingress(line).unwrap().verify(CostScenario::Ingress).unwrap_err().to_string();
        for line in [&["--seconds", "1"][..], &["--rates", "9"], &["--modes", "both"], &["--services", "3"]] {
            assert!(refused(line).contains("starling bench"), "{line:?}");
        }
        let target = ["--target", "url=http://a:1/,baseline=http://b:2/"];
        assert!(refused(&[&target[..], &["--limits", "all:1:64"]].concat()).contains("--target"));
        assert!(read(&["--requests", "9"]).is_err() && read(&["--limits", "none"]).is_err());
        let refused = read(&["--modes", "gateway"]).unwrap().verify(CostScenario::Cpu).unwrap_err();
        assert!(refused.to_string().contains("`starling bench ingress`"), "{refused}");
    }

    #[test]
    fn ingress_has_the_points_of_the_published_study_or_those_that_are_given() {
        let usual = ingress(&[]).unwrap().points_of_ingress();
        assert!(usual.iter().all(|point| (point.connections, point.requests) == (100, Some(15_000))), "{usual:?}");
        assert_eq!(usual.len(), 4);
        let given = ingress(&["--requests", "9", "--connections", "1,2", "--limits", "none,all:1:64"]).unwrap();
        given.verify(CostScenario::Ingress).unwrap();
        assert_eq!(given.points_of_ingress().len(), 4);
        let target = ["--target", "url=http://a:1/,baseline=http://b:2/"];
        assert_eq!(ingress(&target).unwrap().points_of_ingress().len(), 1);
        assert!(ingress(&["--limits", "0.1"]).unwrap_err().contains("gateway:CORES:MIB"));
    }

    #[test]
    fn what_makes_no_measurement_is_refused() {
        for wrong in [["--seconds", "0"], ["--rates", "0"], ["--connections", "0"], ["--rounds", "0"], ["--modes", "x"]]
        {
            assert!(read(&wrong).is_err(), "{wrong:?}");
        }
        let args = read(&["--proxy", "envoy", "--connections", "1,2", "--modes", "both,client"]).unwrap();
        assert!(args.insists_on(ProxyKind::Envoy) && !read(&[]).unwrap().insists_on(ProxyKind::Envoy));
        assert_eq!((args.connections(), args.modes(Vec::new())), (&[1, 2][..], vec![Mode::Both, Mode::Client]));
    }
}
