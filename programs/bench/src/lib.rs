//! `starling bench`: scenarios that tell whether a mesh keeps its promises, measured from outside.
//!
//! A scenario brings up a real mesh from this program's own executable (server, sidecars in Envoy, applications), drives
//! it through its public API, and watches it through its traffic. The parts that every scenario uses are `mesh` (processes),
//! `api` (calls), `probe` (traffic), `verdict` (when it changed), `histogram`, `report` and `table`; a scenario is one module beside them. Scenarios
//! with a simulated fleet use `fleet`, whose nodes are the agent's own code, and `shape`, `percentiles` and `fleet_report`.
//! `plane` is a mesh with the proxies of one data plane, `cgroup` limits what a process may have, `load` sends requests at
//! a rate. `html` makes pages of reports, with the studies of `published` beside them, and `page` one of several. Nothing
//! else here shares code with what it measures, but the reading of HTTP/1.1.
//!
//! What it does not own: the wording of the command line outside `bench`, and the installation of Envoy.

mod api;
mod cgroup;
mod churn;
mod connection;
mod cost;
mod dns;
mod echo;
mod etcd;
mod fleet;
mod fleet_report;
mod histogram;
mod html;
mod latency_of_change;
mod load;
mod machine;
mod mesh;
mod page;
mod percentiles;
mod plane;
mod probe;
mod process;
mod progress;
mod propagation;
mod proxy;
mod published;
mod receipt;
mod relay;
mod report;
mod said;
mod scale;
mod shape;
mod stop;
mod store;
mod suite;
mod table;
mod verdict;
mod watchers;

use std::process::ExitCode;

use cost::CostScenario;
pub use load::{LoadArgs, run as run_load};
pub use machine::Machine;
use propagation::Subject;
pub use report::Versions;
use stop::Stop;

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
    /// Measure when a change of an upstream that all have is in force, at every workload of a simulated fleet
    Propagation(propagation::ScenarioArgs),
    /// Measure when a wildcard intention is in force, at every workload of a simulated fleet
    Intention(propagation::ScenarioArgs),
    /// Measure how long a simulated fleet takes to come up from nothing
    Rollout(propagation::ScenarioArgs),
    /// Measure how long a simulated fleet takes to be current after its server was killed, and came back
    Reconnect(propagation::ScenarioArgs),
    /// Measure when a change is in force at every workload though a server, or etcd's leader, is killed in the middle of it
    Failover(propagation::failover::FailoverArgs),
    /// Measure one change at fleets of several sizes, attached to a server and behind relays
    Relay(relay::Args),
    Churn(churn::ChurnArgs),
    /// Measure a change beside nodes that read slowly, and while packets are lost and connections reset
    Faults(propagation::faults::FaultArgs),
    /// Measure the native data plane against Envoy: requests, CPU, latency, memory, and changes under load
    Proxy(proxy::Args),
    /// Measure durable writes through three members of etcd, beside etcd's own benchmark
    Store(store::Args),
    /// Measure whom a change wakes of many blocking queries on one server, when, and what one of these costs
    Watchers(watchers::Args),
    /// Measure what a server answers over DNS for a second of its CPU time, and how soon
    Dns(dns::Args),
    /// Measure the latency that proxies add, by connections and by rate
    Latency(cost::Args),
    /// Measure the CPU time that proxies take, by rate
    Cpu(cost::Args),
    /// Measure latency by load, up to the rate that proxies no longer keep up with
    Throughput(cost::Args),
    /// Measure the memory that proxies take, by connections and by rate
    Memory(cost::Args),
    /// Measure an ingress gateway before a sidecar, under limits of CPU time and memory
    Ingress(cost::IngressArgs),
    Compare(cost::compare::CompareArgs),
    Page(page::PageArgs),
    Smp(cost::smp::SmpArgs),
    Suite(suite::SuiteArgs),
    /// Be the application behind measured proxies
    #[command(hide = true)]
    Echo(echo::Args),
    /// Be a process of a simulated fleet
    #[command(hide = true)]
    Fleet,
}

impl Scenario {
    /// Whether it reports what it has when it is told to stop, and so is not stopped for it.
    fn reports_when_stopped(&self) -> bool {
        matches!(
            self,
            Self::Latency(_)
                | Self::Cpu(_)
                | Self::Throughput(_)
                | Self::Memory(_)
                | Self::Ingress(_)
                | Self::Churn(churn::ChurnArgs::Requests(_))
        )
    }
}

/// Runs the chosen scenario until it is over, or until SIGINT or SIGTERM; either way nothing that it started is left.
///
/// The exit code is 0 when everything could be measured, and 1 when it could not, or when `--strict` was given and a bar
/// was missed.
/// # Errors
/// When the mesh cannot be brought up, or something in it fails that the scenario does not measure.
pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::listen()?;
    let reports_when_stopped = args.scenario.reports_when_stopped();
    let scenario = async {
        match args.scenario {
            Scenario::LatencyOfChange(args) => latency_of_change::run(args).await,
            Scenario::Scale(args) => scale::run(args).await,
            Scenario::Propagation(args) => propagation::run(Subject::Endpoints, args).await,
            Scenario::Intention(args) => propagation::run(Subject::Intention, args).await,
            Scenario::Rollout(args) => propagation::run(Subject::Rollout, args).await,
            Scenario::Reconnect(args) => propagation::run(Subject::Reconnect, args).await,
            Scenario::Failover(args) => propagation::run_failover(args).await,
            Scenario::Relay(args) => relay::run(args).await,
            Scenario::Churn(churn::ChurnArgs::Fleet(args)) => propagation::run(Subject::Churn, *args).await,
            Scenario::Churn(churn::ChurnArgs::Requests(args)) => cost::run(CostScenario::Churn, *args).await,
            Scenario::Faults(args) => propagation::faults::run(args).await,
            Scenario::Proxy(args) => proxy::run(args).await,
            Scenario::Store(args) => store::run(args).await,
            Scenario::Watchers(args) => watchers::run(args).await,
            Scenario::Dns(args) => dns::run(args).await,
            Scenario::Latency(args) => cost::run(CostScenario::Latency, args).await,
            Scenario::Cpu(args) => cost::run(CostScenario::Cpu, args).await,
            Scenario::Throughput(args) => cost::run(CostScenario::Throughput, args).await,
            Scenario::Memory(args) => cost::run(CostScenario::Memory, args).await,
            Scenario::Ingress(args) => cost::run(CostScenario::Ingress, args.into()).await,
            Scenario::Smp(args) => cost::smp::run(&args),
            Scenario::Compare(args) => cost::compare::run(&args),
            Scenario::Page(args) => page::run(&args),
            Scenario::Suite(args) => suite::run(args).await,
            Scenario::Echo(args) => echo::run(args).await.map(|()| ExitCode::SUCCESS),
            Scenario::Fleet => fleet::process::run_apart().await.map(|()| ExitCode::SUCCESS),
        }
    };
    // Dropping the scenario ends its processes and removes its files.
    tokio::select! {
        outcome = scenario => outcome,
        stopped = stop.came(), if !reports_when_stopped => Ok(stopped.tell()),
    }
}

#[cfg(test)]
mod tests;
