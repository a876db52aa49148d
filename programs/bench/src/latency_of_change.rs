//! Scenario `latency-of-change`: the time from the API's answer to changed traffic, for one lone change at a time.
//!
//! A client sidecar calls a service of two instances. Probes go through it without a pause while one instance is
//! deregistered and registered again, its check fails and passes again, and an intention denies and is deleted again,
//! one change at a time and the kinds in turn. [`crate::verdict`] defines the moment at which traffic has changed.

mod change;
mod fixture;
mod measurements;

use std::process::ExitCode;
use std::slice;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::api::Api;
use crate::histogram::milliseconds;
use crate::mesh::{Envoy, MeshOptions};
use crate::probe::{Outcome, Probe, ProbeOptions, Prober, is_steady};
use crate::progress::Progress;
use crate::receipt;
use crate::report::{OutputArgs, Versions};
use crate::verdict::{Sighting, Watch};
use change::{Change, FICKLE, Kind, STEADY};
use fixture::Fixture;
use measurements::{Measured, Measurements};

/// Time without the old behaviour after which a change counts as over. Far beyond the bar, so that a straggler shows.
const QUIET_MIN: Duration = Duration::from_millis(200);

/// Up to this much is added at random, so that changes do not keep step with a timer somewhere in the path.
const QUIET_JITTER_MS: u64 = 100;

/// Time after which a change that did not show in traffic never will.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);

/// Time in which traffic must flow to both instances after the Envoys are ready.
const STEADY_DEADLINE: Duration = Duration::from_secs(30);

/// Answers in a row, from both instances and without a failure, after which traffic counts as steady.
const STEADY_PROBES: usize = 200;

/// Pause between two looks at the probes; it delays nothing that is measured.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Arguments of `starling bench latency-of-change`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = measurements::JSON_HELP)]
pub(crate) struct Args {
    /// How often each change is made; it is undone as often, and that is measured, too
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    changes: u32,
    /// What to change
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Kind::ALL)]
    kinds: Vec<Kind>,
    /// Connections on which probes are sent in turn
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: u16,
    /// Microseconds between two probes, over all connections
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    spacing_us: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the scenario.
///
/// # Errors
/// When the mesh cannot be brought up or breaks, or a call is refused.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let envoy = Envoy::find()?;
    let versions = Versions::of(Some(&envoy));
    args.output.verify()?;
    let fixture = Fixture::start(MeshOptions { envoy: Some(envoy), keep: args.output.keep }, &progress).await?;
    if args.output.keep {
        progress.say(&format!("data and logs are in {}", fixture.mesh.directory().display()));
    }
    let options = ProbeOptions {
        target: fixture.upstream,
        lanes: usize::from(args.connections),
        spacing: Duration::from_micros(u64::from(args.spacing_us)),
    };
    let prober = Prober::start(Instant::now(), options);
    let api = fixture.mesh.api();
    let mut bench = Bench { fixture, api, prober, measurements: Measurements::new(options) };
    bench.wait_until_steady().await?;
    bench.measure_all(&args.kinds, args.changes, &progress).await?;
    let Bench { measurements, prober, .. } = bench;

    let report = measurements.report(prober.totals(), versions);
    let code = args.output.deliver(&report, slice::from_ref(&report.bar), || measurements::table(&report))?;
    Ok(if report.unseen.is_empty() { code } else { ExitCode::FAILURE })
}

struct Bench {
    fixture: Fixture,
    api: Api,
    prober: Prober,
    measurements: Measurements,
}

impl Bench {
    /// Waits until both instances answer and nothing fails.
    async fn wait_until_steady(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + STEADY_DEADLINE;
        let mut recent: Vec<Probe> = Vec::new();
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            recent.extend(self.prober.take());
            recent.drain(..recent.len().saturating_sub(STEADY_PROBES));
            if recent.len() == STEADY_PROBES && is_steady(&recent, [STEADY, FICKLE]) {
                self.prober.reset_totals();
                return Ok(());
            }
            self.fixture.mesh.check_alive()?;
            if Instant::now() > deadline {
                let last = recent.last().map_or_else(|| "none was answered".to_owned(), |probe| say(&probe.outcome));
                bail!(
                    "traffic does not reach both instances of the service within {STEADY_DEADLINE:?} of the Envoys \
                     being ready; of the last probes: {last}"
                );
            }
        }
    }

    /// Makes every change so often, the kinds in turn, so that a drift of the machine does not favour one of them. Ends
    /// early at a change that is never seen, because the state to start the next one from is not known.
    async fn measure_all(&mut self, kinds: &[Kind], times: u32, progress: &Progress) -> anyhow::Result<()> {
        let changes: Vec<Change> = kinds.iter().flat_map(|kind| kind.there_and_back()).collect();
        let total = u64::from(times) * u64::try_from(changes.len()).unwrap_or(u64::MAX);
        let mut phase = progress.phase("changes", total);
        for _ in 0..times {
            for change in &changes {
                if !self.measure(*change).await? {
                    return Ok(());
                }
                phase.step();
            }
        }
        Ok(())
    }

    /// Makes one change and waits for it in the traffic; says whether it was seen.
    async fn measure(&mut self, change: Change) -> anyhow::Result<bool> {
        let call = change.call(&self.fixture.registration);
        let written = self.api.write(call.method, &call.target, &call.body).await?;
        let watch = Watch {
            rule: change.rule(),
            called: self.prober.at(written.called),
            answered: self.prober.at(written.answered),
            lanes: self.prober.lanes(),
            quiet: QUIET_MIN + Duration::from_millis(fastrand::u64(0..=QUIET_JITTER_MS)),
        };
        let mut sightings = Vec::new();
        let mut failures = Vec::new();
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            for probe in self.prober.take() {
                let sight = change.sight(&probe.outcome);
                sightings.push(Sighting { lane: probe.lane, sent: probe.sent, sight });
                if let Outcome::Failed(why) = probe.outcome {
                    failures.push(why);
                }
            }
            if let Some(changed) = watch.judge(&sightings) {
                let from_answer = changed.since(watch.answered);
                let receipt = self.receipt_if_slow(from_answer, written.revision).await;
                self.measurements.add(Measured {
                    change,
                    revision: written.revision,
                    from_answer,
                    from_call: changed.since(watch.called),
                    answer: watch.answered.saturating_sub(watch.called),
                    failures,
                    receipt,
                });
                return Ok(true);
            }
            self.fixture.mesh.check_alive()?;
            if self.prober.now() > watch.answered + CHANGE_DEADLINE {
                self.measurements.never_seen(change, &failures);
                return Ok(false);
            }
        }
    }

    /// What the server says of a change that took longer than the bar; nothing if it cannot say.
    async fn receipt_if_slow(&mut self, took: Duration, revision: Option<u64>) -> Option<String> {
        if milliseconds(took) <= measurements::P99_BAR_MS {
            return None;
        }
        Some(receipt::wait(&mut self.api, revision?, Duration::ZERO).await.ok()?.to_string())
    }
}

fn say(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered(name) => format!("answered by {name}"),
        Outcome::Denied => "denied".to_owned(),
        Outcome::Failed(why) => why.clone(),
    }
}
