//! What a mesh costs: latency, CPU time and memory that proxies add to requests, with how sure that is.
//!
//! Every scenario is a set of points (connections, rate) at which every variant (no mesh, and each kind of proxies in each
//! mode) is measured in each round, in random order. What was measured becomes `cells`; how sure they are is a matter of
//! `statistics`; `report` is what is written.

mod arguments;
mod cells;
mod churn;
pub(crate) mod compare;
mod descriptors;
mod limits;
mod many;
mod measure;
mod points;
pub(crate) mod report;
pub(crate) mod smp;
mod statistics;
pub(crate) mod subjects;
mod target;
pub(crate) mod text;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::cgroup::Cgroups;
use crate::html;
use crate::machine::Machine;
use crate::progress::{Phase, Progress};
use crate::report::Versions;
use crate::stop::Stop;
pub(crate) use arguments::{Args, IngressArgs};
use cells::Measurements;
use churn::Changing;
use limits::Limit;
use measure::{Measured, Timing, measure};
pub(crate) use report::CostScenario;
use report::{Churn, CostReport, Point, SCHEMA, Settings};
pub(crate) use statistics::median;
use subjects::Subjects;

/// After proxies have started, until their memory is looked at: what starting took is given back by then.
const AT_REST: Duration = Duration::from_secs(6);

/// Measures a scenario, or as much of it as there is time for: what was measured until SIGINT or SIGTERM is reported.
///
/// # Errors
/// When nothing can be measured, or the report cannot be written. What is merely missing is in the report.
pub(crate) async fn run(scenario: CostScenario, args: Args) -> anyhow::Result<ExitCode> {
    args.verify(scenario)?;
    let mut stop = Stop::listen()?;
    let (settings, progress) = (args.settings(scenario), Progress::new());
    let (points, mut missing) = fitting(asked(scenario, &args));
    let (points, groups) = limitable(points, &mut missing);
    let mut subjects = tokio::select! {
        subjects = Subjects::start(scenario, &args, &settings, groups, &progress) => subjects?,
        stopped = stop.came() => return Ok(stopped.tell()),
    };
    let mut run = Run { scenario, timing: args.timing(scenario), points, all: Vec::new() };
    run.all = run.empty(&subjects);
    let services = args.services(scenario);
    if missing.is_empty() && subjects.missing.is_empty() {
        run.verify(!subjects.variants.is_empty() && !services.is_empty())?;
    }
    let stopped = tokio::select! {
        measured = run.measure(&mut subjects, &settings, &services, &progress) => measured.map(|()| None)?,
        stopped = stop.came() => Some(stopped),
    };
    run.all.retain(Measurements::applies);
    let (cells, floors) = cells::cells(&run.all, settings.seed);
    let mut missing: Vec<_> = missing.into_iter().chain(subjects.missing.iter().cloned()).collect();
    missing.extend(stopped.map(|stopped| format!("{}: what was not measured by then is not here", stopped.how)));
    missing.extend(text::complaints(&cells, settings.rounds));
    let report = CostReport {
        schema: SCHEMA.to_owned(),
        command: std::env::args().collect(),
        machine: Machine::read(),
        versions: Versions::of(subjects.envoy.as_ref()),
        settings,
        cells,
        floors,
        missing,
    };
    drop(subjects);
    args.output.write_page(|| html::page_of_one(&compare::word(&scenario), html::Report::Cost(&report)))?;
    let delivered = args.output.deliver(&report, &[], || text::text(&report))?;
    Ok(match stopped {
        Some(stopped) => stopped.tell(),
        None if report.missing.is_empty() => delivered,
        None => ExitCode::FAILURE,
    })
}

/// What is measured, and what was.
struct Run {
    scenario: CostScenario,
    timing: Timing,
    points: Vec<Point>,
    /// Of each variant at each point: variants of a point follow each other.
    all: Vec<Measurements>,
}

impl Run {
    /// Nothing measured yet.
    fn empty(&self, subjects: &Subjects) -> Vec<Measurements> {
        let at = |point: &Point| {
            let point = *point;
            subjects.variants.iter().map(move |variant| Measurements {
                scenario: self.scenario,
                proxy: variant.proxy,
                mode: variant.mode,
                point,
                rounds: Vec::new(),
                problems: Vec::new(),
            })
        };
        self.points.iter().flat_map(at).collect()
    }

    /// Refuses a run that would measure nothing.
    ///
    /// # Errors
    /// With what to ask for.
    fn verify(&self, measures_services: bool) -> anyhow::Result<()> {
        if measures_services || self.all.iter().any(Measurements::applies) {
            return Ok(());
        }
        bail!("nothing is left to measure: take another --proxy, other --modes or other points")
    }

    /// Measures everything in every round, and then memory with further services.
    async fn measure(
        &mut self,
        subjects: &mut Subjects,
        settings: &Settings,
        services: &[u32],
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let applying = self.all.iter().filter(|it| it.applies()).count();
        let total = u64::from(settings.rounds) * u64::try_from(applying).unwrap_or(u64::MAX);
        if total > 0 {
            progress.say(&announcement(total, &self.points, self.timing));
        }
        let mut phase = progress.phase("measurements", total);
        for round in 0..settings.rounds {
            if self.scenario == CostScenario::Memory {
                if round > 0 {
                    subjects.restart().await?;
                }
                // A run that short shows that all works, and its figures are nobody's.
                tokio::time::sleep(AT_REST.min(self.timing.length * 6)).await;
            }
            self.measure_round(subjects, (round, settings.seed), &mut phase).await?;
        }
        drop(phase);
        many::measure_all(subjects, services, self.timing, progress, &mut self.all).await;
        Ok(())
    }

    /// Measures everything once.
    async fn measure_round(
        &mut self,
        subjects: &mut Subjects,
        (round, seed): (u32, u64),
        phase: &mut Phase,
    ) -> anyhow::Result<()> {
        let mut past_knee = BTreeSet::new();
        for (place, point) in self.points.iter().enumerate() {
            let turn = round.wrapping_mul(u32::try_from(self.points.len()).unwrap_or(1)) + u32::try_from(place)?;
            let order = statistics::order(subjects.variants.len(), turn, seed);
            for (place_in_round, variant) in (0..).zip(order) {
                let measurements = &mut self.all[place * subjects.variants.len() + variant];
                if !measurements.applies() {
                    continue;
                }
                let skip = past_knee.contains(&(variant, point.connections));
                if !skip && turn_of(measurements, subjects, variant, self.timing, (round, place_in_round)).await {
                    // A mesh that does not keep up with a rate does not keep up with a higher one.
                    let is_curve = self.scenario == CostScenario::Throughput;
                    past_knee.extend(is_curve.then_some((variant, point.connections)));
                }
                phase.step();
            }
        }
        Ok(())
    }
}

/// The points of a run.
fn asked(scenario: CostScenario, args: &Args) -> Vec<Point> {
    if scenario == CostScenario::Ingress {
        args.points_of_ingress()
    } else if args.asks_for_services_alone() {
        Vec::new()
    } else {
        points::points(scenario, args.connections(), args.rates(), args.changes())
    }
}

/// What lies ahead.
fn announcement(total: u64, points: &[Point], timing: Timing) -> String {
    match points.iter().find_map(|point| point.requests) {
        Some(requests) => format!("{total} measurements of {requests} requests each"),
        None => format!("{total} measurements of {:.1} s each", (timing.warm_up + timing.length).as_secs_f64()),
    }
}

/// The points whose limits proxies can be held to, and where groups for that are made, if there are any.
fn limitable(points: Vec<Point>, missing: &mut BTreeSet<String>) -> (Vec<Point>, Option<Cgroups>) {
    let is_free = |point: &Point| Limit::of(point).is_none();
    if points.iter().all(is_free) {
        return (points, None);
    }
    match Cgroups::find() {
        Ok(groups) => (points, Some(groups)),
        Err(error) => {
            let (free, limited): (Vec<_>, Vec<_>) = points.into_iter().partition(is_free);
            let limits: BTreeSet<_> = limited.iter().map(|point| Limit::of(point).to_string()).collect();
            let limits: Vec<_> = limits.into_iter().collect();
            missing.insert(format!("--limits {}: {error:#}", limits.join(",")));
            (free, None)
        }
    }
}

/// The points whose connections fit into what may be open, and why the others do not.
fn fitting(points: Vec<Point>) -> (Vec<Point>, BTreeSet<String>) {
    let mut too_many = BTreeSet::new();
    let fits = |point: &Point| {
        let complaint = descriptors::too_few_for(point.connections);
        let fits = complaint.is_none();
        too_many.extend(complaint);
        fits
    };
    let fitting = points.into_iter().filter(fits).collect();
    (fitting, too_many)
}

/// Measures a variant, while its mesh changes if that is asked for.
async fn measure_changing(
    subjects: &Subjects,
    variant: usize,
    point: Point,
    timing: Timing,
    turn: (u32, u32),
) -> anyhow::Result<Measured> {
    let (of, held) = (&subjects.variants[variant], subjects.held(variant, Limit::of(&point)));
    let plane = subjects.planes.iter().find(|(kind, _)| *kind == of.proxy).map(|(_, plane)| plane);
    let per_second = point.changes_per_second.filter(|per_second| *per_second > 0.0);
    let changing = match plane.zip(per_second) {
        Some((plane, per_second)) => Some(Changing::begin(plane, per_second).await?),
        None => None,
    };
    let measured = measure(of, &held, point, timing, turn).await;
    // Whatever came of it, the mesh has to be as it was.
    let changes = match changing {
        Some(changing) => Some(changing.end().await?),
        None => None,
    };
    let mut measured = measured?;
    if let Some((made, refused, void)) = changes {
        let round = &mut measured.round;
        round.churn = round.churn.take().map(|churn| Churn { made, refused, ..churn });
        round.void = round.void.take().or(void);
    }
    Ok(measured)
}

/// Measures a variant once; whether its answers did not keep up with requests.
async fn turn_of(
    measurements: &mut Measurements,
    subjects: &mut Subjects,
    variant: usize,
    timing: Timing,
    (round, place): (u32, u32),
) -> bool {
    let (point, limit) = (measurements.point, Limit::of(&measurements.point));
    let measured = async {
        subjects.hold(variant, limit)?;
        measure_changing(subjects, variant, point, timing, (round, place)).await
    };
    let (void, not_measured) = match measured.await {
        Ok(measured) => {
            let void = measured.round.void.clone();
            measurements.rounds.push(measured);
            (void, None)
        }
        Err(error) => (None, Some(error)),
    };
    let problem = |error: anyhow::Error| format!("round {round}: {error:#}");
    // How a process ended comes first: it is why the rest went wrong.
    if (void.is_some() || not_measured.is_some())
        && let Some(how) = subjects.ended()
    {
        measurements.problems.push(format!("round {round}: {how}"));
        measurements.problems.extend(subjects.revive().await.err().map(problem));
    }
    measurements.problems.extend(not_measured.map(problem));
    void.is_some_and(|void| void.starts_with(measure::BEHIND))
}
